"""Residual layers in a loop, in place: compiled once for all of them, without the copies of a scan.

`lax.scan` over layers with a switch in each copies much: a layer's weights out of the stack, what it keeps
for the backward pass and its gradients, padded to their maximal sizes, into another. Here the stacks are
the state of the loop, of which a branch reads and writes its active part. A branch is a `while` of one
turn or none: XLA updates the state of a `while` in place, but copies what a conditional changes.

An operation that is a sum over blocks of its last size, as attention is over heads, has no branch for each
number of them: it has a loop with as many turns as blocks are active, and one block is compiled.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxnas.elastic.empty import empty
from jaxnas.elastic.layers import without_norm
from jaxnas.elastic.stacks import at, read, write
from jaxnas.elastic.switch import (
    FIRST,
    Arrays,
    Rows,
    Sublayer,
    as_rows,
    backward_from,
    branches,
    forward_keeping,
    hard_or_masked,
    is_soft,
    kept_like,
    largest,
    masks_at,
    pad,
)

SMALL = 8192  # elements of one layer, below which gradients are padded rather than written in part


def run_layer(
    x: jax.Array, sublayers: tuple[Sublayer, ...], scales: tuple[jax.Array | None, ...]
) -> jax.Array:
    """Adds to x what each sublayer of one layer makes of it.

    Args:
      x: the residual stream [B, T, E], with a zero tail.
      sublayers: in order.
      scales: for each of them None, or a factor for each example [B] (stochastic depth).

    Returns:
      The stream behind the layer, [B, T, E].
    """
    for sublayer, scale in zip(sublayers, scales, strict=True):
        y, gate = sublayer(as_rows(x)).reshape(x.shape), sublayer.gate
        if gate is not None and not gate.is_fixed:
            y = y * gate.mask(y.dtype)[None, None, :]
        x = x + _scaled(y, scale)
    return x


def run_layers(
    x: jax.Array, sublayers: tuple[Sublayer, ...], scales: tuple[jax.Array | None, ...]
) -> jax.Array:
    """`run_layer` for each layer of a stack in a loop, differentiable as `switch.run` is.

    Args:
      x: the residual stream [B, T, E], with a zero tail.
      sublayers, scales: of one layer; each of their arrays has an axis of layers in front.

    Returns:
      The stream behind the last layer, [B, T, E].
    """
    if any(is_soft(sublayer.widths, sublayer.gate) for sublayer in sublayers):
        return lax.scan(lambda x, layer: (run_layer(x, *layer), None), x, (sublayers, scales))[0]
    weights = tuple(sublayer.weights for sublayer in sublayers)
    kinds, choices = zip(*map(_kind, sublayers), strict=True)
    layers = weights[0][0].shape[:1]
    choices = jax.tree.map(lambda index: jnp.broadcast_to(index, layers), choices)
    return _layers(kinds, choices, scales, x, weights)


class Kind(NamedTuple):
    """What decides how a sublayer is compiled.

    Attributes:
      operation: of the sublayer.
      rows: its tuples of sizes, None where it is skipped.
      branches: those that have a branch each; with blocks, the last size is that of one block.
      axes: for each weight behind the normalisation how a block reads it, see `Operation`.
      blocks: how many there can be, or None where there is no loop over blocks.
    """

    operation: Any
    rows: Rows
    branches: Rows
    axes: tuple[Any, ...]
    blocks: int | None = None


class Choice(NamedTuple):
    """What is active: indices of `Kind.rows` and `Kind.branches` and a number of blocks, int32 [] or [L]."""

    row: jax.Array
    branch: jax.Array
    blocks: jax.Array


def _kind(sublayer: Sublayer) -> tuple[Kind, Choice]:
    (*others, last), gate = sublayer.widths, sublayer.gate
    _, count, operation = without_norm(sublayer.operation)
    rows, row = branches(sublayer.widths, gate)
    axes = (None,) * (len(sublayer.weights) - count + 1)
    kind = Kind(sublayer.operation, rows, rows, axes)
    block = math.gcd(*last.table.values)
    # Products for one head at a time are narrow: 6 % of a step in AutoFormer's spaces, which have few sizes.
    if last.is_fixed or block == 1 or not hasattr(operation, "block_axes"):
        return kind, Choice(row, row, jnp.ones_like(row))
    sizes, branch = branches(tuple(others), gate)
    sizes = tuple(None if one is None else (*one, block) for one in sizes)
    active, index = branches((last,), None)
    blocks = jnp.asarray([one[0] // block for one in active if one], jnp.int32)[index]
    axes = operation.block_axes[: len(axes)]
    kind = kind._replace(branches=sizes, axes=axes, blocks=last.maximum // block)
    return kind, Choice(row, branch, blocks)


def _whole(kind: Kind, choice: Choice) -> tuple[Kind, Choice]:
    """The same without blocks: a tenth faster where nothing is kept, and fewer kernels to compile there."""
    axes = (None,) * len(kind.axes)
    return Kind(kind.operation, kind.rows, kind.rows, axes), choice._replace(branch=choice.row)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _layers(kinds: Any, choices: Any, scales: Any, x: jax.Array, weights: Any) -> jax.Array:
    return _forward(kinds, False, choices, (scales, x, weights))[0]


def _layers_forward(kinds: Any, choices: Any, scales: Any, x: jax.Array, weights: Any) -> Any:
    x, stores = _forward(kinds, True, choices, (scales, x, weights))
    return x, (choices, scales, weights, stores)


def _layers_backward(kinds: Any, residuals: Any, gradient: jax.Array) -> Any:
    choices, *others = residuals
    return None, None, *_backward(kinds, choices, (*others, gradient))


_layers.defvjp(_layers_forward, _layers_backward)


def _forward(kinds: Any, keep: bool, choices: Any, operands: Any) -> Any:
    """The stream behind the last layer and, for each sublayer, its inputs and what it keeps [L, ...]."""

    def loop(choices: Any, operands: Any, masked: bool) -> Any:
        scales, x, weights = operands

        def sublayer(i: int, layer: jax.Array, state: Any) -> Any:
            kind, choice = kinds[i], at(choices[i], layer)
            if not keep:
                kind, choice = _whole(kind, choice)

            def branch(sizes: tuple[int, ...] | None, layer: jax.Array, state: Any) -> Any:
                x, store = state
                if sizes is None:
                    y = _masked(kind, choice.row, as_rows(x), *at(weights[i], layer))
                    store = store and (write(store[0], (layer,), as_rows(x)), *store[1:])
                else:
                    y, store = _compute(kind, sizes, choice, as_rows(x), weights[i], layer, store)
                y = pad(y, as_rows(x)).reshape(x.shape)
                return x + _scaled(y, at(scales[i], layer)), store

            rows = (None,) if masked else kind.branches
            return _one_of(rows, choice.branch, branch, layer, state)

        def layers(layer: jax.Array, state: Any) -> Any:
            x, stores = state
            stores = list(stores)
            for i in range(len(kinds)):
                x, stores[i] = sublayer(i, layer, (x, stores[i]))
            return x, tuple(stores)

        stores = tuple(
            _store_like(kind, as_rows(x), own) if keep else ()
            for kind, own in zip(kinds, weights, strict=True)
        )
        return lax.fori_loop(0, len(choices[0].row), layers, (x, empty(stores, x)))

    return hard_or_masked(functools.partial(loop, masked=False), functools.partial(loop, masked=True))(
        choices, operands
    )


def _backward(kinds: Any, choices: Any, operands: Any) -> tuple[jax.Array, Any]:
    """The gradients of the stream and of the weights."""

    def loop(choices: Any, operands: Any, masked: bool) -> Any:
        scales, weights, stores, gradient = operands

        def sublayer(i: int, layer: jax.Array, state: Any) -> Any:
            kind, choice = kinds[i], at(choices[i], layer)

            def branch(sizes: tuple[int, ...] | None, layer: jax.Array, state: Any) -> Any:
                gradient, slots = state
                cotangent = as_rows(_scaled(gradient, at(scales[i], layer)))
                if sizes is None:
                    forward = functools.partial(_masked, kind, choice.row)
                    own = at((stores[i][0], *weights[i]), layer)
                    to_x, *to_weights = jax.vjp(forward, *own)[1](cotangent)
                    slots = _fill(slots, layer, to_weights)
                else:
                    to_x, slots = _differentiate(
                        kind, sizes, choice, stores[i], weights[i], layer, cotangent, slots
                    )
                return gradient + pad(to_x, as_rows(gradient)).reshape(gradient.shape), slots

            # What is small is written once for each layer: in the branches, each would have its own kernels.
            gradient, sums = state
            slots = tuple(jnp.zeros_like(stack[0]) if _is_small(stack) else stack for stack in sums)
            rows = (None,) if masked else kind.branches
            gradient, slots = _one_of(rows, choice.branch, branch, layer, (gradient, slots))
            return gradient, tuple(
                write(stack, (layer,), slot) if _is_small(stack) else slot
                for stack, slot in zip(sums, slots, strict=True)
            )

        def layers(turn: jax.Array, state: Any) -> Any:
            gradient, sums = state
            sums = list(sums)
            for i in reversed(range(len(kinds))):
                gradient, sums[i] = sublayer(i, count - 1 - turn, (gradient, sums[i]))
            return gradient, tuple(sums)

        count = len(choices[0].row)
        return lax.fori_loop(0, count, layers, (gradient, jax.tree.map(jnp.zeros_like, weights)))

    return hard_or_masked(functools.partial(loop, masked=False), functools.partial(loop, masked=True))(
        choices, operands
    )


def _compute(
    kind: Kind,
    sizes: tuple[int, ...],
    choice: Choice,
    x: jax.Array,
    stacks: Arrays,
    layer: jax.Array,
    store: Arrays,
) -> tuple[jax.Array, Arrays]:
    """What a sublayer gives at its active sizes, and the store, if there is one, with what it keeps."""
    normalise, _, operation = without_norm(kind.operation)
    inputs, weights = _active(kind, sizes, x, stacks, layer)
    x = normalise(*inputs)

    def block(number: jax.Array | None, state: Any) -> Any:
        total, kept = state
        operands = x, *weights(number)
        if store:
            (y,), values = forward_keeping(operation, *operands)
            start = _start(layer, number)
            kept = tuple(write(one, start, value) for one, value in zip(kept, values, strict=True))
        else:
            (y,) = operation.compute(*operands)
        return _plus(total, y), kept

    y, kept = _all_blocks(kind, choice, block, x, store[1:])
    return y, store and (write(store[0], (layer,), inputs[0]), *kept)


def _differentiate(
    kind: Kind,
    sizes: tuple[int, ...],
    choice: Choice,
    store: Arrays,
    stacks: Arrays,
    layer: jax.Array,
    cotangent: jax.Array,
    slots: Arrays,
) -> tuple[jax.Array, Arrays]:
    """The gradient of a sublayer's input at its active sizes, and the slots with those of its weights."""
    normalise, count, operation = without_norm(kind.operation)
    inputs, weights = _active(kind, sizes, at(store[0], layer), stacks, layer)
    x, normalise_vjp = jax.vjp(normalise, *inputs)
    cotangent = cotangent[:, : x.shape[1]]

    def block(number: jax.Array | None, state: Any) -> Any:
        total, slots = state
        operands = x, *weights(number)
        like = kept_like(operation, *operands)
        kept = tuple(
            read(one, _start(layer, number), part.shape) for one, part in zip(store[1:], like, strict=True)
        )
        to_x, *to_weights = backward_from(operation, operands, kept, (cotangent,))
        return _plus(total, to_x), _fill(slots, layer, to_weights, kind.axes, number)

    to_x, behind = _all_blocks(kind, choice, block, x, slots[count - 1 :])
    to_x, *to_norm = normalise_vjp(to_x)
    return to_x, (*_fill(slots[: count - 1], layer, to_norm), *behind)


def _all_blocks(kind: Kind, choice: Choice, block: Callable, x: jax.Array, state: Any) -> Any:
    """The sum over a sublayer's active blocks, like x, and the state behind them."""
    if kind.blocks is None:
        return block(None, (None, state))
    total = jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32))
    total, state = lax.fori_loop(0, choice.blocks, block, (total, state))
    return total.astype(x.dtype), state


def _plus(total: jax.Array | None, more: jax.Array) -> jax.Array:
    return more if total is None else total + more.astype(total.dtype)


def _active(
    kind: Kind, sizes: tuple[int, ...], x: jax.Array, stacks: Arrays, layer: jax.Array
) -> tuple[Arrays, Callable[[jax.Array | None], Arrays]]:
    """Operands of a sublayer's normalisation, and the weights behind it as a function of the block."""
    _, count, _ = without_norm(kind.operation)
    shapes = kind.operation.shapes(sizes, x, *map(_of_layer, stacks))

    def weights(number: jax.Array | None) -> Arrays:
        parts = zip(stacks[count - 1 :], shapes[count:], kind.axes, strict=True)
        return tuple(
            _once(read(stack, (layer, *_offset(shape, axis, number)), shape), axis, number)
            for stack, shape, axis in parts
        )

    norm = zip(stacks[: count - 1], shapes[1:count], strict=True)
    inputs = x[:, : shapes[0][1]], *(read(stack, (layer,), shape) for stack, shape in norm)
    return inputs, weights


def _fill(
    slots: Arrays, layer: jax.Array, values: Any, axes: Any = None, number: jax.Array | None = None
) -> Arrays:
    """The slots, stacks or arrays of one layer, with gradients of weights, or of those that a block reads."""

    def one(slot: jax.Array, value: jax.Array, axis: Any) -> jax.Array:
        start = (layer,) if slot.ndim > value.ndim else ()
        if isinstance(axis, int):
            return write(slot, (*start, *_offset(value.shape, axis, number)), value)
        if number is not None:
            value = read(slot, start, value.shape) + _once(value, axis, number)
        return write(slot, start, value) if start else pad(value, slot)

    axes = (None,) * len(slots) if axes is None else axes
    return tuple(map(one, slots, values, axes))


def _once(value: jax.Array, axis: Any, number: jax.Array | None) -> jax.Array:
    if axis != FIRST or number is None:
        return value
    return jnp.where(number == 0, value, 0)


def _offset(shape: tuple[int, ...], axis: Any, number: jax.Array | None) -> tuple[Any, ...]:
    """Where the part of a weight starts that a block reads."""
    return tuple(number * size if i == axis else 0 for i, size in enumerate(shape))


def _start(layer: jax.Array, number: jax.Array | None) -> tuple[jax.Array, ...]:
    return (layer,) if number is None else (layer, number)


def _one_of(
    rows: Rows,
    index: jax.Array,
    branch: Callable[[tuple[int, ...] | None, jax.Array, Any], Any],
    layer: jax.Array,
    state: Any,
) -> Any:
    """The state after the branch of `rows[index]`, which takes sizes, layer and state."""
    if len(rows) == 1:
        return branch(rows[0], layer, state)
    remaining = index
    for sizes in rows:
        if sizes is not None:
            turn = functools.partial(_turn, functools.partial(branch, sizes))
            start = (remaining, layer, state)
            remaining, _, state = lax.while_loop(lambda state: state[0] == 0, turn, start)
        remaining = remaining - 1
    return state


def _turn(branch: Callable[[jax.Array, Any], Any], state: Any) -> Any:
    remaining, layer, state = state
    # The layer changes, so that nothing that is read at it is moved out of the loop.
    return remaining - 1, jnp.full_like(layer, -1), branch(layer, state)


def _masked(kind: Kind, row: jax.Array, *operands: jax.Array) -> jax.Array:
    (y,) = kind.operation.masked(masks_at(kind.rows, row), *operands)
    runs = jnp.asarray([sizes is not None for sizes in kind.rows])[row]
    return jnp.where(runs, y, 0)


def _store_like(kind: Kind, x: jax.Array, weights: Arrays) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shapes of the inputs of a sublayer, and of what it or its blocks keep, in all layers."""
    _, count, operation = without_norm(kind.operation)
    operands = x, *map(_of_layer, weights)
    shapes = kind.operation.shapes(largest(kind.branches), *operands)
    own = [jax.ShapeDtypeStruct(shape, one.dtype) for shape, one in zip(shapes, operands, strict=True)]
    kept = kept_like(operation, own[0], *own[count:])
    layers, blocks = len(weights[0]), () if kind.blocks is None else (kind.blocks,)
    shapes = (layers, *x.shape), *((layers, *blocks, *one.shape) for one in kept)
    return tuple(map(jax.ShapeDtypeStruct, shapes, (x.dtype, *(one.dtype for one in kept))))


def _of_layer(stack: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(stack.shape[1:], stack.dtype)


def _is_small(stack: jax.Array) -> bool:
    return math.prod(stack.shape[1:]) < SMALL


def _scaled(y: jax.Array, scale: jax.Array | None) -> jax.Array:
    return y if scale is None else y * scale.astype(y.dtype)[:, None, None]

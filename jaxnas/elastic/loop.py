"""Residual layers in a loop, in place: compiled once for all of them, without the copies of a scan.

`lax.scan` over layers with a switch in each copies much: a layer's weights out of the stack, what it keeps
for the backward pass and its gradients, padded to their maximal sizes, into another. Here the stacks are
the state of the loop, of which a branch reads and writes its active part. A branch is a `while` of one
turn or none: XLA updates the state of a `while` in place, but copies what a conditional changes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxnas.elastic.empty import empty
from jaxnas.elastic.switch import (
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
    masks_at,
    pad,
)

# The parts of a sublayer that decide what is compiled: its operation and its branches.
Kinds = tuple[tuple[Any, Rows], ...]


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
    chosen = [branches(sublayer.widths, sublayer.gate) for sublayer in sublayers]
    kinds = tuple((s.operation, rows) for s, (rows, _) in zip(sublayers, chosen, strict=True))
    weights = tuple(sublayer.weights for sublayer in sublayers)
    indices = tuple(jnp.broadcast_to(index, weights[0][0].shape[:1]) for _, index in chosen)
    return _layers(kinds, indices, scales, x, weights)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _layers(kinds: Kinds, indices: Any, scales: Any, x: jax.Array, weights: Any) -> jax.Array:
    return _forward(kinds, False, indices, (scales, x, weights))[0]


def _layers_forward(kinds: Kinds, indices: Any, scales: Any, x: jax.Array, weights: Any) -> Any:
    x, stores = _forward(kinds, True, indices, (scales, x, weights))
    return x, (indices, scales, weights, stores)


def _layers_backward(kinds: Kinds, residuals: Any, gradient: jax.Array) -> Any:
    indices, *others = residuals
    return None, None, *_backward(kinds, indices, (*others, gradient))


_layers.defvjp(_layers_forward, _layers_backward)


def _forward(kinds: Kinds, keep: bool, indices: Any, operands: Any) -> Any:
    """The stream behind the last layer and, for each sublayer, its inputs and what it keeps [L, ...]."""

    def loop(indices: Any, operands: Any, masked: bool) -> Any:
        scales, x, weights = operands

        def sublayer(i: int, layer: jax.Array, state: Any) -> Any:
            operation, rows = kinds[i]

            def branch(sizes: tuple[int, ...] | None, layer: jax.Array, state: Any) -> Any:
                x, store = state
                own = _operands(operation, sizes, as_rows(x), weights[i], layer)
                if sizes is None:
                    y, kept = _masked(operation, rows, indices[i][layer], *own), ()
                elif keep:
                    (y,), kept = forward_keeping(operation, *own)
                else:
                    (y,), kept = operation.compute(*own), ()
                store = _write(store, layer, (own[0], *kept)) if keep else ()
                y = pad(y, as_rows(x)).reshape(x.shape)
                return x + _scaled(y, _at(scales[i], layer)), store

            return _one_of((None,) if masked else rows, indices[i][layer], branch, layer, state)

        def layers(layer: jax.Array, state: Any) -> Any:
            x, stores = state
            stores = list(stores)
            for i in range(len(kinds)):
                x, stores[i] = sublayer(i, layer, (x, stores[i]))
            return x, tuple(stores)

        stores = tuple(
            _store(operation, x, own) if keep else ()
            for (operation, _), own in zip(kinds, weights, strict=True)
        )
        return lax.fori_loop(0, len(indices[0]), layers, (x, stores))

    return hard_or_masked(
        functools.partial(loop, masked=False), functools.partial(loop, masked=True)
    )(indices, operands)


def _backward(kinds: Kinds, indices: Any, operands: Any) -> tuple[jax.Array, Any]:
    """The gradients of the stream and of the weights."""

    def loop(indices: Any, operands: Any, masked: bool) -> Any:
        scales, weights, stores, gradient = operands

        def sublayer(i: int, layer: jax.Array, state: Any) -> Any:
            operation, rows = kinds[i]

            def branch(sizes: tuple[int, ...] | None, layer: jax.Array, state: Any) -> Any:
                gradient = state[0]
                inputs, *kept = stores[i]
                own = _operands(operation, sizes, _at(inputs, layer), weights[i], layer)
                cotangent = as_rows(_scaled(gradient, _at(scales[i], layer)))
                if sizes is None:
                    forward = functools.partial(_masked, operation, rows, indices[i][layer])
                    to_x, *to_weights = jax.vjp(forward, *own)[1](cotangent)
                else:
                    kept = _read(kept, layer, [one.shape for one in kept_like(operation, *own)])
                    cotangent = cotangent[:, : own[0].shape[1]]
                    to_x, *to_weights = backward_from(operation, own, kept, (cotangent,))
                to_x = pad(to_x, as_rows(gradient)).reshape(gradient.shape)
                small, large = _apart(to_weights, sums)
                small = tuple(pad(new, old) for new, old in zip(small, state[1], strict=True))
                return gradient + to_x, small, _write(state[2], layer, large)

            # Each branch would have its own kernels to write what is small: they return it, padded.
            gradient, sums = state
            small, large = _apart(sums, sums)
            state = gradient, tuple(jnp.zeros_like(stack[0]) for stack in small), large
            gradient, new, large = _one_of(
                (None,) if masked else rows, indices[i][layer], branch, layer, state
            )
            return gradient, _together(_write(small, layer, new), large, sums)

        def layers(turn: jax.Array, state: Any) -> Any:
            gradient, sums = state
            sums = list(sums)
            for i in reversed(range(len(kinds))):
                gradient, sums[i] = sublayer(i, count - 1 - turn, (gradient, sums[i]))
            return gradient, tuple(sums)

        count = len(indices[0])
        return lax.fori_loop(0, count, layers, (gradient, jax.tree.map(jnp.zeros_like, weights)))

    return hard_or_masked(
        functools.partial(loop, masked=False), functools.partial(loop, masked=True)
    )(indices, operands)


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
    # Counting down, and not comparing with each row, is one kernel for all branches.
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


def _masked(operation: Any, rows: Rows, index: jax.Array, *operands: jax.Array) -> jax.Array:
    (y,) = operation.masked(masks_at(rows, index), *operands)
    runs = jnp.asarray([row is not None for row in rows])[index]
    return jnp.where(runs, y, 0)


def _store(operation: Any, x: jax.Array, weights: Arrays) -> Arrays:
    """Space for the inputs of a sublayer, and for what it keeps, in all layers."""
    x = as_rows(x)
    kept = kept_like(operation, x, *(stack[0] for stack in weights))
    return tuple(empty((len(weights[0]), *one.shape), one.dtype) for one in (x, *kept))


def _operands(
    operation: Any, sizes: tuple[int, ...] | None, x: jax.Array, stacks: Arrays, layer: jax.Array
) -> Arrays:
    """The active part of a sublayer's operands at a layer; all of it where sizes is None."""
    like = jax.eval_shape(lambda: (x, *(stack[0] for stack in stacks)))
    shapes = [one.shape for one in like] if sizes is None else operation.shapes(sizes, *like)
    return x[:, : shapes[0][1]], *_read(stacks, layer, shapes[1:])


def _scaled(y: jax.Array, scale: jax.Array | None) -> jax.Array:
    return y if scale is None else y * scale.astype(y.dtype)[:, None, None]


def _at(stacks: Any, layer: jax.Array) -> Any:
    return jax.tree.map(lambda stack: _read([stack], layer, [stack.shape[1:]])[0], stacks)


def _read(stacks: Any, layer: jax.Array, shapes: Any) -> Arrays:
    """The part of these shapes of each stack at a layer."""
    return tuple(
        lax.dynamic_slice(stack, _start(stack, layer), (1, *shape), allow_negative_indices=False)[0]
        for stack, shape in zip(stacks, shapes, strict=True)
    )


def _write(stacks: Arrays, layer: jax.Array, values: Any) -> Arrays:
    """The stacks with values, which may be smaller, at a layer; further stacks as they are."""
    written = tuple(
        lax.dynamic_update_slice(stack, value[None], _start(stack, layer), allow_negative_indices=False)
        for stack, value in zip(stacks, values, strict=False)
    )
    return (*written, *stacks[len(written) :])


def _apart(values: Any, stacks: Arrays) -> tuple[Arrays, Arrays]:
    """The values of small stacks, and those of large ones."""
    small = tuple(value for value, stack in zip(values, stacks, strict=True) if _is_small(stack))
    large = tuple(value for value, stack in zip(values, stacks, strict=True) if not _is_small(stack))
    return small, large


def _together(small: Arrays, large: Arrays, stacks: Arrays) -> Arrays:
    """The inverse of `_apart`."""
    parts = iter(small), iter(large)
    return tuple(next(parts[0] if _is_small(stack) else parts[1]) for stack in stacks)


def _is_small(stack: jax.Array) -> bool:
    return math.prod(stack.shape[1:]) < 8192


def _start(stack: jax.Array, layer: jax.Array) -> tuple[Any, ...]:
    return layer, *(jnp.zeros_like(layer),) * (stack.ndim - 1)

"""Running an operation at its active widths: one compiled program in which only the active slice runs.

An operation is written once for plain arrays (`compute`) and once for masks (`masked`). `run` decides:

* widths that the space fixes: the plain form, nothing else in the program;
* hard decisions: a `lax.switch` over the plain form at each tuple of sizes, with a backward pass that
  switches again. Autodiff through a switch would keep the residuals of every branch; here they are the
  operands, and what the operation keeps, at their maximal sizes;
* hard decisions under `vmap` over architectures: the masked form, since a batched switch would run
  every branch;
* soft decisions: the masked form with expected masks, plain operations that differentiate to any order.

The masked form computes what is inactive too, and multiplies it by 0: all weights must be finite.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from jaxnas.elastic.empty import empty
from jaxnas.elastic.parameter import ELASTIC_SCOPE
from jaxnas.elastic.width import Joint, Width, joint, masks_of_row

Arrays = tuple[jax.Array, ...]
Shapes = tuple[tuple[int, ...], ...]
Rows = tuple[tuple[int, ...] | None, ...]
FIRST = "first"  # in `Operation.block_axes`


class Operation(Protocol):
    """A hashable description of an operation on arrays that are stored at their maximal sizes.

    `shapes` says which prefix of each operand is active for given sizes. `compute` takes these prefixes, or
    any others that fit each other, and knows nothing of a supernet. `masked` takes the operands as they
    are stored and a channel mask for each width.

    The backward pass is the vector-Jacobian product of `compute`, which computes what it needs again. Where
    that is too much, an operation has `forward(*operands) -> (outputs, kept)` with arrays to keep, and
    `backward(operands, kept, cotangents) -> gradients`.

    An operation whose output is a sum over blocks of its last size, as attention's is over heads, may have
    `block_axes`. They say for each operand behind the first how a block reads it: its part along an axis
    (an int), all of it (None), or all of it in the first block and zeros in the others (`FIRST`). Layers in
    a loop then run it block by block.
    """

    def shapes(self, sizes: tuple[int, ...], *operands: jax.Array) -> Shapes: ...

    def compute(self, *operands: jax.Array) -> Arrays: ...

    def masked(self, masks: Arrays, *operands: jax.Array) -> Arrays: ...


@flax.struct.dataclass
class Sublayer:
    """An operation on the residual stream with all that it takes beside the stream.

    Attributes:
      operation: what to compute; its first operand, and its only output, is the residual stream [N, E].
      widths: see `run`.
      weights: its other operands.
      gate: see `run`.
    """

    operation: Any = flax.struct.field(pytree_node=False)
    widths: tuple[Width, ...]
    weights: Arrays
    gate: Width | None = None

    def __call__(self, x: jax.Array) -> jax.Array:
        """What the sublayer adds to x, before the stochastic depth."""
        return run(self.operation, self.widths, x, *self.weights, gate=self.gate)[0]


@jax.named_scope(ELASTIC_SCOPE)
def run(
    operation: Operation,
    widths: tuple[Width, ...],
    *operands: jax.Array,
    gate: Width | None = None,
    masked: bool = False,
) -> Arrays:
    """Runs an operation at the active widths.

    A choice that is hard can be differentiated in reverse mode, and that gradient in forward mode but not in
    reverse again: `Space.soften` makes an architecture of the same function that can.

    Args:
      operation: what to compute.
      widths: those whose sizes `operation` takes, in its order.
      *operands: arrays at their maximal sizes.
      gate: a width of 0 or 1; where it is 0 a hard architecture skips the operation and gets zeros.
      masked: for an operation that is small in its network: masks for hard decisions too, since a branch
        for each tuple of sizes, forward and backward, would cost more to compile than it saves. No gate.

    Returns:
      The operation's outputs at their maximal sizes.
    """
    choice = _joint(widths, gate)
    if choice.is_soft or (masked and len(choice.rows) > 1):
        return operation.masked(choice.masks()[: len(widths)], *operands)
    rows, index = branches(widths, gate)
    if len(rows) == 1:
        return _forward_branch(operation, rows[0], *operands)
    return _switched(operation, rows, index, *operands)


def branches(widths: tuple[Width, ...], gate: Width | None) -> tuple[Rows, jax.Array]:
    """What a hard choice of sizes can be, and what it is.

    Args:
      widths, gate: see `run`; with decisions of any shape.

    Returns:
      The distinct tuples of sizes, None for a skipped operation, and the index of the active one, int32
      of the decisions' shape.
    """
    choice = _joint(widths, gate)
    if len(choice.tables) == len(widths):
        return choice.rows, choice.index()
    sizes = [None if row[-1] == 0 else row[:-1] for row in choice.rows]
    rows = tuple(dict.fromkeys(sizes))
    return rows, jnp.asarray(np.array([rows.index(row) for row in sizes], np.int32))[choice.index()]


def is_soft(widths: tuple[Width, ...], gate: Width | None) -> bool:
    """Whether one of the decisions is a vector of weights."""
    return _joint(widths, gate).is_soft


def _joint(widths: tuple[Width, ...], gate: Width | None) -> Joint:
    return joint(*widths) if gate is None or gate.is_fixed else joint(*widths, gate)


@functools.partial(jax.jit, static_argnums=0)
def forward_keeping(operation: Any, *operands: jax.Array) -> tuple[Arrays, Arrays]:
    """An operation's outputs, and what it keeps for its backward pass (often nothing)."""
    if hasattr(operation, "forward"):
        return operation.forward(*operands)
    return operation.compute(*operands), ()


def backward_from(operation: Any, operands: Arrays, kept: Arrays, cotangents: Arrays) -> Arrays:
    """The gradients of an operation's operands."""
    if hasattr(operation, "backward"):
        return operation.backward(operands, kept, cotangents)
    return jax.vjp(operation.compute, *operands)[1](cotangents)


def kept_like(operation: Any, *operands: Any) -> Any:
    """Shapes and dtypes of what an operation keeps for its backward pass."""
    return jax.eval_shape(functools.partial(forward_keeping, operation), *operands)[1]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _forward_branch(operation: Any, sizes: tuple[int, ...], *operands: jax.Array) -> Arrays:
    like = jax.eval_shape(operation.compute, *operands)
    return pad(operation.compute(*_active(operation, sizes, operands)), like)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _keeping_branch(operation: Any, sizes: tuple[int, ...], *operands: jax.Array) -> Any:
    compute = functools.partial(forward_keeping, operation)
    return pad(compute(*_active(operation, sizes, operands)), jax.eval_shape(compute, *operands))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _backward_branch(
    operation: Any, sizes: tuple[int, ...], operands: Arrays, kept: Arrays, cotangents: Arrays
) -> Arrays:
    active = _active(operation, sizes, operands)
    like = jax.eval_shape(functools.partial(forward_keeping, operation), *active)
    cotangents, kept = jax.tree.map(lambda x, one: _cut(x, one.shape), (cotangents, kept), like)
    return pad(backward_from(operation, active, kept, cotangents), operands)


def _active(operation: Any, sizes: tuple[int, ...], operands: Arrays) -> Arrays:
    shapes = operation.shapes(sizes, *operands)
    return tuple(_cut(x, shape) for x, shape in zip(operands, shapes, strict=True))


def _cut(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return x if x.shape == shape else lax.slice(x, (0,) * x.ndim, shape)


def pad(tree: Any, like: Any) -> Any:
    """A tree of arrays with zeros behind each axis, up to the shapes of `like`."""

    def one(x: jax.Array, like: Any) -> jax.Array:
        if x.shape == like.shape:
            return x
        return jnp.pad(x, [(0, n - m) for m, n in zip(x.shape, like.shape, strict=True)])

    return jax.tree.map(one, tree, like)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _switched(operation: Any, rows: Rows, index: jax.Array, *operands: jax.Array) -> Arrays:
    return _forward_switch(operation, rows, False, index, *operands)


def _switched_forward(operation: Any, rows: Rows, index: jax.Array, *operands: jax.Array) -> Any:
    outputs, kept = _forward_switch(operation, rows, True, index, *operands)
    return outputs, (index, operands, kept)


def _switched_backward(operation: Any, rows: Rows, residuals: Any, cotangents: Arrays) -> Any:
    index, operands, kept = residuals
    return None, *_backward_switch(operation, rows, index, (operands, kept, cotangents))


_switched.defvjp(_switched_forward, _switched_backward)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _forward_switch(operation: Any, rows: Rows, keep: bool, index: jax.Array, *operands: jax.Array) -> Any:
    compute = functools.partial(_keeping_branch if keep else _forward_branch, operation)
    like = jax.eval_shape(functools.partial(compute, largest(rows)), *operands)

    def branch(sizes: tuple[int, ...] | None, operands: Any) -> Any:
        if sizes is not None:
            return compute(sizes, *operands)
        return (_zeros(like[0]), empty(like[1], operands[0])) if keep else _zeros(like)

    def masked(index: jax.Array, operands: Any) -> Any:
        outputs = operation.masked(masks_at(rows, index), *operands)
        # The masked backward pass computes again; what another would keep is unused.
        return (outputs, empty(like[1], operands[0])) if keep else outputs

    return hard_or_masked(_switch(rows, branch), masked)(index, operands)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _backward_switch(operation: Any, rows: Rows, index: jax.Array, residuals: Any) -> Arrays:
    def branch(sizes: tuple[int, ...] | None, residuals: Any) -> Arrays:
        if sizes is None:
            return _zeros(residuals[0])
        return _backward_branch(operation, sizes, *residuals)

    def masked(index: jax.Array, residuals: Any) -> Arrays:
        operands, _, cotangents = residuals
        forward = functools.partial(operation.masked, masks_at(rows, index))
        return jax.vjp(forward, *operands)[1](cotangents)

    return hard_or_masked(_switch(rows, branch), masked)(index, residuals)


def _switch(rows: Rows, branch: Any) -> Any:
    choices = [functools.partial(branch, sizes) for sizes in rows]
    return lambda index, operands: lax.switch(index, choices, operands)


def hard_or_masked(hard: Any, masked: Any) -> Any:
    """A function of (index, operands): `hard`, or under vmap over an index `masked`.

    Where the architecture is shared, `hard` is batched over its operands and keeps real branches.
    """

    @custom_vmap
    def call(index: Any, operands: Any) -> Any:
        return hard(index, operands)

    @call.def_vmap
    def rule(axis_size: int, in_batched: Any, index: Any, operands: Any) -> Any:
        axes = jax.tree.map(lambda batched: 0 if batched else None, tuple(in_batched))
        batched = functools.partial(jax.vmap, in_axes=axes, axis_size=axis_size)
        if any(jax.tree.leaves(in_batched[0])):
            outputs = batched(masked)(index, operands)
        else:
            outputs = hard_or_masked(batched(hard), batched(masked))(index, operands)
        return outputs, jax.tree.map(lambda _: True, outputs)

    return call


def masks_at(rows: Rows, index: jax.Array) -> Arrays:
    """Channel masks of a row; a skipped one is computed as any other, for its caller gates the result."""
    full = largest(rows)
    return masks_of_row(tuple(full if row is None else row for row in rows), index)


def largest(rows: Rows) -> tuple[int, ...]:
    """The largest of each size."""
    sizes = [row for row in rows if row is not None]
    return tuple(max(column) for column in zip(*sizes, strict=True))


def as_rows(x: jax.Array) -> jax.Array:
    """[..., D] as [N, D]: plain matrix products over flattened rows are the fastest."""
    return x.reshape(-1, x.shape[-1])


def _zeros(like: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)

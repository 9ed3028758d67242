"""Running an operation at its active widths: one compiled program in which only the active slice runs.

An operation is written once for static sizes (`sliced`) and once for masks (`masked`). `run` decides:

* widths that the space fixes: the sliced form, nothing else in the program;
* hard decisions: a `lax.switch` over the sliced forms, with a backward pass that switches again.
  Autodiff through a switch would keep the residuals of every branch; here they are the full-size
  operands (and outputs, where the operation asks for them);
* hard decisions under `vmap` over architectures: the masked form, since a batched switch would run
  every branch;
* soft decisions: the masked form with expected masks, plain operations that differentiate to any order.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from jaxnas.elastic.width import Joint, Width, joint, masks_of_row

Arrays = tuple[jax.Array, ...]


class Operation(Protocol):
    """A hashable description of an operation on operands stored at their maximal sizes.

    `sliced` takes static sizes, reads only the active prefix of each operand and returns outputs of
    the maximal size with a zero tail. `masked` takes a channel mask for each width instead.

    The backward pass is the vector-Jacobian product of `sliced`, which recomputes what it needs. Where
    that is too much, an operation has `forward(sizes, *operands) -> (outputs, kept)` with arrays to keep
    at their maximal sizes, and `backward(sizes, operands, kept, cotangents)`.
    """

    def sliced(self, sizes: tuple[int, ...], *operands: jax.Array) -> Arrays: ...

    def masked(self, masks: Arrays, *operands: jax.Array) -> Arrays: ...


def run(
    operation: Operation, widths: tuple[Width, ...], *operands: jax.Array, gate: Width | None = None
) -> Arrays:
    """Runs an operation at the active widths.

    Args:
      operation: what to compute.
      widths: those whose sizes `operation` takes, in its order.
      *operands: arrays at their maximal sizes.
      gate: a width of 0 or 1; where it is 0 a hard architecture skips the operation and gets zeros.

    Returns:
      The operation's outputs at their maximal sizes.
    """
    choice = joint(*widths) if gate is None or gate.is_fixed else joint(*widths, gate)
    gated = len(choice.tables) > len(widths)
    if choice.is_soft:
        return operation.masked(choice.masks()[: len(widths)], *operands)
    rows = _merge_skipped(choice, gated)
    if len(rows) == 1:
        return _forward_branch(operation, rows[0], *operands)
    index = _row_index(choice, rows, gated)
    return _switched(operation, rows, index, *operands)


def _merge_skipped(choice: Joint, gated: bool) -> tuple[tuple[int, ...] | None, ...]:
    """The branches: size tuples without the gate, and None for the one that is skipped."""
    if not gated:
        return choice.rows
    return tuple(dict.fromkeys(None if row[-1] == 0 else row[:-1] for row in choice.rows))


def _row_index(choice: Joint, rows: tuple, gated: bool) -> jax.Array:
    if not gated:
        return choice.index()
    branch = [rows.index(None if row[-1] == 0 else row[:-1]) for row in choice.rows]
    return jnp.asarray(np.array(branch, np.int32))[choice.index()]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _forward_branch(operation: Any, sizes: tuple[int, ...], *operands: jax.Array) -> Arrays:
    return operation.sliced(sizes, *operands)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _keeping_branch(operation: Any, sizes: tuple[int, ...], *operands: jax.Array) -> Any:
    return forward_keeping(operation, sizes, *operands)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _backward_branch(operation: Any, sizes: tuple[int, ...], residuals: Any) -> Arrays:
    return backward_from(operation, sizes, *residuals)


def forward_keeping(operation: Operation, sizes: tuple[int, ...], *operands: jax.Array) -> Any:
    """An operation's outputs, and what it keeps for its backward pass (often nothing)."""
    if hasattr(operation, "forward"):
        return cast(Any, operation).forward(sizes, *operands)
    return operation.sliced(sizes, *operands), ()


def backward_from(
    operation: Operation, sizes: tuple[int, ...], operands: Arrays, kept: Arrays, cotangents: Arrays
) -> Arrays:
    """The gradients of an operation's operands."""
    if hasattr(operation, "backward"):
        return cast(Any, operation).backward(sizes, operands, kept, cotangents)
    return jax.vjp(functools.partial(operation.sliced, sizes), *operands)[1](cotangents)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _switched(operation: Any, rows: tuple, index: jax.Array, *operands: jax.Array) -> Arrays:
    return _forward_switch(operation, rows, False, index, *operands)


def _switched_forward(operation: Any, rows: tuple, index: jax.Array, *operands: jax.Array) -> Any:
    outputs, kept = _forward_switch(operation, rows, True, index, *operands)
    return outputs, (index, operands, kept)


def _switched_backward(operation: Any, rows: tuple, residuals: Any, cotangents: Arrays) -> Any:
    index, operands, kept = residuals
    return None, *_backward_switch(operation, rows, index, (operands, kept, cotangents))


_switched.defvjp(_switched_forward, _switched_backward)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _forward_switch(
    operation: Any, rows: tuple, keep: bool, index: jax.Array, *operands: jax.Array
) -> Any:
    compute = _keeping_branch if keep else _forward_branch
    like = jax.eval_shape(functools.partial(compute, operation, _largest(rows)), *operands)

    def branch(sizes: tuple[int, ...] | None, operands: Any) -> Any:
        return _zeros(like) if sizes is None else compute(operation, sizes, *operands)

    def masked(index: jax.Array, operands: Any) -> Any:
        outputs = operation.masked(_masks(rows, index), *operands)
        # The masked backward pass recomputes; what a sliced one would keep is unused.
        return (outputs, _zeros(like[1])) if keep else outputs

    branches = [functools.partial(branch, sizes) for sizes in rows]
    return _switch_or_mask(branches, masked)(index, operands)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _backward_switch(operation: Any, rows: tuple, index: jax.Array, residuals: Any) -> Arrays:
    def branch(sizes: tuple[int, ...] | None, residuals: Any) -> Arrays:
        if sizes is None:
            return _zeros(residuals[0])
        return _backward_branch(operation, sizes, residuals)

    def masked(index: jax.Array, residuals: Any) -> Arrays:
        operands, _, cotangents = residuals
        forward = functools.partial(operation.masked, _masks(rows, index))
        return jax.vjp(forward, *operands)[1](cotangents)

    branches = [functools.partial(branch, sizes) for sizes in rows]
    return _switch_or_mask(branches, masked)(index, residuals)


def _switch_or_mask(branches: list, masked: Any) -> Any:
    """A function of (index, operands): a switch, or under vmap over the index the masked form."""

    @custom_vmap
    def call(index: jax.Array, operands: Any) -> Any:
        return lax.switch(index, branches, operands)

    @call.def_vmap
    def rule(axis_size: int, in_batched: Any, index: jax.Array, operands: Any) -> Any:
        axes = jax.tree.map(lambda batched: 0 if batched else None, in_batched[1])
        if in_batched[0]:
            outputs = jax.vmap(masked, (0, axes), axis_size=axis_size)(index, operands)
        else:
            # The architecture is shared: keep real branches, each batched over its operands.
            batched = [jax.vmap(b, (axes,), axis_size=axis_size) for b in branches]
            batched_masked = jax.vmap(masked, (None, axes), axis_size=axis_size)
            outputs = _switch_or_mask(batched, batched_masked)(index, operands)
        return outputs, jax.tree.map(lambda _: True, outputs)

    return call


def _masks(rows: tuple, index: jax.Array) -> Arrays:
    """Channel masks of a row; a skipped one is computed as any other, for its caller gates the result."""
    largest = _largest(rows)
    return masks_of_row(tuple(largest if row is None else row for row in rows), index)


def _largest(rows: tuple) -> tuple[int, ...]:
    sizes = [row for row in rows if row is not None]
    return tuple(max(column) for column in zip(*sizes, strict=True))


def _zeros(like: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)

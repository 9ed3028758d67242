"""Runs a plain function at the active sizes of its operands: one program, in which only that part runs.

The operands are stored at their maximal sizes. `run` cuts the active part out of each, calls the function on
these parts, and puts zeros behind the result. How it does so depends on what is known:

* The space fixes all sizes: the function is called as it is, and nothing else is in the program. Of a static
  architecture (NumPy arrays), as where parameters are initialized, the branch that it takes is all there is.
* The decisions are hard: a `lax.switch` has one branch for each combination of sizes, or for each group of
  combinations (see `maskable` in `run`). The backward pass is a switch too. Autodiff through a switch would
  keep the intermediate results of every branch; here the operands are kept, and what the function asks for.
* The decisions are hard and batched by `vmap`: a batched switch computes all its branches and selects. So
  there are as few branches as possible, or a masked function, if one was written.
* The decisions are soft: the expected result, made of plain operations, which can be differentiated any
  number of times.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxnas.elastic.parameter import ELASTIC_SCOPE
from jaxnas.elastic.plan import Axes, Plan, Sizes, by_value, check, make_plan, rows_of, with_branches
from jaxnas.elastic.width import Joint, Width, joint, masks_of_row

Keep = Callable[[jax.Array], jax.Array]


def run(
    function: Callable[..., Any],
    axes: str,
    widths: dict[str, Width],
    *operands: jax.Array,
    gate: Width | None = None,
    maskable: tuple[str, ...] = (),
    max_branches: int = 8,
    masked: Callable[..., Any] | None = None,
) -> Any:
    """Runs a function at the active sizes of its operands.

    A dense layer whose two widths are choices:

        def dense(x, kernel, bias):
            return x @ kernel + bias[None, :]

        widths = {"in": width_in, "out": width_out}
        y = run(dense, "rows in, in out, out -> rows out", widths, x, kernel, bias, maskable=("in", "out"))

    A function may have keyword-only parameters, which `run` fills:

    * One with the name of a width gets its active size, a Python int. Such a width needs no axis: the size of
      a convolution's kernel has none, since the small kernel is the center of the large one and no prefix.
    * `sizes` gets the active sizes of all widths, by name.
    * `keep` gets a function that returns its argument, and has that array stored for the backward pass.
      `hidden = keep(x @ kernel)` is then not computed again. All that is not kept is computed again.

    Operands may have any dtype: those that are no floating-point arrays, such as masks and indices, get no
    gradient. A hard architecture can be differentiated in reverse mode once; `Space.soften` makes one of the
    same function that can be differentiated again.

    Args:
      function: takes the active parts of the operands and returns an array, or a pytree of arrays. It must be
        hashable and is traced anew for each new object: give a function of a module, or an instance of a
        frozen dataclass with `__call__`, rather than a new lambda in each call.
      axes: the names of the axes of each operand and, behind "->", of each output. Axes with the name of a
        width are cut to its active size, all others are whole. "..." is an operand without named axes.
      widths: the active sizes by name.
      *operands: arrays at their maximal sizes; activations have zeros behind the active part.
      gate: a width of 0 or 1. Where it is 0 nothing is computed and the outputs are zeros.
      maskable: names of widths for which zeros behind an operand's active part leave the active part of the
        result as it is. That is so for the channels of sums and products, as in dense layers and
        convolutions, and not for means or a softmax. Where there would be more than `max_branches`
        branches, sizes of these widths share a branch, which runs at the largest of them with masks. So
        compile time does not grow with the product of the numbers of options.
      max_branches: how many branches there may be. Sizes that no `maskable` width has still get a branch
        each. With 1, which suits operations that are small in their network, all is done by masks.
      masked: an equivalent of the function for batches of architectures and for soft decisions, if the
        default is too slow: `masked(masks, *operands)` gets a dict with a mask [maximal size] for each width
        (1 or 0 if hard, the expectation of that if soft) and the operands as they are stored. The default
        computes the function once for each size that is not maskable, and weights the results.

    Returns:
      The outputs of the function at their maximal sizes, with zeros behind the active part.

    Raises:
      ValueError: `axes` that do not fit the operands, or names that belong to no width.
    """
    check(axes, widths, operands, maskable)
    sizes = joint(*widths.values())
    choice = sizes if gate is None or gate.is_fixed else joint(*widths.values(), gate)
    rows, index = rows_of(choice, len(widths))
    plan = make_plan(function, axes, tuple(widths), rows, maskable, max_branches, by_value(masked))
    with jax.named_scope(ELASTIC_SCOPE):
        if gate is not None and not gate.maximum:  # no architecture of the space runs it
            return _zeros(_outputs_like(plan, operands))
        if masked is not None and (choice.is_soft or (max_branches == 1 and len(rows) > 1)):
            outputs = masked(dict(zip(widths, sizes.masks(), strict=True)), *operands)
            if choice is sizes or gate is None:
                return outputs
            factor = gate.mask()[0]
            return jax.tree.map(lambda y: y * factor.astype(y.dtype), outputs)
        if choice.is_soft:
            return _expected(plan, choice, operands)
        if isinstance(index, int) and len(rows) > 1:
            return _static(plan, index, *operands)
        if len(plan.branches) == 1:
            return _branch(plan, 0, index, operands, _return)
        return _switched(plan, index, *operands)


# ---- One branch.


def _return(x: jax.Array) -> jax.Array:
    return x


def _branch(plan: Plan, number: int, row: jax.Array | int | None, operands: Any, keep: Keep) -> Any:
    """The outputs, with zeros behind, at the sizes of a branch; of a soft choice (no row) without masks."""
    sizes = plan.branches[number]
    if sizes is None:
        return _zeros(_outputs_like(plan, operands))
    masks = {} if row is None else _masks(plan, number, sizes, row)
    active = dict(zip(plan.names, sizes, strict=True))
    parts = [
        _mask(_gather(_cut(x, axes, active), axes, plan.operand_axes[0]), axes, masks)
        for x, axes in zip(operands, plan.operand_axes, strict=True)
    ]
    with jax.named_scope(ELASTIC_SCOPE):
        outputs = plan.function(*parts, **_asked(plan.function, active, keep))
    if masks:
        leaves, structure = jax.tree.flatten(outputs)
        leaves = [_mask(y, axes, masks) for y, axes in zip(leaves, plan.output_axes, strict=True)]
        outputs = jax.tree.unflatten(structure, leaves)
    return pad(outputs, _outputs_like(plan, operands))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _static(plan: Plan, row: int, *operands: jax.Array) -> Any:
    """The branch of a static architecture, under `jit`: layers of one form are traced once."""
    return _branch(plan, plan.branch_of[row], row, operands, _return)


def _asked(function: Callable[..., Any], active: dict[str, int], keep: Keep) -> dict[str, Any]:
    given = {**active, "keep": keep, "sizes": active}
    return {name: given[name] for name in _keywords(function) if name in given}


@functools.lru_cache(maxsize=4096)
def _keywords(function: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(one.name for one in parameters if one.kind == inspect.Parameter.KEYWORD_ONLY)


def _masks(plan: Plan, number: int, sizes: Sizes, row: jax.Array | int) -> dict[str, jax.Array]:
    """For the widths that are smaller than the branch in some of its rows, which entries are active."""
    masks = {}
    for column, name in enumerate(plan.names):
        of_rows = [0 if one is None else one[column] for one in plan.rows]
        own = [size for size, branch in zip(of_rows, plan.branch_of, strict=True) if branch == number]
        if set(own) != {sizes[column]}:
            places = jnp.arange(sizes[column], dtype=jnp.int32)
            masks[name] = places < jnp.asarray(of_rows, jnp.int32)[row]
    return masks


def _cut(x: jax.Array, axes: Axes, active: dict[str, int]) -> jax.Array:
    if axes is None:
        return x
    return _prefix(x, tuple(active.get(name, n) for name, n in zip(axes, x.shape, strict=True)))


def _gather(x: jax.Array, axes: Axes, first: Axes) -> jax.Array:
    """The part of a parameter that a branch uses, whole on each device, where devices share parameters.

    The part alone is gathered, just before it is used. What has the leading axis of the first operand is no
    parameter: its rows stay divided over all devices, lest the compiler divides something else. Elsewhere
    than in a program for a mesh (`jax.sharding.use_abstract_mesh`) nothing is done.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if axes is None or first is None or set(mesh.axis_types) != {AxisType.Auto}:
        return x
    if first[0] not in axes:
        return lax.with_sharding_constraint(x, P())
    rows = axes.index(first[0])
    if x.shape[rows] % mesh.size:
        return x
    return lax.with_sharding_constraint(x, P(*[None] * rows, mesh.axis_names))


def _prefix(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return x if x.shape == shape else lax.slice(x, (0,) * x.ndim, shape)


def _mask(x: jax.Array, axes: Axes, masks: dict[str, jax.Array]) -> jax.Array:
    for axis, name in enumerate(axes or ()):
        if name in masks:
            mask = masks[name].reshape([-1 if i == axis else 1 for i in range(x.ndim)])
            x = jnp.where(mask, x, jnp.zeros((), x.dtype))
    return x


@functools.partial(jax.jit, static_argnums=0)
def _traced(plan: Plan, *operands: jax.Array) -> tuple[Any, tuple[jax.Array, ...]]:
    """The outputs of the function at its largest size and what it keeps; only their shapes are asked for.

    Under `jit`, since JAX then keeps the shapes: every branch of every layer of one form asks for the same.
    """
    kept: list[jax.Array] = []
    active = dict(zip(plan.names, plan.largest, strict=True))
    asked = _asked(plan.function, active, functools.partial(_record, kept))
    return plan.function(*operands, **asked), tuple(kept)


def _outputs_like(plan: Plan, operands: Any) -> Any:
    return jax.eval_shape(_traced, plan, *operands)[0]


def _kept_like(plan: Plan, operands: Any) -> tuple[jax.ShapeDtypeStruct, ...]:
    return jax.eval_shape(_traced, plan, *operands)[1]


def _record(arrays: list[jax.Array], x: jax.Array) -> jax.Array:
    arrays.append(x)
    return x


def _replay(arrays: list[jax.Array], x: jax.Array) -> jax.Array:
    """The array that was kept in place of x: its value, while gradients go to x."""
    stored = _prefix(arrays.pop(0), x.shape)
    return _instead(x, stored) if _is_floating(x) else stored


@jax.custom_vjp
def _instead(x: jax.Array, stored: jax.Array) -> jax.Array:
    return stored


_instead.defvjp(lambda x, stored: (stored, None), lambda _, gradient: (gradient, None))


def pad(tree: Any, like: Any) -> Any:
    """A tree of arrays with zeros behind each axis, up to the shapes of `like`."""

    def one(x: jax.Array, like: Any) -> jax.Array:
        if x.shape == like.shape:
            return x
        return jnp.pad(x, [(0, n - m) for m, n in zip(x.shape, like.shape, strict=True)])

    return jax.tree.map(one, tree, like)


def _zeros(like: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)


def _is_floating(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


# ---- Hard decisions.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _switched(plan: Plan, row: jax.Array, *operands: jax.Array) -> Any:
    return _forward(plan, False, row, operands)[0]


def _switched_forward(plan: Plan, row: jax.Array, *operands: jax.Array) -> Any:
    outputs, kept = _forward(plan, True, row, operands)
    return outputs, (row, operands, kept)


def _switched_backward(plan: Plan, residuals: Any, cotangents: Any) -> Any:
    row, operands, kept = residuals
    # Outputs that are no floating-point arrays have no cotangent, operands like that get no gradient.
    outputs = jax.tree.leaves(_outputs_like(plan, operands))
    cotangents = [one for one, y in zip(jax.tree.leaves(cotangents), outputs, strict=True) if _is_floating(y)]
    gradients = iter(_backward(plan, row, (operands, kept, cotangents)))
    return None, *(next(gradients) if _is_floating(x) else None for x in operands)


_switched.defvjp(_switched_forward, _switched_backward)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _forward(plan: Plan, keeping: bool, row: jax.Array, operands: Any) -> Any:
    """The outputs and, for a backward pass, what the function keeps, with zeros behind."""
    like = _kept_like(plan, operands) if keeping else ()

    def switch(plan: Plan, row: jax.Array, operands: Any) -> Any:
        def branch(number: int, row: jax.Array, operands: Any) -> Any:
            kept: list[jax.Array] = []
            keep = functools.partial(_record, kept) if keeping else _return
            outputs = _branch(plan, number, row, operands, keep)
            if plan.branches[number] is None:
                return outputs, _zeros(like)
            return outputs, pad(tuple(kept), like) if keeping else ()

        return _switch(plan, branch, row, operands)

    def masked(row: jax.Array, operands: Any) -> Any:
        # The backward pass of a masked function computes all again.
        return _masked(plan, row, operands), _zeros(like)

    return _hard_or_batched(plan, switch, masked)(row, operands)


@functools.partial(jax.jit, static_argnums=0)
def _backward(plan: Plan, row: jax.Array, residuals: Any) -> list[jax.Array]:
    """The gradients of the floating-point operands."""

    def gradients(function: Callable[[list[jax.Array]], Any], operands: Any, cotangents: Any) -> Any:
        def outputs(*floating: jax.Array) -> list[jax.Array]:
            rest = iter(floating)
            y = function([next(rest) if _is_floating(x) else x for x in operands])
            return [leaf for leaf in jax.tree.leaves(y) if _is_floating(leaf)]

        return list(jax.vjp(outputs, *filter(_is_floating, operands))[1](cotangents))

    def switch(plan: Plan, row: jax.Array, residuals: Any) -> Any:
        def branch(number: int, row: jax.Array, residuals: Any) -> Any:
            operands, kept, cotangents = residuals
            if plan.branches[number] is None:
                return _zeros([x for x in operands if _is_floating(x)])
            keep = functools.partial(_replay, list(kept))
            return gradients(
                lambda operands: _branch(plan, number, row, operands, keep), operands, cotangents
            )

        return _switch(plan, branch, row, residuals)

    def masked(row: jax.Array, residuals: Any) -> Any:
        operands, _, cotangents = residuals
        return gradients(functools.partial(_masked, plan, row), operands, cotangents)

    return _hard_or_batched(plan, switch, masked)(row, residuals)


def _switch(plan: Plan, branch: Callable[..., Any], row: jax.Array, operands: Any) -> Any:
    branches = [functools.partial(branch, number) for number in range(len(plan.branches))]
    if len(branches) == 1:
        return branches[0](row, operands)
    return lax.switch(jnp.asarray(plan.branch_of, jnp.int32)[row], branches, row, operands)


def _masked(plan: Plan, row: jax.Array, operands: Any) -> Any:
    """The written masked function at a row; zeros where it is skipped."""
    assert plan.masked is not None
    masks = masks_of_row(tuple(plan.largest if one is None else one for one in plan.rows), row)
    outputs = plan.masked(dict(zip(plan.names, masks, strict=True)), *operands)
    runs = jnp.asarray([one is not None for one in plan.rows])[row]
    return jax.tree.map(lambda y: jnp.where(runs, y, jnp.zeros((), y.dtype)), outputs)


def _hard_or_batched(plan: Plan, switch: Callable[..., Any], masked: Callable[..., Any]) -> Any:
    """A function of (row, operands): the switch or, under vmap over rows, what is cheaper there."""
    batched_form = functools.partial(switch, with_branches(plan, plan.maskable))
    return _by_batching(functools.partial(switch, plan), batched_form if plan.masked is None else masked)


def _by_batching(hard: Callable[..., Any], batched: Callable[..., Any]) -> Any:
    """`hard(row, operands)`, or `batched` under vmap over rows.

    Where the architecture is shared, `hard` is batched over its operands and keeps real branches.
    """

    @custom_vmap
    def call(row: Any, operands: Any) -> Any:
        return hard(row, operands)

    @call.def_vmap
    def rule(axis_size: int, in_batched: Any, row: Any, operands: Any) -> Any:
        axes = jax.tree.map(lambda batched: 0 if batched else None, tuple(in_batched))
        vmap = functools.partial(jax.vmap, in_axes=axes, axis_size=axis_size)
        if any(jax.tree.leaves(in_batched[0])):
            outputs = vmap(batched)(row, operands)
        else:
            outputs = _by_batching(vmap(hard), vmap(batched))(row, operands)
        return outputs, jax.tree.map(lambda _: True, outputs)

    return call


# ---- Soft decisions.


def _expected(plan: Plan, choice: Joint, operands: Any) -> Any:
    """The sum over all sizes of the outputs, weighted by their probabilities.

    Outputs are computed once for all sizes of a maskable width: its expected mask weights them. A width of
    the first operand needs no weight here, since that operand's own operation has weighted it.
    """
    known = {name for axes in (*plan.output_axes, plan.operand_axes[0]) for name in axes or ()}
    plan = with_branches(plan, tuple(name for name in plan.maskable if name in known))
    rows = [row[:-1] if len(row) > len(plan.names) else row for row in choice.rows]
    skipped = [len(row) > len(plan.names) and row[-1] == 0 for row in choice.rows]
    weights, total = choice.weights(), None
    for number, sizes in enumerate(plan.branches):
        if sizes is None:
            continue
        pairs = zip(rows, skipped, strict=True)
        own = np.array([not skip and plan.branch_of[plan.rows.index(row)] == number for row, skip in pairs])
        chosen = weights * jnp.asarray(own, weights.dtype)  # [rows]
        leaves, structure = jax.tree.flatten(_branch(plan, number, None, operands, _return))
        output_axes = plan.output_axes or (None,) * len(leaves)
        leaves = [
            y * _expected_mask(plan, rows, chosen, y, axes).astype(y.dtype)
            for y, axes in zip(leaves, output_axes, strict=True)
        ]
        outputs = jax.tree.unflatten(structure, leaves)
        total = outputs if total is None else jax.tree.map(jnp.add, total, outputs)
    return total


def _expected_mask(plan: Plan, rows: Any, weights: jax.Array, y: jax.Array, axes: Axes) -> jax.Array:
    """The sum of the rows' weights, entry by entry where the row's maskable sizes include it; of y's rank."""
    masks = np.ones((len(rows), *(1,) * y.ndim), np.float32)
    for axis, name in enumerate(axes or ()):
        if name in plan.maskable:
            sizes = np.array([row[plan.names.index(name)] for row in rows])
            active = np.arange(y.shape[axis])[None, :] < sizes[:, None]
            masks = masks * active.reshape([len(rows), *(-1 if i == axis else 1 for i in range(y.ndim))])
    return jnp.tensordot(weights, jnp.asarray(masks), axes=1)


def as_rows(x: jax.Array) -> jax.Array:
    """[..., D] as [N, D]: plain matrix products over flattened rows are the fastest."""
    return x.reshape(-1, x.shape[-1])

"""The form `switch`: segments run at their active sizes, each in one switch over static slices.

`elastic.run` has a branch for each combination of sizes, which runs the segment at small shapes. It cuts
prefixes, so arrays are given to it with one axis for each factor, such as heads and their size, and joined
again within a branch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.elastic import switch as elastic
from jaxnas.elastic.attention import softmax_from
from jaxnas.elastic.width import Width
from jaxnas.transform.program import Operation
from jaxnas.transform.segments import MOST, Local, Segment, local
from jaxnas.transform.sizes import Sizes, State
from jaxnas.transform.ties import Layout, Leaf, Sum, atoms_of, mask_of

Operate = Callable[[Operation, State, Sizes], None]


@dataclasses.dataclass(frozen=True)
class _AtSizes:
    """A segment as a function for `elastic.run`, of arrays with one axis for each factor."""

    local: Local
    operate: Operate

    def __call__(self, *operands: jax.Array, sizes: Mapping[str, int], keep: elastic.Keep) -> Any:
        local = self.local
        at = {atom: sizes[f"a{atom}"] for atom in local.atoms}
        small = Sizes(local.layouts, at, None, {}, {})
        given = [
            joined(x, local.layouts[one], at) for one, x in zip(local.segment.ins, operands, strict=True)
        ]
        state = self._state(given)
        for op in local.segment.operations:
            self.operate(op, state, small)
            for out in local.needed.intersection(op.outs):
                kept = keep(factored(state.values[out], local.layouts[out], at))
                kept = joined(kept, local.layouts[out], at)
                if out in local.softmaxes:
                    exponents, axes = local.softmaxes[out]
                    kept = softmax_from(state.values[exponents], kept, axes)
                state.values[out] = kept
        return tuple(factored(state.values[out], local.layouts[out], at) for out in local.segment.outs)

    def masked(self, masks: Mapping[str, Any], *operands: jax.Array) -> Any:
        """The same at full sizes, for batches of architectures."""
        local = self.local
        largest = {atom: masks[f"a{atom}"].shape[0] for atom in local.atoms}
        full = {
            atom: size for axes in local.layouts.values() for x in axes for atom, size in atoms_of(x).items()
        }
        active = {
            atom: jnp.pad(masks[f"a{atom}"] > 0, (0, full[atom] - largest[atom])) for atom in local.atoms
        }
        at = {atom: mask.sum(dtype=jnp.int32) for atom, mask in active.items()}
        sizes = Sizes(local.layouts, at, active, {}, {})
        given = []
        for one, x in zip(local.segment.ins, operands, strict=True):
            given.append(_whole(x, local.layouts[one]))
        state = self._state(given)
        for op in local.segment.operations:
            self.operate(op, state, sizes)
        results = []
        for out in local.segment.outs:
            layouts = local.layouts[out]
            made = split(sizes.mask(state.values[out], layouts), layouts)
            results.append(made[_up_to(layouts, largest)])
        return tuple(results)

    def _state(self, given: list[Any]) -> State:
        local = self.local
        values = dict(zip(local.segment.ins, given, strict=True))
        return State(values, {}, dict(local.pending), {})


def run_segment(segment: Segment, gate: Width | None, state: State, sizes: Sizes, operate: Operate) -> None:
    """Runs a segment at its active sizes.

    Args:
      segment: of a program.
      gate: 0 where the segment is skipped, which gives zeros; None where it always runs.
      state: which gets the results, with zeros behind their active part.
      sizes: with widths.
      operate: runs one operation, at small or at full sizes.
    """
    assert sizes.widths is not None
    own, widths = local(segment, sizes.layouts, sizes.widths, state.scalars, state.pending)
    function, layouts, (ins, outs) = _AtSizes(own, operate), own.layouts, (own.segment.ins, own.segment.outs)
    axes = [
        ", ".join(" ".join(names(layouts[one], own.atoms, one)) or "..." for one in side)
        for side in (ins, outs)
    ]
    largest = {int(name[1:]): one.maximum for name, one in widths.items()}
    arrays = [one for one in segment.ins if one not in state.scalars]
    operands = [
        split(state.values[one], layouts[new])[_up_to(layouts[new], largest)]
        for one, new in zip(arrays, ins, strict=True)
    ]
    alone = len(segment.operations) == 1  # of a product, zeros do not change the active part
    results = elastic.run(
        function,
        " -> ".join(axes),
        widths,
        *operands,
        gate=gate,
        maskable=tuple(widths) if alone else (),
        max_branches=8 if alone else MOST,
        masked=function.masked,
    )
    for out, new, made in zip(segment.outs, outs, results, strict=True):
        state.values[out] = _whole(made, layouts[new])
        state.zero[out] = sizes.atoms(out)


def _whole(x: Any, layouts: Sequence[Layout]) -> Any:
    """The inverse of cutting a split array up to what some architecture has."""
    full = jax.ShapeDtypeStruct([factor.size for axis in layouts for factor in axis], x.dtype)
    return joined(elastic.pad(x, full), layouts, {})


def _up_to(layouts: Sequence[Layout], largest: Mapping[int, int]) -> tuple[slice, ...]:
    """The part of an array, with one axis for each factor, that some architecture has."""
    return tuple(
        slice(largest.get(factor.atom, factor.size) if isinstance(factor, Leaf) else None)
        for axis in layouts
        for factor in axis
    )


# ---- Arrays as `elastic.run` takes them, with one axis for each factor.


def split(x: Any, layouts: Sequence[Layout]) -> Any:
    """An array with one axis for each factor."""
    return x.reshape([factor.size for axis in layouts for factor in axis])


def names(layouts: Sequence[Layout], elastic: Iterable[int], number: int) -> list[str]:
    """The names of the axes of an array with one axis for each factor, those of widths as `a3`."""
    factors = [factor for axis in layouts for factor in axis]
    return [
        f"a{factor.atom}" if isinstance(factor, Leaf) and factor.atom in elastic else f"w{number}_{place}"
        for place, factor in enumerate(factors)
    ]


def joined(x: Any, layouts: Sequence[Layout], sizes: Mapping[int, int]) -> Any:
    """An array at small sizes, from one with one axis for each factor, of which sums are whole."""
    factors = [factor for axis in layouts for factor in axis]
    for place, factor in enumerate(factors):
        if isinstance(factor, Sum) and (kept := _positions(factor, sizes)) is not None:
            x = jnp.take(x, kept, axis=place)
    shape, sizes_of = [], list(x.shape)
    for axis in layouts:
        shape.append(math.prod(sizes_of[: len(axis)]))
        sizes_of = sizes_of[len(axis) :]
    return x.reshape(shape)


def factored(x: Any, layouts: Sequence[Layout], sizes: Mapping[int, int]) -> Any:
    """The inverse of `joined`, with zeros in sums."""
    factors = [factor for axis in layouts for factor in axis]
    x = x.reshape([_size(factor, sizes) for factor in factors])
    for place, factor in enumerate(factors):
        if isinstance(factor, Sum) and (kept := _positions(factor, sizes)) is not None:
            shape = (*x.shape[:place], factor.size, *x.shape[place + 1 :])
            x = jnp.zeros(shape, x.dtype).at[(slice(None),) * place + (kept,)].set(x)
    return x


def _size(factor: Leaf | Sum, sizes: Mapping[int, int]) -> int:
    if isinstance(factor, Leaf):
        return sizes.get(factor.atom, factor.size)
    kept = _positions(factor, sizes)
    return factor.size if kept is None else len(kept)


def _positions(factor: Sum, sizes: Mapping[int, int]) -> np.ndarray | None:
    """The active positions of a sum; None if it is whole."""
    masks = {
        atom: np.arange(full) < sizes[atom] for atom, full in atoms_of((factor,)).items() if atom in sizes
    }
    mask = mask_of((factor,), masks)
    return None if mask.all() else np.flatnonzero(mask)

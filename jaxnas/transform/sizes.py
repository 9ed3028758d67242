"""The sizes at which a program runs, the arrays that it has while it runs, and what is known of them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxnas.axes.program import Constant, Operation, Program, Value
from jaxnas.axes.ties import Layout, atoms_of, mask_of, size_of
from jaxnas.elastic.width import Width
from jaxnas.transform.specs import active_part

Atoms = frozenset[int]
NONE: Atoms = frozenset()


@dataclasses.dataclass(frozen=True)
class Region:
    """Operations of a module that may be skipped.

    Attributes:
      start, stop: of its operations.
      outs: what is used of it outside, with what stands for each where it is skipped.
    """

    start: int
    stop: int
    outs: tuple[tuple[int, Value], ...]


class Row(NamedTuple):
    """The part of one iteration of a scan; in the masked forms all iterations, with a leading axis.

    Attributes:
      sizes, masks, widths: of elastic atoms; see `Sizes`.
      gates: of regions.
    """

    sizes: dict[int, Any]
    masks: dict[int, Any]
    widths: dict[int, Width]
    gates: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Turns:
    """The sizes and masks that differ by iteration of a scan.

    Attributes:
      axis: the atom of the turns.
      regions: that may be skipped by turn, each with the identity of the program that it is in.
      rows: masked, one `Row` of all turns; at small shapes one for each turn, and none where all are alike.
      kept: at small shapes the turns that run.
    """

    axis: int
    regions: tuple[tuple[int, Region], ...]
    rows: Any
    kept: tuple[int, ...] = ()


@dataclasses.dataclass
class Sizes:
    """The sizes that a program is run at.

    Attributes:
      layouts: of all arrays.
      sizes: of elastic atoms: ints, traced integers, or expected sizes.
      masks: of elastic atoms, bool or float [full size]; None at small shapes.
      gates: of regions, by the identity of the program that they are in, outermost first: bool, or the
        probability that the region runs.
      constants: arrays that the functions close over.
      kernels: the atoms of kernels of convolutions, whose active part is their center.
      widths: of elastic atoms, in the form `switch`.
      switched_gates: of regions, in the form `switch`.
      turns: by the identity of a scan. Outside of it, what has an atom by turn has an axis of turns, too.
    """

    layouts: Mapping[int, tuple[Layout, ...]]
    sizes: Mapping[int, Any]
    masks: Mapping[int, Any] | None
    gates: Mapping[int, list[tuple[Region, Any]]]
    constants: Mapping[int, Any]
    kernels: Atoms = NONE
    widths: Mapping[int, Width] | None = None
    switched_gates: Mapping[Region, Width] = dataclasses.field(default_factory=dict)
    turns: Mapping[int, Turns] = dataclasses.field(default_factory=dict)

    @property
    def small(self) -> bool:
        """Whether arrays have their active shapes."""
        return self.masks is None

    def elastic(self, layout: Layout) -> Atoms:
        """The elastic atoms of an axis."""
        return frozenset(atoms_of(layout).keys() & self.sizes.keys())

    def atoms(self, one: Value) -> Atoms:
        """The elastic atoms of an array."""
        return NONE.union(*map(self.elastic, self.layouts[one])) if isinstance(one, int) else NONE

    def size(self, layout: Layout) -> Any:
        """The active size of an axis."""
        return size_of(layout, self.sizes)

    def shape(self, number: int) -> tuple[int, ...]:
        """The shape of an array at small sizes."""
        return tuple(self.size(layout) for layout in self.layouts[number])

    def host_mask(self, layout: Layout) -> np.ndarray:
        """The active positions of an axis at small sizes, bool [full size]."""
        full, own = atoms_of(layout), self.elastic(layout)
        kept = {turns.axis: turns.kept for turns in self.turns.values()}
        masks = {a: active_part(full[a], self.sizes[a], a in self.kernels, np) for a in own}
        masks |= {a: np.isin(np.arange(full[a]), kept[a]) for a in own & kept.keys()}
        return mask_of(layout, masks)

    def position(self, layout: Layout, place: int) -> Any:
        """The number of active positions in front of a place of an axis at small sizes."""
        if place in (0, size_of(layout, {})):  # also of a symbolic size
            return self.size(layout) if place else 0
        return int(self.host_mask(layout)[:place].sum())

    def cut(self, value: Any, number: int) -> Any:
        """The active part of an array that has its full shape."""
        for axis, layout in enumerate(self.layouts[number]):
            if self.elastic(layout):
                value = _take(value, np.flatnonzero(self.host_mask(layout)), axis)
        return value

    def mask(self, value: Any, layouts: Sequence[Layout | None], neutral: Any = 0) -> Any:
        """An array with a neutral value behind the active part of some axes."""
        for mask in self._masks(layouts):
            if mask.dtype != np.dtype(bool) and neutral == 0 and jnp.issubdtype(value.dtype, jnp.inexact):
                value = value * mask.astype(value.dtype)
            else:
                value = jnp.where(mask.astype(bool), value, _neutral(neutral, value.dtype))
        return value

    def keep(self, value: Any, layouts: Sequence[Layout], old: Any) -> Any:
        """An array with the values of another one behind its active part."""
        for mask in self._masks(layouts):
            value = jnp.where(mask.astype(bool), value, old)
        return value

    def _masks(self, layouts: Sequence[Layout | None]) -> Iterator[Any]:
        """The weights of the positions of elastic axes, each to be broadcast to an array with these axes."""
        masks = self.masks
        assert masks is not None
        for axis, layout in enumerate(layouts):
            if layout is None or not (own := self.elastic(layout)):
                continue
            shape = [-1 if i == axis else 1 for i in range(len(layouts))]
            turned = {atom: masks[atom] for atom in own & self.axis_of.keys()}
            if not turned:
                yield mask_of(layout, masks, jnp).reshape(shape)
                continue
            along = place_of(self.axis_of[next(iter(turned))], layouts)
            mask = jax.vmap(lambda row, x=layout: mask_of(x, {**masks, **row}, jnp))(turned)
            shape[along] = len(mask)
            yield (mask if along < axis else mask.T).reshape(shape)

    def at(self, turns: Turns, row: Row) -> Sizes:
        """The sizes within one turn of a scan."""
        gates = dict(self.gates)
        for (program, region), gate in zip(turns.regions, row.gates, strict=True):
            gates[program] = outermost_first([*gates.get(program, []), (region, gate)])
        return dataclasses.replace(
            self,
            sizes={**self.sizes, **row.sizes},
            masks=None if self.masks is None else {**self.masks, **row.masks},
            widths=None if self.widths is None else {**self.widths, **row.widths},
            gates=gates,
            turns={},
        )

    @functools.cached_property
    def axis_of(self) -> dict[int, int]:
        """The atom of the turns, for each atom by turn."""
        return {
            atom: turns.axis
            for turns in self.turns.values()
            for row in (turns.rows if self.small else [turns.rows])
            for atom in row.sizes
        }

    @functools.cached_property
    def active_constants(self) -> dict[int, Any]:
        """The arrays that the functions close over, of which small shapes have the active part."""
        return {n: self.cut(x, n) if self.small else x for n, x in self.constants.items()}


def place_of(atom: int, layouts: Sequence[Layout | None]) -> int:
    """The axis that an atom is; -1 if it is none."""
    return next((i for i, x in enumerate(layouts) if x and len(x) == 1 and x[0] == (atom, x[0].size)), -1)


def outermost_first(gates: list[tuple[Region, Any]]) -> list[tuple[Region, Any]]:
    """The order in which regions of a program are entered."""
    return sorted(gates, key=lambda one: one[0].start - one[0].stop)


def _take(value: Any, places: np.ndarray, axis: int) -> Any:
    if len(places) and np.array_equal(places, np.arange(len(places))):
        return lax.slice_in_dim(value, 0, len(places), axis=axis)
    return jnp.take(value, places, axis=axis)


def _neutral(value: Any, dtype: Any) -> Any:
    if isinstance(value, bool) or math.isfinite(value) or jnp.issubdtype(dtype, jnp.inexact):
        return jnp.asarray(value, dtype)
    info = None if jnp.issubdtype(dtype, jnp.bool_) else jnp.iinfo(dtype)
    return jnp.asarray(value > 0 if info is None else info.max if value > 0 else info.min, dtype)


@dataclasses.dataclass
class State:
    """The arrays of a program while it runs, and what is known of them."""

    values: dict[int, Any]
    zero: dict[int, Atoms]  # atoms behind whose active part zeros are known to be
    pending: dict[int, Layout]  # the factors of the axes that sums are along, if some are elastic
    scalars: dict[int, Any]

    def copy(self) -> State:
        """The state within a region, whose arrays do not leave it."""
        return State(dict(self.values), dict(self.zero), dict(self.pending), dict(self.scalars))

    def value(self, one: Value) -> Any:
        """An array, or a scalar that is written in the program."""
        return one.value if isinstance(one, Constant) else self.values[one]

    def zeros(self, one: Value, sizes: Sizes) -> Atoms:
        """The atoms behind whose active part zeros are known to be."""
        if isinstance(one, Constant):
            return frozenset(sizes.sizes) if np.all(np.asarray(one.value) == 0) else NONE
        return self.zero.get(one, NONE)


# Elementwise functions of which 0 is a fixed point.
_ODD = frozenset(
    "abs asin asinh atan atanh ceil conj convert_element_type copy copy_p erf erf_inv expm1 "
    "floor imag log1p neg optimization_barrier real reduce_precision round sign sin sinh square "
    "stop_gradient tan tanh".split()
)
_ALL = frozenset("add add_any sub max min or xor".split())  # 0 of zeros
_ANY = frozenset("mul and".split())  # 0 if one operand is
_KEPT = frozenset(  # moves numbers, or adds some: zeros stay zeros
    "reshape transpose squeeze tile expand_dims broadcast_in_dim slice rev reduce_sum reduce_max reduce_min "
    "reduce_window_max reduce_window_min reduce_window_sum dynamic_slice".split()
)


def zeros_of(op: Operation, state: State, sizes: Sizes) -> Atoms:
    """The atoms behind whose active part the results are known to be zero."""
    given = [state.zeros(one, sizes) for one in op.ins]
    if not any(given):
        return NONE
    has = [sizes.atoms(one) for one in op.ins]
    found = NONE
    if op.name in _ANY or op.name == "dot_general":
        found = NONE.union(*(zero & own for zero, own in zip(given, has, strict=True)))
    elif op.name in _ALL or op.name in ("concatenate", "stack"):
        found = given[0].intersection(*given[1:])
    elif op.name == "select_n":
        found = given[1].intersection(*given[2:])
    elif op.name in ("div", "rem") or op.name in _KEPT or op.name in _ODD:
        found = given[0]
    elif op.name == "gather":
        found = given[0] - has[1]
    elif op.name == "integer_pow" and op.eqn.params["y"] > 0:
        found = given[0]
    elif op.name == "cumsum":
        found = given[0] - sizes.elastic(sizes.layouts[op.array(0)][op.eqn.params["axis"]])
    elif op.name == "conv_general_dilated":
        kernels = sizes.layouts[op.array(1)][op.eqn.params["dimension_numbers"].rhs_spec[0]]
        found = (given[1] & sizes.elastic(kernels)) | (given[0] - has[1])
    found &= sizes.atoms(op.outs[0])  # a sum along an atom no longer has it
    if not found:
        return NONE
    # An atom in two axes of a result, as of x x^T: both operands must have zeros.
    axes = [sizes.elastic(layout) for layout in sizes.layouts[op.outs[0]]]
    twice = {atom for atom in found if sum(atom in axis for axis in axes) > 1}
    return frozenset(
        atom
        for atom in found
        if atom not in twice or all(atom in zero for zero, own in zip(given, has, strict=True) if atom in own)
    )


def zeros_of_body(body: Program, zero: Sequence[Atoms], sizes: Sizes) -> list[Atoms]:
    """`zeros_of` the results of a program of such operations."""
    state = State({}, dict(zip(body.inputs, zero, strict=True)), {}, {})
    for op in body.operations:
        zeros = zeros_of(op, state, sizes)
        state.zero.update(dict.fromkeys(op.outs, zeros))
    return [state.zeros(one, sizes) for one in body.outputs]

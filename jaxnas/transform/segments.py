"""The form `switch`: operations are grouped to segments, which run at their active sizes.

A *segment* is a sequence of operations whose sizes have few combinations, such as an attention, or an MLP
with its normalization. `elastic.run` has a branch for each combination, which runs the segment at small
shapes. It cuts prefixes, so arrays are given to it with one axis for each factor, such as heads and their
size, and joined again within a branch.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.axes.program import CUSTOM, Constant, Operation, Program, Value
from jaxnas.axes.ties import Layout, Leaf, Sum, atoms_of, mask_of
from jaxnas.elastic import switch as elastic
from jaxnas.elastic.attention import softmax_from
from jaxnas.elastic.width import Width, joint
from jaxnas.transform.sizes import Sizes, State

CONTRACTIONS = ("dot_general", "conv_general_dilated")
_MOVED = frozenset("convert_element_type broadcast_in_dim reshape squeeze expand_dims copy".split())
_LINEAR = _MOVED | frozenset(
    "add add_any sub neg transpose select_n reduce_sum reduce_max slice pad concatenate".split()
)
MOST = 12  # combinations of sizes of a segment, each a branch
Layouts = Mapping[int, tuple[Layout, ...]]


@dataclasses.dataclass(frozen=True)
class Segment:
    """Operations that run in one switch.

    Attributes:
      operations: in their order.
      ins: arrays from elsewhere that they read.
      outs: what is read of them elsewhere.
    """

    operations: tuple[Operation, ...]
    ins: tuple[int, ...]
    outs: tuple[int, ...]


def segments(
    operations: Sequence[Operation],
    used: Iterable[Value],
    layouts: Layouts,
    widths: Mapping[int, Width],
    masked: frozenset[int],
) -> list[Operation | Segment]:
    """Groups operations, in an order in which they can run.

    Args:
      operations: of a program.
      used: arrays that are read behind these operations.
      layouts: of all arrays.
      widths: of elastic atoms.
      masked: atoms that run with masks.

    Returns:
      Segments, and operations that run at their full sizes.
    """
    end, atoms = len(operations), [_atoms(op, layouts) for op in operations]
    last = {one: place for place, op in enumerate(operations) for one in op.ins if isinstance(one, int)}
    last |= {one: end for one in used if isinstance(one, int)}

    def first(rest: list[int]) -> tuple[list[int], list[int], list[int]]:
        """The first operations that run together, those before them of no elastic size, and the others."""
        free: list[int] = []
        current: list[int] = []
        together: frozenset[int] = frozenset()
        made: set[Value] = set()
        for number, place in enumerate(rest):
            op, own = operations[place], atoms[place] & (widths.keys() | masked)
            if not own and made.isdisjoint(op.ins):
                free.append(place)
                continue
            if not _plain(op) or own & masked or not _few(together | own, widths):
                if not current:
                    return free, [place], rest[number + 1 :]
                back = cut(current, place, own)
                return free, current[:back], [*current[back:], *rest[number:]]
            current.append(place)
            made.update(op.outs)
            together |= own
        return free, current, []

    def cut(current: list[int], stop: int, own: frozenset[int]) -> int:
        """How many operations run together before one that does not fit: where least is handed on to it."""
        least, best = math.inf, len(current)
        for back in range(len(current), 0, -1):
            behind = [*current, stop][back]
            kept = [x for i in current[:back] for x in operations[i].outs if last.get(x, -1) >= behind]
            size = sum(math.prod(factor.size for axis in layouts[x] for factor in axis) for x in kept)
            if size < least:
                least, best = size, back
            if not atoms[current[back - 1]] & widths.keys() <= own:
                break
        return best

    found: list[Operation | Segment] = []
    rest = list(range(end))
    while rest:
        free, together, rest = first(rest)
        found += [operations[i] for i in free]
        chosen = [operations[i] for i in together]
        sliced = all(_plain(operations[i]) and not atoms[i] & masked for i in together)
        if not sliced or not any(map(_contracts, chosen)):
            found += chosen
            continue
        made = dict.fromkeys(out for op in chosen for out in op.outs)
        taken = dict.fromkeys(one for op in chosen for one in op.ins if isinstance(one, int))
        outs = tuple(out for out in made if last.get(out, -1) >= (rest[0] if rest else end))
        if outs:  # or nothing reads it
            found.append(Segment(tuple(chosen), tuple(one for one in taken if one not in made), outs))
    return found


def _atoms(op: Operation, layouts: Layouts) -> frozenset[int]:
    arrays = {x for one in op.nested() for x in (*one.ins, *one.outs) if isinstance(x, int)}
    return frozenset().union(*(atoms_of(axis) for one in arrays for axis in layouts[one]))


def _plain(op: Operation) -> bool:
    """Whether an operation can be part of a segment: no loop, no branches, and nothing beside its results."""
    return not any((one.bodies and one.name not in CUSTOM) or one.eqn.effects for one in op.nested())


def _contracts(op: Operation) -> bool:
    return any(one.name in CONTRACTIONS for one in op.nested())


def _few(atoms: Iterable[int], widths: Mapping[int, Width]) -> bool:
    tables = [widths[atom] for atom in sorted(atoms)]
    counts = {name: n for one in tables for name, n in zip(one.table.names, one.table.counts, strict=True)}
    return math.prod(counts.values()) <= 100 * MOST and len(joint(*tables).rows) <= MOST


# ---- A segment by itself: equal ones of several layers are traced once.


@dataclasses.dataclass(frozen=True, eq=False)
class Local:
    """A segment with arrays and atoms numbered by their first use.

    Attributes:
      segment: with the numbers of its own.
      layouts: of its arrays.
      pending: for each operand that is a sum along elastic axes, their factors.
      atoms: the elastic atoms, by their numbers in the segment.
      key: equal for segments that compute the same.
    """

    segment: Segment
    layouts: dict[int, tuple[Layout, ...]]
    pending: dict[int, Layout]
    atoms: tuple[int, ...]
    key: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Local) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @functools.cached_property
    def softmaxes(self) -> dict[int, tuple[int, tuple[int, ...]]]:
        """The results of a softmax, each with what its exponential is taken of, and the axes."""
        made = {out: op for op in self.segment.operations for out in op.outs}

        def through(one: Value) -> Operation | None:
            op = made.get(one) if isinstance(one, int) else None
            return through(op.ins[0]) if op is not None and op.name in _MOVED else op

        found = {}
        for op in self.segment.operations:
            above, below = (through(one) for one in op.ins) if op.name == "div" else (None, None)
            if above is not None and below is not None and (above.name, below.name) == ("exp", "reduce_sum"):
                if through(below.ins[0]) is above and op.ins[0] == above.outs[0]:
                    found[op.outs[0]] = above.array(0), tuple(below.eqn.params["axes"])
        return found

    @functools.cached_property
    def needed(self) -> frozenset[int]:
        """Operations that derivatives of products read, and softmaxes."""
        exponents = {one for one, _ in self.softmaxes.values()}
        sums: set[Value] = set()
        found = set(self.softmaxes)
        for op in self.segment.operations:
            constant = any(isinstance(one, Constant) for one in op.ins)
            if op.name in _LINEAR or (op.name in ("mul", "div", "max") and constant):
                sums.update(op.outs if not sums.isdisjoint(op.ins) else ())
                continue
            if op.name != "stop_gradient":
                found |= {one for one in op.ins if isinstance(one, int) and one in sums - exponents}
            if op.name in CONTRACTIONS:
                sums.update(op.outs)
        return frozenset(
            one
            for one in found
            if all(isinstance(factor, Leaf) for axis in self.layouts[one] for factor in axis)
        )


def local(
    segment: Segment,
    layouts: Layouts,
    widths: Mapping[int, Width],
    known: Mapping[int, Any],
    pending: Mapping[int, Layout],
) -> tuple[Local, dict[str, Width]]:
    """A segment by itself, and the widths of its atoms by the names of axes.

    `known` has the scalars that do not depend on data, and `pending` the factors of the axes that arrays are
    sums along, by array.
    """
    arrays: dict[int, int] = {}
    atoms: dict[int, int] = {}

    def axis(layout: Layout) -> Layout:
        return tuple(
            Leaf(atoms.setdefault(f.atom, len(atoms)), f.size)
            if isinstance(f, Leaf)
            else Sum(tuple(map(axis, f.pieces)))
            for f in layout
        )

    def array(one: int) -> int:
        return arrays.setdefault(one, len(arrays))

    def value(one: Value) -> Value:
        if isinstance(one, int) and one in known:
            return Constant(known[one])
        return array(one) if isinstance(one, int) else one

    def body(program: Program) -> Program:
        inputs = tuple(map(array, program.inputs))
        return Program(inputs, list(map(operation, program.operations)), tuple(map(value, program.outputs)))

    def operation(op: Operation) -> Operation:
        ins, outs, bodies = map(value, op.ins), map(array, op.outs), map(body, op.bodies)
        bodies, ins, outs = tuple(bodies), tuple(ins), tuple(outs)
        return dataclasses.replace(op, ins=ins, outs=outs, bodies=bodies)

    taken = [one for one in segment.ins if one not in known]
    ins = tuple(map(array, taken))
    operations = tuple(map(operation, segment.operations))
    outs = tuple(arrays[one] for one in segment.outs)
    own = {new: tuple(map(axis, layouts[old])) for old, new in arrays.items()}
    sums = {array(one): axis(pending[one]) for one in taken if one in pending}
    named = {atoms[atom]: widths[atom] for atom in atoms if atom in widths}
    computed = tuple(_key(op, own, frozenset(named)) for op in operations)
    key = (ins, outs, computed, tuple(own.items()), tuple(sums.items()), tuple(named))
    made = Local(Segment(operations, ins, outs), own, sums, tuple(named), key)
    return made, {f"a{atom}": one for atom, one in named.items()}


def _key(op: Operation, layouts: Layouts, elastic: frozenset[int]) -> Any:
    """A key of what an operation computes, without the numbers of arrays and atoms in the program."""
    inner = (tuple(_key(one, layouts, elastic) for one in body.operations) for body in op.bodies)
    bodies = tuple((body.inputs, own, body.outputs) for body, own in zip(op.bodies, inner, strict=True))
    ins = tuple(one if isinstance(one, int) else (str(one.value), np.shape(one.value)) for one in op.ins)
    avals = tuple(str(v.aval) for v in (*op.eqn.invars, *op.eqn.outvars))
    parameters: Any = tuple((name, str(value)) for name, value in sorted(op.eqn.params.items()))
    if op.bodies:  # a derivative of one's own is kept where sizes are whole, and is equal only to itself
        parameters = None if _atoms(op, layouts) & elastic else id(op.eqn)
    return op.name, ins, op.outs, avals, parameters, bodies


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
        pairs = zip(local.segment.ins, operands, strict=True)
        state = self._state([joined(x, local.layouts[one], at) for one, x in pairs])
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
        full = {a: size for axes in local.layouts.values() for x in axes for a, size in atoms_of(x).items()}
        active = {a: jnp.pad(masks[f"a{a}"] > 0, (0, full[a] - most)) for a, most in largest.items()}
        at = {atom: mask.sum(dtype=jnp.int32) for atom, mask in active.items()}
        sizes = Sizes(local.layouts, at, active, {}, {})
        pairs = zip(local.segment.ins, operands, strict=True)
        state = self._state([_whole(x, local.layouts[one]) for one, x in pairs])
        for op in local.segment.operations:
            self.operate(op, state, sizes)
        outs = [(out, local.layouts[out]) for out in local.segment.outs]
        made = [(split(sizes.mask(state.values[out], own), own), own) for out, own in outs]
        return tuple(x[_up_to(own, largest)] for x, own in made)

    def _state(self, given: list[Any]) -> State:
        return State(dict(zip(self.local.segment.ins, given, strict=True)), {}, dict(self.local.pending), {})


def run_segment(segment: Segment, gate: Width | None, state: State, sizes: Sizes, operate: Operate) -> None:
    """Runs a segment at its active sizes: the state gets the results, with zeros behind their active part.

    Where the gate is 0 they are zeros. `operate` runs one operation, at small or at full sizes.
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

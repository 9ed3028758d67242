"""Groups operations to segments, which the form `switch` runs at their active sizes.

A *segment* is a sequence of operations whose sizes have few combinations, such as an attention, or an MLP
with its normalization.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxnas.elastic.width import Width, joint
from jaxnas.transform.program import Constant, Operation, Program, Value
from jaxnas.transform.ties import Layout, Leaf, Sum, atoms_of

CONTRACTIONS = ("dot_general", "conv_general_dilated")
_CALLS = ("custom_jvp_call", "custom_vjp_call")
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
    last = {one: place for place, op in enumerate(operations) for one in op.ins if isinstance(one, int)}
    last |= {one: len(operations) for one in used if isinstance(one, int)}
    end = len(operations)
    found: list[Operation | Segment] = []
    rest = list(enumerate(operations))
    while rest:
        free, chosen, rest = _first(rest, last, end, layouts, widths, masked)
        found += free
        sliced = all(_plain(op) and not _atoms(op, layouts) & masked for op in chosen)
        if sliced and any(map(_contracts, chosen)):
            segment = _segment(chosen, rest[0][0] if rest else end, last)
            found += [segment] if segment.outs else []  # or nothing reads it
        else:
            found += chosen
    return found


_Numbered = list[tuple[int, Operation]]


def _first(
    rest: _Numbered,
    last: Mapping[int, int],
    end: int,
    layouts: Layouts,
    widths: Mapping[int, Width],
    masked: frozenset[int],
) -> tuple[list[Operation], list[Operation], _Numbered]:
    """The first operations that run together, those before them of no elastic size, and the others."""
    free: list[Operation] = []
    current: _Numbered = []
    atoms: frozenset[int] = frozenset()
    made: set[Value] = set()
    for number, (place, op) in enumerate(rest):
        own = _atoms(op, layouts) & (widths.keys() | masked)
        if not own and made.isdisjoint(op.ins):
            free.append(op)
            continue
        fits = _plain(op) and not own & masked and _few(atoms | own, widths)
        if not fits and not current:
            return free, [op], rest[number + 1 :]
        if not fits:
            back = _cut(current, place, own, last, layouts, widths)
            return free, [op for _, op in current[:back]], [*current[back:], *rest[number:]]
        current.append((place, op))
        made.update(op.outs)
        atoms |= own
    return free, [op for _, op in current], []


def _segment(operations: Sequence[Operation], stop: int, last: Mapping[int, int]) -> Segment:
    made = dict.fromkeys(out for op in operations for out in op.outs)
    taken = dict.fromkeys(one for op in operations for one in op.ins if isinstance(one, int))
    outs = tuple(out for out in made if last.get(out, -1) >= stop)
    return Segment(tuple(operations), tuple(one for one in taken if one not in made), outs)


def _cut(
    current: _Numbered,
    stop: int,
    own: frozenset[int],
    last: Mapping[int, int],
    layouts: Layouts,
    widths: Mapping[int, Width],
) -> int:
    """How many operations run together before one that does not fit: where least is handed on to it."""
    least, best = math.inf, len(current)
    for back in range(len(current), 0, -1):
        behind = current[back][0] if back < len(current) else stop
        kept = [out for _, op in current[:back] for out in op.outs if last.get(out, -1) >= behind]
        size = sum(math.prod(factor.size for axis in layouts[out] for factor in axis) for out in kept)
        if size < least:
            least, best = size, back
        if not _atoms(current[back - 1][1], layouts) & widths.keys() <= own:
            break
    return best


def _atoms(op: Operation, layouts: Layouts) -> frozenset[int]:
    arrays = [one for one in (*op.ins, *op.outs) if isinstance(one, int)]
    inner = [_atoms(one, layouts) for body in op.bodies for one in body.operations]
    return frozenset().union(*(atoms_of(axis) for one in arrays for axis in layouts[one]), *inner)


def _plain(op: Operation) -> bool:
    """Whether an operation can be part of a segment: no loop, no branches, and nothing beside its results."""
    if (op.bodies and op.name not in _CALLS) or op.eqn.effects:
        return False
    return all(_plain(one) for body in op.bodies for one in body.operations)


def _contracts(op: Operation) -> bool:
    inner = (_contracts(one) for body in op.bodies for one in body.operations)
    return op.name in CONTRACTIONS or any(inner)


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

    Args:
      segment: of a program.
      layouts: of the program's arrays.
      widths: of elastic atoms.
      known: the values of scalars that do not depend on data, by array.
      pending: the factors of the axes that arrays are sums along, by array.
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
        bodies = tuple(map(body, op.bodies))
        return dataclasses.replace(
            op, ins=tuple(map(value, op.ins)), outs=tuple(map(array, op.outs)), bodies=bodies
        )

    taken = [one for one in segment.ins if one not in known]
    ins = tuple(map(array, taken))
    operations = tuple(map(operation, segment.operations))
    outs = tuple(arrays[one] for one in segment.outs)
    own = {new: tuple(map(axis, layouts[old])) for old, new in arrays.items()}
    sums = {array(one): axis(pending[one]) for one in taken if one in pending}
    elastic = tuple(atom for atom in atoms if atom in widths)
    key = (
        ins,
        outs,
        tuple(_key(op, own, frozenset(atoms[atom] for atom in elastic)) for op in operations),
        tuple(own.items()),
        tuple(sums.items()),
        tuple(atoms[atom] for atom in elastic),
    )
    return Local(
        Segment(operations, ins, outs),
        own,
        sums,
        tuple(atoms[atom] for atom in elastic),
        key,
    ), {f"a{atoms[atom]}": widths[atom] for atom in elastic}


def _key(op: Operation, layouts: Layouts, elastic: frozenset[int]) -> Any:
    """A key of what an operation computes, without the numbers of arrays and atoms in the program."""
    bodies = tuple(
        (body.inputs, tuple(_key(one, layouts, elastic) for one in body.operations), body.outputs)
        for body in op.bodies
    )
    ins = tuple(one if isinstance(one, int) else (str(one.value), np.shape(one.value)) for one in op.ins)
    avals = tuple(str(v.aval) for v in (*op.eqn.invars, *op.eqn.outvars))
    parameters: Any = tuple((name, str(value)) for name, value in sorted(op.eqn.params.items()))
    if op.bodies:  # a derivative of one's own is kept where sizes are whole, and is equal only to itself
        parameters = None if _atoms(op, layouts) & elastic else id(op.eqn)
    return op.name, ins, op.outs, avals, parameters, bodies

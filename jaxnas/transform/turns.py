"""Scans whose turns may differ: a group, or a module, that nothing but the turns of one scan uses.

Outside of its scan such a group may only be in arrays with an axis of turns, as stacked parameters, and in
operations that treat each turn alone. So a turn can have its own size of it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxnas.axes.groups import Group, Traced
from jaxnas.axes.program import MOVES, REMAT, Operation, Program
from jaxnas.axes.rules import CREATED, ELEMENTWISE
from jaxnas.axes.ties import Leaf, atoms_of
from jaxnas.elastic.width import Table, Width, combine, constant, joint
from jaxnas.transform.regions import matching, region_of, within
from jaxnas.transform.sizes import Region, Row, Sizes, Turns, place_of
from jaxnas.transform.specs import active_part

_APART = (ELEMENTWISE | set(MOVES)) - {"optimization_barrier"}  # operations that treat each turn alone
_MADE = (*CREATED, "random_split", "broadcast_in_dim")


@dataclasses.dataclass(frozen=True, eq=False)
class Scan:
    """A scan.

    Attributes:
      op: the operation.
      axis: the atom of its turns.
    """

    op: Operation
    axis: int

    @property
    def length(self) -> int:
        """The number of turns."""
        return self.op.eqn.params["length"]

    @property
    def body(self) -> Program:
        """The modules that each iteration runs."""
        return self.op.bodies[0]


@functools.lru_cache(maxsize=1024)
def scan_of(traced: Traced, atom: int) -> Scan:
    """The scan that alone uses a group.

    Raises:
      ValueError: there is none; the message completes a sentence.
    """
    has, scans = _having(traced, atom), (op for op in _once(traced.program) if op.name == "scan")
    around = [op for op in scans if any(map(has, op.bodies[0].arrays()))]
    if len(around) != 1:
        raise ValueError(f"it is in {len(around) or 'no'} scan{'s' * (len(around) > 1)}, expected one")
    found = _scan(traced, around[0])
    if found is None:
        raise ValueError("the turns of its scan are no axis of their own")
    if reason := _used_outside(traced, found, atom):
        raise ValueError(reason)
    return found


def scans(traced: Traced) -> list[Scan]:
    """All scans whose turns are an axis of their own."""
    found = (_scan(traced, op) for op in _once(traced.program) if op.name == "scan")
    return [one for one in found if one is not None]


@functools.lru_cache(maxsize=1024)
def scan_around(traced: Traced, program: Program) -> Scan | None:
    """The scan whose turns run a program once."""
    for op in _once(traced.program):
        if op.name == "scan":
            inner = (body for one in _once(op.bodies[0]) if one.name in REMAT for body in one.bodies)
            if program in (op.bodies[0], *inner):
                return _scan(traced, op)
    return None


def modules(traced: Traced, pattern: str, by_turn: bool = True) -> dict[str, tuple[str, int | None]]:
    """The modules that a pattern matches, with their turns: "layers[2]" is the third turn of one in a scan.

    Raises:
      ValueError: none does, or one cannot be skipped.
    """
    found: dict[str, tuple[str, int | None]] = {}
    for name in matching(traced, pattern):
        scan = scan_around(traced, region_of(traced, name)[0])
        if scan is None or not by_turn:
            found[name] = name, None
        else:
            found |= {f"{name}[{turn}]": (name, turn) for turn in range(scan.length)}
    return found


def hands_on(traced: Traced, scan: Scan, program: Program, region: Region) -> bool:
    """Whether a turn without a region only hands its carry on, so that it can be left out."""
    carries = scan.op.eqn.params["num_carry"]

    def follow(body: Program, known: dict[int, int]) -> list[int | None]:
        for place, op in enumerate(body.operations):
            if body is program and place == region.start:
                known |= {out: known[x] for out, x in region.outs if isinstance(x, int) and x in known}
            if op.name in REMAT:
                inner = {n: known[x] for n, x in zip(op.bodies[0].inputs, op.ins, strict=True) if x in known}
                results = zip(op.outs, follow(op.bodies[0], inner), strict=True)
                known |= {out: x for out, x in results if x is not None}
        return [known.get(one) if isinstance(one, int) else None for one in body.outputs]

    first = {number: i for i, number in enumerate(scan.body.inputs[scan.op.carried])}
    return follow(scan.body, first) == list(range(carries)) and not _used_outside(traced, scan, scan.axis)


def only_inside(traced: Traced, scan: Scan, atom: int, module: str) -> bool:
    """Whether all that a scan does with a group is within a module."""
    has = _having(traced, atom)
    plain = (op for op in scan.body.nested() if not op.bodies)
    return all(within(op, module) or not any(map(has, (*op.ins, *op.outs))) for op in plain)


def readers(scan: Scan, program: Program, known: set[int], outside: bool = True) -> Iterator[Operation]:
    """The operations that read a variable by turn, also through those that treat each turn alone.

    `known` are the numbers of the variable in a program, which is outside or within the scan.
    """
    for op in program.operations:
        read = [place for place, one in enumerate(op.ins) if isinstance(one, int) and one in known]
        if read and (op is scan.op or op.name in REMAT):
            inner = {op.bodies[0].inputs[place] for place in read}
            yield from readers(scan, op.bodies[0], inner, outside and op is not scan.op)
        elif read and outside and op.name in _APART:
            known = known | set(op.outs)
        elif read:
            yield op


def _once(program: Program) -> Iterator[Operation]:
    """The operations of a program, and of what is checkpointed in it."""
    for op in program.operations:
        yield op
        if op.name in REMAT:
            yield from _once(op.bodies[0])


def _having(traced: Traced, atom: int):
    return lambda one: isinstance(one, int) and any(atom in atoms_of(x) for x in traced.layouts[one])


def _scan(traced: Traced, op: Operation) -> Scan | None:
    stacks = [one for one in op.ins[op.carried.stop :] if isinstance(one, int)]
    match traced.layouts[stacks[0]][0] if stacks else ():
        case (Leaf(atom, _),):
            return Scan(op, atom)
    return None


def _used_outside(traced: Traced, scan: Scan, atom: int) -> str | None:
    """How something else than the turns of a scan uses an atom."""
    has, constants = _having(traced, atom), traced.trace.constants

    def stacked(one: int) -> bool:
        return place_of(scan.axis, traced.layouts[one]) >= 0

    if any(map(has, scan.op.ins[scan.op.carried])):
        return "it is carried from turn to turn"
    inputs = [one for one in traced.program.inputs if has(one)]
    if atom == scan.axis:
        count = len(traced.program.outputs) - len(traced.updated)
        given = [one for one in inputs if one not in traced.trace.origin]
        if given or any(map(has, traced.program.outputs[:count])):
            return "the inputs or outputs have an axis of turns"
    if not all(map(stacked, inputs)):
        return "it is an axis of a variable that all turns share"
    for op in _once(traced.program):
        own = [one for one in (*op.ins, *op.outs) if has(one) and isinstance(one, int)]
        if not own or op.name in REMAT:  # whose body is looked at
            continue
        if op is scan.op:
            if any(has(one) and one not in constants for one in op.ins[: op.carried.start]):
                return "all turns read one array that has it"
        elif not all(map(stacked, own)) or not (
            op.name in _APART or (atom == scan.axis and op.name in _MADE)
        ):
            return f"{op.name}{' of ' * bool(op.scope)}{'/'.join(op.scope)} uses it outside of the turns"
    return None


def mask_of_width(one: Width, full: int, centered: bool) -> Any:
    """The weight of each position of a group, bool (hard) or float (soft), [full]; NumPy's if known."""
    if one.is_fixed:
        return active_part(full, one.maximum, centered, np)
    choice = joint(one)
    sizes = np.array([row[0] for row in choice.rows], np.int32)
    if choice.is_soft:
        active = np.stack([active_part(full, size, centered, np) for size in sizes]).astype(np.float32)
        return choice.weights() @ jnp.asarray(active)
    index = choice.index()
    lib = np if isinstance(index, int) else jnp
    return active_part(full, lib.asarray(sizes)[index], centered, lib)


def gate_of_width(one: Width) -> Any:
    """Whether a module runs, bool (hard), or the probability that it does (soft), []."""
    return mask_of_width(one, 1, False)[0]


@dataclasses.dataclass(frozen=True)
class ByTurn:
    """The choices of a supernet by iteration of a scan.

    Attributes:
      scan: in one traced program.
      groups: with a size by turn.
      modules: that may be skipped by turn, with the identity of the program that each is in, and its region.
      whole: the modules without which a turn only hands its carry on.
    """

    scan: Scan
    groups: list[Group]
    modules: dict[str, tuple[int, Region]]
    whole: list[str]

    def runs(self, gates: dict[str, Table]) -> Table:
        """Whether a turn is needed at all."""
        return combine(lambda *on: math.prod(on), constant(1), *(gates[name] for name in self.whole))

    def _each(self, widths: Mapping[Any, Width], name: str) -> list[Width]:
        return [widths[name, turn] for turn in range(self.scan.length)]

    def masked(self, widths: Mapping[Any, Width], switched: bool) -> Turns:
        """The masks, sizes and gates of all turns, with a leading axis of turns."""
        masks, products = {}, {}
        for group in self.groups:
            own = self._each(widths, group.name)
            centered = group.kind == "kernel"
            masks[group.atom] = jnp.stack([jnp.asarray(mask_of_width(w, group.size, centered)) for w in own])
            stacked = _stacked(own)
            if switched and not centered and stacked is not None and not stacked.is_fixed:
                products[group.atom] = stacked
        each = (self._each(widths, name) for name in self.modules)
        gates = tuple(jnp.stack([jnp.asarray(gate_of_width(w)) for w in own]) for own in each)
        row = Row({atom: size_of_mask(mask) for atom, mask in masks.items()}, masks, products, gates)
        return Turns(self.scan.axis, tuple(self.modules.values()), row)

    def small(self, sizes: Sizes, widths: Mapping[Any, Width]) -> Sizes:
        """Sizes at small shapes: those of the scan where its turns are alike, or else a row for each turn."""
        names = [*(group.name for group in self.groups), *self.modules]
        now = {name: [w.maximum for w in self._each(widths, name)] for name in names}
        kept = tuple(t for t in range(self.scan.length) if all(now[name][t] for name in self.whole))
        rows = []
        for turn in range(self.scan.length):
            active = {group.atom: now[group.name][turn] for group in self.groups}
            rows.append(Row(active, {}, {}, tuple(bool(now[name][turn]) for name in self.modules)))
        alike = all(rows[turn] == rows[kept[0]] for turn in kept)
        made = Turns(self.scan.axis, tuple(self.modules.values()), [] if alike else rows, kept)
        found = {**sizes.turns, id(self.scan.op): made}
        if alike and kept:
            sizes = sizes.at(made, rows[kept[0]])
        if alike and len(kept) < self.scan.length:
            sizes = dataclasses.replace(sizes, sizes={**sizes.sizes, self.scan.axis: len(kept)})
        return dataclasses.replace(sizes, turns=found)


def _stacked(widths: list[Width]) -> Width | None:
    """The widths of all turns as one, with a leading axis of turns; None where their tables differ."""
    first = widths[0]
    if any((w.table.counts, w.table.values) != (first.table.counts, first.table.values) for w in widths):
        return None
    # Negative positions, since the first turn's decision is another one where it is read outside of the scan.
    names = tuple((name, None if i is None else -1 - i) for name, i in first.table.names)
    columns = zip(*(w.table.names for w in widths), strict=True)
    values: dict[tuple[str, int | None], Any] = {
        name: jnp.stack([jnp.asarray(w.values[own]) for w, own in zip(widths, column, strict=True)])
        for name, column in zip(names, columns, strict=True)
    }
    return Width(dataclasses.replace(first.table, names=names), values)


def size_of_mask(mask: Any) -> Any:
    """The active, or expected, number of positions of masks."""
    return mask.sum(-1) if mask.dtype != np.dtype(bool) else mask.sum(-1, dtype=np.int32)

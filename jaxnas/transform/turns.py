"""Scans whose turns may differ: a group, or a module, that nothing but the turns of one scan uses.

Outside of its scan such a group may only be in arrays with an axis of turns, as stacked parameters, and in
operations that treat each turn alone. So a turn can have its own size of it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

from jaxnas.transform.evaluate import arrays
from jaxnas.transform.groups import Traced
from jaxnas.transform.program import MOVES, REMAT, Operation, Program
from jaxnas.transform.regions import in_order, matching, region_of, within
from jaxnas.transform.rules import CREATED, ELEMENTWISE
from jaxnas.transform.sizes import Region, place_of
from jaxnas.transform.ties import Leaf, atoms_of

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
    around = [
        op
        for op in _once(traced.program)
        if op.name == "scan" and any(map(_having(traced, atom), arrays(op.bodies[0])))
    ]
    if len(around) != 1:
        raise ValueError(
            f"it is in {len(around) or 'no'} scan{'s' * (len(around) > 1)}, where one is expected"
        )
    found = _scan(traced, around[0])
    if found is None:
        raise ValueError("the turns of its scan are no axis of their own")
    if reason := _used_outside(traced, found, atom):
        raise ValueError(reason)
    return found


@functools.lru_cache(maxsize=1024)
def scan_around(traced: Traced, program: Program) -> Scan | None:
    """The scan whose turns run a program once."""
    for op in _once(traced.program):
        if op.name == "scan" and (program is op.bodies[0] or program in _bodies(op.bodies[0])):
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
    return all(
        within(op, module) or not any(map(has, (*op.ins, *op.outs)))
        for op in in_order(scan.body)
        if not op.bodies
    )


def readers(scan: Scan, program: Program, known: set[int], outside: bool = True) -> Iterator[Operation]:
    """The operations that read a variable by turn, also through those that treat each turn alone.

    Args:
      scan: over its turns.
      program: that runs the scan.
      known: the numbers of the variable in the program.
      outside: whether the program is outside of the scan.
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
    for body in (program, *_bodies(program)):
        yield from body.operations


def _bodies(program: Program) -> Iterator[Program]:
    for op in program.operations:
        if op.name in REMAT:
            yield op.bodies[0]
            yield from _bodies(op.bodies[0])


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

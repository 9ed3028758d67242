"""Modules that can be left out: the operations below a named scope, with one stream in and one out."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

from jaxnas.axes.groups import Traced
from jaxnas.axes.program import MOVES, Operation, Program, Value
from jaxnas.choice import nearest
from jaxnas.transform.sizes import Region


def scopes(traced: Traced) -> list[str]:
    """The modules of a program, by the named scopes of its operations, in the order of their calls."""
    found: dict[str, None] = {}
    for op in traced.program.nested():
        for stop in range(1, len(op.scope) + 1):
            found.setdefault("/".join(op.scope[:stop]))
    return list(found)


def matching(traced: Traced, pattern: str) -> list[str]:
    """The modules whose names match a pattern, at its level, in the order of their calls.

    Raises:
      ValueError: none does.
    """
    known = scopes(traced)
    level = pattern.count("/")
    found = [name for name in known if fnmatch.fnmatchcase(name, pattern) and name.count("/") == level]
    if not found:
        raise ValueError(
            f"{pattern!r} matches no module{nearest(pattern, known)} The modules are "
            f"{', '.join(known) or 'none: name parts of a function by jax.named_scope'}."
        )
    return found


def within(op: Operation, module: str) -> bool:
    """Whether an operation is below a module."""
    wanted = tuple(module.split("/"))
    return op.scope[: len(wanted)] == wanted


def region_of(traced: Traced, module: str) -> tuple[Program, Region]:
    """The operations of a module, and what stands for its results where it is skipped.

    Raises:
      ValueError: the module cannot be skipped.
    """
    found = list(_holding(traced.program, module))
    if not found:
        raise ValueError(f"{module} is no module of the network.")
    # Of a module in a scan, what is the same in all turns may have been moved in front of it.
    program, places = max(found, key=lambda one: len(one[1]))
    return program, _region(traced, program, module, places)


def _holding(program: Program, module: str) -> Iterator[tuple[Program, list[int]]]:
    """The programs that have operations of a module, with their places."""
    places = [place for place, op in enumerate(program.operations) if within(op, module)]
    if places:
        yield program, places
    for op in program.operations:
        if not within(op, module):
            for body in op.bodies:
                yield from _holding(body, module)


def _region(traced: Traced, program: Program, module: str, places: list[int]) -> Region:
    start, stop = places[0], places[-1] + 1
    operations = program.operations[start:stop]
    if len(places) < len(operations):
        raise ValueError(f"{module} cannot be skipped: it is called more than once, or within others.")
    made = [out for op in operations for out in op.outs]
    used: set[Value] = {one for op in program.operations[stop:] for one in op.ins} | set(program.outputs)
    outs = [out for out in made if out in used]
    variables = set(program.inputs) if program is traced.program else set()
    stored = _stored(traced, program)
    results = [out for out in outs if out not in stored]
    if len(results) != 1:
        raise ValueError(f"{module} cannot be skipped: it has {len(results)} results, where one is expected.")
    (result,) = results
    shape, layout = traced.trace.shapes[result], traced.layouts[result]
    taken = dict.fromkeys(
        one for op in operations for one in op.ins if isinstance(one, int) and one not in made
    )
    arrays = [one for one in taken if one not in variables and one not in traced.trace.constants]
    sources = [one for one in arrays if traced.trace.shapes[one] == shape and traced.layouts[one] == layout]
    if not sources:
        shapes = ", ".join(str(traced.trace.shapes[one]) for one in arrays)
        raise ValueError(
            f"{module} cannot be skipped: its result has the shape {shape}, and it takes "
            f"{shapes or 'no array'}. "
            "What stands for the result is an input of its shape, whose axes belong to the same groups."
        )
    return Region(start, stop, tuple((out, stored.get(out, sources[0])) for out in outs))


def _stored(traced: Traced, program: Program) -> dict[Value, Value]:
    """The updated variables that a program makes, each with its value before; in a scan, of one turn."""
    main = traced.program
    count = len(main.outputs) - len(traced.updated)
    before = [main.inputs[place] for place in traced.updated]
    pairs: dict[Value, Value] = dict(zip(main.outputs[count:], before, strict=True))
    if program is main:
        return pairs
    made: dict[Value, Operation] = {out: op for op in main.operations for out in op.outs}
    found: dict[Value, Value] = {}
    for one, variable in pairs.items():
        while one in made and made[one].name in MOVES:
            one = made[one].ins[0]
        if one in made and made[one].name == "scan" and made[one].bodies[0] is program:
            scan, origin = made[one], traced.trace.origin
            first = scan.carried.stop
            taken = zip(scan.ins[first:], program.inputs[first:], strict=True)
            own = [number for x, number in taken if isinstance(x, int) and origin.get(x) == variable]
            found |= {program.outputs[scan.outs.index(one)]: number for number in own[:1]}
    return found

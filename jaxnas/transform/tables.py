"""Tables over an architecture's decisions: the branches that run, the variables in use, the products.

A module may have decisions itself, as which block of an `elastic.Mixture` runs. They are further inputs of
its program. Where a branch of a `lax.cond` is chosen by a number that follows from them alone, that number is
a table: what a branch computes counts, and what it alone reads is in use, where the table says so. An
extracted network is traced with the decisions that were made, so its program has the chosen branches alone.
"""

from __future__ import annotations

import functools
import math
import operator
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import products
from jaxnas.axes.groups import Traced
from jaxnas.axes.program import CUSTOM, REMAT, Constant, Operation, Program, Value, is_key
from jaxnas.axes.rules import contracted
from jaxnas.axes.ties import atoms_of
from jaxnas.choice import Choice
from jaxnas.elastic.decisions import static
from jaxnas.elastic.width import Table, combine, constant
from jaxnas.space import Arch, Space
from jaxnas.transform import regions
from jaxnas.transform.specs import table_of
from jaxnas.transform.turns import ByTurn

_Key = tuple[str, int | None]  # a decision by its name and position
Choices = Mapping[str, Choice]
Branches = Mapping[int, Table]  # by the identity of a `cond`, which of its branches runs
_ALIGNED = (*REMAT, *CUSTOM)
_LARGEST, _SMALL = 1 << 16, 1 << 10  # entries of a table, and of an array that it is computed from


def own_arch(own: Choices, now: Space | None, arch: Arch | None) -> dict[str, Any]:
    """The module's part of an architecture of `now`, over all options that the module has.

    The space `now` has the decisions of `own`, perhaps with fewer options and positions; None if there are
    none. Arrays are of NumPy where it has one architecture.
    """
    if now is None:
        return {}
    lib, values = (np, static(now)) if arch is None or now.cardinality == 1 else (jnp, arch)
    return {name: _among(choice, now.choices[name], values[name], lib) for name, choice in own.items()}


def covering(own: Choices) -> list[dict[str, Any]]:
    """Hard decisions that take each option of a module's own choices once; [{}] of a module without any."""
    counts = {name: [len(x.options_at(i)) for i in range(x.length or 1)] for name, x in own.items()}

    def decided(number: int, name: str) -> np.ndarray:
        return np.array([number % n for n in counts[name]], np.int32).reshape(own[name].shape)

    most = max((count for row in counts.values() for count in row), default=1)
    return [{name: decided(number, name) for name in own} for number in range(most)]


def _among(full: Choice, now: Choice, value: Any, lib: Any) -> Any:
    """Indices, or weights, of the options of one choice among those of another one that has more."""
    length, given = full.length or 1, lib.asarray(value)
    rows = [_left(full, now, i) for i in range(length)]
    if all(row == list(range(len(full.options_at(i)))) for i, row in enumerate(rows)):
        return given
    given = given[None] if full.length is None else given
    table = np.zeros((len(given), max(map(len, rows))), np.int32)
    places = np.zeros((*table.shape, full.width))
    for i, row in enumerate(rows[: len(given)]):
        table[i, : len(row)] = row
        places[i, np.arange(len(row)), row] = 1
    if lib is jnp and jnp.issubdtype(given.dtype, jnp.floating):
        places = jnp.asarray(places[:, : given.shape[1]], given.dtype)
        made = jnp.einsum("lk,lkf->lf", given, places)
    else:
        made = lib.asarray(table)[np.arange(len(given)), given]
    if missing := length - len(given):  # beyond the depth
        made = lib.concatenate([made, lib.zeros((missing, *made.shape[1:]), made.dtype)])
    return made if full.length is not None else lib.asarray(made[0])  # no scalar of NumPy


def branches(traced: Traced, own: Choices, now: Space | None) -> Branches:
    """For each `cond` whose branch follows from hard decisions alone, which one runs, as a table over `now`.

    Raises:
      ValueError: a branch depends on several decisions at once, or on too many for a table.
    """
    conds = [op for op in traced.program.nested() if op.name == "cond"]
    if now is None or not conds:
        return {}
    run = _probe(traced, conds, own)
    options = {
        (name, None if choice.length is None else i): _left(choice, now.choices[name], i)
        for name, choice in own.items()
        for i in range(choice.length or 1)
    }
    first, reads = run({}), [list[_Key]() for _ in conds]
    for name, position in options:
        count = len(own[name].options_at(position or 0))
        flips = [run({(name, position): index}) for index in range(1, count)]
        for number, read in enumerate(reads):
            if any(flip[number] != first[number] for flip in flips):
                read.append((name, position))
    found: dict[int, Table] = {}
    for keys in dict.fromkeys(map(tuple, reads)):
        counts = tuple(len(options[key]) for key in keys)
        if math.prod(counts) > _LARGEST:
            raise ValueError(f"A branch depends on {keys}: more than {_LARGEST:,} cases.")
        cases = [
            run({key: options[key][i] for key, i in zip(keys, index, strict=True)})
            for index in np.ndindex(*counts)
        ]
        free = [i for i, count in enumerate(counts) if count > 1]
        names, sizes = tuple(keys[i] for i in free), tuple(counts[i] for i in free)
        for number, op in enumerate(conds):
            values = tuple(index for one in cases if (index := one[number]) is not None)
            if tuple(reads[number]) == keys and values:
                found[id(op)] = Table(names, sizes, values)
    random = np.random.default_rng(0)
    for _ in range(16):  # the tables are over what changes a branch alone
        places = {key: int(random.integers(len(left))) for key, left in options.items()}
        runs = run({key: options[key][place] for key, place in places.items()})
        for op, branch in zip(conds, runs, strict=True):
            table = found.get(id(op))
            if table is not None and table.array()[tuple(places[key] for key in table.names)] != branch:
                raise ValueError(
                    f"{'/'.join(op.scope)} has a branch that depends on several decisions at once. Choose "
                    "between blocks by one decision each, as jaxnas.elastic.Mixture does."
                )
    return found


def _probe(
    traced: Traced, conds: Sequence[Operation], own: Choices
) -> Callable[[Mapping[_Key, int]], list[int | None]]:
    """From decisions by index, the others being 0, to the branch of each `cond`; None where arrays decide."""
    program, inputs = traced.program, traced.program.inputs[-len(own) :]
    constants = {n: x for n, x in traced.trace.constants.items() if np.size(x) <= _SMALL and not is_key(x)}
    _follow(program, constants)

    def run(decided: Mapping[_Key, int]) -> list[int | None]:
        arch = {name: np.zeros(choice.length or (), np.int32) for name, choice in own.items()}
        for (name, position), index in decided.items():
            arch[name][() if position is None else position] = index
        known = constants | dict(zip(inputs, arch.values(), strict=True))
        _follow(program, known)
        read = [_value(op.ins[0], known) for op in conds]
        last = [len(op.bodies) - 1 for op in conds]
        return [None if x is None else min(max(int(x), 0), n) for x, n in zip(read, last, strict=True)]

    return run


def _left(choice: Choice, now: Choice, position: int) -> list[int]:
    """The options that are left at a position, as indices among all."""
    if position >= (now.length or 1):
        return [0]
    return [choice.options_at(position).index(option) for option in now.options_at(position)]


def when_read(op: Operation, number: int, gates: dict[str, Table], runs: Branches) -> Table:
    """When an operation reads an operand: where the modules around it run, and a branch that reads it."""
    gate = gate_of(op, gates)
    if not runs or not (op.name == "cond" or op.name in _ALIGNED):
        return gate
    found, which = [constant(0)], runs.get(id(op))
    for place, body in enumerate(op.bodies):
        taken = constant(1) if which is None else combine(lambda index, i=place: int(index == i), which)
        for one, inside in zip(op.handed(place, op.ins), body.inputs, strict=True):
            if one == number:
                used = [when_read(x, inside, gates, runs) for x in body.operations if inside in x.ins]
                used += [constant(1)] if inside in body.outputs else []
                found += [combine(operator.mul, taken, table) for table in used]
    return combine(operator.mul, gate, combine(lambda *x: max(x), *dict.fromkeys(found)))


def _value(one: Value, known: Mapping[int, Any]) -> Any:
    return one.value if isinstance(one, Constant) else known.get(one)


def _follow(program: Program, known: dict[int, Any]) -> None:
    """Computes what follows from known arrays alone, also within the bodies of a program."""

    def add(numbers: Sequence[int], values: Iterable[Any]) -> None:
        known.update((number, x) for number, x in zip(numbers, values, strict=True) if x is not None)

    for op in program.operations:
        given = [_value(one, known) for one in op.ins]
        if op.name == "cond" or op.name in _ALIGNED:
            for place, body in enumerate(op.bodies):
                add(body.inputs, op.handed(place, given))
                _follow(body, known)
            if op.name in _ALIGNED:
                add(op.outs, [_value(one, known) for one in op.bodies[0].outputs])
        elif not op.bodies and op.outs and op.outs[0] not in known and all(x is not None for x in given):
            if given and all(_is_small(v.aval) for v in op.eqn.outvars) and not op.eqn.effects:
                with jax.ensure_compile_time_eval():
                    typed = zip(given, op.eqn.invars, strict=True)
                    made = op.bind([jnp.asarray(x, v.aval.dtype) for x, v in typed])
                add(op.outs, map(np.asarray, made))


def _is_small(aval: Any) -> bool:
    return math.prod(aval.shape) <= _SMALL and not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)


def gate_of(op: Operation, gates: dict[str, Table]) -> Table:
    """When an operation runs: when all modules around it do."""
    around = [table for module, table in gates.items() if regions.within(op, module)]
    return combine(lambda *x: math.prod(x), *around) if around else constant(1)


def products_of(
    net: Any, traced: Traced, scans: Mapping[int, ByTurn], runs: Mapping[int, Table]
) -> list[Table]:
    """The multiply-accumulates of each product of a traced call of a supernet.

    `scans` have sizes or modules by turn, and `runs` say which branch of a `cond` runs, by the identities of
    operations.
    """

    def count(program: Program, turn: int | None) -> list[Table]:
        found, (tables, gates) = [], net.tables[turn]
        for op in program.operations:
            gate = gate_of(op, gates)
            if op.name in products.PRODUCTS or op.name in products.SPARSE:
                found.append(combine(operator.mul, gate, _product(op, traced.layouts, tables)))
            elif own := scans.get(id(op)):
                for now in range(own.scan.length):
                    on = combine(operator.mul, gate, own.runs(net.tables[now][1]))
                    found += [combine(operator.mul, on, table) for table in count(own.scan.body, now)]
            elif (which := runs.get(id(op))) is not None:
                for place, body in enumerate(op.bodies):
                    on = combine(lambda on, branch, i=place: on * (branch == i), gate, which)
                    found += [combine(operator.mul, on, table) for table in count(body, turn)]
            elif inner := [table for body in op.bodies for table in count(body, turn)]:
                if op.name in ("while", "cond"):
                    raise ValueError(
                        f"{'/'.join(op.scope)} has products in a lax.{op.name}, and the traced program does "
                        "not say how many of them run."
                    )
                times = constant(op.eqn.params["length"] if op.name == "scan" else 1)
                found += [combine(lambda *x: math.prod(x), gate, times, table) for table in inner]
        return found

    return count(traced.program, None)


def _product(op: Operation, layouts: Any, tables: dict[int, Table]) -> Table:
    """The multiply-accumulates of one product: the count at full size, with its elastic factors exchanged."""
    full = products.total(types.SimpleNamespace(eqns=[op.eqn])).least
    factors = [*layouts[op.outs[0]], *(layouts[op.ins[1]][place] for _, place in contracted(op.eqn))]
    whole, sizes = 1, []
    if op.name == "conv_general_dilated":
        for axis, place in enumerate(op.eqn.params["dimension_numbers"].rhs_spec[2:]):
            if atoms_of(layout := layouts[op.ins[1]][place]).keys() & tables.keys():
                of_size = functools.partial(products.taps, op.eqn, axis)
                whole, sizes = whole * of_size(), [*sizes, combine(of_size, table_of(layout, tables))]
    elastic = [x for x in factors if atoms_of(x).keys() & tables.keys()]
    whole *= math.prod(math.prod(factor.size for factor in layout) for layout in elastic)
    sizes += [table_of(layout, tables) for layout in elastic]
    return combine(lambda *now: full // whole * math.prod(now), *sizes) if sizes else constant(full)

"""Counts the multiply-accumulates of a supernet's products, as tables over its decisions."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping
from typing import Any

from jaxnas import products
from jaxnas.elastic.width import Table, combine, constant
from jaxnas.transform import regions
from jaxnas.transform.by_turn import ByTurn
from jaxnas.transform.groups import Traced
from jaxnas.transform.program import Operation, Program
from jaxnas.transform.specs import table_of
from jaxnas.transform.ties import Layout, atoms_of


def gate_of(op: Operation, gates: dict[str, Table]) -> Table:
    """When an operation runs: when all modules around it do."""
    around = [table for module, table in gates.items() if regions.within(op, module)]
    return combine(lambda *x: math.prod(x), *around) if around else constant(1)


def products_of(
    net: Any, traced: Traced, scans: Mapping[int, ByTurn], runs: Mapping[int, Table]
) -> list[Table]:
    """The multiply-accumulates of each product of a traced call of a supernet.

    Args:
      net: the supernet.
      traced: a call of it.
      scans: that have sizes or modules by turn, by the identity of their operations.
      runs: which branch of a `cond` runs, by its identity.
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
    full = products.total(_alone(op.eqn)).least
    factors: list[Layout] = list(layouts[op.outs[0]])
    whole, sizes = 1, []
    if op.name == "dot_general":
        contracted = op.eqn.params["dimension_numbers"][0][0]
        factors += [layouts[op.ins[0]][place] for place in contracted]
    elif op.name == "conv_general_dilated":
        inputs, *window = op.eqn.params["dimension_numbers"].rhs_spec[1:]
        factors.append(layouts[op.ins[1]][inputs])
        for axis, place in enumerate(window):
            if atoms_of(layout := layouts[op.ins[1]][place]).keys() & tables.keys():
                of_size = functools.partial(products.taps, op.eqn, axis)
                whole, sizes = whole * of_size(), [*sizes, combine(of_size, table_of(layout, tables))]
    elastic = [x for x in factors if atoms_of(x).keys() & tables.keys()]
    whole *= math.prod(math.prod(factor.size for factor in layout) for layout in elastic)
    sizes += [table_of(layout, tables) for layout in elastic]
    return combine(lambda *now: full // whole * math.prod(now), *sizes) if sizes else constant(full)


class _alone:
    """A program of one equation, to be counted."""

    def __init__(self, eqn: Any):
        self.eqns = [eqn]

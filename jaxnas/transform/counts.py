"""Counts the multiply-accumulates of a supernet's products, as tables over its decisions."""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any

from jaxnas import products
from jaxnas.elastic.width import Table, combine, constant
from jaxnas.transform import regions
from jaxnas.transform.by_turn import ByTurn
from jaxnas.transform.program import Operation, Program
from jaxnas.transform.specs import table_of
from jaxnas.transform.ties import Layout, atoms_of


def gate_of(op: Operation, gates: dict[str, Table]) -> Table:
    """When an operation runs: when all modules around it do."""
    around = [table for module, table in gates.items() if regions.within(op, module)]
    return combine(lambda *x: math.prod(x), *around) if around else constant(1)


@dataclasses.dataclass(frozen=True)
class Products:
    """Counts the multiply-accumulates of a supernet's products.

    Attributes:
      layouts: of all arrays.
      net: the supernet.
      scans: see there.
      runs: which branch of a `cond` runs, by its identity.
    """

    layouts: Any
    net: Any
    scans: dict[int, ByTurn]
    runs: Any

    def count(self, program: Program, turn: int | None) -> list[Table]:
        """Of each product of a program, or of one turn of a scan."""
        found = []
        tables, gates = self.net._tables(turn), self.net._gates(turn)
        for op in program.operations:
            gate = gate_of(op, gates)
            if op.bodies:
                inner = [(1, gate, table) for body in op.bodies for table in self.count(body, turn)]
                if id(op) in self.runs:
                    inner = [
                        (1, combine(lambda on, which, i=i: on * (which == i), gate, self.runs[id(op)]), table)
                        for i, body in enumerate(op.bodies)
                        for table in self.count(body, turn)
                    ]
                elif op.name in ("while", "cond") and inner:
                    raise ValueError(
                        f"{'/'.join(op.scope)} has products in a lax.{op.name}, and the traced program does "
                        "not say how many of them run."
                    )
                if own := self.scans.get(id(op)):
                    each = [
                        (own.runs(self.net._gates(t)), self.count(own.scan.body, t))
                        for t in range(own.scan.length)
                    ]
                    inner = [(1, combine(operator.mul, gate, runs), x) for runs, some in each for x in some]
                elif op.name == "scan":
                    inner = [(op.eqn.params["length"], gate, table) for _, _, table in inner]
                found += [combine(lambda on, n, t=times: on * n * t, on, table) for times, on, table in inner]
            elif op.name in products.PRODUCTS or op.name in products.SPARSE:
                found.append(combine(operator.mul, gate, _product(op, self.layouts, tables)))
        return found


def _product(op: Operation, layouts: Any, tables: dict[int, Table]) -> Table:
    """The multiply-accumulates of one product: the count at full size, with its elastic factors exchanged."""
    full = products.total(_alone(op.eqn)).least
    factors: list[Layout] = list(layouts[op.outs[0]])
    if op.name == "dot_general":
        contracted = op.eqn.params["dimension_numbers"][0][0]
        factors += [layouts[op.ins[0]][place] for place in contracted]
    elif op.name == "conv_general_dilated":
        factors += [layouts[op.ins[1]][place] for place in op.eqn.params["dimension_numbers"].rhs_spec[1:]]
    elastic = [x for x in factors if atoms_of(x).keys() & tables.keys()]
    whole = math.prod(math.prod(factor.size for factor in layout) for layout in elastic)
    sizes = [table_of(layout, tables) for layout in elastic]
    return combine(lambda *now: full // whole * math.prod(now), *sizes) if sizes else constant(full)


class _alone:
    """A program of one equation, to be counted."""

    def __init__(self, eqn: Any):
        self.eqns = [eqn]

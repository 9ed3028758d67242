"""The sizes and modules that a supernet chooses by turn of a scan, and the masks of decisions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxnas.elastic.width import Table, Width, combine, constant, joint
from jaxnas.transform import turns
from jaxnas.transform.groups import Group
from jaxnas.transform.sizes import Region, Row, Sizes, Turns
from jaxnas.transform.specs import active_part


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
      modules: that may be skipped by turn: the name, the identity of the program that it is in, the region.
      whole: the modules without which a turn only hands its carry on.
    """

    scan: turns.Scan
    groups: list[Group]
    modules: list[tuple[str, int, Region]]
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
        each = [self._each(widths, name) for name, _, _ in self.modules]
        gates = tuple(jnp.stack([jnp.asarray(gate_of_width(w)) for w in own]) for own in each)
        row = Row({atom: size_of_mask(mask) for atom, mask in masks.items()}, masks, products, gates)
        return Turns(self.scan.axis, tuple((program, region) for _, program, region in self.modules), row)

    def small(self, sizes: Sizes, widths: Mapping[Any, Width]) -> Sizes:
        """Sizes at small shapes: those of the scan where its turns are alike, or else a row for each turn."""
        names = [*(group.name for group in self.groups), *(name for name, _, _ in self.modules)]
        now = {name: [w.maximum for w in self._each(widths, name)] for name in names}
        kept = tuple(t for t in range(self.scan.length) if all(now[name][t] for name in self.whole))
        rows = [
            Row(
                {group.atom: now[group.name][turn] for group in self.groups},
                {},
                {},
                tuple(bool(now[name][turn]) for name, _, _ in self.modules),
            )
            for turn in range(self.scan.length)
        ]
        places = tuple((program, region) for _, program, region in self.modules)
        if any(rows[turn] != rows[kept[0]] for turn in kept):
            made = Turns(self.scan.axis, places, rows, kept)
            return dataclasses.replace(sizes, turns={**sizes.turns, id(self.scan.op): made})
        made = Turns(self.scan.axis, places, [], kept)
        if kept:
            sizes = dataclasses.replace(sizes.at(made, rows[kept[0]]), turns=sizes.turns)
        if len(kept) < self.scan.length:
            sizes = dataclasses.replace(sizes, sizes={**sizes.sizes, self.scan.axis: len(kept)})
        return dataclasses.replace(sizes, turns={**sizes.turns, id(self.scan.op): made})


def _stacked(widths: list[Width]) -> Width | None:
    """The widths of all turns as one, with a leading axis of turns; None where their tables differ."""
    first = widths[0]
    if any((w.table.counts, w.table.values) != (first.table.counts, first.table.values) for w in widths):
        return None
    # Negative positions, since the first turn's decision is another one where it is read outside of the scan.
    names = [tuple((name, None if i is None else -1 - i) for name, i in first.table.names)]
    columns = list(zip(*(w.table.names for w in widths), strict=True))
    values: dict[tuple[str, int | None], Any] = {
        name: jnp.stack([jnp.asarray(w.values[own]) for w, own in zip(widths, column, strict=True)])
        for name, column in zip(names[0], columns, strict=True)
    }
    return Width(dataclasses.replace(first.table, names=names[0]), values)


def size_of_mask(mask: Any) -> Any:
    """The active, or expected, number of positions of masks."""
    return mask.sum(-1) if mask.dtype != np.dtype(bool) else mask.sum(-1, dtype=np.int32)

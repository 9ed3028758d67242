"""What the variables of a transformed network are made of: the sizes of the factors of their axes."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.elastic.width import Table, combine, constant
from jaxnas.transform.ties import Layout, Leaf, atoms_of, mask_of


@dataclasses.dataclass(frozen=True)
class LayoutSpec:
    """What a stored variable is made of; see `jaxnas.elastic.parameter.ParameterSpec`, whose methods it has.

    Attributes:
      layouts: the factors of each axis.
      table_of: the active sizes of elastic atoms.
      gate: 1 where the variable is used at all, else 0.
      centred: atoms whose active part is their centre; that of all others is a prefix.
    """

    layouts: tuple[Layout, ...]
    table_of: tuple[tuple[int, Table], ...]
    gate: Table = constant(1)
    centred: frozenset[int] = frozenset()
    option: None = None

    @functools.cached_property
    def axes(self) -> tuple[Table, ...]:
        """The active size of each axis."""
        return tuple(table_of(layout, dict(self.table_of)) for layout in self.layouts)

    @property
    def names(self) -> tuple[None, ...]:
        """Logical names of the axes: none."""
        return (None,) * len(self.layouts)

    @functools.cached_property
    def sizes(self) -> tuple[Table, ...]:
        """Tables whose sum is the number of active elements."""
        return (combine(lambda gate, *sizes: gate * math.prod(sizes), self.gate, *self.axes),)

    @property
    def tables(self) -> tuple[Table, ...]:
        """All that depends on decisions."""
        return (*self.axes, self.gate)

    def gated(self, gate: Table) -> LayoutSpec:
        """The annotation of a variable that is in use only where `gate` is 1, too."""
        return dataclasses.replace(self, gate=combine(operator.mul, gate, self.gate))

    def shape(self, arch: dict[str, Any]) -> tuple[int, ...] | None:
        """The active shape for a concrete hard architecture; None where the variable is not in use."""
        return tuple(table.at_host(arch) for table in self.axes) if self.gate.at_host(arch) else None

    def mask(self, arch: dict[str, jax.Array]) -> jax.Array:
        """Which stored elements are active for a hard architecture: bool, broadcastable to the shape."""
        rank = len(self.layouts)
        mask = jnp.broadcast_to(self.gate.at(arch) > 0, [1] * rank)
        masks = self._masks({atom: table.at(arch) for atom, table in self.table_of}, jnp)
        for axis, layout in enumerate(self.layouts):
            if atoms_of(layout).keys() & masks.keys():
                one = mask_of(layout, masks, jnp)
                mask = mask & one.reshape([-1 if i == axis else 1 for i in range(rank)])
        return mask

    def active(self, value: Any, arch: dict[str, Any]) -> Any:
        """The active part of a stored variable that a concrete hard architecture uses."""
        masks = self._masks({atom: table.at_host(arch) for atom, table in self.table_of}, np)
        for axis, layout in enumerate(self.layouts):
            if atoms_of(layout).keys() & masks.keys():
                value = value.take(np.flatnonzero(mask_of(layout, masks)), axis)
        return value

    def _masks(self, sizes: dict[int, Any], lib: Any) -> dict[int, Any]:
        full = {atom: size for layout in self.layouts for atom, size in atoms_of(layout).items()}
        return {
            atom: active_part(full[atom], size, atom in self.centred, lib)
            for atom, size in sizes.items()
            if atom in full
        }


def active_part(full: int, size: Any, centred: bool, lib: Any) -> Any:
    """The active positions of an atom, bool [full size]."""
    places = lib.arange(full) - ((full - size) // 2 if centred else 0)
    return (places >= 0) & (places < size)


def table_of(layout: Layout, tables: dict[int, Table]) -> Table:
    """The active size of an axis over the decisions that its factors depend on."""
    made = [
        tables.get(factor.atom, constant(factor.size))
        if isinstance(factor, Leaf)
        else combine(lambda *sizes: sum(sizes), *(table_of(piece, tables) for piece in factor.pieces))
        for factor in layout
    ]
    return combine(lambda *sizes: math.prod(sizes), constant(1), *made)

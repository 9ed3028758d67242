"""Descriptions of the variables of a transformed network: the sizes of the factors of their axes."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.axes.ties import Layout, Leaf, atoms_of, mask_of
from jaxnas.elastic.parameter import StoredSpec
from jaxnas.elastic.width import Table, combine, constant


@dataclasses.dataclass(frozen=True)
class LayoutSpec(StoredSpec):
    """The axes of a stored variable, with the methods of `jaxnas.elastic.parameter.ParameterSpec`.

    Attributes:
      layouts: the factors of each axis.
      table_of: the active sizes of elastic atoms.
      gate: 1 where the variable is used at all, else 0.
      kernels: atoms whose active part is their center; that of all others is a prefix.
      names: logical names of the axes: "mlp" of hidden channels.
    """

    layouts: tuple[Layout, ...]
    table_of: tuple[tuple[int, Table], ...]
    gate: Table
    kernels: frozenset[int]
    names: tuple[str | None, ...]
    option: None = None

    @functools.cached_property
    def axes(self) -> tuple[Table, ...]:
        """The active size of each axis."""
        return tuple(table_of(layout, dict(self.table_of)) for layout in self.layouts)

    @property
    def centered(self) -> tuple[int, ...]:
        """Positions of the axes whose active part is their center."""
        return tuple(i for i, x in enumerate(self.layouts) if len(x) == 1 and x[0][0] in self.kernels)

    def inner_sizes(self, axis: int) -> tuple[int, ...] | None:
        """See `StoredSpec`."""
        elastic, layout = dict(self.table_of), self.layouts[axis]
        if any(not isinstance(x, Leaf) or (i and x.atom in elastic) for i, x in enumerate(layout)):
            return None
        return tuple(x.size for x in layout[1:])

    def mask(self, arch: dict[str, jax.Array]) -> jax.Array:
        """Which stored elements are active for a hard architecture: bool, broadcastable to the shape."""
        return self.mask_of({atom: table.at(arch) for atom, table in self.table_of}, self.gate.at(arch))

    def mask_of(self, sizes: dict[int, Any], gate: Any) -> jax.Array:
        """`mask` of the sizes of atoms, and of 0 or 1."""
        rank = len(self.layouts)
        mask = jnp.broadcast_to(gate > 0, [1] * rank)
        for axis, one in self._masks(sizes, jnp):
            mask = mask & one.reshape([-1 if i == axis else 1 for i in range(rank)])
        return mask

    def active(self, value: Any, arch: dict[str, Any]) -> Any:
        """The active part of a stored variable that a concrete hard architecture uses."""
        for axis, mask in self._masks({atom: table.at_host(arch) for atom, table in self.table_of}, np):
            value = value.take(np.flatnonzero(mask), axis)
        return value

    def _masks(self, sizes: dict[int, Any], lib: Any) -> Iterator[tuple[int, Any]]:
        """The active positions of each elastic axis."""
        for axis, layout in enumerate(self.layouts):
            if own := {a: full for a, full in atoms_of(layout).items() if a in sizes}:
                masks = {a: active_part(full, sizes[a], a in self.kernels, lib) for a, full in own.items()}
                yield axis, mask_of(layout, masks, lib)


@dataclasses.dataclass(frozen=True)
class TurnSpec:
    """The axes of a variable that is stacked by iteration of a scan, with sizes or uses that differ.

    In a sub-network it is a stack of the turns that use it if they have one size, and else a dict with an
    array for each of these: "turn_0", ...

    Attributes:
      turns: their atom.
      axis: of the turns.
      specs: of the turns, of an array whose axis of turns has the size 1.
    """

    turns: int
    axis: int
    specs: tuple[LayoutSpec, ...]
    option: None = None

    @property
    def axes(self) -> tuple[Table, ...]:
        """The active size of each axis, in the first turn."""
        own = list(self.specs[0].axes)
        own[self.axis] = constant(len(self.specs))
        return tuple(own)

    @property
    def names(self) -> tuple[str | None, ...]:
        """Names of the axes, "mlp" of those that may be sorted alone."""
        return self.specs[0].names

    @property
    def centered(self) -> tuple[int, ...]:
        """Positions of the axes whose active part is their center."""
        return self.specs[0].centered

    @property
    def sizes(self) -> tuple[Table, ...]:
        """Tables whose sum is the number of active elements."""
        return tuple(size for spec in self.specs for size in spec.sizes)

    @property
    def tables(self) -> tuple[Table, ...]:
        """All that depends on decisions."""
        return tuple(table for spec in self.specs for table in spec.tables)

    def inner_sizes(self, axis: int) -> tuple[int, ...] | None:
        """See `StoredSpec`."""
        return self.specs[0].inner_sizes(axis)

    def by_turn(self, arch: dict[str, Any]) -> dict[int, tuple[int, ...]]:
        """The shape for each turn that uses the variable, with an axis of turns of size 1."""
        found = {turn: spec.shape(arch) for turn, spec in enumerate(self.specs)}
        return {turn: shape for turn, shape in found.items() if shape is not None}

    def shape(self, arch: dict[str, Any]) -> Any:
        """The active shape for a concrete hard architecture, or a dict of them; None if not in use."""
        shapes, at = self.by_turn(arch), self.axis
        if len(set(shapes.values())) < 2:
            return next(((*x[:at], len(shapes), *x[at + 1 :]) for x in shapes.values()), None)
        return {f"turn_{turn}": (*x[:at], *x[at + 1 :]) for turn, x in shapes.items()}

    def mask(self, arch: dict[str, jax.Array]) -> jax.Array:
        """Which stored elements are active for a hard architecture: bool, broadcastable to the shape."""
        tables = [dict(spec.table_of) for spec in self.specs]
        sizes = {atom: jnp.stack([own[atom].at(arch) for own in tables]) for atom in tables[0]}
        gates = jnp.stack([spec.gate.at(arch) for spec in self.specs])
        made = jax.vmap(self.specs[0].mask_of, out_axes=self.axis)(sizes, gates)
        return made.squeeze(self.axis + 1)

    def active(self, value: Any, arch: dict[str, Any]) -> Any:
        """The active part of a stored variable that a concrete hard architecture uses, or a dict of them."""
        rows = {turn: value.take(np.array([turn]), self.axis) for turn in self.by_turn(arch)}
        return self.joined({turn: self.specs[turn].active(row, arch) for turn, row in rows.items()})

    def joined(self, rows: dict[int, Any]) -> Any:
        """An array by turn, with an axis of turns of size 1, as it is stored."""
        lib = np if all(isinstance(x, np.ndarray) for x in rows.values()) else jnp
        if len({x.shape for x in rows.values()}) == 1:
            return lib.concatenate(list(rows.values()), self.axis)
        return {f"turn_{turn}": x.squeeze(self.axis) for turn, x in rows.items()}

    def split(self, value: Any, arch: dict[str, Any]) -> tuple[Any, ...]:
        """The array of each turn, with an axis of turns of size 1, of what is stored; None where unused."""
        rows = {
            turn: jnp.expand_dims(value[f"turn_{turn}"], self.axis)
            if isinstance(value, dict)
            else jax.lax.slice_in_dim(value, place, place + 1, axis=self.axis)
            for place, turn in enumerate(self.by_turn(arch))
        }
        return tuple(map(rows.get, range(len(self.specs))))


def active_part(full: int, size: Any, centered: bool, lib: Any) -> Any:
    """The active positions of an atom, bool [full size]."""
    places = lib.arange(full, dtype=np.int32) - ((full - size) // 2 if centered else 0)
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

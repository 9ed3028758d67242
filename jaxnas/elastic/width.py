"""Widths: how many channels of an axis are active, as a table over the decisions that set it.

A supernet stores every axis at its maximal size. Which prefix of it runs is set by decisions of the
space: `embed_dim` alone sets the residual stream, `embed_dim` and `mlp_ratio` together the hidden width
of a block. A `Table` lists those sizes, on the host, for every combination of options; a `Width` adds
the traced values of the decisions. Everything static (branches, slices, costs) comes from the table,
everything traced (which branch, which mask) from the values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np


@flax.struct.dataclass
class Decision:
    """One decision of the space with the value that the architecture gives it.

    Attributes:
      name: unique in the network, as ("mlp_ratio", 3): the choice and the position in it (or None); static.
      options: what can be chosen (static).
      value: int32 [] index (hard) or float [len(options)] weights (soft).
    """

    name: tuple[str, int | None] = flax.struct.field(pytree_node=False)
    options: tuple[Any, ...] = flax.struct.field(pytree_node=False)
    value: jax.Array | np.ndarray


@dataclasses.dataclass(frozen=True)
class Table:
    """Integers for every combination of options of some decisions; static and hashable.

    Attributes:
      names: the decisions, as `Decision.name`.
      counts: number of options of each.
      values: Python ints, row-major over `counts`.
    """

    names: tuple[tuple[str, int | None], ...]
    counts: tuple[int, ...]
    values: tuple[int, ...]

    def array(self, names: Sequence[tuple[str, int | None]] | None = None) -> np.ndarray:
        """The values with one axis for each of `names`, of size 1 where the table doesn't depend on it."""
        values = np.array(self.values, dtype=np.int64).reshape(self.counts)
        if names is None:
            return values
        own = [n for n in names if n in self.names]
        values = values.transpose([self.names.index(n) for n in own])
        shape = [self.counts[self.names.index(n)] if n in self.names else 1 for n in names]
        return values.reshape(shape)

    @property
    def maximum(self) -> int:
        """The largest entry."""
        return max(self.values)

    def at(self, arch: dict[str, jax.Array]) -> jax.Array:
        """The entry for a hard architecture, int32 [] (a gather; jit and vmap)."""
        return jnp.asarray(np.array(self.values, np.int32))[self.index(arch)]

    def at_host(self, arch: dict[str, Any]) -> int:
        """The entry for a concrete hard architecture, on the host."""
        index = 0
        for (name, position), count in zip(self.names, self.counts, strict=True):
            index = index * count + int(arch[name] if position is None else arch[name][position])
        return self.values[index]

    def index(self, arch: dict[str, jax.Array]) -> jax.Array:
        """The row-major position of a hard architecture in the table, int32 []."""
        index = jnp.int32(0)
        for (name, position), count in zip(self.names, self.counts, strict=True):
            index = index * count + (arch[name] if position is None else arch[name][position])
        return index


def constant(value: int) -> Table:
    """The table of one number that no decision changes."""
    return Table((), (), (int(value),))


def combine(fn: Callable[..., Any], *tables: Table) -> Table:
    """The table of a function of other tables' entries, over all decisions that any of them depends on.

    Example, the multiply-accumulates of a dense layer on one row:

        elastic.combine(lambda i, o: i * o, width_in.table, width_out.table)

    Args:
      fn: from one entry of each table, Python ints, to an int. It is called once for each combination of
        options of the decisions, so their number is the cost.
      *tables: over the same or over different decisions.

    Returns:
      The table of what `fn` returns.
    """
    counts = {n: c for t in tables for n, c in zip(t.names, t.counts, strict=True)}
    names = tuple(counts)
    shape = tuple(counts.values())
    columns = [np.broadcast_to(t.array(names), shape).ravel().tolist() for t in tables]
    return Table(names, shape, tuple(int(fn(*row)) for row in zip(*columns, strict=True)))


@flax.struct.dataclass
class Width:
    """The active size of one axis of a parameter or activation.

    Attributes:
      table: the size for each combination of options (static).
      values: of the decisions that the table depends on: int32 [], or weights float [options].
      axis: the logical name of the axis, for sharding rules (static).
    """

    table: Table = flax.struct.field(pytree_node=False)
    values: dict[tuple[str, int | None], jax.Array | np.ndarray]
    axis: str | None = flax.struct.field(pytree_node=False, default=None)

    @property
    def maximum(self) -> int:
        """The stored size of the axis."""
        return self.table.maximum

    @property
    def is_fixed(self) -> bool:
        """Whether one size is all that the space allows, so that no code for choosing is traced."""
        return len(set(self.table.values)) == 1

    def mask(self, dtype: Any = jnp.float32) -> jax.Array:
        """Weight of each channel, [maximum]: 1 or 0 if hard, the probability of being active if soft."""
        return jnp.ones(self.maximum, dtype) if self.is_fixed else joint(self).masks(dtype)[0]


def fixed(size: int, axis: str | None = None) -> Width:
    """A width that no decision changes: `elastic.Dense()(x, elastic.fixed(64), hidden)`.

    Args:
      size: of the axis, at least 1.
      axis: the logical name of the axis, for sharding rules; None for none.
    """
    return Width(constant(size), {}, axis)


def width(fn: Callable[..., int], *decisions: Decision, axis: str | None = None) -> Width:
    """The width that a function of chosen options gives.

    Example, the hidden width of a block:

        elastic.width(lambda dim, ratio: int(dim * ratio), embed_dim, mlp_ratio, axis="mlp")

    Args:
      fn: from one option of each decision to the active size. It is called for every combination of options.
      *decisions: of `Decisions`, as `decisions["embed_dim"]` or `decisions["mlp_ratio", 3]`.
      axis: the logical name of the axis, for sharding rules; None for none.

    Returns:
      The width, whose largest size is the stored one.
    """
    # A decision with one option is no decision: leaving it out keeps fixed networks free of indexing.
    # One that is given twice, as for two axes of equal size, is one.
    free = {d.name: d for d in decisions if len(d.options) > 1}
    counts, values = tuple(len(d.options) for d in free.values()), []
    for index in np.ndindex(*counts):
        picked = dict(zip(free, index, strict=True))
        values.append(int(fn(*(d.options[picked.get(d.name, 0)] for d in decisions))))
    return Width(Table(tuple(free), counts, tuple(values)), {d.name: d.value for d in free.values()}, axis)


@dataclasses.dataclass(frozen=True)
class Joint:
    """Several widths that one operation depends on: the distinct size tuples and which one is active."""

    rows: tuple[tuple[int, ...], ...]  # distinct size tuples, one branch each
    lookup: np.ndarray  # flat combination of options -> row
    names: tuple[tuple[str, int | None], ...]
    counts: tuple[int, ...]
    values: dict[tuple[str, int | None], jax.Array | np.ndarray]
    tables: tuple[Table, ...]

    @property
    def is_soft(self) -> bool:
        """Whether any decision has weights in place of an index."""
        return any(jnp.issubdtype(v.dtype, jnp.floating) for v in self.values.values())

    def index(self) -> jax.Array | int:
        """The active row of a hard architecture, int32 []; an int of a static one."""
        static = all(isinstance(value, np.ndarray) for value in self.values.values())
        flat: Any = 0 if static else jnp.int32(0)
        for name, count in zip(self.names, self.counts, strict=True):
            flat = flat * count + self.values[name]
        if static:
            return int(self.lookup[flat])
        if np.array_equal(self.lookup, np.arange(len(self.lookup))):
            return flat
        return jnp.asarray(self.lookup)[flat]

    def weights(self, dtype: Any = jnp.float32) -> jax.Array:
        """Probability of each row, [rows]: the product of the decisions' weights (one-hot where hard)."""
        joint_weights = jnp.ones((1,), dtype)
        for name, count in zip(self.names, self.counts, strict=True):
            value = self.values[name]
            if not jnp.issubdtype(value.dtype, jnp.floating):
                value = jax.nn.one_hot(value, count, dtype=dtype)
            joint_weights = (joint_weights[:, None] * value[:count].astype(dtype)[None, :]).reshape(-1)
        to_row = np.zeros((len(self.lookup), len(self.rows)))
        to_row[np.arange(len(self.lookup)), self.lookup] = 1
        return joint_weights @ jnp.asarray(to_row, dtype)

    @jax.named_scope("elastic_run")  # so that this product is not counted as one of the network
    def masks(self, dtype: Any = jnp.float32) -> tuple[jax.Array, ...]:
        """For each width the weight of its channels, [maximum], expected over the rows."""
        weights = self.weights(dtype)
        masks = []
        for column, table in enumerate(self.tables):
            active = np.array([[c < row[column] for c in range(table.maximum)] for row in self.rows])
            masks.append(weights @ jnp.asarray(active, dtype))
        return tuple(masks)


def masks_of_row(rows: tuple[tuple[int, ...], ...], index: jax.Array) -> tuple[jax.Array, ...]:
    """For each width of a row given by a traced index, its 0/1 channel mask, float32 [maximum]."""
    sizes = np.array(rows, np.int32)
    return tuple(
        (jnp.arange(column.max(), dtype=jnp.int32) < jnp.asarray(column)[index]).astype(jnp.float32)
        for column in sizes.T
    )


def joint(*widths: Width) -> Joint:
    """The joint choice of several widths."""
    counts = {n: c for w in widths for n, c in zip(w.table.names, w.table.counts, strict=True)}
    values = {n: v for w in widths for n, v in w.values.items()}
    shape = tuple(counts.values())
    columns = [np.broadcast_to(w.table.array(tuple(counts)), shape).ravel() for w in widths]
    combinations = list(zip(*(c.tolist() for c in columns), strict=True)) or [()]
    rows = tuple(dict.fromkeys(combinations))
    position = {row: i for i, row in enumerate(rows)}
    lookup = np.array([position[c] for c in combinations], np.int32)
    return Joint(rows, lookup, tuple(counts), shape, values, tuple(w.table for w in widths))

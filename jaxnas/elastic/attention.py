"""Elastic multi-head self-attention with 2-D relative positions in keys and values.

A relative position adds `q . (v[row offset] + h[column offset])` to the logits and the same sum of
table entries, weighted by the attention, to the output (AutoFormer, following Shaw et al. 2018).
Written as it stands this takes a [T, T, D] tensor. Here the tables enter as extra features:
the product of q with the table entry of every possible offset is one plain matrix product, `skew` turns
offsets into key rows and columns, and keys get matching one-hot features, so that a product of width
rows + columns + 1 gives what is added to the logits. Values mirror this: attention over one-hot
places, turned into offsets again, times the table. It is exact, and nothing but matrix products.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.elastic.switch import as_rows


def skew(x: jax.Array) -> jax.Array:
    """From offsets to places: [..., A, I, 2 A - 1] -> [..., A, I, A], y[a, i, s] = x[a, i, A - 1 + s - a].

    By reshapes alone: in rows that are one entry shorter, each row starts one place further to the left than
    the row before it.
    """
    *lead, size, inner, offsets = x.shape
    if size == 1:
        return x
    row = inner * offsets - 1
    flat = x.reshape(*lead, -1)[..., size - 1 : size - 1 + size * row]
    rows = jnp.pad(flat.reshape(*lead, size, row), [(0, 0)] * (len(lead) + 1) + [(0, 1)])
    return rows.reshape(*lead, size, inner, offsets)[..., :size]


def unskew(y: jax.Array) -> jax.Array:
    """From places to offsets: the transpose of `skew`, [..., A, I, A] -> [..., A, I, 2 A - 1]."""
    *lead, size, inner, _ = y.shape
    if size == 1:
        return y
    none, offsets = [(0, 0)] * len(lead), 2 * size - 1
    rows = jnp.pad(y, [*none, (0, 0), (0, 0), (0, size - 1)]).reshape(*lead, size, inner * offsets)
    flat = jnp.pad(rows[..., :-1].reshape(*lead, -1), [*none, (size - 1, 1)])
    return flat.reshape(*lead, size, inner, offsets)


def products(x: jax.Array, y: jax.Array) -> jax.Array:
    """`x @ y.mT` with a float32 result."""
    return x @ y.mT if x.dtype == jnp.float32 else _low_precision_products(x, y)


@jax.custom_vjp
def _low_precision_products(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.matmul(x, y.mT, preferred_element_type=jnp.float32)


def _low_precision_gradients(operands: Any, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    # In the dtype of the operands. Autodiff would multiply in float32, the dtype of the gradient.
    x, y = operands
    gradient = gradient.astype(x.dtype)
    return gradient @ y, gradient.mT @ x


_low_precision_products.defvjp(lambda x, y: (_low_precision_products(x, y), (x, y)), _low_precision_gradients)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def softmax_from(logits: jax.Array, weights: jax.Array, axis: int | tuple[int, ...] = -1) -> jax.Array:
    """The softmax of the logits, which is known: a backward pass has it from the forward pass."""
    return weights


@softmax_from.defjvp
def _softmax_tangent(axis: Any, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    weights = primals[1].astype(jnp.float32)
    slope = weights * tangents[0]
    tangent = slope - weights * jnp.sum(slope, axis=axis, keepdims=True)
    return primals[1], tangent.astype(primals[1].dtype)


@dataclasses.dataclass(frozen=True)
class RelativePositions:
    """Terms of logits and outputs by relative position, for a class token and the patches of a grid."""

    grid: tuple[int, int]

    @property
    def tokens(self) -> int:
        """The class token and the patches."""
        return 1 + self.grid[0] * self.grid[1]

    def logits(self, queries: jax.Array, entries: jax.Array) -> jax.Array:
        """From queries [n, T, D] and table entries [offsets, D] to logits [n, T, T]."""
        by_place = self._to_places(as_rows(queries) @ entries.T)
        logits = products(by_place, jnp.asarray(self._places, by_place.dtype))
        return logits.reshape(-1, self.tokens, self.tokens)

    def values(self, weights: jax.Array, entries: jax.Array) -> jax.Array:
        """From attention weights [n, T, T] and table entries [offsets, D] to outputs [n, T, D]."""
        by_place = as_rows(weights) @ jnp.asarray(self._places, weights.dtype)
        return (self._to_offsets(by_place) @ entries).reshape(-1, self.tokens, entries.shape[1])

    def _to_places(self, by_offset: jax.Array) -> jax.Array:
        """From what queries have for each offset [n * T, O] to each place [n * T, P]."""
        rows, columns = self.grid
        by_offset = by_offset.reshape(-1, self.tokens, by_offset.shape[1])
        grid = by_offset[:, 1:].reshape(-1, rows, columns, by_offset.shape[2])
        by_row = skew(grid[..., : 2 * rows - 1])
        by_column = skew(grid[..., None, 2 * rows - 1 : -1])[..., 0, :]
        by_place = jnp.concatenate([by_row, by_column, grid[..., -1:]], axis=3)
        by_place = by_place.reshape(-1, rows * columns, by_place.shape[3])
        # For the class token every key has the same offset, the last one. It enters at the place of the
        # key's row, or at that of the class token, so that each key gets it once.
        once = np.zeros((1, 1, by_place.shape[2]), np.float32)
        once[..., :rows] = once[..., -1] = 1
        first = by_offset[:, :1, -1:] * jnp.asarray(once, by_offset.dtype)
        return as_rows(jnp.concatenate([first, by_place], axis=1))

    def _to_offsets(self, by_place: jax.Array) -> jax.Array:
        """The transpose of `_to_places`, [n * T, P] -> [n * T, O]."""
        rows, columns = self.grid
        by_place = by_place.reshape(-1, self.tokens, by_place.shape[1])
        grid = by_place[:, 1:].reshape(-1, rows, columns, by_place.shape[2])
        by_row = unskew(grid[..., :rows])
        by_column = unskew(grid[..., None, rows : rows + columns])[..., 0, :]
        by_offset = jnp.concatenate([by_row, by_column, grid[..., -1:]], axis=3)
        by_offset = by_offset.reshape(-1, rows * columns, by_offset.shape[3])
        first = jnp.sum(by_place[:, :1, :rows], axis=2, keepdims=True) + by_place[:, :1, -1:]
        first = jnp.pad(first, ((0, 0), (0, 0), (by_offset.shape[2] - 1, 0)))
        return as_rows(jnp.concatenate([first, by_offset], axis=1))

    @functools.cached_property
    def _places(self) -> np.ndarray:
        """One-hot features of each token: its row, its column, or being the class token."""
        rows, columns = self.grid
        places = np.zeros((self.tokens, rows + columns + 1), np.float32)
        places[0, -1] = 1
        token = np.arange(rows * columns)
        places[1 + token, token // columns] = 1
        places[1 + token, rows + token % columns] = 1
        return places


def relative_entries(by_row: jax.Array, by_column: jax.Array, grid: tuple[int, int], dtype: Any) -> jax.Array:
    """Table entries [offsets, D]: of every row offset, every column offset, and the class token.

    Args:
      by_row, by_column: tables [2 * max_relative_position + 2, D]; entry 0 is the class token's.
      grid: rows and columns of the patch tokens.
      dtype: of the result.
    """
    by_row, by_column = by_row.astype(dtype), by_column.astype(dtype)
    limit = by_row.shape[0] // 2 - 1

    def entry(size: int) -> np.ndarray:
        return np.clip(np.arange(1 - size, size), -limit, limit) + limit + 1

    rows, columns = entry(grid[0]), entry(grid[1])
    return jnp.concatenate([by_row[rows], by_column[columns], (by_row[0] + by_column[0])[None]])

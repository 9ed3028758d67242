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

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.elastic.layers import (
    DenseParameters,
    Initializer,
    Masks,
    Norm,
    affine,
    run_normalised,
    trunc_normal,
)
from jaxnas.elastic.parameter import Sharing, parameter, record_macs
from jaxnas.elastic.switch import Keep, as_rows
from jaxnas.elastic.width import Width, combine, constant, fixed


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
    """What relative positions add to logits and outputs, for a class token and the patches of a grid."""

    grid: tuple[int, int]

    @property
    def tokens(self) -> int:
        """The class token and the patches."""
        return 1 + self.grid[0] * self.grid[1]

    def logits(self, queries: jax.Array, entries: jax.Array) -> jax.Array:
        """From queries [n, T, D] and table entries [offsets, D] to logits [n, T, T]."""
        return self._by_key(self._to_places(as_rows(queries) @ entries.T))

    def by_place(self, weights: jax.Array) -> jax.Array:
        """From attention weights [n, T, T] to their sums by place, [n * T, P]."""
        return as_rows(weights) @ jnp.asarray(self._places, weights.dtype)

    def from_places(self, by_place: jax.Array, entries: jax.Array) -> jax.Array:
        """From weights by place and table entries [offsets, D] to outputs, [n, T, D]."""
        return (self._to_offsets(by_place) @ entries).reshape(-1, self.tokens, entries.shape[1])

    def values(self, weights: jax.Array, entries: jax.Array) -> jax.Array:
        """From attention weights [n, T, T] and table entries [offsets, D] to outputs, [n, T, D]."""
        return self.from_places(self.by_place(weights), entries)

    def _by_key(self, by_place: jax.Array) -> jax.Array:
        """Logits [n, T, T] of each key from those of its places, [n * T, P]."""
        logits = products(by_place, jnp.asarray(self._places, by_place.dtype))
        return logits.reshape(-1, self.tokens, self.tokens)

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


@dataclasses.dataclass(frozen=True)
class Attention:
    """Self-attention from residual stream to residual stream, a function for `run`.

    Operands: x [B * T, E], kernel [E, 3, H, D] and bias [3, H, D] of queries, keys and values, kernel
    [H * D, E] and bias [E] of the projection and, with relative positions, the entries of the keys' and
    of the values' tables, as `relative_entries` gives them. Output: [B * T, E]. One function and not
    three, so that nothing is padded and cut in between. Queries, keys, values, outputs, the attention
    weights [B, H, T, T] and their sums by place [B, H, T, P] are kept for the backward pass.
    """

    tokens: int
    grid: tuple[int, int]
    dtype: Any

    def __call__(self, x: jax.Array, *weights: jax.Array, keep: Keep = lambda x: x) -> jax.Array:
        """Maps rows x [B * T, E] to the same shape, at the sizes of its operands."""
        attended = self._attend(keep(self._qkv(x, *weights[:2])), *weights[4:], keep=keep)
        return self._project(keep(attended), *weights[2:4])

    def masked(self, masks: Masks, x: jax.Array, *weights: jax.Array) -> jax.Array:
        """The same at the largest sizes, with a mask float32 [maximum] of each width; see `run`."""
        embed, heads = (masks[name].astype(self.dtype) for name in ("embed", "heads"))
        attended = self._attend(self._qkv(x, *weights[:2]), *weights[4:], keep=lambda x: x)
        attended *= heads[None, :, None, None]
        return self._project(attended, *weights[2:4]) * embed[None, :]

    def _qkv(self, x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        """Queries, keys and values [3, B, h, T, D]."""
        y = affine(x, kernel.reshape(x.shape[1], -1), bias.reshape(-1), self.dtype)
        return y.reshape(-1, self.tokens, *kernel.shape[1:]).transpose(2, 0, 3, 1, 4)

    def _project(self, attended: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        """From the heads' outputs [B, h, T, D] to the residual stream [B * T, E]."""
        merged = attended.transpose(0, 2, 1, 3).reshape(-1, kernel.shape[0])
        return affine(merged, kernel, bias, self.dtype)

    def _attend(self, qkv: jax.Array, *entries: jax.Array, keep: Keep) -> jax.Array:
        """Outputs [B, h, T, D]."""
        shape, positions = qkv.shape[1:], RelativePositions(self.grid)

        def kept(x: jax.Array) -> jax.Array:  # flat, so that fewer heads are a prefix of more
            return keep(x.reshape(*shape[:3], -1)).reshape(x.shape)

        # Examples come before heads, so that devices that share the examples each have rows of their own.
        queries, keys, values = qkv.reshape(3, -1, *shape[2:])  # [B * h, T, D] each
        queries = queries * shape[3] ** -0.5
        logits = products(queries, keys)
        if entries:
            logits += positions.logits(queries, entries[0])
        known = kept(jax.nn.softmax(logits, axis=-1).astype(self.dtype))
        weights = softmax_from(logits, known)  # [B * h, T, T]
        attended = weights @ values
        if entries:
            attended += positions.from_places(kept(positions.by_place(weights)), entries[1])
        return attended.reshape(shape)

    def macs(self, embed: int, heads: int, dim: int, *, relative: bool) -> int:
        """Multiply-accumulates of the products before the projection, on one example."""
        tokens, extended, by_offset = self.tokens, dim, 0
        if relative:
            extended += sum(self.grid) + 1
            by_offset = 2 * tokens * dim * (2 * sum(self.grid) - 1)
        return heads * (3 * tokens * embed * dim + 2 * tokens * tokens * extended + by_offset)


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


class MultiHeadAttention(nn.Module):
    """Weight-entangled self-attention; the number of heads is elastic, their width is fixed.

    Example, in the `compact` method of a network whose residual stream has the width `embed`:

        attention = elastic.MultiHeadAttention(grid=(14, 14), name="attention")
        x = x + attention(x, embed, elastic.width(lambda heads: heads, num_heads))

    Attributes:
      grid: rows and columns of the patch tokens that follow the class token.
      head_dim: channels of a head.
      max_relative_position: offsets are clipped to this; 0 leaves relative positions out.
      dtype: of the computation; softmax and parameters are float32.
      sharing: see `DenseParameters`.
      kernel_init: initializer of the kernels; None for that of `flax.linen.Dense`.
      qkv_bias_by_heads: whether each number of heads has its own bias of queries, keys and values, as in the
        official AutoFormer code. Classic sharing stores the bias by heads and by width in any case.
    """

    grid: tuple[int, int]
    head_dim: int = 64
    max_relative_position: int = 14
    dtype: Any = jnp.float32
    sharing: Sharing = "entangled"
    kernel_init: Initializer | None = None
    qkv_bias_by_heads: bool = False

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        embed: Width,
        heads: Width,
        *,
        gate: Width | None = None,
        norm: Norm | None = None,
    ) -> jax.Array:
        """Maps x [B, T, embed maximum] to the same shape, zero beyond the active width.

        Args:
          x: tokens, the class token first, with zeros beyond `embed`.
          embed, heads: active widths.
          gate: 0 where the layer is skipped, which gives zeros.
          norm: a layer normalisation to apply to x first, of a `LayerNormParameters`.
        """
        tokens, dim = 1 + self.grid[0] * self.grid[1], fixed(self.head_dim)
        options = (embed, heads) if self.sharing == "classic" else None
        gates = constant(1) if gate is None else gate.table
        shape = (embed, fixed(3), heads, dim)
        into_heads = self.kernel_init or nn.initializers.lecun_normal(in_axis=0, out_axis=(1, 2, 3))
        kernel = parameter(self, "qkv_kernel", into_heads, shape, gate=gate, options=options)
        if options is None and self.qkv_bias_by_heads:
            options = (heads,)
        bias = parameter(self, "qkv_bias", nn.initializers.zeros, shape[1:], gate=gate, options=options)
        merged = Width(combine(lambda h: h * self.head_dim, heads.table), heads.values, heads.axis)
        projection = DenseParameters(self.sharing, self.kernel_init, name="projection")
        weights = (kernel, bias, *projection(merged, embed, gate=gate, rows=tokens))
        if self.max_relative_position:
            shape = (fixed(2 * self.max_relative_position + 2), dim)
            for part in ("key", "value"):
                by_row, by_column = (
                    parameter(self, f"{part}_{axis}", trunc_normal, shape, gate=gate)
                    for axis in ("rows", "columns")
                )
                weights = (*weights, relative_entries(by_row, by_column, self.grid, self.dtype))
        attention = Attention(tokens, self.grid, self.dtype)
        macs = functools.partial(attention.macs, dim=self.head_dim, relative=self.max_relative_position > 0)
        record_macs(self, combine(lambda e, h, g: g * macs(e, h), embed.table, heads.table, gates))
        axes = "rows embed, embed qkv heads dim, qkv heads dim, merged embed, embed"
        axes += ", ..." * (len(weights) - 4) + " -> rows embed"
        widths = {"embed": embed, "heads": heads, "merged": merged}
        return run_normalised(norm, attention, axes, widths, as_rows(x), *weights, gate=gate).reshape(x.shape)

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
    Norm,
    affine,
    prenorm,
    trunc_normal,
)
from jaxnas.elastic.parameter import Sharing, parameter, record_macs
from jaxnas.elastic.switch import FIRST, Arrays, Shapes, Sublayer, as_rows
from jaxnas.elastic.width import Width, combine, constant, fixed


def skew(x: jax.Array) -> jax.Array:
    """From offsets to places: [..., A, I, 2 A - 1] -> [..., A, I, A], y[a, i, s] = x[a, i, A - 1 + s - a].

    Reshapes only: a row that is one shorter starts each next row one further to the left.
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


@dataclasses.dataclass(frozen=True)
class AttentionOperation:
    """Self-attention from residual stream to residual stream; widths (embed, heads).

    Operands: x [B * T, E], kernel [E, 3, H, D] and bias [3, H, D] of queries, keys and values, kernel
    [H * D, E] and bias [E] of the projection and, with relative positions, the entries of the keys' and
    of the values' tables, as `relative_entries` gives them. Output: [B * T, E]. One operation and not
    three, so that nothing is padded and cut in between. Queries, keys, values, outputs, the attention
    weights [B, H, T, T] and their sums by place [B, H, T, P] are kept for the backward pass.
    """

    tokens: int
    grid: tuple[int, int]
    dtype: Any

    block_axes = (2, 1, 0, FIRST, None, None)

    def shapes(self, sizes: tuple[int, ...], x: jax.Array, *weights: jax.Array) -> Shapes:
        embed, heads = sizes
        dim, entries = weights[0].shape[3], (entry.shape for entry in weights[4:])
        qkv = (embed, 3, heads, dim), (3, heads, dim)
        return (x.shape[0], embed), *qkv, (heads * dim, embed), (embed,), *entries

    def compute(self, x: jax.Array, *weights: jax.Array) -> Arrays:
        attended, *_ = self._attend(self._qkv(x, *weights[:2]), *weights[4:])
        return (self._project(attended, *weights[2:4]),)

    def forward(self, x: jax.Array, *weights: jax.Array) -> tuple[Arrays, Arrays]:
        qkv = self._qkv(x, *weights[:2])
        attended, *kept = self._attend(qkv, *weights[4:])
        return (self._project(attended, *weights[2:4]),), (qkv, attended, *kept)

    def backward(self, operands: Arrays, kept: Arrays, cotangents: Arrays) -> Arrays:
        """As autodiff would, with everything before the projection taken from the forward pass."""
        x, *weights = operands
        _, project_vjp = jax.vjp(self._project, kept[1], *weights[2:4])
        grad_attended, *grad_projection = project_vjp(cotangents[0])
        grad_qkv, grad_entries = self._attend_backward(kept, grad_attended, *weights[4:])
        _, qkv_vjp = jax.vjp(self._qkv, x, *weights[:2])
        return *qkv_vjp(grad_qkv), *grad_projection, *grad_entries

    def masked(self, masks: Arrays, x: jax.Array, *weights: jax.Array) -> Arrays:
        embed, heads = (mask.astype(self.dtype) for mask in masks)
        attended, *_ = self._attend(self._qkv(x, *weights[:2]), *weights[4:])
        attended *= heads[None, :, None, None]
        return (self._project(attended, *weights[2:4]) * embed[None, :],)

    def _qkv(self, x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        """Queries, keys and values [3, B, h, T, D]."""
        y = affine(x, kernel.reshape(x.shape[1], -1), bias.reshape(-1), self.dtype)
        return y.reshape(-1, self.tokens, *kernel.shape[1:]).transpose(2, 0, 3, 1, 4)

    def _project(self, attended: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        """From the heads' outputs [B, h, T, D] to the residual stream [B * T, E]."""
        merged = attended.transpose(0, 2, 1, 3).reshape(-1, kernel.shape[0])
        return affine(merged, kernel, bias, self.dtype)

    @functools.partial(jax.jit, static_argnums=0)  # traced once for each number of heads
    def _attend(self, qkv: jax.Array, *entries: jax.Array) -> Arrays:
        """Outputs [B, h, T, D], attention weights [B, h, T, T], their sums by place [B, h, T, P]."""
        shape = qkv.shape[1:]
        # Examples in front of heads: where devices share the examples, each has its own rows of these.
        queries, keys, values = qkv.reshape(3, -1, *shape[2:])  # [B * h, T, D] each
        queries = queries * shape[3] ** -0.5
        logits = jnp.matmul(queries, keys.mT, preferred_element_type=jnp.float32)
        if entries:
            by_offset = as_rows(queries) @ entries[0].T
            logits += self._by_key(self._to_places(by_offset))
        weights = jax.nn.softmax(logits, axis=-1).astype(self.dtype)  # [B * h, T, T]
        attended, kept = weights @ values, ()
        if entries:
            by_place = self._by_place(weights)
            more = self._to_offsets(by_place) @ entries[1]
            attended, kept = attended + more.reshape(attended.shape), (by_place,)
        return tuple(part.reshape(*shape[:3], -1) for part in (attended, weights, *kept))

    def _attend_backward(
        self, kept: Arrays, grad: jax.Array, *entries: jax.Array
    ) -> tuple[jax.Array, Arrays]:
        """Gradients of qkv and of the entries from that of the outputs [B, h, T, D]."""
        qkv, *others = kept
        scale = qkv.shape[4] ** -0.5
        queries, keys, values = qkv.reshape(3, -1, *qkv.shape[3:])
        queries = queries * scale
        attended, weights, *places, grad = (x.reshape(-1, *x.shape[2:]) for x in (*others, grad))
        grad_weights = jnp.matmul(grad, values.mT, preferred_element_type=jnp.float32)
        if entries:
            grad_weights += self._by_key(self._to_places(as_rows(grad) @ entries[1].T))
        # The mean of grad_weights under the weights, taken from the outputs: channels are fewer than keys.
        mean = jnp.sum(grad.astype(jnp.float32) * attended.astype(jnp.float32), axis=-1, keepdims=True)
        grad_logits = (weights.astype(jnp.float32) * (grad_weights - mean)).astype(self.dtype)
        grad_queries, grad_keys = grad_logits @ keys, grad_logits.mT @ queries
        grad_entries: Arrays = ()
        if entries:
            by_offset = self._to_offsets(self._by_place(grad_logits))
            grad_queries += (by_offset @ entries[0]).reshape(grad_queries.shape)
            seen = self._to_offsets(as_rows(*places))
            grad_entries = by_offset.T @ as_rows(queries), seen.T @ as_rows(grad)
        parts = grad_queries * scale, grad_keys, weights.mT @ grad
        return jnp.stack(parts).reshape(qkv.shape), grad_entries

    def _by_place(self, by_key: jax.Array) -> jax.Array:
        """What queries have for each key [n, T, T], summed over the keys of each place, [n * T, P]."""
        return as_rows(by_key) @ jnp.asarray(self._places, self.dtype)

    def _by_key(self, by_place: jax.Array) -> jax.Array:
        """Logits [n, T, T] of each key from those of its places, [n * T, P]."""
        places = jnp.asarray(self._places, self.dtype)
        logits = jnp.matmul(by_place, places.T, preferred_element_type=jnp.float32)
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
        # The class token has every key at its own offset, the last: each key at one place of these.
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
    """Declares weight-entangled self-attention; the number of heads is elastic, their width is fixed.

    Attributes:
      grid: rows and columns of the patch tokens that follow the class token.
      head_dim: channels of a head.
      max_relative_position: offsets are clipped to this; 0 leaves relative positions out.
      dtype: of the computation; softmax and parameters are float32.
      sharing: see `DenseParameters`.
    """

    grid: tuple[int, int]
    head_dim: int = 64
    max_relative_position: int = 14
    dtype: Any = jnp.float32
    sharing: Sharing = "entangled"
    kernel_init: Initializer = trunc_normal

    @nn.compact
    def __call__(
        self, embed: Width, heads: Width, *, gate: Width | None = None, norm: Norm | None = None
    ) -> Sublayer:
        """Returns the sublayer, which maps [B * T, embed maximum] to the same shape.

        Args:
          embed, heads: active widths.
          gate: 0 where the layer is skipped.
          norm: layer normalisation to apply to its input first.
        """
        tokens, dim = 1 + self.grid[0] * self.grid[1], fixed(self.head_dim)
        common = dict(gate=gate, options=(embed, heads) if self.sharing == "classic" else None)
        gates = constant(1) if gate is None else gate.table
        kernel = parameter(self, "qkv_kernel", self.kernel_init, (embed, fixed(3), heads, dim), **common)
        bias = parameter(self, "qkv_bias", nn.initializers.zeros, (fixed(3), heads, dim), **common)
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
        attention = AttentionOperation(tokens, self.grid, self.dtype)
        macs = functools.partial(attention.macs, dim=self.head_dim, relative=self.max_relative_position > 0)
        record_macs(self, combine(lambda e, h, g: g * macs(e, h), embed.table, heads.table, gates))
        operation, *weights = prenorm(norm, attention, *weights)
        return Sublayer(operation, (embed, heads), tuple(weights), gate)

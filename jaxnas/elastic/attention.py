"""Elastic multi-head self-attention with 2-D relative positions in keys and values.

A relative position adds `q . (v[row offset] + h[column offset])` to the logits and the same sum of
table entries, weighted by the attention, to the output (AutoFormer, following Shaw et al. 2018).
Written as it stands this takes a [T, T, D] tensor. Here the tables enter as extra features:
the product of q with the table row of every possible key row and column is appended to q, and keys get
matching one-hot features, so that one ordinary attention product of width D + rows + columns + 1 holds
everything. It is exact, and any attention kernel can run it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.elastic.layers import Dense, Initializer, pad_to, trunc_normal
from jaxnas.elastic.parameter import Sharing, parameter, record_macs
from jaxnas.elastic.switch import Arrays, run
from jaxnas.elastic.width import Width, combine, constant, fixed


@dataclasses.dataclass(frozen=True)
class QKVOperation:
    """One product for queries, keys and values: x [N, in], kernel [in, 3, H, D], bias [3, H, D]."""

    dtype: Any

    def sliced(self, sizes: tuple[int, ...], x: jax.Array, kernel: jax.Array, bias: jax.Array) -> Arrays:
        size_in, heads = sizes
        dim = kernel.shape[3]
        kernel = kernel[:size_in, :, :heads].reshape(size_in, 3 * heads * dim)
        y = x[:, :size_in].astype(self.dtype) @ kernel.astype(self.dtype)
        y = y + bias[:, :heads].reshape(1, -1).astype(self.dtype)
        y = y.reshape(x.shape[0], 3, heads, dim)
        return (pad_to(y, (x.shape[0], *bias.shape)),)

    def masked(self, masks: Arrays, x: jax.Array, kernel: jax.Array, bias: jax.Array) -> Arrays:
        full = (kernel.shape[0], kernel.shape[2])
        (y,) = self.sliced(full, x, kernel, bias)
        return (y * masks[1].astype(self.dtype)[None, None, :, None],)


@dataclasses.dataclass(frozen=True)
class AttentionOperation:
    """Softmax attention of qkv [B * T, 3, H, D] over the active heads.

    Operands: qkv and, with relative positions, four tables [2 * max_relative_position + 2, D]: keys'
    rows, keys' columns, values' rows, values' columns. Widths: (H,).
    Output: [B * T, H * D]. The attention weights [H, B, T, T] are kept for the backward pass.
    """

    tokens: int
    grid: tuple[int, int]
    max_relative_position: int
    dtype: Any

    def sliced(self, sizes: tuple[int, ...], qkv: jax.Array, *tables: jax.Array) -> Arrays:
        return (self._attend(sizes[0], qkv, *tables)[0],)

    def forward(self, sizes: tuple[int, ...], qkv: jax.Array, *tables: jax.Array) -> Any:
        heads, stored_heads = sizes[0], qkv.shape[2]
        out, *kept = self._attend(heads, qkv, *tables)
        by_head = [x.reshape(heads, x.shape[0] // heads, *x.shape[1:]) for x in kept]  # [h, B, T, ...]
        return (out,), tuple(pad_to(x, (stored_heads, *x.shape[1:])) for x in by_head)

    def masked(self, masks: Arrays, qkv: jax.Array, *tables: jax.Array) -> Arrays:
        (out,) = self.sliced((qkv.shape[2],), qkv, *tables)
        # Inactive heads attend uniformly to zeros, but their relative positions in V are not zero.
        active = jnp.repeat(masks[0] > 0, qkv.shape[3])
        return (out * active.astype(out.dtype)[None, :],)

    def _attend(self, heads: int, qkv: jax.Array, *tables: jax.Array) -> Arrays:
        """Output [B * T, H * D]; attention weights [h * B, T, T]; their sums by place [h * B, T, P]."""
        rows, _, stored_heads, dim = qkv.shape
        queries, keys, values = self._features(heads, qkv, *tables)
        logits = jnp.matmul(queries, keys.mT, preferred_element_type=jnp.float32)
        weights = jax.nn.softmax(logits, axis=-1).astype(self.dtype)  # [h * B, T, T]
        mixed = weights @ values  # [h * B, T, D + P]
        out = self._merge(mixed, *tables)  # [h * B, T, D]
        out = out.reshape(heads, -1, self.tokens, dim).transpose(1, 2, 0, 3)
        out = pad_to(out.reshape(rows, heads * dim), (rows, stored_heads * dim))
        return out, weights, mixed[:, :, dim:]

    def backward(
        self, sizes: tuple[int, ...], operands: Arrays, kept: Arrays, cotangents: Arrays
    ) -> Arrays:
        """As autodiff would, with the attention weights taken from the forward pass."""
        qkv, *tables = operands
        rows, _, stored_heads, dim = qkv.shape
        heads, batch = sizes[0], rows // self.tokens
        weights, places = (x[:heads].reshape(heads * batch, *x.shape[2:]) for x in kept)
        grad = cotangents[0][:, : heads * dim].reshape(batch, self.tokens, heads, dim)
        grad = grad.transpose(2, 0, 1, 3).reshape(heads * batch, self.tokens, dim)
        (queries, keys, values), features_vjp = jax.vjp(
            lambda qkv, *tables: self._features(heads, qkv, *tables), qkv, *tables
        )
        # Of the mixed features only the places enter the gradient of the tables.
        mixed = jnp.pad(places, ((0, 0), (0, 0), (dim, 0)))
        _, merge_vjp = jax.vjp(lambda m, *tables: self._merge(m, *tables), mixed, *tables)
        grad_mixed, *grad_tables = merge_vjp(grad)
        # The one-hot places of keys and values are constants: no gradient is computed for them.
        constants = ((0, 0), (0, 0), (0, values.shape[2] - dim))
        grad_values = jnp.pad(weights.mT @ grad_mixed[:, :, :dim], constants)
        grad_weights = jnp.matmul(grad_mixed, values.mT, preferred_element_type=jnp.float32)
        probabilities = weights.astype(jnp.float32)
        inner = jnp.sum(grad_weights * probabilities, axis=-1, keepdims=True)
        grad_logits = (probabilities * (grad_weights - inner)).astype(self.dtype)
        grad_queries = grad_logits @ keys
        grad_keys = jnp.pad(grad_logits.mT @ queries[:, :, :dim], constants)
        grad_qkv, *more = features_vjp((grad_queries, grad_keys, grad_values))
        return grad_qkv, *(a + b for a, b in zip(grad_tables, more, strict=True))

    def _features(self, heads: int, qkv: jax.Array, *tables: jax.Array) -> Arrays:
        """Queries (scaled), keys and values [h * B, T, D'] with relative positions as extra features."""
        dim, batch = qkv.shape[3], qkv.shape[0] // self.tokens
        parts = qkv[:, :, :heads].reshape(batch, self.tokens, 3, heads, dim)
        parts = parts.transpose(2, 3, 0, 1, 4).reshape(3, heads * batch, self.tokens, dim)
        queries, keys, values = parts[0] * dim**-0.5, parts[1], parts[2]
        if not tables:
            return queries, keys, values
        shape = (heads * batch, self.tokens, sum(self.grid) + 1)
        places = jnp.broadcast_to(jnp.asarray(self._places(), qkv.dtype)[None], shape)
        by_row, by_column, special = self._tables(tables[0], tables[1])
        grid = queries[:, 1:].reshape(heads * batch, *self.grid, dim)
        products = [
            jnp.einsum("nrcd,rsd->nrcs", grid, by_row).reshape(heads * batch, -1, self.grid[0]),
            jnp.einsum("nrcd,csd->nrcs", grid, by_column).reshape(heads * batch, -1, self.grid[1]),
            (queries[:, 1:] @ special[:, None]),
        ]
        # The class token's own row gets one constant for every key, which the softmax ignores.
        extra = jnp.pad(jnp.concatenate(products, axis=2), ((0, 0), (1, 0), (0, 0)))
        queries = jnp.concatenate([queries, extra], axis=2)
        return queries, jnp.concatenate([keys, places], axis=2), jnp.concatenate([values, places], axis=2)

    def _merge(self, mixed: jax.Array, *tables: jax.Array) -> jax.Array:
        """From the attention over values and one-hot places [n, T, D'] to the output [n, T, D]."""
        if not tables:
            return mixed
        by_row, by_column, special = self._tables(tables[2], tables[3])
        dim = special.shape[0]
        rows, columns = self.grid
        grid = mixed[:, 1:].reshape(-1, rows, columns, mixed.shape[2])
        relative = jnp.einsum("nrcs,rsd->nrcd", grid[..., dim : dim + rows], by_row)
        relative += jnp.einsum("nrcs,csd->nrcd", grid[..., dim + rows : dim + rows + columns], by_column)
        relative = relative.reshape(mixed.shape[0], rows * columns, dim)
        relative += mixed[:, 1:, -1:] * special[None, None, :]
        class_row = jnp.broadcast_to(special[None, None, :], (mixed.shape[0], 1, dim))
        return mixed[:, :, :dim] + jnp.concatenate([class_row, relative], axis=1)

    def _tables(self, by_row: jax.Array, by_column: jax.Array) -> Arrays:
        """Table entries for every (query row, key row), (query column, key column), and the class token."""
        by_row, by_column = by_row.astype(self.dtype), by_column.astype(self.dtype)
        limit = self.max_relative_position

        def offsets(size: int) -> np.ndarray:
            position = np.arange(size)
            return np.clip(position[None, :] - position[:, None], -limit, limit) + limit + 1

        pairs = by_row[offsets(self.grid[0])], by_column[offsets(self.grid[1])]
        return *pairs, by_row[0] + by_column[0]

    def _places(self) -> np.ndarray:
        """One-hot features of each token: its row, its column, or being the class token."""
        rows, columns = self.grid
        places = np.zeros((self.tokens, rows + columns + 1), np.float32)
        places[0, -1] = 1
        token = np.arange(rows * columns)
        places[1 + token, token // columns] = 1
        places[1 + token, rows + token % columns] = 1
        return places

    def macs(self, heads: int, dim: int) -> int:
        """Multiply-accumulates of the products on one example."""
        tokens, patches = self.tokens, self.tokens - 1
        if self.max_relative_position == 0:
            return heads * 2 * tokens * tokens * dim
        extended = dim + sum(self.grid) + 1
        relative = patches * dim * (2 * sum(self.grid) + 1)
        return heads * (2 * tokens * tokens * extended + relative)


class MultiHeadAttention(nn.Module):
    """Weight-entangled self-attention; the number of heads is elastic, their width is fixed.

    Attributes:
      grid: rows and columns of the patch tokens that follow the class token.
      head_dim: channels of a head.
      max_relative_position: offsets are clipped to this; 0 leaves relative positions out.
      dtype: of the computation; softmax and parameters are float32.
      sharing: see `Dense`.
    """

    grid: tuple[int, int]
    head_dim: int = 64
    max_relative_position: int = 14
    dtype: Any = jnp.float32
    sharing: Sharing = "entangled"
    kernel_init: Initializer = trunc_normal

    @nn.compact
    def __call__(
        self, x: jax.Array, embed: Width, heads: Width, *, gate: Width | None = None
    ) -> jax.Array:
        """Maps x [B * T, embed maximum] to the same shape; zero beyond the embedding width."""
        tokens = 1 + self.grid[0] * self.grid[1]
        dim = fixed(self.head_dim)
        common = dict(gate=gate, options=(embed, heads) if self.sharing == "classic" else None)
        gates = constant(1) if gate is None else gate.table
        kernel = parameter(self, "qkv_kernel", self.kernel_init, (embed, fixed(3), heads, dim), **common)
        bias = parameter(self, "qkv_bias", nn.initializers.zeros, (fixed(3), heads, dim), **common)
        record_macs(
            self,
            combine(
                lambda e, h, g: g * tokens * e * 3 * h * self.head_dim, embed.table, heads.table, gates
            ),
        )
        tables = []
        if self.max_relative_position:
            shape = (fixed(2 * self.max_relative_position + 2), dim)
            for name in ("key_rows", "key_columns", "value_rows", "value_columns"):
                tables.append(parameter(self, name, trunc_normal, shape, gate=gate))
        (qkv,) = run(QKVOperation(self.dtype), (embed, heads), x, kernel, bias, gate=gate)
        attention = AttentionOperation(tokens, self.grid, self.max_relative_position, self.dtype)
        record_macs(self, combine(lambda h, g: g * attention.macs(h, self.head_dim), heads.table, gates))
        (out,) = run(attention, (heads,), qkv, *tables, gate=gate)
        merged = Width(
            combine(lambda h: h * self.head_dim, heads.table), heads.values, heads.axis
        )
        common = dict(dtype=self.dtype, sharing=self.sharing, kernel_init=self.kernel_init)
        dense = Dense(name="projection", **common)
        return dense(out, merged, embed, gate=gate, rows=tokens)

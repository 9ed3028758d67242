"""Elastic self-attention, and relative positions in keys and values by plain products.

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

from jaxnas.elastic.layers import Initializer, affine
from jaxnas.elastic.parameter import gated_macs, parameter, record_macs
from jaxnas.elastic.switch import Keep, as_rows, run
from jaxnas.elastic.width import Width, joint


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

    The tables are [2 * max_relative_position + 2, D], and entry 0 is the class token's. The grid has the rows
    and columns of the patch tokens.
    """
    by_row, by_column = by_row.astype(dtype), by_column.astype(dtype)
    limit = by_row.shape[0] // 2 - 1

    def entry(size: int) -> np.ndarray:
        return np.clip(np.arange(1 - size, size), -limit, limit) + limit + 1

    rows, columns = entry(grid[0]), entry(grid[1])
    return jnp.concatenate([by_row[rows], by_column[columns], (by_row[0] + by_column[0])[None]])


@dataclasses.dataclass(frozen=True)
class _Attend:
    """Self-attention from x [B, T, E] to [B, T, E], a function for `run`.

    The other operands are what may be seen, bool [B or 1, T or 1, T]; ones [D]; kernels [E, heads, D] and
    biases [heads, D] of queries, keys and values; kernel [H, D, E] and bias [E] of the projection.
    """

    dtype: Any

    def __call__(
        self, x: jax.Array, visible: jax.Array, ones: jax.Array, *weights: jax.Array, keep: Keep
    ) -> jax.Array:
        *mappings, kernel, bias = weights
        queries, keys, values = (
            keep(self._heads(x, *one)) for one in zip(mappings[:3], mappings[3:], strict=True)
        )
        # The sum of `ones` is the active width of a head, also in a branch that is wider than that.
        queries = queries * jax.lax.rsqrt(jnp.sum(ones)).astype(self.dtype)
        batch, heads, tokens, dim = queries.shape
        groups = keys.shape[1]
        queries = _grouped(queries, groups)  # [B, K, H / K * T, D]
        logits = products(queries, keys).reshape(batch, -1, tokens, tokens)[:, :heads]
        visible = visible[:, None]
        logits = jnp.where(visible, logits, jnp.finfo(jnp.float32).min)
        # A token that sees none gets zeros.
        known = keep(jnp.where(visible, jax.nn.softmax(logits, axis=-1), 0).astype(self.dtype))
        attention = _grouped(softmax_from(logits, known), groups)  # [B, K, H / K * T, T]
        attended = keep((attention @ values).reshape(batch, -1, tokens, dim)[:, :heads])
        merged = attended.transpose(0, 2, 1, 3).reshape(batch * tokens, heads * dim)
        return affine(merged, kernel.reshape(heads * dim, -1), bias, self.dtype).reshape(x.shape)

    def _heads(self, x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        """Maps tokens [B, T, E] to heads [B, H, T, D]."""
        y = affine(x.reshape(-1, x.shape[2]), kernel.reshape(x.shape[2], -1), bias.reshape(-1), self.dtype)
        return y.reshape(*x.shape[:2], *bias.shape).transpose(0, 2, 1, 3)


def _grouped(x: jax.Array, groups: int) -> jax.Array:
    """Joins the rows of heads [B, H, T, D] that share keys: [B, groups, H / groups * T, D]."""
    # The largest numbers of heads and of groups, for which `run` asks for shapes, need not divide.
    missing = -x.shape[1] % groups
    x = jnp.pad(x, [(0, 0), (0, missing), (0, 0), (0, 0)])
    return x.reshape(x.shape[0], groups, -1, x.shape[3])


class Attention(nn.Module):
    """Weight-entangled self-attention; width, query heads, key-value heads and their width are elastic.

    With fewer key-value heads than query heads, neighboring query heads share one (grouped queries, Ainslie
    et al., EMNLP 2023): head h uses number `h // (heads // kv_heads)`.

    Example, in the `compact` method of a network whose residual stream has the width `embed`, with two
    choices: the number of key-value heads, and how many query heads share one:

        kv_heads = elastic.width(int, decisions["kv_heads"])
        heads = elastic.width(lambda kv, group: kv * group, decisions["kv_heads"], decisions["group"])
        attention = elastic.Attention(causal=True, name="attention")
        x = x + attention(x, embed, heads, kv_heads, elastic.fixed(64), mask)

    Attributes:
      causal: whether a token sees itself and earlier tokens only.
      dtype: of the computation; softmax and parameters are float32.
      kernel_init: initializer of the kernels; None for that of `flax.linen.MultiHeadDotProductAttention`.
    """

    causal: bool = False
    dtype: Any = jnp.float32
    kernel_init: Initializer | None = None

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        embed: Width,
        heads: Width,
        kv_heads: Width,
        head_dim: Width,
        mask: jax.Array | None = None,
        *,
        gate: Width | None = None,
        max_branches: int = 8,
    ) -> jax.Array:
        """Maps x [B, T, embed maximum] to the same shape, zero beyond the active width.

        Args:
          x: tokens with zeros beyond `embed`.
          embed: active channels of x.
          heads: number of query heads, in each architecture a multiple of `kv_heads`.
          kv_heads: number of heads of keys and values. Give `heads` again for one to each query head.
          head_dim: active channels of each head.
          mask: bool [B, T], which tokens may be seen, as those that are no padding; or [B, T, T], which
            tokens (last axis) a token (middle axis) may see. A token that sees none gets the bias of the
            projection. None lets all be seen.
          gate: 0 where the layer is skipped, which gives zeros.
          max_branches: see `run`. Each pair of numbers of heads has at least one branch.
        """
        self._check(heads, kv_heads)
        tokens = x.shape[1]
        visible = jnp.tri(tokens, dtype=bool)[None] if self.causal else jnp.ones((1, 1, tokens), bool)
        if mask is not None:
            visible = visible & (mask[:, None, :] if mask.ndim == 2 else mask)
        zeros, lecun = nn.initializers.zeros, nn.initializers.lecun_normal
        into_heads = self.kernel_init or lecun(in_axis=0, out_axis=(1, 2))
        out_of_heads = self.kernel_init or lecun(in_axis=(0, 1), out_axis=2)
        own = functools.partial(parameter, self, gate=gate)
        of = {"query": heads, "key": kv_heads, "value": kv_heads}
        kernels = [own(f"{name}_kernel", into_heads, (embed, n, head_dim)) for name, n in of.items()]
        biases = [own(f"{name}_bias", zeros, (n, head_dim)) for name, n in of.items()]
        kernel = own("out_kernel", out_of_heads, (heads, head_dim, embed))
        bias = own("out_bias", zeros, (embed,))

        def macs(e: int, h: int, k: int, d: int) -> int:
            return tokens * d * (2 * e * (h + k) + 2 * tokens * h)

        record_macs(self, gated_macs(gate, macs, embed, heads, kv_heads, head_dim))
        return run(
            _Attend(self.dtype),
            "batch tokens embed, ..., dim, embed heads dim, embed kv dim, embed kv dim, heads dim, kv dim, "
            "kv dim, heads dim embed, embed -> batch tokens embed",
            {"embed": embed, "heads": heads, "kv": kv_heads, "dim": head_dim},
            x,
            visible,
            jnp.ones(head_dim.maximum),
            *kernels,
            *biases,
            kernel,
            bias,
            gate=gate,
            maskable=("embed", "dim"),
            max_branches=max_branches,
        )

    def _check(self, heads: Width, kv_heads: Width) -> None:
        wrong = [(h, k) for h, k in joint(heads, kv_heads).rows if k == 0 or h % k]
        if wrong:
            raise ValueError(
                f"{self.name or type(self).__name__}: query heads must be a multiple of key-value heads in "
                f"every architecture; there is one with {wrong[0][0]} query heads and {wrong[0][1]} "
                "key-value heads. Make one width of both: elastic.width(lambda kv, group: kv * group, ...)."
            )

"""The blocks of a Transformer-XL: relative attention over a memory, feed-forward, identity.

Transformer-XL (Dai et al., ACL 2019, section 3): queries look at the memory of the segment before and at
their own segment, and positions enter the attention as distances only. All blocks have one interface, so
that a mixture can choose among them: `block(x, context, *, train) -> x`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from jaxnas.elastic.layers import LayerNorm, Norm, affine
from jaxnas.elastic.mixture import KEPT
from jaxnas.elastic.parameter import parameter, record_macs
from jaxnas.elastic.width import Width, constant, fixed


@flax.struct.dataclass
class Context:
    """The context of attention. T is the segment's length, M the memory's, S = M + T.

    Attributes:
      memory: inputs of this block in the past, [B, M, D].
      mask: whether query t may see key s, bool [B, T, S].
      positions: encoding of each distance from S - 1 down to 0, float32 [S, D].
    """

    memory: jax.Array
    mask: jax.Array
    positions: jax.Array


def causal_mask(queries: int, memory: int, same_length: bool = False) -> np.ndarray:
    """Whether query t sees key s, the keys beginning `memory` places earlier; bool [T, M + T].

    With `same_length` each query sees exactly `memory` keys, itself among them, as at evaluation.
    """
    distance = memory + np.arange(queries)[:, None] - np.arange(memory + queries)[None, :]
    seen = distance >= 0
    return seen & (distance < memory) if same_length else seen


def shift(scores: jax.Array) -> jax.Array:
    """From distances to keys: [..., T, 1 + S] -> [..., T, S], y[..., t, s] = x[..., t, T - t + s].

    The first column of x is not used, the others are the distances S - 1, ..., 0. Rows are joined and cut
    into rows one entry shorter, each a place further left. Beyond s = M + t the result has no meaning.
    """
    *lead, queries, columns = scores.shape
    flat = scores.reshape(*lead, queries * columns)[..., queries:]
    return flat.reshape(*lead, queries, columns - 1)


def _lean(block: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Keeps only what is named for the backward pass, and computes the rest of the block again.

    What is named are results of products with kernels. The rest is cheap to compute and large to keep:
    scores of attention above all.
    """
    return jax.checkpoint(block, policy=jax.checkpoint_policies.save_only_these_names(KEPT))


def _kept(x: jax.Array, unit: int) -> jax.Array:
    """Names x [B, n] as what the backward pass keeps, in pieces [B, unit].

    A mixture of blocks is a switch. It stores an array for whatever any of its blocks keeps, with zeros where
    that block did not run, and blocks that keep arrays of the same shape share one. So all blocks keep pieces
    of one shape: `unit` is the size of one row of a block's input. Rows stay apart: devices share them.
    """
    pieces = [checkpoint_name(x[:, i : i + unit], KEPT) for i in range(0, x.shape[1], unit)]
    return jnp.concatenate(pieces, axis=1)


def _drop(x: jax.Array, keep: jax.Array | None, rate: float) -> jax.Array:
    return x if keep is None else jnp.where(keep, x / (1 - rate), jnp.zeros_like(x))


def _normalize(norm: Norm, x: jax.Array) -> jax.Array:
    width = x.shape[-1]
    return norm(x.reshape(-1, width)).reshape(x.shape)


Keep = tuple[jax.Array | None, jax.Array | None]  # what dropout keeps within a branch, and of it


class _Block(nn.Module):
    """A block: dropout of the branch, the residual sum, and the place of the norm."""

    pre_norm: bool
    dropout: float
    dtype: Any
    init_std: float

    def weight(self, name: str, *widths: Width) -> jax.Array:
        """A kernel or, of one axis, a bias."""
        init = nn.initializers.normal(self.init_std) if len(widths) > 1 else nn.initializers.zeros
        return parameter(self, name, init, widths)

    def norm(self, width: int) -> Norm:
        return LayerNorm(dtype=self.dtype, name="norm")(None, fixed(width, "embed"))

    def keep(self, shape: tuple[int, ...], rate: float, train: bool) -> jax.Array | None:
        """The mask of dropout, bool; None keeps everything."""
        dropped = train and rate > 0
        return jax.random.bernoulli(self.make_rng("dropout"), 1 - rate, shape) if dropped else None

    def add(self, x: jax.Array, branch: jax.Array, keep: jax.Array | None, norm: Norm) -> jax.Array:
        if self.pre_norm:
            return x + _drop(branch, keep, self.dropout)
        rows = (x + _drop(branch, keep, self.dropout)).reshape(x.shape[0], -1)
        return _normalize(norm, _kept(rows, rows.shape[1]).reshape(x.shape))


class RelativeAttention(_Block):
    """Multi-head attention with relative positions over memory and segment (section 3.3).

    The score of query t and key s at distance d is `(q_t + u) . k_s + (q_t + v) . W r_d`, divided by
    the root of the heads' dimension.
    """

    num_heads: int
    head_dim: int
    attention_dropout: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array, context: Context, *, train: bool = False) -> jax.Array:
        """Maps x [B, T, D] to [B, T, D]."""
        batch, queries, width = x.shape
        inner, keys = self.num_heads * self.head_dim, context.mask.shape[-1]
        embed, heads = fixed(width, "embed"), fixed(inner, "heads")
        names = ("query", "key", "value", "position")
        kernels = {name: self.weight(f"{name}_kernel", embed, heads) for name in names}
        kernels["out"] = self.weight("out_kernel", heads, embed)
        biases = [self.weight(name, heads) for name in ("content_bias", "position_bias")]
        scores = (self.num_heads, batch, queries, keys)
        keep = self.keep(scores, self.attention_dropout, train), self.keep(x.shape, self.dropout, train)
        # The products that make queries and outputs; keys, values and encoded distances; scores of contents,
        # scores of distances and the weighted sum. The last line has those of the column that `shift` needs.
        macs = 2 * queries * width * inner + 3 * keys * width * inner + 3 * queries * keys * inner
        record_macs(self, constant(macs + (width + queries) * inner))
        return _lean(self._compute)(x, context, kernels, biases, self.norm(width), keep)

    def _compute(
        self,
        x: jax.Array,
        context: Context,
        kernels: dict[str, jax.Array],
        biases: list[jax.Array],
        norm: Norm,
        keep: Keep,
    ) -> jax.Array:
        batch, queries, width = x.shape
        keys, unit = context.mask.shape[-1], queries * width
        past = jnp.concatenate([context.memory.astype(x.dtype), x], axis=1)  # [B, S, D]
        if self.pre_norm:
            past = _normalize(norm, past)
        query = self._product(past[:, keys - queries :], kernels["query"], unit)
        key, value = (self._product(past, kernels[name], unit) for name in ("key", "value"))
        # A row of zeros in front becomes the unused first column that `shift` needs.
        encoded = jnp.pad(context.positions, [(1, 0), (0, 0)])
        distances = self._product(encoded[None], kernels["position"], unit)[:, 0]  # [H, 1 + S, d]
        # Queries are scaled in place of scores, and outputs divided by the sum in place of weights: queries
        # and outputs are smaller.
        scale = jnp.asarray(self.head_dim**-0.5, self.dtype)
        bias = [b.reshape(self.num_heads, 1, 1, self.head_dim) for b in biases]
        content, position = ((query + b.astype(self.dtype)) * scale for b in bias)  # [H, B, T, d]
        scores = jnp.einsum("hbtd,hbsd->hbts", content, key)
        rows = position.reshape(self.num_heads, batch * queries, self.head_dim)
        by_distance = jnp.einsum("hnd,hsd->hns", rows, distances)
        scores += shift(by_distance.reshape(*scores.shape[:3], keys + 1))
        scores = jnp.where(context.mask[None], scores.astype(jnp.float32), jnp.float32(-1e30))
        largest = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
        weights = jnp.exp(scores - largest)  # [H, B, T, S]
        total = jnp.sum(weights, axis=-1, keepdims=True)
        weights = _drop(weights.astype(self.dtype), keep[0], self.attention_dropout)
        attended = jnp.einsum("hbts,hbsd->hbtd", weights, value) / total.astype(self.dtype)
        attended = _kept(attended.transpose(1, 2, 0, 3).reshape(batch, -1), unit)
        kernel = kernels["out"].astype(self.dtype)
        out = attended.reshape(batch * queries, -1) @ kernel
        return self.add(x, out.reshape(x.shape), keep[1], norm)

    def _product(self, x: jax.Array, kernel: jax.Array, unit: int) -> jax.Array:
        """Heads of x [B, S, D]: [H, B, S, d]. Over flattened rows it is one plain matrix product."""
        y = x.reshape(-1, x.shape[-1]).astype(self.dtype) @ kernel.astype(self.dtype)
        y = _kept(y.reshape(x.shape[0], -1), unit)
        return y.reshape(*x.shape[:2], self.num_heads, self.head_dim).transpose(2, 0, 1, 3)


class FeedForward(_Block):
    """Two dense layers with a ReLU between."""

    hidden: int

    @nn.compact
    def __call__(self, x: jax.Array, context: Context, *, train: bool = False) -> jax.Array:
        """Maps x [B, T, D] to [B, T, D]."""
        batch, queries, width = x.shape
        embed, hidden = fixed(width, "embed"), fixed(self.hidden, "mlp")
        layers = [
            (self.weight("in_kernel", embed, hidden), self.weight("in_bias", hidden)),
            (self.weight("out_kernel", hidden, embed), self.weight("out_bias", embed)),
        ]
        shapes = (batch * queries, self.hidden), x.shape
        keep = self.keep(shapes[0], self.dropout, train), self.keep(shapes[1], self.dropout, train)
        record_macs(self, constant(2 * queries * width * self.hidden))
        return _lean(self._compute)(x, layers, self.norm(width), keep)

    def _compute(
        self, x: jax.Array, layers: list[tuple[jax.Array, jax.Array]], norm: Norm, keep: Keep
    ) -> jax.Array:
        batch, queries, width = x.shape
        rows = (_normalize(norm, x) if self.pre_norm else x).reshape(-1, width)
        rows = affine(rows, *layers[0], self.dtype)
        rows = _kept(rows.reshape(batch, -1), queries * width).reshape(rows.shape)
        rows = affine(_drop(jax.nn.relu(rows), keep[0], self.dropout), *layers[1], self.dtype)
        return self.add(x, rows.reshape(x.shape), keep[1], norm)


class Identity(nn.Module):
    """Leaves its input as it is."""

    @nn.compact
    def __call__(self, x: jax.Array, context: Context, *, train: bool = False) -> jax.Array:
        """Returns x."""
        return x

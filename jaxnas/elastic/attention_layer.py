"""Self-attention over tokens of any network: heads, groups of heads and the heads' width are elastic."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.elastic.attention import products, softmax_from
from jaxnas.elastic.layers import Initializer, affine
from jaxnas.elastic.parameter import gated_macs, parameter, record_macs
from jaxnas.elastic.switch import Keep, run
from jaxnas.elastic.width import Width, joint


@dataclasses.dataclass(frozen=True)
class _Attend:
    """Self-attention from x [B, T, E] to [B, T, E], a function for `run`.

    The other operands are what may be seen, bool [B or 1, T or 1, T]; ones [D]; kernels [E, H, D], [E, K, D]
    and [E, K, D] and biases [H, D], [K, D] and [K, D] of queries, keys and values; kernel [H, D, E] and bias
    [E] of the projection. Queries, keys and values, the attention weights [B, H, T, T] and the heads' outputs
    are kept for the backward pass.
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
        zeros = nn.initializers.zeros
        of = {"query": heads, "key": kv_heads, "value": kv_heads}
        lecun = nn.initializers.lecun_normal
        into_heads = self.kernel_init or lecun(in_axis=0, out_axis=(1, 2))
        out_of_heads = self.kernel_init or lecun(in_axis=(0, 1), out_axis=2)
        kernels = [
            parameter(self, f"{name}_kernel", into_heads, (embed, number, head_dim), gate=gate)
            for name, number in of.items()
        ]
        biases = [
            parameter(self, f"{name}_bias", zeros, (number, head_dim), gate=gate)
            for name, number in of.items()
        ]
        projection = (
            parameter(self, "out_kernel", out_of_heads, (heads, head_dim, embed), gate=gate),
            parameter(self, "out_bias", zeros, (embed,), gate=gate),
        )

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
            *projection,
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

"""NASViT's attention over the pixels of a map, whose heads talk to each other.

NASViT (Gong et al., ICLR 2022) has, beside plain attention: values that are several times as wide as queries
and pass a depthwise convolution, a bias by relative position, and dense layers over the heads before and
after the softmax (talking heads, Shazeer et al. 2020, arXiv 2003.02436).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.elastic.attention import products
from jaxnas.elastic.convolution import center, convolve
from jaxnas.elastic.layers import Initializer, affine, trunc_normal
from jaxnas.elastic.parameter import gated_macs, parameter, record_macs
from jaxnas.elastic.switch import Keep, run
from jaxnas.elastic.width import Width, fixed
from jaxnas.supernets.layers import relative_bias


def _talk(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """A dense layer over the heads of x [B, heads, T, T]."""
    y = jnp.einsum("bhqk,hg->bgqk", x, kernel.astype(x.dtype))
    return y + bias.astype(x.dtype)[None, :, None, None]


@dataclasses.dataclass(frozen=True)
class _Attend:
    """Attention from a map [B, H, W, E] to the same shape, a function for `run`.

    The other operands are the `relative_bias` of the heads; kernels [E, heads, D] and biases [heads, D] of
    queries, keys and values; the convolution [3, 3, heads, D] of the values; kernels [heads, heads] and
    biases [heads] before and after the softmax; kernel [heads, D, E] and bias [E] of the projection. Queries,
    keys and values are kept for the backward pass.
    """

    dtype: Any

    def __call__(self, x: jax.Array, positions: jax.Array, *weights: jax.Array, keep: Keep) -> jax.Array:
        *mappings, convolution, before, before_bias, after, after_bias, kernel, bias = weights
        batch, rows, columns, embed = x.shape
        heads, tokens = positions.shape[0], rows * columns
        queries, keys, values = (
            keep(affine(x.reshape(-1, embed), w.reshape(embed, -1), b.reshape(-1), self.dtype))
            for w, b in zip(mappings[:3], mappings[3:], strict=True)
        )  # [B * T, heads * D]
        values = values.reshape(batch, rows, columns, -1)
        static = (1, 1), ((1, 1), (1, 1)), values.shape[3]
        values = convolve(static, values, convolution.reshape(3, 3, 1, -1).astype(self.dtype))
        queries, keys, values = (
            y.reshape(batch, tokens, heads, -1).transpose(0, 2, 1, 3) for y in (queries, keys, values)
        )  # [B, heads, T, D]
        logits = products(queries * queries.shape[3] ** -0.5, keys)
        logits = logits + positions.reshape(1, heads, tokens, tokens)
        attention = jax.nn.softmax(_talk(logits, before, before_bias), axis=-1)
        attention = _talk(attention.astype(self.dtype), after, after_bias)
        y = (attention @ values).transpose(0, 2, 1, 3).reshape(batch * tokens, -1)
        y = affine(jax.nn.silu(y), kernel.reshape(-1, embed), bias, self.dtype)
        return y.reshape(x.shape)


class TalkingAttention(nn.Module):
    """Weight-entangled attention of NASViT; its width and, with that, its number of heads are elastic.

    Attributes:
      largest_map: rows and columns of the largest map that it can be called with, for which it has biases of
        relative positions; a smaller map uses those in the middle.
      value_expansion: how many times as wide values are as queries and keys.
      dtype: of the computation; softmax and parameters are float32.
      kernel_init: initializer of the kernels.
    """

    largest_map: int = 18
    value_expansion: int = 4
    dtype: Any = jnp.float32
    kernel_init: Initializer = trunc_normal

    @nn.compact
    def __call__(
        self, x: jax.Array, embed: Width, heads: Width, head_dim: int, *, gate: Width | None = None
    ) -> jax.Array:
        """Maps x [B, H, H, embed maximum] to the same shape, zero beyond the active width.

        Args:
          x: maps with zeros beyond `embed`, its active channels.
          heads, head_dim: number of heads, and channels of queries and keys in each.
          gate: 0 where the layer is skipped, which gives zeros.

        Raises:
          ValueError: a map that is larger than `largest_map`.
        """
        side = x.shape[1]
        if side > self.largest_map:
            raise ValueError(
                f"{self.name}: a map of {side} x {side} is larger than largest_map={self.largest_map}; give "
                "smaller images, or a larger largest_map."
            )
        value_dim, offsets = head_dim * self.value_expansion, fixed(2 * self.largest_map - 1)
        queries, values = (heads, fixed(head_dim)), (heads, fixed(value_dim))

        def declare(name: str, init: Initializer, *axes: Width) -> jax.Array:
            return parameter(self, name, init, axes, gate=gate)

        init, zeros, scaled = self.kernel_init, nn.initializers.zeros, nn.initializers.lecun_normal()
        of = {"query": queries, "key": queries, "value": values}
        table = declare("relative_bias", trunc_normal, offsets, offsets, heads)
        weights = [
            *(declare(f"{name}_kernel", init, embed, *axes) for name, axes in of.items()),
            *(declare(f"{name}_bias", zeros, *axes) for name, axes in of.items()),
            declare("value_convolution", scaled, fixed(3), fixed(3), *values),
            declare("before_kernel", scaled, heads, heads),
            declare("before_bias", zeros, heads),
            declare("after_kernel", scaled, heads, heads),
            declare("after_bias", zeros, heads),
            declare("out_kernel", init, *values, embed),
            declare("out_bias", zeros, embed),
        ]
        tokens = side**2

        def macs(e: int, h: int) -> int:
            dense = 2 * e * h * (head_dim + value_dim) + 9 * h * value_dim
            return tokens * (dense + tokens * h * (head_dim + value_dim + 2 * h))

        record_macs(self, gated_macs(gate, macs, embed, heads))
        axes = (
            "batch rows columns embed, heads rows columns rows columns, embed heads dim, embed heads dim, "
            "embed heads dim, heads dim, heads dim, heads dim, tall wide heads dim, heads heads, heads, "
            "heads heads, heads, heads dim embed, embed -> batch rows columns embed"
        )
        operands, options = (x, relative_bias(center(table, 2 * side - 1)), *weights), ("embed", "heads")
        sizes = {"embed": embed, "heads": heads}
        return run(_Attend(self.dtype), axes, sizes, *operands, gate=gate, maskable=options)

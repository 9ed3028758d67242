"""The blocks of a hybrid, and the layers that they are made of; `network` says what they are."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.elastic.attention import Attention
from jaxnas.elastic.convolution import Conv
from jaxnas.elastic.layers import LayerNorm, Mlp, SqueezeExcite, drop_branch
from jaxnas.elastic.normalization import BatchNorm
from jaxnas.elastic.parameter import parameter
from jaxnas.elastic.width import Decision, Width, fixed, width
from jaxnas.supernets.hybrid.talking_attention import TalkingAttention

Chosen = dict[str, Decision]  # the decisions of one block by their names, and "before", that of its input


@dataclasses.dataclass(frozen=True)
class Stage:
    """The stride of a stage's first block, and the settings of `Hybrid` that its blocks need."""

    stride: int = 2
    squeeze_of: Literal["input", "expanded"] = "input"
    shortcut: Literal["none", "pooled"] = "none"
    head_dim: int = 16
    largest_map: int = 18
    layer_scale: float = 1e-4

    def heads(self, channels: int, heads: int) -> tuple[int, int]:
        """The number of heads and the width of each."""
        return (heads, channels // heads) if heads else (channels // self.head_dim, self.head_dim)

    def squeezed(self, channels: int, expansion: float, share: float) -> int:
        """Hidden channels of squeeze-and-excitation; at least 1, also where there is none."""
        if self.squeeze_of == "input":
            return max(1, int(channels * share))
        return max(8, int(channels * expansion * share + 4) // 8 * 8)


def add_where(on: Width, y: jax.Array, x: jax.Array) -> jax.Array:
    """Adds x [..., n], as it is or cut or with zeros behind, to y [..., m] where `on` is 1."""
    if on.maximum == 0:
        return y
    missing = y.shape[-1] - x.shape[-1]
    x = jnp.pad(x[..., : y.shape[-1]], [(0, 0)] * (x.ndim - 1) + [(0, max(missing, 0))])
    return y + (x if on.is_fixed else x * on.mask(x.dtype)[0])


def pool(x: jax.Array, stride: int) -> jax.Array:
    """The averages of squares of pixels, [B, H, H, C] to [B, ceil(H / stride), ceil(H / stride), C].

    What is missing for the last square are zeros above and to the left, as PyTorch pads them.
    """
    missing = -x.shape[1] % stride
    x = jnp.pad(x, [(0, 0), (missing, 0), (missing, 0), (0, 0)]) if missing else x
    batch, rows, columns, channels = x.shape
    return x.reshape(batch, rows // stride, stride, columns // stride, stride, channels).mean(axis=(2, 4))


class ConvNorm(nn.Module):
    """A convolution, batch normalization and, if given, an activation."""

    train: bool
    stride: int = 1
    depthwise: bool = False
    activation: Callable[[jax.Array], jax.Array] | None = None
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, x: jax.Array, width_in: Width, width_out: Width, size: Width, gate: Width | None = None
    ) -> jax.Array:
        """Maps images [B, H, W, in maximum] to [B, H / stride, W / stride, out maximum]."""
        form = dict(symmetric=True, use_bias=False, dtype=self.dtype)
        convolve = Conv((self.stride, self.stride), self.depthwise, **form, name="conv")
        x = convolve(x, width_in, width_out, size, gate=gate)
        norm = BatchNorm(activation=self.activation, dtype=self.dtype, name="norm")
        return norm(x, width_out, train=self.train, gate=gate)


class Block(nn.Module):
    """A block: a place in a stage, and a branch that may be dropped."""

    stage: Stage
    place: int  # in the stage; the first sets the size and the width
    train: bool
    drop_path_rate: float = 0.0
    dtype: Any = jnp.float32

    @property
    def stride(self) -> int:
        """Of this block."""
        return self.stage.stride if self.place == 0 else 1

    def gate(self, chosen: Chosen) -> Width:
        """0 where the block is beyond the depth of its stage."""
        return width(lambda depth: int(self.place < depth), chosen["depth"])

    def downsampled(self, x: jax.Array, chosen: Chosen, embed: Width) -> jax.Array:
        """The input of attention, which in the first block of a stage a convolution makes."""
        if self.place:
            return x
        size = fixed(3 if self.stride > 1 else 1)
        layer = ConvNorm(self.train, self.stride, dtype=self.dtype, name="downsample")
        return layer(x, width(int, chosen["before"]), embed, size)

    def drop(self, y: jax.Array) -> jax.Array:
        """A branch y [B, ...], dropped for some examples in training; never in a stage's first block."""
        drops = self.train and self.drop_path_rate and self.place  # without a shortcut nothing would be left
        return drop_branch(self, y, self.drop_path_rate) if drops else y


class MBConv(Block):
    """An inverted residual block; `fused` makes one dense convolution of its first two."""

    fused: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, *, chosen: Chosen) -> jax.Array:
        """Maps images [B, H, W, in maximum] to [B, H / stride, W / stride, out maximum]."""
        before, after, expansion = chosen["before"], chosen["width"], chosen["expansion"]
        width_in, width_out, one = width(int, before), width(int, after), fixed(1)
        gate, kernel = self.gate(chosen), width(int, chosen["kernel"])
        # With an expansion of 1 nothing is expanded, and a fused block is its one convolution.
        expands = width(lambda d, e: int(self.place < d and e != 1), chosen["depth"], expansion)
        plain = width(lambda e: int(e == 1), expansion)
        # Where nothing is expanded, the inner channels are those of the input, which no layer may sort alone.
        axis = "mlp" if not plain.maximum else None
        make = functools.partial(ConvNorm, self.train, dtype=self.dtype)
        active = functools.partial(make, activation=jax.nn.silu)
        if self.fused:
            inner = width(lambda i, o, e: o if e == 1 else int(i * e), before, after, expansion, axis=axis)
            y = active(self.stride, name="expand")(x, width_in, inner, kernel, gate)
        else:
            inner, y = width(lambda i, e: int(i * e), before, expansion, axis=axis), x
            if expands.maximum:
                y = add_where(plain, active(name="expand")(x, width_in, inner, one, expands), x)
            y = active(self.stride, depthwise=True, name="depthwise")(y, inner, inner, kernel, gate)
        y = self._squeeze(y, inner, chosen)
        if not self.fused:
            y = make(name="project")(y, inner, width_out, one, gate)
        elif expands.maximum:
            y = add_where(plain, make(name="project")(y, inner, width_out, one, expands), y)
        return self._shortcut(x, self.drop(y), chosen)

    def _squeeze(self, y: jax.Array, inner: Width, chosen: Chosen) -> jax.Array:
        on = width(lambda d, s: int(self.place < d and s > 0), chosen["depth"], chosen["squeeze"])
        hidden = width(self.stage.squeezed, chosen["before"], chosen["expansion"], chosen["squeeze"])
        layer = SqueezeExcite(jax.nn.silu, self.dtype, name="squeeze")
        return layer(y, inner, hidden, gate=on) if on.maximum else y

    def _shortcut(self, x: jax.Array, y: jax.Array, chosen: Chosen) -> jax.Array:
        before, after = chosen["before"], chosen["width"]
        pooled = self.stage.shortcut == "pooled"
        if self.stride > 1 and not pooled:
            return y
        x = pool(x, self.stride) if self.stride > 1 else x
        y = add_where(width(lambda i, o: int(i == o), before, after), y, x)
        changes = width(lambda i, o: int(i != o), before, after)
        if not pooled or not changes.maximum:
            return y
        layer = Conv(use_bias=False, dtype=self.dtype, name="shortcut")
        return y + layer(x, width(int, before), width(int, after), fixed(1), gate=changes)


class Transformer(Block):
    """A pre-norm Transformer block over the pixels; the first of a stage has a convolution before it."""

    @nn.compact
    def __call__(self, x: jax.Array, *, chosen: Chosen) -> jax.Array:
        """Maps images [B, H, W, in maximum] to [B, H / stride, W / stride, out maximum]."""
        embed, gate = width(int, chosen["width"], axis="embed"), self.gate(chosen)
        of_heads = chosen["width"], chosen["heads"]
        heads = width(lambda c, h: self.stage.heads(c, h)[0], *of_heads, axis="heads")
        head_dim = width(lambda c, h: self.stage.heads(c, h)[1], *of_heads)
        hidden = width(lambda c, r: int(c * r), chosen["width"], chosen["mlp_ratio"], axis="mlp")
        x = self.downsampled(x, chosen, embed)
        positions = Conv(depthwise=True, symmetric=True, dtype=self.dtype, name="positions")
        x = x + positions(x, embed, embed, fixed(3), gate=gate)
        shape = x.shape
        x = x.reshape(shape[0], -1, shape[3])  # [B, T, C]
        kernel_init = nn.initializers.normal(embed.maximum**-0.5)
        attention = Attention(dtype=self.dtype, kernel_init=kernel_init, name="attention")
        normed = LayerNorm(dtype=self.dtype, name="attention_norm")(x, embed, gate=gate)
        x = x + self.drop(attention(normed, embed, heads, heads, head_dim, gate=gate))
        norm = LayerNorm(dtype=self.dtype, name="mlp_norm")(None, embed, gate=gate)
        mlp = Mlp(dtype=self.dtype, kernel_init=kernel_init, name="mlp")
        x = x + self.drop(mlp(x, embed, hidden, gate=gate, norm=norm))
        return x.reshape(shape)


class NasvitBlock(Block):
    """NASViT's block: attention with talking heads, and two MLPs; see `TalkingAttention`."""

    @nn.compact
    def __call__(self, x: jax.Array, *, chosen: Chosen) -> jax.Array:
        """Maps images [B, H, W, in maximum] to [B, H / stride, W / stride, out maximum]."""
        embed, gate, dtype = width(int, chosen["width"], axis="embed"), self.gate(chosen), self.dtype
        heads = width(lambda c: c // self.stage.head_dim, chosen["width"], axis="heads")
        hidden = width(lambda c, r: int(c * r), chosen["width"], chosen["mlp_ratio"], axis="mlp")
        x = self.downsampled(x, chosen, embed)
        init = nn.initializers.normal(embed.maximum**-0.5)
        attention = TalkingAttention(self.stage.largest_map, dtype=dtype, kernel_init=init, name="attention")
        normed = LayerNorm(dtype=dtype, name="attention_norm")(x, embed, gate=gate)
        y = attention(normed, embed, heads, self.stage.head_dim, gate=gate)
        x = x + self._scaled("attention", y, embed, gate, chosen)
        for name in ("mlp_1", "mlp_2"):
            norm = LayerNorm(dtype=dtype, name=f"{name}_norm")(None, embed, gate=gate)
            mlp = Mlp(dtype=dtype, kernel_init=init, activation=jax.nn.silu, name=name)
            x = x + self._scaled(name, mlp(x, embed, hidden, gate=gate, norm=norm), embed, gate, chosen)
        return x

    def _scaled(self, name: str, y: jax.Array, embed: Width, gate: Width, chosen: Chosen) -> jax.Array:
        """A branch y [B, H, W, embed maximum], with the factor of its channels at this depth and width."""
        init, each = nn.initializers.constant(self.stage.layer_scale), (width(int, chosen["depth"]), embed)
        scale = parameter(self, f"{name}_scale", init, (embed,), gate=gate, options=each)
        return self.drop(y * scale.astype(y.dtype)[None, None, None])


ATTENTION = {"transformer": Transformer, "nasvit": NasvitBlock}  # the kinds that have heads

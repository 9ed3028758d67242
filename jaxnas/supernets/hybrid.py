"""A supernet whose blocks are convolutions or Transformer blocks, as the architecture says.

A network is a stem, stages of blocks, and a head. The first block of a stage sets its width and its size,
and the others are residual. A block is one of four:

* "mbconv": expand, convolve depthwise, project (MobileNetV2, Sandler et al., CVPR 2018, section 3.3), with
  squeeze-and-excitation or without.
* "fused_mbconv": the first two as one dense convolution (EfficientNetV2, Tan and Le, ICML 2021, section 3.2).
* "transformer": pre-norm attention and MLP (Dosovitskiy et al., ICLR 2021, section 3.1) over the pixels. A
  depthwise convolution tells their positions (Chu et al., ICLR 2023, section 3.3), at any resolution.
* "nasvit": NASViT's attention and two MLPs (Gong et al., ICLR 2022), each with a learned factor for every
  channel, which each depth and width of the stage has of its own.

The decisions of stage 3 are `width_3`, `depth_3` and `block_3`, and those of its blocks that a space has:
`kernel_3`, `expansion_3`, `squeeze_3`, `heads_3` and `mlp_ratio_3`, each one for all blocks or one for each.
Beside them are `width_stem`, `width_head` and, if a space has it, `resolution`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.checks import check_counts, check_numbers
from jaxnas.elastic.attention import Attention
from jaxnas.elastic.convolution import Conv
from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.layers import Dense, LayerNorm, Mlp, SqueezeExcite, drop_branch
from jaxnas.elastic.loop import run_layer
from jaxnas.elastic.mixture import Mixture
from jaxnas.elastic.normalization import BatchNorm
from jaxnas.elastic.parameter import parameter
from jaxnas.elastic.width import Decision, Width, fixed, width
from jaxnas.space import Arch, Space
from jaxnas.supernets.schema import (
    Needs,
    check_decisions,
    check_fit,
    check_images,
    check_multiple,
    check_values,
)
from jaxnas.supernets.talking_attention import TalkingAttention

KINDS = ("mbconv", "fused_mbconv", "transformer", "nasvit")
# What is taken where a space does not choose it; 0 heads are as many as `head_dim` makes.
DEFAULTS = {"kernel": 3, "expansion": 4, "squeeze": 0, "heads": 0, "mlp_ratio": 4}
Chosen = dict[str, Decision]  # the decisions of one block by their names, and "before", that of its input


@dataclasses.dataclass(frozen=True)
class Stage:
    """The fixed settings of a stage; see `Hybrid`, whose attributes these are.

    Attributes:
      stride: of its first block.
      squeeze_of, shortcut, head_dim, largest_map, layer_scale: the same for all stages.
    """

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


# What is fixed of the networks in the spaces of `jaxnas.spaces`: Hybrid(spaces.alphanet(), 1000, **ALPHANET).
_ATTENTIVE = {"squeeze_of": "expanded", "shortcut": "pooled", "head_expansion": 6}
SMALL: dict[str, Any] = {"strides": (1, 2, 1)}
EFFICIENTNETV2: dict[str, Any] = {"strides": (1, 2, 2, 2, 1, 2)}
ALPHANET: dict[str, Any] = {"strides": (1, 2, 2, 2, 1, 2, 1)} | _ATTENTIVE
NASVIT: dict[str, Any] = {"strides": (1, 2, 2, 2, 2, 1, 2), "head_dim": 8, "odd_maps": "padded"} | _ATTENTIVE


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
        strides, form = (self.stride, self.stride), dict(symmetric=True, use_bias=False, dtype=self.dtype)
        x = Conv(strides, self.depthwise, **form, name="conv")(x, width_in, width_out, size, gate=gate)
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
        """The input of attention, [B, H, W, in maximum] to [B, H / stride, W / stride, embed maximum].

        The first block of a stage begins with a convolution; all others take x itself.
        """
        if self.place:
            return x
        size = fixed(3 if self.stride > 1 else 1)
        layer = ConvNorm(self.train, self.stride, dtype=self.dtype, name="downsample")
        return layer(x, width(int, chosen["before"]), embed, size)

    def drop(self, y: jax.Array) -> jax.Array:
        """A branch y [B, ...], without that of some examples in training.

        The first block of a stage keeps all of it: where that has no shortcut, nothing would be left.
        """
        if not self.train or not self.drop_path_rate or self.place == 0:
            return y
        return drop_branch(self, y, self.drop_path_rate)


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
        squeeze, before, expansion = chosen["squeeze"], chosen["before"], chosen["expansion"]
        on = width(lambda d, s: int(self.place < d and s > 0), chosen["depth"], squeeze)
        hidden = width(self.stage.squeezed, before, expansion, squeeze)
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


class Resized(nn.Module):
    """A network on images of one resolution."""

    resolution: int
    net: nn.Module

    def __call__(self, images: jax.Array, arch: Arch | None, *, train: bool) -> jax.Array:
        """Logits of images [B, H, W, C], which are brought to the resolution."""
        return self.net(resize(images, self.resolution), arch, train=train)


def resize(images: jax.Array, size: int) -> jax.Array:
    """Bilinear interpolation of images [B, H, W, C] to [B, size, size, C], pixel centers half a pixel in.

    By look-ups: matrix products, as `jax.image.resize` has them, would count among a network's own.
    """
    for axis in (1, 2):
        count = images.shape[axis]
        if count == size:
            continue
        place = np.clip((np.arange(size) + 0.5) * count / size - 0.5, 0, count - 1)
        low = np.minimum(place.astype(np.int32), count - 1)
        share = (place - low).reshape([-1 if i == axis else 1 for i in range(4)])
        near, far = (jnp.take(images, at, axis=axis) for at in (low, np.minimum(low + 1, count - 1)))
        images = near + (far - near) * jnp.asarray(share, images.dtype)
    return images


class Hybrid(nn.Module):
    """A supernet of stages of MBConv, Fused-MBConv and Transformer blocks.

    With a space of a single architecture it is that plain network, which is what `jaxnas.extract` returns.
    Batch statistics belong to an architecture: `jaxnas.calibrate` makes them. Activations are SiLU, and GELU
    in the MLP of Transformer blocks.

    Attributes:
      space: the search space, see the beginning of this file; `spaces.hybrid` makes one.
      num_classes: logits.
      strides: of the first block of each stage.
      stem_stride: of the convolution in front of the stages.
      squeeze_of: whether the hidden width of squeeze-and-excitation is a share of the channels of the block's
        "input" (EfficientNet), or of its "expanded" ones, to the nearest multiple of 8 (AttentiveNAS).
      shortcut: what is added to a convolutional block that changes width or size: "none", or its input,
        "pooled" to the new size by averages and mapped to a new width by a 1 x 1 convolution (AttentiveNAS).
      head_dim: channels of an attention head in the stages without a choice of the number of heads. NASViT's
        blocks have no such choice.
      largest_map: rows and columns of the largest map that one of NASViT's blocks sees, for which it stores
        the biases of relative positions; NASViT has 18, for 288 pixels.
      layer_scale: what the factors of NASViT's blocks begin with.
      odd_maps: whether a map that a stride does not divide is "refused", or "padded" by zeros, as NASViT's
        of 224 and 288 pixels are.
      head_expansion: 0 for a head that is a 1 x 1 convolution to `width_head`, averaged over the pixels. A
        number for one that expands the channels so many times, averages, and then maps them to `width_head`
        by a dense layer (MobileNetV3, Howard et al., ICCV 2019, section 5.1).
      drop_path_rate: stochastic depth of the last stored block, rising linearly from 0 at the first. That of
        the first block of each stage is 0.
      dtype: of the computation, float32 or bfloat16; parameters and batch statistics are float32.
      remat: compute each block again in the backward pass, and keep its input only.
    """

    space: Space
    num_classes: int
    strides: tuple[int, ...]
    stem_stride: int = 2
    squeeze_of: Literal["input", "expanded"] = "input"
    shortcut: Literal["none", "pooled"] = "none"
    head_dim: int = 16
    largest_map: int = 18
    layer_scale: float = 1e-4
    odd_maps: Literal["refused", "padded"] = "refused"
    head_expansion: int = 0
    drop_path_rate: float = 0.0
    dtype: Any = jnp.float32
    remat: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self)

    @nn.compact
    def __call__(self, images: jax.Array, arch: Arch | None = None, *, train: bool = False) -> jax.Array:
        """Classifies images with the sub-network `arch`.

        Args:
          images: float [B, R, R, channels]; at the largest of the resolutions, if there is a choice of them.
          arch: architecture of the space, hard or soft; not needed if the space has only one.
          train: whether to use the batch's statistics and drop path, which needs the "dropout" stream.

        Returns:
          float32 logits [B, num_classes].
        """
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        if "resolution" in self.space:
            return self._at_resolution(images, decisions, train)
        check_images("Hybrid", images, multiple=self.divisor)
        active = functools.partial(ConvNorm, train, activation=jax.nn.silu, dtype=self.dtype)
        channels = width(int, decisions["width_stem"])
        stem = active(self.stem_stride, name="stem")
        x = stem(images, fixed(images.shape[3]), channels, fixed(3))  # [B, H, W, C]
        for i, (stage, place) in enumerate(self.places):
            rate = self.drop_path_rate * i / max(len(self.places) - 1, 1)
            make = functools.partial(self._block, stage, place, train, rate)
            kind, chosen = self._chosen(decisions, stage, place)
            blocks = {name: make(name) for name in kind.options}
            mixture = Mixture(blocks, name=f"stage_{stage}_{place}")
            x = run_layer(functools.partial(_call, kind, chosen), mixture, x, remat=self.remat)
        last, head = width(int, decisions[f"width_{len(self.strides)}"]), width(int, decisions["width_head"])
        if self.head_expansion:
            inner = width(lambda c: c * self.head_expansion, decisions[f"width_{len(self.strides)}"])
            x = active(name="head_expand")(x, last, inner, fixed(1)).mean(axis=(1, 2))  # [B, C]
            x = jax.nn.silu(self._dense("head")(x, inner, head))
        else:
            x = active(name="head")(x, last, head, fixed(1)).mean(axis=(1, 2))  # [B, C]
        classes = fixed(self.num_classes, "classes")
        return self._dense("classifier")(x, head, classes, max_branches=1).astype(jnp.float32)

    @property
    def divisor(self) -> int:
        """The number that divides a resolution."""
        return math.prod((self.stem_stride, *self.strides)) if self.odd_maps == "refused" else 1

    @property
    def places(self) -> list[tuple[int, int]]:
        """Of every stored block the number of its stage, from 1, and its place in it, from 0."""
        depths = [int(self.space[f"depth_{i}"].table.max()) for i in range(1, len(self.strides) + 1)]
        return [(i, place) for i, depth in enumerate(depths, 1) for place in range(depth)]

    def _at_resolution(self, images: jax.Array, decisions: Decisions, train: bool) -> jax.Array:
        """Logits at the resolution that is chosen: one body, with the same parameters, for each of them."""
        check_images("Hybrid", images)
        rest = Space(**{name: self.space[name] for name in self.space if name != "resolution"})
        body = self.clone(space=rest, parent=self, name="body")
        arch = {name: value for name, value in decisions.arch.items() if name != "resolution"}
        sizes: tuple[Any, ...] = self.space["resolution"].options
        at = {size: Resized(size, body) for size in sizes}
        return Mixture(at, name="resolution")(decisions["resolution"], images, arch, train=train)

    def _chosen(self, decisions: Decisions, stage: int, place: int) -> tuple[Decision, Chosen]:
        """The kind of a block, and its other decisions."""

        def of_block(name: str) -> Decision:
            key = f"{name}_{stage}"
            if key not in self.space:
                return Decision((key, None), (DEFAULTS[name],), np.zeros((), np.int32))
            return decisions[key] if self.space[key].length is None else decisions[key, place]

        before = stage if place else stage - 1
        chosen = {name: of_block(name) for name in ("width", "depth", *DEFAULTS)}
        return of_block("block"), chosen | {"before": decisions[f"width_{before or 'stem'}"]}

    def _block(self, stage: int, place: int, train: bool, rate: float, kind: str) -> nn.Module:
        common = self.squeeze_of, self.shortcut, self.head_dim
        form = Stage(self.strides[stage - 1], *common, self.largest_map, self.layer_scale)
        given = form, place, train, rate, self.dtype
        if kind in ATTENTION:
            return ATTENTION[kind](*given, parent=None)
        return MBConv(*given, fused=kind == "fused_mbconv", parent=None)

    def _dense(self, name: str) -> Dense:
        return Dense(kernel_init=nn.initializers.lecun_normal(), dtype=self.dtype, name=name)


def _call(kind: Decision, chosen: Chosen, mixture: Mixture, x: jax.Array) -> jax.Array:
    return mixture(kind, x, chosen=chosen)


def check(net: Hybrid) -> None:
    """Checks the attributes of a network and its space."""
    if not isinstance(net.strides, tuple) or not net.strides:
        raise TypeError(f"Hybrid: strides is {net.strides!r}, expected a tuple with that of each stage.")
    if min(net.strides) < 1:
        raise ValueError(f"Hybrid: strides is {net.strides}, expected numbers of at least 1.")
    check_counts(net, "num_classes", "stem_stride", "head_dim", "largest_map")
    check_counts(net, "head_expansion", least=0)
    check_numbers(net, "drop_path_rate", least=0, below=1)
    check_values(
        net,
        squeeze_of=("input", "expanded"),
        shortcut=("none", "pooled"),
        odd_maps=("refused", "padded"),
    )
    needs = {"width_stem": Needs(), "width_head": Needs(), "resolution": Needs(optional=True)}
    for i in range(1, len(net.strides) + 1):
        needs |= {f"{name}_{i}": one for name, one in _needs(f"depth_{i}").items()}
    check_decisions("Hybrid", net.space, needs, "jaxnas.spaces.hybrid_small()")
    for i in range(1, len(net.strides) + 1):
        _check_heads(net.space, i, net.head_dim)
    for resolution in net.space["resolution"].options if "resolution" in net.space else ():
        check_multiple("Hybrid: the resolution", int(resolution), net.divisor)


def _needs(depth: str) -> dict[str, Needs]:
    """The needs of a stage, whose number of blocks is this decision.

    The first block sets width and size, so there is at least one.
    """
    least = {"kernel": 1, "expansion": 1, "squeeze": 0, "heads": 1, "mlp_ratio": 0.01}
    whole = {"kernel", "heads"}
    of_block = {
        name: Needs(least=at, whole=name in whole, times=depth, shared=True, optional=True)
        for name, at in least.items()
    }
    block = Needs(KINDS, times=depth, shared=True)
    return {"width": Needs(), "depth": Needs(), "block": block, **of_block}


def _check_heads(space: Space, i: int, head_dim: int) -> None:
    """Checks that the heads of a stage share its channels."""
    kinds, heads, width = space[f"block_{i}"].options, f"heads_{i}", f"width_{i}"
    if "nasvit" in kinds and heads in space:
        raise ValueError(f"Hybrid: {heads!r} has no meaning for blocks 'nasvit', whose heads head_dim sets.")
    if heads in space and "transformer" in kinds:
        check_fit("Hybrid", space, [width, heads], lambda c, h: c % h == 0, "widths that the heads divide")
    elif ATTENTION.keys() & set(kinds):
        expected = f"multiples of head_dim={head_dim}"
        check_fit("Hybrid", space, [width], lambda c: c % head_dim == 0, expected)

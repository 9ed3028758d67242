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

import functools
import math
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.checks import check_counts, check_numbers
from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.layers import Dense
from jaxnas.elastic.loop import run_layer
from jaxnas.elastic.mixture import Mixture
from jaxnas.elastic.width import Decision, fixed, width
from jaxnas.space import Arch, Space
from jaxnas.supernets import schema
from jaxnas.supernets.hybrid.blocks import ATTENTION, Chosen, ConvNorm, MBConv, Stage

KINDS = ("mbconv", "fused_mbconv", "transformer", "nasvit")
# What is taken where a space does not choose it; 0 heads are as many as `head_dim` makes.
DEFAULTS = {"kernel": 3, "expansion": 4, "squeeze": 0, "heads": 0, "mlp_ratio": 4}

# What is fixed of the networks in the spaces of `jaxnas.spaces`: Hybrid(spaces.alphanet(), 1000, **ALPHANET).
_ATTENTIVE = {"squeeze_of": "expanded", "shortcut": "pooled", "head_expansion": 6}
SMALL: dict[str, Any] = {"strides": (1, 2, 1)}
EFFICIENTNETV2: dict[str, Any] = {"strides": (1, 2, 2, 2, 1, 2)}
ALPHANET: dict[str, Any] = {"strides": (1, 2, 2, 2, 1, 2, 1)} | _ATTENTIVE
NASVIT: dict[str, Any] = {"strides": (1, 2, 2, 2, 2, 1, 2), "head_dim": 8, "odd_maps": "padded"} | _ATTENTIVE


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
      head_dim: channels of an attention head where there is no choice of the number of heads, as in NASViT's.
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
        schema.check_images("Hybrid", images, multiple=self.divisor)
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
        schema.check_images("Hybrid", images)
        rest = Space(**{name: choice for name, choice in self.space.choices.items() if name != "resolution"})
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
        common = self.squeeze_of, self.shortcut, self.head_dim, self.largest_map, self.layer_scale
        given = Stage(self.strides[stage - 1], *common), place, train, rate, self.dtype
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
    of_kinds = dict(squeeze_of=("input", "expanded"), shortcut=("none", "pooled"))
    schema.check_values(net, **of_kinds, odd_maps=("refused", "padded"))
    needs = {"resolution": schema.Needs(optional=True)}
    needs |= dict.fromkeys(("width_stem", "width_head"), schema.Needs())
    stages = range(1, len(net.strides) + 1)
    for i in stages:
        needs |= _needs(i)
    schema.check_decisions("Hybrid", net.space, needs, "jaxnas.spaces.hybrid_small()")
    for i in stages:
        _check_heads(net.space, i, net.head_dim)
    for resolution in net.space["resolution"].options if "resolution" in net.space else ():
        schema.check_multiple("Hybrid: the resolution", int(resolution), net.divisor)


def _needs(i: int) -> dict[str, schema.Needs]:
    """The needs of stage i, which has a block at least, since the first one sets width and size."""
    of_block = functools.partial(schema.Needs, times=f"depth_{i}", shared=True)
    needs = {"width": schema.Needs(), "depth": schema.Needs(), "block": of_block(KINDS)}
    for name, least in {"kernel": 1, "expansion": 1, "squeeze": 0, "heads": 1, "mlp_ratio": 0.01}.items():
        needs[name] = of_block(least=least, whole=name in ("kernel", "heads"), optional=True)
    return {f"{name}_{i}": one for name, one in needs.items()}


def _check_heads(space: Space, i: int, head_dim: int) -> None:
    """Checks that the heads of a stage share its channels."""
    kinds, heads, width = space[f"block_{i}"].options, f"heads_{i}", f"width_{i}"
    if "nasvit" in kinds and heads in space:
        raise ValueError(f"Hybrid: {heads!r} has no meaning for blocks 'nasvit', whose heads head_dim sets.")
    if heads in space and "transformer" in kinds:
        divides = "widths that the heads divide"
        schema.check_fit("Hybrid", space, [width, heads], lambda c, h: c % h == 0, divides)
    elif ATTENTION.keys() & set(kinds):
        expected = f"multiples of head_dim={head_dim}"
        schema.check_fit("Hybrid", space, [width], lambda c: c % head_dim == 0, expected)

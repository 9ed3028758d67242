"""Networks for pictures, rows and texts that no paper's system has; they train on small data in minutes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.checks import check_counts, check_numbers
from jaxnas.elastic.convolution import Conv
from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.layers import Dense, LayerNorm, Mlp
from jaxnas.elastic.width import Width, fixed, width
from jaxnas.space import Arch, Space, check_space
from jaxnas.supernets import layers
from jaxnas.supernets.schema import Needs, check_decisions
from jaxnas.transform.declared import Declared
from jaxnas.transform.places import Place


class ConvBlock(nn.Module):
    """A residual block of a stage."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, channels: Width, kernel: Width, gate: Width) -> jax.Array:
        """Maps x [B, H, W, channels maximum] to the same shape; nothing of it runs where `gate` is 0."""
        y = Conv(dtype=self.dtype, name="spatial")(nn.relu(x), channels, channels, kernel, gate=gate)
        last = Conv(kernel_init=nn.initializers.zeros, dtype=self.dtype, name="pointwise")
        return x + last(nn.relu(y), channels, channels, fixed(1), gate=gate)


class ConvNet(nn.Module):
    """A supernet of residual convolutional networks, over a space with the choices of each stage.

    Pre-activation blocks (He et al., ECCV 2016) without normalization, whose last convolution starts at zero
    (as in Fixup, Zhang et al., ICLR 2019), and the maximum over all places before the classifier: on some
    hundred to thousand pictures they learn in fewer steps than averages and normalizations do.

    Stage i, from 1 on, has `depth_i` blocks of `width_i` channels, and each block its own `kernel_i`; see
    `jaxnas.spaces.convnet`. A convolution of 3 x 3 leads into each stage and halves height and width; that of
    the first stage does so for images of at least 24 x 24 only.

    Attributes:
      space: the search space.
      num_classes: logits.
      dropout: of the channels before the classifier.
      dtype: of the computation, float32 or bfloat16; parameters are float32.
    """

    space: Space
    num_classes: int
    dropout: float = 0.0
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "num_classes")
        check_numbers(self, "dropout", least=0, below=1)
        check_space(self.space, "ConvNet")
        needs = {}
        for i in range(1, max(self.stages, 1) + 1):
            needs |= {f"width_{i}": Needs(), f"depth_{i}": Needs(least=0)}
            needs[f"kernel_{i}"] = Needs(times=f"depth_{i}")
        check_decisions("ConvNet", self.space, needs, "jaxnas.spaces.convnet(...)")

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len([name for name in self.space.choices if name.startswith("width_")])

    @nn.compact
    def __call__(self, images: jax.Array, arch: Arch | None = None, *, train: bool = False) -> jax.Array:
        """Classifies images.

        Args:
          images: float [B, H, W, channels].
          arch: architecture of the space; not needed if the space has only one.
          train: whether dropout is on (needs the "dropout" random stream).

        Returns:
          Logits, float32 [B, num_classes].
        """
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        x, before = images, fixed(images.shape[-1])
        for stage in range(1, self.stages + 1):
            channels = width(int, decisions[f"width_{stage}"])
            strides = (1, 1) if stage == 1 and min(x.shape[1:3]) < 24 else (2, 2)
            x = Conv(strides, dtype=self.dtype, name=f"into_{stage}")(x, before, channels, fixed(3))
            for i in range(int(self.space[f"depth_{stage}"].table.max())):
                gate = width(lambda depth, i=i: int(i < depth), decisions[f"depth_{stage}"])
                kernel = width(int, decisions[f"kernel_{stage}", i])
                x = ConvBlock(self.dtype, name=f"stage_{stage}_block_{i}")(x, channels, kernel, gate)
            before, x = channels, nn.relu(x)
        x = nn.Dropout(self.dropout, deterministic=not train)(x.max(axis=(1, 2)))
        return Dense(name="head")(x, before, fixed(self.num_classes)).astype(jnp.float32)


class TableMlp(nn.Module):
    """A residual MLP over a space with `width`, `depth` and `hidden`, see `spaces.mlp`.

    Blocks of a layer normalization and an MLP are added to a residual stream, as in the ResNet for tables of
    Gorishniy et al. (NeurIPS 2021, section 3.2).

    Attributes:
      space: the search space.
      num_outputs: logits, or 1 for a regression.
      dropout: of the result of each block in training.
      dtype: of the computation, float32 or bfloat16; parameters are float32.
    """

    space: Space
    num_outputs: int
    dropout: float = 0.0
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "num_outputs")
        check_numbers(self, "dropout", least=0, below=1)
        needs = {"width": Needs(), "depth": Needs(), "hidden": Needs(times="depth")}
        check_decisions("TableMlp", self.space, needs, "jaxnas.spaces.mlp((16, 32))")

    @nn.compact
    def __call__(self, rows: jax.Array, arch: Arch | None = None, *, train: bool = False) -> jax.Array:
        """Maps rows to outputs with the sub-network `arch`.

        Args:
          rows: float [B, F].
          arch: architecture of the space, hard or soft; not needed if the space has only one.
          train: whether dropout is on (needs the "dropout" random stream).

        Returns:
          float32 [B, num_outputs].
        """
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        channels = width(int, decisions["width"], axis="embed")
        x = Dense(dtype=self.dtype, name="in")(rows, fixed(rows.shape[-1]), channels)
        for i in range(int(self.space["depth"].table.max())):
            gate = width(lambda depth, i=i: int(i < depth), decisions["depth"])
            hidden = width(int, decisions["hidden", i], axis="mlp")
            norm = LayerNorm(dtype=self.dtype, name=f"norm_{i}")(None, channels, gate=gate)
            y = Mlp(dtype=self.dtype, name=f"block_{i}")(x, channels, hidden, gate=gate, norm=norm)
            x = x + nn.Dropout(self.dropout, deterministic=not train)(y)
        x = LayerNorm(dtype=self.dtype, name="norm")(x, channels, max_branches=1)
        out = Dense(dtype=self.dtype, name="out")(x, channels, fixed(self.num_outputs), max_branches=1)
        return out.astype(jnp.float32)


class Classifier(nn.Module):
    """The network of one architecture: of a width, and of heads and hidden channels of each layer."""

    net: TextTransformer
    width: int
    heads: tuple[int, ...]
    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, tokens: jax.Array, mask: jax.Array, train: bool = False) -> jax.Array:
        """Maps tokens int32 [B, T] and a mask bool [B, T], True at words, to logits [B, num_classes]."""
        net = self.net
        if train and net.word_dropout:
            mask = mask & jax.random.bernoulli(self.make_rng("dropout"), 1 - net.word_dropout, mask.shape)
        drop = functools.partial(nn.Dropout, net.dropout, deterministic=not train)
        x = nn.Embed(net.vocabulary, self.width, name="embedding")(tokens)
        scale = nn.initializers.normal(self.width**-0.5)  # as the embedding's
        x = drop()(x + self.param("positions", scale, (net.max_length, self.width))[None, : tokens.shape[1]])
        for i, (heads, hidden) in enumerate(zip(self.heads, self.hidden, strict=True)):
            attention = functools.partial(layers.Attention, heads, net.head_dim)
            mlp = functools.partial(layers.Mlp, hidden)
            x = layers.Block(attention, mlp, drop, name=f"block_{i}")(x, mask)
        words = mask[..., None].astype(x.dtype)
        x = layers.norm("norm", x) * words
        x = jnp.sum(x, axis=1) / jnp.maximum(jnp.sum(words, axis=1), 1)  # [B, E]
        return nn.Dense(net.num_classes, name="head")(x)


@dataclasses.dataclass(frozen=True)
class TextTransformer(Declared):
    """A supernet of Transformers for texts, over the space of `jaxnas.spaces.vit`.

    Pre-norm blocks (Vaswani et al., NeurIPS 2017; Xiong et al., ICML 2020). The classifier reads the mean of
    the words, which small data learn from faster than from an extra token.

    Its inputs are a dict of "tokens" int32 [B, T], and "mask" bool [B, T], True where there is a word. It
    returns float32 logits [B, num_classes].

    Attributes:
      space: with the decisions `embed_dim`, `depth`, `num_heads` and `mlp_ratio`.
      vocabulary: number of different tokens.
      num_classes: logits.
      max_length: tokens of the longest text.
      head_dim: channels of an attention head.
      dropout: of embeddings and branches.
      word_dropout: share of the words that training leaves out.
      form: of the supernet; see `jaxnas.supernet`.
    """

    vocabulary: int
    num_classes: int
    max_length: int
    head_dim: int = 16
    dropout: float = 0.4
    word_dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "vocabulary", "num_classes", "max_length", "head_dim")
        check_numbers(self, "dropout", "word_dropout", least=0, below=1)
        layers.check_layers("TextTransformer", self.space)

    def places(self) -> Iterator[Place]:
        """See `Declared`."""
        return layers.layer_places(self.space)

    def module(self, sizes: Mapping[str, int]) -> nn.Module:
        """See `Declared`."""
        return Classifier(self, **layers.layer_sizes(sizes))

"""A Transformer that classifies texts, of elastic width, depth, heads and MLP.

Pre-norm blocks (Vaswani et al., NeurIPS 2017; Xiong et al., ICML 2020). The classifier reads the mean of the
words, which small data learn from faster than from an extra token.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.checks import check_counts, check_numbers
from jaxnas.supernets.vit import (
    Attention,
    Block,
    Mlp,
    check_layers,
    layer_places,
    layer_sizes,
    norm,
)
from jaxnas.transform.declared import Declared
from jaxnas.transform.places import Place


class Classifier(nn.Module):
    """The network of one architecture; see `TextTransformer` for its attributes.

    Attributes:
      width: of the words.
      heads, hidden: of each layer.
    """

    width: int
    heads: tuple[int, ...]
    hidden: tuple[int, ...]
    vocabulary: int
    num_classes: int
    max_length: int
    head_dim: int
    dropout: float
    word_dropout: float

    @nn.compact
    def __call__(self, tokens: jax.Array, mask: jax.Array, train: bool = False) -> jax.Array:
        """Maps tokens int32 [B, T] and a mask bool [B, T], True at words, to logits [B, num_classes]."""
        if train and self.word_dropout:
            mask = mask & jax.random.bernoulli(self.make_rng("dropout"), 1 - self.word_dropout, mask.shape)
        drop = functools.partial(nn.Dropout, self.dropout, deterministic=not train)
        x = nn.Embed(self.vocabulary, self.width, name="embedding")(tokens)
        scale = nn.initializers.normal(self.width**-0.5)  # as the embedding's
        x = drop()(x + self.param("positions", scale, (self.max_length, self.width))[None, : tokens.shape[1]])
        for i, (heads, hidden) in enumerate(zip(self.heads, self.hidden, strict=True)):
            attention = functools.partial(Attention, heads, self.head_dim)
            x = Block(attention, functools.partial(Mlp, hidden), drop, name=f"block_{i}")(x, mask)
        words = mask[..., None].astype(x.dtype)
        x = norm("norm", x) * words
        x = jnp.sum(x, axis=1) / jnp.maximum(jnp.sum(words, axis=1), 1)  # [B, E]
        return nn.Dense(self.num_classes, name="head")(x)


@dataclasses.dataclass(frozen=True)
class TextTransformer(Declared):
    """A supernet of Transformers for texts, over the space of `jaxnas.spaces.vit`.

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
        check_layers("TextTransformer", self.space)

    def places(self) -> Iterator[Place]:
        """See `Declared`."""
        return layer_places(self.space)

    def module(self, sizes: Mapping[str, int]) -> nn.Module:
        """See `Declared`."""
        return self.make(Classifier, **layer_sizes(sizes))

"""A Transformer that classifies texts, with elastic width, depth, heads and MLP.

Pre-norm blocks (Vaswani et al., NeurIPS 2017; Xiong et al., ICML 2020). The classifier reads the mean of the
words, which small data learn from faster than from an extra token.
"""

from __future__ import annotations

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.checks import check_counts, check_numbers
from jaxnas.elastic.attention_layer import Attention
from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.embedding import Embedding
from jaxnas.elastic.layers import Dense, LayerNorm, Mlp
from jaxnas.elastic.parameter import parameter
from jaxnas.elastic.width import Width, fixed, width
from jaxnas.space import Arch, Space
from jaxnas.supernets.vit import DECISIONS, check_space, layer_widths


class Block(nn.Module):
    """A pre-norm block of attention and MLP; nothing of it runs where `gate` is 0."""

    head_dim: int
    dropout: float

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array,
        embed: Width,
        heads: Width,
        hidden: Width,
        gate: Width,
        train: bool,
    ) -> jax.Array:
        """Maps x [B, T, embed maximum] to the same shape; words see those that the mask [B, T] shows."""
        drop = nn.Dropout(self.dropout, deterministic=not train)
        y = LayerNorm(name="attention_norm")(x, embed, gate=gate)
        y = Attention(name="attention")(y, embed, heads, heads, fixed(self.head_dim), mask, gate=gate)
        x = x + drop(y)
        y = LayerNorm(name="mlp_norm")(x, embed, gate=gate)
        return x + drop(Mlp(name="mlp")(y, embed, hidden, gate=gate))


class TextTransformer(nn.Module):
    """A supernet of Transformers for texts, over the space of `jaxnas.spaces.vit`.

    Attributes:
      space: with the decisions `embed_dim`, `depth`, `num_heads` and `mlp_ratio`.
      vocabulary: number of different tokens.
      num_classes: logits.
      max_length: tokens of the longest text.
      head_dim: channels of an attention head.
      dropout: of embeddings and branches.
      word_dropout: share of the words that training leaves out.
    """

    space: Space
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
        check_space("TextTransformer", self.space)
        if others := sorted(set(self.space.choices) - DECISIONS):
            raise ValueError(f"A TextTransformer has no use for the decisions {others}; leave them out.")

    @nn.compact
    def __call__(
        self,
        inputs: Mapping[str, jax.Array],
        arch: Arch | None = None,
        *,
        train: bool = False,
    ) -> jax.Array:
        """Classifies texts.

        Args:
          inputs: "tokens" int32 [B, T], and "mask" bool [B, T], True where there is a word.
          arch: architecture of the space; not needed if the space has only one.
          train: whether dropout is on (needs the "dropout" random stream).

        Returns:
          Logits, float32 [B, num_classes].
        """
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        embed = width(int, decisions["embed_dim"], axis="embed")
        tokens, mask = inputs["tokens"], inputs["mask"]
        if train and self.word_dropout:
            mask = mask & jax.random.bernoulli(self.make_rng("dropout"), 1 - self.word_dropout, mask.shape)
        x = Embedding(self.vocabulary, name="embedding")(tokens, embed)
        scale = nn.initializers.normal(embed.maximum**-0.5)  # as the embedding's
        positions = parameter(self, "positions", scale, (fixed(self.max_length, "length"), embed))
        x = x + (positions[: tokens.shape[1]] * embed.mask()[None])[None]
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        for i in range(int(self.space["depth"].table.max())):
            x = Block(self.head_dim, self.dropout, name=f"block_{i}")(
                x, mask, embed, train=train, **layer_widths(decisions, i)
            )
        x = LayerNorm(name="norm")(x, embed)
        words = mask[..., None].astype(x.dtype)
        x = jnp.sum(x * words, axis=1) / jnp.maximum(jnp.sum(words, axis=1), 1)  # [B, E]
        return Dense(name="head")(x, embed, fixed(self.num_classes)).astype(jnp.float32)

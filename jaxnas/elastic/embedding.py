"""An embedding of tokens with an elastic width."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.elastic.layers import Initializer
from jaxnas.elastic.parameter import parameter
from jaxnas.elastic.switch import run
from jaxnas.elastic.width import Width, fixed


@dataclasses.dataclass(frozen=True)
class _LookUp:
    """Rows of a table [vocabulary, D] by their numbers [N], a function for `run`."""

    dtype: Any

    def __call__(self, tokens: jax.Array, table: jax.Array) -> jax.Array:
        # A number beyond the vocabulary gives NaN rather than the row of another token.
        return jnp.take(table, tokens, axis=0, mode="fill", fill_value=jnp.nan).astype(self.dtype)


class Embedding(nn.Module):
    """A weight-entangled table of token embeddings; a narrower one is the first channels of the widest.

    Example, in the `compact` method of a network of texts:

        x = elastic.Embedding(vocabulary=1000, name="embedding")(tokens, embed)  # [B, T, embed.maximum]

    Attributes:
      vocabulary: number of different tokens.
      dtype: of the result.
      embedding_init: initializer; the default is that of `flax.linen.Embed`.
    """

    vocabulary: int
    dtype: Any = jnp.float32
    embedding_init: Initializer = nn.initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0)

    @nn.compact
    def __call__(self, tokens: jax.Array, width: Width, *, max_branches: int = 8) -> jax.Array:
        """Maps integers tokens [...] to [..., maximum], zero beyond the active width.

        Args:
          tokens: from 0 to vocabulary - 1; a larger one gives NaN.
          width: active channels.
          max_branches: see `run`.
        """
        axes = (fixed(self.vocabulary, "vocabulary"), width)
        table = parameter(self, "embedding", self.embedding_init, axes)
        y = run(
            _LookUp(self.dtype),
            "tokens, vocabulary embed -> tokens embed",
            {"embed": width},
            tokens.reshape(-1),
            table,
            maskable=("embed",),
            max_branches=max_branches,
        )
        return y.reshape(*tokens.shape, width.maximum)

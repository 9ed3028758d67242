"""Vectors of words that a task gives and a network tunes."""

from __future__ import annotations

import flax.linen as nn
import jax


def tuned(vectors: jax.Array | None, tokens: jax.Array, vocabulary: int) -> jax.Array:
    """Adds to each word's vector a difference that is learned and begins with zeros.

    It is called within a module's `compact` method, and the differences are the parameter
    `difference/embedding` of that module. The function and its gradients are those of an embedding that
    begins with the vectors, and no table of data is a parameter.

    Args:
      vectors: of the words, float32 [B, T, G]; None where the task gives none, which is refused.
      tokens: the words' numbers, int32 [B, T].
      vocabulary: number of different words.

    Returns:
      The tuned vectors, float32 [B, T, G].

    Raises:
      ValueError: there are no vectors.
    """
    if vectors is None:
        raise ValueError("tune_vectors is True, and the task gives no vectors of words.")
    zeros = nn.initializers.zeros
    difference = nn.Embed(vocabulary, vectors.shape[-1], embedding_init=zeros, name="difference")
    return vectors + difference(tokens)

"""Mechanisms that weigh every pair of positions: softmax attention and the Synthesizers, O(n^2)."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.supernets.attention.core import (
    attend,
    check_length,
    check_sizes,
    clear,
    join,
    weigh,
)
from jaxnas.supernets.attention.module import Attention

SynthesizerKind = Literal["random", "factorized_random", "dense"]


def softmax(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, *, causal: bool = False
) -> jax.Array:
    """Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1)."""
    seen = mask[:, None, None, :]  # [B, 1, 1, T]
    if causal:
        seen = seen & np.tri(query.shape[2], dtype=bool)[None, None]
    return clear(attend(query, (key, value, seen)), mask)


def synthesizer(logits: jax.Array, value: jax.Array, mask: jax.Array, *, causal: bool = False) -> jax.Array:
    """Attention by logits that come from no product of queries and keys (Tay et al. 2021, section 3).

    Args:
      logits: [B or 1, H, T, T], from each position to each.
    """
    scores = jnp.broadcast_to(logits.astype(jnp.float32), (value.shape[0], *logits.shape[1:]))
    seen = mask[:, None, None, :]  # [B, 1, 1, T]
    if causal:
        seen = seen & np.tri(value.shape[2], dtype=bool)[None, None]
    return clear(join(weigh(scores, value, seen)).astype(value.dtype), mask)


class Softmax(Attention, kw_only=True):
    """Scaled dot-product attention; see `softmax`."""

    causal: bool = False

    def attend(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        query, key, value = self.heads(x, "query", "key", "value")
        return softmax(query, key, value, mask, causal=self.causal)


class Synthesizer(Attention, kw_only=True):
    """Attention without products of queries and keys (Tay et al. 2021, section 3).

    Attributes:
      max_length: the longest sequence: logits are parameters for each position.
      kind: "random", a matrix of logits for each head; "factorized_random", a product of two thin matrices
        for each head; "dense", two layers with a ReLU between make a position's logits of its input.
      rank: columns of the thin matrices of "factorized_random".
    """

    max_length: int
    kind: SynthesizerKind = "factorized_random"
    rank: int = 32
    causal: bool = False

    def attend(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        check_sizes("synthesizer", max_length=self.max_length, rank=self.rank)
        check_length(x.shape[1], self.max_length, "Synthesizer")
        (value,) = self.heads(x, "value")
        return synthesizer(self.logits(x), value, mask, causal=self.causal)

    def logits(self, x: jax.Array) -> jax.Array:
        """Logits in place of products of queries and keys, [B or 1, H, T, T]."""
        length, longest = x.shape[1], self.max_length
        if self.kind == "random":
            return self.matrices("logits", longest, longest)[None, :, :length, :length]
        if self.kind == "factorized_random":
            left = self.matrices("left_factor", longest, self.rank)[:, :length]  # [H, T, k]
            right = self.matrices("right_factor", longest, self.rank)[:, :length]
            return jnp.einsum("htk,hsk->hts", left, right)[None]
        if self.kind == "dense":
            (hidden,) = self.heads(x, "hidden")  # [B, H, T, d]
            kernel = self.matrices("logits_kernel", hidden.shape[-1], longest)[:, :, :length]
            return jnp.einsum("bhtd,hds->bhts", jax.nn.relu(hidden), kernel)
        raise ValueError(f"kind is 'random', 'factorized_random' or 'dense'; got {self.kind!r}.")

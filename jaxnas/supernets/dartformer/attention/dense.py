"""Mechanisms without a pattern: softmax and Synthesizer of all pairs, and three that take linear time.

Those have fewer keys (Linformer), or products in another order (Linear, Performer): if a weight is a product
of features, f(q_t) . g(k_s), then keys and values can be summed up before a query is known, and
sum_s g(k_s) v_s^T is one matrix for all queries.
"""

from __future__ import annotations

import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxnas.supernets.dartformer.attention import core

SynthesizerKind = Literal["random", "factorized_random", "dense"]
STABLE = 1e-6  # added to totals, as the papers' authors do: a query whose weights vanish gets 0


def softmax(query: Array, key: Array, value: Array, mask: Array) -> Array:
    """Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1)."""
    return core.clear(core.attend(query, (key, value, mask[:, None, None, :])), mask)


def synthesizer(logits: Array, value: Array, mask: Array) -> Array:
    """Attention by logits that come from no product of queries and keys (Tay et al. 2021, section 3).

    Args:
      logits: [B or 1, H, T, T], from each position to each.
    """
    scores = jnp.broadcast_to(logits.astype(jnp.float32), (value.shape[0], *logits.shape[1:]))
    return core.clear(core.join(core.weigh(scores, value, mask[:, None, None, :])).astype(value.dtype), mask)


def linformer(query: Array, key: Array, value: Array, mask: Array, projection: Array) -> Array:
    """Softmax attention over keys and values projected to k places, O(n k) (Wang et al. 2020, section 4).

    One projection is shared by keys, values and heads. Padding is left out of the sums, but the number of
    places stays, so short sequences give weight to places that hold little.

    Args:
      projection: from positions to places, [k, T].
    """
    key, value = (jnp.einsum("kt,bhtd->bhkd", projection, core.clear(x, mask)) for x in (key, value))
    seen = jnp.ones((1, 1, 1, projection.shape[0]), bool)
    return core.clear(core.attend(query, (key, value, seen)), mask)


def linear(query: Array, key: Array, value: Array, mask: Array) -> Array:
    """Attention by the features elu(x) + 1 (Katharopoulos et al. 2020, section 3.2), O(n d^2)."""
    query, key = (jax.nn.elu(x.astype(jnp.float32)) + 1 for x in (query, key))
    return _by_features(query, key, value, mask)


def orthogonal_features(num_features: int, head_dim: int, seed: int) -> np.ndarray:
    """Random directions, orthogonal in groups of head_dim (Choromanski et al. 2021, section 2.4).

    Each is distributed as a vector of independent standard normal numbers.

    Args:
      num_features: number of directions m.
      head_dim: channels of a head d.
      seed: of the drawing.

    Returns:
      The directions, float32 [m, d].
    """
    draw = np.random.default_rng(seed)
    groups = []
    for _ in range(-(-num_features // head_dim)):
        rotation, triangle = np.linalg.qr(draw.normal(size=(head_dim, head_dim)))
        # With positive diagonals a decomposition is unique, so all rotations are equally likely.
        groups.append((rotation * np.sign(np.diag(triangle))[None, :]).T)
    lengths = np.linalg.norm(draw.normal(size=(num_features, head_dim)), axis=1, keepdims=True)
    return (np.concatenate(groups)[:num_features] * lengths).astype(np.float32)


def performer(query: Array, key: Array, value: Array, mask: Array, directions: np.ndarray | Array) -> Array:
    """FAVOR+: attention by random features (Choromanski et al. 2021, section 2), O(n m d).

    Features of x = q / d^(1/4) are exp(w . x - |x|^2 / 2), whose products are on average the weights
    exp(q . k / sqrt(d)).

    Args:
      directions: w of the features, float [m, d], as `orthogonal_features` gives them.
    """
    directions = jnp.asarray(directions)

    def exponents(x: Array) -> Array:
        x = x.astype(jnp.float32) * x.shape[-1] ** -0.25
        return jnp.einsum("bhtd,md->bhtm", x, directions) - jnp.sum(x**2, axis=-1, keepdims=True) / 2

    def features(exponents: Array, largest: Array) -> Array:
        return (jnp.exp(exponents - largest) + STABLE) / math.sqrt(directions.shape[0])

    # A factor of all features of a query cancels, and so does one of all keys. Both are chosen such that the
    # largest exponent is 0.
    of_query, of_key = exponents(query), exponents(key)
    own = jnp.max(jax.lax.stop_gradient(of_query), axis=-1, keepdims=True)
    largest = jnp.max(jax.lax.stop_gradient(of_key), axis=-1, keepdims=True)  # [B, H, T, 1]
    largest = jnp.where(mask[:, None, :, None], largest, core.NEVER)
    largest = jnp.max(largest, axis=2, keepdims=True)
    of_key = jnp.where(mask[:, None, :, None], of_key, largest)
    return _by_features(features(of_query, own), features(of_key, largest), value, mask)


def _by_features(query: Array, key: Array, value: Array, mask: Array) -> Array:
    """Attention whose weights are products of features, in the dtype of the values; totals in float32.

    Features of queries and keys are float32 [B, H, T, m], and none is negative.
    """
    dtype, kept, key = value.dtype, dict(preferred_element_type=jnp.float32), core.clear(key, mask)
    state = jnp.einsum("bhtm,bhte->bhme", key.astype(dtype), value, **kept)
    out = jnp.einsum("bhtm,bhme->bhte", query.astype(dtype), state.astype(dtype), **kept)
    total = jnp.einsum("bhtm,bhm->bht", query, jnp.sum(key, axis=2))[..., None]
    return core.clear((out / (total + STABLE)).astype(dtype), mask)


class Softmax(core.Attention, kw_only=True):
    """Scaled dot-product attention; see `softmax`."""

    def attend(self, x: Array, mask: Array) -> Array:
        return softmax(*self.qkv(x), mask)


class Synthesizer(core.Attention, kw_only=True):
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

    def attend(self, x: Array, mask: Array) -> Array:
        core.check_sizes("synthesizer", max_length=self.max_length, rank=self.rank)
        core.check_length(x.shape[1], self.max_length, "Synthesizer")
        (value,) = self.heads(x, "value")
        return synthesizer(self.logits(x), value, mask)

    def logits(self, x: Array) -> Array:
        """Logits in place of products of queries and keys, [B or 1, H, T, T]."""
        length, longest = x.shape[1], self.max_length
        if self.kind == "random":
            return self.matrices("logits", longest, longest)[None, :, :length, :length]
        if self.kind == "factorized_random":
            factors = [self.matrices(f"{side}_factor", longest, self.rank) for side in ("left", "right")]
            left, right = (factor[:, :length] for factor in factors)  # [H, T, k]
            return jnp.einsum("htk,hsk->hts", left, right)[None]
        if self.kind == "dense":
            (hidden,) = self.heads(x, "hidden")  # [B, H, T, d]
            kernel = self.matrices("logits_kernel", hidden.shape[-1], longest)[:, :, :length]
            return jnp.einsum("bhtd,hds->bhts", jax.nn.relu(hidden), kernel)
        raise ValueError(f"kind is 'random', 'factorized_random' or 'dense'; got {self.kind!r}.")


class Linformer(core.Attention, kw_only=True):
    """Attention over keys and values that are projected to few places; see `linformer`.

    Attributes:
      max_length: the longest sequence: the projection has a column for each position.
      num_projected: number of places k.
    """

    max_length: int
    num_projected: int = 16

    def attend(self, x: Array, mask: Array) -> Array:
        core.check_sizes("linformer", max_length=self.max_length, num_projected=self.num_projected)
        core.check_length(x.shape[1], self.max_length, "Linformer")
        operands = self.qkv(x)
        projection = self.matrix("projection", self.num_projected, self.max_length, (None, None))
        return linformer(*operands, mask, projection[:, : x.shape[1]])


class Linear(core.Attention, kw_only=True):
    """Attention by the features elu(x) + 1; see `linear`."""

    def attend(self, x: Array, mask: Array) -> Array:
        return linear(*self.qkv(x), mask)


class Performer(core.Attention, kw_only=True):
    """Attention by random features, FAVOR+; see `performer`.

    Attributes:
      num_features: number of random directions m. None: d log d, as the paper's theorem 4 asks for.
      seed: of the directions, which are constants of the module. Give each layer one of its own.
    """

    num_features: int | None = None
    seed: int = 0

    def attend(self, x: Array, mask: Array) -> Array:
        size, count = self.size(x), self.num_features
        count = max(math.ceil(size * math.log(size)), 1) if count is None else count
        core.check_sizes("performer", num_features=count)
        return performer(*self.qkv(x), mask, orthogonal_features(count, size, self.seed))

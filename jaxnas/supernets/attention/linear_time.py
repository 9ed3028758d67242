"""Mechanisms of linear time: fewer keys (Linformer), or products in another order (Linear, Performer).

If a weight is a product of features, f(q_t) . g(k_s), then keys and values can be summed up before a
query is known: sum_s g(k_s) v_s^T is one matrix for all queries, or a running sum of matrices for the
causal form.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.supernets.attention.core import (
    NEVER,
    attend,
    check_length,
    check_sizes,
    clear,
    split,
)
from jaxnas.supernets.attention.module import Attention

CHUNK = 64  # positions whose pairs the causal form weighs one by one, between two running sums
STABLE = 1e-6  # added to totals, as the papers' authors do: a query whose weights vanish gets 0


def linformer(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, projection: jax.Array
) -> jax.Array:
    """Softmax attention over keys and values projected to k places, O(n k) (Wang et al. 2020, section 4).

    One projection is shared by keys, values and heads. Padding is left out of the sums, but the number of
    places stays, so short sequences give weight to places that hold little.

    Args:
      projection: from positions to places, [k, T].
    """
    key, value = (jnp.einsum("kt,bhtd->bhkd", projection, clear(x, mask)) for x in (key, value))
    seen = jnp.ones((1, 1, 1, projection.shape[0]), bool)
    return clear(attend(query, (key, value, seen)), mask)


def linear(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, *, causal: bool = False
) -> jax.Array:
    """Attention by the features elu(x) + 1 (Katharopoulos et al. 2020, section 3.2), O(n d^2)."""
    query, key = (jax.nn.elu(x.astype(jnp.float32)) + 1 for x in (query, key))
    return clear(_by_features(query, clear(key, mask), value, causal), mask)


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


def performer(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    *,
    directions: np.ndarray | jax.Array | None = None,
    kernel: Literal["softmax", "relu"] = "softmax",
    causal: bool = False,
) -> jax.Array:
    """FAVOR+: attention by random features (Choromanski et al. 2021, section 2), O(n m d).

    The softmax kernel has positive features exp(w . x - |x|^2 / 2) of x = q / d^(1/4), whose products
    are on average the weights exp(q . k / sqrt(d)). The generalized kernel has max(w . q, 0), or max(q, 0)
    without directions.

    Args:
      directions: of the features, float [m, d], as `orthogonal_features` gives them; None for the
        generalized kernel of the channels themselves.
      kernel: "softmax" or "relu".
    """
    if kernel not in ("softmax", "relu"):
        raise ValueError(f"kernel is 'softmax' or 'relu'; got {kernel!r}.")
    if directions is None and kernel == "softmax":
        raise ValueError("The softmax kernel needs directions: see orthogonal_features.")
    levels = None
    if kernel == "relu":
        query, key = (_relu_features(x, directions) for x in (query, key))
    else:
        query, key, levels = _softmax_features(query, key, mask, jnp.asarray(directions), causal)
    return clear(_by_features(query, clear(key, mask), value, causal, levels), mask)


def _relu_features(x: jax.Array, directions: np.ndarray | jax.Array | None) -> jax.Array:
    """Features float32 [B, H, T, m] of the generalized kernel; a little more than 0, so that totals are."""
    x = x.astype(jnp.float32)
    if directions is not None:
        directions = jnp.asarray(directions, jnp.float32)
        x = jnp.einsum("bhtd,md->bhtm", x, directions) / math.sqrt(directions.shape[0])
    return jax.nn.relu(x) + 1e-3


def _softmax_features(
    query: jax.Array, key: jax.Array, mask: jax.Array, directions: jax.Array, causal: bool
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Features float32 [B, H, T, m] of queries and of keys for the softmax kernel, and levels of the keys.

    A factor of all features of a query cancels. It is chosen such that its largest exponent is 0. So does one
    of all keys, but in the causal form that would tell earlier queries of later keys. There each key has the
    factor of the largest exponent up to its own position, and its level, [B, H, T], is that exponent.
    """

    def exponents(x: jax.Array) -> jax.Array:
        x = x.astype(jnp.float32) * x.shape[-1] ** -0.25
        return jnp.einsum("bhtd,md->bhtm", x, directions) - jnp.sum(x**2, axis=-1, keepdims=True) / 2

    def features(exponents: jax.Array, largest: jax.Array) -> jax.Array:
        return (jnp.exp(exponents - largest) + STABLE) / math.sqrt(directions.shape[0])

    of_query, of_key = exponents(query), exponents(key)
    own = jnp.max(jax.lax.stop_gradient(of_query), axis=-1, keepdims=True)
    largest = jnp.max(jax.lax.stop_gradient(of_key), axis=-1, keepdims=True)  # [B, H, T, 1]
    largest = jnp.where(mask[:, None, :, None], largest, NEVER)
    if causal:
        largest = jax.lax.cummax(largest, axis=2)
    else:
        largest = jnp.max(largest, axis=2, keepdims=True)
    of_key = jnp.where(mask[:, None, :, None], of_key, largest)
    return features(of_query, own), features(of_key, largest), largest[..., 0] if causal else None


def _by_features(
    query: jax.Array, key: jax.Array, value: jax.Array, causal: bool, levels: jax.Array | None = None
) -> jax.Array:
    """Attention whose weights are products of features, in the dtype of the values; totals in float32.

    Args:
      query, key: features, float32 [B, H, T, m], none negative; those of padded keys are 0.
      levels: of the causal form, float32 [B, H, T], none below the one before: the features of a key are to
        be multiplied by exp(level). None where all levels are the same.
    """
    dtype, kept = value.dtype, dict(preferred_element_type=jnp.float32)
    if not causal:
        state = jnp.einsum("bhtm,bhte->bhme", key.astype(dtype), value, **kept)
        out = jnp.einsum("bhtm,bhme->bhte", query.astype(dtype), state.astype(dtype), **kept)
        total = jnp.einsum("bhtm,bhm->bht", query, jnp.sum(key, axis=2))[..., None]
        return (out / (total + STABLE)).astype(dtype)

    length = value.shape[2]
    size = min(CHUNK, length)
    levels = jnp.zeros(value.shape[:3], jnp.float32) if levels is None else levels
    # The filled-up end continues at the last level, since none may be below the one before.
    levels = jnp.pad(levels, [(0, 0), (0, 0), (0, -length % size)], mode="edge")
    query, key, value, levels = (split(x, size) for x in (query, key, value, levels[..., None]))
    levels = levels[..., 0]  # [B, H, N, s]; the others are [B, H, N, s, m]
    last = levels[..., -1:]  # [B, H, N, 1]
    # All weights of a query are relative to its own level, so that no factor is greater than 1.
    from_past = jnp.exp(
        jnp.pad(last[:, :, :-1], [(0, 0), (0, 0), (1, 0), (0, 0)], constant_values=NEVER) - levels
    )
    to_end = jnp.exp(levels - last)
    within = jnp.exp(jnp.minimum(levels[..., None, :] - levels[..., :, None], 0.0))  # [B, H, N, q, k]

    def sum_before(x: jax.Array) -> jax.Array:
        """Of what all chunks but the last add, the sums over all chunks in front of each, at their level."""
        decay = jnp.exp(last[:, :, :-2] - last[:, :, 1:-1])
        decay = jnp.pad(decay, [(0, 0), (0, 0), (1, 0), (0, 0)])[:, :, : x.shape[2]]
        decay = decay.reshape(*x.shape[:3], *[1] * (x.ndim - 3))

        def join(first: Any, second: Any) -> Any:
            return first[0] * second[0], first[1] * second[0] + second[1]

        _, sums = jax.lax.associative_scan(join, (decay, x), axis=2)
        return jnp.pad(sums, [(0, 0), (0, 0), (1, 0)] + [(0, 0)] * (x.ndim - 3))

    past_key = (key * to_end[..., None])[:, :, :-1]
    state = sum_before(jnp.einsum("bhnsm,bhnse->bhnme", past_key.astype(dtype), value[:, :, :-1], **kept))
    weights = jnp.einsum("bhnqm,bhnkm->bhnqk", query, key) * within
    weights = jnp.where(np.tri(size, dtype=bool)[None, None, None], weights, 0.0)
    query = query * from_past[..., None]
    out = jnp.einsum("bhnsm,bhnme->bhnse", query.astype(dtype), state.astype(dtype), **kept)
    out += jnp.einsum("bhnqk,bhnke->bhnqe", weights.astype(dtype), value, **kept)
    total = jnp.einsum("bhnsm,bhnm->bhns", query, sum_before(jnp.sum(past_key, axis=3)))[..., None]
    total += jnp.sum(weights, axis=-1, keepdims=True)
    out = (out / (total + STABLE)).astype(dtype)
    return out.reshape(*out.shape[:2], -1, out.shape[-1])[:, :, :length]


class Linformer(Attention, kw_only=True):
    """Attention over keys and values that are projected to few places; see `linformer`.

    Attributes:
      max_length: the longest sequence: the projection has a column for each position.
      num_projected: number of places k.
    """

    max_length: int
    num_projected: int = 16

    def attend(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        check_sizes("linformer", max_length=self.max_length, num_projected=self.num_projected)
        check_length(x.shape[1], self.max_length, "Linformer")
        query, key, value = self.heads(x, "query", "key", "value")
        projection = self.matrix("projection", self.num_projected, self.max_length, (None, None))
        return linformer(query, key, value, mask, projection[:, : x.shape[1]])


class Linear(Attention, kw_only=True):
    """Attention by the features elu(x) + 1; see `linear`."""

    causal: bool = False

    def attend(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        query, key, value = self.heads(x, "query", "key", "value")
        return linear(query, key, value, mask, causal=self.causal)


class Performer(Attention, kw_only=True):
    """Attention by random features, FAVOR+; see `performer`.

    Attributes:
      num_features: number of random directions m. None: d log d for the softmax kernel (the paper's theorem
        4 asks for that order), and none at all for the generalized one.
      kernel: "softmax" or "relu", the generalized kernel.
      seed: of the directions, which are constants of the module. Give each layer one of its own.
    """

    num_features: int | None = None
    kernel: Literal["softmax", "relu"] = "softmax"
    causal: bool = False
    seed: int = 0

    def attend(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        query, key, value = self.heads(x, "query", "key", "value")
        size, count = query.shape[-1], self.num_features
        if count is None and self.kernel == "softmax":
            count = max(math.ceil(size * math.log(size)), 1)
        directions = None
        if count is not None:
            check_sizes("performer", num_features=count)
            directions = orthogonal_features(count, size, self.seed)
        return performer(
            query, key, value, mask, directions=directions, kernel=self.kernel, causal=self.causal
        )

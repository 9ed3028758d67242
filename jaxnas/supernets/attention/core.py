"""Parts that the mechanisms share: blocks of positions, and a softmax over keys that come in several sets.

Sequences are cut into blocks of neighboring positions, and a query meets only the blocks that its
mechanism names. The keys of one query often lie in several arrays: a window, global tokens, random blocks. A
softmax over all of them needs no array with all scores: the sums over each set are joined at the end.

Shapes: B examples, H heads, T positions, d channels of a head, N blocks, s positions of a block, Q queries
and K keys that meet.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

NEVER = -1e30  # the score of what is not seen: finite, so that a query that sees nothing has no NaN
Keys = tuple[jax.Array, jax.Array, jax.Array]  # keys [..., K, d], values [..., K, e], seen [..., Q or 1, K]


class Partial(NamedTuple):
    """The attention of queries over one set of keys, before it is divided by its total; all float32.

    Attributes:
      value: values weighted by exp(score - largest), [..., Q, e].
      total: the sum of these weights, [..., Q, 1]; 0 where nothing is seen.
      largest: the greatest score, [..., Q, 1].
    """

    value: jax.Array
    total: jax.Array
    largest: jax.Array


def weigh(scores: jax.Array, value: jax.Array, seen: jax.Array) -> Partial:
    """Attends to one set of keys.

    Args:
      scores: float32 [..., Q, K].
      value: [..., K, e]; products are computed in its dtype, and summed in float32.
      seen: which keys each query may see, bool, broadcastable to the scores.
    """
    scores = jnp.where(seen, scores, NEVER)
    # A softmax does not depend on the shift, so no gradient has to pass through it.
    largest = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.where(seen, jnp.exp(scores - largest), 0.0)
    summed = jnp.einsum(
        "...qk,...ke->...qe", weights.astype(value.dtype), value, preferred_element_type=jnp.float32
    )
    return Partial(summed, jnp.sum(weights, axis=-1, keepdims=True), largest)


def join(*parts: Partial) -> jax.Array:
    """The softmax over all keys of all parts, float32 [..., Q, e]; 0 for a query that sees none."""
    largest = functools.reduce(jnp.maximum, [part.largest for part in parts])
    shares = [jnp.exp(part.largest - largest) for part in parts]
    total = sum(share * part.total for share, part in zip(shares, parts, strict=True))
    value = sum(share * part.value for share, part in zip(shares, parts, strict=True))
    return value / jnp.where(total > 0, total, 1.0)


def product(query: jax.Array, key: jax.Array) -> jax.Array:
    """The scores q . k / sqrt(d), float32 [..., Q, K]."""
    scale = jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    return jnp.einsum("...qd,...kd->...qk", query * scale, key, preferred_element_type=jnp.float32)


def attend(query: jax.Array, *sets: Keys) -> jax.Array:
    """Softmax attention of queries [..., Q, d] over all keys of several sets; [..., Q, e], as the queries."""
    parts = [weigh(product(query, key), value, seen) for key, value, seen in sets]
    return join(*parts).astype(query.dtype)


def split(x: jax.Array, size: int) -> jax.Array:
    """Cuts positions into blocks: [..., T, d] -> [..., N, s, d], with zeros (False) behind the last."""
    *lead, length, channels = x.shape
    count = -(-length // size)
    x = jnp.pad(x, [(0, 0)] * len(lead) + [(0, count * size - length), (0, 0)])
    return x.reshape(*lead, count, size, channels)


def unsplit(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Puts blocks together: [B, H, N, s, d] -> [B, H, T, d], with zeros where the mask [B, T] is False."""
    *lead, count, size, channels = x.shape
    return clear(x.reshape(*lead, count * size, channels)[..., : mask.shape[1], :], mask)


def clear(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Zeros at padded positions of x [B, H, T, d], by the mask [B, T]."""
    return jnp.where(mask[:, None, :, None], x, jnp.zeros_like(x))


def split_mask(mask: jax.Array, size: int) -> jax.Array:
    """Cuts a mask [B, T] as `split` cuts what it masks: [B, 1, N, 1, s], to mask the keys of blocks."""
    return split(mask[:, None, :, None], size).swapaxes(-1, -2)


def neighbors(x: jax.Array, before: int, after: int) -> jax.Array:
    """Each block with those around it: [..., N, s, d] -> [..., N, (before + 1 + after) s, d].

    Beyond the ends there are zeros. Slices that are put together, not a gather: their gradient is a sum.
    """
    count = x.shape[-3]
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [(before, after), (0, 0), (0, 0)])
    return jnp.concatenate([padded[..., i : i + count, :, :] for i in range(before + 1 + after)], axis=-2)


def check_mask(mask: jax.Array, shape: tuple[int, int]) -> None:
    """Checks that a mask is bool [B, T], of at least one position."""
    check_sizes("attention", positions=shape[1])
    if mask.dtype != jnp.bool_:
        raise TypeError(f"A mask is bool, True where a token is; got {mask.dtype}. Write `mask != 0`.")
    if tuple(mask.shape) != tuple(shape):
        raise ValueError(
            f"A mask has an entry for each position of each example, {tuple(shape)}; got {mask.shape}."
        )


def check_sizes(mechanism: str, **sizes: int) -> None:
    """Raises a ValueError for a size of a mechanism that is below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{mechanism}: {name} is {size}, expected at least 1.")


def check_length(length: int, longest: int, what: str) -> None:
    """Raises a ValueError for a sequence that is longer than a mechanism with fixed parameters takes."""
    if length > longest:
        raise ValueError(
            f"{what} has parameters for max_length={longest} positions; got a sequence of {length}. "
            "Cut the sequence, or make the module with a greater max_length."
        )

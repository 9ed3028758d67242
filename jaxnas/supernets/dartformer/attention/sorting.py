"""Mechanisms that sort: Reformer sorts positions by hashes, Sinkhorn attention sorts blocks softly."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxnas.supernets.dartformer.attention import core

ITSELF = -1e5  # added to the score of a query with its own key, which counts only where there is no other


def hash_rotations(num_hashes: int, head_dim: int, num_buckets: int, seed: int) -> np.ndarray:
    """Random directions of the hashes of `reformer`, float32 [R, d, buckets / 2].

    Raises:
      ValueError: a number of buckets that is neither 1 nor even.
    """
    core.check_sizes("reformer", num_hashes=num_hashes, num_buckets=num_buckets)
    if num_buckets > 1 and num_buckets % 2:
        raise ValueError(
            f"num_buckets is 1 or even, since a hash has two buckets for each direction; got {num_buckets}."
        )
    draw = np.random.default_rng(seed)
    return draw.normal(size=(num_hashes, head_dim, num_buckets // 2)).astype(np.float32)


def reformer(query: Array, value: Array, mask: Array, rotations: np.ndarray | Array, *, chunk: int) -> Array:
    """Attention among positions whose hashes are near (Kitaev et al. 2020, section 2), O(n log n).

    Keys are the queries at length 1. In each round positions are sorted by the bucket of their hash, and then
    by position, and cut into chunks. A query sees its own chunk and the one in front, but itself only if
    it sees nothing else. Rounds are joined in one softmax, in which a pair counts once for each round.

    Args:
      query: shared by queries and keys, [B, H, T, d].
      rotations: directions of the hashes, [R, d, b / 2] for R rounds and b buckets; b = 0 for one bucket.
        See `hash_rotations`.
      chunk: positions of a chunk.
    """
    core.check_sizes("reformer", chunk=chunk)
    length, rounds = query.shape[2], rotations.shape[0]
    size = min(chunk, length)
    order = _order(query, mask, jnp.asarray(rotations), size)  # [B, H, R, T'], T' a multiple of size

    def sorted_chunks(x: Array) -> Array:
        """From positions to chunks in the order of each round: [B, H, T, d] -> [B, H, R, N, s, d]."""
        behind = order.shape[-1] - length
        x = jnp.pad(x, [(0, 0), (0, 0), (0, behind), (0, 0)])[:, :, None]  # [B, H, 1, T', d]
        return core.split(jnp.take_along_axis(x, order[..., None], axis=3), size)

    queries, values = sorted_chunks(query), sorted_chunks(value)
    positions = core.split(order[..., None], size)  # [B, H, R, N, s, 1]
    real = sorted_chunks(jnp.broadcast_to(mask[:, None, :, None], (*query.shape[:3], 1)))
    before = min(queries.shape[3] - 1, 1)
    keys, values, key_positions, seen = (
        core.neighbors(x, before, 0) for x in (_unit(queries), values, positions, real)
    )
    key_positions, seen = key_positions.swapaxes(-1, -2), seen.swapaxes(-1, -2)  # [B, H, R, N, 1, K]
    scores = core.product(queries, keys) + jnp.where(key_positions == positions, ITSELF, 0.0)
    part = core.weigh(scores, values, seen)  # [B, H, R, N, s, ...]

    places = jnp.argsort(order, axis=-1)[..., :length, None]  # where each position went

    def unsorted(x: Array) -> Array:
        x = x.reshape(*x.shape[:3], -1, x.shape[-1])  # [B, H, R, T', e]
        return jnp.take_along_axis(x, places, axis=3)

    part = jax.tree.map(unsorted, part)
    joined = core.join(*(core.Partial(*(x[:, :, i] for x in part)) for i in range(rounds)))
    return core.clear(joined.astype(value.dtype), mask)


def _order(query: Array, mask: Array, rotations: Array, size: int) -> Array:
    """The positions sorted by bucket and position, padding behind, int32 [B, H, R, T']."""
    length, half = query.shape[2], rotations.shape[2]
    if half:
        turned = jnp.einsum("bhtd,rdc->bhrtc", query.astype(jnp.float32), rotations)
        buckets = jnp.argmax(jnp.concatenate([turned, -turned], axis=-1), axis=-1).astype(jnp.int32)
    else:
        buckets = jnp.zeros((*query.shape[:2], rotations.shape[0], length), jnp.int32)
    buckets = jnp.where(mask[:, None, None, :], buckets, max(2 * half, 1))
    behind = -length % size
    buckets = jnp.pad(buckets, [(0, 0)] * 3 + [(0, behind)], constant_values=max(2 * half, 1))
    return jnp.argsort(buckets, axis=-1, stable=True).astype(jnp.int32)


def _unit(x: Array) -> Array:
    """Vectors of length 1, in the same directions; 0 stays 0, with a finite gradient."""
    squares = jnp.sum(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(squares + 1e-12).astype(x.dtype)


def sorting_matrix(logits: Array, real: Array, *, iterations: int = 5, temperature: float = 0.75) -> Array:
    """A soft permutation of blocks by Sinkhorn normalization (Tay et al. 2020, section 3.1), without noise.

    Args:
      logits: from each block to each that may take its place, [B, H, N, N].
      real: which blocks hold a token, bool [B, N]; the others take part in no row and no column.
      iterations: of dividing columns and then rows by their sums; 0 is a softmax over each row.
      temperature: the logits are divided by it.

    Returns:
      Weights, float32 [B, H, N, N]: rows of real blocks sum to 1, and columns nearly, if there are
      iterations.

    Raises:
      ValueError: iterations below 0, or a temperature that is not above 0.
    """
    if iterations < 0 or not temperature > 0:
        raise ValueError(
            "Sinkhorn normalization has 0 or more iterations and a temperature above 0; "
            f"got {iterations} and {temperature}."
        )
    pairs = real[:, None, :, None] & real[:, None, None, :]
    logs = logits.astype(jnp.float32) / temperature

    def divide(logs: Array, axis: int) -> Array:
        logs = jnp.where(pairs, logs, core.NEVER)
        return logs - jax.nn.logsumexp(logs, axis=axis, keepdims=True)

    for _ in range(iterations):
        logs = divide(divide(logs, -2), -1)
    if not iterations:
        logs = divide(logs, -1)
    return jnp.where(pairs, jnp.exp(jnp.where(pairs, logs, 0.0)), 0.0)


def sinkhorn(query: Array, key: Array, value: Array, mask: Array, order: Array, *, block: int) -> Array:
    """Attention to the own block, and to one that a soft permutation moves there (Tay et al. 2020, 3.2).

    The outputs of both are added; each is a softmax of its own. It takes O(n block + (n / block)^2).

    Args:
      order: weights of the blocks that are put in the place of each, [B, H, N, N], as `sorting_matrix`
        makes them.
      block: positions of a block; N is T / block, rounded up.
    """
    core.check_sizes("sinkhorn", block=block)
    size = min(block, query.shape[2])
    operands = (core.clear(x, mask) for x in (query, key, value))
    queries, keys, values = (core.split(x, size) for x in operands)  # [B, H, N, s, d]
    seen = core.split_mask(mask, size)  # [B, 1, N, 1, s]
    moved_keys, moved_values = (
        jnp.einsum("bhij,bhjsd->bhisd", order.astype(x.dtype), x) for x in (keys, values)
    )
    # A place of a moved block holds something if any block that may be moved there has a token in it.
    moved_seen = jnp.any(seen, axis=2, keepdims=True)
    own = core.attend(queries, (keys, values, seen))
    return core.unsplit(own + core.attend(queries, (moved_keys, moved_values, moved_seen)), mask)


class Reformer(core.Attention, kw_only=True):
    """Attention among positions with equal hashes; see `reformer`.

    Attributes:
      num_hashes, num_buckets: rounds of hashing, and buckets of a hash, 1 or even.
      seed: of the hashes, which are constants of the module. Give each layer one of its own.
    """

    num_hashes: int = 1
    num_buckets: int = 16
    chunk: int = 64
    seed: int = 0

    def attend(self, x: Array, mask: Array) -> Array:
        query, value = self.heads(x, "query", "value")
        rotations = hash_rotations(self.num_hashes, query.shape[-1], self.num_buckets, self.seed)
        return reformer(query, value, mask, rotations, chunk=self.chunk)


class Sinkhorn(core.Attention, kw_only=True):
    """Attention to the own block and to one that is sorted there; see `sinkhorn`.

    The logits of the sorting are linear in the sum of a block's inputs, for each head.

    Attributes:
      max_length: the longest sequence: the logits have a parameter for each block.
      iterations, temperature: see `sorting_matrix`.
    """

    max_length: int
    block: int = 50
    iterations: int = 5
    temperature: float = 0.75

    def attend(self, x: Array, mask: Array) -> Array:
        core.check_sizes("sinkhorn", max_length=self.max_length, block=self.block)
        core.check_length(x.shape[1], self.max_length, "Sinkhorn")
        operands, size = self.qkv(x), min(self.block, x.shape[1])
        sums = jnp.sum(core.split(x, size), axis=2)  # [B, N, E]
        longest = -(-self.max_length // self.block)
        kernel = self.matrices("sort_kernel", x.shape[-1], longest)[:, :, : sums.shape[1]]  # [H, E, N]
        logits = jnp.einsum("bne,hem->bhnm", sums, kernel)
        real = jnp.any(core.split(mask[:, :, None], size), axis=(2, 3))  # [B, N]
        order = sorting_matrix(logits, real, iterations=self.iterations, temperature=self.temperature)
        return sinkhorn(*operands, mask, order, block=self.block)

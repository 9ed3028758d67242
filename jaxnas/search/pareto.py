"""Several scores at once: dominance, fronts, crowding and hypervolume, on the device.

All take scores to be maximized, as everywhere in jaxnas; negate what is to be small. Shapes are
fixed: rows where `valid` is False, or that hold a NaN, do not count. N points, M objectives.
"""

import jax
import jax.numpy as jnp
from jax import lax

_BLOCK = 128  # Rows compared with all others at a time, where N x N would not fit in memory.


def dominates(a: jax.Array, b: jax.Array) -> jax.Array:
    """Whether a is at least b in all objectives and above it in one.

    Nothing dominates a NaN, or is dominated by one.

    Args:
      a: scores, float [..., M].
      b: scores that broadcast against them.

    Returns:
      bool [...].
    """
    return jnp.all(a >= b, axis=-1) & jnp.any(a > b, axis=-1)


@jax.jit
def non_dominated_rank(objectives: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    """The front of each point: 0 is not dominated, 1 only by points of front 0, and so on.

    Args:
      objectives: scores, float [N, M].
      valid: the rows that count, bool [N]; by default all.

    Returns:
      int32 [N]; rows that are not valid have N, behind all others. Memory grows with N x N bytes.
    """
    scores, usable = _prepare(objectives, valid)
    beats = jnp.zeros((len(scores),) * 2, bool)  # [i, j]: i is above j in some objective
    bars = ~beats
    for column in scores.T:  # [N, N] for each in turn, and not [N, N, M]
        beats |= column[:, None] > column[None, :]
        bars &= column[:, None] >= column[None, :]
    beats &= bars

    def peel(carry):
        rank, left, level = carry
        front = left & ~jnp.any(beats & left[:, None], axis=0)
        return jnp.where(front, level, rank), left & ~front, level + 1

    rank = jnp.full((len(scores),), len(scores), jnp.int32)
    return lax.while_loop(lambda carry: jnp.any(carry[1]), peel, (rank, usable, jnp.int32(0)))[0]


@jax.jit
def crowding_distance(objectives: jax.Array, rank: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    """Returns how far the neighbors of each point are in its front: more is less crowded.

    As in Deb et al. (2002, section III-B), but that the gaps of all objectives are averaged and not summed.
    That, and the order of rows with equal scores, are those of pymoo.

    Args:
      objectives: scores, float [N, M].
      rank: the front of each point, int32 [N], from `non_dominated_rank`.
      valid: the rows that count, bool [N]; by default all.

    Returns:
      float32 [N]: the gap between the two neighbors as a part of the front's range, averaged over objectives;
      infinite at the ends of each objective, and in fronts of one or two; 0 in rows that are not valid. An
      objective in which a front has one value, or an infinite range, adds 0.
    """
    scores, usable = _prepare(objectives, valid)
    n = len(scores)
    rank, place = jnp.where(usable, rank, n), jnp.arange(n)
    total, size = jnp.zeros((n,), jnp.float32), jnp.zeros((n,), jnp.int32)
    for column in scores.T:  # a loop, so that sums have the same order under vmap
        order = jnp.lexsort((-column, rank))
        value, front = -column[order], rank[order]
        first = jnp.roll(front, 1) != front
        first = first.at[0].set(True)
        last = jnp.roll(first, -1).at[-1].set(True)
        start = lax.cummax(jnp.where(first, place, 0))
        stop = lax.cummin(jnp.where(last, place, n - 1), reverse=True)
        span = value[stop] - value[start]
        gap = jnp.where(first, jnp.inf, value - jnp.roll(value, 1)) + jnp.where(
            last, jnp.inf, jnp.roll(value, -1) - value
        )
        counts = (span > 0) & jnp.isfinite(span)
        part = jnp.where(counts, gap / jnp.where(counts, span, 1), 0)
        total = total.at[order].add(part)
        size = size.at[order].set(stop - start + 1)
    distance = jnp.where(size <= 2, jnp.inf, total / scores.shape[1])
    return jnp.where(usable, distance, 0)


@jax.jit
def pareto_front(objectives: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    """Returns which points no other dominates, bool [N]; equal points are all in the front.

    Memory grows with N, time with its square. See `non_dominated_rank` for the arguments.
    """
    scores, usable = _prepare(objectives, valid)
    others = jnp.where(usable[:, None], scores, jnp.nan)

    def beaten(row):
        return jnp.any(dominates(others, row[None, :]))

    return usable & ~lax.map(beaten, scores, batch_size=_BLOCK)


@jax.jit
def hypervolume(objectives: jax.Array, reference: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    """Returns the volume that is dominated by the points and above a reference, float32 [].

    Exact but for rounding: a sweep in O(N log N) for two objectives, O(N^2) for three.

    Args:
      objectives: scores, float [N, M], with M = 2 or 3.
      reference: a lower bound, float [M]; points that are not above it in all objectives add 0.
      valid: the rows that count, bool [N]; by default all.
    """
    scores, usable = _prepare(objectives, valid)
    bound = jnp.asarray(reference, jnp.float32)
    if scores.shape[1] not in (2, 3) or bound.shape != scores.shape[1:]:
        raise ValueError(
            f"hypervolume: got objectives {list(scores.shape)} and a reference {list(bound.shape)}, expected "
            "[N, M] and [M] with M of 2 and 3."
        )
    gains = jnp.where(usable[:, None], jnp.maximum(scores - bound[None, :], 0), 0)
    gains = gains[jnp.argsort(-gains[:, 0])]
    x, y = gains[:, 0], gains[:, 1]
    widths = x - jnp.append(x[1:], 0)
    if scores.shape[1] == 2:
        return jnp.sum(widths * lax.cummax(y))
    levels = -jnp.sort(-gains[:, 2])

    def area(level):  # of the slice at one height of the third objective
        return jnp.sum(widths * lax.cummax(jnp.where(gains[:, 2] >= level, y, 0)))

    return jnp.sum((levels - jnp.append(levels[1:], 0)) * lax.map(area, levels, batch_size=_BLOCK))


def _prepare(objectives: jax.Array, valid: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Scores as float32 [N, M], and the rows that count, bool [N]."""
    scores = jnp.asarray(objectives, jnp.float32)
    if scores.ndim != 2 or 0 in scores.shape:
        raise ValueError(
            f"objectives: got shape {list(scores.shape)}, expected [N, M]: a row for "
            "each point (vmap over more axes)."
        )
    usable = ~jnp.any(jnp.isnan(scores), axis=1)
    if valid is None:
        return scores, usable
    if jnp.shape(valid) != usable.shape:
        raise ValueError(
            f"valid: got shape {list(jnp.shape(valid))}, expected "
            f"{list(usable.shape)}, one for each row of the objectives."
        )
    return scores, usable & jnp.asarray(valid, bool)

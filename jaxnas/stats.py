"""Statistics of searches and predictors: rank correlation, regret and bootstrap intervals.

Pure functions in float32 for one list [n], under jit; vmap over more. Higher is better.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_BLOCK = 64  # Rows of pairs, or resamples, at a time: all at once would not fit in memory.
_PAIRED = 46_340  # Beyond it the number of pairs leaves int32.


def _pair(name: str, x: Any, y: Any) -> tuple[jax.Array, jax.Array]:
    x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
    if x.ndim != 1 or x.shape != y.shape or not len(x):
        raise ValueError(
            f"{name}: got shapes {list(x.shape)} and {list(y.shape)}, expected twice "
            "[n] (vmap over more axes)."
        )
    return x, y


@jax.jit
def ranks(x: Any) -> jax.Array:
    """Returns the ranks of [n] from 1 for the smallest; equal values share their average rank.

    float32 [n], exact to n = 2**23. All NaN if there is a NaN.
    """
    x = jnp.asarray(x, jnp.float32)
    ordered = jnp.sort(x)
    below = jnp.searchsorted(ordered, x, side="left")
    upto = jnp.searchsorted(ordered, x, side="right")
    average = 0.5 * (below + upto + 1).astype(jnp.float32)
    return jnp.where(jnp.any(jnp.isnan(x)), jnp.nan, average)


@jax.jit
def spearman(x: Any, y: Any) -> jax.Array:
    """Returns Spearman's rank correlation of [n] and [n], float32 [].

    Equal values share their average rank. NaN if there is a NaN, or only one value on a side.
    Raises ValueError for shapes that differ.
    """
    x, y = _pair("spearman", x, y)
    # Parts of n, so that sums of squares stay small.
    a, b = (ranks(v) / len(v) for v in (x, y))
    a, b = a - jnp.mean(a), b - jnp.mean(b)
    spread = jnp.sqrt(jnp.sum(a * a)) * jnp.sqrt(jnp.sum(b * b))
    varied = (jnp.max(x) > jnp.min(x)) & (jnp.max(y) > jnp.min(y))
    return jnp.where(varied, jnp.clip(jnp.sum(a * b) / jnp.where(varied, spread, 1), -1, 1), jnp.nan)


@jax.jit
def kendall_tau(x: Any, y: Any) -> jax.Array:
    """Returns Kendall's tau-b of [n] and [n], float32 []: the rank correlation that allows ties.

    Counted exactly over all pairs, by blocks: time grows with n squared, memory with n. NaN if there
    is a NaN, or only one value on a side. Raises ValueError for shapes that differ, or n > 46,340
    (Kendall 1945, doi 10.1093/biomet/33.3.239).
    """
    x, y = _pair("kendall_tau", x, y)
    if len(x) > _PAIRED:
        raise ValueError(
            f"kendall_tau: got {len(x):,} values, expected at most {_PAIRED:,}: more "
            "pairs than int32 counts. Take a sample."
        )

    def sign(a, b):  # by comparison: inf - inf would be NaN
        return (a > b).astype(jnp.int32) - (a < b).astype(jnp.int32)

    def count(row):
        a, b = sign(x, row[0]), sign(y, row[1])
        return tuple(jnp.sum(v) for v in (a * b, a * a, b * b))

    agree, in_x, in_y = (
        jnp.sum(part).astype(jnp.float32) for part in lax.map(count, (x, y), batch_size=_BLOCK)
    )
    varied = (in_x > 0) & (in_y > 0) & ~jnp.any(jnp.isnan(x) | jnp.isnan(y))
    scale = jnp.sqrt(jnp.where(varied, in_x, 1)) * jnp.sqrt(jnp.where(varied, in_y, 1))
    return jnp.where(varied, jnp.clip(agree / scale, -1, 1), jnp.nan)


@functools.partial(jax.jit, static_argnums=2)
def top_k_regret(predicted: Any, true: Any, k: int) -> jax.Array:
    """Returns how far the best of the k with the highest predictions is below the best, float32 [].

    Args:
      predicted: a predictor's scores, [n]; equal ones in their order, NaN behind all.
      true: the true scores, [n]. NaN are failures and never best; the regret is NaN if there is no
        number at all, infinite if there is none among the k.
      k: how many would be evaluated.

    Raises ValueError for shapes that differ, or a k that is not from 1 to n.
    """
    predicted, true = _pair("top_k_regret", predicted, true)
    if not 1 <= k <= len(true):
        raise ValueError(f"top_k_regret: k is {k}, expected 1 to n = {len(true)}.")
    true = jnp.where(jnp.isnan(true), -jnp.inf, true)
    # A sort, and not top_k: that one puts NaN first.
    chosen = true[jnp.lexsort((-predicted, jnp.isnan(predicted)))[:k]]
    return jnp.max(true) - jnp.max(chosen)


@jax.jit
def simple_regret(values: Any, best: Any) -> jax.Array:
    """Returns how far the best so far is below the best there is, float32 [..., n].

    Args:
      values: scores in the order of their evaluation, [..., n]; NaN are failures and do not count.
      best: the best score there is, [] or the leading axes of `values`.

    Infinite before the first number. Never rises along the last axis.
    """
    values, best = jnp.asarray(values, jnp.float32), jnp.asarray(best, jnp.float32)
    if best.shape not in ((), values.shape[:-1]):
        raise ValueError(
            f"simple_regret: best has shape {list(best.shape)}, expected [] or "
            f"{list(values.shape[:-1])}, the leading axes of the values."
        )
    so_far = lax.cummax(jnp.where(jnp.isnan(values), -jnp.inf, values), axis=values.ndim - 1)
    return jnp.broadcast_to(best, values.shape[:-1])[..., None] - so_far


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def bootstrap_interval(
    key: jax.Array,
    x: Any,
    statistic: Callable[[jax.Array], Any] = jnp.mean,
    level: float = 0.95,
    samples: int = 1000,
) -> tuple[jax.Array, jax.Array]:
    """Returns the percentile bootstrap interval of a statistic, its two ends float32.

    Args:
      key: a typed key.
      x: a sample, [n, ...]; rows are drawn with replacement.
      statistic: from a sample as x to an array, traceable; the ends have its shape. Under jit it is
        static: pass one function, not a new one each time.
      level: of confidence.
      samples: how many resamples.

    A NaN in the sample gives NaN. Raises ValueError for an empty sample, a level outside (0, 1), or
    samples below 1 (Efron and Tibshirani 1993, chapter 13).
    """
    x = jnp.asarray(x, jnp.float32)
    if x.ndim < 1 or not len(x):
        raise ValueError(
            f"bootstrap_interval: the sample has shape {list(x.shape)}, expected "
            "[n, ...] with n of at least 1."
        )
    if not 0 < level < 1 or samples < 1:
        raise ValueError(
            f"bootstrap_interval: level is {level} and samples is {samples}, expected "
            "between 0 and 1, and at least 1."
        )

    def resample(key):
        return jnp.asarray(statistic(x[jax.random.randint(key, (len(x),), 0, len(x))]), jnp.float32)

    values = lax.map(resample, jax.random.split(key, samples), batch_size=_BLOCK)
    values = jnp.where(jnp.any(jnp.isnan(x)), jnp.nan, values)
    ends = jnp.quantile(values, jnp.asarray([(1 - level) / 2, (1 + level) / 2]), axis=0)
    return ends[0], ends[1]

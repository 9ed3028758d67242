"""Targets of predictors: normal quantiles of ranks, and checks."""

import jax
import jax.numpy as jnp
import numpy as np


def rank_normal(targets: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the standard normal quantiles of the ranks of the targets in use, float32 [N].

    Equal targets share the mean of their ranks; rows not in use get 0, whatever they hold. Monotone in
    the targets, and blind to their units and outliers.
    """
    below = mask[None, :] & (targets[None, :] < targets[:, None])
    equal = mask[None, :] & (targets[None, :] == targets[:, None])
    rank = _count(below, 1) + (_count(equal, 1) - 1) / 2  # from 0
    quantile = (rank + 0.5) / jnp.maximum(_count(mask), 1)
    return jnp.where(mask, jax.scipy.special.ndtri(jnp.where(mask, quantile, 0.5)), 0.0)


def _count(there: jax.Array, axis: int | None = None) -> jax.Array:
    return jnp.sum(there, axis=axis, dtype=jnp.float32)


def standardize(targets: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the targets in use with mean 0 and standard deviation 1, float32 [N]; others are 0."""
    clean = jnp.where(mask, targets, 0.0).astype(jnp.float32)
    count = jnp.maximum(_count(mask), 1)
    centred = jnp.where(mask, clean - clean.sum() / count, 0.0)
    return centred / jnp.sqrt((centred**2).sum() / count + 1e-12)


def prepare(targets, mask, ranks: bool) -> tuple[jax.Array, jax.Array]:
    """Returns transformed targets, float32 [N], and the mask, less the rows whose target is no number.

    Raises ValueError if, outside jit, fewer than two rows are in use, or the shapes differ.
    """
    if jnp.ndim(targets) != 1 or jnp.shape(mask) != jnp.shape(targets):
        raise ValueError(
            f"fit: targets and mask must both be [N], got {jnp.shape(targets)} and {jnp.shape(mask)}."
        )
    targets, mask = jnp.asarray(targets, jnp.float32), jnp.asarray(mask, bool)
    mask = mask & ~jnp.isnan(targets)
    if not isinstance(mask, jax.core.Tracer) and (count := int(np.sum(np.asarray(mask)))) < 2:
        raise ValueError(
            f"fit: needs two points or more, got {count} (rows with mask False or a "
            "target of NaN do not count)."
        )
    return (rank_normal if ranks else standardize)(targets, mask), mask

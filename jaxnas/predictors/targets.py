"""Targets of predictors: normal quantiles of ranks, and checks of what a predictor is given."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def rank_normal(targets: jax.Array, mask: jax.Array) -> jax.Array:
    """The standard normal quantiles of the ranks of the targets in use, float32 [N].

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
    """The targets in use with mean 0 and standard deviation 1, float32 [N]; others are 0."""
    clean = jnp.where(mask, targets, 0.0).astype(jnp.float32)
    count = jnp.maximum(_count(mask), 1)
    centred = jnp.where(mask, clean - clean.sum() / count, 0.0)
    return centred / jnp.sqrt((centred**2).sum() / count + 1e-12)


def prepare(targets: Any, mask: Any, ranks: bool) -> tuple[jax.Array, jax.Array]:
    """The transformed targets, float32 [N], and the mask without the rows whose target is no finite number.

    Raises:
      ValueError: the shapes differ or, outside jit, fewer than two rows are in use.
    """
    if jnp.ndim(targets) != 1 or jnp.shape(mask) != jnp.shape(targets):
        raise ValueError(
            f"fit: targets and mask must both be [N], got {jnp.shape(targets)} and {jnp.shape(mask)}."
        )
    targets, mask = jnp.asarray(targets, jnp.float32), jnp.asarray(mask, bool)
    mask = mask & jnp.isfinite(targets)
    if not isinstance(mask, jax.core.Tracer) and (count := int(np.sum(np.asarray(mask)))) < 2:
        raise ValueError(
            f"fit: needs two points or more, got {count} (rows with mask False or a "
            "target that is NaN or infinite do not count)."
        )
    return (rank_normal if ranks else standardize)(targets, mask), mask


def check_inputs(groups: list[jax.Array], mask: jax.Array) -> None:
    """Checks the groups of inputs [N, F] of the rows in use.

    Raises:
      ValueError: there are none, they have another number of rows than the mask, [N], or, outside jit,
        something in them is NaN or infinite.
    """
    if not groups:
        raise ValueError("fit: the inputs hold no arrays; pass the features of the architectures.")
    for number, group in enumerate(groups):
        if len(group) != len(mask):
            raise ValueError(
                f"fit: inputs (leaf {number}) have {len(group)} rows, but there are {len(mask)} targets."
            )
        if isinstance(group, jax.core.Tracer) or isinstance(mask, jax.core.Tracer):
            continue
        wrong = np.asarray(mask) & ~np.isfinite(np.asarray(group)).all(axis=1)
        if wrong.any():
            raise ValueError(
                f"fit: inputs (leaf {number}) hold NaN or infinity in {wrong.sum()} rows in use, first in "
                f"row {int(np.argmax(wrong))}. Leave such rows out by the mask, or mend their features."
            )


def check_widths(fitted: list[jax.Array], groups: list[jax.Array]) -> None:
    """Checks that inputs [M, F] of a prediction have the widths F of those fitted to.

    Raises:
      ValueError: they have others.
    """
    expected, found = ([group.shape[-1] for group in one] for one in (fitted, groups))
    if expected != found:
        raise ValueError(
            f"predict: inputs have leaves of {found} columns, but the predictor was fitted to {expected}; "
            "make both by the same function of an architecture."
        )


def check_numbers(predictor: Any, counts: tuple[str, ...], positive: tuple[str, ...], least: int = 1) -> None:
    """Checks that settings are ints of at least `least`, or finite numbers above 0.

    Raises:
      ValueError: one is not; the message names it.
    """
    kind = type(predictor).__name__
    for name in counts:
        value = getattr(predictor, name)
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"{kind}: {name} is {value!r}, expected an int of at least {least}.")
    for name in positive:
        value = getattr(predictor, name)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float | np.number)
            or not 0 < value < np.inf
        ):
            raise ValueError(f"{kind}: {name} is {value!r}, expected a finite number above 0.")

"""Parts that predictors share: transformed targets, scaled inputs, their checks, and gradient training."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax


def scaling(groups: list[jax.Array], mask: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
    """The mean of each column [F] and the scale [] of each group, float32 [N, F], in the rows that count."""
    count = jnp.maximum(mask.sum(dtype=jnp.float32), 1.0)
    mean = [jnp.where(mask[:, None], group, 0).sum(0) / count for group in groups]
    scale = [
        jnp.sqrt(jnp.sum(jnp.where(mask[:, None], group - center[None], 0) ** 2) / count + 1e-6)
        for group, center in zip(groups, mean, strict=True)
    ]
    return mean, scale


def columns(groups: list[jax.Array], mean: list[jax.Array], scale: list[jax.Array]) -> jax.Array:
    """All groups side by side, float32 [N, F], each centered and scaled as a whole; there is at least one."""
    parts = [(group - m[None]) / s for group, m, s in zip(groups, mean, scale, strict=True)]
    # The squared columns of all groups together have a mean of about one.
    total = sum(part.shape[1] for part in parts)
    return jnp.concatenate(parts, 1) * (total / len(parts)) ** 0.5


def descend(
    loss: Callable[[Any, Any], jax.Array], params: Any, optimizer: optax.GradientTransformation, draws: Any
) -> Any:
    """Parameters after a step of the optimizer for each draw, such as a key, from which a loss follows."""

    def step(carry: Any, draw: Any) -> tuple[Any, None]:
        params, state = carry
        grads = jax.grad(loss)(params, draw)
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer power
            updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (params, optimizer.init(params)), draws)[0][0]


def rank_normal(targets: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the standard normal quantiles of the ranks of the targets in use, float32 [N].

    Equal targets share the mean of their ranks; rows not in use get 0, whatever they hold. The order
    of the targets alone decides, so neither their unit nor an outlier matters.
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
    centered = jnp.where(mask, clean - clean.sum() / count, 0.0)
    return centered / jnp.sqrt((centered**2).sum() / count + 1e-12)


def prepare(targets: Any, mask: Any, ranks: bool) -> tuple[jax.Array, jax.Array]:
    """Returns the transformed targets, float32 [N], and the mask without rows whose target is not finite.

    Raises:
      ValueError: shapes that differ, other dtypes or, outside jit, fewer than two rows in use.
    """
    known = _dtype(mask) == np.bool_ and _numeric(targets) and jnp.ndim(targets) == 1
    if not known or jnp.shape(mask) != jnp.shape(targets):
        raise ValueError(
            f"fit: targets are {_described(targets)} and mask is {_described(mask)}, expected a number and a "
            "bool for each row, float [N] and bool [N]."
        )
    targets, mask = jnp.asarray(targets, jnp.float32), jnp.asarray(mask, bool)
    mask = mask & jnp.isfinite(targets)
    if not isinstance(mask, jax.core.Tracer) and (count := int(np.sum(np.asarray(mask)))) < 2:
        raise ValueError(
            f"fit: needs two points or more, got {count} (rows with mask False or a "
            "target that is NaN or infinite do not count)."
        )
    return (rank_normal if ranks else standardize)(targets, mask), mask


def matrices(inputs: Any) -> list[jax.Array]:
    """Returns the leaves of inputs [N, ...] as matrices float32 [N, F]; raises ValueError for other ones."""
    leaves = jax.tree.leaves(inputs)
    for number, leaf in enumerate(leaves):
        if not hasattr(leaf, "dtype") or not _numeric(leaf) or leaf.ndim < 2:
            raise ValueError(
                f"the inputs of a predictor (leaf {number}) are {_described(leaf)}, expected an array of "
                "numbers [N, F], with a row for each architecture: x[:, None] if there is one number of "
                "each, x[None] for one architecture."
            )
    return [jnp.asarray(leaf, jnp.float32).reshape(leaf.shape[0], -1) for leaf in leaves]


def _numeric(values: Any) -> bool:
    return jnp.issubdtype(_dtype(values), jnp.number) or _dtype(values) == np.bool_


def _dtype(values: Any) -> Any:
    return values.dtype if hasattr(values, "dtype") else np.asarray(values).dtype


def _described(values: Any) -> str:
    if hasattr(values, "dtype"):
        return f"{values.dtype}{list(values.shape)}"
    return f"a {type(values).__name__}"


def check_inputs(groups: list[jax.Array], mask: jax.Array) -> None:
    """Checks that groups of inputs [N, F] fit a mask [N] and, outside jit, are finite in the rows in use."""
    if not groups:
        raise ValueError("fit: the inputs hold no arrays; pass the features of the architectures.")
    for number, group in enumerate(groups):
        if len(group) != len(mask):
            raise ValueError(
                f"fit: inputs (leaf {number}) have {len(group)} rows, but there are {len(mask)} targets."
            )
        _check_finite(f"fit: inputs (leaf {number})", group, mask, "Leave such rows out by the mask, or mend")


def _check_finite(what: str, group: jax.Array, mask: jax.Array | np.ndarray, advice: str) -> None:
    if isinstance(group, jax.core.Tracer) or isinstance(mask, jax.core.Tracer):
        return
    wrong = np.asarray(mask) & ~np.isfinite(np.asarray(group)).all(axis=1)
    if wrong.any():
        raise ValueError(
            f"{what} hold NaN or infinity in {wrong.sum()} rows, first in row "
            f"{int(np.argmax(wrong))}. {advice} their features."
        )


def check_fitted(fitted: Any, points: str, groups: list[jax.Array]) -> None:
    """Checks that `fitted` has arrays [..., F] named `points`, and that groups [M, F] are as wide."""
    if not isinstance(fitted, dict) or points not in fitted:
        raise TypeError(
            f"predict: fitted is a {type(fitted).__name__}, expected what fit of the same predictor returned."
        )
    expected, found = ([group.shape[-1] for group in one] for one in (fitted[points], groups))
    if expected != found:
        raise ValueError(
            f"predict: inputs have leaves of {found} columns, but the predictor was fitted to {expected}; "
            "make both by the same function of an architecture."
        )
    for number, group in enumerate(groups):
        every = np.ones(len(group), bool)
        _check_finite(f"predict: inputs (leaf {number})", group, every, "Leave such rows out, or mend")

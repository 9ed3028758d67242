"""Scaled inputs and the training loop of predictors that are trained by gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax


def scaling(groups: list[jax.Array], mask: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
    """The mean of each column [F] and the scale [] of each group, for `columns`.

    Args:
      groups: inputs, float32 [N, F] each.
      mask: the rows that count, bool [N].
    """
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
    """Parameters after a step of the optimizer for each of the draws; traceable.

    Args:
      loss: of the parameters and one draw, float32 [].
      params: to start from.
      optimizer: of the parameters.
      draws: an array with the steps in front, such as keys.
    """

    def step(carry: Any, draw: Any) -> tuple[Any, None]:
        params, state = carry
        grads = jax.grad(loss)(params, draw)
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer power
            updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (params, optimizer.init(params)), draws)[0][0]

"""Optimizer steps of weight-shared networks: weights that an architecture does not use stay as they are.

Weight decay and momentum would move every stored weight at every step, also those of layers and
channels that were not sampled. `training.freeze_inactive` asks for steps in which they do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import optax

Params = dict[str, Any]


def standard(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of optax under JAX's standard promotion of dtypes, whichever the user has.

    Schedules and bias corrections mix floats with whole numbers of steps, which strict promotion refuses.
    """

    def call(*args: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return function(*args)

    return call


def is_kernel(params: Params) -> Params:
    """Which parameters decay: kernels, and not biases, norms, tokens, positions or their tables."""
    flat = flax.traverse_util.flatten_dict(params)
    kernels = {path: path[-1].endswith("kernel") for path in flat}
    return flax.traverse_util.unflatten_dict(kernels)


def update(
    optimizer: optax.GradientTransformation,
    grads: Params,
    opt_state: Any,
    params: Params,
    active: Params | None = None,
) -> tuple[Params, Any]:
    """One optimizer step that leaves inactive weights, and their moments, bit for bit unchanged.

    Args:
      optimizer: any optax transformation.
      grads, params: trees of arrays.
      opt_state: the optimizer's state.
      active: a tree as `params` of bool arrays that broadcast to them, or None to update everything,
        as the official AutoFormer code does.

    Returns:
      New parameters and optimizer state.
    """
    updates, new_state = standard(optimizer.update)(grads, opt_state, params)
    if active is None:
        return optax.apply_updates(params, updates), new_state  # pyrefly: ignore[bad-return] # as params

    def keep(mask: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(jnp.broadcast_to(mask, old.shape), new, old)

    # The old value is selected: adding an update of zero would make 0.0 of -0.0.
    params = jax.tree.map(lambda m, p, u: keep(m, p + u, p), active, params, updates)
    # The mask of each leaf of the state: that of its parameter, or True for counters.
    masks = optax.tree_utils.tree_map_params(
        optimizer.init,
        lambda _, mask: mask,
        new_state,
        active,
        transform_non_params=lambda _: jnp.array(True),
    )
    new_state = jax.tree.map(keep, masks, new_state, opt_state)
    return params, new_state

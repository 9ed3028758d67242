"""AdamW for weight-shared networks: weights that an architecture does not use stay as they are.

Weight decay and momentum would move every stored weight at every step, also those of layers and
channels that were not sampled. `freeze_inactive` wraps an optimizer so that they do not.
"""

from __future__ import annotations

from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import optax

Params = dict[str, Any]


def warmup_cosine(
    peak: float, steps: int, warmup_steps: int, *, start: float = 1e-6, end: float = 1e-5
) -> optax.Schedule:
    """Linear warm-up to `peak`, then a cosine down to `end` (AutoFormer, section 4.1).

    Args:
      peak, start, end: learning rates; `start` and `end` are cut to `peak`.
      steps: of the whole training, warm-up included.
      warmup_steps: of the warm-up, fewer than `steps`.

    Raises:
      ValueError: a warm-up as long as the training.
    """
    if not 0 <= warmup_steps < steps:
        raise ValueError(
            f"warmup_steps is {warmup_steps}; it must be at least 0 and less than steps={steps}."
        )
    return optax.warmup_cosine_decay_schedule(
        min(start, peak), peak, warmup_steps, steps, end_value=min(end, peak)
    )


def adamw(
    learning_rate: optax.Schedule,
    *,
    weight_decay: float = 0.05,
    b1: float = 0.9,
    b2: float = 0.999,
    epsilon: float = 1e-8,
) -> optax.GradientTransformation:
    """AdamW with decay on the kernels only: not on biases, norms, tokens, positions or their tables."""
    return optax.adamw(learning_rate, b1, b2, epsilon, weight_decay=weight_decay, mask=_is_kernel)


def _is_kernel(params: Params) -> Params:
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
    updates, new_state = optimizer.update(grads, opt_state, params)
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

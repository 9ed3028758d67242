"""Checks of what a network is given."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def check_images(images: Any, size: int) -> None:
    """Checks that images are [B, size, size, channels].

    Raises:
      ValueError: says the shape that was given and the one that is expected.
    """
    given = jax.tree.map(jnp.shape, images)
    if not isinstance(given, tuple) or len(given) != 4 or given[1:3] != (size, size):
        raise ValueError(f"Expected images [B, {size}, {size}, channels], got {given}.")

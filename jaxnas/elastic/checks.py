"""Checks of what a network is given."""

from __future__ import annotations

import jax


def check_images(images: jax.Array, size: int) -> None:
    """Checks that images are [B, size, size, channels].

    Raises:
      ValueError: says the shape that was given and the one that is expected.
    """
    if images.ndim != 4 or images.shape[1:3] != (size, size):
        raise ValueError(f"Expected images [B, {size}, {size}, channels], got shape {images.shape}.")

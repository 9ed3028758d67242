"""Parts of arrays that hold something of all layers, read and written where they are.

A part is given by where it starts, an index for each axis (zeros may be left out at the end), and its
shape; axes in front that the shape lacks, as that of layers, are indexed and gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def read(array: jax.Array, start: Sequence[Any], shape: tuple[int, ...]) -> jax.Array:
    """The part of this shape."""
    sizes = (1,) * (array.ndim - len(shape)) + shape
    part = lax.dynamic_slice(array, _indices(array, start), sizes, allow_negative_indices=False)
    return part.reshape(shape)


def write(array: jax.Array, start: Sequence[Any], part: jax.Array) -> jax.Array:
    """The array with a part written, in place where this is the state of a loop."""
    part = part.reshape((1,) * (array.ndim - part.ndim) + part.shape)
    return lax.dynamic_update_slice(array, part, _indices(array, start), allow_negative_indices=False)


def at(arrays: Any, layer: jax.Array) -> Any:
    """A tree of arrays at a layer."""
    return jax.tree.map(lambda array: read(array, (layer,), array.shape[1:]), arrays)


def _indices(array: jax.Array, start: Sequence[Any]) -> list[jax.Array]:
    return [jnp.asarray(index, jnp.int32) for index in (*start, *(0,) * (array.ndim - len(start)))]

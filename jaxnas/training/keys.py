"""Keys of a run: each use of randomness has its own number, so a new one changes no other."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxnas.choice import nearest

# The number of a stream is its place, so a new one comes last.
_STREAMS = (
    "training_init training monitor evolution random selection exploration retraining_init retraining "
    "trials_init trials patterns seeds tuning_init tuning ranking ranking_interval spaces"
).split()


def check_seed(seed: Any) -> None:
    """Raises ValueError for a value that is no seed."""
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if not whole or not 0 <= seed < 2**32:
        raise ValueError(f"seed is {seed!r}, expected a whole number from 0 to {2**32 - 1}.")


def stream(seed: int, name: str) -> jax.Array:
    """The typed key of one use of randomness, as "evolution", by the seed of a run."""
    check_seed(seed)
    if name not in _STREAMS:
        raise ValueError(f"{name!r} is no use of randomness{nearest(name, _STREAMS)}")
    return jax.random.fold_in(jax.random.key(seed), _STREAMS.index(name))

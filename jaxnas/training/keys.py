"""Keys of a run: each use of randomness has its own number, so a new one changes no other."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxnas.choice import nearest

_NUMBERS = {
    "training_init": 0,
    "training": 1,
    "monitor": 2,
    "evolution": 3,
    "random": 4,
    "selection": 5,
    "exploration": 6,
    "retraining_init": 7,
    "retraining": 8,
    "trials_init": 9,
    "trials": 10,
    "patterns": 11,
    "seeds": 12,
    "tuning_init": 13,
    "tuning": 14,
    "ranking": 15,
    "ranking_interval": 16,
    "spaces": 17,
}


def check_seed(seed: Any) -> None:
    """Raises ValueError for a value that is no seed."""
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if not whole or not 0 <= seed < 2**32:
        raise ValueError(f"seed is {seed!r}, expected a whole number from 0 to {2**32 - 1}.")


def stream(seed: int, name: str) -> jax.Array:
    """The typed key of one use of randomness, as "evolution", by the seed of a run."""
    check_seed(seed)
    if name not in _NUMBERS:
        raise ValueError(f"{name!r} is no use of randomness{nearest(name, _NUMBERS) or '.'}")
    return jax.random.fold_in(jax.random.key(seed), _NUMBERS[name])

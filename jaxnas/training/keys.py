"""Keys of a run: each use of randomness has a number of its own, so that a new one changes no other."""

from __future__ import annotations

import jax

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


def stream(seed: int, name: str) -> jax.Array:
    """The typed key of one use of randomness.

    Args:
      seed: of the run.
      name: of the use, as "evolution".

    Raises:
      ValueError: no such use.
    """
    if name not in _NUMBERS:
        raise ValueError(f"{name!r} is no use of randomness{nearest(name, _NUMBERS) or '.'}")
    return jax.random.fold_in(jax.random.key(seed), _NUMBERS[name])

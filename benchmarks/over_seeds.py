"""Flags and accuracies of benchmarks that train a network with several seeds."""

from __future__ import annotations

import jax
import numpy as np
from absl import flags

from jaxnas.training.alone import Seeds

FIRST = flags.DEFINE_integer("first", 0, "The first seed.")
_TOGETHER = flags.DEFINE_integer(
    "together", None, "Seeds trained at once; by default one on a CPU, else all.", lower_bound=1
)


def together() -> int | None:
    """The number of seeds trained at once: the flag, or the default of this device."""
    return _TOGETHER.value or (1 if jax.default_backend() == "cpu" else None)


def accuracies(found: Seeds) -> dict[str, list[float]]:
    """The accuracies of trainings, in per cent.

    Args:
      found: of a task with the metric "accuracy".

    Returns:
      Mean and standard deviation over seeds by role ("test"), the deviation 0 for a single seed, and each
      value by "test_by_seed".
    """
    line = {}
    for role, metrics in found.metrics.items():
        values = 100 * metrics["accuracy"]
        deviation = np.std(values, ddof=1) if len(values) > 1 else 0.0
        line[role] = [round(float(x), 2) for x in (values.mean(), deviation)]
        line[f"{role}_by_seed"] = [round(float(x), 1) for x in values]
    return line

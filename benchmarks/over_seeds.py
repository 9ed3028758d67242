"""What benchmarks of networks trained with several seeds share: two flags, and the accuracies of a line."""

from __future__ import annotations

import numpy as np
from absl import flags

from jaxnas.training.ranking import usual_together
from jaxnas.training.seeds import Seeds

FIRST = flags.DEFINE_integer("first", 0, "The first seed.")
_TOGETHER = flags.DEFINE_integer(
    "together", None, "Seeds at once; one on a CPU if not given, and else all.", lower_bound=1
)


def together() -> int | None:
    """How many seeds are trained at once: as the flag says, or what is usual on this device."""
    return _TOGETHER.value or usual_together()


def accuracies(found: Seeds) -> dict[str, list[float]]:
    """The accuracies of trainings, in per cent.

    Args:
      found: of a task with the metric "accuracy".

    Returns:
      By role ("test") its mean and its standard deviation over seeds, which is 0 of a single one, and by
      "test_by_seed" each of them.
    """
    line = {}
    for role, metrics in found.metrics.items():
        values = 100 * metrics["accuracy"]
        deviation = np.std(values, ddof=1) if len(values) > 1 else 0.0
        line[role] = [round(float(x), 2) for x in (values.mean(), deviation)]
        line[f"{role}_by_seed"] = [round(float(x), 1) for x in values]
    return line

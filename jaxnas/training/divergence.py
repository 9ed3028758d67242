"""Detection of divergence, its error message and record, and the settings that may change after it."""

from __future__ import annotations

import dataclasses
import json
import math
import operator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxnas import files
from jaxnas.processes import is_first, on_host

if TYPE_CHECKING:
    from jaxnas.training.setup import Setup
    from jaxnas.training.store import Store

DIVERGED = "diverged.json"
# The settings that may be changed after a training has diverged.
MENDS = ("training.learning_rate", "training.clip", "training.warmup_steps")


class DivergedError(RuntimeError):
    """The loss or a gradient is no longer finite, or the loss has left its course."""


@dataclasses.dataclass(frozen=True)
class Course:
    """Running statistics of a loss, which detect divergence while values are still finite.

    A loss is bad above 10 times its best smoothed value, twice the first one, and 10: less may be a hard
    batch, or the beginning of fine-tuning. Three bad steps in a row make the smoothed loss bad.

    Attributes:
      first: loss; None before the first step.
      smoothed: exponential average, in which a loss counts as at most 4 times the limit.
      best: least smoothed loss so far.
      since: the step, from 1, from which all losses were suspicious, above twice the first one and 3 times
        the best smoothed one; 0 if the last one was not. If the training diverges, it did so here.
      last: loss.
    """

    first: float | None = None
    smoothed: float = 0.0
    best: float = 0.0
    since: int = 0
    last: float = 0.0

    def after(self, step: int, loss: float) -> Course:
        """The course after a step; a loss that is not finite, of a step that was skipped, does not count."""
        if not math.isfinite(loss):
            return self
        if self.first is None:
            return Course(loss, loss, loss, last=loss)
        limit = self.limit
        smoothed = 0.9 * self.smoothed + 0.1 * min(loss, 4 * limit)
        suspicious = loss > max(2 * abs(self.first), 3 * abs(self.best))
        since = (self.since or step) if suspicious else 0
        return Course(self.first, smoothed, min(self.best, smoothed), since, loss)

    @property
    def limit(self) -> float:
        """The loss above which one is bad."""
        return max(10 * abs(self.best), 2 * abs(self.first or 0.0), 10.0)

    @property
    def bad(self) -> bool:
        """Whether the last loss is bad, so that weights are not saved."""
        return self.last > self.limit

    @property
    def ruined(self) -> bool:
        """Whether the training has diverged."""
        return self.smoothed > self.limit


def check_steps(setup: Setup, flags: list[tuple[range, Any, Any, Any]], store: Store) -> None:
    """Moves the store's course on, and raises DivergedError for a step at which the training diverged.

    Args:
      setup: of the training.
      flags: of each call, the numbers of its steps from 0, whether each was finite (bool, [steps] or []),
        the architectures that they trained, or None, and their losses.
      store: of the training; the step is recorded in its folder.
    """
    for numbers, finite, _, losses in flags:
        finite, losses = np.atleast_1d(finite), np.atleast_1d(losses)  # [steps of the call]
        for number, is_finite, loss in zip(numbers, finite, losses, strict=True):
            store.course = store.course.after(number + 1, float(loss)) if is_finite else store.course
            if not is_finite or store.course.ruined:
                step = store.course.since if is_finite else number + 1
                raise diverged(step, setup, store, _archs_of(step, flags))


def _archs_of(step: int, flags: list[tuple[range, Any, Any, Any]]) -> Any:
    for numbers, _, archs, _ in flags:
        if step - 1 in numbers:
            row = numbers.index(step - 1) if len(numbers) > 1 else ...
            return jax.tree.map(operator.itemgetter(row), on_host(archs))
    return None  # trained before the last look


def diverged(step: int, setup: Setup, store: Store, archs: Any = None) -> DivergedError:
    """The error of a step, which is recorded in the folder of the store.

    Where the loss left its course, checkpoints from the first suspicious step on are removed.

    Args:
      step: its number, from 1.
      setup, store: of the training.
      archs: a batch of the hard architectures that the step trained, if they are known.
    """
    course = store.course
    good = store.last_before(course.since - 1 if course.bad else step)
    trained = [] if archs is None else setup.net.space.to_dicts(archs)
    if store.folder is not None and is_first():
        record = {"step": step, "architectures": trained, "seed": setup.seed}
        files.write_json(store.folder / DIVERGED, record)
    which = f" It trained {json.dumps(files.plain(trained[0]))}." if len(trained) == 1 else ""
    what = f"The loss or a gradient of step {step} is not finite."
    if course.bad:
        what = (
            f"The training diverged at step {step}: the loss is {course.last:.3g}, and was {course.best:.3g} "
            "at its best."
        )
    kept = "There is no checkpoint before it" if good is None else f"Checkpoint {good} is good and is kept"
    advice = (
        f"{kept}: start again with the same workdir and a smaller training.learning_rate, with "
        "training.clip=1, or with a longer training.warmup_steps, and the run resumes from what is kept."
    )
    if step == 1:
        advice = (
            "These are the weights that training began with, so no rate mends it. Look for numbers in the "
            "data that are not finite or very large, and for tokens beyond the sizes of the network: Flax "
            "makes NaN of a token that an embedding has no row for."
        )
    return DivergedError(f"{what}{which} {advice}")

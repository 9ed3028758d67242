"""Architectures trained alone, as what inherited weights are compared with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh

from jaxnas.executors import Calls
from jaxnas.space import Arch
from jaxnas.subnet import init
from jaxnas.tasks import Task
from jaxnas.training.evaluate import make_evaluator
from jaxnas.training.seeds import Seeds, train_seeds
from jaxnas.training.settings import Training
from jaxnas.training.trials import begin, make_trials, on_workers


def scores_alone(
    task: Task,
    net: nn.Module,
    training: Training,
    archs: Arch,
    *,
    seed: int = 0,
    together: int | None = None,
    mesh: Mesh | None = None,
    calls: Calls | None = None,
    told: Callable[[int, float], None] | None = None,
) -> np.ndarray:
    """The first metric of architectures on the role "search" after training alone, as scores.

    All start from weights and see batches of one seed, side by side in one program. A network with batch
    statistics is trained one architecture after another.

    Args:
      task, net: the supernet, whose architectures are trained.
      training: how each is trained.
      archs: a batch of n architectures.
      seed: of the trainings.
      together: how many are trained at once, each then at the largest size; None for all, and 1 for one after
        another. See `usual_together`.
      mesh: of the devices; None for those of the settings.
      calls: on workers, of a function from an architecture as a JSON text and the number of steps to its
        score, which knows all else; see `on_workers`. None for here.
      told: called with the number of each architecture and its score, in order and as soon as it is known.

    Returns:
      float32 [n]; higher is better, and NaN where a training diverged.
    """
    rows, scores = range(len(next(iter(archs.values())))), []

    def tell(found: Iterable[float]) -> None:
        for score in found:
            scores.append(np.float32(score))
            if told is not None:
                told(len(scores) - 1, float(score))

    def tell_group(group: Seeds) -> None:
        metric = task.metrics[0]
        found = np.asarray(metric.score(group.metrics["search"][metric.name]), np.float32)
        tell(np.where(group.best_steps > 0, found, np.float32(np.nan)))

    def row_by_row(scores_of: Callable[[Arch, Any], np.ndarray], how: Any) -> None:
        for row in rows:
            tell(scores_of(jax.tree.map(lambda x, row=row: x[row : row + 1], archs), how))

    if calls is not None:
        begin(calls, net.space, archs, training.steps)
        row_by_row(on_workers(calls, net.space), training.steps)
    elif "batch_stats" in jax.eval_shape(lambda: init(net, jax.random.key(0), task.inputs)):
        mesh = training.mesh() if mesh is None else mesh
        evaluate = make_evaluator(task, net, "search", mesh=mesh)
        row_by_row(make_trials(task, net, training, (training.steps,), evaluate, mesh, seed=seed), 0)
    else:
        # Measured once, at the end, as the inherited weights are: those of the best step would be favored.
        once = dataclasses.replace(training, evaluate_every=training.steps, average=0.0)
        train_seeds(
            *(task, net, once, [seed] * len(rows)),
            arch=archs,
            role="search",
            together=together,
            test=False,
            may_diverge=True,
            told=tell_group,
        )
    return np.asarray(scores)


def usual_together() -> int | None:
    """How many networks are trained at once: 1 on a CPU, where each then pays for its own size; else all."""
    return 1 if jax.default_backend() == "cpu" else None

"""Architectures trained alone, as what inherited weights are compared with."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh

from jaxnas.executors import Calls
from jaxnas.space import Arch
from jaxnas.subnet import init
from jaxnas.tasks import Task
from jaxnas.training.evaluate import make_evaluator
from jaxnas.training.seeds import train_seeds
from jaxnas.training.settings import Training
from jaxnas.training.trials import make_trials, on_workers


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

    Returns:
      float32 [n]; higher is better, and NaN where a training diverged.
    """
    if calls is not None:
        return on_workers(calls, net.space)(archs, training.steps)
    shapes = jax.eval_shape(lambda: init(net, jax.random.key(0), task.inputs))
    if "batch_stats" in shapes:
        mesh = training.mesh() if mesh is None else mesh
        evaluate = make_evaluator(task, net, "search", mesh=mesh)
        return make_trials(task, net, training, (training.steps,), evaluate, mesh, seed=seed)(archs, 0)
    # Measured once, at the end, as the inherited weights are: those of the best step would be favoured.
    once, metric = dataclasses.replace(training, evaluate_every=training.steps, average=0.0), task.metrics[0]
    seeds = [seed] * len(next(iter(archs.values())))
    found = train_seeds(
        task, net, once, seeds, arch=archs, role="search", together=together, test=False, may_diverge=True
    )
    scores = np.asarray(metric.score(found.metrics["search"][metric.name]), np.float32)
    return np.where(found.best_steps > 0, scores, np.float32(np.nan))


def usual_together() -> int | None:
    """How many networks are trained at once: 1 on a CPU, where each then pays for its own size; else all."""
    return 1 if jax.default_backend() == "cpu" else None

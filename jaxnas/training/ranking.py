"""How well inherited weights rank architectures: beside the same architectures trained alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from jaxnas import stats
from jaxnas.executors import Calls
from jaxnas.space import Arch
from jaxnas.subnet import init
from jaxnas.tasks import Task
from jaxnas.training.evaluate import make_evaluator
from jaxnas.training.keys import stream
from jaxnas.training.seeds import train_seeds
from jaxnas.training.settings import Training
from jaxnas.training.trials import make_trials, on_workers


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Architectures with the weights of a supernet and with their own.

    Attributes:
      archs: a batch of n.
      inherited: the first metric with the supernet's weights, as a score: higher is better; float32 [n].
      alone: the same after training alone; NaN where that diverged.
      kendall_tau: rank correlation (tau-b) of the two, from -1 to 1; NaN where all of one are equal.
      interval: 95 % of its bootstrap distribution over architectures, from low to high.
      role: of the data on which both were measured.
      steps: of each training alone.
    """

    archs: Arch
    inherited: np.ndarray
    alone: np.ndarray
    kendall_tau: float
    interval: tuple[float, float]
    role: str
    steps: int


def rank_correlation(
    task: Task,
    net: nn.Module,
    variables: Any,
    training: Training | int,
    archs: Arch | int = 20,
    *,
    role: str = "search",
    seed: int = 0,
    together: int | None = None,
    mesh: Mesh | None = None,
    alone: Calls | None = None,
) -> Ranking:
    """Kendall's tau between inherited and stand-alone quality of architectures.

    All networks that are trained alone start from weights and see batches of one seed, side by side in one
    program. A network with batch statistics is trained one architecture after another.

    Args:
      task, net, variables: the trained supernet.
      training: how an architecture is trained alone, or only the number of steps.
      archs: a batch of architectures, or how many are drawn.
      role: that they are measured on, "search" or "validation".
      seed: of what is drawn and of the trainings alone.
      together: how many are trained at once; None for all, and 1 on a CPU, where each then pays for its own
        size. At once, each runs at the largest size.
      mesh: of the devices that evaluate the supernet; None for all.
      alone: the trainings alone on workers, see `scores_alone`; None for here.

    Raises:
      ValueError: fewer than 2 architectures.
    """
    if isinstance(archs, int):
        if archs < 2:
            raise ValueError(f"rank_correlation: archs is {archs}, expected at least 2 to compare.")
        archs = net.space.sample(stream(seed, "ranking"), archs)
    training = training if isinstance(training, Training) else Training(steps=training)
    evaluate = make_evaluator(task, net, role, mesh=mesh)
    inherited = evaluate.scores(variables, archs)
    own = scores_alone(
        task, net, training, archs, role=role, seed=seed, together=together, mesh=mesh, calls=alone
    )
    there = np.isfinite(inherited) & np.isfinite(own)
    tau = stats.kendall_tau(inherited[there], own[there]) if there.any() else np.nan
    interval = _interval(inherited[there], own[there], stream(seed, "ranking_interval"))
    return Ranking(archs, inherited, own, float(tau), interval, role, training.steps)


def scores_alone(
    task: Task,
    net: nn.Module,
    training: Training,
    archs: Arch,
    *,
    role: str = "search",
    seed: int = 0,
    together: int | None = None,
    mesh: Mesh | None = None,
    calls: Calls | None = None,
) -> np.ndarray:
    """The first metric of architectures after training alone, as scores; see `rank_correlation`.

    Args:
      task, net, training, archs, role, seed, together, mesh: see `rank_correlation`.
      calls: on workers, of a function from an architecture as a JSON text and the number of steps to its
        score, which knows all else; see `on_workers`. None for here.

    Returns:
      float32 [n] for a batch of n architectures; higher is better, and NaN where a training diverged.
    """
    if calls is not None:
        return on_workers(calls, net.space)(archs, training.steps)
    shapes = jax.eval_shape(lambda: init(net, jax.random.key(0), task.inputs))
    if "batch_stats" in shapes:
        mesh = training.mesh() if mesh is None else mesh
        evaluate = make_evaluator(task, net, role, mesh=mesh)
        return make_trials(task, net, training, (training.steps,), evaluate, mesh, seed=seed)(archs, 0)
    # Measured once, at the end, as the inherited weights are: those of the best step would be favoured.
    once, metric = dataclasses.replace(training, evaluate_every=training.steps, average=0.0), task.metrics[0]
    seeds = [seed] * len(next(iter(archs.values())))
    found = train_seeds(
        task, net, once, seeds, arch=archs, role=role, together=together, test=False, may_diverge=True
    )
    scores = np.asarray(metric.score(found.metrics[role][metric.name]), np.float32)
    return np.where(found.best_steps > 0, scores, np.float32(np.nan))


def usual_together() -> int | None:
    """How many networks are trained at once: 1 on a CPU, where each then pays for its own size; else all."""
    return 1 if jax.default_backend() == "cpu" else None


def _interval(x: np.ndarray, y: np.ndarray, key: jax.Array, samples: int = 1000) -> tuple[float, float]:
    """Where 95 % of Kendall's tau lie over architectures drawn again with replacement.

    Draws in which all values of one kind are equal have no tau, and are left out; NaN if all are so.
    """
    if not len(x):
        return np.nan, np.nan
    rows = jax.random.randint(key, (samples, len(x)), 0, len(x))
    a, b = jnp.asarray(x), jnp.asarray(y)
    tau = jax.jit(lambda rows: lax.map(lambda own: stats.kendall_tau(a[own], b[own]), rows))
    taus = np.asarray(tau(rows))
    taus = taus[np.isfinite(taus)]
    if not len(taus):
        return np.nan, np.nan
    low, high = np.percentile(taus, [2.5, 97.5])
    return float(low), float(high)

"""How well a supernet ranks architectures, for the result of a run."""

from __future__ import annotations

import math
import os
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh

from jaxnas import files
from jaxnas.executors import Calls
from jaxnas.report.result import RankingOf
from jaxnas.runs.alone import trained_alone
from jaxnas.tasks import Task
from jaxnas.training.evaluate import make_evaluator
from jaxnas.training.keys import stream
from jaxnas.training.settings import Training


def rank(
    task: Task,
    net: nn.Module,
    variables: Any,
    training: Training,
    count: int,
    *,
    steps: int | None = None,
    seed: int = 0,
    mesh: Mesh | None = None,
    alone: Calls | None = None,
    workdir: str | os.PathLike | None = None,
) -> RankingOf:
    """Kendall's tau of `count` random architectures with the supernet's weights and with their own.

    Args:
      task, net, variables: the trained supernet.
      training: of an architecture alone.
      count: of architectures.
      steps: of a training alone; None for as many as the settings say.
      seed: of the run.
      mesh: of the devices; None for all.
      alone: the trainings alone on workers, see `scores_alone`; None for here.
      workdir: where they are kept, see `trained_alone`; None for nowhere.

    Raises:
      ValueError: fewer than 2 architectures.
    """
    if count < 2:
        raise ValueError(f"rank: count is {count}, expected at least 2 architectures to compare.")
    training = training.shortened(steps)
    archs = net.space.sample(stream(seed, "ranking"), count)
    inherited = make_evaluator(task, net, "search", mesh=mesh).scores(variables, archs)
    own = trained_alone(task, net, training, archs, seed=seed, mesh=mesh, calls=alone, workdir=workdir)
    there = np.isfinite(inherited) & np.isfinite(own)
    low, high = _interval(inherited[there], own[there], stream(seed, "ranking_interval"))
    sign = task.metrics[0].score(1.0)
    return RankingOf(
        architectures=tuple(files.plain(net.space.to_dicts(archs))),
        inherited=tuple(files.plain(sign * inherited)),
        alone=tuple(files.plain(sign * own)),
        kendall_tau=files.plain(kendall_tau(inherited[there], own[there])),
        interval=(files.plain(low), files.plain(high)),
        role="search",
        steps=training.steps,
    )


def kendall_tau(x: Any, y: Any) -> float:
    """Kendall's tau-b of [n] and [n]; NaN for a NaN, for fewer than two, or if all of one are equal."""
    import scipy.stats  # takes a second, and few runs need it

    return float(scipy.stats.kendalltau(x, y).statistic) if len(x) > 1 else math.nan


def _interval(x: np.ndarray, y: np.ndarray, key: jax.Array, samples: int = 1000) -> tuple[float, float]:
    """Where 95 % of Kendall's tau lie over architectures drawn again with replacement.

    Draws in which all values of one kind are equal have no tau, and are left out; NaN if all are so.
    """
    if not len(x):
        return math.nan, math.nan
    rows = np.asarray(jax.random.randint(key, (samples, len(x)), 0, len(x)))
    taus = np.asarray([kendall_tau(x[own], y[own]) for own in rows])
    taus = taus[np.isfinite(taus)]
    if not len(taus):
        return math.nan, math.nan
    low, high = np.percentile(taus, [2.5, 97.5])
    return float(low), float(high)

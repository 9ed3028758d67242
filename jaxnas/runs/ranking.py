"""How well a supernet ranks architectures, for the result of a run."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import Mesh

from jaxnas import files
from jaxnas.report.result import RankingOf
from jaxnas.tasks import Task
from jaxnas.training.fit import option_values
from jaxnas.training.ranking import rank_correlation
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
) -> RankingOf:
    """Kendall's tau of `count` random architectures with the supernet's weights and with their own.

    Args:
      task, net, variables: the trained supernet.
      training: of an architecture alone.
      count: of architectures.
      steps: of a training alone; None for as many as the settings say.
      seed: of the run.
      mesh: of the devices; None for all.
    """
    if steps is not None:
        warmup = None if training.warmup_steps is None else min(training.warmup_steps, steps // 10)
        training = dataclasses.replace(training, steps=steps, warmup_steps=warmup)
    # On a CPU each network pays for its own size when they run in turn; at once, all have the largest.
    together = 1 if jax.default_backend() == "cpu" else None
    found = rank_correlation(
        task,
        net,
        variables,
        dataclasses.replace(training, average=0.0),
        count,
        seed=seed,
        together=together,
        mesh=mesh,
    )
    sign = task.metrics[0].score(1.0)

    def number(x: Any) -> Any:
        return files.plain(float(x))

    return RankingOf(
        architectures=tuple(files.plain(option_values(net.space, found.archs))),
        inherited=tuple(number(sign * x) for x in found.inherited),
        alone=tuple(number(sign * x) for x in found.alone),
        kendall_tau=number(found.kendall_tau),
        interval=(number(found.interval[0]), number(found.interval[1])),
        role=found.role,
        steps=found.steps,
    )

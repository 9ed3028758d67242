"""How well a supernet ranks architectures, for the result of a run."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
from jax.sharding import Mesh

from jaxnas import files
from jaxnas.executors import Calls
from jaxnas.report.result import RankingOf
from jaxnas.tasks import Task
from jaxnas.training.ranking import rank_correlation, usual_together
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
    """
    training, together = training.shortened(steps), usual_together()
    found = rank_correlation(
        task, net, variables, training, count, seed=seed, together=together, mesh=mesh, alone=alone
    )
    sign = task.metrics[0].score(1.0)

    def number(x: Any) -> Any:
        return files.plain(float(x))

    return RankingOf(
        architectures=tuple(files.plain(net.space.to_dicts(found.archs))),
        inherited=tuple(number(sign * x) for x in found.inherited),
        alone=tuple(number(sign * x) for x in found.alone),
        kendall_tau=number(found.kendall_tau),
        interval=(number(found.interval[0]), number(found.interval[1])),
        role=found.role,
        steps=found.steps,
    )

"""What a search trains alone, as independent jobs: trials, finalists and what is ranked.

They run in any process that reaches the data and the workdir, and write nothing.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.binary import Asked
from experiments.configs import CONFIGS
from jaxnas import runs
from jaxnas.space import Arch, Space
from jaxnas.training.evaluate import make_evaluator
from jaxnas.training.ranking import scores_alone, usual_together
from jaxnas.training.trials import make_trials

Scores = Callable[[Arch, Any], np.ndarray]


@functools.lru_cache(maxsize=1)
def _session(job: Asked) -> tuple[Space, Scores, Scores]:
    """The space of a search, and the scores of trials and of trainings alone; a worker makes them once."""
    config = job.read(CONFIGS)
    made = job.session(config)
    task, net, mesh, settings = made.task, made.net, made.mesh, config.search
    evaluate = make_evaluator(task, net, "search", mesh=mesh, limit=settings.limit)
    seed, method = config.seed, settings.method
    steps = method.steps if isinstance(method, runs.Trials) else ()
    trials = make_trials(task, net, config.training, steps, evaluate, mesh, seed=seed)

    def alone(archs: Arch, steps: Any) -> np.ndarray:
        training, together = config.alone.shortened(steps), usual_together()
        return scores_alone(task, net, training, archs, seed=seed, together=together, mesh=mesh)

    return net.space, trials, alone


def trial(job: Asked, arch: str, fidelity: int) -> float:
    """The score of an architecture, given as option values in JSON, after a trial of that fidelity."""
    space, trials, _ = _session(job)
    return float(trials(_one(space, arch), fidelity)[0])


def alone(job: Asked, arch: str, steps: int | None) -> float:
    """The score of an architecture after training alone, as a finalist or to be ranked."""
    space, _, scores = _session(job)
    return float(scores(_one(space, arch), steps)[0])


def _one(space: Space, arch: str) -> Arch:
    return jax.tree.map(lambda x: x[None], space.from_dict(json.loads(arch)))

"""Trainings alone as independent jobs: trials, finalists, and architectures to rank.

They run in any process that reaches the data and the workdir, and write nothing.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import jax

from jaxnas import runs
from jaxnas.experiments.configs import CONFIGS
from jaxnas.experiments.session import Asked
from jaxnas.space import Arch
from jaxnas.training import Options
from jaxnas.training.alone import make_scorer, make_trials


@functools.lru_cache(maxsize=1)
def _scores(job: Asked) -> dict[str, Callable[[str, Any], float]]:
    """The scores of trials and of trainings alone of a search; a worker makes them once."""
    made = job.session(CONFIGS)
    config, task, net, method = made.config, made.task, made.net, made.config.search.method
    given: dict[str, Any] = dict(seed=config.seed, options=Options(mesh=made.mesh))
    steps = method.steps if isinstance(method, runs.Trials) else ()
    trials = make_trials(task, net, config.training, steps, limit=config.search.limit, **given)

    @functools.cache
    def scorer(steps: int | None) -> Any:
        return make_scorer(task, net, config.alone.shortened(steps), **given)

    def one(text: str) -> Arch:
        return jax.tree.map(lambda x: x[None], net.space.from_dict(json.loads(text)))

    return {
        "trial": lambda text, fidelity: float(trials(one(text), fidelity)[0]),
        "alone": lambda text, steps: next(scorer(steps)(one(text))),
    }


def trial(job: Asked, arch: str, fidelity: int) -> float:
    """The score of an architecture, given as option values in JSON, after a trial of that fidelity."""
    return _scores(job)["trial"](arch, fidelity)


def alone(job: Asked, arch: str, steps: int | None) -> float:
    """The score of an architecture after training alone, as a finalist or to be ranked."""
    return _scores(job)["alone"](arch, steps)

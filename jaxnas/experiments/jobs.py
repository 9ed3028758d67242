"""Trainings alone as independent jobs: trials, finalists, architectures to rank, and retrainings.

They run in any process that reaches the data and the workdir. Only a retraining writes there.
"""

from __future__ import annotations

import functools
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax

from jaxnas import files, runs, trackers, training
from jaxnas.experiments.configs import CONFIGS
from jaxnas.experiments.session import Asked, Session, deciding_of
from jaxnas.space import Arch
from jaxnas.training.alone import make_scorer, make_trials
from jaxnas.training.plain import to_dict
from jaxnas.training.workdir import open_workdir


@functools.lru_cache(maxsize=1)
def _scores(job: Asked) -> dict[str, Callable[[str, Any], float]]:
    """The scores of trials and of trainings alone of a search; a worker makes them once."""
    made = job.session(CONFIGS)
    config, task, net, method = made.config, made.task, made.net, made.config.search.method
    steps = method.steps if isinstance(method, runs.Trials) else ()
    trials = make_trials(task, net, config.training, steps, limit=config.search.limit, seed=config.seed)

    @functools.cache
    def scorer(steps: int | None) -> Any:
        return make_scorer(task, net, config.alone.shortened(steps), seed=config.seed)

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


def retraining(job: Asked, architecture: str, weights: str, seed: int | None) -> tuple[dict, dict] | None:
    """`retrain` for the run that a command line asks for."""
    return retrain(job.session(CONFIGS), files.as_path(job.workdir), architecture, weights, seed)


def retrain(
    session: Session, root: pathlib.Path, architecture: str, weights: str, seed: int | None = None
) -> tuple[dict, dict] | None:
    """Trains an architecture alone, in root/retrained/<architecture>-<weights>-<seed>, and measures it.

    `root` is the workdir of the search; see `Session.architecture`. Weights are "scratch" or "inherited".
    Returns metrics by role, and where the time went; None if it was stopped and saved before its end.
    """
    config = session.config
    seed = config.seed if seed is None else seed
    session.check_task(root)
    costs = session.costs(root)
    arch = session.architecture(architecture, root, costs)
    inherited = weights == "inherited"
    variables = session.weights(root) if inherited else None
    described = session.net.space.to_dict(arch)
    print(f"{architecture}: {described}", flush=True)
    # The settings of the supernet's training count only where its weights do.
    own = {name: part for name, part in deciding_of(config).items() if name not in ("training", "recipe")}
    decides = {
        **own,
        "seed": seed,
        "retraining": config.alone.deciding(),
        "distill": to_dict(config.distill),
        "architecture": described,
    }
    label = architecture.replace(":", "_")
    if not re.fullmatch(r"\w{1,40}", label):
        label = "given_" + files.sha256(architecture.encode())[:12]
    part = f"{label}-{weights}-{seed}"
    log = trackers.of(config.log, root, part)
    with open_workdir(root / "retrained" / part) as workdir:
        try:
            result = runs.retrain(
                *(session.task, session.net, arch),
                runs.Lab(workdir, seed, config.alone, session.mesh, costs, config=decides, log=log),
                name=architecture,
                variables=variables,
                distill=config.distill if inherited else None,
            )
        except training.Stopped:
            return None
        times = files.read_json(workdir / "times.json")
    return {role: dict(x) for role, x in result.found.metrics.items()}, times

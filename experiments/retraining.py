"""A retraining as an independent job, which runs in any process that reaches the data and the workdir."""

from __future__ import annotations

import dataclasses
import re

from experiments import binary
from experiments.configs import CONFIGS
from jaxnas import files, runs, training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retraining(binary.Asked):
    """What decides a retraining, as on the command line; the workdir is that of the search.

    Attributes:
      architecture, weights: what is trained, and what it starts from.
      seed: of the retraining; None for the config's.
    """

    architecture: str
    weights: str
    seed: int | None


def label_of(text: str, weights: str, seed: int) -> str:
    """The folder of a retraining: what was trained, from which weights, with which seed."""
    name = text.replace(":", "_")
    if not re.fullmatch(r"\w{1,40}", name):
        name = "given_" + files.sha256(text.encode())[:12]
    return f"{name}-{weights}-{seed}"


def run(job: Retraining) -> tuple[dict, dict] | None:
    """Trains an architecture alone, in workdir/retrained/<label>, and measures it.

    Returns:
      Metrics by role, and where the time went; None if it was stopped and saved before its end.
    """
    config = job.read(CONFIGS)
    seed, root = config.seed if job.seed is None else job.seed, files.as_path(job.workdir)
    path = root / "retrained" / label_of(job.architecture, job.weights, seed)
    session = job.session(config)
    session.check_task(root)
    costs = session.costs(root)
    arch = session.architecture(job.architecture, root, costs)
    variables = session.trained(root).evaluated() if job.weights == "inherited" else None
    described = session.net.space.to_dict(arch)
    print(f"{job.architecture}: {described}", flush=True)
    with training.open_workdir(path) as workdir:
        # The settings of the supernet's training count only where its weights do.
        own = {name: part for name, part in session.deciding.items() if name not in ("training", "recipe")}
        try:
            result = runs.retrain(
                session.task,
                session.net,
                arch,
                config.alone,
                workdir,
                name=job.architecture,
                variables=variables,
                costs=costs,
                seed=seed,
                config={
                    **own,
                    "seed": seed,
                    "retraining": config.alone.deciding(),
                    "architecture": described,
                },
                mesh=session.mesh,
            )
        except training.Stopped:
            return None
    return {role: dict(x) for role, x in result.found.metrics.items()}, files.read_json(path / "times.json")

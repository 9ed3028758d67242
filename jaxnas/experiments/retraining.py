"""A retraining as an independent job, which runs in any process that reaches the data and the workdir."""

from __future__ import annotations

import dataclasses
import pathlib
import re

from jaxnas import files, runs, training
from jaxnas.experiments.configs import CONFIGS
from jaxnas.experiments.session import Asked, Session, deciding_of
from jaxnas.training.plain import to_dict


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retraining(Asked):
    """The arguments of a retraining, as on the command line; the workdir is that of the search.

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
    return retrain(job, job.session(job.read(CONFIGS)), files.as_path(job.workdir))


def retrain(job: Retraining, session: Session, root: pathlib.Path) -> tuple[dict, dict] | None:
    """See `run`; with a session that there is, and the workdir of the search."""
    config = session.config
    seed = config.seed if job.seed is None else job.seed
    path = root / "retrained" / label_of(job.architecture, job.weights, seed)
    session.check_task(root)
    costs = session.costs(root)
    arch = session.architecture(job.architecture, root, costs)
    variables = session.weights(root) if job.weights == "inherited" else None
    described = session.net.space.to_dict(arch)
    print(f"{job.architecture}: {described}", flush=True)
    with training.open_workdir(path) as workdir:
        # The settings of the supernet's training count only where its weights do.
        own = {name: part for name, part in deciding_of(config).items() if name not in ("training", "recipe")}
        try:
            decides = {
                **own,
                "seed": seed,
                "retraining": config.alone.deciding(),
                "distill": None if config.distill is None else to_dict(config.distill),
                "architecture": described,
            }
            result = runs.retrain(
                *(session.task, session.net, arch),
                runs.Lab(workdir, seed, config.alone, session.mesh, costs, config=decides),
                name=job.architecture,
                variables=variables,
                distill=config.distill if job.weights == "inherited" else None,
            )
        except training.Stopped:
            return None
    return {role: dict(x) for role, x in result.found.metrics.items()}, files.read_json(path / "times.json")

"""A retraining as an independent job, which runs in any process that reaches the data and the workdir."""

from __future__ import annotations

import pathlib
import re

from jaxnas import files, runs, training
from jaxnas.experiments.configs import CONFIGS
from jaxnas.experiments.session import Asked, Session, deciding_of
from jaxnas.training.plain import to_dict


def label_of(text: str, weights: str, seed: int) -> str:
    """The folder of a retraining: what was trained, from which weights, with which seed."""
    name = text.replace(":", "_")
    if not re.fullmatch(r"\w{1,40}", name):
        name = "given_" + files.sha256(text.encode())[:12]
    return f"{name}-{weights}-{seed}"


def run(job: Asked, architecture: str, weights: str, seed: int | None) -> tuple[dict, dict] | None:
    """`retrain` for the run that a command line asks for."""
    return retrain(job.session(CONFIGS), files.as_path(job.workdir), architecture, weights, seed)


def retrain(
    session: Session, root: pathlib.Path, architecture: str, weights: str, seed: int | None = None
) -> tuple[dict, dict] | None:
    """Trains an architecture alone, in root/retrained/<label>, and measures it.

    Args:
      session: of the run.
      root: the workdir of the search.
      architecture: what is trained; see `Session.architecture`.
      weights: what it starts from, "scratch" or "inherited".
      seed: of the retraining; None for the config's.

    Returns:
      Metrics by role, and where the time went; None if it was stopped and saved before its end.
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
    with training.open_workdir(root / "retrained" / label_of(architecture, weights, seed)) as workdir:
        try:
            result = runs.retrain(
                *(session.task, session.net, arch),
                runs.Lab(workdir, seed, config.alone, session.mesh, costs, config=decides),
                name=architecture,
                variables=variables,
                distill=config.distill if inherited else None,
            )
        except training.Stopped:
            return None
        times = files.read_json(workdir / "times.json")
    return {role: dict(x) for role, x in result.found.metrics.items()}, times

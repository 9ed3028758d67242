"""Architectures trained alone, each once in a workdir."""

from __future__ import annotations

import json
import os

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh

from jaxnas import files, processes
from jaxnas.executors import Calls
from jaxnas.search import history
from jaxnas.space import Arch
from jaxnas.tasks import Task
from jaxnas.training.deciding import scoring_alone
from jaxnas.training.progress import Progress
from jaxnas.training.ranking import scores_alone, usual_together
from jaxnas.training.settings import Training

NAME = "alone"


def trained_alone(
    task: Task,
    net: nn.Module,
    training: Training,
    archs: Arch,
    *,
    seed: int = 0,
    mesh: Mesh | None = None,
    calls: Calls | None = None,
    workdir: str | os.PathLike | None = None,
) -> np.ndarray:
    """Scores of architectures after training alone, on the role "search".

    Each is kept in search/alone.jsonl when it is known. An architecture that was trained there by the same
    settings, on the same data, is not trained again, so that a killed run goes on with the next one. Where
    architectures are trained side by side, all are known at once; see `usual_together`.

    Args:
      task, net, training, seed, mesh, calls: see `scores_alone`.
      archs: a batch of n architectures.
      workdir: where the scores are kept; None for nowhere.

    Returns:
      float32 [n]; higher is better, and NaN where a training diverged.

    Raises:
      ValueError: search/alone.jsonl is damaged.
    """
    path = None if workdir is None else files.as_path(workdir) / "search" / "alone.jsonl"
    settings = files.plain(training.recorded(seed))
    if path is not None:
        settings["trained_on"] = scoring_alone(task, net, training)
    lines = [] if path is None else history.read(path, NAME)
    processes.wait("the trainings alone are read")  # before the first of several processes writes more
    if path is not None and processes.is_first():
        history.cut(path, NAME, keep=len(lines))  # A killed process may have left a part of a line.
    values = files.plain(net.space.to_dicts(archs))
    names = [json.dumps(one) for one in values]
    known = {
        json.dumps(line["architecture"]): line["score"] for line in lines if line["settings"] == settings
    }
    missing = [row for row, name in enumerate(names) if name not in known and name not in names[:row]]
    with Progress(len(missing), label="trainings alone") as progress:

        def told(number: int, score: float) -> None:
            row = missing[number]
            known[names[row]] = score
            line = {"index": len(lines), "strategy": NAME, "architecture": values[row]}
            lines.extend(history.seal([line | {"settings": settings, "score": score}], lines))
            if path is not None and processes.is_first():
                files.append_lines(path, lines[-1:])
            progress.update(number + 1, {"score": score})

        if missing:
            scores_alone(
                *(task, net, training, jax.tree.map(lambda x: x[np.asarray(missing)], archs)),
                seed=seed,
                together=usual_together(),
                mesh=mesh,
                calls=calls,
                told=told,
            )
    return np.asarray([known[name] for name in names], np.float32)  # None becomes NaN

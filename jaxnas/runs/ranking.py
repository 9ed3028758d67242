"""Architectures trained alone, each once in a workdir, and how well a supernet ranks them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from jaxnas import files, processes
from jaxnas.report.result import RankingOf
from jaxnas.runs.lab import Lab
from jaxnas.search import history
from jaxnas.space import Arch
from jaxnas.tasks import Task
from jaxnas.training.alone import begin, make_scorer
from jaxnas.training.deciding import scoring_alone
from jaxnas.training.evaluate import make_evaluator
from jaxnas.training.keys import stream
from jaxnas.training.progress import Progress

NAME = "alone"


def trained_alone(task: Task, net: nn.Module, archs: Arch, lab: Lab) -> np.ndarray:
    """Scores of architectures after training alone, on "search": float32 [n], NaN where one diverged.

    Each is appended to search/alone.jsonl of the lab's directory when it is known. An architecture that was
    trained there by the same settings, `lab.alone`, on the same data, is not trained again, so a killed run
    resumes with the next one. A damaged file raises a ValueError.
    """
    path = None if lab.workdir is None else lab.root / "search" / "alone.jsonl"
    training = lab.training_alone("trainings alone")
    settings = files.plain({"seed": lab.seed, "training": training.deciding()})
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
        for number, score in enumerate(_scores(task, net, archs, missing, lab)):
            row = missing[number]
            known[names[row]] = score
            line = {"index": len(lines), "strategy": NAME, "architecture": values[row]}
            lines.extend(history.seal([line | {"settings": settings, "score": score}], lines))
            if path is not None and processes.is_first():
                files.append_lines(path, lines[-1:])
            progress.update(number + 1, {"score": score})
    return np.asarray([known[name] for name in names], np.float32)  # None becomes NaN


def _scores(task: Task, net: nn.Module, archs: Arch, rows: list[int], lab: Lab) -> Iterator[float]:
    """The scores of some rows of the architectures, as soon as each is known."""
    if not rows:
        return
    some = jax.tree.map(lambda x: x[np.asarray(rows)], archs)
    training = lab.training_alone("trainings alone")
    if (calls := lab.workers.get("alone")) is not None:
        steps = training.steps
        yield from (float(calls(text, steps)) for text in begin(calls, net.space, some, steps))
    else:
        yield from make_scorer(task, net, training, seed=lab.seed)(some)


def rank(task: Task, net: nn.Module, variables: Any, lab: Lab, count: int) -> RankingOf:
    """Kendall's tau of `count` random architectures with the supernet's weights and with their own.

    Args:
      task, net, variables: the trained supernet.
      lab: of the run, with `alone`, how architectures are trained alone.
      count: of architectures, at least 2.
    """
    if count < 2:
        raise ValueError(f"rank: count is {count}, expected at least 2 architectures to compare.")
    training = lab.training_alone("rank")
    archs = net.space.sample(stream(lab.seed, "ranking"), count)
    inherited = make_evaluator(task, net, "search", mesh=lab.mesh).scores(variables, archs)
    own = trained_alone(task, net, archs, lab)
    there = np.isfinite(inherited) & np.isfinite(own)
    low, high = _interval(inherited[there], own[there], stream(lab.seed, "ranking_interval"))
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
    """The 95 % bootstrap interval of Kendall's tau over architectures.

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

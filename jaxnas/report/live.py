"""The page of a running run, which reloads itself.

It has the sections of the page of a finished run, as far as there is something to show. The page of the
finished run replaces it.
"""

from __future__ import annotations

import datetime
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jaxnas import files
from jaxnas.report import facts, page
from jaxnas.report.read import Record, Run, read_records
from jaxnas.report.result import Network, Result, SearchOf, SelectionOf, SpaceOf, TaskOf
from jaxnas.report.words import is_number


def write(
    workdir: str | os.PathLike,
    task: TaskOf,
    space: SpaceOf,
    doing: str,
    *,
    searches: Sequence[SearchOf] = (),
    network: Mapping[str, Any] | None = None,
    reload: int | None = 5,
) -> pathlib.Path:
    """Writes report.html of a running run.

    Args:
      workdir: of the run, with metrics.jsonl and search/history.jsonl as far as they were written.
      task, space: of the run.
      doing: what the run is doing, as a sentence.
      searches: those that have begun; the first one is what the run is for.
      network: of a network of `jaxnas.supernet`, what its `described` gives: the page draws its groups.
      reload: seconds after which a browser reads the page again; None for a page that stays.

    Raises:
      ValueError: a file is damaged; the message names it, and the line.
    """
    root = files.as_path(workdir)
    records = read_records(root, space.choices)
    result = Result(
        task=task,
        space=space,
        found=_best(records["history"], task, searches),
        searches=tuple(searches),
        selection=_probabilities(records["metrics"]),
        config={"network": network},
    )
    if reload is not None:
        now = datetime.datetime.now().astimezone().strftime("%H:%M:%S")
        doing += f" This page was written at {now} and reads itself again every {reload} seconds."
    run = Run(result, records["metrics"], records["history"])
    files.write_text(root / "report.html", page.render(facts.running(run, doing), reload))
    return root / "report.html"


def _best(history: Sequence[Record], task: TaskOf, searches: Sequence[SearchOf]) -> Network:
    """The best network of the first search, else of all evaluations; an empty one where there is none."""
    scored = [line for line in history if is_number(line["score"])]
    first = [line for line in scored if searches and line["strategy"] == searches[0].name]
    line, metric = max(first or scored, key=lambda line: line["score"], default={}), task.metrics[0]
    value = (1 if metric.direction == "max" else -1) * line.get("score", math.nan)
    names = [name for search in searches for name in search.reachable] or ["params", "macs"]
    return Network(
        name="best so far",
        architecture=line.get("architecture", {}),
        costs={name: line[name] for name in dict.fromkeys(names) if is_number(line.get(name))},
        metrics={"search": {metric.name: value}} if line else {},
    )


def _probabilities(metrics: Sequence[Record]) -> SelectionOf | None:
    """The last probabilities of a training with architecture parameters."""
    lines: list[dict[str, Any]] = [line for line in metrics if line["split"] == "architecture"]
    last = max(lines, key=lambda line: line["step"], default=None)
    if last is None:
        return None
    steps, confidence = int(last["step"]), float(last["confidence"])
    return SelectionOf(
        method="argmax", steps=steps, probabilities=last["probabilities"], confidence=confidence
    )

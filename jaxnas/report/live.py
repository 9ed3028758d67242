"""The page of a run that goes on: what is known so far, in a page that reads itself again.

It has the panels of the page of a finished run, as far as there is something to show. The page of the
finished run replaces it.
"""

from __future__ import annotations

import datetime
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from jaxnas import files
from jaxnas.report import architecture, headline, made, probabilities, scatter, searching, training
from jaxnas.report.document import document, say, section
from jaxnas.report.page import plain_text
from jaxnas.report.read import Record, Run, read_mends, read_records
from jaxnas.report.result import Network, Result, SearchOf, SelectionOf, SpaceOf, TaskOf
from jaxnas.report.svg import esc, is_number

_OF_A_SEARCH = (headline.tiles, scatter.panel, searching.curves_panel, architecture.panel)
_OF_A_TRAINING = (probabilities.panel, training.panel, made.data_panel)


def write(
    workdir: str | os.PathLike,
    task: TaskOf,
    space: SpaceOf,
    doing: str,
    *,
    searches: Sequence[SearchOf] = (),
    reload: int | None = 5,
) -> pathlib.Path:
    """Writes report.html of a run that goes on.

    Args:
      workdir: of the run, with metrics.jsonl and search/history.jsonl as far as they were written.
      task, space: of the run.
      doing: what the run is doing, as a sentence.
      searches: those that have begun; the first one is what the run is for.
      reload: seconds after which a browser reads the page again; None for a page that stays.

    Returns:
      The path of the page.

    Raises:
      ValueError: a file is damaged; the message names it, and the line.
      OSError: the workdir cannot be written.
    """
    root = files.as_path(workdir)
    metrics, history = read_records(root, space.choices)
    best = _best(history, task, searches)
    result = Result(
        task=task,
        space=space,
        found=best or Network(name="none", architecture={}, costs={}, metrics={}),
        searches=tuple(searches),
        selection=_probabilities(metrics),
    )
    run = Run(result, metrics, history, mends=read_mends(root), goes_on=True)
    panels = (*(_OF_A_SEARCH if best else ()), *_OF_A_TRAINING)
    parts = [html for panel in panels if (html := panel(run))]
    if not (metrics or history):
        parts.insert(0, section("Nothing is recorded yet", say("The first figures appear here.")))
    now = datetime.datetime.now().astimezone().strftime("%H:%M:%S")
    lead = esc(doing)
    if reload is not None:
        lead += f" This page was written at {now} and reads itself again every {reload} seconds."
    files.write_text(root / "report.html", _page(run, best is not None, lead, "\n".join(parts), reload))
    return root / "report.html"


def _page(run: Run, searched: bool, lead: str, body: str, reload: int | None) -> str:
    task = run.result.task
    heading, title = f"Training on {esc(task.name)}", f"Training on {task.name}"
    if searched:
        before, value, after = headline.headline(run)
        heading = f"Best so far: {esc(before)}<b>{esc(value)}</b>{esc(after)}"
        title = f"Best so far: {plain_text(before + value + after)}"
    eyebrow = f"jaxnas · architecture search on {task.name}"
    return document(title, eyebrow, heading, lead, body, reload=reload)


def _best(history: Sequence[Record], task: TaskOf, searches: Sequence[SearchOf]) -> Network | None:
    """The best network of the first search, of all evaluations where it has none yet."""
    scored = [line for line in history if is_number(line["score"])]
    first = [line for line in scored if searches and line["strategy"] == searches[0].name]
    if not scored:
        return None
    line, metric = max(first or scored, key=lambda line: line["score"]), task.metrics[0]
    value = line["score"] if metric.direction == "max" else -line["score"]
    names = [name for search in searches for name in search.reachable] or ["params", "macs"]
    return Network(
        name="best so far",
        architecture=line.get("architecture", {}),
        costs={name: line[name] for name in dict.fromkeys(names) if is_number(line.get(name))},
        metrics={"search": {metric.name: value}},
    )


def _probabilities(metrics: Sequence[Record]) -> SelectionOf | None:
    """The last probabilities of a training with architecture parameters."""
    lines: list[dict[str, Any]] = [line for line in metrics if line["split"] == "architecture"]
    if not lines:
        return None
    last = max(lines, key=lambda line: line["step"])
    return SelectionOf(
        method="argmax",
        steps=int(last["step"]),
        probabilities=last["probabilities"],
        confidence=float(last["confidence"]),
    )

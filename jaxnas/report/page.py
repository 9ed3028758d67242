"""The HTML page of a run: its panels are chosen by what the result holds.

The page is one file that loads nothing. It is a function of the run's reproducible files and of the
times stored beside retrained networks: no clock, no path and no chance, so that a resumed run and an
uninterrupted one give the same bytes.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import textwrap

from jaxnas import files
from jaxnas.report import (
    architecture,
    budgets,
    headline,
    latency,
    made,
    networks,
    probabilities,
    ranking,
    scatter,
    searching,
    selection,
    space_evolution,
    training,
    verdict,
    words,
)
from jaxnas.report.document import document
from jaxnas.report.read import Run, read_run
from jaxnas.report.result import Network
from jaxnas.report.svg import NBSP, esc, is_number

# Top to bottom; each gives "" where the run has nothing for it.
_PANELS = (
    headline.tiles,
    verdict.panel,
    latency.panel,
    made.loading_panel,
    scatter.panel,
    architecture.panel,
    budgets.panel,
    space_evolution.panel,
    probabilities.panel,
    selection.panel,
    searching.panel,
    ranking.panel,
    networks.panel,
    networks.retrained_panel,
    training.panel,
    made.data_panel,
    made.exported_panel,
    made.settings_panel,
)


def write(workdir: str | os.PathLike) -> pathlib.Path:
    """Writes report.html of a finished run, and pictures of its probabilities.

    Args:
      workdir: of the run; see `read_run` for its files.

    Returns:
      The path of the page.

    Raises:
      FileNotFoundError: there is no result.json.
      ValueError: a file is damaged; the message names it, and the line or the field.
      OSError: the workdir cannot be written.
    """
    root, run = files.as_path(workdir), read_run(workdir)
    run = dataclasses.replace(run, pictures=probabilities.pictures(run))
    for name, data in run.pictures.items():
        files.write_bytes(root / name, data)
    files.write_text(root / "report.html", render(run))
    return root / "report.html"


def render(run: Run) -> str:
    """The whole page as text."""
    before, value, after = headline.headline(run)
    return document(
        plain_text(before + value + after),
        f"jaxnas · architecture search on {run.result.task.name}",
        f"{esc(before)}<b>{esc(value)}</b>{esc(after)}",
        headline.lead(run),
        "\n".join(html for panel in _PANELS if (html := panel(run))),
    )


def summary_lines(workdir: str | os.PathLike) -> list[str]:
    """The last lines on a terminal: what was found, whether it is any good, what to do next, what to open.

    Args:
      workdir: of the run; see `read_run` for its files.

    Returns:
      Lines of plain text.
    """
    run, root = read_run(workdir), files.as_path(workdir)
    result, found = run.result, run.result.found

    def figures(network: Network) -> list[str]:
        roles = dict.fromkeys((run.search_role, run.final_role))
        values = [
            (words.metric_name(run.metric, r), words.value_text(run.metric, run.value(network, r)))
            for r in roles
        ]
        return [f"{name} {value}{words.unit_text(run.metric)}" for name, value in values if value != "–"]

    parts = figures(found) + [
        words.cost_amount(name, cost)
        for name, cost in found.costs.items()
        if name != run.cost and not (name == latency.COST and run.timed)
    ]
    if is_number(found.extraction_error):
        parts.append(f"extraction error {found.extraction_error:.1e}")
    lines = [f"Found: {''.join(headline.headline(run))}.", f"  {', '.join(parts)}"]
    other = run.network("random search")
    lines += [f"  random search: {', '.join(figures(other))}"] if other is not None else []
    linear = result.linear.get(run.final_role)
    if linear is not None:
        name = words.metric_name(run.metric, run.final_role)
        lines.append(f"  {words.LINEAR}: {name} {words.value_text(run.metric, linear)}")
    lines += [f"  {one}" for one in latency.sentences(run)]
    for one in verdict.advice(run, str(root)):
        lines += textwrap.wrap(one.text, 108, break_on_hyphens=False)
        lines += [f"    {line}" for line in one.code.splitlines()]
    lines += [f"Network: {root / result.subnet}", f"Open {root / 'report.html'}"]
    return [plain_text(line) for line in lines]


def plain_text(text: str) -> str:
    """A text of the page for a terminal or a title, without its special spaces."""
    return text.replace(NBSP, " ")

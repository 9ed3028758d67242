"""Reads the files of a finished run for its report, and says clearly what is wrong with them."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

from jaxnas import files
from jaxnas.report.svg import is_number

NETWORKS = ("best", "random_search", "smallest", "largest")


@dataclasses.dataclass(frozen=True)
class Run:
    """What a workdir holds: the result, the lines of the metrics and of the search history."""

    result: dict[str, Any]
    metrics: list[dict[str, Any]]
    history: list[dict[str, Any]]

    def section(self, name: str) -> dict[str, Any]:
        """A part of the result, {} if it is absent."""
        return self.result.get(name) or {}

    def strategy(self, name: str) -> list[dict[str, Any]]:
        """Evaluations of one strategy in the order in which they were made."""
        return [line for line in self.history if line.get("strategy") == name]

    def of_split(self, split: str) -> list[dict[str, Any]]:
        """Metrics of one split by increasing step."""
        lines = [line for line in self.metrics if line.get("split") == split]
        return sorted(lines, key=lambda line: line["step"])


def read_run(workdir: str | os.PathLike) -> Run:
    """Reads result.json, metrics.jsonl and search/history.jsonl of ``workdir``.

    Only result.json must be there. Raises FileNotFoundError if it is not, and ValueError, naming
    the file (and line), where a file is not the JSON it should be or lacks what a page cannot do
    without.
    """
    root = pathlib.Path(workdir)
    path = root / "result.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: a report needs a finished run (train, search and evaluate first)"
        )
    result = files.read_json(path)
    check_result(result, str(path))
    history = files.read_lines(root / "search" / "history.jsonl", ("strategy", "params", "score"))
    return Run(result, read_metrics(root), _order(history))


def read_metrics(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """Reads metrics.jsonl, [] if there is none; ValueError names a line that is no record."""
    lines = files.read_lines(pathlib.Path(workdir) / "metrics.jsonl", ("step", "split"))
    return _last(lines, ("split", "step"))


def check_result(result: Any, name: str = "result") -> None:
    """Raises ValueError, naming ``name`` and the field, if ``result`` cannot be reported."""
    if not isinstance(result, dict):
        raise ValueError(f"{name}: expected an object, found {type(result).__name__}")
    if "best" not in result:
        raise ValueError(f"{name}: 'best' is missing (the network that the search found)")
    for key in (*NETWORKS, "config", "data", "space", "search", "versions"):
        part = result.get(key)
        if part is not None and not isinstance(part, dict):
            raise ValueError(f"{name}: {key!r} should be an object, found {type(part).__name__}")
    for key in ("params", "search_accuracy", "test_accuracy"):
        if not is_number((result["best"] or {}).get(key)):
            raise ValueError(f"{name}: 'best' has no finite number {key!r}")


def _last(lines: list[dict[str, Any]], keys: tuple[str, ...]) -> list[dict[str, Any]]:
    """Keeps the last line of each identity: a resumed run may write a step a second time."""
    return list({tuple(line[k] for k in keys): line for line in lines}.values())


def _order(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    numbered = [{"index": i, **line} for i, line in enumerate(history)]
    numbered = _last(numbered, ("strategy", "index"))
    usable = [line for line in numbered if is_number(line["params"]) and is_number(line["score"])]
    return sorted(usable, key=lambda line: (line["strategy"], line["index"]))

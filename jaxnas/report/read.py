"""Reads the files of a finished run for its page, and says clearly what is wrong with them."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxnas import files
from jaxnas.report import result as result_lib
from jaxnas.report import words
from jaxnas.report.result import MetricOf, Network, Result
from jaxnas.report.words import is_number

Record = dict[str, Any]
TIMED = "latency_measured.json"  # apart from the result, which a run that was killed gives bit for bit


class Retrained(NamedTuple):
    """A network that was trained alone.

    Attributes:
      network: what was trained.
      times: what its times.json holds; {} if there is none.
      folder: its name.
      settings: of the training; {} if they were not recorded.
    """

    network: Network
    times: Mapping[str, Any]
    folder: str
    settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Run:
    """What a workdir holds.

    Attributes:
      result: what was found.
      metrics: records of training, each step once.
      history: evaluations of all searches, by strategy and index.
      retrained: networks trained alone, by folder.
      timed: the latency of the found network and others, as measured; {} for none.
      mends: with which other settings a training that diverged went on, and from which step.
      goes_on: whether the run has not ended.
    """

    result: Result
    metrics: tuple[Record, ...] = ()
    history: tuple[Record, ...] = ()
    retrained: tuple[Retrained, ...] = ()
    timed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    mends: tuple[Record, ...] = ()
    goes_on: bool = False

    @property
    def metric(self) -> MetricOf:
        """The metric that architectures are searched by."""
        return self.result.task.metrics[0]

    @property
    def sign(self) -> int:
        """What turns a metric into a score, of which more is better, and back."""
        return 1 if self.metric.direction == "max" else -1

    @property
    def search_role(self) -> str:
        """The role of the data that scores were measured on."""
        return next((r for r in ("search", "validation") if r in self.result.found.metrics), "search")

    @property
    def final_role(self) -> str:
        """The role of the data that says how good the found network is."""
        roles = self.result.found.metrics
        return next((r for r in ("test", "validation", *roles) if r in roles), "test")

    @property
    def cost(self) -> str | None:
        """The cost to show first: the first one with a budget, else the parameters."""
        costs = self.result.found.costs
        bounded = [name for s in self.result.searches for name, p in s.bounds.items() if p != (None, None)]
        return next((name for name in (*bounded, "params", *costs) if name in costs), None)

    @property
    def bounds(self) -> dict[str, tuple[float | None, float | None]]:
        """The budget: (least, most) by cost, over all searches."""
        pairs = [pair for search in self.result.searches for pair in search.bounds.items()]
        return {name: pair for name, pair in pairs if pair != (None, None)}

    @property
    def reference(self) -> Network | None:
        """What the found network is compared with: the first that the config names, else the largest."""
        named = [net for net in self.result.networks if net.name not in result_lib.OWN_NAMES]
        return next(iter(named), self.network("largest"))

    def network(self, name: str) -> Network | None:
        """A network of the result by its name."""
        return next((net for net in self.result.networks if net.name == name), None)

    def is_extreme(self, name: str) -> bool:
        """Whether "smallest" or "largest" costs least or most of all networks, as far as is known.

        They have the least or greatest option of each choice, and of options that are names the first or the
        last one: one of the others may cost less or more.
        """
        network, cost = self.network(name), self.cost
        own = None if network is None else network.costs.get(cost or "")
        reachable = [one.reachable[cost] for one in self.result.searches if cost in one.reachable]
        if name not in ("smallest", "largest") or not (is_number(own) and reachable):
            return True
        if name == "smallest":
            return own <= min(least for least, _ in reachable)
        return own >= max(most for _, most in reachable)

    def value(self, network: Network, role: str) -> float | None:
        """The first metric of a network in a role, if it is a finite number."""
        value = network.metrics.get(role, {}).get(self.metric.name)
        return value if is_number(value) else None

    def strategy(self, name: str) -> list[Record]:
        """Evaluations of one strategy in the order in which they were made."""
        return [line for line in self.history if line["strategy"] == name]

    def of_split(self, split: str) -> list[Record]:
        """Metrics of one split by increasing step."""
        lines = (line for line in self.metrics if line["split"] == split)
        return sorted(lines, key=lambda line: line["step"])

    def series(self, split: str, key: str) -> list[tuple[float, float]]:
        """(step, value) of the records of a split that have a finite number under `key`."""
        return [(line["step"], line[key]) for line in self.of_split(split) if is_number(line.get(key))]


def read_run(workdir: str | os.PathLike) -> Run:
    """Reads the files of a workdir. Only result.json must be there.

    Args:
      workdir: with result.json, and, where they exist, metrics.jsonl, mends.jsonl, search/history.jsonl and
        retrained/*/result.json with times.json.

    Returns:
      What they hold.

    Raises:
      FileNotFoundError: there is no result.json.
      ValueError: a file is damaged; the message names it, and the line or the field.
    """
    root = files.as_path(workdir)
    result, retrained = result_lib.read(root), []
    for path in sorted(root.glob("retrained/*/result.json")):
        times = path.with_name("times.json")
        values = files.read_json(times) if times.is_file() else {}
        if not isinstance(values, dict):
            raise ValueError(f"{times}: expected an object, found {type(values).__name__}.")
        one = result_lib.read(path.parent)
        settings = one.config.get("retraining") or {}
        retrained.append(Retrained(one.found, values, path.parent.name, settings))
    metrics, history = read_records(root, result.space.choices)
    return Run(
        result, metrics, history, tuple(retrained), read_timed(root, result.found), mends=read_mends(root)
    )


def read_timed(root: pathlib.Path, found: Network) -> dict[str, Any]:
    """What latency_measured.json holds, {} if there is none or it is of another network.

    Raises:
      ValueError: the file is damaged.
    """
    path = root / TIMED
    record = files.read_json(path) if path.is_file() else None
    if not isinstance(record, dict) or record.get("architecture") != files.plain(found.architecture):
        return {}
    times = record.get("milliseconds")
    rows = list(times.values()) if isinstance(times, dict) else []
    if "found" not in (times or {}) or not all(
        isinstance(row, list) and len(row) == 3 and all(map(is_number, row)) for row in rows
    ):
        raise ValueError(
            f"{path}: 'milliseconds' should have three numbers for each network; delete the file."
        )
    return {"rows": 0, "device": "", **record}


def read_mends(root: pathlib.Path) -> tuple[Record, ...]:
    """What mends.jsonl holds, () where no training diverged; ValueError if it is damaged."""
    path = root / "mends.jsonl"
    records = files.read_lines(path, ("step", "diverged", "changes"))
    for number, record in enumerate(records, start=1):
        changes = record["changes"]
        pairs = changes.values() if isinstance(changes, dict) else [None]
        if not all(isinstance(pair, dict) and pair.keys() == {"before", "now"} for pair in pairs):
            raise ValueError(f"line {number} of {path}: 'changes' should have 'before' and 'now' by field.")
    return tuple(records)


def read_records(
    root: pathlib.Path, choices: Mapping[str, Any]
) -> tuple[tuple[Record, ...], tuple[Record, ...]]:
    """What a run has recorded so far: of metrics.jsonl, and of search/history.jsonl.

    Args:
      root: the workdir.
      choices: of the space, as `Space.to_json()` writes them.

    Returns:
      Records of training, each step once, and evaluations of all searches, by strategy and index.

    Raises:
      ValueError: a file is damaged; the message names it, and the line or the field.
    """
    metrics = _records(root / "metrics.jsonl", "split", "step")
    for number, line in metrics:
        if line["split"] == "architecture":
            where = f"line {number} of {root / 'metrics.jsonl'}: probabilities"
            check_probabilities(line.get("probabilities"), choices, where)
    history = _records(root / "search" / "history.jsonl", "strategy", "index", ("score",))
    for number, line in history:
        check_architecture(line.get("architecture", {}), f"line {number} of {root / 'search/history.jsonl'}")
    return (
        tuple(_last(metrics, ("split", "step"))),
        tuple(sorted(_last(history, ("strategy", "index")), key=lambda x: (x["strategy"], x["index"]))),
    )


def check_architecture(architecture: Any, where: str) -> None:
    """Raises ValueError, beginning with `where`, unless it has options, or lists of options, by choice."""
    values = architecture.items() if isinstance(architecture, Mapping) else [("architecture", {})]
    for name, value in values:
        if any(isinstance(one, (list, dict)) for one in (value if isinstance(value, list) else [value])):
            raise ValueError(f"{where}: {name!r} should be an option or a list of options, found {value!r}.")


def _records(
    path: pathlib.Path, name: str, count: str, scores: tuple[str, ...] = ()
) -> list[tuple[int, Record]]:
    """(line number, record) of a file of JSON lines; a score that was not finite is null."""
    records = list(enumerate(files.read_lines(path, (name, count, *scores)), start=1))
    for number, record in records:
        right = {name: isinstance(record[name], str), count: is_number(record[count])}
        right |= {score: record[score] is None or is_number(record[score]) for score in scores}
        for key in (key for key in right if not right[key]):
            kind = "a name" if key == name else "a number"
            raise ValueError(f"line {number} of {path}: {key!r} should be {kind}, found {record[key]!r}.")
    return records


def _last(records: Sequence[tuple[int, Record]], keys: tuple[str, ...]) -> list[Record]:
    """The last record of each identity: a resumed run may write a step a second time."""
    return list({tuple(record[key] for key in keys): record for _, record in records}.values())


def check_probabilities(probabilities: Any, choices: Mapping[str, Any], where: str) -> None:
    """Raises ValueError, beginning with `where`, unless each option of each choice has one number."""
    if not isinstance(probabilities, Mapping):
        raise ValueError(f"{where}: expected an object, found {type(probabilities).__name__}.")
    for name, rows in probabilities.items():
        if name not in choices:
            raise ValueError(f"{where}: {name!r} is no choice of the space; it has {', '.join(choices)}.")
        length, options = choices[name].get("length"), words.width_of(choices[name])
        table = [rows] if length is None else rows
        right = isinstance(table, list) and len(table) == (length or 1)
        right = right and all(isinstance(row, list) and len(row) == options for row in table)
        if not (right and all(is_number(value) and 0 <= value <= 1 for row in table for value in row)):
            shape = f"[{options}]" if length is None else f"[{length}, {options}]"
            raise ValueError(f"{where}: {name!r} should be probabilities of shape {shape}.")

"""Reads the files of a finished run for its page, and says clearly what is wrong with them."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxnas import files
from jaxnas.report import result as result_lib
from jaxnas.report import words
from jaxnas.report.result import MetricOf, Network, Result, parse
from jaxnas.report.words import is_number

Record = dict[str, Any]
TIMED = "latency_measured.json"  # apart from the result, which a run that was killed gives bit for bit


class Retrained(NamedTuple):
    """A network that was trained alone, its times.json and its settings; {} where there are none."""

    network: Network
    times: Mapping[str, Any]
    folder: str
    settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Run:
    """The contents of a workdir.

    Attributes:
      result: what was found.
      metrics: records of training, each step once.
      history: evaluations of all searches, by strategy and index.
      retrained: networks trained alone, by folder.
      timed: the latency of the found network and others, as measured; {} for none.
    """

    result: Result
    metrics: tuple[Record, ...] = ()
    history: tuple[Record, ...] = ()
    retrained: tuple[Retrained, ...] = ()
    timed: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def metric(self) -> MetricOf:
        """The metric that architectures are searched by."""
        return self.result.task.metrics[0]

    @property
    def sign(self) -> int:
        """The factor, 1 or -1, between a metric and its score, of which more is better."""
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
        """The network to compare with: the first that the config names, else the largest."""
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
    """Reads result.json of a workdir and, where they are, its records and retrained/*/result.json.

    Raises:
      FileNotFoundError: there is no result.json.
      ValueError: a file is damaged; the message names it, and the line or the field.
    """
    root = files.as_path(workdir)
    result, retrained = result_lib.read(root), []
    for path in sorted(root.glob("retrained/*/result.json")):
        times = path.with_name("times.json")
        values = parse(files.read_json(times) if times.is_file() else {}, Mapping[str, Any], times)
        one = result_lib.read(path.parent)
        settings = one.config.get("retraining") or {}
        retrained.append(Retrained(one.found, values, path.parent.name, settings))
    timed = _read_timed(root, result.found)
    return Run(result, retrained=tuple(retrained), timed=timed, **read_records(root, result.space.choices))


# What records must have; a score that was not finite is None.
_fields = dataclasses.make_dataclass
_Timed = _fields("_Timed", [("milliseconds", Mapping[str, tuple[float, float, float]])])
_Metrics = _fields("_Metrics", [("split", str), ("step", float)])
_Evaluation = _fields("_Evaluation", [("strategy", str), ("index", int), ("score", float | None)])


def _read_timed(root: pathlib.Path, found: Network) -> dict[str, Any]:
    """The contents of latency_measured.json; {} if there is none or it is of another network."""
    path = root / TIMED
    record = files.read_json(path) if path.is_file() else None
    if not isinstance(record, dict) or record.get("architecture") != files.plain(found.architecture):
        return {}
    parse(record, _Timed, path)
    return {"rows": 0, "device": "", **record}


def read_records(workdir: pathlib.Path, choices: Mapping[str, Any]) -> dict[str, tuple[Record, ...]]:
    """The records of a run of a space with these choices: "metrics" and "history" of `Run`.

    Raises:
      ValueError: a file is damaged; the message names it, and the line and the field.
    """
    path = workdir / "metrics.jsonl"
    metrics = _lines(path, _Metrics)
    for number, line in enumerate(metrics, 1):
        if line["split"] == "architecture":
            _check_probabilities(line.get("probabilities"), choices, f"line {number} of {path}")
    path = workdir / "search" / "history.jsonl"
    history = _lines(path, _Evaluation)
    for number, line in enumerate(history, 1):
        for name, value in parse(
            line.get("architecture", {}), Mapping[str, Any], f"line {number} of {path}"
        ).items():
            if any(isinstance(one, (list, dict)) for one in (value if isinstance(value, list) else [value])):
                raise ValueError(
                    f"line {number} of {path}: {name!r} should be an option or a list of options."
                )
    # A resumed run may write a step a second time: the last record of each counts.
    metrics = {(line["split"], line["step"]): line for line in metrics}.values()
    found = {(line["strategy"], line["index"]): line for line in history}
    ordered = tuple(found[key] for key in sorted(found))
    return {"metrics": tuple(metrics), "history": ordered}


def _lines(path: pathlib.Path, kind: type) -> list[Record]:
    """The records of a file of JSON lines, with at least the fields of a dataclass; [] if there is none."""
    records = files.read_lines(path)
    for number, record in enumerate(records, 1):
        parse(record, kind, f"line {number} of {path}")
    return records


def _check_probabilities(probabilities: Any, choices: Mapping[str, Any], where: str) -> None:
    """Raises ValueError, beginning with `where`, unless each option of each choice has one number."""
    for name, rows in parse(probabilities, Mapping[str, list], f"{where}, 'probabilities'").items():
        if name not in choices:
            raise ValueError(f"{where}: {name!r} is no choice of the space; it has {', '.join(choices)}.")
        length, options = choices[name].get("length"), words.width_of(choices[name])
        table = [rows] if length is None else rows
        right = len(table) == (length or 1) and all(isinstance(x, list) and len(x) == options for x in table)
        if not (right and all(is_number(value) and 0 <= value <= 1 for row in table for value in row)):
            shape = f"[{options}]" if length is None else f"[{length}, {options}]"
            raise ValueError(f"{where}: {name!r} should be probabilities of shape {shape}.")

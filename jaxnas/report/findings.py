"""A run as its page shows it: its files, and how good its networks are."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxnas import files
from jaxnas.report import result as result_lib
from jaxnas.report import words
from jaxnas.report.result import AGAIN, MetricOf, Network, Result, SelectionOf, parse
from jaxnas.report.words import is_number

LATENCY = "latency_ms"
# Of the least or greatest options, of words the first or last: others may cost less or more.
NAMES = {x: f"{x} options" for x in ("smallest", "largest")} | {"random search": "random search’s best"}
Record = dict[str, Any]
TIMED = "latency_measured.json"  # apart from the result, which a run that was killed gives bit for bit


class Retrained(NamedTuple):
    """A network that was trained alone, and its folder."""

    network: Network
    folder: str


@dataclasses.dataclass(frozen=True)
class Run:
    """The contents of a workdir."""

    result: Result
    metrics: tuple[Record, ...] = ()  # records of training, each step once
    history: tuple[Record, ...] = ()  # evaluations of all searches, by strategy and index
    retrained: tuple[Retrained, ...] = ()  # by folder
    timed: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # latency as measured; {} for none

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
    def bounds(self) -> dict[str, tuple[float | None, float | None]]:
        """The budget: (least, most) by cost, over all searches."""
        every = [one.bounds for one in self.result.searches]
        return {name: pair for one in every for name, pair in one.items() if pair != (None, None)}

    @property
    def cost(self) -> str | None:
        """The cost to show first: the first one with a budget, else the parameters."""
        costs = self.result.found.costs
        return next((name for name in (*self.bounds, "params", *costs) if name in costs), None)

    @property
    def reference(self) -> Network | None:
        """The network to compare with: the first that the config names, else the largest."""
        named = (net for net in self.result.networks if net.name not in result_lib.OWN_NAMES)
        return next(named, self.network("largest"))

    def network(self, name: str) -> Network | None:
        """A network of the result by its name."""
        return next((net for net in self.result.networks if net.name == name), None)

    def value(self, network: Network, role: str) -> float | None:
        """The first metric of a network in a role, if it is a finite number."""
        value = network.metrics.get(role, {}).get(self.metric.name)
        return value if is_number(value) else None

    @property
    def milliseconds(self) -> Mapping[str, tuple[float, float, float]]:
        """Quartile, median and quartile of the measured latency, by network; {} for none."""
        return self.timed.get("milliseconds", {})

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
    result, folders = result_lib.read(root), [path.parent for path in root.glob("retrained/*/result.json")]
    retrained = [Retrained(result_lib.read(folder).found, folder.name) for folder in sorted(folders)]
    path = root / TIMED
    timed = parse(files.read_json(path) if path.is_file() else {}, Mapping[str, Any], path)
    if timed.get("architecture") != files.plain(result.found.architecture):
        timed = {}  # of a network that was found before
    parse(timed.get("milliseconds", {}), Mapping[str, tuple[float, float, float]], path)
    return Run(result, *_records(root, result.space.choices), tuple(retrained), timed)


def read_so_far(workdir: str | os.PathLike, result: Result) -> Run:
    """An unfinished run: the best of the first search, else of all, is found; probabilities are the last."""
    run = Run(result, *_records(files.as_path(workdir), result.space.choices))
    scored = [line for line in run.history if is_number(line["score"])]
    first = [line for line in scored if result.searches and line["strategy"] == result.searches[0].name]
    if line := max(first or scored, key=lambda line: line["score"], default=None):
        names = [name for search in result.searches for name in search.reachable] or ["params", "macs"]
        costs = {name: line[name] for name in names if is_number(line.get(name))}
        metrics = {"search": {run.metric.name: run.sign * line["score"]}}
        known = dict(architecture=line.get("architecture") or {}, costs=costs, metrics=metrics)
        result = dataclasses.replace(result, found=dataclasses.replace(result.found, **known))
    if lines := run.of_split("architecture"):
        known = {name: lines[-1][name] for name in ("probabilities", "confidence")}
        selection = SelectionOf(method="argmax", steps=int(lines[-1]["step"]), **known)
        result = dataclasses.replace(result, selection=selection)
    return dataclasses.replace(run, result=result)


# The types of the fields that a record has.
_METRICS = {"split": str, "step": (int, float)}
_HISTORY = dict(strategy=str, index=int, score=(int, float, type(None)), architecture=(dict, type(None)))


def _records(
    workdir: pathlib.Path, choices: Mapping[str, Any]
) -> tuple[tuple[Record, ...], tuple[Record, ...]]:
    """The records of a run of a space with these choices: the metrics and the history of `Run`."""
    history = _lines(workdir / "search" / "history.jsonl", _HISTORY)
    metrics = _lines(path := workdir / "metrics.jsonl", _METRICS)
    for number, line in enumerate(metrics, 1):
        if line["split"] == "architecture":
            _check_probabilities(line, choices, f"line {number} of {path}")
    # A resumed run may write a step a second time: the last record of each counts.
    by_step = {(line["split"], line["step"]): line for line in metrics}
    found = {(line["strategy"], line["index"]): line for line in history}
    return tuple(by_step.values()), tuple(found[key] for key in sorted(found))


def _lines(path: pathlib.Path, kinds: Mapping[str, Any]) -> list[Record]:
    """The records of a file of JSON lines, with fields of these types; [] if there is none."""
    records = files.read_lines(path)
    for number, record in enumerate(records, 1):
        for name, kind in kinds.items():
            if not isinstance(found := record.get(name), kind):
                raise ValueError(f"line {number} of {path}: {name!r} is {found!r:.80}. {AGAIN}")
    return records


def _check_probabilities(line: Record, choices: Mapping[str, Any], where: str) -> None:
    """Raises ValueError, beginning with `where`, unless each option of each position has one number."""
    tables = parse(line.get("probabilities"), Mapping[str, list], f"{where}, 'probabilities',")
    for name, rows in tables.items():
        choice = choices.get(name, {"options": []})
        options = max(map(len, choice.get("per_position") or [choice["options"]]))
        shape = (choice["length"], options) if "length" in choice else (options,)
        try:
            values = np.asarray(rows, float)
        except (TypeError, ValueError):
            values = np.empty(())
        if values.shape != shape or not ((values >= 0) & (values <= 1)).all():
            raise ValueError(f"{where}: {name!r} should be probabilities of shape {list(shape)}.")


class Group(NamedTuple):
    """A network with the weights of the search, or trainings of one alone that differ in the seed.

    Its name is "found before" if another one was found since; the folder of one of the search is "".
    """

    name: str
    members: tuple[Retrained, ...]

    @property
    def network(self) -> Network:
        """The first one."""
        return self.members[0].network

    @property
    def label(self) -> str:
        """Name, where the weights come from, and the seeds."""
        net, seeds = self.network, [str(x.network.seed) for x in self.members if x.network.seed is not None]
        parts = [NAMES.get(self.name, self.name), net.weights]
        parts += [f"{words.count(net.steps)} steps"] if net.steps is not None else []
        parts += [f"seed{'s' if len(seeds) > 1 else ''} {words.listed(seeds)}"] if seeds else []
        return ", ".join(parts)

    def value(self, metric: MetricOf, role: str) -> float | None:
        """The mean over the seeds; None if a value is missing."""
        values = [one.network.metrics.get(role, {}).get(metric.name) for one in self.members]
        numbers = [value for value in values if is_number(value)]
        return statistics.fmean(numbers) if len(numbers) == len(values) else None

    def text(self, metric: MetricOf, role: str) -> str:
        """The mean, and of several seeds the standard deviation."""
        mean = self.value(metric, role)
        if mean is None or len(self.members) == 1:
            return words.value_text(metric, mean)
        spread = statistics.stdev(float(x.network.metrics[role][metric.name] or 0) for x in self.members)
        if metric.unit == "%":
            return f"{100 * mean:.2f} ± {100 * spread:.2f}{words.NBSP}%"
        return f"{words.value_text(metric, mean)} ± {spread:.2g}"


def groups(run: Run) -> list[Group]:
    """The networks with the weights of the search, then those trained alone, the best of these first."""
    found: dict[tuple, list[Retrained]] = {}
    for one in run.retrained:
        net, name = one.network, one.network.name
        if name == "found" and net.architecture != run.result.found.architecture:
            name = "found before"
        key = (name, net.weights, net.steps, words.describe(net.architecture, {}))
        found.setdefault(key, []).append(one)
    alone = [Group(name, tuple(members)) for (name, *_), members in found.items()]
    alone.sort(key=lambda one: _order(run, one.value(run.metric, _ranking_role(run))))
    own = [Group(net.name, (Retrained(net, ""),)) for net in (run.result.found, *run.result.networks)]
    return own + alone


def _ranking_role(run: Run) -> str:
    """Of the data that trainings alone are compared on: test data choose nothing."""
    every = all(run.value(one.network, "validation") is not None for one in run.retrained)
    return "validation" if every else run.final_role


def _order(run: Run, value: float | None) -> float:
    return math.inf if value is None else -run.sign * value


def final(run: Run) -> Group:
    """Of whom the figures of the found architecture are: the best group of its trainings alone, or itself."""
    own, *others = groups(run)
    for one in others:
        alone = one.members[0].folder and one.network.architecture == own.network.architecture
        if alone and one.value(run.metric, run.final_role) is not None:
            return one
    return own


def retrained(run: Run) -> Retrained | None:
    """The training alone whose network subnet/ holds: of the headline's, the one that does best."""
    role = _ranking_role(run)
    best = min(final(run).members, key=lambda one: _order(run, run.value(one.network, role)))
    return best if best.folder else None


def standard_error(
    run: Run, role: str, network: Network, value: float | None, examples: int | None = None
) -> float | None:
    """Standard error of the metric over examples of a role, by default all; None where it is not known.

    That of an accuracy is binomial, and not known where all examples or none are right. That of another
    metric was measured with the network on all examples.
    """
    size = run.result.task.sizes.get(role, 0)
    examples = size if examples is None else examples
    if run.metric.unit == "%" and run.metric.name.endswith("accuracy"):  # a share of the examples
        known = examples > 0 and value is not None and 0 < value < 1
        return math.sqrt(value * (1 - value) / examples) if known and value else None
    error = network.errors.get(role, {}).get(run.metric.name)
    return error if is_number(error) and examples == size else None


def chance(run: Run, selection: SelectionOf) -> float | None:
    """Standard error of the difference of two figures of the search role; None where it is not known.

    Of accuracies, which are not stored, it is the largest that is possible: that of two shares of one half.
    """
    found, role = run.result.found, run.search_role
    error = standard_error(run, role, found, 0.5, selection.examples or 0)
    return None if error is None else math.sqrt(2) * error


def latency_share(run: Run, other: str) -> float | None:
    """The found network's time as a part of another's; None if their quartiles overlap, or none was timed."""
    times = run.milliseconds
    apart = other in times and times["found"][2] < times[other][0]
    return times["found"][1] / times[other][1] if apart else None


def share(run: Run) -> float | None:
    """The first cost of the found network as a part of the reference's, if no other network costs more."""
    reference, cost = run.reference, run.cost
    if cost is None or reference is None:
        return None
    if cost == LATENCY and run.timed:  # claimed is only what was measured
        return latency_share(run, reference.name)
    mine, whole = run.result.found.costs[cost], reference.costs.get(cost)
    reached = [one.reachable[cost][1] for one in run.result.searches if cost in one.reachable]
    if not (is_number(mine) and is_number(whole) and whole > 0):
        return None
    return None if reference.name == "largest" and reached and whole < max(reached) else mine / whole


def headline(run: Run) -> tuple[str, str, str]:
    """The headline: the part before its figure, the figure, and the rest."""
    metric, name = run.metric, words.metric_name(run.metric, run.final_role)
    before, after = f"{words.capital(name)} of ", words.unit_text(metric)
    if metric.unit == "%":
        before, after = "", f" {name}"
    elif metric.unit.split()[:1] == [metric.name]:  # "nats per token" has the name "nats" in it
        before, after = "", f"{after} on the {run.final_role} data"
    if run.cost is not None:
        measured = run.cost == LATENCY and run.milliseconds
        cost = run.milliseconds["found"][1] if measured else run.result.found.costs[run.cost]
        after += f" with {words.cost_amount(run.cost, cost)}"
    if run.reference is not None and (part := share(run)):
        after += f", {words.percent(part, 0)} of the {run.reference.name} network’s"
    return before, words.value_text(metric, final(run).value(metric, run.final_role), 1), after

"""How good the networks of a run are: those of the search, and those trained alone, grouped over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from jaxnas.report import words
from jaxnas.report.read import Retrained, Run
from jaxnas.report.result import MetricOf, Network

LATENCY = "latency_ms"
# What times.json of a retraining has, by its name on the page.
TIMES = {"training_step_ms": "ms per step", "inference_rows_per_second": "rows per second"}
Column = tuple[str, MetricOf]  # a role and a metric


class Group(NamedTuple):
    """Trainings of one network, with what they began with, that differ in the seed alone."""

    name: str  # of the network; "found before" if another one was found since
    weights: str
    members: tuple[Retrained, ...]

    def metric(self, name: str, role: str) -> tuple[float, float | None] | None:
        """Mean and standard deviation over the seeds; None if a value is missing."""
        values = [one.network.metrics.get(role, {}).get(name) for one in self.members]
        numbers = [value for value in values if words.is_number(value)]
        if len(numbers) < len(values):
            return None
        return statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None


def ranking_role(run: Run) -> str:
    """The role that retrained networks are ordered by: not the test data, so that these choose nothing."""
    every = all(run.value(one.network, "validation") is not None for one in run.retrained)
    return "validation" if every else run.final_role


def groups(run: Run) -> list[Group]:
    """The retrained networks by name, weights and steps, the best first."""
    found: dict[tuple, list[Retrained]] = {}
    for one in run.retrained:
        net, name = one.network, one.network.name
        if name == "found" and net.architecture != run.result.found.architecture:
            name = "found before"
        key = (name, net.weights, net.steps, words.describe(net.architecture, {}))
        found.setdefault(key, []).append(one)

    def order(group: Group) -> float:
        value = group.metric(run.metric.name, ranking_role(run))
        return -run.sign * value[0] if value else math.inf

    made = [
        Group(name, weights, tuple(sorted(members, key=lambda one: one.network.seed or 0)))
        for (name, weights, *_), members in found.items()
    ]
    return sorted(made, key=order)


def final(run: Run, network: Network | None = None) -> tuple[float | None, float | None, Group | None]:
    """How good an architecture is, by default the found one: the metric, its spread over seeds, and of whom.

    That is the best group of retrainings of the architecture; without any, the network's own weights.
    """
    network = network or run.result.found
    for group in groups(run):
        value = group.metric(run.metric.name, run.final_role)
        if group.members[0].network.architecture == network.architecture and value is not None:
            return *value, group
    return run.value(network, run.final_role), None, None


def retrained(run: Run) -> Retrained | None:
    """The training alone whose network subnet/ holds: of the headline's, the one that does best."""
    group, role = final(run)[2], ranking_role(run)
    if group is None:
        return None

    def score(one: Retrained) -> float:
        value = run.value(one.network, role)
        return -math.inf if value is None else run.sign * value

    return max(group.members, key=score)


def lead_over_linear(run: Run) -> float | None:
    """How much better the headline's figure is than a linear model's; None where that was not measured."""
    value, linear = final(run)[0], run.result.linear.get(run.final_role)
    return None if value is None or linear is None else run.sign * (value - linear)


def latency_share(run: Run, other: str) -> float | None:
    """The found network's time as a part of another's; None if their quartiles overlap, or none was timed."""
    times = run.timed.get("milliseconds", {})
    if other not in times or times["found"][2] >= times[other][0]:
        return None
    return times["found"][1] / times[other][1]


def share(run: Run) -> tuple[str, float] | None:
    """The reference network's name, and the first cost of the found one as a part of its own."""
    reference, cost = run.reference, run.cost
    if cost is None or reference is None:
        return None
    if cost == LATENCY and run.timed:  # claimed is only what was measured
        part = latency_share(run, reference.name)
        return None if part is None else (reference.name, part)
    mine, whole = run.result.found.costs[cost], reference.costs.get(cost)
    if reference.name == "largest":  # The last options of all choices; others may cost more.
        reached = [one.reachable[cost][1] for one in run.result.searches if cost in one.reachable]
        whole = max([x for x in (whole, *reached) if words.is_number(x)], default=None)
    right = words.is_number(mine) and words.is_number(whole) and whole > 0
    return (reference.name, mine / whole) if right and whole else None


def headline(run: Run) -> tuple[str, str, str]:
    """The headline: the part before its figure, the figure, and the rest."""
    metric, name = run.metric, words.metric_name(run.metric, run.final_role)
    before, after = f"{words.capital(name)} of ", words.unit_text(metric)
    if metric.unit == "%":
        before, after = "", f" {name}"
    elif words.says_all(metric):
        before, after = "", f"{after} on the {run.final_role} data"
    if run.cost is not None:
        cost = run.result.found.costs[run.cost]
        if run.cost == LATENCY and run.timed:
            cost = run.timed["milliseconds"]["found"][1]
        after += f" with {words.cost_amount(run.cost, cost)}"
    if part := share(run):
        after += f", {words.percent(part[1], 0)} of the {part[0]} network’s"
    return before, words.value_text(metric, final(run)[0], 1), after


def error_of(run: Run) -> float | None:
    """The standard error of the headline's figure over the examples that it was measured on."""
    value, _, group = final(run)
    network = run.result.found if group is None else group.members[0].network
    return words.standard_error(run.result.task, run.metric, run.final_role, network, value)


def spread_text(metric: MetricOf, value: tuple[float, float | None] | None) -> str:
    """A mean with its standard deviation, where there is one."""
    if value is None:
        return "–"
    mean, spread = value
    if spread is None:
        return words.value_text(metric, mean)
    if metric.unit == "%":
        return f"{100 * mean:.2f} ± {100 * spread:.2f}{words.NBSP}%"
    return f"{words.value_text(metric, mean)} ± {spread:.2g}"


def columns(run: Run, nets: Sequence[Network]) -> tuple[list[str], list[Column]]:
    """The costs, and the roles and metrics, that any of the networks has."""
    given = dict.fromkeys(role for net in nets for role in net.metrics)
    known = [role for role in ("train", "search", "validation", "test") if role in given]
    pairs = [(role, m) for role in dict.fromkeys([*known, *given]) for m in run.result.task.metrics]
    pairs = [(r, m) for r, m in pairs if any(m.name in net.metrics.get(r, {}) for net in nets)]
    return list(dict.fromkeys(name for net in nets for name in net.costs)), pairs


def label(name: str, nets: Sequence[Network]) -> str:
    """The name of a network, where its weights come from, and the seeds of its trainings."""
    parts, seeds = [name, nets[0].weights], [str(net.seed) for net in nets if net.seed is not None]
    parts += [f"{words.count(nets[0].steps)} steps"] if nets[0].steps is not None else []
    parts += [f"seed{'s' if len(seeds) > 1 else ''} {words.listed(seeds)}"] if seeds else []
    return ", ".join(parts)

"""The measured networks side by side, and those that were trained alone, grouped over their seeds."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from jaxnas.report import svg, words
from jaxnas.report.document import details, note, say, section, table
from jaxnas.report.read import Retrained, Run
from jaxnas.report.result import MetricOf, Network

_NAMES = {
    "found": "found",
    "random search": "random search’s best",
    "smallest": "smallest of the space",
    "largest": "largest of the space",
}
# Of networks that cost neither least nor most; see `Run.is_extreme`.
_OF_OPTIONS = {"smallest": "lowest option of each choice", "largest": "highest option of each choice"}
_TIMES = {"training_step_ms": "ms a step", "inference_rows_per_second": "rows a second"}


# A role and a metric.
Column = tuple[str, MetricOf]


@dataclasses.dataclass(frozen=True)
class Group:
    """Trainings of one network that differ in the seed alone.

    Attributes:
      name: of the network; "found before" if another one was found since.
      weights: that they began with.
      members: by seed.
    """

    name: str
    weights: str
    members: tuple[Retrained, ...]

    def metric(self, name: str, role: str) -> tuple[float, float | None] | None:
        """Mean and standard deviation over the seeds; None if a value is missing."""
        values = [one.network.metrics.get(role, {}).get(name) for one in self.members]
        numbers = [value for value in values if svg.is_number(value)]
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

    return sorted(
        (
            Group(name, weights, tuple(sorted(members, key=lambda one: one.network.seed or 0)))
            for (name, weights, *_), members in found.items()
        ),
        key=order,
    )


def groups_of(run: Run, network: Network) -> list[Group]:
    """The retrainings of the architecture of a network, the best first."""
    return [one for one in groups(run) if one.members[0].network.architecture == network.architecture]


def panel(run: Run) -> str:
    """The section that compares the networks of the result."""
    nets = [run.result.found, *run.result.networks]
    costs, columns = _columns(run, nets)
    main = _main(run, columns)

    def compared(columns: Sequence[Column]) -> str:
        rows = []
        for net in nets:
            cells = [words.value_text(m, net.metrics.get(role, {}).get(m.name)) for role, m in columns]
            rows.append((_label(_name(run, net.name), [net]), [*_costs(costs, net), *cells]))
        if linear := run.result.linear:
            cells = [
                words.value_text(m, linear.get(role) if m is run.metric else None) for role, m in columns
            ]
            rows.append((words.LINEAR, [*("–" for _ in costs), *cells]))
        return table(_head(costs, columns), rows, first=True)

    inherited = any(net.weights == "inherited" for net in nets)
    text = "Inherited weights are those of the supernet, without any further training." if inherited else ""
    more = details("all metrics", compared(columns)) if len(main) < len(columns) else ""
    return section("The networks side by side", say(text), compared(main), more)


def retrained_panel(run: Run) -> str:
    """The section of the networks that were trained alone; "" if there are none."""
    made = groups(run)
    if not made:
        return ""
    costs, columns = _columns(run, [one.network for one in run.retrained])
    columns = _main(run, columns)
    times = [key for key in _TIMES if any(svg.is_number(one.times.get(key)) for one in run.retrained)]
    rows = []
    for group in made:
        nets = [one.network for one in group.members]
        cells = [spread_text(metric, group.metric(metric.name, role)) for role, metric in columns]
        for key in times:
            known = [t for one in group.members if svg.is_number(t := one.times.get(key))]
            cells.append(svg.short(statistics.fmean(known)) if known else "–")
        rows.append((_label(group.name, nets), [*_costs(costs, nets[0]), *cells]))
    text = "These networks were trained alone, without the supernet. "
    if any(len(group.members) > 1 for group in made):
        text += "The figures are means over the seeds, with ± one standard deviation. "
    text += f"The best {svg.esc(words.metric_name(run.metric, ranking_role(run)))} is first."
    foot = "Times are medians on the device below; they differ from run to run." if times else ""
    head = [*_head(costs, columns), *(_TIMES[key] for key in times)]
    return section("Trained alone", say(text), table(head, rows), note(foot))


def spread_text(metric: MetricOf, value: tuple[float, float | None] | None) -> str:
    """A mean with its standard deviation, where there is one."""
    if value is None:
        return "–"
    mean, spread = value
    if spread is None:
        return words.value_text(metric, mean)
    if metric.unit == "%":
        return f"{100 * mean:.2f} ± {100 * spread:.2f}{svg.NBSP}%"
    return f"{words.value_text(metric, mean)} ± {spread:.2g}"


def _columns(run: Run, nets: Sequence[Network]) -> tuple[list[str], list[Column]]:
    """The costs, and the roles and metrics, that any of the networks has."""
    given = dict.fromkeys(role for net in nets for role in net.metrics)
    roles = dict.fromkeys(
        [*(role for role in ("train", "search", "validation", "test") if role in given), *given]
    )
    pairs = [(role, metric) for role in roles for metric in run.result.task.metrics]
    known = [(r, m) for r, m in pairs if any(m.name in net.metrics.get(r, {}) for net in nets)]
    return list(dict.fromkeys(name for net in nets for name in net.costs)), known


def _name(run: Run, name: str) -> str:
    """What a network is called in the table."""
    if name in _OF_OPTIONS and not run.is_extreme(name):
        return _OF_OPTIONS[name]
    return _NAMES.get(name, name)


def _main(run: Run, columns: Sequence[Column]) -> list[Column]:
    """The metric of the search in each role, and all metrics in the role that counts in the end."""
    return [(role, metric) for role, metric in columns if role == run.final_role or metric is run.metric]


def _head(costs: Sequence[str], columns: Sequence[Column]) -> list[str]:
    names = [words.metric_name(metric, role, unit=True) for role, metric in columns]
    return ["network", *map(words.cost_name, costs), *names]


def _costs(costs: Sequence[str], net: Network) -> list[str]:
    return [words.cost_text(net.costs.get(cost)) for cost in costs]


def _label(name: str, nets: Sequence[Network]) -> str:
    """The name of a network, where its weights come from, and the seeds of its trainings."""
    parts, seeds = [name, nets[0].weights], [str(net.seed) for net in nets if net.seed is not None]
    parts += [f"{svg.count(nets[0].steps)} steps"] if nets[0].steps is not None else []
    parts += [f"seed{'s' if len(seeds) > 1 else ''} {words.listed(seeds)}"] if seeds else []
    return ", ".join(parts)

"""Everything that the searches evaluated: the metric against a cost, with the front and the budget."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

from jaxnas.report import svg, words
from jaxnas.report.document import both, note, say, section
from jaxnas.report.read import Record, Run

# (mark, class) of the strategies in the order of the history; random search has its own.
_LOOKS = (("circle", "evolution"), ("square", "sampled"), ("up", "train"), ("down", "extreme"))
_NETWORKS = {"smallest": "down", "largest": "up"}
# What these are called where they cost neither least nor most; see `Run.is_extreme`.
_OF_OPTIONS = {"smallest": "lowest options", "largest": "highest options"}
# Beyond this many marks, one path holds them all and a mark has no title of its own.
MOST_TITLES = 4000


class Strategy(NamedTuple):
    """How a strategy of the history is drawn: its name there, in words, its mark and its class."""

    name: str
    label: str
    mark: str
    kind: str


class Marked(NamedTuple):
    """A network with a label of its own in the plot."""

    label: str
    mark: str
    cost: float
    value: float


@dataclasses.dataclass(frozen=True)
class Plot:
    """What the scatter plot shows.

    Attributes:
      run: the run.
      cost: name of the cost on the x axis.
      lines: evaluations with a finite cost and score.
      marked: networks with labels, the found one last.
      x_range, y_range: of the axes, in the cost and in the metric.
      x_log: whether the x axis is logarithmic.
      clipped: evaluations beyond the worse end of the y axis.
    """

    run: Run
    cost: str
    lines: tuple[Record, ...]
    marked: tuple[Marked, ...]
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_log: bool
    clipped: int

    @property
    def front(self) -> list[Record]:
        """The evaluations that none costs less than and scores as well as."""
        return [self.lines[i] for i in pareto_front([(x[self.cost], x["score"]) for x in self.lines])]

    @property
    def front_corners(self) -> list[svg.Point]:
        """(cost, metric) along the front, and on to the dearest evaluation."""
        corners = [(line[self.cost], self.value(line)) for line in self.front]
        return [*corners, (max(line[self.cost] for line in self.lines), corners[-1][1])]

    def value(self, line: Record) -> float:
        """The metric of an evaluation."""
        return self.run.sign * line["score"]

    def holds(self, network: Marked) -> bool:
        """Whether a network is inside the axes."""
        inside = self.x_range[0] <= network.cost <= self.x_range[1]
        return inside and self.y_range[0] <= network.value <= self.y_range[1]

    def label_below(self, network: Marked) -> bool:
        """Whether a label keeps off the marks below its own: the best lie at the better end."""
        return (self.run.sign > 0) == (network.mark == "up")

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """The budget that is inside the plot, None where there is no bound."""
        low, high = self.run.bounds.get(self.cost, (None, None))
        low = low if svg.is_number(low) and low > self.x_range[0] else None
        return low, high if svg.is_number(high) and high < self.x_range[1] else None

    @property
    def cost_label(self) -> str:
        """The name of the x axis."""
        return words.cost_name(self.cost) + (" (log scale)" if self.x_log else "")


def strategies(run: Run) -> list[Strategy]:
    """The strategies of the history, random search first: it is drawn below the others."""
    made: list[Strategy] = []
    for name in dict.fromkeys(line["strategy"] for line in run.history):
        if name.startswith("random"):
            made.insert(0, Strategy(name, words.strategy_name(name), "diamond", "random"))
        else:
            look = _LOOKS[sum(one.kind != "random" for one in made) % len(_LOOKS)]
            made.append(Strategy(name, words.plain(name), *look))
    return made


def pareto_front(points: Sequence[svg.Point]) -> list[int]:
    """Indices of the (cost, score) points that no other one beats, by increasing cost.

    A point is beaten by another that costs no more and scores no less, and differs in one of them.
    Of equal points the first is kept.
    """
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1], i))
    front, best = [], -math.inf
    for i in order:
        if points[i][1] > best:
            front.append(i)
            best = points[i][1]
    return front


def plot_of(run: Run, room: float = 4.5) -> Plot | None:
    """The plot of a run; None if no evaluation has a cost and a score.

    The evaluations and the found network have to fill the plot. Other networks are inside if they
    leave the others enough room, and drawn on the edge otherwise. So is the worst twentieth of the
    evaluations, where it would flatten all others.
    `room` is the margin for a label on the edge, in units of the usual margin.
    """
    number = svg.is_number
    scored = [line for line in run.history if number(line["score"])]
    names = [run.cost, *run.result.found.costs]
    costs = [name for name in names if name is not None and any(number(x.get(name)) for x in scored)]
    if not costs:
        return None
    cost, marked = costs[0], []
    lines = tuple(line for line in scored if number(line.get(cost)))
    found = run.result.found
    for net in (*run.result.networks, found):
        value, mark = run.value(net, run.search_role), _NETWORKS.get(net.name, "square")
        mark = "star" if net is found else mark
        if net.name != "random search" and value is not None and number(net.costs.get(cost)):
            label = net.name if run.is_extreme(net.name) else _OF_OPTIONS[net.name]
            marked.append(Marked(label, mark, net.costs[cost], value))
    core, others = [m for m in marked if m.mark == "star"], [m for m in marked if m.mark != "star"]

    sizes = [x[cost] for x in lines] + [m.cost for m in core]
    x_log = min(sizes) > 0 and max(sizes) > 8 * min(sizes)
    scale, back = (math.log, math.exp) if x_log else (float, float)
    extra = [scale(m.cost) for m in others if m.cost > 0]
    low, high = _stretch([scale(x) for x in sizes], extra)
    pad = 0.04 * (high - low) or 0.05 * abs(high) or 1
    # A network on the edge gets room for its label.
    below = room * pad if any(x < low for x in extra) else pad
    above = room * pad if any(x > high for x in extra) else pad
    x_range = (back(low - below), back(high + above))

    # Scores, of which more is better.
    scores = sorted([x["score"] for x in lines] + [run.sign * m.value for m in core])
    fifth, low = scores[len(scores) // 20], scores[0]
    if scores[-1] - low > 2.5 * (scores[-1] - fifth) > 0:
        low = min([scores[-1] - 1.6 * (scores[-1] - fifth), *(run.sign * m.value for m in core)])
    low, high = _stretch([low, scores[-1]], [run.sign * m.value for m in others])
    span = (high - low) or 0.05 * abs(high) or 0.01
    ends = sorted((run.sign * (low - 0.06 * span), run.sign * (high + 0.14 * span)))
    positive = all(x["score"] * run.sign >= 0 for x in lines)
    clipped = sum(line["score"] < low - 0.06 * span for line in lines)
    y_range = (max(0.0, ends[0]) if positive else ends[0], ends[1])
    return Plot(run, cost, lines, tuple(marked), x_range, y_range, x_log, clipped)


def _stretch(core: Sequence[float], extra: Sequence[float]) -> tuple[float, float]:
    """The range of `core`, and of every extra value that leaves it two fifths of the range."""
    low, high = min(core), max(core)
    for value in sorted(extra, key=lambda v: max(low - v, v - high)):
        wider = min(low, value), max(high, value)
        if max(core) - min(core) >= 0.4 * (wider[1] - wider[0]):
            low, high = wider
    return low, high


def panel(run: Run) -> str:
    """The section of the scatter plot; "" if nothing can be drawn."""
    plot = plot_of(run)
    if plot is None:
        return ""
    drawn, front = strategies(run), plot.front
    entries, parts = [], []
    for one in reversed(drawn):
        entries.append((one.mark, one.kind, f"{one.label} ({svg.count(len(run.strategy(one.name)))})"))
        parts.append(f"{sum(x['strategy'] == one.name for x in front)} from {one.label}")
    entries.append(("line", "front", "Pareto front"))
    entries += [(m.mark, "best" if m.mark == "star" else "extreme", m.label) for m in plot.marked]
    text = (
        f"Each mark is an evaluated network, scored by its {words.metric_name(run.metric, run.search_role)}. "
        f"{'More' if run.sign > 0 else 'Less'} is better. The Pareto front holds the {svg.count(len(front))} "
        f"that no other network beats in both figures{': ' * (len(parts) > 1)}"
    )
    text += words.listed(parts) if len(parts) > 1 else ""
    foot = "Later evaluations are drawn stronger."
    if plot.clipped:
        foot += f" {svg.count(plot.clipped)} evaluations beyond the axis are drawn on its edge."
    if not run.goes_on and all(one.kind != "random" for one in drawn):
        foot += " This run has no random search to compare with."
    title = words.capital(f"{words.metric_name(run.metric)} against {words.cost_name(plot.cost)}")
    return section(title, say(svg.esc(f"{text}.")), svg.legend(entries), both(draw, run), note(foot))


def draw(run: Run, narrow: bool = False) -> str:
    """The scatter plot as SVG."""
    plot = plot_of(run, 8 if narrow else 4.5)
    assert plot is not None
    size = (400, 380) if narrow else (960, 470)
    frame = svg.Frame(*size, plot.x_range, plot.y_range, left=46 if narrow else 52, top=30, x_log=plot.x_log)
    name = words.metric_name(run.metric, run.search_role, unit=True)
    body = [_budget(frame, plot)]
    body.append(svg.axes(frame, plot.cost_label, name, y_texts=words.axis_texts(run.metric)))
    merged = narrow or len(plot.lines) > MOST_TITLES
    body += [_marks(frame, plot, strategy, merged) for strategy in strategies(run)]
    body.append(svg.line([(frame.x(x), frame.y(y)) for x, y in plot.front_corners], "front", steps=True))
    body += [_labelled(frame, plot, network) for network in plot.marked]
    about = (
        f"Scatter plot of {len(plot.lines)} evaluated architectures, of which {len(plot.front)} are on the "
        "Pareto front. "
    )
    about += "; ".join(_figures(plot, network).replace("\n", ", ") for network in plot.marked)
    return svg.figure("scatter", size, f"{name} against {plot.cost_label}", about, "".join(body), narrow)


def _figures(plot: Plot, network: Marked) -> str:
    """A network's name, metric and cost."""
    value = words.value_text(plot.run.metric, network.value) + words.unit_text(plot.run.metric)
    return f"{network.label}\n{value}\n{words.cost_amount(plot.cost, network.cost)}"


def _budget(frame: svg.Frame, plot: Plot) -> str:
    """The part of the x axis inside the budget, shaded, with its edges."""
    low, high = plot.bounds
    left = frame.left if low is None else frame.x(low)
    right = frame.x1 if high is None else frame.x(high)
    if (low is None and high is None) or right <= left:
        return ""
    out = [svg.rect(left, frame.top, right - left, frame.y1 - frame.top, "budget")]
    for value in (low, high):
        if value is not None:
            x = svg.num(frame.x(value))
            out.append(f'<path class="bound" d="M{x} {svg.num(frame.top)}V{svg.num(frame.y1)}"/>')
    if right - left > 60:
        # Cheap networks that are good are rare: this corner is free.
        y = frame.top + 16 if plot.run.sign > 0 else frame.y1 - 8
        out.append(svg.text(left + 8, y, "budget", "note"))
    return "".join(out)


def _marks(frame: svg.Frame, plot: Plot, strategy: Strategy, merged: bool) -> str:
    """The marks of one strategy, in three shades from early to late; `merged` drops their titles."""
    lines = [line for line in plot.lines if line["strategy"] == strategy.name]
    shades, r = ["", "", ""], 3 if frame.width < 500 else 4
    for i, line in enumerate(lines):
        third, place = 3 * i // len(lines), (frame.x(line[plot.cost]), frame.y(plot.value(line)))
        kind = f"{strategy.kind} late{third + 1}"
        if merged:
            shades[third] += svg.shape(strategy.mark, *place, r)
        else:
            shades[third] += svg.mark(strategy.mark, *place, r, kind, _title(plot, strategy, line))
    if merged:
        kinds = [f"mark {strategy.kind} late{third + 1}" for third in range(3)]
        shades = [f'<path class="{kind}" d="{d}"/>' for kind, d in zip(kinds, shades, strict=True) if d]
    return "".join(shades)


def _title(plot: Plot, strategy: Strategy, line: Record) -> str:
    """What a pointer over a mark shows."""
    run, title = plot.run, f"{strategy.label}, evaluation {svg.count(line['index'])}"
    if svg.is_number(line.get("generation")):
        title += f", generation {svg.count(line['generation'])}"
    value = words.value_text(run.metric, plot.value(line)) + words.unit_text(run.metric)
    title += f"\n{words.metric_name(run.metric, run.search_role)} {value}"
    costs = [name for name in run.result.found.costs if svg.is_number(line.get(name))]
    title += "\n" + ", ".join(words.cost_amount(name, line[name]) for name in costs)
    if isinstance(line.get("architecture"), dict):
        title += f"\n{words.describe(line['architecture'], run.result.space.choices)}"
    return title


def _labelled(frame: svg.Frame, plot: Plot, network: Marked) -> str:
    """A mark with its name; on the edge of the plot, with its figures, if it lies outside."""
    metric, star = plot.run.metric, network.mark == "star"
    value, r = words.value_text(metric, network.value), 12 if star else 7
    x = frame.left if plot.x_log and network.cost <= 0 else frame.x(network.cost)
    x = min(max(x, frame.left + r + 2), frame.x1 - r - 2)
    y = min(max(frame.y(network.value), frame.top + r + 2), frame.y1 - r - 2)
    lines = [network.label, *([] if plot.holds(network) else [f"{svg.short(network.cost)}, {value}"])]
    half = 4 * max(map(len, lines))
    anchor = "end" if x > frame.x1 - half else "start" if x < frame.left + half else "middle"
    shift = {"end": r, "start": -r, "middle": 0}[anchor]
    below = plot.label_below(network) and y + r + 16 * len(lines) < frame.y1
    first = y + r + 15 if below else y - r - 5 - 15 * (len(lines) - 1)
    texts = (svg.text(x + shift, first + 15 * i, text, "label", anchor) for i, text in enumerate(lines))
    return svg.mark(network.mark, x, y, r, "best" if star else "extreme", _figures(plot, network)) + "".join(
        texts
    )

"""The charts of a page, as Vega-Lite specifications: a pointer shows what a mark is, a legend filters.

Colors are in `theme`, once for light and once for dark pages: a specification names styles alone. Data stand
beside a specification as rows, under names of its own, since a user's names may be no names of fields.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import vl_convert

from jaxnas.report import words
from jaxnas.report.networks import LATENCY
from jaxnas.report.read import Record, Run
from jaxnas.report.result import MetricOf, SampledSpaceOf

Spec = dict[str, Any]
# A line has at most this many points: more would be closer together than pixels.
MOST_POINTS = 240
# Beyond this many evaluations only those of the front carry their architecture.
MOST_DESCRIBED = 4000
MOST_MOMENTS = 40
_LIGHT = ("#0b68b0", "#c4570a", "#0b7f62", "#8a3f94", "#8a6d00", "#b3261e", "#566273", "#17202b")
_DARK = ("#5db2f0", "#f19a4d", "#45c9a3", "#d79be0", "#e5c33d", "#ff8a80", "#9eabba", "#e8edf3")


class Axis(NamedTuple):
    """The title of an axis, the d3 format of its numbers, its scale and its range."""

    title: str
    format: str = ""
    scale: str = "linear"
    range: tuple[float, float] | None = None
    reverse: bool = False

    def of(self, kind: type, field: str) -> Any:
        """The encoding of a field on this axis."""
        scale: dict[str, Any] = {"type": self.scale, "nice": self.range is None, "reverse": self.reverse}
        scale |= {"zero": False} if self.scale == "linear" else {}
        scale |= {} if self.range is None else {"domain": list(self.range)}
        return kind(f"{field}:Q").title(self.title).axis(format=self.format).scale(**scale)

    def tip(self, field: str) -> alt.Tooltip:
        """What a pointer shows of a field; a percentage has two digits there."""
        return alt.Tooltip(f"{field}:Q", title=self.title, format=".2%" if "%" in self.format else ",")


class Cell(NamedTuple):
    """A cell of a heat map: its column, its row, its shade from 0 to 1, its text and its whole name."""

    x: str
    y: str
    value: float
    text: str
    name: str
    moment: int = 0


def theme(dark: bool = False) -> Spec:
    """The colors and fonts of all charts."""
    ink, soft, grid = ("#e8edf3", "#9eabba", "#2b3541") if dark else ("#17202b", "#566273", "#dde3ea")
    card, blue, purple = ("#171d25", _DARK[0], _DARK[3]) if dark else ("#ffffff", _LIGHT[0], _LIGHT[3])
    text = {
        "labelColor": soft,
        "titleColor": soft,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": 400,
    }
    return {
        "background": None,
        "font": 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif',
        "view": {"stroke": None},
        "mark": {"color": blue},
        "range": {"category": list(_DARK if dark else _LIGHT), "heatmap": [card, blue], "ramp": [card, blue]},
        "axis": {**text, "gridColor": grid, "domainColor": grid, "tickColor": grid, "labelLimit": 260},
        "axisX": {"grid": False, "tickCount": 7},
        "axisY": {"tickCount": 6},
        "legend": {**text, "title": None, "orient": "top", "symbolSize": 120, "symbolOpacity": 1, "labelLimit": 320},
        "title": {"color": ink, "anchor": "start", "fontSize": 13, "fontWeight": 600},
        "style": {
            "front": {"color": ink, "stroke": ink, "strokeWidth": 1.5},
            "found": {"color": "#ffd23f" if dark else "#f2b701", "stroke": ink},
            "named": {"color": purple},
            "label": {"color": ink, "fontWeight": 600, "fontSize": 13},
            "note": {"color": soft, "fontSize": 12},
            "over": {"color": card, "fontSize": 12},
            "under": {"color": ink, "fontSize": 12},
            "budget": {"color": blue, "fillOpacity": 0.08},
            "frame": {"stroke": card, "strokeWidth": 3},
        },
    }


def to_svg(spec: Spec) -> str:
    """A chart as the text of an SVG file, for light pages."""
    return vl_convert.vegalite_to_svg(_alone(spec))


def to_png(spec: Spec, title: str) -> bytes:
    """A chart with a title as a PNG of about 1600 pixels, for light pages."""
    return vl_convert.vegalite_to_png(_alone(spec) | {"title": title}, scale=1600 / 920)


def _alone(spec: Spec) -> Spec:
    width = 860 if spec["width"] == "container" else spec["width"]
    return {
        **spec,
        "width": width,
        "background": "white",
        "padding": 16,
        "config": {**theme(), "background": "white"},
    }


def _spec(chart: Any, height: int, **rows: Iterable[Mapping[str, Any]]) -> Spec:
    """A chart of named data as plain values, as wide as its place on the page."""
    fit = alt.AutoSizeParams(type="fit-x", contains="padding")
    spec = chart.properties(width="container", height=height, autosize=fit).to_dict()
    spec.pop("config")
    return spec | {
        "datasets": {k: [{n: _short(v) for n, v in row.items()} for row in x] for k, x in rows.items()}
    }


def _short(value: Any) -> Any:
    """A number without the digits that no one sees."""
    return float(f"{value:.6g}") if isinstance(value, float) and value % 1 else value


def _legend() -> alt.Parameter:
    return alt.selection_point(name="legend", fields=["s"], bind="legend")


def _zoom() -> alt.Parameter:
    """Zoom by a pinch, or by the wheel with Ctrl: the wheel alone scrolls the page."""
    return alt.selection_interval(name="zoom", bind="scales", zoom="wheel![event.ctrlKey]")


def _series(names: Sequence[str], kind: type = alt.Color) -> Any:
    """The color, shape or dashes of named series, with one legend for all three."""
    scale = {"domain": list(names)} | ({"range": ["circle", "diamond", "square", "triangle-up"]} if kind is alt.Shape else {})
    return kind("s:N", legend=alt.Legend() if len(names) > 1 else None).scale(**scale)


def metric_axis(metric: MetricOf, role: str = "") -> Axis:
    """The axis of a metric."""
    return Axis(words.metric_name(metric, role, unit=True), ".2~%" if metric.unit == "%" else "~g")


def lines(rows: Sequence[Record], x: Axis, y: Axis, steps: bool = False, height: int = 300) -> Spec:
    """Lines by series, with bands where rows have them; a pointer shows the nearest point.

    Args:
      rows: with "s" for the series, "x", "y", and perhaps "low" and "high".
      x, y: the axes.
      steps: whether a value holds until the next one.
      height: in pixels.
    """
    names = list(dict.fromkeys(row["s"] for row in rows))
    legend = _legend()
    hover = alt.selection_point(name="hover", on="pointerover", nearest=True, empty=False, clear="pointerout")
    places = {"x": x.of(alt.X, "x"), "y": y.of(alt.Y, "y")}
    base = alt.Chart(alt.NamedData("lines")).encode(**places, color=_series(names))
    seen = alt.when(legend).then(alt.value(1)).otherwise(alt.value(0.08))
    drawn = base.mark_line(clip=True, interpolate="step-after" if steps else "linear").encode(
        strokeDash=_series(names, alt.StrokeDash), opacity=seen
    )
    tips = [*([alt.Tooltip("s:N", title="of")] if len(names) > 1 else []), x.tip("x"), y.tip("y")]
    points = base.mark_point(filled=True, size=70, clip=True).encode(
        opacity=alt.when(hover).then(alt.value(1)).otherwise(alt.value(0)), tooltip=tips
    )
    parts = [drawn.add_params(legend, _zoom()), points.add_params(hover)]
    if any("low" in row for row in rows):
        band = base.mark_area(opacity=0.15, clip=True).encode(y=y.of(alt.Y, "low"), y2="high:Q")
        parts.insert(0, band.transform_filter("isValid(datum.low)"))
    return _spec(alt.layer(*parts), height, lines=rows)


def thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `MOST_POINTS` points: means over runs of neighbors of equal length."""
    size = max(1, -(-len(points) // MOST_POINTS))
    parts = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
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


def scatter(run: Run) -> Spec | None:
    """Every evaluated architecture by cost, with the front, the budget and the networks of the result.

    None if no evaluation has a cost and a score.
    """
    scored = [line for line in run.history if words.is_number(line["score"])]
    names = [name for name in dict.fromkeys([run.cost, *run.result.found.costs]) if name]
    costs = [name for name in names if any(words.is_number(line.get(name)) for line in scored)]
    if not costs:
        return None
    cost, other = costs[0], costs[1:]
    done = [line for line in scored if words.is_number(line.get(cost))]
    front = pareto_front([(line[cost], line["score"]) for line in done])
    known = {*front} if len(done) > MOST_DESCRIBED else {*range(len(done))}
    rows, choices = [], run.result.space.choices
    for i, line in enumerate(done):
        row = {"x": line[cost], "y": run.sign * line["score"], "s": words.strategy_name(line["strategy"])}
        row |= {"i": line["index"], **{f"c{n}": line.get(name) for n, name in enumerate(other)}}
        rows.append(
            row | ({"a": words.describe(line.get("architecture") or {}, choices)} if i in known else {})
        )
    edge = [{"x": rows[i]["x"], "y": rows[i]["y"]} for i in front]
    edge.append({"x": max(row["x"] for row in rows), "y": edge[-1]["y"]})
    marked, x_range, y_range, log = _ranges(run, cost, rows)
    x = Axis(words.cost_name(cost) + " (log scale)" * log, "~s", "log" if log else "linear", x_range)
    y = metric_axis(run.metric, run.search_role)._replace(range=y_range)
    order = list(dict.fromkeys(row["s"] for row in rows))
    order.sort(key=lambda name: name == "random search")
    order.insert(1, order.pop()) if len(order) > 1 else None
    tips = [
        alt.Tooltip("s:N", title="strategy"),
        alt.Tooltip("i:Q", title="evaluation"),
        y.tip("y"),
        x.tip("x"),
    ]
    tips += [alt.Tooltip(f"c{n}:Q", title=words.cost_name(name), format=",") for n, name in enumerate(other)]
    places = {"x": x.of(alt.X, "x"), "y": y.of(alt.Y, "y")}
    legend = _legend()
    points = alt.Chart(alt.NamedData("points")).mark_point(filled=True, size=50, clip=True)
    points = points.encode(
        **places,
        color=_series(order),
        shape=_series(order, alt.Shape),
        opacity=alt.when(legend).then(alt.value(0.6)).otherwise(alt.value(0.03)),
        tooltip=[*tips, alt.Tooltip("a:N", title="architecture")],
    )
    line = alt.Chart(alt.NamedData("front")).mark_line(style="front", interpolate="step-after", clip=True)
    parts = [points.add_params(legend, _zoom()), line.encode(**places), *_named(places, y, x)]
    if bounds := _budget(run.bounds.get(cost, (None, None)), x_range):
        area = (
            alt.Chart(alt.NamedData("budget")).mark_rect(style="budget", clip=True).encode(x="x:Q", x2="x2:Q")
        )
        word = alt.Chart(alt.NamedData("budget")).mark_text(style="note", align="left", dx=6, y=10, clip=True)
        parts = [area, *parts, word.encode(x="x:Q", text=alt.value("budget"))]
    spec = _spec(alt.layer(*parts), 420, points=rows, front=edge, named=marked, budget=bounds)
    outside = sum(not y_range[0] <= row["y"] <= y_range[1] for row in rows)
    return spec | {"usermeta": {"front": len(front), "outside": outside}}


def _named(places: Mapping[str, Any], y: Axis, x: Axis) -> list[Any]:
    """Marks and labels of networks of the result."""
    base = alt.Chart(alt.NamedData("named")).encode(**places)
    star = (
        "M0,-1L0.24,-0.32L0.95,-0.31L0.38,0.12L0.59,0.81L0,0.4L-0.59,0.81L-0.38,0.12L-0.95,-0.31L-0.24,-0.32Z"
    )
    tips = [alt.Tooltip("n:N", title="network"), y.tip("v"), x.tip("c")]
    found, others = (
        "datum.n == 'found' || datum.n == 'best so far'",
        "datum.n != 'found' && datum.n != 'best so far'",
    )
    return [
        base.mark_point(style="named", filled=True, shape="triangle-down", size=110, opacity=1)
        .encode(tooltip=tips)
        .transform_filter(others),
        base.mark_point(style="found", filled=True, shape=star, size=420, opacity=1, strokeWidth=1)
        .encode(tooltip=tips)
        .transform_filter(found),
        base.mark_text(style="label", dy=-16, align="right", dx=8)
        .encode(text="l:N")
        .transform_filter("datum.e"),
        base.mark_text(style="label", dy=-16).encode(text="l:N").transform_filter("!datum.e"),
    ]


def _ranges(
    run: Run, cost: str, rows: Sequence[Record]
) -> tuple[list[Record], tuple[float, float], tuple[float, float], bool]:
    """The networks with labels, the ranges of the axes, and whether that of the cost is logarithmic.

    Other networks are inside if they leave these two fifths of the range, and stand on the edge otherwise. So
    much worse evaluations, at most a twentieth of them, are outside.
    """
    nets = [*run.result.networks, run.result.found]
    shown = [(n, n.costs.get(cost), run.value(n, run.search_role)) for n in nets if n.name != "random search"]
    shown = [(n, x, y) for n, x, y in shown if words.is_number(x) and y is not None]
    core, scores = [row["x"] for row in rows], sorted(run.sign * row["y"] for row in rows)
    found = [(x, y) for n, x, y in shown if n is run.result.found]
    core += [x for x, _ in found]
    log = min(core) > 0 and max(core) > 8 * min(core)
    scale, back = (math.log, math.exp) if log else (float, float)
    low, high = _stretch([*map(scale, core)], [scale(x) for _, x, _ in shown if x > 0])
    pad = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    x_range = (back(low - pad), back(high + pad))
    worst, fifth, best = scores[0], scores[len(scores) // 20], scores[-1]
    if best - worst > 2.5 * (best - fifth) > 0:
        worst = best - 1.6 * (best - fifth)
    own = [run.sign * y for _, y in found]
    low, high = _stretch([worst, best, *own], [run.sign * y for _, _, y in shown])
    span = (high - low) or 0.05 * abs(high) or 0.01
    ends = sorted((run.sign * (low - 0.06 * span), run.sign * (high + 0.14 * span)))
    y_range = (max(0.0, ends[0]) if min(run.sign * s for s in scores) >= 0 else ends[0], ends[1])
    marked = []
    for net, x, y in shown:
        at = min(max(x, x_range[0]), x_range[1]), min(max(y, y_range[0]), y_range[1])
        name = net.name if run.is_extreme(net.name) else f"{net.name} options"
        label = name if at == (x, y) else f"{name}: {words.short(x)}, {words.value_text(run.metric, y)}"
        late = (
            scale(at[0]) > scale(x_range[1]) - 0.12 * (scale(x_range[1]) - scale(x_range[0]))
            if at[0] > 0
            else False
        )
        marked.append({"n": net.name, "l": label, "x": at[0], "y": at[1], "c": x, "v": y, "e": late})
    return marked, x_range, y_range, log


def _stretch(core: Sequence[float], extra: Sequence[float]) -> tuple[float, float]:
    """The range of `core`, and of every extra value that leaves it two fifths of the range."""
    low, high = min(core), max(core)
    for value in sorted(extra, key=lambda v: max(low - v, v - high)):
        wider = min(low, value), max(high, value)
        if max(core) - min(core) >= 0.4 * (wider[1] - wider[0]):
            low, high = wider
    return low, high


def _budget(bounds: tuple[float | None, float | None], within: tuple[float, float]) -> list[Record]:
    """The part of an axis inside the budget; [] if that is all of it."""
    low, high = (x if words.is_number(x) else end for x, end in zip(bounds, within, strict=True))
    low, high = max(low, within[0]), min(high, within[1])
    return [{"x": low, "x2": high}] if low < high and (low, high) != within else []


def best_so_far(run: Run) -> Spec | None:
    """The best metric after each evaluation, by strategy; None without evaluations."""
    rows: list[Record] = []
    late, ends = [], []
    for name in dict.fromkeys(line["strategy"] for line in run.history):
        best, own = -math.inf, []
        for i, line in enumerate(run.strategy(name), 1):
            best = max(best, line["score"] if words.is_number(line["score"]) else best)
            if math.isfinite(best):
                own.append({"s": words.strategy_name(name), "x": i, "y": run.sign * best})
        # A line in steps looks the same without the points inside a flat run.
        rows += [p for i, p in enumerate(own) if i in (0, len(own) - 1) or p["y"] != own[i - 1]["y"]]
        late += [own[min(len(own) - 1, len(own) // 25)]["y"]] if own else []
        ends += [own[-1]["y"]] if own else []
    if not rows:
        return None
    # The first evaluations may be far worse than all others: they may leave the plot.
    low, high = min(late + ends), max(late + ends)
    pad = 0.1 * (high - low) or 0.05 * abs(high) or 1.0
    y = metric_axis(run.metric, run.search_role)
    y = y._replace(title=f"best {y.title} so far", range=(low - pad, high + pad))
    rows.sort(key=lambda row: row["s"] == "random search")
    return lines(rows, Axis("evaluations", "~s"), y, steps=True, height=260)


def training(run: Run) -> dict[str, Spec]:
    """The metric of the watched networks by step, and a chart of each number that was logged; by name."""
    metric, found = run.metric, {}
    watched = [
        ("validation", metric.name, "validation"),
        ("search", f"largest_{metric.name}", "largest subnet"),
    ]
    watched += [("search", f"random_{metric.name}_mean", "random subnets, mean and range")]
    watched += [("search", f"smallest_{metric.name}", "smallest subnet")]
    ends = [dict(run.series("search", f"random_{metric.name}_{end}")) for end in ("min", "max")]
    rows = [{"s": label, "x": x, "y": y} for split, key, label in watched for x, y in run.series(split, key)]
    for row in rows:
        if row["s"].startswith("random") and all(row["x"] in end for end in ends):
            row |= {"low": ends[0][row["x"]], "high": ends[1][row["x"]]}
    if rows:
        batches = thin(run.series("train", metric.name))
        rows += [{"s": "training batches", "x": x, "y": y} for x, y in batches]
        found["watched"] = lines(rows, Axis("training step", "~s"), metric_axis(metric))
    logged = ("search_loss", "temperature", "entropy", "confidence", "expected_cost", "learning_rate")
    metrics = {one.name: one for one in run.result.task.metrics if not (rows and one is metric)}
    for key in dict.fromkeys(("loss", *metrics, *logged)):
        points = [{"s": key, "x": x, "y": y} for x, y in thin(run.series("train", key))]
        y = metric_axis(metrics[key], "training") if key in metrics else Axis(words.plain(key), "~g")
        if points:
            found[f"curve-{key}"] = lines(points, Axis("training step", "~s"), y, height=180)
    return found


def heat(cells: Sequence[Cell], title: str, moments: Sequence[str] = ()) -> Spec:
    """A heat map, its columns and rows in the order of the cells; with several moments, a slider over them."""
    rows = list(dict.fromkeys(cell.y for cell in cells))
    base = alt.Chart(alt.NamedData("cells")).encode(
        x=alt.X("x:N", sort=list(dict.fromkeys(cell.x for cell in cells)), title=None).axis(
            orient="top", labelAngle=0
        ),
        y=alt.Y("y:N", sort=rows, title=None),
    )
    if len(moments) > 1:
        bind = alt.binding_range(min=0, max=len(moments) - 1, step=1, name="moment ")
        moment = alt.param(name="moment", value=len(moments) - 1, bind=bind)
        base = base.add_params(moment).transform_filter("datum.moment == moment")
    tips = [alt.Tooltip("name:N", title="place"), alt.Tooltip("text:N", title=title)]
    shade = alt.Color("value:Q", legend=None).scale(domain=[0, 1], range="ramp")
    boxes = base.mark_rect(style="frame").encode(
        color=shade, tooltip=[*tips, alt.Tooltip("value:Q", format=".1%")]
    )
    texts = [
        base.mark_text(style=style).encode(text="text:N").transform_filter(which)
        for style, which in (("over", "datum.value > 0.55"), ("under", "datum.value <= 0.55"))
    ]
    return _spec(alt.layer(boxes, *texts), 26 * len(rows), cells=[cell._asdict() for cell in cells])


def probabilities(run: Run) -> tuple[dict[str, Spec], list[str]]:
    """The probability of each option over the search, a chart for each choice, and the names of the moments."""
    selection, choices = run.result.selection, run.result.space.choices
    assert selection is not None
    moments = [(line["step"], line["probabilities"]) for line in run.of_split("architecture")]
    names = selection.probabilities.keys()
    moments = [one for one in moments if one[0] < selection.steps and one[1].keys() == names]
    moments.append((selection.steps, selection.probabilities))
    moments = moments[::-1][:: -(-len(moments) // MOST_MOMENTS)][::-1]  # the last one is always there
    charts = {}
    for name, choice in choices.items():
        cells = []
        for number, (step, values) in enumerate(moments if name in names else []):
            table = values[name] if "length" in choice else [values[name]]
            for position, row in enumerate(table):
                options = words.options_of(choice, position)
                for i in reversed(range(len(row))):
                    option = words.plain(options[i]) if i < len(options) else "no option"
                    label = f"option {i + 1}" if choice.get("per_position") else option
                    column = f"{position + 1}" if "length" in choice else words.plain(name)
                    text = f"{100 * row[i]:.0f}" if row[i] == max(row) else ""
                    where = (
                        f"{words.plain(name)} {column if 'length' in choice else ''}: {option}, step {step:,}"
                    )
                    cells.append(Cell(column, label, row[i], text, where, number))
        if cells:
            charts[name] = heat(cells, "percent", [str(step) for step, _ in moments])
    return charts, [f"{step:,}" for step, _ in moments]


def strengths(rows: Sequence[Record], title: str, chance: float | None) -> Spec:
    """Bars of what the metric loses without each option, with the range over positions.

    Args:
      rows: with "option", "mean", "low", "high" and "kept", whether it was kept.
      title: of the axis.
      chance: below which a difference may be one of chance; None where that is not known.
    """
    order = [row["option"] for row in rows]
    base = alt.Chart(alt.NamedData("bars")).encode(y=alt.Y("option:N", sort=order, title=None))
    x = alt.X("mean:Q").title(title)
    tips = [
        alt.Tooltip("option:N"),
        *(alt.Tooltip(f"{k}:Q", format="+.4~g") for k in ("mean", "low", "high")),
    ]
    kept = alt.Color("kept:N").title(None).scale(domain=["kept", "not kept"])
    bars = base.mark_bar(height={"band": 0.55}, opacity=0.85).encode(x=x, color=kept, tooltip=tips)
    ranges = base.mark_rule(style="front").encode(x="low:Q", x2="high:Q")
    parts = [bars, ranges]
    if chance is not None:
        shade = alt.Chart(alt.NamedData("chance")).mark_rect(style="budget", clip=True)
        parts.insert(0, shade.encode(x=alt.X("low:Q"), x2="high:Q"))
    limits = [] if chance is None else [{"low": -chance, "high": chance}]
    return _spec(alt.layer(*parts), 34 * len(rows), bars=rows, chance=limits)


def ranking(run: Run) -> Spec | None:
    """The metric after training alone by the inherited one; None where it was not measured."""
    ranking = run.result.ranking
    every = (
        []
        if ranking is None
        else list(zip(ranking.architectures, ranking.inherited, ranking.alone, strict=True))
    )
    rows = [
        {"x": a, "y": b, "a": words.describe(architecture, run.result.space.choices)}
        for architecture, a, b in every
        if words.is_number(a) and words.is_number(b)
    ]
    if ranking is None or not rows:
        return None
    axis = metric_axis(run.metric, ranking.role)
    x, y = (axis._replace(title=f"{axis.title}, {kind}") for kind in ("inherited", "alone"))
    chart = alt.Chart(alt.NamedData("ranked")).mark_point(filled=True, size=80, opacity=0.85)
    tips = [x.tip("x"), y.tip("y"), alt.Tooltip("a:N", title="architecture")]
    chart = chart.encode(x=x.of(alt.X, "x"), y=y.of(alt.Y, "y"), tooltip=tips).add_params(_zoom())
    return _spec(chart, 320, ranked=rows)


def latency(run: Run) -> Spec | None:
    """The median latency of each timed network with its quartiles; None where none was timed."""
    times = run.timed.get("milliseconds", {})
    rows = [{"n": name, "low": low, "x": x, "high": high} for name, (low, x, high) in times.items()]
    base = alt.Chart(alt.NamedData("times")).encode(y=alt.Y("n:N", sort=None, title=None))
    unit = alt.X("low:Q").title(f"{words.cost_name(LATENCY)}: median and quartiles").scale(zero=True)
    tips = [alt.Tooltip("n:N", title="network"), *(alt.Tooltip(f"{k}:Q") for k in ("low", "x", "high"))]
    parts = (
        base.mark_rule(strokeWidth=7, opacity=0.4).encode(x=unit, x2="high:Q", color=_series(["found"])),
    )
    point = base.mark_point(filled=True, size=110, opacity=1).encode(x="x:Q", tooltip=tips)
    return _spec(alt.layer(*parts, point), 34 * len(rows), times=rows) if rows else None


def budgets(run: Run) -> Spec | None:
    """What the metric loses by budget, as estimated and as measured; None for a run by another method."""
    record = run.result.replacements
    points = [] if record is None else sorted((record.found, *record.others), key=lambda one: one.cost)
    if record is None or len(points) < 2:
        return None
    kinds = (("measured", "measured"), ("estimated", "sum of replacements"))
    rows = [{"s": label, "x": one.cost, "y": getattr(one, key)} for key, label in kinds for one in points]
    x = Axis(words.cost_name(record.budget), "~s")
    return lines(rows, x, Axis(f"{record.metric} ({record.unit})", "~g"), height=280)


def errors(spaces: Sequence[SampledSpaceOf], error: Axis) -> Spec | None:
    """The share of the sampled architectures of each space that have at most some error."""
    rows = []
    for one in spaces:
        ordered, most = sorted(one.errors), min(100, len(one.errors))
        places = [round(i * (len(ordered) - 1) / max(most - 1, 1)) for i in range(most)]
        rows += [{"s": one.name, "x": ordered[i], "y": (i + 1) / len(ordered)} for i in places]
    share = Axis("share of the architectures", "%", range=(0, 1))
    return lines(rows, error, share, height=260) if any(len(one.errors) > 1 for one in spaces) else None


def shifts(spaces: Sequence[SampledSpaceOf]) -> dict[str, Spec]:
    """The options of each choice that could move, space by space; by choice."""
    found = {}
    for name in dict.fromkeys(shift.name for one in spaces for shift in one.shifts):
        rows, options = [], next(x.old for one in spaces for x in one.shifts if x.name == name)
        for one in spaces:
            shift = next((shift for shift in one.shifts if shift.name == name), None)
            options = options if shift is None else shift.old
            rows += [{"s": one.name, "x": option} for option in options]
            options = options if shift is None else shift.new
        names = [one.name for one in spaces]
        base = alt.Chart(alt.NamedData("options"), title=words.plain(name)).encode(
            x=alt.X("x:Q", title=None, axis=alt.Axis(values=sorted({row["x"] for row in rows}))).scale(
                zero=False
            ),
            y=alt.Y("s:N", sort=names, title=None),
            color=alt.Color("s:N", legend=None).scale(domain=names),
            tooltip=[alt.Tooltip("s:N", title="space"), alt.Tooltip("x:Q", title="option")],
        )
        marks = [base.mark_line(opacity=0.4, strokeWidth=5), base.mark_point(filled=True, size=80, opacity=1)]
        found[name] = _spec(alt.layer(*marks), 26 * len(names) + 10, options=rows)
    return found


def bars(rows: Sequence[Record], title: str) -> Spec:
    """Bars of "x" by "s", in the order of the rows."""
    names = [row["s"] for row in rows]
    base = alt.Chart(alt.NamedData("bars")).encode(y=alt.Y("s:N", sort=names, title=None))
    tips = [alt.Tooltip("s:N", title="of"), alt.Tooltip("x:Q", title=title)]
    color = alt.Color("s:N", legend=None).scale(domain=names)
    drawn = base.mark_bar(height={"band": 0.6}).encode(x=alt.X("x:Q").title(title), color=color, tooltip=tips)
    return _spec(drawn, 28 * len(rows), bars=rows)

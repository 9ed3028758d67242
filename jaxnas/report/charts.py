"""The charts of the page of a run, as Vega-Lite specifications: a function for each."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence

import altair as alt

from jaxnas.report import vega, words
from jaxnas.report.findings import Record, Run
from jaxnas.report.result import MetricOf, RankingOf, ReplacementsOf, SelectionOf
from jaxnas.report.vega import Axis, Spec, heat, lines

MOST_DESCRIBED = 4000  # evaluations; of more, only the front has its architectures in the page
MOST_MOMENTS = 40
MOST_POINTS = 240  # of a line: more would be closer together than pixels


def metric_axis(metric: MetricOf, role: str = "") -> Axis:
    """The axis of a metric."""
    return Axis(words.metric_name(metric, role, unit=True), ".2~%" if metric.unit == "%" else "")


def cost_axis(name: str, most: float) -> Axis:
    """The axis of a cost with values up to `most`."""
    return Axis(words.cost_name(name), "~s" if most >= 1000 else "")


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of (cost, score) points of which no other costs no more and scores no less, by increasing cost.

    Of equal points the first is kept.
    """
    front, best = [], -math.inf
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1], i)):
        if points[i][1] > best:
            front.append(i)
            best = points[i][1]
    return front


def scatter(run: Run) -> Spec | None:
    """Every evaluated architecture by cost, with the front, the budget and the networks of the result.

    None if no evaluation has a cost and a score. "usermeta" has how many are "outside", much worse than the
    others: the best 95 % of scores fill the axis.
    """
    scored = [line for line in run.history if words.is_number(line["score"])]
    measured = [name for line in scored[:1] for name, value in line.items() if words.is_number(value)]
    cost = next((x for x in (run.cost, *run.result.found.costs) if x in measured), None)
    if cost is None:
        return None
    done = [line for line in scored if words.is_number(line.get(cost))]
    front = pareto_front([(line[cost], line["score"]) for line in done])
    known, choices = {*front} if len(done) > MOST_DESCRIBED else {*range(len(done))}, run.result.space.choices
    rows: list[Record] = [
        {"x": line[cost], "y": run.sign * line["score"], "s": words.strategy_name(line["strategy"])}
        | {"i": line["index"]}
        | ({"a": words.describe(line.get("architecture") or {}, choices)} if i in known else {})
        for i, line in enumerate(done)
    ]
    edge = [{"x": rows[i]["x"], "y": rows[i]["y"]} for i in front]
    edge.append({"x": max(row["x"] for row in rows), "y": edge[-1]["y"]})

    scores, named = sorted(line["score"] for line in done), []
    low, fifth, high = scores[0], scores[len(scores) // 20], scores[-1]
    low = max(low, high - 2 * (high - fifth)) if high > fifth else low
    for net in (*run.result.networks, run.result.found):
        size, value, star = net.costs.get(cost), run.value(net, run.search_role), net is run.result.found
        if net.name != "random search" and words.is_number(size) and value is not None:
            named.append({"n": net.name, "x": size, "v": value, "star": star})
            low, high = min(low, run.sign * value) if star else low, max(high, run.sign * value)
    span = (high - low) or 0.05 * abs(high) or 0.01
    least, most = sorted((run.sign * (low - 0.06 * span), run.sign * (high + 0.14 * span)))
    for row in named:  # one that would be outside stands on the edge
        row["y"] = min(max(row["v"], least), most)

    sizes = [row["x"] for row in (*rows, *named)]
    x = cost_axis(cost, max(sizes))._replace(padding=40)  # labels are cut at the edge
    if min(sizes) > 0 and max(sizes) > 8 * min(sizes):
        x = x._replace(title=f"{x.title} (log scale)", scale="log")
    y = metric_axis(run.metric, run.search_role)._replace(range=(least, most))
    tips = [
        alt.Tooltip("s:N", title="strategy"),
        alt.Tooltip("i:Q", title="evaluation"),
        y.tip("y"),
        x.tip("x"),
    ]
    names = sorted(dict.fromkeys(row["s"] for row in rows), key=lambda name: name == "random search")
    places = {"x": x.of(alt.X, "x"), "y": y.of(alt.Y, "y")}
    points = vega.data("points").mark_point(filled=True, size=50, clip=True)
    points = points.encode(
        **places,
        color=vega.series(names),
        shape=vega.series(names, alt.Shape),
        opacity=alt.when(vega.LEGEND).then(alt.value(0.6)).otherwise(alt.value(0.03)),
        tooltip=[*tips, alt.Tooltip("a:N", title="architecture")],
    )
    line = vega.data("front").mark_line(style="front", interpolate="step-after", clip=True).encode(**places)
    parts, nets = [points.add_params(vega.LEGEND, vega.ZOOM), line], vega.data("named").encode(**places)
    for style, which in (("named", "!datum.star"), ("found", "datum.star")):
        marks = nets.mark_point(style=style, filled=True, opacity=1).transform_filter(which)
        parts.append(marks.encode(tooltip=[alt.Tooltip("n:N", title="network"), y.tip("v"), x.tip("x")]))
    parts.append(nets.mark_text(style="label", dy=-16).encode(text="n:N"))
    low, high = run.bounds.get(cost, (None, None))
    ends = {"x": min(sizes) if low is None else low, "x2": max(sizes) if high is None else high}
    budget, area = [ends] if cost in run.bounds else [], vega.data("budget").encode(x="x:Q")
    parts.insert(0, area.mark_rect(style="band", clip=True).encode(x2="x2:Q"))
    parts.append(area.mark_text(style="under", align="left", dx=6, y=10, text="budget"))
    spec = vega.make(alt.layer(*parts), 420, points=rows, front=edge, named=named, budget=budget)
    return spec | {"usermeta": {"outside": sum(not least <= row["y"] <= most for row in rows)}}


def best_so_far(run: Run) -> Spec | None:
    """The best metric after each evaluation, by strategy; None without evaluations."""
    rows: list[Record] = []
    late = []
    for name in dict.fromkeys(line["strategy"] for line in run.history):
        scores = [line["score"] for line in run.history if line["strategy"] == name]
        known = (score if words.is_number(score) else -math.inf for score in scores)
        best = [run.sign * score for score in itertools.accumulate(known, max)]
        ends = (0, len(best) - 1)  # a line in steps looks the same without the points inside a flat run
        kept = [i for i, y in enumerate(best) if math.isfinite(y) and (i in ends or y != best[i - 1])]
        rows += [{"s": words.strategy_name(name), "x": i + 1, "y": best[i]} for i in kept]
        late += [best[i] for i in (len(best) // 25, -1) if math.isfinite(best[i])]
    if not late:
        return None
    # The first evaluations may be far worse than all others: they may leave the plot.
    pad = 0.1 * (max(late) - min(late)) or 0.05 * abs(max(late)) or 1.0
    y = metric_axis(run.metric, run.search_role)
    y = y._replace(title=f"best {y.title} so far", range=(min(late) - pad, max(late) + pad))
    rows.sort(key=lambda row: row["s"] == "random search")
    return lines(rows, Axis("evaluations", "~s"), y, steps=True)


def training(run: Run) -> dict[str, Spec]:
    """The metric of the watched networks by step, and a chart of each number that was logged; by name."""
    metric, found, step = run.metric, {}, Axis("training step", "~s")
    watched = {
        "validation": ("validation", metric.name),
        "largest subnet": ("search", f"largest_{metric.name}"),
        "random subnets, mean and range": ("search", f"random_{metric.name}_mean"),
        "smallest subnet": ("search", f"smallest_{metric.name}"),
    }
    low, high = (dict(run.series("search", f"random_{metric.name}_{end}")) for end in ("min", "max"))
    rows = []
    for name, (split, key) in watched.items():
        ends = low.keys() & high.keys() if name.startswith("random") else ()
        for x, y in run.series(split, key):
            rows.append({"s": name, "x": x, "y": y} | ({"low": low[x], "high": high[x]} if x in ends else {}))
    if rows:
        points = _thin(run.series("train", metric.name))
        rows += [{"s": "training batches", "x": x, "y": y} for x, y in points]
        found["watched"] = lines(rows, step, metric_axis(metric), height=300)
    logged = ("search_loss", "temperature", "entropy", "confidence", "expected_cost", "learning_rate")
    metrics = {one.name: one for one in run.result.task.metrics if not (rows and one is metric)}
    for key in dict.fromkeys(("loss", *metrics, *logged)):
        y = metric_axis(metrics[key], "training") if key in metrics else Axis(words.plain(key))
        if points := [{"s": key, "x": x, "y": y} for x, y in _thin(run.series("train", key))]:
            found[f"curve-{key}"] = lines(points, step, y, height=180)
    return found


def _thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `MOST_POINTS` points: means over runs of neighbors of equal length."""
    size = max(1, -(-len(points) // MOST_POINTS))
    parts = [points[i : i + size] for i in range(0, len(points), size)]
    return [(statistics.fmean(x for x, _ in part), statistics.fmean(y for _, y in part)) for part in parts]


def probabilities(run: Run, selection: SelectionOf) -> tuple[dict[str, Spec], list[int]]:
    """The probabilities of options over the search, a chart for each choice, and the steps shown."""
    names, found = selection.probabilities.keys(), {}
    logged = [(int(line["step"]), line["probabilities"]) for line in run.of_split("architecture")]
    moments = [one for one in logged if one[0] < selection.steps and one[1].keys() == names]
    moments.append((selection.steps, selection.probabilities))
    moments = moments[::-1][:: -(-len(moments) // MOST_MOMENTS)][::-1]  # the last one is always there
    for name in names:
        cells, choice, plain = [], run.result.space.choices[name], words.plain(name)
        for moment, (step, values) in enumerate(moments):
            for position, row in enumerate(values[name] if "length" in choice else [values[name]]):
                options = words.options_of(choice, position)
                place = f"{position + 1}" if "length" in choice else plain
                for i, value in reversed([*enumerate(row)]):
                    option = words.plain(options[i]) if i < len(options) else "no option"
                    cell = {"x": place, "y": f"option {i + 1}" if choice.get("per_position") else option}
                    cell |= {"value": value, "text": f"{100 * value:.0f}" if value == max(row) else ""}
                    cells.append(
                        cell | {"name": f"{plain} {place}: {option}, step {step:,}", "moment": moment}
                    )
        chart = heat(cells, "probability", len(moments)) | {"title": plain}
        found[f"probabilities-{len(found)}"] = chart
    return found, [step for step, _ in moments]


def strengths(run: Run, selection: SelectionOf, error: float | None) -> tuple[dict[str, Spec], float]:
    """How far the score fell without each option, over positions, the strongest first; and the largest fall.

    DARTFormer (arXiv 2210.00641) reads them as a warning, too: where all are small, the choice is unsure.
    `error` is what chance may make of a difference; None where that is not known.
    """
    scale, change = 100 if run.metric.unit == "%" else 1, "fall" if run.sign > 0 else "rise"
    name = words.metric_name(run.metric, run.search_role, unit=True)
    what = f"{change} of the {name}{' (points)' * (scale == 100)} without the option"
    drops: dict[str, dict[str, list[float]]] = {}
    rounds = "blocks" in selection.decisions[0]  # in the first all blocks were there
    for one in selection.decisions[:1] if rounds else selection.decisions:
        of, choice = drops.setdefault(one["name"], {}), run.result.space.choices[one["name"]]
        options = [x for _, x in one["blocks"]] if rounds else words.options_of(choice, one.get("position"))
        for option, drop in zip(options, one["drops"], strict=True):
            of.setdefault(words.show(option), []).append(scale * drop)
    shown, most = {}, 0.0
    for number, (name, of) in enumerate(drops.items()):
        found, rows = run.result.found.architecture.get(name), []
        kept = {words.show(one) for one in (found if isinstance(found, list) else [found])}
        for option, falls in sorted(of.items(), key=lambda pair: -statistics.fmean(pair[1])):
            row = {"x": statistics.fmean(falls), "low": min(falls), "high": max(falls)}
            most = max(most, row["x"] / scale)
            rows.append({"s": words.plain(option), "kept": "kept" if option in kept else "not kept"} | row)
        limit = None if error is None else 2 * scale * error
        shown[f"strength-{number}"] = vega.bars(rows, what, limit) | {"title": words.plain(name)}
    return shown, most


def latency(run: Run) -> dict[str, Spec]:
    """The measured latency of networks."""
    rows = [{"s": x, "low": low, "x": mid, "high": high} for x, (low, mid, high) in run.milliseconds.items()]
    return {"latency": vega.bars(rows, "latency (ms), median and quartiles")}


def ranking(run: Run, ranking: RankingOf) -> Spec | None:
    """The metric after training alone by the inherited one; None where no training ended."""
    choices, axis = run.result.space.choices, metric_axis(run.metric, ranking.role)
    rows = [
        {"x": inherited, "y": alone, "a": words.describe(architecture, choices)}
        for architecture, inherited, alone in zip(
            ranking.architectures, ranking.inherited, ranking.alone, strict=True
        )
        if words.is_number(inherited) and words.is_number(alone)
    ]
    x, y = (axis._replace(title=f"{axis.title}, {kind}") for kind in ("inherited", "alone"))
    chart = vega.data("ranked").mark_point(filled=True, size=80, opacity=0.85).add_params(vega.ZOOM)
    tips = [x.tip("x"), y.tip("y"), alt.Tooltip("a:N", title="architecture")]
    chart = chart.encode(x=x.of(alt.X, "x"), y=y.of(alt.Y, "y"), tooltip=tips)
    return vega.make(chart, 320, ranked=rows) if rows else None


def budgets(record: ReplacementsOf) -> dict[str, Spec]:
    """The loss of the metric by budget, estimated and measured; {} for one budget."""
    points = sorted((record.found, *record.others), key=lambda one: one.cost)
    kinds = {"measured": "measured", "sum of replacements": "estimated"}
    rows = [{"s": s, "x": one.cost, "y": getattr(one, key)} for s, key in kinds.items() for one in points]
    x, y = cost_axis(record.budget, points[-1].cost), Axis(f"{record.metric} ({record.unit})")
    return {"budgets": lines(rows, x, y)} if len(points) > 1 else {}


def errors(run: Run) -> Spec:
    """The share of the sampled architectures of each space that have at most some error."""
    rows, axis = [], metric_axis(run.metric, run.search_role)
    for one in run.result.spaces:
        ordered, most = sorted(one.errors), min(100, len(one.errors))
        places = [round(i * (len(ordered) - 1) / max(most - 1, 1)) for i in range(most)]
        rows += [{"s": one.name, "x": ordered[i], "y": (i + 1) / len(ordered)} for i in places]
    error = axis if run.metric.direction == "min" else axis._replace(title=f"{run.search_role} error")
    return lines(rows, error, Axis("share of the architectures", "%", range=(0, 1)))


def shifts(run: Run) -> Iterator[Spec]:
    """The options of each choice that could move, space by space, with the slopes of the error."""
    spaces, metric = run.result.spaces, run.metric
    for name in dict.fromkeys(shift.name for one in spaces for shift in one.shifts):
        own = {one.name: shift for one in spaces for shift in one.shifts if shift.name == name}
        cells, slopes, options = [], [], next(iter(own.values())).old
        for one in spaces:
            cells += [{"x": option, "y": one.name, "text": f"{option:g}", "value": 0.5} for option in options]
            if x := own.get(one.name):
                rise = words.difference_text(metric, x.slope * x.step).split()[0].lstrip("±")
                spread = words.amount_text(metric, x.standard_error * x.step)
                slopes.append(f"{one.name}: {rise} ± {spread}, step {words.show(x.step)}")
                options = x.new
        cells = [cell | {"name": f"{words.plain(name)} in {cell['y']}"} for cell in cells]
        spec = heat(cells, "option", columns=sorted({cell["x"] for cell in cells}))
        yield spec | {"title": {"text": words.plain(name), "subtitle": slopes}}

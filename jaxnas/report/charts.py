"""The charts of the page of a run, as Vega-Lite specifications."""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt

from jaxnas.report import vega, words
from jaxnas.report.read import Record, Run
from jaxnas.report.result import MetricOf, SampledSpaceOf
from jaxnas.report.vega import Axis, Cell, Spec, bars, heat, lines, thin

MOST_DESCRIBED = 4000  # evaluations; of more, only the front has its architectures in the page
MOST_MOMENTS = 40


def metric_axis(metric: MetricOf, role: str = "") -> Axis:
    """The axis of a metric."""
    return Axis(words.metric_name(metric, role, unit=True), ".2~%" if metric.unit == "%" else "")


def cost_axis(name: str, most: float) -> Axis:
    """The axis of a cost with values up to `most`."""
    return Axis(words.cost_name(name), "~s" if most >= 1000 else "")


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the (cost, score) points that no other one beats, by increasing cost.

    A point is beaten by another that costs no more and scores no less, and differs in one of them.
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

    None if no evaluation has a cost and a score. "usermeta" has how many are on the "front", and how many are
    "outside", much worse than the others.
    """
    costs = [x for x in dict.fromkeys([run.cost, *run.result.found.costs]) if x]
    scored = [line for line in run.history if words.is_number(line["score"])]
    costs = [name for name in costs if any(words.is_number(line.get(name)) for line in scored)]
    if not costs:
        return None
    cost, *others = costs
    done = [line for line in scored if words.is_number(line.get(cost))]
    front = pareto_front([(line[cost], line["score"]) for line in done])
    known, choices = {*front} if len(done) > MOST_DESCRIBED else {*range(len(done))}, run.result.space.choices
    rows: list[Record] = [
        {"x": line[cost], "y": run.sign * line["score"], "s": words.strategy_name(line["strategy"])}
        | {"i": line["index"], **{f"c{n}": line.get(name) for n, name in enumerate(others)}}
        | ({"a": words.describe(line.get("architecture") or {}, choices)} if i in known else {})
        for i, line in enumerate(done)
    ]
    edge = [{"x": rows[i]["x"], "y": rows[i]["y"]} for i in front]
    edge.append({"x": max(row["x"] for row in rows), "y": edge[-1]["y"]})
    y_range, named = _networks(run, cost, [run.sign * row["y"] for row in rows])
    sizes = [row["x"] for row in (*rows, *named)]
    log = min(sizes) > 0 and max(sizes) > 8 * min(sizes)
    x = cost_axis(cost, max(sizes))._replace(padding=40)  # labels are cut at the edge
    x = x._replace(title=f"{x.title} (log scale)", scale="log") if log else x
    y = metric_axis(run.metric, run.search_role)._replace(range=y_range)
    names = sorted(dict.fromkeys(row["s"] for row in rows), key=lambda name: name == "random search")
    tips = [
        alt.Tooltip("s:N", title="strategy"),
        alt.Tooltip("i:Q", title="evaluation"),
        y.tip("y"),
        x.tip("x"),
    ]
    tips += [alt.Tooltip(f"c{n}:Q", title=words.cost_name(name), format=",") for n, name in enumerate(others)]
    places, legend = {"x": x.of(alt.X, "x"), "y": y.of(alt.Y, "y")}, vega.legend()
    points = (
        vega.data("points")
        .mark_point(filled=True, size=50, clip=True)
        .encode(
            **places,
            color=vega.series(names),
            shape=vega.series(names, alt.Shape),
            opacity=alt.when(legend).then(alt.value(0.6)).otherwise(alt.value(0.03)),
            tooltip=[*tips, alt.Tooltip("a:N", title="architecture")],
        )
    )
    line = vega.data("front").mark_line(style="front", interpolate="step-after", clip=True).encode(**places)
    nets, own = vega.data("named").encode(**places), "datum.star"
    known_tips = [alt.Tooltip("n:N", title="network"), y.tip("v"), x.tip("x")]
    parts = [points.add_params(legend, vega.zoom()), line]
    parts.append(
        nets.mark_point(style="named", filled=True, opacity=1)
        .transform_filter(f"!{own}")
        .encode(tooltip=known_tips)
    )
    parts.append(
        nets.mark_point(style="found", filled=True, opacity=1)
        .transform_filter(own)
        .encode(tooltip=known_tips)
    )
    parts.append(nets.mark_text(style="label", dy=-16).encode(text="n:N"))
    low, high = (
        bound if words.is_number(bound) else end
        for bound, end in zip(run.bounds.get(cost, (None, None)), (min(sizes), max(sizes)), strict=True)
    )
    budget = [{"x": low, "x2": high, "t": "budget"}] if cost in run.bounds else []
    if budget:
        area = vega.data("budget").encode(x="x:Q")
        parts.insert(0, area.mark_rect(style="band", clip=True).encode(x2="x2:Q"))
        parts.append(area.mark_text(style="under", align="left", dx=6, y=10).encode(text="t:N"))
    spec = vega.make(alt.layer(*parts), 420, points=rows, front=edge, named=named, budget=budget)
    outside = sum(not y_range[0] <= row["y"] <= y_range[1] for row in rows)
    return spec | {"usermeta": {"front": len(front), "outside": outside}}


def _networks(run: Run, cost: str, scores: Sequence[float]) -> tuple[tuple[float, float], list[Record]]:
    """The range of the metric, which the best 95 % of scores fill, and the networks with labels.

    Far worse evaluations are outside; a network that would be outside stands on the edge.
    """
    nets = [
        (net, net.costs.get(cost), run.value(net, run.search_role))
        for net in (*run.result.networks, run.result.found)
    ]
    shown = [
        (n, x, y) for n, x, y in nets if n.name != "random search" and words.is_number(x) and y is not None
    ]
    worst, fifth, best = min(scores), sorted(scores)[len(scores) // 20], max(scores)
    low = best - 1.6 * (best - fifth) if best - worst > 2.5 * (best - fifth) > 0 else worst
    own = [run.sign * y for net, _, y in shown if net is run.result.found or run.sign * y > low]
    low, high = min([low, *own]), max([best, *own])
    span = (high - low) or 0.05 * abs(high) or 0.01
    ends = sorted((run.sign * (low - 0.06 * span), run.sign * (high + 0.14 * span)))
    rows = []
    for net, x, y in shown:
        name = net.name if run.is_extreme(net.name) else f"{net.name} options"
        row = {"n": name, "x": x, "y": min(max(y, ends[0]), ends[1]), "v": y, "star": net is run.result.found}
        rows.append(row)
    return (ends[0], ends[1]), rows


def best_so_far(run: Run) -> Spec | None:
    """The best metric after each evaluation, by strategy; None without evaluations."""
    rows: list[Record] = []
    late = []
    for name in dict.fromkeys(line["strategy"] for line in run.history):
        best, own = -math.inf, []
        for i, line in enumerate(run.strategy(name), 1):
            best = max(best, line["score"] if words.is_number(line["score"]) else best)
            own += (
                [{"s": words.strategy_name(name), "x": i, "y": run.sign * best}]
                if math.isfinite(best)
                else []
            )
        # A line in steps looks the same without the points inside a flat run.
        rows += [p for i, p in enumerate(own) if i in (0, len(own) - 1) or p["y"] != own[i - 1]["y"]]
        late += [own[i]["y"] for i in (min(len(own) - 1, len(own) // 25), -1)] if own else []
    if not rows:
        return None
    # The first evaluations may be far worse than all others: they may leave the plot.
    pad = 0.1 * (max(late) - min(late)) or 0.05 * abs(max(late)) or 1.0
    y = metric_axis(run.metric, run.search_role)
    y = y._replace(title=f"best {y.title} so far", range=(min(late) - pad, max(late) + pad))
    rows.sort(key=lambda row: row["s"] == "random search")
    return lines(rows, Axis("evaluations", "~s"), y, steps=True, height=260)


def training(run: Run) -> dict[str, Spec]:
    """The metric of the watched networks by step, and a chart of each number that was logged; by name."""
    metric, found, step = run.metric, {}, Axis("training step", "~s")
    watched = [
        ("validation", metric.name, "validation"),
        ("search", f"largest_{metric.name}", "largest subnet"),
    ]
    watched += [("search", f"random_{metric.name}_mean", "random subnets, mean and range")]
    watched += [("search", f"smallest_{metric.name}", "smallest subnet")]
    low, high = (dict(run.series("search", f"random_{metric.name}_{end}")) for end in ("min", "max"))
    rows = [{"s": label, "x": x, "y": y} for split, key, label in watched for x, y in run.series(split, key)]
    for row in rows:
        if row["s"].startswith("random") and row["x"] in low and row["x"] in high:
            row |= {"low": low[row["x"]], "high": high[row["x"]]}
    if rows:
        batches = thin(run.series("train", metric.name))
        rows += [{"s": "training batches", "x": x, "y": y} for x, y in batches]
        found["watched"] = lines(rows, step, metric_axis(metric))
    logged = ("search_loss", "temperature", "entropy", "confidence", "expected_cost", "learning_rate")
    metrics = {one.name: one for one in run.result.task.metrics if not (rows and one is metric)}
    for key in dict.fromkeys(("loss", *metrics, *logged)):
        points = [{"s": key, "x": x, "y": y} for x, y in thin(run.series("train", key))]
        y = metric_axis(metrics[key], "training") if key in metrics else Axis(words.plain(key))
        found |= {f"curve-{key}": lines(points, step, y, height=180)} if points else {}
    return found


def probabilities(run: Run) -> tuple[dict[str, Spec], list[int]]:
    """The probabilities of options over the search, a chart for each choice, and the steps shown."""
    selection, choices = run.result.selection, run.result.space.choices
    assert selection is not None
    names = selection.probabilities.keys()
    logged = [(int(line["step"]), line["probabilities"]) for line in run.of_split("architecture")]
    moments = [one for one in logged if one[0] < selection.steps and one[1].keys() == names]
    moments.append((selection.steps, selection.probabilities))
    moments = moments[::-1][:: -(-len(moments) // MOST_MOMENTS)][::-1]  # the last one is always there
    charts = {}
    for name in names:
        cells, choice, plain = [], choices[name], words.plain(name)
        for number, (step, values) in enumerate(moments):
            for position, row in enumerate(values[name] if "length" in choice else [values[name]]):
                options = [words.plain(one) for one in words.options_of(choice, position)]
                place = f"{position + 1}" if "length" in choice else plain
                for i in reversed(range(len(row))):
                    option = options[i] if i < len(options) else "no option"
                    label = f"option {i + 1}" if choice.get("per_position") else option
                    text = f"{100 * row[i]:.0f}" if row[i] == max(row) else ""
                    cells.append(
                        Cell(place, label, row[i], text, f"{plain} {place}: {option}, step {step:,}", number)
                    )
        charts[name] = heat(cells, "probability", len(moments))
    return charts, [step for step, _ in moments]


def ranking(run: Run) -> Spec | None:
    """The metric after training alone by the inherited one; None where it was not measured."""
    of = run.result.ranking
    every = [] if of is None else zip(of.architectures, of.inherited, of.alone, strict=True)
    rows = [
        {"x": a, "y": b, "a": words.describe(architecture, run.result.space.choices)}
        for architecture, a, b in every
        if words.is_number(a) and words.is_number(b)
    ]
    if of is None or not rows:
        return None
    axis = metric_axis(run.metric, of.role)
    x, y = (axis._replace(title=f"{axis.title}, {kind}") for kind in ("inherited", "alone"))
    tips = [x.tip("x"), y.tip("y"), alt.Tooltip("a:N", title="architecture")]
    chart = vega.data("ranked").mark_point(filled=True, size=80, opacity=0.85).encode(tooltip=tips)
    return vega.make(
        chart.encode(x=x.of(alt.X, "x"), y=y.of(alt.Y, "y")).add_params(vega.zoom()), 320, ranked=rows
    )


def latency(run: Run) -> Spec | None:
    """The median latency of each timed network with its quartiles; None where none was timed."""
    times = run.timed.get("milliseconds", {})
    rows = [{"s": name, "low": low, "x": x, "high": high} for name, (low, x, high) in times.items()]
    return bars(rows, "latency (ms), median and quartiles") if rows else None


def budgets(run: Run) -> Spec | None:
    """The loss of the metric by budget, estimated and measured; None for a run by another method."""
    record = run.result.replacements
    points = [] if record is None else sorted((record.found, *record.others), key=lambda one: one.cost)
    if record is None or len(points) < 2:
        return None
    kinds = (("measured", "measured"), ("estimated", "sum of replacements"))
    rows = [{"s": label, "x": one.cost, "y": getattr(one, key)} for key, label in kinds for one in points]
    return lines(
        rows, cost_axis(record.budget, points[-1].cost), Axis(f"{record.metric} ({record.unit})"), height=280
    )


def errors(spaces: Sequence[SampledSpaceOf], error: Axis) -> Spec:
    """The share of the sampled architectures of each space that have at most some error."""
    rows = []
    for one in spaces:
        ordered, most = sorted(one.errors), min(100, len(one.errors))
        places = [round(i * (len(ordered) - 1) / max(most - 1, 1)) for i in range(most)]
        rows += [{"s": one.name, "x": ordered[i], "y": (i + 1) / len(ordered)} for i in places]
    return lines(rows, error, Axis("share of the architectures", "%", range=(0, 1)), height=260)


def shifts(spaces: Sequence[SampledSpaceOf]) -> dict[str, Spec]:
    """The options of each choice that could move, space by space; by choice."""
    found, names = {}, [one.name for one in spaces]
    for name in dict.fromkeys(shift.name for one in spaces for shift in one.shifts):
        rows, options = [], next(x.old for one in spaces for x in one.shifts if x.name == name)
        for one in spaces:
            shift = next((shift for shift in one.shifts if shift.name == name), None)
            options = options if shift is None else shift.old
            rows += [{"s": one.name, "x": option} for option in options]
            options = options if shift is None else shift.new
        ticks = alt.Axis(values=sorted({row["x"] for row in rows}), format="~g")
        base = vega.data("options").properties(title=words.plain(name))
        base = base.encode(
            x=alt.X("x:Q", title=None, axis=ticks).scale(zero=False),
            y=alt.Y("s:N", sort=names, title=None),
            color=alt.Color("s:N", legend=None).scale(domain=names),
            tooltip=[alt.Tooltip("s:N", title="space"), alt.Tooltip("x:Q", title="option")],
        )
        marks = [base.mark_line(opacity=0.4, strokeWidth=5), base.mark_point(filled=True, size=80, opacity=1)]
        found[name] = vega.make(alt.layer(*marks), 26 * len(names) + 10, options=rows)
    return found

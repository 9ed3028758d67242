"""The figures of a run as SVG text, and the hero picture as PNG.

An SVG here takes its colours from the page, so one figure serves light and dark. Figures that carry
small text come in a wide and a narrow form (``narrow=True``), since scaling a wide figure down to a
phone would make its text too small to read.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from jaxnas import files
from jaxnas.report import svg
from jaxnas.report.read import Run, read_run

# (strategy in history.jsonl, name, mark, class); random search is drawn first, below evolution.
STRATEGIES = (
    ("random", "random search", "diamond", "random"),
    ("evolution", "evolution", "circle", "evolution"),
)
EXTREMES = (("smallest", "down"), ("largest", "up"))
# Beyond this many marks, one path holds them all and a mark has no title of its own.
MOST_TITLES = 4000


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


def front_of(run: Run) -> list[dict[str, Any]]:
    """The evaluated architectures on the front of parameters (fewer) against score (higher)."""
    return [run.history[i] for i in pareto_front([(h["params"], h["score"]) for h in run.history])]


def bounds_of(run: Run, cost: str = "params") -> tuple[float | None, float | None]:
    """The (min, max) budget of a cost, None where there is no bound."""
    pair = (run.section("search").get("bounds") or {}).get(cost) or (None, None)
    low, high = (value if svg.is_number(value) else None for value in pair)
    return low, high


def best_so_far(scores: Sequence[float]) -> list[float]:
    """Running maximum."""
    best, out = -math.inf, []
    for score in scores:
        best = max(best, score)
        out.append(best)
    return out


def describe(architecture: dict[str, Any] | None) -> str:
    """An architecture in one line: names and option values, lists without spaces."""
    parts = []
    for name, value in (architecture or {}).items():
        if isinstance(value, list):
            value = " ".join("·" if v is None else f"{v:g}" if svg.is_number(v) else str(v) for v in value)
        parts.append(f"{name} {value}")
    return "; ".join(parts)


def ranges(run: Run, room: float = 4.5) -> tuple[tuple[float, float], bool, tuple[float, float]]:
    """The x range of the scatter plot, whether x is logarithmic, and the y range.

    The evaluated networks and the best have to fill the plot. The smallest and the largest network
    are inside if they leave the others enough room, and drawn on the edge otherwise. So are the
    lowest 5 % of the scores, where they would flatten all others. ``room`` is the margin for a
    label on the edge, in units of the usual margin.
    """
    networks = [run.section(name) for name, _ in EXTREMES]
    sizes = [h["params"] for h in run.history] + [run.result["best"]["params"]]
    x_log = min(sizes) > 0 and max(sizes) > 8 * min(sizes)
    scale, back = (math.log, math.exp) if x_log else (float, float)
    extra = [n["params"] for n in networks if svg.is_number(n.get("params")) and n["params"] > 0]
    low, high = _stretch([scale(x) for x in sizes], [scale(x) for x in extra])
    pad = 0.04 * (high - low) or 0.05 * abs(high) or 1
    # A network on the edge gets room for its label.
    below, above = (
        room * pad if outside else pad
        for outside in (any(scale(x) < low for x in extra), any(scale(x) > high for x in extra))
    )
    x_range = (back(low - below), back(high + above))

    best = run.result["best"]["search_accuracy"]
    scores = sorted([best, *(h["score"] for h in run.history)])
    fifth = scores[len(scores) // 20]
    low = scores[0]
    if scores[-1] - low > 2.5 * (scores[-1] - fifth) > 0:
        low = min(scores[-1] - 1.6 * (scores[-1] - fifth), best)
    extra = [n["search_accuracy"] for n in networks if svg.is_number(n.get("search_accuracy"))]
    low, high = _stretch([low, scores[-1]], extra)
    span = (high - low) or 0.01
    return x_range, x_log, (max(0.0, low - 0.06 * span), high + 0.14 * span)


def _stretch(core: Sequence[float], extra: Sequence[float]) -> tuple[float, float]:
    """The range of ``core``, and of every extra value that leaves it two fifths of the range."""
    low, high = min(core), max(core)
    for value in sorted(extra, key=lambda v: max(low - v, v - high)):
        wider = min(low, value), max(high, value)
        if max(core) - min(core) >= 0.4 * (wider[1] - wider[0]):
            low, high = wider
    return low, high


def scatter(run: Run, narrow: bool = False) -> str:
    """Search accuracy against parameters of everything evaluated, with front, budget and best."""
    best = run.result["best"]
    extremes = [(n, m, run.section(n)) for n, m in EXTREMES]
    extremes = [e for e in extremes if all(map(svg.is_number, _point(e[2])))]
    low, high = bounds_of(run)
    x_range, x_log, y_range = ranges(run, 8 if narrow else 4.5)
    frame = svg.Frame(
        *((400, 380) if narrow else (960, 470)),
        x_range,
        y_range,
        left=46 if narrow else 52,
        top=30,
        x_log=x_log,
    )
    body = [_budget(frame, low, high)]
    body.append(
        svg.axes(
            frame,
            "parameters" + (" (log scale)" if x_log else ""),
            "search accuracy",
            y_texts=svg.percent_labels,
        )
    )
    many = len(run.history) > MOST_TITLES
    for strategy, label, name, kind in STRATEGIES:
        lines = run.strategy(strategy)
        body.append(_marks(frame, lines, label, name, kind, narrow or many))
    front = front_of(run)
    if front:
        corners = [(frame.x(h["params"]), frame.y(h["score"])) for h in front]
        corners.append((frame.x(max(h["params"] for h in run.history)), corners[-1][1]))
        body.append(svg.line(corners, "front", steps=True))
    for label, name, network in extremes:
        body.append(_labelled(frame, network, name, "extreme", label, 7, below=label == "largest"))
    body.append(_labelled(frame, best, "star", "best", "best", 12))
    name = "scatter-narrow" if narrow else "scatter-wide"
    about = (
        f"Scatter plot of {len(run.history)} evaluated architectures. The best has "
        f"{svg.count(best['params'])} parameters and {svg.percent(best['search_accuracy'])} "
        f"search accuracy. The front has {len(front)} architectures."
    )
    return svg.figure(
        name,
        frame.width,
        frame.height,
        "Accuracy against parameters",
        about,
        "".join(body),
        "narrow" if narrow else "wide",
    )


def clipped(run: Run) -> int:
    """How many evaluations lie below the y range of the scatter plot."""
    low = ranges(run)[2][0]
    return sum(h["score"] < low for h in run.history)


def _point(network: dict[str, Any]) -> tuple[Any, Any]:
    return network.get("params"), network.get("search_accuracy")


def _budget(frame: svg.Frame, low: float | None, high: float | None) -> str:
    """The part of the x axis inside the budget, shaded, with its edges."""
    low = low if low is not None and low > frame.x_range[0] else None
    high = high if high is not None and high < frame.x_range[1] else None
    if low is None and high is None:
        return ""
    left = frame.left if low is None else frame.x(low)
    right = frame.x1 if high is None else frame.x(high)
    if right <= left:
        return ""
    out = [
        f'<path class="budget" d="M{svg.num(left)} {svg.num(frame.top)}H{svg.num(right)}'
        f'V{svg.num(frame.y1)}H{svg.num(left)}Z"/>'
    ]
    for value in (low, high):
        if value is not None:
            out.append(
                f'<path class="bound" d="M{svg.num(frame.x(value))} {svg.num(frame.top)}'
                f'V{svg.num(frame.y1)}"/>'
            )
    if right - left > 60:
        # Few parameters with a high score are rare: this corner is free.
        out.append(svg.text(left + 8, frame.top + 16, "budget", "note"))
    return "".join(out)


def _marks(
    frame: svg.Frame, lines: list[dict[str, Any]], label: str, name: str, kind: str, merged: bool
) -> str:
    """The marks of one strategy, in three shades from early to late; ``merged`` drops titles."""
    out = []
    third = max(1, -(-len(lines) // 3))
    for start in range(0, len(lines), third):
        part = lines[start : start + third]
        shade = f"{kind} late{start // third + 1}"
        if merged:
            r = 3 if frame.width < 500 else 4
            d = "".join(svg.shape(name, frame.x(h["params"]), frame.y(h["score"]), r) for h in part)
            out.append(f'<path class="mark {shade}" d="{d}"/>')
            continue
        for h in part:
            title = f"{label}, evaluation {h['index']}"
            if svg.is_number(h.get("generation")):
                title += f", generation {h['generation']}"
            title += f"\n{svg.percent(h['score'], 2)} search accuracy\n{svg.count(h['params'])} params"
            if svg.is_number(h.get("macs")):
                title += f", {svg.count(h['macs'])} MACs"
            if h.get("architecture"):
                title += f"\n{describe(h['architecture'])}"
            out.append(svg.mark(name, frame.x(h["params"]), frame.y(h["score"]), 4, shade, title))
    return "".join(out)


def _labelled(
    frame: svg.Frame,
    network: dict[str, Any],
    name: str,
    kind: str,
    label: str,
    r: float,
    below: bool = False,
) -> str:
    """A mark with its name; on the edge of the plot, with its size, if it lies outside."""
    size, score = network["params"], network["search_accuracy"]
    title = f"{label}\n{svg.percent(score, 2)} search accuracy\n{svg.count(size)} params"
    outside = not frame.x_range[0] <= size <= frame.x_range[1] or score < frame.y_range[0]
    x = min(max(frame.x(size), frame.left + r + 2), frame.x1 - r - 2)
    y = min(frame.y(score), frame.y1 - r - 2)
    lines = [label]
    if outside:
        lines = [label, f"{svg.short(size)}, {svg.percent(score)}"]
    half = 4 * max(map(len, lines))
    anchor = "end" if x > frame.x1 - half else "start" if x < frame.left + half else "middle"
    shift = {"end": r, "start": -r, "middle": 0}[anchor]
    # A label below a mark on the bottom edge would cover the axis.
    below = below and y + r + 16 * len(lines) < frame.y1
    first = y + r + 15 if below else y - r - 5 - 15 * (len(lines) - 1)
    texts = (svg.text(x + shift, first + 15 * i, text, "label", anchor) for i, text in enumerate(lines))
    return svg.mark(name, x, y, r, kind, title) + "".join(texts)


def search_curve(run: Run, narrow: bool = False) -> str:
    """Best search accuracy so far against the number of evaluations, for every strategy."""
    curves = {}
    for strategy, label, _, kind in STRATEGIES:
        scores = best_so_far([h["score"] for h in run.strategy(strategy)])
        if scores:
            curves[label, kind] = scores
    most = max(len(c) for c in curves.values())
    values = [v for c in curves.values() for v in c]
    # The first evaluations may be far below all others: they may leave the plot at its bottom.
    low = min(c[min(len(c) - 1, len(c) // 25)] for c in curves.values())
    high = max(values)
    pad = 0.1 * (high - low) or 0.005
    frame = svg.Frame(
        *((400, 280) if narrow else (960, 330)),
        (0, max(most, 2)),
        (low - pad, high + pad),
        left=52 if narrow else 56,
        top=28,
    )
    body = [
        svg.axes(
            frame,
            "evaluations",
            "best search accuracy so far",
            lambda values: [svg.count(v) for v in values],
            svg.percent_labels,
        )
    ]
    for (_, kind), scores in curves.items():
        corners = [(frame.x(i), frame.y(s)) for i, s in enumerate(scores, 1)]
        body.append(svg.line(_corners(corners), kind, steps=True))
        end = dict((k, m) for _, _, m, k in STRATEGIES)[kind]
        body.append(svg.mark(end, *corners[-1], 6, kind))
    if not narrow:
        n = min(most, 120)
        places = [max(1, round(most * (i + 1) / n)) for i in range(n)]
        body.append(
            strips(
                frame,
                places,
                lambda i: "\n".join(
                    [f"after {svg.count(i)} evaluations"]
                    + [
                        f"{label}: {svg.percent(c[min(int(i), len(c)) - 1], 2)}"
                        for (label, _), c in curves.items()
                    ]
                ),
            )
        )
    about = "; ".join(
        f"{label} reaches {svg.percent(c[-1])} after {len(c)} evaluations" for (label, _), c in curves.items()
    )
    name = "search-narrow" if narrow else "search-wide"
    return svg.figure(
        name,
        frame.width,
        frame.height,
        "Search against random search",
        about,
        "".join(body),
        "narrow" if narrow else "wide",
    )


def _corners(points: Sequence[svg.Point]) -> list[svg.Point]:
    """Drops the points inside a flat run: the line looks the same and the page is smaller."""
    keep = [i for i, p in enumerate(points) if i in (0, len(points) - 1) or p[1] != points[i - 1][1]]
    return [points[i] for i in keep]


def strips(frame: svg.Frame, positions: Sequence[float], title: Callable[[float], str]) -> str:
    """Invisible columns around x values of a plot; a pointer over one shows ``title(value)``."""
    out, edge = [], frame.left
    for i, value in enumerate(positions):
        last = i + 1 == len(positions)
        right = frame.x1 if last else frame.x((value + positions[i + 1]) / 2)
        out.append(
            f'<path class="strip hit" d="M{svg.num(edge)} {svg.num(frame.top)}'
            f'H{svg.num(right)}V{svg.num(frame.y1)}H{svg.num(edge)}Z">'
            f"<title>{svg.esc(title(value))}</title></path>"
        )
        edge = right
    return "".join(out)


def save_png(workdir: str | os.PathLike, path: str | os.PathLike) -> None:
    """Draws the hero picture of a run with matplotlib: accuracy against parameters, at 1600 px.

    Needs matplotlib. Raises what ``read_run`` raises, and OSError if ``path`` cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    run = read_run(workdir)
    best = run.result["best"]
    figure = Figure(figsize=(10, 5.2), dpi=160, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    plot = figure.subplots()
    colors = {"random": "#c4570a", "evolution": "#0b68b0"}
    marks = {"random": "D", "evolution": "o"}
    for strategy, label, _, kind in STRATEGIES:
        lines = run.strategy(strategy)
        if lines:
            face = "none" if kind == "random" else colors[kind]
            plot.scatter(
                [h["params"] for h in lines],
                [100 * h["score"] for h in lines],
                s=22,
                marker=marks[kind],
                facecolors=face,
                edgecolors=colors[kind],
                linewidths=0.9,
                alpha=0.65,
                label=f"{label} ({len(lines)})",
            )
    front = front_of(run)
    if front:
        widest = max(h["params"] for h in run.history)
        plot.step(
            [h["params"] for h in front] + [widest],
            [100 * h["score"] for h in front] + [100 * front[-1]["score"]],
            where="post",
            color="#1b2330",
            linewidth=1.6,
            label="Pareto front",
        )
    x_range, x_log, y_range = ranges(run)
    for label, name in (*EXTREMES, ("best", "star")):
        network = run.section(label)
        if not all(map(svg.is_number, _point(network))):
            continue
        # A network outside the axes is drawn on their edge, as in the page.
        inset = 0.008 * (x_range[1] - x_range[0])
        edges = x_range[0] + (0 if x_log else inset), x_range[1] - inset
        x = min(max(network["params"], edges[0]), edges[1])
        y = 100 * max(network["search_accuracy"], y_range[0])
        star = name == "star"
        if x != network["params"] or y != 100 * network["search_accuracy"]:
            label += f"\n{svg.short(network['params'])}, {svg.percent(network['search_accuracy'])}"
        plot.scatter(
            x,
            y,
            s=420 if star else 90,
            zorder=5,
            clip_on=False,
            linewidths=1.2,
            marker={"up": "^", "down": "v", "star": "*"}[name],
            color="#f2b701" if star else "#8a3f94",
            edgecolors="#1b2330" if star else "none",
        )
        side = "right" if x == edges[1] else "left" if x == edges[0] else "center"
        plot.annotate(
            label,
            (x, y),
            (0, 13 if star else 8),
            textcoords="offset points",
            ha=side,
            va="bottom",
            fontweight="bold",
            color="#1b2330",
            zorder=6,
        )
    low, high = bounds_of(run)
    if low is not None or high is not None:
        plot.axvspan(
            max(x_range[0], low or 0),
            min(x_range[1], high or x_range[1]),
            color="#0b68b0",
            alpha=0.06,
            linewidth=0,
            label="budget",
        )
    plot.set_xscale("log" if x_log else "linear")
    plot.set(xlim=x_range, ylim=[100 * y for y in y_range])
    plot.spines[["top", "right"]].set_visible(False)
    plot.grid(axis="y", color="#e3e7ec", linewidth=0.8)
    plot.set_axisbelow(True)
    plot.xaxis.set_major_formatter(lambda value, _: svg.short(value))
    plot.set_xlabel("parameters")
    plot.set_ylabel("search accuracy (%)")
    data = run.section("data").get("name")
    plot.set_title(
        f"{svg.percent(best['test_accuracy'])} test accuracy with {svg.count(best['params'])} "
        f"parameters{f' on {data}' if data else ''}",
        loc="left",
        fontsize=14,
        fontweight="bold",
        color="#1b2330",
        pad=36,
    )
    if plot.get_legend_handles_labels()[0]:
        plot.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=4,
            frameon=False,
            fontsize=10.5,
            borderaxespad=0.4,
            borderpad=0,
        )
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    files.write_bytes(path, picture.getvalue())

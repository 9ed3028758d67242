"""The scatter plot of a run as a PNG, for a README."""

from __future__ import annotations

import io
import os
import textwrap
from typing import Any

from jaxnas import files
from jaxnas.report import svg, words
from jaxnas.report.headline import headline
from jaxnas.report.read import read_run
from jaxnas.report.scatter import plot_of, strategies

_INK, _EXTREME = "#1b2330", "#8a3f94"
_COLOURS = {"random": "#c4570a", "evolution": "#0b68b0", "sampled": "#0b7f62", "train": "#566273"}
_COLOURS["extreme"] = _EXTREME
_MARKS = {"circle": "o", "diamond": "D", "square": "s", "up": "^", "down": "v", "star": "*"}


def save_png(workdir: str | os.PathLike, path: str | os.PathLike) -> None:
    """Draws the metric against the cost of everything evaluated, with matplotlib, 1600 pixels wide.

    Args:
      workdir: of a run with a search history.
      path: of the PNG.

    Raises:
      FileNotFoundError: there is no result.json.
      ValueError: a file is damaged, or there is no search history.
      OSError: the path cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    run = read_run(workdir)
    shown = plot_of(run)
    if shown is None:
        raise ValueError(f"{os.fspath(workdir)} has no search history to draw.")
    scale = 100 if run.metric.unit == "%" else 1
    figure = Figure(figsize=(10, 5.2), dpi=160, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    plot = figure.subplots()
    for one in strategies(run):
        lines = [line for line in shown.lines if line["strategy"] == one.name]
        points = [[line[shown.cost] for line in lines], [scale * shown.value(line) for line in lines]]
        colours: dict[str, Any] = {"edgecolors": _COLOURS[one.kind], "facecolors": _COLOURS[one.kind]}
        colours |= {"facecolors": "none"} if one.kind == "random" else {}
        label = f"{one.label} ({len(lines)})"
        plot.scatter(
            *points, s=22, marker=_MARKS[one.mark], linewidths=0.9, alpha=0.65, label=label, **colours
        )
    front = [(x, scale * y) for x, y in shown.front_corners]
    plot.step(*zip(*front, strict=True), where="post", color=_INK, linewidth=1.6, label="Pareto front")
    inset = 0 if shown.x_log else 0.008 * (shown.x_range[1] - shown.x_range[0])
    for network in shown.marked:
        # A network outside the axes is drawn on their edge, as in the page.
        x = min(max(network.cost, shown.x_range[0] + inset), shown.x_range[1] - inset)
        y = scale * min(max(network.value, shown.y_range[0]), shown.y_range[1])
        star, label = network.mark == "star", network.label
        if not shown.holds(network):
            label += f"\n{svg.short(network.cost)}, {words.value_text(run.metric, network.value)}"
        look: dict[str, Any] = (
            {"s": 420, "color": "#f2b701", "edgecolors": _INK} if star else {"s": 90, "color": _EXTREME}
        )
        plot.scatter(
            x, y, marker=_MARKS[network.mark], zorder=5, clip_on=False, linewidths=1.2 * star, **look
        )
        side = "right" if x < network.cost else "left" if x > network.cost else "center"
        below = shown.label_below(network)
        style = {
            "ha": side,
            "va": "top" if below else "bottom",
            "fontweight": "bold",
            "color": _INK,
            "zorder": 6,
        }
        offset = (0, (-1 if below else 1) * (13 if star else 8))
        plot.annotate(label, (x, y), offset, textcoords="offset points", **style)
    low, high = shown.bounds
    if low is not None or high is not None:
        ends = (shown.x_range[0] if low is None else low, shown.x_range[1] if high is None else high)
        plot.axvspan(*ends, color=_COLOURS["evolution"], alpha=0.06, linewidth=0, label="budget")
    plot.set_xscale("log" if shown.x_log else "linear")
    plot.set(xlim=shown.x_range, ylim=[scale * y for y in shown.y_range])
    plot.spines[["top", "right"]].set_visible(False)
    plot.grid(axis="y", color="#e3e7ec", linewidth=0.8)
    plot.set_axisbelow(True)
    plot.xaxis.set_major_formatter(lambda value, _: svg.short(value))
    plot.set_xlabel(shown.cost_label)
    name = words.metric_name(run.metric, run.search_role, unit=True)
    plot.set_ylabel(f"{name} (%)" if scale == 100 else name)
    title = "".join(headline(run)) + f" on {run.result.task.name}"
    title = textwrap.fill(title, 88)
    plot.set_title(title, loc="left", fontsize=13, fontweight="bold", color=_INK, pad=36)
    frame = {"frameon": False, "borderaxespad": 0.4, "borderpad": 0}
    plot.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, fontsize=10.5, **frame)
    data = io.BytesIO()
    figure.savefig(data, format="png", metadata={"Software": None})
    files.write_bytes(path, data.getvalue())

"""The page of a comparison of strategies on a table: curves with bands, ranks, wall time.

One file that loads nothing, a function of the comparison's result alone.
"""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from jaxnas import files
from jaxnas.report import svg, words
from jaxnas.report.document import document, note, section, table
from jaxnas.report.lines import Axis, Line, plot

# Colours of lines in light and in dark (Okabe-Ito, adjusted for contrast); dashes tell them apart too.
_COLOURS = (
    ("#566273", "#9eabba", ""),
    ("#0b68b0", "#5db2f0", ""),
    ("#c4570a", "#f19a4d", "8 4"),
    ("#0b7f62", "#45c9a3", "3 3"),
    ("#8a3f94", "#d79be0", "10 3 2 3"),
    ("#8a6d00", "#e5c33d", ""),
    ("#b3261e", "#ff8a80", "6 3"),
    ("#17202b", "#e8edf3", "2 3"),
)


def write(path: str | os.PathLike, result: dict[str, Any]) -> pathlib.Path:
    """Writes the page of a comparison, atomically, and returns its path."""
    files.write_text(path, render(result))
    return files.as_path(path)


def render(result: dict[str, Any]) -> str:
    """The whole page as text; `result` is what comparison.json holds."""
    strategies, sign, best = result["strategies"], 1 if result["objective"] == "max" else -1, result["best"]
    winner = max(strategies, key=lambda s: sign * s["final"]["mean"])
    seen, shown = words.plain(result["metric"]), words.plain(result["report_metric"])
    budget = f"{result['evaluations']} evaluations"
    if "seconds" in result:
        budget = f"the time of {result['evaluations']} full trainings"
    title = f"{winner['name']} finds {winner['final']['mean']:.5g} {shown} in {budget}"
    lead = (
        f"{len(strategies)} strategies were compared on {result['benchmark']}, which has "
        f"{svg.count(result['networks'])} different networks, with {svg.count(result['seeds'])} searches "
        f"each. They see the {seen} only; the page shows the {shown} of the best network so far by that. "
        "Bands hold the mean with 95 % confidence, by bootstrap over the searches."
    )
    rules = "".join(
        f".k{i}{{color:{light}}}.line.k{i}{{stroke-dasharray:{dash or 'none'}}}"
        f".band{i}{{fill:{light};fill-opacity:.15}}.bar{i}{{fill:{light}}}"
        f"@media (prefers-color-scheme:dark){{.k{i}{{color:{dark}}}.band{i},.bar{i}{{fill:{dark}}}}}"
        for i, (light, dark, dash) in enumerate(_COLOURS)
    )
    legend = svg.legend([("line", f"k{i % 8}", s["name"]) for i, s in enumerate(strategies)])
    notes = (
        "Regret is the best in the table, less what the best network so far has. It need not fall to 0: "
        f"the best by {seen} has {best['reported_of_found']:.5g}, and the best of all has "
        f"{best['reported']:.5g}.",
        "This is what the strategies themselves see and follow.",
        "Ranks are taken search by search; 1 is best, and equal results share a rank.",
        f"All {result['seeds']} searches ran in programs of {result['chunk']} at a time on "
        f"{result['device']}; the time of compiling is left out.",
        "The median of the networks until the best was found is over all searches: one that did not find it "
        "counts as longer than all others. The mean is of the searches that found it, and so flatters a "
        "strategy that often fails.",
    )
    panels = (
        (f"How far from the best {shown}", legend, _regret(result, "reported", "regret")),
        (f"How far from the best {seen}", legend, _regret(result, "found", "seen")),
        ("Mean rank among the strategies", legend, _ranks(result)),
        ("Time of one search", "", _times(result)),
        ("Figures", "", _table(result)),
    )
    body = [section(*panel, note(svg.esc(text))) for panel, text in zip(panels, notes, strict=True)]
    eyebrow = "jaxnas · comparison of search strategies"
    return document(title, eyebrow, svg.esc(title), svg.esc(lead), "\n".join(body), rules)


def _axis(result: dict[str, Any]) -> tuple[str, str, tuple[float, float]]:
    """The name of the axis, its key in a strategy's results, and its range."""
    if "seconds" not in result:
        return "evaluations", "evaluations", (1, result["evaluations"])
    key = "simulated_seconds"
    return "simulated seconds", key, (result["strategies"][0][key][0], result["seconds"])


def _regret(result: dict[str, Any], key: str, name: str) -> str:
    """Lines of the mean regret on logarithmic axes, with their bands."""
    axis, places, span = _axis(result)

    def regret(strategy: dict[str, Any], band: str) -> list[float]:
        return [abs(result["best"][key] - v) for v in strategy[key][band]]

    strategies = result["strategies"]
    positive = [v for s in strategies for v in regret(s, "mean") if v > 0]
    floor = max(min(positive, default=1e-3), 1e-3 * max(positive, default=1.0)) * 0.8
    top = max(max(positive, default=1.0), floor * 10)

    def points(strategy: dict[str, Any], band: str) -> list[svg.Point]:
        values = (math.log10(max(v, floor)) for v in regret(strategy, band))
        return list(zip(strategy[places], values, strict=True))

    def texts(values: Sequence[float]) -> list[str]:
        return [f"{10**value:.2g}" for value in values]

    y = Axis("mean regret (logarithmic)", (math.log10(floor), math.log10(top)), texts)
    return plot(
        f"{name}-curve",
        f"Mean regret by {axis}",
        Axis(axis, span, log=True),
        y,
        [Line(s["name"], f"k{i % 8}", points(s, "mean")) for i, s in enumerate(strategies)],
        [(f"band{i % 8}", points(s, "low"), points(s, "high")) for i, s in enumerate(strategies)],
        size=(960, 400),
        value_text=lambda value: f"{10**value:.3g}",
    )


def _ranks(result: dict[str, Any]) -> str:
    """Lines of the mean rank; 1 is at the top."""
    axis, places, span = _axis(result)
    lines = [
        Line(s["name"], f"k{i % 8}", [(n, -rank) for n, rank in zip(s[places], s["rank"], strict=True)])
        for i, s in enumerate(result["strategies"])
    ]
    y = Axis("mean rank", (-len(lines) - 0.3, -0.7), lambda ranks: [f"{-rank:g}" for rank in ranks])
    x, size = Axis(axis, span, log=True), (960, 300)
    return plot(
        "rank-curve", f"Mean rank by {axis}", x, y, lines, size=size, value_text=lambda rank: f"{-rank:.2f}"
    )


def _times(result: dict[str, Any]) -> str:
    strategies, body = result["strategies"], []
    longest = max(s["seconds_per_search"] for s in strategies) or 1
    for i, s in enumerate(strategies):
        y, width, text = (
            34 * i,
            560 * s["seconds_per_search"] / longest,
            svg.duration(s["seconds_per_search"]),
        )
        body += [
            svg.text(250, y + 22, s["name"], "value", "end"),
            svg.text(268 + width, y + 22, text, "value"),
        ]
        body.append(svg.rect(260, y + 4, max(width, 1), 24, f"bar{i % 8}"))
    about = "; ".join(f"{s['name']} {svg.duration(s['seconds_per_search'])}" for s in strategies)
    return svg.figure(
        "times", (960, 34 * len(strategies) + 8), "Wall time of one search", about, "".join(body)
    )


def _table(result: dict[str, Any]) -> str:
    head = (
        "strategy",
        "mean",
        "std over searches",
        "different networks",
        "found the best",
        "networks until then, median",
        "mean of successes",
        "time",
    )
    rows = []
    for s in result["strategies"]:
        median, mean = s["median_queries_to_best"], s["mean_queries_of_successes"]
        cells = (
            f"{s['final']['mean']:.5g}",
            f"{s['final']['std']:.3g}",
            f"{s['networks']:.0f}",
            svg.percent(s["reached_best"], 0),
            "not reached" if median is None else f"{median:.0f}",
            "–" if mean is None else f"{mean:.0f}",
            svg.duration(s["seconds_per_search"]),
        )
        rows.append((s["name"], cells))
    return table(head, rows)

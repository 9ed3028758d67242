"""The page of a comparison of strategies on a table: curves with bands, ranks, wall time.

It is a function of the comparison's result alone.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

from jaxnas import files
from jaxnas.report import charts, facts, page, words


def write(path: str | os.PathLike, result: dict[str, Any]) -> pathlib.Path:
    """Writes the page of a comparison, atomically, and returns its path."""
    files.write_text(path, render(result))
    return files.as_path(path)


def save_png(path: str | os.PathLike, result: dict[str, Any]) -> None:
    """Draws the mean regret of the strategies as a PNG, 1600 pixels wide."""
    shown = facts_of(result)
    files.write_bytes(path, charts.to_png(shown["sections"][0]["charts"]["reported"], shown["title"]))


def render(result: dict[str, Any]) -> str:
    """The whole page as text; `result` is what comparison.json holds."""
    return page.render(facts_of(result))


def facts_of(result: dict[str, Any]) -> facts.Facts:
    """What the page shows; see `facts.facts`."""
    strategies, sign = result["strategies"], 1 if result["objective"] == "max" else -1
    winner = max(strategies, key=lambda s: sign * s["final"]["mean"])
    seen, shown = words.plain(result["metric"]), words.plain(result["report_metric"])
    timed = "seconds" in result
    budget = f"{result['evaluations']} evaluations"
    budget = f"the time of {result['evaluations']} full trainings" if timed else budget
    title = f"{winner['name']} finds {winner['final']['mean']:.5g} {shown} in {budget}"
    lead = (
        f"{len(strategies)} strategies on {result['benchmark']}, which has {words.count(result['networks'])} different "
        f"networks, with {words.count(result['seeds'])} searches each. They see the {seen} alone; reported is the "
        f"{shown} of the best network so far by that."
    )
    best = result["best"]
    times = charts.bars([{"s": s["name"], "x": s["seconds_per_search"]} for s in strategies], "seconds")
    band = "Mean regret over the searches; bands are 95 % confidence, by bootstrap. Logarithmic axes."
    ties = f"The network with the best {seen} has {best['reported_of_found']:.5g} {shown}; the best has {best['reported']:.5g}."
    return {
        "title": title,
        "task": result["benchmark"],
        "eyebrow": "jaxnas · comparison of search strategies",
        "heading": ("", title, ""),
        "lead": [lead],
        "tiles": [],
        "sections": [
            facts.section(
                f"How far from the best {shown}",
                text=[band],
                charts={"reported": _regret(result, "reported")},
                notes=[ties],
            ),
            facts.section(f"How far from the best {seen}", charts={"found": _regret(result, "found")}),
            facts.section(
                "Mean rank", text=["1 is the best of all strategies."], charts={"rank": _ranks(result)}
            ),
            facts.section("Wall time of one search", charts={"times": times}),
            facts.section("Figures", tables=[_table(result)]),
        ],
    }


def _axis(result: Mapping[str, Any]) -> tuple[charts.Axis, str]:
    """The axis of the effort, and its key in a strategy's results."""
    if "seconds" in result:
        return charts.Axis("simulated seconds", "~s", "log"), "simulated_seconds"
    return charts.Axis("evaluations", "~s", "log"), "evaluations"


def _regret(result: Mapping[str, Any], key: str) -> charts.Spec:
    """The mean regret on logarithmic axes, with bands."""
    axis, places = _axis(result)
    rows, best = [], result["best"][key]
    positive = [v for s in result["strategies"] for x in s[key]["mean"] if (v := abs(best - x)) > 0]
    floor = 0.8 * max(min(positive, default=1e-3), 1e-3 * max(positive, default=1.0))
    for s in result["strategies"]:
        values = [[max(abs(best - x), floor) for x in s[key][band]] for band in ("mean", "low", "high")]
        for x, mean, *ends in zip(s[places], *values, strict=True):
            rows.append({"s": s["name"], "x": x, "y": mean, "low": min(ends), "high": max(ends)})
    return charts.lines(rows, axis, charts.Axis("mean regret", "~g", "log"), height=340)


def _ranks(result: Mapping[str, Any]) -> charts.Spec:
    axis, places = _axis(result)
    rows = [
        {"s": s["name"], "x": x, "y": rank}
        for s in result["strategies"]
        for x, rank in zip(s[places], s["rank"], strict=True)
    ]
    return charts.lines(rows, axis, charts.Axis("mean rank", "~g", reverse=True), height=260)


def _table(result: Mapping[str, Any]) -> dict[str, Any]:
    head = ["strategy", "mean", "std over searches", "different networks", "found the best"]
    head += ["networks until then, median", "mean of successes", "time"]
    rows = []
    for s in result["strategies"]:
        median, mean = s["median_queries_to_best"], s["mean_queries_of_successes"]
        cells = [f"{s['final']['mean']:.5g}", f"{s['final']['std']:.3g}", f"{s['networks']:.0f}"]
        cells += [words.percent(s["reached_best"], 0), "not reached" if median is None else f"{median:.0f}"]
        cells += ["–" if mean is None else f"{mean:.0f}", words.duration(s["seconds_per_search"])]
        rows.append([s["name"], *cells])
    return facts.table(head, rows)

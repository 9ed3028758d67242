"""The page of a comparison of strategies on a table: curves with bands, ranks, wall time.

It is a function of the comparison's result alone.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

from jaxnas import files
from jaxnas.report import facts, page, vega, words


def write(path: str | os.PathLike, result: Mapping[str, Any]) -> pathlib.Path:
    """Writes the page of a comparison, atomically, and returns its path."""
    files.write_text(path, render(result))
    return files.as_path(path)


def save_png(path: str | os.PathLike, result: Mapping[str, Any]) -> None:
    """Draws the mean regret of the strategies as a PNG, 1600 pixels wide."""
    shown = facts_of(result)
    files.write_bytes(path, vega.to_png(shown["sections"][0]["charts"]["reported"], shown["title"]))


def render(result: Mapping[str, Any]) -> str:
    """The whole page as text; `result` is what comparison.json holds."""
    return page.render(facts_of(result))


def facts_of(result: Mapping[str, Any]) -> facts.Facts:
    """The contents of the page; see `facts.facts`."""
    strategies, sign, best = result["strategies"], 1 if result["objective"] == "max" else -1, result["best"]
    winner = max(strategies, key=lambda s: sign * s["final"]["mean"])
    seen, shown = words.plain(result["metric"]), words.plain(result["report_metric"])
    budget = f"{result['evaluations']} evaluations"
    if "seconds" in result:
        budget = f"the time of {result['evaluations']} full trainings"
    title = f"{winner['name']} finds {winner['final']['mean']:.5g} {shown} in {budget}"
    lead = [
        f"{len(strategies)} strategies on {result['benchmark']}, of {result['networks']:,} networks:",
        f"{result['seeds']:,} searches each. They see the {seen}; shown is the {shown} of the best by it.",
    ]
    ties = (
        f"The best {shown} is {best['reported']:.5g}; the best by {seen} has {best['reported_of_found']:.5g}."
    )
    band = "Mean regret over the searches; bands are 95 % confidence, by bootstrap. Logarithmic axes."
    axis, places = vega.Axis("evaluations", "~s", "log"), "evaluations"
    if "seconds" in result:
        axis, places = axis._replace(title="simulated seconds"), "simulated_seconds"
    points = [(s["name"], s["rank"], s[places]) for s in strategies]
    ranks = [{"s": name, "x": x, "y": y} for name, rank, at in points for x, y in zip(at, rank, strict=True)]
    times = vega.bars([{"s": s["name"], "x": s["seconds_per_search"]} for s in strategies], "seconds")
    drawn = {
        "reported": _regret(result, "reported", axis, places),
        "found": _regret(result, "found", axis, places),
        "rank": vega.lines(ranks, axis, vega.Axis("mean rank", reverse=True), height=260),
        "times": times,
    }
    titles = (
        f"How far from the best {shown}",
        f"How far from the best {seen}",
        "Mean rank (1 is best)",
        "Wall time of one search",
    )
    sections = [
        facts.section(title, charts={name: drawn[name]}) for title, name in zip(titles, drawn, strict=True)
    ]
    sections[0] |= {"text": [band], "notes": [ties]}
    return {
        "title": title,
        "task": result["benchmark"],
        "eyebrow": "jaxnas · comparison of search strategies",
        "heading": ("", title, ""),
        "lead": lead,
        "tiles": [],
        "sections": [*sections, facts.section("Figures", tables=[_table(result)])],
    }


def _regret(result: Mapping[str, Any], key: str, axis: vega.Axis, places: str) -> vega.Spec:
    """The mean regret on logarithmic axes, with bands."""
    rows, best = [], result["best"][key]
    positive = [v for s in result["strategies"] for x in s[key]["mean"] if (v := abs(best - x)) > 0]
    floor = 0.8 * max(min(positive, default=1e-3), 1e-3 * max(positive, default=1.0))
    for s in result["strategies"]:
        values = [[max(abs(best - x), floor) for x in s[key][band]] for band in ("mean", "low", "high")]
        for x, mean, *ends in zip(s[places], *values, strict=True):
            rows.append({"s": s["name"], "x": x, "y": mean, "low": min(ends), "high": max(ends)})
    return vega.lines(rows, axis, vega.Axis("mean regret", "~g", "log"), height=340)


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

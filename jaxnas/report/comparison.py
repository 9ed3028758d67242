"""The page of a comparison of strategies on a table: curves with bands, ranks, wall time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxnas.report import facts, vega, words


def facts_of(result: Mapping[str, Any]) -> facts.Facts:
    """The contents of the page, of what comparison.json holds; see `facts.facts`."""
    strategies, sign, best = result["strategies"], 1 if result["objective"] == "max" else -1, result["best"]
    winner = max(strategies, key=lambda s: sign * s["final"]["mean"])
    seen, shown = words.plain(result["metric"]), words.plain(result["report_metric"])
    budget, axis, places = f"{result['evaluations']} evaluations", "evaluations", "evaluations"
    if "seconds" in result:
        budget = f"the time of {result['evaluations']} full trainings"
        axis, places = "simulated seconds", "simulated_seconds"
    x = vega.Axis(axis, "~s", "log")
    title = f"{winner['name']} finds {winner['final']['mean']:.5g} {shown} in {budget}"
    lead = [
        f"{len(strategies)} strategies on {result['benchmark']}, of {result['networks']:,} networks:",
        f"{result['seeds']:,} searches each. They see the {seen}; shown is the {shown} of the best by it.",
    ]
    ties = (
        f"The best {shown} is {best['reported']:.5g}; the best by {seen} has {best['reported_of_found']:.5g}."
    )
    band = "Mean regret over the searches; bands are 95 % confidence, by bootstrap. Logarithmic axes."
    points = [(s["name"], *pair) for s in strategies for pair in zip(s[places], s["rank"], strict=True)]
    ranks: list[dict[str, Any]] = [dict(zip("sxy", point, strict=True)) for point in points]
    times = vega.bars([{"s": s["name"], "x": s["seconds_per_search"]} for s in strategies], "seconds")
    charts = {
        f"How far from the best {shown}": {"reported": _regret(result, "reported", x, places)},
        f"How far from the best {seen}": {"found": _regret(result, "found", x, places)},
        "Mean rank (1 is best)": {"rank": vega.lines(ranks, x, vega.Axis("mean rank", reverse=True))},
        "Wall time of one search": {"times": times},
    }
    sections: list[dict[str, Any]] = [{"title": name, "charts": drawn} for name, drawn in charts.items()]
    sections[0] |= {"text": [band], "notes": [ties]}
    return {
        "title": title,
        "eyebrow": "jaxnas · comparison of search strategies",
        "heading": ("", title, ""),
        "lead": lead,
        "tiles": [],
        "sections": [*sections, {"title": "Figures", "tables": [table(result)]}],
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


def table(result: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of each strategy, as a table of a page."""
    head = ["strategy", "mean", "std over searches", "different networks", "found the best"]
    head += ["networks until then, median", "mean of successes", "milliseconds"]
    rows = []
    for s in result["strategies"]:
        median, mean = s["median_queries_to_best"], s["mean_queries_of_successes"]
        cells = [f"{s['final']['mean']:.5g}", f"{s['final']['std']:.3g}", f"{s['networks']:.0f}"]
        cells += [words.percent(s["reached_best"], 0), "not reached" if median is None else f"{median:.0f}"]
        cells += ["–" if mean is None else f"{mean:.0f}", words.short(1e3 * s["seconds_per_search"])]
        rows.append([s["name"], *cells])
    return {"head": head, "rows": rows}

"""How well the supernet ranks architectures: inherited against stand-alone quality, with Kendall's tau."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxnas.report import svg, words
from jaxnas.report.document import both, note, say, section
from jaxnas.report.lines import around
from jaxnas.report.read import Run
from jaxnas.report.result import RankingOf


def panel(run: Run) -> str:
    """The section of the ranking; "" where it was not measured."""
    ranking = run.result.ranking
    if ranking is None or not _pairs(ranking):
        return ""
    count, name = len(_pairs(ranking)), words.metric_name(run.metric, ranking.role)
    text = (
        f"Each mark is one of {svg.count(count)} random architectures: its {name} with the supernet’s "
        f"weights, and after {svg.count(ranking.steps)} steps of training alone. {_verdict(ranking)}"
    )
    if lost := len(ranking.alone) - count:
        text += f" {svg.count(lost)} more diverged when they were trained alone, and are left out."
    foot = (
        "Kendall’s tau is 1 where both order all pairs alike, 0 where they have nothing to do with each "
        "other, and -1 where one is the reverse of the other."
    )
    return section(
        "How well the supernet ranks architectures",
        say(svg.esc(text)),
        both(draw, run, ranking),
        note(svg.esc(foot)),
    )


def _verdict(ranking: RankingOf) -> str:
    """Kendall's tau in a sentence."""
    if not svg.is_number(ranking.kendall_tau):
        return "Kendall’s tau is not defined, since all values of one kind are equal."
    low, high = ranking.interval
    within = ""
    if svg.is_number(low) and svg.is_number(high):
        within = f" (95 % of its bootstrap distribution lie from {low:.2f} to {high:.2f})"
    return f"Kendall’s tau of the two is {ranking.kendall_tau:.2f}{within}."


def draw(run: Run, ranking: RankingOf, narrow: bool = False) -> str:
    """The stand-alone metric over the inherited one as SVG."""
    size = (400, 340) if narrow else (760, 400)
    pairs = _pairs(ranking)
    ranges = around([x for _, x, _ in pairs], 0.08), around([y for _, _, y in pairs], 0.08)
    frame = svg.Frame(*size, *ranges, left=52)
    name = words.metric_name(run.metric, ranking.role, unit=True)
    texts = words.axis_texts(run.metric)
    body = [svg.axes(frame, f"{name}, inherited", f"{name}, alone", x_texts=texts, y_texts=texts)]
    for architecture, inherited, alone in pairs:
        figures = [words.value_text(run.metric, x) + words.unit_text(run.metric) for x in (inherited, alone)]
        title = f"inherited {figures[0]}, alone {figures[1]}\n"
        title += words.describe(architecture, run.result.space.choices)
        body.append(svg.mark("circle", frame.x(inherited), frame.y(alone), 5, "evolution late3", title))
    about = f"Scatter plot of {len(pairs)} architectures. {_verdict(ranking)}"
    return svg.figure("ranking", size, "Stand-alone against inherited quality", about, "".join(body), narrow)


def _pairs(ranking: RankingOf) -> list[tuple[Mapping[str, Any], float, float]]:
    """Architectures with both values, where both are numbers."""
    every = zip(ranking.architectures, ranking.inherited, ranking.alone, strict=True)
    return [(arch, a, b) for arch, a, b in every if svg.is_number(a) and svg.is_number(b)]

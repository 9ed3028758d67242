"""What other budgets would cost, where a network was found by replacing one place at a time."""

from __future__ import annotations

from jaxnas.report import svg, words
from jaxnas.report.document import both, note, plain_table, say, section
from jaxnas.report.lines import Axis, Line, around, plot
from jaxnas.report.read import Run
from jaxnas.report.result import Budgeted, ReplacementsOf

# Fields of `Budgeted`, what they are called, and their marks and classes.
_LINES = (
    ("measured", "measured", "circle", "evolution"),
    ("estimated", "sum of replacements", "square", "random"),
)


def panel(run: Run) -> str:
    """The section of the budgets; "" for a run by another method."""
    record = run.result.replacements
    if record is None:
        return ""
    number = svg.count(record.evaluations)
    text = (
        f"{number} networks that differ from the largest one in one place were compared with it by "
        f"{_metric(record)}. The combination with the least sum within the budget is found exactly; the "
        "sum is an estimate, so each combination was then measured."
    )
    rows = [
        (_budget(record, one), words.cost_text(one.cost), f"{one.estimated:.3g}", f"{one.measured:.3g}")
        for one in _sorted(record)
    ]
    head = ("budget", words.cost_name(record.budget), "sum of replacements", f"measured, {record.unit}")
    curve = [both(_draw, record)] if len(_sorted(record)) > 1 else []
    return section(
        "What other budgets would cost",
        say(svg.esc(text)),
        *([svg.legend([("line", kind, label) for _, label, _, kind in _LINES])] if curve else []),
        *curve,
        plain_table(head, rows),
        note("These networks have the weights of the whole one: nothing was trained after the cut."),
    )


def _metric(record: ReplacementsOf) -> str:
    name = "the Kullback–Leibler divergence of their predictions" if record.metric == "kl" else record.metric
    return f"{name} ({record.unit})"


def _sorted(record: ReplacementsOf) -> list[Budgeted]:
    """By falling cost."""
    return sorted((record.found, *record.others), key=lambda one: -one.cost)


def _budget(record: ReplacementsOf, one: Budgeted) -> str:
    return "this run" if one.share is None else f"{100 * one.share:.0f} % of {words.cost_name(record.budget)}"


def _draw(record: ReplacementsOf, narrow: bool = False) -> str:
    """The divergence over the cost as SVG."""
    points = _sorted(record)[::-1]
    lines = [
        Line(label, kind, [(one.cost, getattr(one, field)) for one in points], mark)
        for field, label, mark, kind in _LINES
    ]
    x = Axis(words.cost_name(record.budget), around([one.cost for one in points], 0.05))
    values = [value for one in lines for _, value in one.points]
    y = Axis(f"{record.metric}, {record.unit}", (0.0, 1.08 * max(values) or 1.0))
    size = (400, 300) if narrow else (960, 340)
    title = "divergence from the largest network by budget"
    return plot("budgets", title, x, y, lines, size=size, value_text=lambda v: f"{v:.3g}", narrow=narrow)

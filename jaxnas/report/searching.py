"""How the searches went: the best so far by evaluations, and the verdict against random search."""

from __future__ import annotations

import math

from jaxnas.report import svg, words
from jaxnas.report.document import both, note, say, section
from jaxnas.report.lines import Axis, Line, around, plot
from jaxnas.report.read import Run
from jaxnas.report.result import Network
from jaxnas.report.scatter import Strategy, strategies


def panel(run: Run) -> str:
    """The section of the searches; "" for a run without any."""
    if not (run.history or run.result.searches):
        return ""
    other = run.network("random search")
    parts = [say(svg.esc(_verdict(run, other))) if other else ""]
    if run.result.replacements is None:
        parts += _curves(run) or [note("The search has no history here, so its way cannot be drawn.")]
    if other is None:
        parts.append(note("Random search was not run beside it, so the gain of the search is not known."))
    return section("Search against random search" if other else "How the search went", *parts)


def curves_panel(run: Run) -> str:
    """The section of searches that have not ended; "" without evaluations."""
    return section("How the search goes", *_curves(run))


def _curves(run: Run) -> list[str]:
    """The legend and the curves, or nothing."""
    entries = [("line", strategy.kind, strategy.label) for strategy, _ in reversed(best_so_far(run))]
    return [svg.legend(entries), both(draw, run)] if entries else []


def best_so_far(run: Run) -> list[tuple[Strategy, list[float]]]:
    """For each strategy of the history, the best metric after each of its evaluations."""
    curves = []
    for strategy in strategies(run):
        best, values = -math.inf, []
        for line in run.strategy(strategy.name):
            best = max(best, line["score"] if svg.is_number(line["score"]) else best)
            values += [run.sign * best] if math.isfinite(best) else []
        curves += [(strategy, values)] if values else []
    return curves


def _verdict(run: Run, other: Network) -> str:
    """What the search gained over random search, and whether that can be told from chance."""
    metric, task, sentences = run.metric, run.result.task, []
    for role in dict.fromkeys((run.search_role, run.final_role)):
        mine, theirs = run.value(run.result.found, role), run.value(other, role)
        if mine is None or theirs is None:
            continue
        gap = words.difference_text(metric, abs(mine - theirs))[1:]
        gain = run.sign * (mine - theirs)
        how = "exactly as good as" if not gain else f"{gap} {'better' if gain > 0 else 'worse'} than"
        text = f"On the {role} data the found network is {how} random search’s best"
        pairs = ((run.result.found, mine), (other, theirs))
        errors = [words.standard_error(task, metric, role, *pair) for pair in pairs]
        error = math.hypot(*(one for one in errors if one is not None))
        if role == run.final_role and error and gain:
            figure = words.difference_text(metric, error)[1:]
            if abs(gain) >= 2 * error:
                text += f", {abs(gain) / error:.1f} times the standard error of that difference ({figure})"
            else:
                text += f", which so few {task.examples} cannot tell from chance: the standard error of the"
                text += f" difference is {figure}"
        sentences.append(text + ".")
    return " ".join(sentences)


def draw(run: Run, narrow: bool = False) -> str:
    """The curves as SVG."""
    metric, curves = run.metric, best_so_far(run)
    # The first evaluations may be far worse than all others: they may leave the plot.
    worst = min(run.sign * values[min(len(values) - 1, len(values) // 25)] for _, values in curves)
    best = max(run.sign * values[-1] for _, values in curves)
    y_range = around([run.sign * worst, run.sign * best], 0.1)
    name = f"best {words.metric_name(metric, run.search_role, unit=True)} so far"
    most = max(2, *(len(values) for _, values in curves))
    lines = [Line(one.label, one.kind, list(enumerate(values, 1)), one.mark, True) for one, values in curves]
    return plot(
        "search",
        "Best so far",
        Axis("evaluations", (0, most), lambda xs: [svg.count(x) for x in xs]),
        Axis(name, y_range, words.axis_texts(metric)),
        lines,
        size=(400, 280) if narrow else (960, 330),
        marks=1,
        value_text=lambda value: words.value_text(metric, value),
        narrow=narrow,
    )

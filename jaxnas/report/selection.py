"""How one architecture was taken from a supernet: probabilities, candidates, and the strengths of options.

The strengths are those of a selection by removal (see `search.perturbation`). DARTFormer
(arXiv 2210.00641) reads them as a warning, too: where all are small, the choice is not reliable.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

from jaxnas.report import charts, findings, vega, words
from jaxnas.report.findings import Run
from jaxnas.report.result import Candidate, SelectionOf

MOST_SHOWN = 12  # candidates
_HOW = {
    "argmax": "the most probable option of each decision",
    "sampling": "the best of {n} sampled architectures with inherited weights",
    "trials": "the best of {n} sampled architectures, each trained alone for a while",
    "perturbation": "for each decision the option whose removal harmed the supernet most",
    "pruning": "what was left when blocks were removed one by one, the least harmful first",
    "strongest": "the blocks whose removal harmed the supernet most",
}


def _even(selection: SelectionOf) -> bool:
    """Whether all options had the same weight, as in a selection by removal alone."""
    tables = selection.probabilities.values()
    rows = [row for table in tables for row in (table if isinstance(table[0], list) else [table])]
    return all(max(row) - min((x for x in row if x > 0), default=0) < 1e-4 for row in rows)


def how(selection: SelectionOf) -> str:
    """How the found architecture came out of the supernet."""
    even = selection.decisions and _even(selection)
    kind = "A supernet with even weights" if even else "A differentiable search"
    taken = _HOW.get(selection.method, words.plain(selection.method)).format(n=len(selection.candidates))
    return f"{kind} of {words.count(selection.steps)} steps; taken: {taken}."


def chance(run: Run, selection: SelectionOf) -> float | None:
    """Standard error of the difference of two figures of the search role; None where it is not known.

    Of accuracies, which are not stored, it is the largest that is possible: that of two shares of one half.
    """
    found, role = run.result.found, run.search_role
    error = findings.standard_error(run, role, found, 0.5, selection.examples or 0)
    return None if error is None else math.sqrt(2) * error


def sections(run: Run) -> Iterator[dict[str, Any]]:
    """The sections of the probabilities, the candidates and the strengths of options, if there are any."""
    if (selection := run.result.selection) is None:
        return
    if selection.probabilities and not (selection.decisions and _even(selection)):
        yield _probabilities(run, selection)
    if selection.candidates:
        yield _candidates(run, selection)
    if selection.decisions:
        yield _strengths(run, selection)


def _probabilities(run: Run, selection: SelectionOf) -> dict[str, Any]:
    drawn, steps = charts.probabilities(run, selection)
    text = f"In percent, after {words.count(selection.steps)} steps; the most probable option has its number."
    text += f" The least decided choice has {words.percent(selection.confidence)} for its best option."
    text += f" The slider goes over steps {steps[0]:,} to {steps[-1]:,}." if len(steps) > 1 else ""
    shown = {f"probabilities-{i}": spec for i, spec in enumerate(drawn.values())}
    return {"title": "How probable each option is", "text": [text], "charts": shown}


def _candidates(run: Run, selection: SelectionOf) -> dict[str, Any]:
    def order(one: Candidate) -> tuple[float, float]:
        """Those that came furthest first, and the best of these."""
        last = (one.supernet, *one.trials)[-1]
        return -len(one.trials), -run.sign * last if words.is_number(last) else math.inf

    rungs = max(len(one.trials) for one in selection.candidates)
    head = ["architecture", "drawn from", "supernet"]
    head += [f"after {words.count(steps)} steps" for steps in selection.trial_steps[:rungs]]
    rows = []
    for one in sorted(selection.candidates, key=order):
        cells = [words.value_text(run.metric, value) for value in (one.supernet, *one.trials)]
        name = words.describe(one.architecture, run.result.space.choices)
        row = [name, "anywhere" if one.explored else "the probabilities", *cells]
        rows.append(row + [""] * (3 + rungs - len(row)))
    name = words.metric_name(run.metric, run.search_role, unit=True)
    text = [f"The {name} of each, inherited" + (" and after training alone." if rungs else ".")]
    if words.is_number(selection.kendall_tau):
        text.append(f"Kendall’s tau between the supernet and the first trials: {selection.kendall_tau:.2f}.")
    text += [f"The best {MOST_SHOWN} of {len(rows)}."] if len(rows) > MOST_SHOWN else []
    table = dict(head=head, rows=rows[:MOST_SHOWN], first=True)
    return dict(title="The candidates", text=text, tables=[table])


def _strengths(run: Run, selection: SelectionOf) -> dict[str, Any]:
    """How far the score fell without each option, over positions; the strongest first."""
    error, shown, most = chance(run, selection), {}, 0.0
    scale, change = 100 if run.metric.unit == "%" else 1, "fall" if run.sign > 0 else "rise"
    name = words.metric_name(run.metric, run.search_role, unit=True)
    what = f"{change} of the {name}{' (points)' * (scale == 100)} without the option"
    drops: dict[str, dict[str, list[float]]] = {}
    rounds = "blocks" in selection.decisions[0]
    for one in (
        selection.decisions[:1] if rounds else selection.decisions
    ):  # in the first all blocks were there
        name, position, choices = one["name"], one.get("position"), run.result.space.choices
        options = [x for _, x in one["blocks"]] if rounds else words.options_of(choices[name], position)
        for option, drop in zip(options, one["drops"], strict=True):
            drops.setdefault(name, {}).setdefault(words.show(option), []).append(scale * drop)
    for number, (name, of) in enumerate(drops.items()):
        found, rows = run.result.found.architecture.get(name), []
        kept = {words.show(one) for one in (found if isinstance(found, list) else [found])}
        for option, falls in sorted(of.items(), key=lambda pair: -statistics.fmean(pair[1])):
            row = {"x": statistics.fmean(falls), "low": min(falls), "high": max(falls)}
            most = max(most, row["x"] / scale)
            rows.append({"s": words.plain(option), "kept": "kept" if option in kept else "not kept"} | row)
        limit = None if error is None else 2 * scale * error
        shown[f"strength-{number}"] = vega.bars(rows, what, limit) | {"title": words.plain(name)}
    text = "The longer the bar, the more the supernet needs the option; the line is the range over positions."
    sure = "How large a difference chance makes is not known; if all are small, the choice is unsure."
    if error is not None:
        size = f"{words.count(selection.examples)} {run.search_role} {run.result.task.examples}"
        within = f"within two standard errors over {size} ({words.amount_text(run.metric, 2 * error)}"
        sure = f"What is {within}, shaded) may be chance."
        sure = f"All are {within}): the choice may well be chance." if most < 2 * error else sure
    return {"title": "How strong each option is", "text": [text, sure], "charts": shown}

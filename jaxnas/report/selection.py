"""How one architecture was taken from a supernet: probabilities, candidates, and the strengths of options.

The strengths are those of a selection by removal (`search.perturbation` and `search.pruning`). DARTFormer
(arXiv 2210.00641) reads them as a warning, too: where all are small, the choice is not reliable.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jaxnas.report import charts, vega, words
from jaxnas.report.read import Run
from jaxnas.report.result import Candidate, SelectionOf

MOST_SHOWN = 12  # candidates; the others are folded away
_HOW = {
    "argmax": "the most probable option of each decision",
    "sampling": "the best of {n} sampled architectures with inherited weights",
    "trials": "the best of {n} sampled architectures, each trained alone for a while",
    "perturbation": "for each decision the option whose removal harmed the supernet most",
    "pruning": "what was left when blocks were removed one by one, the least harmful first",
    "strongest": "the blocks whose removal harmed the supernet most",
}


class Strength(NamedTuple):
    """An option, how far the score fell without it at each position, and at how many it was kept."""

    option: str
    drops: tuple[float, ...]
    kept: int

    @property
    def mean(self) -> float:
        """The mean of all drops."""
        return statistics.fmean(self.drops)


def weights_were_even(run: Run) -> bool:
    """Whether a selection was by removal alone, from a supernet whose options all had the same weight."""
    selection = run.result.selection
    if selection is None or not selection.decisions:
        return False
    tables = selection.probabilities.values()
    rows = [row for table in tables for row in (table if isinstance(table[0], list) else [table])]
    used = [[weight for weight in row if weight > 0] or [1.0] for row in rows]
    return all(math.isclose(max(row), min(row), rel_tol=1e-4) for row in used)


def how(run: Run) -> str:
    """How the found architecture came out of the supernet."""
    selection = run.result.selection
    assert selection is not None
    kind = "A supernet with even weights" if weights_were_even(run) else "A differentiable search"
    taken = _HOW.get(selection.method, words.plain(selection.method)).format(n=len(selection.candidates))
    return f"{kind} of {words.count(selection.steps)} steps; taken: {taken}."


def strengths(selection: SelectionOf, choices: Mapping[str, Any]) -> dict[str, list[Strength]]:
    """The options by choice, the strongest first.

    Of rounds only the first one counts, in which all blocks were there; kept is what the last one left.
    """
    drops: dict[tuple[str, str], list[float]] = {}
    kept: list[tuple[str, str]] = []
    rounds = [one for one in selection.decisions if "blocks" in one]
    decided = [one for one in selection.decisions if "blocks" not in one]
    for one in [*rounds[:1], *decided]:
        for label, drop in zip(_options(one, choices), one["drops"], strict=True):
            drops.setdefault((one["name"], label), []).append(drop)
    for one in rounds[-1:]:
        left = [block for block in one["blocks"] if block not in one["removed"]]
        kept += [(one["name"], words.show(option)) for _, option in left]
    kept += [(one["name"], words.show(one["kept"])) for one in decided]
    found: dict[str, list[Strength]] = {}
    for (name, option), values in drops.items():
        found.setdefault(name, []).append(Strength(option, tuple(values), kept.count((name, option))))
    return {name: sorted(all_of, key=lambda one: -one.mean) for name, all_of in found.items()}


def _options(one: Mapping[str, Any], choices: Mapping[str, Any]) -> list[str]:
    """The option of each drop of a decision or a round."""
    if "blocks" in one:
        return [words.show(option) for _, option in one["blocks"]]
    return words.options_of(choices[one["name"]], one.get("position"))


def chance(run: Run) -> float | None:
    """Standard error of the difference of two figures of the search role; None where it is not known.

    Of accuracies it is the largest that a difference of two shares can have, sqrt(1 / 4n + 1 / 4n), since
    the shares themselves are not stored.
    """
    task, role, found = run.result.task, run.search_role, run.result.found
    if words.is_accuracy(run.metric):
        return math.sqrt(0.5 / count) if (count := _examples(run)) else None
    if _examples(run) != task.sizes.get(role):
        return None  # The error was measured on all examples.
    error = words.standard_error(task, run.metric, role, found, run.value(found, role))
    return None if error is None else math.sqrt(2) * error


def _examples(run: Run) -> int | None:
    """On how many examples options were compared; None where it is not known."""
    selection, settings = run.result.selection, run.result.config.get("search")
    if selection is not None and selection.examples is not None:
        return selection.examples
    limited = isinstance(settings, Mapping) and settings.get("limit") is not None
    return None if limited else run.result.task.sizes.get(run.search_role)


def sections(run: Run) -> Iterator[dict[str, Any]]:
    """The sections of the probabilities, the candidates and the strengths of options, if there are any."""
    selection = run.result.selection
    if selection is not None and selection.probabilities and not weights_were_even(run):
        yield _probabilities(run, selection)
    if selection is not None and selection.candidates:
        yield _candidates(run, selection)
    if selection is not None and selection.decisions:
        yield _strengths(run, selection)


def _probabilities(run: Run, selection: SelectionOf) -> dict[str, Any]:
    drawn, steps = charts.probabilities(run)
    text = f"In percent, after {words.count(selection.steps)} steps; the most probable option has its number."
    text += f" The least decided choice has {words.percent(selection.confidence)} for its best option."
    if len(steps) > 1:
        text += (
            f" The slider goes over {len(steps)} moments of the search, steps {steps[0]:,} to {steps[-1]:,}."
        )
    shown = {
        f"probabilities-{i}": x | {"title": words.plain(name)} for i, (name, x) in enumerate(drawn.items())
    }
    return {"title": "How probable each option is", "text": [text], "charts": shown}


def _candidates(run: Run, selection: SelectionOf) -> dict[str, Any]:
    def order(one: Candidate) -> tuple[float, float]:
        """Those that came furthest first, and the best of these."""
        values = [one.supernet, *one.trials]
        last = values[-1]
        return -len(values), -run.sign * last if words.is_number(last) else math.inf

    candidates = sorted(selection.candidates, key=order)
    rungs = max(len(one.trials) for one in candidates)
    head = ["architecture", "drawn from", "supernet"]
    head += [f"after {words.count(steps)} steps" for steps in selection.trial_steps[:rungs]]
    head += [f"trial {i + 1}" for i in range(len(selection.trial_steps), rungs)]
    rows = []
    for one in candidates:
        cells = [words.value_text(run.metric, value) for value in (one.supernet, *one.trials)]
        source = "anywhere" if one.explored else "the probabilities"
        name = words.describe(one.architecture, run.result.space.choices)
        rows.append([name, source, *cells, *[""] * (1 + rungs - len(cells))])
    name = words.metric_name(run.metric, run.search_role, unit=True)
    text = [f"The {name} of each, inherited" + (" and after training alone." if rungs else ".")]
    if words.is_number(selection.kendall_tau):
        text.append(f"Kendall’s tau between the supernet and the first trials: {selection.kendall_tau:.2f}.")
    tables: list[dict[str, Any]] = [{"head": head, "rows": rows[:MOST_SHOWN], "first": True}]
    if rest := rows[MOST_SHOWN:]:
        tables.append({"head": head, "rows": rest, "fold": f"{len(rest)} more candidates"})
    return {"title": "The candidates", "text": text, "tables": tables}


def _strengths(run: Run, selection: SelectionOf) -> dict[str, Any]:
    by_choice, error, shown = strengths(selection, run.result.space.choices), chance(run), {}
    scale, unit = 100 if run.metric.unit == "%" else 1, words.difference_unit(run.metric)
    change = "fall" if run.metric.direction == "max" else "rise"
    what = f"{change} of the {words.metric_name(run.metric, run.search_role)} without the option{unit}"
    for number, (name, options) in enumerate(by_choice.items()):
        rows = []
        for one in options:
            drops = [scale * drop for drop in one.drops]
            row = {
                "s": words.plain(one.option),
                "x": statistics.fmean(drops),
                "low": min(drops),
                "high": max(drops),
            }
            rows.append(row | {"kept": "kept" if one.kept else "not kept"})
        spec = vega.bars(rows, what, None if error is None else 2 * scale * error)
        shown[f"strength-{number}"] = spec | ({"title": words.plain(name)} if len(by_choice) > 1 else {})
    text = [
        "The longer the bar, the more the supernet needs the option; the line is the range over positions."
    ]
    options = [one for some in by_choice.values() for one in some]
    return {
        "title": "How strong each option is",
        "text": [*text, _sure(run, max((one.mean for one in options), default=0.0), error)],
        "charts": shown,
        "tables": [_made(run, selection, f"{change} without the option{unit}")],
    }


def _sure(run: Run, most: float, error: float | None) -> str:
    """Whether the strengths can be told from chance."""
    if error is None:
        return "How large a difference chance makes is not known; if all are small, the choice is unsure."
    size = f"{words.count(_examples(run) or 0)} {run.search_role} {run.result.task.examples}"
    twice = words.amount_text(run.metric, 2 * error)
    if most < 2 * error:
        return f"All are within two standard errors over {size} ({twice}): the choice may well be chance."
    return f"What is within two standard errors over {size} ({twice}, shaded) may be chance."


def _made(run: Run, selection: SelectionOf, what: str) -> dict[str, Any]:
    """The decisions or rounds in the order in which they were made, folded away."""
    rows, rounds = [], "blocks" in selection.decisions[0]
    for number, one in enumerate(selection.decisions, 1):
        names = [words.plain(option) for option in _options(one, run.result.space.choices)]
        place, cells = one.get("position"), [f"{number}"]
        if rounds:
            names = [f"{name} ({at + 1})" for name, (at, _) in zip(names, one["blocks"], strict=True)]
            cells.append(
                ", ".join(f"{words.plain(words.show(option))} ({at + 1})" for at, option in one["removed"])
            )
        else:
            cells = [
                words.plain(one["name"]) + ("" if place is None else f" {place + 1}"),
                words.plain(words.show(one["kept"])),
            ]
        # Without the unit, which the head of the table has.
        falls = sorted(zip(one["drops"], names, strict=True), key=lambda pair: -pair[0])
        texts = [f"{name} {words.difference_text(run.metric, drop).split()[0]}" for drop, name in falls]
        rows.append([*cells, ", ".join(texts)])
    fold = f"the {'rounds' if rounds else 'decisions'}, in the order made"
    head = ["round", "removed (position)", what] if rounds else ["decision", "kept", what]
    return {"head": head, "rows": rows, "fold": fold, "words": True}

"""How one architecture was taken from a trained supernet: candidates, and the strengths of options."""

from __future__ import annotations

import math

from jaxnas.report import strengths, svg, words
from jaxnas.report.document import details, say, section, table
from jaxnas.report.read import Run
from jaxnas.report.result import Candidate, SelectionOf

# Candidates beyond these are folded away.
MOST_SHOWN = 12


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
    """How the found architecture came out of the supernet, as the rest of a sentence."""
    selection = run.result.selection
    assert selection is not None
    number = svg.count(len(selection.candidates))
    return {
        "argmax": "the most probable option of each decision was taken",
        "sampling": f"the best of {number} architectures that were drawn was taken, "
        "as measured with the supernet’s weights",
        "trials": f"the best of {number} architectures that were drawn was taken, "
        "after each had been trained alone for a while",
        "perturbation": "for each decision that option was kept whose removal harmed the supernet most",
        "pruning": "round by round that block was taken out whose removal harmed the supernet least, until "
        "as many were left as there are positions",
        "strongest": "those blocks were kept whose removal harmed the supernet most, as many as there are "
        "positions",
    }.get(selection.method, f"it was taken by {svg.esc(words.plain(selection.method))}")


def panel(run: Run) -> str:
    """The sections of the candidates and of the strengths of options; "" if there were none."""
    selection = run.result.selection
    if selection is None:
        return ""
    return "\n".join(part for part in (_candidates(run, selection), strengths.panel(run)) if part)


def _candidates(run: Run, selection: SelectionOf) -> str:
    """What was drawn, the found architecture first."""
    if not selection.candidates:
        return ""

    def order(one: Candidate) -> tuple[float, float]:
        """Those that came furthest first, and the best of these."""
        values = [one.supernet, *one.trials]
        last = values[-1]
        return -len(values), -run.sign * last if svg.is_number(last) else float("inf")

    candidates = sorted(selection.candidates, key=order)
    rungs = max(len(one.trials) for one in candidates)
    head = ["architecture", "drawn from", "supernet"]
    head += [f"after {svg.count(steps)} steps" for steps in selection.trial_steps[:rungs]]
    head += [f"trial {i + 1}" for i in range(len(selection.trial_steps), rungs)]
    rows = []
    for one in candidates:
        cells = [words.value_text(run.metric, value) for value in (one.supernet, *one.trials)]
        cells += [""] * (1 + rungs - len(cells))
        source = "anywhere" if one.explored else "the probabilities"
        rows.append((words.describe(one.architecture, run.result.space.choices), [source, *cells]))
    name = words.metric_name(run.metric, run.search_role, unit=True)
    text = f"The table has the {svg.esc(name)} of each candidate: with the supernet’s weights"
    text += ", and trained alone from new weights" if rungs else ""
    text += ". After each trial only the best went on to the longer one." if rungs > 1 else "."
    tau = selection.kendall_tau
    if svg.is_number(tau):
        text += (
            f" Kendall’s tau between the supernet’s figures and those of the first trials is {tau:.2f} over "
            f"{svg.count(len(candidates))} architectures; 1 would be the same order, 0 no relation."
        )
    rest = rows[MOST_SHOWN:]
    more = details(f"{svg.count(len(rest))} more candidates", table(head, rest)) if rest else ""
    return section("The candidates", say(text), table(head, rows[:MOST_SHOWN], first=True), more)

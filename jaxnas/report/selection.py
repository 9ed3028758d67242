"""How one architecture was taken from a search with architecture parameters: candidates and decisions."""

from __future__ import annotations

from jaxnas.report import svg, words
from jaxnas.report.document import details, say, section, table
from jaxnas.report.read import Run
from jaxnas.report.result import Candidate, SelectionOf

# Candidates beyond these are folded away.
MOST_SHOWN = 12


def how(run: Run) -> str:
    """How the found architecture came out of the probabilities, as the rest of a sentence."""
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
    }.get(selection.method, f"it was taken by {svg.esc(words.plain(selection.method))}")


def panel(run: Run) -> str:
    """The sections of the candidates and of the decisions; "" if there were none."""
    selection = run.result.selection
    if selection is None:
        return ""
    return "\n".join(part for part in (_candidates(run, selection), _decisions(run, selection)) if part)


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


def _decisions(run: Run, selection: SelectionOf) -> str:
    """The decisions by perturbation, in the order in which they were made."""
    rows = []
    for one in selection.decisions:
        name, position = str(one.get("name", "?")), one.get("position")
        choice = run.result.space.choices.get(name, {})
        place = position if isinstance(position, int) else None
        options, drops = words.options_of(choice, place), one.get("drops") or ()
        said = [
            f"{words.plain(option)} {words.difference_text(run.metric, drop) if svg.is_number(drop) else '–'}"
            for option, drop in zip(options, drops, strict=False)
        ]
        label = words.plain(name) + ("" if place is None else f" {place + 1}")
        rows.append((label, (words.plain(words.show(one.get("kept"))), ", ".join(said) or "–")))
    text = (
        "The decisions were made one by one, in this order. Each option was taken out of the supernet, and "
        "kept was the one whose loss made the score fall most; falls are positive numbers."
    )
    if not rows:
        return ""
    return section("The decisions", say(text), table(("decision", "kept", "fall without the option"), rows))

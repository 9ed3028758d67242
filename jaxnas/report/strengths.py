"""How strong each option is: what the supernet loses when it is taken out, as bars and as a table.

The strengths are those of a selection by removal (`search.perturbation` and `search.pruning`). DARTFormer
(arXiv 2210.00641) reads them as a warning, too: where all are small, the choice is not reliable.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from jaxnas.report import svg, words
from jaxnas.report.document import both, details, note, plain_table, say, section
from jaxnas.report.read import Run
from jaxnas.report.result import SelectionOf


@dataclasses.dataclass(frozen=True)
class Strength:
    """What the removals of one option have shown.

    Attributes:
      option: its name.
      drops: how much the score fell without it, once for each position that it could be taken out of.
      kept: at how many of these it was kept.
    """

    option: str
    drops: tuple[float, ...]
    kept: int

    @property
    def mean(self) -> float:
        """The mean of all drops."""
        return statistics.fmean(self.drops)


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


def panel(run: Run) -> str:
    """The section of the strengths; "" where no option was taken out."""
    selection = run.result.selection
    if selection is None or not selection.decisions:
        return ""
    by_choice = strengths(selection, run.result.space.choices)
    everything = [one for options in by_choice.values() for one in options]
    error = chance(run)
    parts = [say(svg.esc(_about(run, everything))), svg.legend(_legend(everything, error))]
    for name, options in by_choice.items():
        parts += [f"<h3>{svg.esc(words.plain(name))}</h3>"] if len(by_choice) > 1 else []
        parts.append(both(draw, run, name, options, error))
    return section(
        "How strong each option is", *parts, note(svg.esc(_sure(run, everything, error))), _made(run)
    )


def _change(run: Run) -> str:
    """What the metric does when a useful option goes."""
    return "falls" if run.metric.direction == "max" else "rises"


def _unit(run: Run) -> str:
    """The unit of a difference of the metric in brackets, or nothing."""
    unit = "points" if run.metric.unit == "%" else words.unit_text(run.metric).strip()
    return f" ({unit})" if unit else ""


def _about(run: Run, options: Sequence[Strength]) -> str:
    """How to read the bars."""
    selection = run.result.selection
    assert selection is not None
    text = (
        f"A bar says by how much the supernet’s {words.metric_name(run.metric, run.search_role)} "
        f"{_change(run)} when an option is taken out. The further it reaches to the right, the stronger "
        "is the option; a bar to the left of zero says that the supernet is better without it."
    )
    if any(len(one.drops) > 1 for one in options):
        text += (
            " Where an option was taken out at several positions, the bar is the mean over them, and the "
            "thin line below it goes from the least to the greatest."
        )
    if any("blocks" in one for one in selection.decisions):
        text += " These are the figures of the first round, in which all blocks were there."
    elif len(selection.decisions) > 1:
        text += " The decisions were made one after another, each with those before it already made."
    return text


def chance(run: Run) -> float | None:
    """Standard error of the difference of two figures of the search role; None where it is not known.

    Of accuracies it is the largest that a difference of two shares can have, sqrt(1 / 4n + 1 / 4n), since
    the shares themselves are not stored.
    """
    task, role, found = run.result.task, run.search_role, run.result.found
    if words.is_accuracy(run.metric):
        count = _examples(run)
        return math.sqrt(0.5 / count) if count else None
    if _limited(run):
        return None  # The error was measured on all examples.
    error = words.standard_error(task, run.metric, role, found, run.value(found, role))
    return None if error is None else math.sqrt(2) * error


def _limited(run: Run) -> bool:
    """Whether options were compared on a part of the search role."""
    settings = run.result.config.get("search")
    return isinstance(settings, Mapping) and settings.get("limit") is not None


def _examples(run: Run) -> int | None:
    """On how many examples options were compared; None where it is not known."""
    selection = run.result.selection
    if selection is not None and selection.examples is not None:
        return selection.examples
    return None if _limited(run) else run.result.task.sizes.get(run.search_role)


def _sure(run: Run, options: Sequence[Strength], error: float | None) -> str:
    """Whether the strengths can be told from chance."""
    if error is None:
        return (
            "How large a difference chance makes here is not known; if all are small, the choice is unsure."
        )
    task, role = run.result.task, run.search_role
    size = f"{svg.count(_examples(run) or 0)} {role} {task.examples}"
    figure, twice = (words.difference_text(run.metric, times * error)[1:] for times in (1, 2))
    text = (
        f"Between two figures of {size} each, chance makes a difference whose standard error is "
        f"{'at most' if words.is_accuracy(run.metric) else 'about'} {figure}; since both are of the same "
        f"{task.examples}, it may be less."
    )
    if max((one.mean for one in options), default=0.0) < 2 * error:
        return f"{text} All bars are shorter than twice that ({twice}): the choice may well be chance."
    return f"{text} What is shorter than twice that ({twice}, the shaded band) may be chance."


def _legend(options: Sequence[Strength], error: float | None) -> list[tuple[str, str, str]]:
    entries = [("square", "head", "kept"), ("square", "box", "not kept")]
    if any(len(one.drops) > 1 for one in options):
        entries.append(("line", "front", "least to greatest"))
    return entries + ([] if error is None else [("band", "spread", "may be chance")])


def draw(run: Run, name: str, options: Sequence[Strength], error: float | None, narrow: bool = False) -> str:
    """The bars of one choice as SVG, the strongest on top."""
    metric, scale = run.metric, 100 if run.metric.unit == "%" else 1
    values = [0.0, *(drop for one in options for drop in one.drops)]
    low, high = min(values), max(values)
    room = 0.03 * (high - low) or 0.01
    left = 14 if narrow else min(24 + 7.2 * max(len(one.option) for one in options), 230)
    row, column = 46 if narrow else 32, 30 + 6.6 * max(len(_value(run, one)) for one in options)
    frame = svg.Frame(
        *(400 if narrow else 960, row * len(options) + 62),
        x_range=(low - room if low < 0 else 0, high + room),
        y_range=(0, 1),
        left=left,
        right=10 if narrow else column + 90,
        top=6,
        bottom=56,
    )
    out = []
    if error is not None:
        ends = [max(-2 * error, frame.x_range[0]), min(2 * error, frame.x_range[1])]
        start, stop = map(frame.x, ends)
        out.append(svg.rect(start, frame.top, stop - start, frame.y1 - frame.top, "spread"))
    ticks = svg.ticks(scale * frame.x_range[0], scale * frame.x_range[1], 4 if narrow else 7)
    for value, label in zip(ticks, svg.short_labels(ticks), strict=True):
        x = svg.num(frame.x(value / scale))
        out.append(f'<path class="{"grid" if value else "axis"}" d="M{x} {frame.top}V{svg.num(frame.y1)}"/>')
        out.append(svg.text(frame.x(value / scale), frame.y1 + 18, label.replace("-", "−"), "tick", "middle"))
    what = words.metric_name(metric, run.search_role)
    axis = f"{_change(run)[:-1]} of the {what} without the option{_unit(run)}"
    out.append(svg.text(frame.x1, frame.height - 16, axis, "name", "end"))
    for number, one in enumerate(options):
        out += _bar(run, frame, one, frame.top + row * number, narrow)
    about = "; ".join(f"{words.plain(one.option)}: {_said(run, one)}" for one in options)
    title = f"The strength of each option of {words.plain(name)}"
    size = (frame.width, frame.height)
    return svg.figure(f"strength-{svg.identifier(name)}", size, title, about, "".join(out), narrow)


def _bar(run: Run, frame: svg.Frame, one: Strength, y: float, narrow: bool) -> list[str]:
    """The name of an option, its bar with the spread below, its mean, and whether it was kept."""
    label, value = words.plain(one.option), _value(run, one)
    most = 28 if narrow else 29
    label = label if len(label) <= most else f"{label[: most - 1]}…"
    bar_y = y + 22 if narrow else y + 7
    start, stop = sorted((frame.x(0), frame.x(one.mean)))
    kind = "head" if one.kept else "box"
    out = [svg.rect(start, bar_y, max(stop - start, 0.8), 13, kind, 2)]
    if len(one.drops) > 1:
        least, most_x, at = frame.x(min(one.drops)), frame.x(max(one.drops)), bar_y + 18
        for points in ([(least, at), (most_x, at)], *([(x, at - 3), (x, at + 3)] for x in (least, most_x))):
            out.append(svg.line(points, "front"))
    if narrow:
        out.append(svg.text(0, y + 15, f"{label} {_kept(one)}".rstrip(), "value"))
        out.append(svg.text(frame.x1, y + 15, value, "value", "end"))
    else:
        out.append(svg.text(frame.left - 12, y + 18, label, "value", "end"))
        out.append(svg.text(frame.width - 90, y + 18, value, "value", "end"))
        out += [svg.text(frame.width - 72, y + 18, _kept(one), "value")] if one.kept else []
    height = 44 if narrow else 30
    about = f"{words.plain(one.option)}: {_said(run, one)}"
    return [*out, svg.rect(0, y + 1, frame.width, height, "strip", 0, about)]


def _value(run: Run, one: Strength) -> str:
    return words.difference_text(run.metric, one.mean)


def _kept(one: Strength) -> str:
    """The sign of an option that was kept, and how often it was if it could be several times."""
    if not one.kept:
        return ""
    return f"✓ {one.kept} of {len(one.drops)}" if len(one.drops) > 1 else "✓ kept"


def _said(run: Run, one: Strength) -> str:
    """The figures of an option as text."""
    text = _value(run, one)
    if len(one.drops) > 1:
        ends = (words.difference_text(run.metric, end) for end in (min(one.drops), max(one.drops)))
        text += f" on average, {' to '.join(ends)}"
    often = f" at {one.kept} of {len(one.drops)}" if len(one.drops) > 1 else ""
    return f"{text}, {f'kept{often}' if one.kept else 'not kept'}"


def _made(run: Run) -> str:
    """The decisions or rounds in the order in which they were made, folded away."""
    selection, choices = run.result.selection, run.result.space.choices
    assert selection is not None
    rows, rounds = [], "blocks" in selection.decisions[0]
    for number, one in enumerate(selection.decisions, 1):
        names, drops = [words.plain(option) for option in _options(one, choices)], one["drops"]
        if rounds:
            names = [f"{name} ({place + 1})" for name, (place, _) in zip(names, one["blocks"], strict=True)]
            out = [f"{words.plain(words.show(option))} ({place + 1})" for place, option in one["removed"]]
            cells = [f"{number}", ", ".join(out)]
        else:
            place = one.get("position")
            label = words.plain(one["name"]) + ("" if place is None else f" {place + 1}")
            cells = [label, words.plain(words.show(one["kept"]))]
        order = sorted(range(len(drops)), key=lambda i: -drops[i])
        # Without the unit, which the head of the table has.
        figures = [words.difference_text(run.metric, drop).split()[0] for drop in drops]
        falls = ", ".join(f"{names[i]} {figures[i]}" for i in order)
        rows.append([svg.esc(cell) for cell in (*cells, falls)])
    what = f"{_change(run)[:-1]} without the option{_unit(run)}"
    if not rounds:
        return details("The decisions, in the order made", plain_table(("decision", "kept", what), rows))
    told = note("The number behind an option is its position. What was taken out did not come back.")
    head = ("round", "taken out", what)
    return details("The rounds, in the order made", told + plain_table(head, rows))

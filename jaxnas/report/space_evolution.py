"""How a search space moved: the options of each choice from space to space, and the errors of their samples.

S3 (arXiv 2111.14725) moves the options of a choice down the line through their E-T errors, and compares
spaces by the distribution of the errors of sampled architectures; see `jaxnas.search.evolve_space`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxnas.report import svg, words
from jaxnas.report.document import both, details, note, plain_table, say, section
from jaxnas.report.lines import Axis, Line, around, plot
from jaxnas.report.read import Run
from jaxnas.report.result import SampledSpaceOf
from jaxnas.search import Shift

# The marks of the spaces, in turn: they are told apart by shape as well as by colour.
SHAPES = ("circle", "diamond", "square", "up")
ROW = 36  # px; the height of the options of one space
POINTS = 100  # of the line of a distribution


@dataclasses.dataclass(frozen=True)
class Row:
    """The options of one choice in one space.

    Attributes:
      number: of the space.
      space: its name.
      options: of the choice there.
      shift: from there to the next space; None of the last one, or where the choice could not move.
    """

    number: int
    space: str
    options: tuple[float, ...]
    shift: Shift | None


def rows_of(spaces: Sequence[SampledSpaceOf]) -> dict[str, list[Row]]:
    """The options of each choice that could move somewhere, space by space."""
    names = dict.fromkeys(shift.name for one in spaces for shift in one.shifts)
    found: dict[str, list[Row]] = {}
    for name in names:
        shifts = [next((shift for shift in one.shifts if shift.name == name), None) for one in spaces]
        options = next(shift.old for shift in shifts if shift is not None)
        rows = found.setdefault(name, [])
        for number, (one, shift) in enumerate(zip(spaces, shifts, strict=True)):
            options = options if shift is None else shift.old
            rows.append(Row(number, one.name, options, shift))
            options = options if shift is None else shift.new
    return found


def panel(run: Run) -> str:
    """The section of the evolution of the space; "" where there was none."""
    spaces = run.result.spaces
    if not spaces:
        return ""
    choices = rows_of(spaces)
    return section(
        "How the search space moved",
        say(svg.esc(_about(run, spaces))),
        svg.legend([(_shape(i), _kind(i), _label(run, one)) for i, one in enumerate(spaces)]),
        both(draw_shifts, run, choices) if choices else "",
        both(draw_errors, run) if any(len(one.errors) > 1 for one in spaces) else "",
        note(svg.esc(_compared(run, spaces))),
        _table(run, choices),
    )


def _about(run: Run, spaces: Sequence[SampledSpaceOf]) -> str:
    """How to read the drawings."""
    names = words.listed([one.name for one in spaces])
    several = f"the spaces {names} one after another" if len(spaces) > 1 else f"the space {names}"
    return (
        f"Architectures of {several} were measured with the weights of a supernet of that space. A row shows "
        "the options of a choice in one space. The figure beside it is the slope of the line through their "
        "errors: how much the error rises over one step of the options, with its standard error. Where it is "
        "more than twice that, or beyond the threshold that was set, the options move down the slope."
    )


def _compared(run: Run, spaces: Sequence[SampledSpaceOf]) -> str:
    """What the lines of the distributions mean, and the E-T errors of the first and the last space."""
    text = (
        f"A line shows which share of the sampled architectures has at most some {_error(run)}: of two "
        "spaces the one whose line is further to the upper left is better. The E-T error is half the mean "
        "error of all of them and half that of the best."
    )
    first, last = spaces[0], spaces[-1]
    if len(spaces) > 1:
        change = words.difference_text(run.metric, last.et_error - first.et_error)
        text += f" From {first.name} to {last.name} it changes by {change}."
    return text


def _error(run: Run) -> str:
    """What the errors are."""
    metric, role = run.metric, run.search_role
    return words.metric_name(metric, role) if metric.direction == "min" else f"{role} error"


def _label(run: Run, one: SampledSpaceOf) -> str:
    error = words.value_text(run.metric, one.et_error)
    return f"{one.name}: E-T error {error}, {svg.count(len(one.errors))} architectures"


def _kind(number: int) -> str:
    return f"lane{number % 4}"


def _shape(number: int) -> str:
    return SHAPES[number % 4]


# ---- The shifts.


def draw_shifts(run: Run, choices: dict[str, list[Row]], narrow: bool = False) -> str:
    """The options of each choice, a row for each space, on an axis of values for each choice."""
    width, left, right = (400, 40, 250) if narrow else (960, 220, 600)
    unit = "points" if run.metric.unit == "%" else words.unit_text(run.metric).strip()
    head = ("rise" if narrow else "rise of the error over one step") + (f" ({unit})" if unit else "")
    beside = right + (14 if narrow else 34)  # where the slopes stand
    out = [svg.text(width if narrow else beside, 14, head, "name", "end" if narrow else "start")]
    about, y = [], 10.0 if narrow else 20.0
    for name, rows in choices.items():
        values = [option for row in rows for option in row.options]
        height = ROW * len(rows)
        top = y + (24 if narrow else 0)
        frame = svg.Frame(
            width, top + height, (min(values), max(values)), (0, 1), left, width - right, top, 0
        )
        title = words.plain(name)
        title = title if len(title) <= 24 else f"{title[:23]}…"
        out.append(svg.text(0, top - 6 if narrow else top + 24, title, "label"))
        out += _bands(frame, rows)
        for row in rows:
            out += _row(run, frame, row, beside, narrow)
        about.append(f"{words.plain(name)}: " + ", then ".join(words.show(row.options) for row in rows))
        y = top + height + 14
        out.append(f'<path class="grid" d="M0 {svg.num(y - 6)}H{svg.num(width)}"/>')
    title = "The options of each choice from space to space"
    return svg.figure("shifts", (width, y), title, "; ".join(about), "".join(out), narrow)


def _row(run: Run, frame: svg.Frame, row: Row, beside: float, narrow: bool) -> list[str]:
    """The options of one space: marks with their values above, and what the errors say at the right."""
    y, options = frame.top + ROW * row.number + 24, sorted(row.options)
    out = [svg.text(frame.left - 20, y + 4, row.space, "note", "end")]
    places = [frame.x(option) for option in options]
    if len(options) > 1:
        out.append(f'<path class="ghost" d="M{svg.num(places[0])} {svg.num(y)}H{svg.num(places[-1])}"/>')
    labels = [words.show(option) for option in options]
    room = 7.5 * max(map(len, labels)) + 4
    shown, last = [], None
    for i, x in enumerate(places):  # the values that fit beside each other, and always the last one
        if last is None or (x - last >= room and (i == len(places) - 1 or places[-1] - x >= room)):
            shown.append(i)
            last = x
    shown += [] if len(places) - 1 in shown else [len(places) - 1]
    for i, x in enumerate(places):
        title = f"{labels[i]} in {row.space}"
        out.append(svg.mark(_shape(row.number), x, y, 4.5, _kind(row.number), title))
        out += [svg.text(x, y - 9, labels[i], "number", "middle")] if i in shown else []
    if row.shift is not None:
        out.append(svg.text(beside, y + 4, _moved(run, row.shift, short=narrow), "value"))
    return out


def _bands(frame: svg.Frame, rows: Sequence[Row]) -> list[str]:
    """From the ends of the options of each space to those in the next one."""
    out = []
    for row, following in zip(rows, rows[1:], strict=False):
        y = frame.top + ROW * row.number + 24
        ends = [(frame.x(min(one.options)), frame.x(max(one.options))) for one in (row, following)]
        upper = [(ends[0][0], y), (ends[0][1], y)]
        lower = [(ends[1][0], y + ROW), (ends[1][1], y + ROW)]
        out.append(svg.area(upper, lower, "spread"))
    return out


def _moved(run: Run, shift: Shift, short: bool = False) -> str:
    """The slope over one step with its standard error, and where the options went."""
    where = "stays" if not shift.steps else "up" if shift.steps > 0 else "down"
    far = f" by {words.show(abs(shift.steps) * shift.step)}" if shift.steps and not short else ""
    return f"{_slope(run, shift, unit=False)}: {where}{far}"


def _slope(run: Run, shift: Shift, unit: bool = True) -> str:
    """How much the error rises over one step: "−0.52 ± 0.04 points"."""
    rise, *name = words.difference_text(run.metric, shift.slope * shift.step).split(maxsplit=1)
    spread = words.difference_text(run.metric, shift.standard_error * shift.step).split()[0]
    return " ".join([rise.lstrip("±"), "±", spread.lstrip("+±"), *(name if unit else ())])


def _table(run: Run, choices: dict[str, list[Row]]) -> str:
    """All figures of all shifts, folded away."""
    cells = [
        (
            words.plain(name),
            row.space,
            words.show(row.shift.old),
            words.show(row.shift.new),
            f"{_slope(run, row.shift)} over {words.show(row.shift.step)}",
            f"{row.shift.r_squared:.2f}",
        )
        for name, rows in choices.items()
        for row in rows
        if row.shift is not None
    ]
    if not cells:
        return ""
    head = ("choice", "space", "options", "in the next space", "rise of the error", "R²")
    told = note(
        "R² is the part of the differences between the options that the line explains. Of a choice that is "
        "repeated, the rise is that of one position on average."
    )
    rows = [[svg.esc(cell) for cell in one] for one in cells]
    return details("All shifts in figures", told + plain_table(head, rows))


# ---- The distributions.


def draw_errors(run: Run, narrow: bool = False) -> str:
    """The share of the architectures of each space that have at most some error."""
    texts = words.axis_texts(run.metric)
    lines = [
        Line(one.name, _kind(number), _distribution(one.errors), _shape(number))
        for number, one in enumerate(run.result.spaces)
    ]
    ends = [error for one in run.result.spaces for error in (min(one.errors), max(one.errors))]
    return plot(
        "errors",
        "The errors of the sampled architectures",
        Axis(_error(run), around(ends, 0.02), texts),
        Axis("share of the architectures", (0, 1), svg.percent_labels),
        lines,
        size=(400, 280) if narrow else (960, 330),
        marks=8,
        narrow=narrow,
    )


def _distribution(errors: Sequence[float]) -> list[svg.Point]:
    """The empirical distribution function at evenly spaced shares: (error, share of those up to it)."""
    ordered, count = sorted(errors), len(errors)
    most = min(POINTS, count)
    places = [round(i * (count - 1) / max(most - 1, 1)) for i in range(most)]
    return [(ordered[place], (place + 1) / count) for place in places]

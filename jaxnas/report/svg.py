"""Small pieces of SVG: a frame with two axes, ticks, lines, bands and marks, and number formats.

Nothing here sets a colour: marks and lines carry class names, and the page's style sheet gives them
colours for light and dark. All output is a function of the arguments, so that equal runs give equal
bytes.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

NBSP = "\u00a0"
# Turns the ticks of an axis into their labels.
Labels = Callable[[Sequence[float]], list[str]]
Point = tuple[float, float]


def esc(value: object) -> str:
    """Text of ``value``, safe inside HTML and SVG elements and attributes."""
    return html.escape(str(value), quote=True)


def num(value: float) -> str:
    """A coordinate with at most one decimal, as short as it can be written."""
    text = f"{value:.1f}"
    text = text[:-2] if text.endswith(".0") else text
    return "0" if text == "-0" else text


def identifier(name: str) -> str:
    """A name with nothing in it but letters, digits and dashes."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name)


def is_number(value: Any) -> TypeGuard[float]:
    """True for a finite int or float, not for a bool, None or text."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value)


def percent(value: object, digits: int = 1) -> str:
    """A fraction as per cent, such as "98.2 %"; a dash where there is no finite number."""
    return f"{100 * value:.{digits}f}{NBSP}%" if is_number(value) else "–"


def count(value: object) -> str:
    """A number with thousands separated by commas; a dash where there is no number."""
    if not is_number(value):
        return "–"
    return f"{value:,}" if isinstance(value, int) or value % 1 else f"{int(value):,}"


def short(value: float, digits: int = 3) -> str:
    """A number with a unit prefix and at most ``digits` significant digits: 41.2 k, 5.9 M."""
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor * (1 - 0.5 * 10.0**-digits):
            return f"{_significant(value / factor, digits)}{NBSP}{unit}"
    return _significant(value, digits)


def duration(seconds: float) -> str:
    """A time in seconds, or in milliseconds below one: 4.13 s, 0.562 ms."""
    if seconds < 0.9995:
        return f"{_significant(1e3 * seconds, 3)}{NBSP}ms"
    return f"{_significant(seconds, 3)}{NBSP}s"


def _significant(value: float, digits: int) -> str:
    text = f"{value:.{digits}g}"
    return f"{float(text):g}" if "e" in text else text


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round positions (steps of 1, 2, 2.5 or 5) inside [low, high], at most about ``most``."""
    if not high > low:
        return [low]
    rough = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * unit for unit in (1, 2, 2.5, 5, 10) if power * unit >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(step * i, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round positions for a logarithmic axis: 1, 2, 5 per decade, or decades alone if too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for units in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        marks = [unit * 10.0**power for power in powers for unit in units]
        marks = [mark for mark in marks if low * 0.999 <= mark <= high * 1.001]
        if len(marks) <= most:
            return marks
    return marks[:: -(-len(marks) // most)]


@dataclasses.dataclass(frozen=True)
class Frame:
    """The rectangle of a plot (px) and the ranges of its axes; maps data to pixels."""

    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    left: float = 52
    right: float = 14
    top: float = 14
    bottom: float = 44
    x_log: bool = False

    @property
    def x1(self) -> float:
        """Pixel of the right edge of the plot."""
        return self.width - self.right

    @property
    def y1(self) -> float:
        """Pixel of the bottom edge of the plot."""
        return self.height - self.bottom

    def x(self, value: float) -> float:
        """Pixel of a value of the x axis."""
        low, high = self.x_range
        if self.x_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.left + (self.x1 - self.left) * (value - low) / ((high - low) or 1)

    def y(self, value: float) -> float:
        """Pixel of a value of the y axis, kept inside the plot."""
        low, high = self.y_range
        part = min(1.0, max(0.0, (value - low) / ((high - low) or 1)))
        return self.y1 - (self.y1 - self.top) * part


def short_labels(values: Sequence[float]) -> list[str]:
    """Numbers with unit prefixes, with as many digits as it takes to tell them apart."""
    texts = []
    for digits in range(3, 10):
        texts = [short(value, digits) for value in values]
        if len(set(texts)) == len(set(values)):
            break
    return texts


def percent_labels(values: Sequence[float]) -> list[str]:
    """Fractions as per cent, all with the digits that the finest of them needs."""
    digits = 0
    while digits < 6 and any(abs(round(100 * v, digits) - 100 * v) > 1e-7 for v in values):
        digits += 1
    return [percent(value, digits) for value in values]


def axes(
    frame: Frame,
    x_label: str,
    y_label: str,
    x_texts: Labels = short_labels,
    y_texts: Labels = short_labels,
) -> str:
    """Grid, tick labels and axis names; ``x_texts` and ``y_texts` turn ticks into labels."""
    xs = (log_ticks if frame.x_log else ticks)(*frame.x_range, max(4, int((frame.x1 - frame.left) / 115)))
    ys = ticks(*frame.y_range, max(3, int((frame.y1 - frame.top) / 40)))
    out = []
    for value, label in zip(ys, y_texts(ys), strict=True):
        y = num(frame.y(value))
        out.append(f'<path class="grid" d="M{num(frame.left)} {y}H{num(frame.x1)}"/>')
        out.append(text(frame.left - 8, frame.y(value) + 4, label, "tick", "end"))
    for value, label in zip(xs, x_texts(xs), strict=True):
        x = frame.x(value)
        out.append(f'<path class="axis" d="M{num(x)} {num(frame.y1)}v5"/>')
        out.append(text(x, frame.y1 + 19, label, "tick", "middle"))
    out.append(f'<path class="axis" d="M{num(frame.left)} {num(frame.y1)}H{num(frame.x1)}"/>')
    out.append(text(frame.x1, frame.height - 5, x_label, "name", "end"))
    out.append(text(0, frame.top - 10, y_label, "name", "start"))
    return "".join(out)


def text(x: float, y: float, value: object, kind: str, anchor: str = "start") -> str:
    """One line of text of class ``kind` at a pixel position."""
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{kind}" x="{num(x)}" y="{num(y)}"{where}>{esc(value)}</text>'


def line(points: Sequence[Point], kind: str, steps: bool = False) -> str:
    """A line through pixel positions; with ``steps``, horizontal first, then vertical."""
    if not points:
        return ""
    d = [f"M{num(points[0][0])} {num(points[0][1])}"]
    for x, y in points[1:]:
        d.append(f"H{num(x)}V{num(y)}" if steps else f"L{num(x)} {num(y)}")
    return f'<path class="line {kind}" d="{"".join(d)}"/>'


def area(upper: Sequence[Point], lower: Sequence[Point], kind: str) -> str:
    """The area between two lines of pixel positions."""
    corners = [*upper, *reversed(lower)]
    return f'<path class="{kind}" d="M{"L".join(f"{num(x)} {num(y)}" for x, y in corners)}Z"/>'


def shape(name: str, x: float, y: float, r: float) -> str:
    """Path data of a mark of radius ``r``: circle, diamond, up, down, square or star."""
    if name == "circle":
        arc = f"a{r:g} {r:g} 0 1 0 "
        return f"M{num(x - r)} {num(y)}{arc}{2 * r:g} 0{arc}{-2 * r:g} 0Z"
    if name == "star":
        angles = [(math.pi * i / 5, r if i % 2 == 0 else 0.42 * r) for i in range(10)]
        corners = [(x + size * math.sin(a), y - size * math.cos(a)) for a, size in angles]
    else:
        unit = {
            "diamond": [(0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)],
            "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
            "up": [(0, -1.2), (1.15, 0.85), (-1.15, 0.85)],
            "down": [(0, 1.2), (1.15, -0.85), (-1.15, -0.85)],
        }[name]
        corners = [(x + r * dx, y + r * dy) for dx, dy in unit]
    return "M" + "L".join(f"{num(cx)} {num(cy)}" for cx, cy in corners) + "Z"


def mark(name: str, x: float, y: float, r: float, kind: str, title: str = "") -> str:
    """One mark; its title is what a pointer over it shows."""
    inside = f"<title>{esc(title)}</title>" if title else ""
    hit = " hit" if title else ""
    return f'<path class="mark {kind}{hit}" d="{shape(name, x, y, r)}">{inside}</path>'


def figure(
    name: str, size: tuple[float, float], title: str, about: str, body: str, narrow: bool | None = None
) -> str:
    """The <svg> element of a figure: `name` is unique on the page, `about` says what is to be seen.

    `narrow` says whether it is the form for narrow screens or for wide ones; None is for all.
    """
    kind = "" if narrow is None else "narrow" if narrow else "wide"
    name = f"{name}-{kind}" if kind else name
    return (
        f'<svg class="{kind}" viewBox="0 0 {num(size[0])} {num(size[1])}" role="img" '
        f'aria-labelledby="{name}-t {name}-d" xmlns="http://www.w3.org/2000/svg">'
        f'<title id="{name}-t">{esc(title)}</title><desc id="{name}-d">{esc(about)}</desc>'
        f"{body}</svg>"
    )


def rect(
    x: float, y: float, width: float, height: float, kind: str, radius: float = 0, about: str = ""
) -> str:
    """A rectangle of class `kind`; `about` is what a pointer over it shows."""
    title = f"><title>{esc(about)}</title></rect>" if about else "/>"
    return (
        f'<rect class="{kind}{" hit" if about else ""}" x="{num(x)}" y="{num(y)}" width="{num(width)}" '
        f'height="{num(height)}" rx="{radius:g}"{title}'
    )


def strips(frame: Frame, positions: Sequence[float], title: Callable[[float], str]) -> str:
    """Invisible columns around x values of a plot; a pointer over one shows `title(value)`."""
    out, edge = [], frame.left
    for i, value in enumerate(positions):
        last = i + 1 == len(positions)
        right = frame.x1 if last else frame.x((value + positions[i + 1]) / 2)
        out.append(rect(edge, frame.top, right - edge, frame.y1 - frame.top, "strip", 0, title(value)))
        edge = right
    return "".join(out)


def legend(entries: Sequence[tuple[str, str, str]]) -> str:
    """An HTML list of (shape or "line" or "band", class, text) that wraps on narrow screens."""
    keys = []
    for name, kind, label in entries:
        if name == "line":
            sign = f'<path class="line {kind}" d="M1 8H25"/>'
        elif name == "band":
            sign = f'<path class="{kind}" d="M1 2H25V14H1Z"/>'
        else:
            r = 8 if name == "star" else 5
            sign = f'<path class="mark {kind}" d="{shape(name, 13, 8, r)}"/>'
        keys.append(f'<li><svg viewBox="0 0 26 16" aria-hidden="true">{sign}</svg>{esc(label)}</li>')
    return f'<ul class="legend">{"".join(keys)}</ul>'

"""A plot of lines over one axis: the best so far, a metric by training step, regret by evaluations."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxnas.report import svg

# A curve has at most this many points; more would be closer together than pixels.
MOST_POINTS = 240
MOST_STRIPS = 120


class Line(NamedTuple):
    """A line: its name, its class, its (x, y) points, the mark on it, and whether it goes in steps."""

    label: str
    kind: str
    points: Sequence[svg.Point]
    mark: str = ""
    steps: bool = False


class Axis(NamedTuple):
    """An axis: its name, its range, and what turns its ticks into labels."""

    name: str
    range: tuple[float, float]
    texts: svg.Labels = svg.short_labels
    log: bool = False


# A class, the upper and the lower points.
Band = tuple[str, Sequence[svg.Point], Sequence[svg.Point]]


def thin(points: Sequence[svg.Point], most: int = MOST_POINTS) -> list[svg.Point]:
    """At most `most` points: means over runs of neighbours of equal length."""
    size = max(1, -(-len(points) // most))
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def around(values: Sequence[float], pad: float, most: float | None = None) -> tuple[float, float]:
    """The range of some values with a margin, which crosses neither 0 nor `most` where they do not."""
    low, high = min(values), max(values)
    margin = pad * (high - low) or 0.05 * abs(high) or 1
    top = high + margin if most is None or high > most else min(most, high + margin)
    return max(0, low - margin) if low >= 0 else low - margin, top


def plot(
    name: str,
    title: str,
    x: Axis,
    y: Axis,
    lines: Sequence[Line],
    bands: Sequence[Band] = (),
    size: tuple[float, float] = (960, 380),
    marks: int = 16,
    value_text: Callable[[float], str] | None = None,
    narrow: bool | None = None,
) -> str:
    """The plot as SVG, with at most `marks` marks on a line, the last of them at its end.

    `value_text` writes a y value for a pointer that is over the plot; without it no text is shown.
    """
    frame = svg.Frame(*size, x.range, y.range, left=52, top=32, x_log=x.log)

    def pixels(points: Sequence[svg.Point]) -> list[svg.Point]:
        return [(frame.x(a), frame.y(b)) for a, b in points]

    body = [svg.axes(frame, x.name, y.name, x.texts, y.texts)]
    body += [svg.area(pixels(upper), pixels(lower), kind) for kind, upper, lower in bands]
    for line in lines:
        body.append(svg.line(pixels(_corners(line)), line.kind, line.steps))
    for line in lines:
        # Marks on every point of a dense line would hide it.
        every = max(1, -(-len(line.points) // marks))
        places = pixels(line.points[::-every][::-1]) if line.mark else []
        body += [svg.mark(line.mark, *place, 6 if marks == 1 else 4, line.kind) for place in places]
    if value_text is not None and not narrow:
        at = sorted({a for line in lines if line.mark for a, _ in line.points})
        body.append(svg.strips(frame, at[:: -(-len(at) // MOST_STRIPS) or 1], _reader(x, lines, value_text)))
    ends = [
        f"{line.label} ends at {(value_text or str)(line.points[-1][1])}" for line in lines if line.points
    ]
    return svg.figure(name, size, title, "; ".join(ends), "".join(body), narrow)


def _corners(line: Line) -> list[svg.Point]:
    """A line in steps without the points inside a flat run: it looks the same and the page is smaller."""
    points, last = line.points, len(line.points) - 1
    inside = [line.steps and 0 < i < last and y == points[i - 1][1] for i, (_, y) in enumerate(points)]
    return [point for point, flat in zip(points, inside, strict=True) if not flat]


def _reader(x: Axis, lines: Sequence[Line], value_text: Callable[[float], str]) -> Callable[[float], str]:
    """What a pointer over an x value shows: each marked line's value there, or the last one before."""

    def read(place: float) -> str:
        texts = [f"{x.name} {svg.count(place)}"]
        for line in lines:
            at = bisect.bisect_right(line.points, place, key=lambda point: point[0])
            if line.mark and at:
                texts.append(f"{line.label}: {value_text(line.points[at - 1][1])}")
        return "\n".join(texts)

    return read

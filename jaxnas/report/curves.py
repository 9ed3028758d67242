"""The training curves of a run as SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxnas.report import svg
from jaxnas.report.figures import strips
from jaxnas.report.read import Run

# (suffix of the metric, name, mark, class) of the subnets that are watched on the search split.
WATCHED = (
    ("largest_accuracy", "largest subnet", "up", "largest"),
    ("random_accuracy_mean", "random subnets (mean)", "circle", "sampled"),
    ("smallest_accuracy", "smallest subnet", "down", "smallest"),
)
# A curve has at most this many points; more would be closer together than pixels.
MOST_POINTS = 240


def thin(points: Sequence[svg.Point], most: int = MOST_POINTS) -> list[svg.Point]:
    """At most ``most`` points: means over runs of neighbours of equal length."""
    size = max(1, -(-len(points) // most))
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def series(lines: Sequence[dict[str, Any]], key: str) -> list[svg.Point]:
    """(step, value) of the lines that have a finite number under ``key``."""
    return [(line["step"], line[key]) for line in lines if svg.is_number(line.get(key))]


def lost(run: Run) -> int:
    """How many training losses are not finite numbers, which no curve can show."""
    return sum("loss" in x and not svg.is_number(x["loss"]) for x in run.metrics)


def accuracy_curve(run: Run, narrow: bool = False) -> str:
    """Training accuracy, and the accuracies of watched subnets on the search split, by step."""
    search = run.of_split("search")
    train = thin(series(run.of_split("train"), "accuracy"))
    watched = [(label, mark, kind, series(search, key)) for key, label, mark, kind in WATCHED]
    low_band = series(search, "random_accuracy_min")
    high_band = series(search, "random_accuracy_max")
    points = [p for *_, line in watched for p in line] + train + low_band + high_band
    if not points:
        return ""
    low, high = min(y for _, y in points), max(y for _, y in points)
    pad = 0.05 * (high - low) or 0.01
    frame = svg.Frame(
        *((400, 320) if narrow else (960, 380)),
        _steps(run),
        (max(0, low - pad), min(1, high + pad)),
        left=46,
        top=32,
    )
    body = [svg.axes(frame, "training step", "accuracy", y_texts=svg.percent_labels)]
    upper, lower = (_pixels(frame, band) for band in (high_band, low_band))
    if len(upper) == len(lower) and len(upper) > 1:
        body.append(svg.area(upper, lower, "spread"))
    body.append(svg.line(_pixels(frame, train), "train"))
    for _, mark, kind, line in watched:
        where = _pixels(frame, line)
        body.append(svg.line(where, kind))
        # Marks on every point of a dense line would hide it.
        every = max(1, -(-len(where) // (8 if narrow else 16)))
        body.extend(svg.mark(mark, x, y, 4, kind) for x, y in where[::-every][::-1])
    if not narrow and search:
        by_step = {line["step"]: line for line in search}
        chosen = list(by_step)[:: -(-len(by_step) // MOST_POINTS)]
        body.append(strips(frame, chosen, lambda step: _read_out(by_step[step])))
    last = "; ".join(f"{label} {svg.percent(line[-1][1])}" for label, *_, line in watched if line)
    return svg.figure(
        "accuracy-narrow" if narrow else "accuracy-wide",
        frame.width,
        frame.height,
        "Accuracy during training",
        f"At the end: {last or 'no evaluation'}",
        "".join(body),
        "narrow" if narrow else "wide",
    )


def small_curve(run: Run, key: str, title: str) -> str:
    """A half-width plot of one training metric by step ("" if there is none)."""
    points = thin(series(run.of_split("train"), key))
    if not points:
        return ""
    low, high = min(y for _, y in points), max(y for _, y in points)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1
    frame = svg.Frame(
        440, 240, _steps(run), (max(0, low - pad) if low >= 0 else low - pad, high + pad), left=50, top=32
    )
    body = svg.axes(frame, "training step", title, y_texts=lambda ys: [f"{y:g}" for y in ys])
    body += svg.line(_pixels(frame, points), "train strong")
    about = f"From {points[0][1]:.4g} to {points[-1][1]:.4g}; highest {high:.4g}"
    return svg.figure(
        f"curve-{key.replace('_', '-')}", frame.width, frame.height, f"{title} during training", about, body
    )


def accuracy_legend(run: Run) -> str:
    """The legend of ``accuracy_curve``, with the last value of each line."""
    entries = []
    for key, label, mark, kind in WATCHED:
        line = series(run.of_split("search"), key)
        if line:
            entries.append((mark, kind, f"{label}: {svg.percent(line[-1][1])}"))
        if line and kind == "sampled":
            entries.append(("band", "spread", "random subnets, worst to best"))
    train = thin(series(run.of_split("train"), "accuracy"))
    if train:
        entries.append(("line", "train", "training batches"))
    return svg.legend(entries)


def _pixels(frame: svg.Frame, points: Sequence[svg.Point]) -> list[svg.Point]:
    return [(frame.x(x), frame.y(y)) for x, y in points]


def _steps(run: Run) -> tuple[float, float]:
    steps = [line["step"] for line in run.metrics]
    return min(0, *steps) if len(steps) > 1 else 0, max([*steps, 1])


def _read_out(line: dict[str, Any]) -> str:
    parts = [f"step {svg.count(line['step'])}"]
    for key, label, *_ in WATCHED:
        if svg.is_number(line.get(key)):
            parts.append(f"{label}: {svg.percent(line[key])}")
    return "\n".join(parts)

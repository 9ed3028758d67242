"""How the weights were trained: the watched networks by step, and small curves of all that was logged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxnas.report import svg, words
from jaxnas.report.document import both, note, say, section
from jaxnas.report.read import Run

# What is logged beside the task's metrics, in the order of the page.
_LOGGED = ("loss", "search_loss", "temperature", "entropy", "confidence", "expected_cost", "learning_rate")
# A curve has at most this many points; more would be closer together than pixels.
MOST_POINTS = 240


def panel(run: Run) -> str:
    """The section of the training curves; "" if nothing was logged."""
    if not run.metrics:
        return ""
    watched, parts = _watched(run), []
    if watched:
        if run.of_split("search"):
            text = (
                "One set of weights serves every network of the space. These are the smallest, the largest "
                "and some random ones, measured on the search data while it was trained."
            )
        else:
            text = "The network was measured on the validation data while it was trained."
        parts += [say(text), _legend(run), both(draw, run)]
    metrics = [metric.name for metric in run.result.task.metrics if not (watched and metric is run.metric)]
    plots = [small_curve(run, key) for key in dict.fromkeys((_LOGGED[0], *metrics, *_LOGGED[1:]))]
    plots = [f"<div>{plot}</div>" for plot in plots if plot]
    parts.append(f'<div class="pair">{"".join(plots)}</div>' if plots else "")
    lost = sum("loss" in line and not svg.is_number(line["loss"]) for line in run.metrics)
    if lost:
        parts.append(note(f"{svg.count(lost)} losses were not finite numbers and are not drawn."))
    return section("Training the network" if not _searched(run) else "Training the supernet", *parts)


def _searched(run: Run) -> bool:
    return bool(run.result.searches or run.result.selection or run.of_split("search"))


def _watched(run: Run) -> list[tuple[str, str, str, list[svg.Point]]]:
    """(label, mark, class, points) of the networks that were measured while the weights were trained."""
    name = run.metric.name
    lines = [
        ("search", f"largest_{name}", "largest subnet", "up", "largest"),
        ("search", f"random_{name}_mean", "random subnets (mean)", "circle", "sampled"),
        ("search", f"smallest_{name}", "smallest subnet", "down", "smallest"),
        ("validation", name, "validation", "circle", "evolution"),
    ]
    made = [(label, mark, kind, series(run.of_split(s), key)) for s, key, label, mark, kind in lines]
    return [line for line in made if line[-1]]


def series(lines: Sequence[dict[str, Any]], key: str) -> list[svg.Point]:
    """(step, value) of the lines that have a finite number under `key`."""
    return [(line["step"], line[key]) for line in lines if svg.is_number(line.get(key))]


def thin(points: Sequence[svg.Point], most: int = MOST_POINTS) -> list[svg.Point]:
    """At most `most` points: means over runs of neighbours of equal length."""
    size = max(1, -(-len(points) // most))
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def _batches(run: Run) -> list[svg.Point]:
    """The metric on the training batches."""
    return thin(series(run.of_split("train"), run.metric.name))


def draw(run: Run, narrow: bool = False) -> str:
    """The metric of the watched networks, and of the training batches, by step."""
    search, name = run.of_split("search"), run.metric.name
    train, watched = _batches(run), _watched(run)
    low_band = series(search, f"random_{name}_min")
    high_band = series(search, f"random_{name}_max")
    values = [y for *_, line in watched for _, y in line] + [y for _, y in (*train, *low_band, *high_band)]
    low, high = min(values), max(values)
    pad = 0.05 * (high - low) or 0.01
    top = min(1, high + pad) if run.metric.unit == "%" and high <= 1 else high + pad
    size = (400, 320) if narrow else (960, 380)
    frame = svg.Frame(
        *size, _steps(run), (max(0, low - pad) if low >= 0 else low - pad, top), left=46, top=32
    )
    label = words.metric_name(run.metric, unit=True)
    body = [svg.axes(frame, "training step", label, y_texts=words.axis_texts(run.metric))]
    upper, lower = (_pixels(frame, band) for band in (high_band, low_band))
    if len(upper) == len(lower) > 1:
        body.append(svg.area(upper, lower, "spread"))
    body.append(svg.line(_pixels(frame, train), "train"))
    for _, mark, kind, line in watched:
        where = _pixels(frame, line)
        body.append(svg.line(where, kind))
        # Marks on every point of a dense line would hide it.
        every = max(1, -(-len(where) // (8 if narrow else 16)))
        body.extend(svg.mark(mark, x, y, 4, kind) for x, y in where[::-every][::-1])
    if not narrow:
        at = {step: [] for *_, line in watched for step, _ in line}
        for one, *_, line in watched:
            for step, value in line:
                at[step].append(f"{one}: {words.value_text(run.metric, value)}")
        steps = sorted(at)[:: -(-len(at) // MOST_POINTS)]
        body.append(svg.strips(frame, steps, lambda step: "\n".join([f"step {svg.count(step)}", *at[step]])))
    last = "; ".join(f"{one} {words.value_text(run.metric, line[-1][1])}" for one, *_, line in watched)
    return svg.figure(
        "watched", size, f"{label} during training", f"At the end: {last}", "".join(body), narrow
    )


def _legend(run: Run) -> str:
    """The legend of `draw`, with the last value of each line."""
    entries = []
    for label, mark, kind, line in _watched(run):
        entries.append((mark, kind, f"{label}: {words.value_text(run.metric, line[-1][1])}"))
        if kind == "sampled":
            entries.append(("band", "spread", "random subnets, worst to best"))
    return svg.legend(entries + ([("line", "train", "training batches")] if _batches(run) else []))


def small_curve(run: Run, key: str) -> str:
    """A half-width plot of one number of the training records by step; "" if there is none."""
    points = thin(series(run.of_split("train"), key))
    if not points:
        return ""
    metric = next((metric for metric in run.result.task.metrics if metric.name == key), None)
    title = words.metric_name(metric, "training", unit=True) if metric else words.plain(key)
    title = "training loss" if key == "loss" and metric is None else title
    low, high = min(y for _, y in points), max(y for _, y in points)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1
    y_range = (max(0, low - pad) if low >= 0 else low - pad, high + pad)
    frame = svg.Frame(440, 240, _steps(run), y_range, left=50, top=32)
    body = svg.axes(
        frame, "training step", title, y_texts=words.axis_texts(metric) if metric else _plain_texts
    )
    body += svg.line(_pixels(frame, points), "train strong")
    about = f"From {points[0][1]:.4g} to {points[-1][1]:.4g}; highest {high:.4g}"
    return svg.figure(
        f"curve-{svg.identifier(key)}", (frame.width, frame.height), f"{title} during training", about, body
    )


def _plain_texts(values: Sequence[float]) -> list[str]:
    small = max(map(abs, values), default=1) < 1000
    return [f"{value:g}" for value in values] if small else svg.short_labels(values)


def _pixels(frame: svg.Frame, points: Sequence[svg.Point]) -> list[svg.Point]:
    return [(frame.x(x), frame.y(y)) for x, y in points]


def _steps(run: Run) -> tuple[float, float]:
    steps = [line["step"] for line in run.metrics]
    return min(0, *steps), max(1, *steps)

"""How the weights were trained: the watched networks by step, and small curves of all that was logged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxnas.report import svg, words
from jaxnas.report.document import both, note, say, section
from jaxnas.report.lines import Axis, Line, around, plot, thin
from jaxnas.report.read import Record, Run
from jaxnas.report.svg import esc

# What is logged beside the task's metrics, in the order of the page.
_LOGGED = ("loss", "search_loss", "temperature", "entropy", "confidence", "expected_cost", "learning_rate")


def panel(run: Run) -> str:
    """The section of the training curves; "" if nothing was logged."""
    watched, parts = _watched(run), []
    if watched:
        text = "The network was measured on the validation data while it was trained."
        if run.of_split("search"):
            text = (
                "One set of weights serves every network of the space. These are the smallest, the largest "
                "and some random ones, measured on the search data while it was trained."
            )
        parts += [say(text), _legend(run, watched), both(draw, run)]
    metrics = [metric.name for metric in run.result.task.metrics if not (watched and metric is run.metric)]
    plots = [small_curve(run, key) for key in dict.fromkeys((_LOGGED[0], *metrics, *_LOGGED[1:]))]
    plots = [f"<div>{plot}</div>" for plot in plots if plot]
    parts.append(f'<div class="pair">{"".join(plots)}</div>' if plots else "")
    lost = sum("loss" in line and not svg.is_number(line["loss"]) for line in run.metrics)
    parts.append(note(f"{svg.count(lost)} losses were not finite numbers and are not drawn.") if lost else "")
    parts += [note(_mended(record)) for record in run.mends]
    if run.result.interrupted:
        parts.append(note(esc(f"The training was {run.result.interrupted}.")))
    shared = run.result.searches or run.result.selection or run.of_split("search")
    return section("Training the supernet" if shared else "Training the network", *parts)


def _mended(record: Record) -> str:
    """A sentence on the settings that a training that diverged went on with."""
    changes = words.listed(
        [f"{name}={pair['now']} instead of {pair['before']}" for name, pair in record["changes"].items()]
    )
    lost = "A step" if record["diverged"] is None else f"Step {record['diverged']}"
    return esc(f"{lost} diverged, and the training went on from step {record['step']} with {changes}.")


def _watched(run: Run) -> list[Line]:
    """The networks that were measured while the weights were trained."""
    name = run.metric.name
    lines = [
        ("search", f"largest_{name}", "largest subnet", "largest", "up"),
        ("search", f"random_{name}_mean", "random subnets (mean)", "sampled", "circle"),
        ("search", f"smallest_{name}", "smallest subnet", "smallest", "down"),
        ("validation", name, "validation", "evolution", "circle"),
    ]
    made = [Line(label, kind, series(run, split, key), mark) for split, key, label, kind, mark in lines]
    return [line for line in made if line.points]


def series(run: Run, split: str, key: str) -> list[svg.Point]:
    """(step, value) of the records of a split that have a finite number under `key`."""
    return [(line["step"], line[key]) for line in run.of_split(split) if svg.is_number(line.get(key))]


def _batches(run: Run) -> Line:
    """The metric on the training batches."""
    return Line("training batches", "train", thin(series(run, "train", run.metric.name)))


def draw(run: Run, narrow: bool = False) -> str:
    """The metric of the watched networks, and of the training batches, by step."""
    metric, lines = run.metric, [_batches(run), *_watched(run)]
    high, low = (series(run, "search", f"random_{metric.name}_{end}") for end in ("max", "min"))
    values = [value for points in (*(line.points for line in lines), high, low) for _, value in points]
    y_range = around(values, 0.05, 1 if metric.unit == "%" else None)
    label = words.metric_name(metric, unit=True)
    return plot(
        "watched",
        f"{label} during training",
        _steps(run),
        Axis(label, y_range, words.axis_texts(metric)),
        lines,
        bands=[("spread", high, low)] if len(high) == len(low) > 1 else [],
        size=(400, 320) if narrow else (960, 380),
        marks=8 if narrow else 16,
        value_text=lambda value: words.value_text(metric, value),
        narrow=narrow,
    )


def _legend(run: Run, watched: Sequence[Line]) -> str:
    """The legend of `draw`, with the last value of each line."""
    entries = []
    for line in watched:
        value = words.value_text(run.metric, line.points[-1][1])
        entries.append((line.mark, line.kind, f"{line.label}: {value}"))
        entries += [("band", "spread", "random subnets, worst to best")] if line.kind == "sampled" else []
    return svg.legend([*entries, *([("line", "train", "training batches")] if _batches(run).points else [])])


def small_curve(run: Run, key: str) -> str:
    """A half-width plot of one number of the training records by step; "" if there is none."""
    points = thin(series(run, "train", key))
    if not points:
        return ""
    metric = next((metric for metric in run.result.task.metrics if metric.name == key), None)
    title, texts = "training loss" if key == "loss" else words.plain(key), _small_texts
    if metric is not None:
        title, texts = words.metric_name(metric, "training", unit=True), words.axis_texts(metric)
    y = Axis(title, around([value for _, value in points], 0.06), texts)
    name, lines = f"curve-{svg.identifier(key)}", [Line(title, "train strong", points)]
    return plot(name, f"{title} during training", _steps(run), y, lines, size=(440, 240))


def _small_texts(values: Sequence[float]) -> list[str]:
    small = max(map(abs, values), default=1) < 1000
    return [f"{value:g}" for value in values] if small else svg.short_labels(values)


def _steps(run: Run) -> Axis:
    steps: list[Any] = [line["step"] for line in run.metrics]
    return Axis("training step", (min(0, *steps), max(1, *steps)))

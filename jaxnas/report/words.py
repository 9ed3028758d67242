"""Names and numbers as a page shows them: costs, metrics with their units, and architectures in a line."""

from __future__ import annotations

import decimal
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from jaxnas.report.result import MetricOf, Network, TaskOf

LINEAR = "linear model (logistic regression)"
NBSP = "\u00a0"
_COSTS = {"params": "parameters", "macs": "MACs"}
# Options that do nothing, by the usual names.
IDLE = frozenset({"identity", "skip", "none", "zero", "zeroize"})


def is_number(value: Any) -> TypeGuard[float]:
    """True for a finite int or float, not for a bool, None or text."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def percent(value: object, digits: int = 1) -> str:
    """A fraction as "98.2 %"; a dash where there is no finite number."""
    return f"{100 * value:.{digits}f}{NBSP}%" if is_number(value) else "–"


def count(value: object) -> str:
    """A number with thousands separated by commas; a dash where there is no number."""
    if not is_number(value):
        return "–"
    return f"{value:,}" if isinstance(value, int) or value % 1 else f"{int(value):,}"


def short(value: float) -> str:
    """A number with a unit prefix and at most three significant digits: 41.2 k, 5.9 M."""
    for factor, unit in (
        (1e12, f"{NBSP}T"),
        (1e9, f"{NBSP}G"),
        (1e6, f"{NBSP}M"),
        (1e3, f"{NBSP}k"),
        (1, ""),
    ):
        if abs(value) >= 0.9995 * factor or factor == 1:
            return f"{float(f'{value / factor:.3g}'):g}{unit}"
    raise AssertionError(value)


def duration(seconds: float) -> str:
    """A time as "4.13 s", or below one second as "562 ms"."""
    return f"{short(1e3 * seconds)}{NBSP}ms" if seconds < 0.9995 else f"{short(seconds)}{NBSP}s"


def cost_name(name: str) -> str:
    """The name of a cost on the page: "parameters" for "params", "latency (ms)" for "latency_ms"."""
    return _COSTS.get(name) or (f"{plain(name[:-3])} (ms)" if name.endswith("_ms") else plain(name))


def cost_amount(name: str, value: object) -> str:
    """A cost in a sentence: "41,226 parameters", "1.2 ms latency"."""
    return f"{cost_text(value)} " + (f"ms {plain(name[:-3])}" if name.endswith("_ms") else cost_name(name))


def cost_text(value: object) -> str:
    """A cost: whole numbers below a million in full, others with a unit prefix."""
    if not is_number(value):
        return "–"
    return count(value) if float(value).is_integer() and abs(value) < 1e6 else short(value)


def strategy_name(name: str) -> str:
    """The name of a strategy of the history: "random search" for "random"."""
    return "random search" if name == "random" else plain(name)


def plain(name: object) -> str:
    """A name of the program as words: "feed_forward" becomes "feed forward"."""
    return str(name).replace("_", " ")


def value_text(metric: MetricOf, value: object, digits: int = 2) -> str:
    """A value of a metric without its name: "97.81 %" or "4.812"; a dash where there is none."""
    if metric.unit == "%":
        return percent(value, digits)
    if not is_number(value):
        return "–"
    text = f"{value:#.4g}"
    return text.rstrip(".") if "e" not in text else f"{value:.3e}"


def unit_text(metric: MetricOf) -> str:
    """The unit behind a value: " nats per token", or nothing where the name says it."""
    named = metric.unit in ("", "%", metric.name, plain(metric.name))
    return "" if named else f"{NBSP}{metric.unit}"


def says_all(metric: MetricOf) -> bool:
    """Whether the unit has the name of the metric in it, as "nats per token" has that of "nats"."""
    return metric.unit.split()[:1] == [metric.name]


def metric_name(metric: MetricOf, role: str = "", unit: bool = False) -> str:
    """As "search accuracy"; with `unit`, as "search loss (nats per token)"."""
    name = f"{role} {plain(metric.name)}".strip()
    return f"{name} ({unit_text(metric).strip()})" if unit and unit_text(metric) else name


def difference_unit(metric: MetricOf) -> str:
    """The unit of a difference in brackets, " (points)" for percentages; "" for no unit."""
    unit = "points" if metric.unit == "%" else unit_text(metric).strip()
    return f" ({unit})" if unit else ""


def difference_text(metric: MetricOf, difference: float) -> str:
    """A difference with its sign: in percentage points, or in the metric's own unit."""
    if metric.unit == "%":
        points = 100 * difference
        text = "±0.00" if abs(points) < 0.005 else f"{points:+.2f}"
        return f"{text} points".replace("-", "−")
    text = "±0" if abs(difference) < 1e-12 else f"{difference:+.3g}"
    return f"{text}{unit_text(metric)}".replace("-", "−")


def amount_text(metric: MetricOf, difference: float) -> str:
    """A difference without its sign."""
    return difference_text(metric, abs(difference)).lstrip("+±")


def standard_error(
    task: TaskOf, metric: MetricOf, role: str, network: Network, value: object
) -> float | None:
    """Standard error of a value over the examples of a role; None where it is not known.

    That of an accuracy is binomial, and not known where all examples or none are right. That of another
    metric was measured with the network.
    """
    if not is_accuracy(metric):
        error = network.errors.get(role, {}).get(metric.name)
        return error if is_number(error) else None
    examples = task.sizes.get(role, 0)
    if not (examples > 0 and is_number(value) and 0 < value < 1):
        return None
    return math.sqrt(value * (1 - value) / examples)


def is_accuracy(metric: MetricOf) -> bool:
    """Whether a metric is a share of examples."""
    return metric.unit == "%" and metric.name.endswith("accuracy")


def least_without_errors(examples: int) -> float:
    """The least accuracy, with 95 % confidence, of a network that made no error on so many examples.

    With a smaller one, all of them are right with a probability below 5 % (Clopper and Pearson, 1934).
    """
    return 0.05 ** (1 / examples)


def power_text(digits: str) -> str:
    """A whole number: in full below ten million, else as 1.2 × 10⁹."""
    if not (digits.isascii() and digits.isdecimal()):
        return digits
    if len(digits) <= 7:
        return count(int(digits))
    lead, power = f"{decimal.Decimal(digits):.1e}".split("e+")
    return f"{lead} × 10{power.translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def listed(parts: Sequence[str]) -> str:
    """As "a", "a and b", or "a, b and c"."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def capital(text: str) -> str:
    """A text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def options_of(choice: Mapping[str, Any], position: int | None = None) -> list[str]:
    """The names of the options of a choice of the space, at one of its positions."""
    rows = choice.get("per_position")
    options = rows[position] if rows and position is not None else choice.get("options", ())
    return [show(option) for option in options]


def width_of(choice: Mapping[str, Any]) -> int:
    """How many options a position of a choice of the space has at most."""
    return max(map(len, choice.get("per_position") or [choice.get("options", ())]))


def show(value: Any) -> str:
    """One option value, or the values of a repeated choice without commas."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(show, value))
    return "–" if value is None else f"{value:g}" if is_number(value) else str(value)


def letters(options: Sequence[str]) -> dict[str, str]:
    """One sign for each option: a dash where it does nothing, else initials, or numbers if those coincide."""
    busy = [option for option in options if option not in IDLE]
    first, initials = (
        [option[:1].upper() for option in busy],
        ["".join(part[:1] for part in plain(option).split()).upper() for option in busy],
    )
    numbers = [str(i + 1) for i in range(len(busy))]
    signs = next(one for one in (first, initials, numbers) if len({*one}) == len(one) and all(one))
    return dict(zip(busy, signs, strict=True)) | {option: "–" for option in options if option in IDLE}


def is_stack(choice: Mapping[str, Any]) -> bool:
    """Whether a choice of the space is repeated and all its options are words."""
    return "length" in choice and all(isinstance(option, str) for option in choice["options"])


def describe(architecture: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
    """An architecture in one line; a lone stack of blocks as its letters."""
    parts = []
    for name, value in architecture.items():
        choice = choices.get(name, {})
        if is_stack(choice) and isinstance(value, (list, tuple)):
            signs = letters(options_of(choice))
            value = [signs.get(one, one) for one in value]
        parts.append((name, show(value)))
    return parts[0][1] if len(parts) == 1 else "; ".join(f"{plain(name)} {text}" for name, text in parts)

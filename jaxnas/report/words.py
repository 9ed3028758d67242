"""Names and numbers as a page shows them: costs, metrics with their units, and architectures in a line."""

from __future__ import annotations

import decimal
from collections.abc import Mapping, Sequence
from typing import Any

from jaxnas.display import is_number
from jaxnas.report.result import MetricOf

NBSP = "\u00a0"
_COSTS = {"params": "parameters", "macs": "MACs"}
_PREFIXES = ((1e12, f"{NBSP}T"), (1e9, f"{NBSP}G"), (1e6, f"{NBSP}M"), (1e3, f"{NBSP}k"), (0, ""))
# Options that do nothing, by the usual names.
IDLE = frozenset({"identity", "skip", "none", "zero", "zeroize"})


def percent(value: object, digits: int = 1) -> str:
    """A fraction as "98.2 %"; a dash where there is no finite number."""
    return f"{100 * value:.{digits}f}{NBSP}%" if is_number(value) else "–"


def count(value: object) -> str:
    """A number with thousands separated by commas; a dash where there is no number."""
    return (f"{value:,}" if value % 1 else f"{int(value):,}") if is_number(value) else "–"


def short(value: float) -> str:
    """A number with a unit prefix and at most three significant digits: 41.2 k, 5.9 M."""
    factor, unit = next(one for one in _PREFIXES if abs(value) >= 0.9995 * one[0])
    return f"{float(f'{value / (factor or 1):.3g}'):g}{unit}"


def plain(name: object) -> str:
    """A name of the program as words: "feed_forward" becomes "feed forward"."""
    return str(name).replace("_", " ")


def cost_name(name: str) -> str:
    """The name of a cost on the page: "parameters" for "params", "latency (ms)" for "latency_ms"."""
    return _COSTS.get(name) or (f"{plain(name[:-3])} (ms)" if name.endswith("_ms") else plain(name))


def cost_text(value: object) -> str:
    """A cost: whole numbers below a million in full, others with a unit prefix."""
    whole = not is_number(value) or (float(value).is_integer() and abs(value) < 1e6)
    return count(value) if whole else short(value)


def cost_amount(name: str, value: object) -> str:
    """A cost in a sentence: "41,226 parameters", "1.2 ms latency"."""
    return f"{cost_text(value)} " + (f"ms {plain(name[:-3])}" if name.endswith("_ms") else cost_name(name))


def strategy_name(name: str) -> str:
    """The name of a strategy of the history: "random search" for "random"."""
    return "random search" if name == "random" else plain(name)


def value_text(metric: MetricOf, value: object, digits: int = 2) -> str:
    """A value of a metric without its name: "97.81 %" or "4.812"; a dash where there is none."""
    if metric.unit == "%" or not is_number(value):
        return percent(value, digits)
    text = f"{value:#.4g}"
    return f"{value:.3e}" if "e" in text else text.rstrip(".")


def unit_text(metric: MetricOf) -> str:
    """The unit behind a value: " nats per token", or nothing where the name says it."""
    named = metric.unit in ("", "%", metric.name, plain(metric.name))
    return "" if named else f"{NBSP}{metric.unit}"


def metric_name(metric: MetricOf, role: str = "", unit: bool = False) -> str:
    """As "search accuracy"; with `unit`, as "search loss (nats per token)"."""
    name, of = f"{role} {plain(metric.name)}".strip(), unit_text(metric).strip()
    return f"{name} ({of})" if unit and of else name


def difference_text(metric: MetricOf, difference: float) -> str:
    """A difference with its sign: in percentage points, or in the metric's own unit."""
    if metric.unit == "%":
        text, unit = f"{100 * difference:+.2f}", " points"
        text = "±0.00" if float(text) == 0 else text
    else:
        text, unit = "±0" if abs(difference) < 1e-12 else f"{difference:+.3g}", unit_text(metric)
    return text.replace("-", "−") + unit


def amount_text(metric: MetricOf, difference: float) -> str:
    """A difference without its sign."""
    return difference_text(metric, abs(difference)).lstrip("+±")


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


def show(value: Any) -> str:
    """One option value, or the values of a repeated choice without commas."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(show, value))
    return "–" if value is None else f"{value:g}" if is_number(value) else str(value)


def options_of(choice: Mapping[str, Any], position: int | None = None) -> list[str]:
    """The names of the options of a choice of the space, at one of its positions."""
    rows = choice.get("per_position")
    return [show(x) for x in (rows[position] if rows and position is not None else choice.get("options", ()))]


def describe(architecture: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
    """An architecture in one line; a stack of blocks as their initials, if these tell its options apart."""
    parts = []
    for name, value in architecture.items():
        choice = choices.get(name, {})
        signs = {one: "–" if one in IDLE else one[:1].upper() for one in options_of(choice)}
        if "length" in choice and isinstance(value, list) and len({*signs.values()}) == len(signs):
            value = [one if is_number(one) else signs.get(one, one) for one in value]
        parts.append((name, show(value)))
    return parts[0][1] if len(parts) == 1 else "; ".join(f"{plain(name)} {text}" for name, text in parts)

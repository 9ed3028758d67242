"""Rows of a table, mappings from column to value, as HTML for a notebook and as a data frame of pandas."""

from __future__ import annotations

import decimal
import html
import importlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

Rows = Sequence[Mapping[str, Any]]
_SHOWN = 20  # rows in a notebook


def table(rows: Rows, caption: str = "", most: int = _SHOWN) -> str:
    """An HTML table of the first `most` rows; all text is escaped."""
    columns = columns_of(rows)
    lines = ["".join(f"<th>{html.escape(column)}</th>" for column in columns)]
    for row in rows[:most]:
        lines.append("".join(f"<td>{html.escape(shown(row.get(column)))}</td>" for column in columns))
    more = f"{len(rows) - most:,} more rows" if len(rows) > most else ""
    says = html.escape(". ".join(text for text in (caption, more) if text))
    return f"<table><caption>{says}</caption>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def columns_of(rows: Rows) -> list[str]:
    """The columns of a table, in the order in which its rows have them."""
    return list(dict.fromkeys(column for row in rows for column in row))


def shown(value: Any) -> str:
    """A value as the text of a cell: numbers to four digits, mappings and lists as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={shown(one)}" for name, one in value.items())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return json.dumps(value, default=str)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def is_number(value: Any) -> TypeGuard[float]:
    """True for a finite int or float, not for a bool, None or text."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def count(number: int) -> str:
    """A whole number of any size: in full below a billion, else as "1.23e+10"."""
    return f"{number:,}" if number < 10**9 else f"{decimal.Decimal(number):.3g}"


def frame(rows: Rows) -> Any:
    """A pandas.DataFrame; ImportError with the command that installs pandas."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise ImportError(
            f"to_pandas needs pandas, which cannot be imported ({error}): pip install pandas"
        ) from error
    return pandas.DataFrame.from_records([dict(row) for row in rows])

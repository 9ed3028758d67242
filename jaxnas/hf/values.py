"""Values of a config.json, with errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def size(values: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A positive int.

    Args:
      values: of a config.json.
      key: of the size.
      default: where the key is absent or null; None if it is required.

    Raises:
      ValueError: the key is missing, or no positive int.
    """
    found = values.get(key)
    found = default if found is None else found
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise ValueError(f"config.json: {key} is {found!r}, expected a positive int.")
    return found


def number(values: Mapping[str, Any], key: str, default: float) -> float:
    """A number.

    Raises:
      ValueError: the value is none.
    """
    found = values.get(key)
    found = default if found is None else found
    if not isinstance(found, int | float) or isinstance(found, bool):
        raise ValueError(f"config.json: {key} is {found!r}, expected a number.")
    return float(found)


def mapping(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object; an empty one where the key is absent or null.

    Raises:
      ValueError: the value is none.
    """
    found = values.get(key) or {}
    if not isinstance(found, Mapping):
        raise ValueError(f"config.json: {key} is {found!r:.80}, expected an object.")
    return found


def one_of(values: Mapping[str, Any], key: str, default: str, allowed: Any) -> str:
    """A name among those that are supported.

    Raises:
      ValueError: another one.
    """
    found = values.get(key) or default
    if found not in allowed:
        raise ValueError(
            f"config.json: {key} is {found!r}, which is not supported: {', '.join(allowed)} are."
        )
    return found


def layer_sizes(values: Mapping[str, Any], layers: int, whole: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The sizes of the layers, for each name of one: those that `jaxnas.hf.save` recorded, or the whole ones.

    Raises:
      ValueError: a record of other layers, or of larger ones.
    """
    record = values.get("jaxnas")
    rows = record.get("layers", [whole] * layers) if isinstance(record, Mapping) else [whole] * layers
    good = isinstance(rows, list) and len(rows) == layers and all(isinstance(row, Mapping) for row in rows)
    found = [tuple(row.get(name) for row in rows) for name in whole] if good else []
    sizes = zip(found, whole.values(), strict=False)
    if not good or not all(isinstance(n, int) and 0 <= n <= most for row, most in sizes for n in row):
        raise ValueError(
            f"config.json: jaxnas.layers is {rows!r:.200}, expected {dict(whole)}, or less, of each of "
            f"{layers} layers."
        )
    return found

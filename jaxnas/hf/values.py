"""Values of a config.json, with errors that name the key. A key that is null counts as absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _found(values: Mapping[str, Any], key: str, default: Any, kinds: Any, expected: str) -> Any:
    """The value of a key, or the default; ValueError where it is of none of these types."""
    found = default if values.get(key) is None else values[key]
    if not isinstance(found, kinds) or isinstance(found, bool):
        raise ValueError(f"config.json: {key} is {found!r:.80}, expected {expected}.")
    return found


def size(values: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A positive int; a key without a default is required. ValueError for another value."""
    found = _found(values, key, default, int, "a positive int")
    if found < 1:
        raise ValueError(f"config.json: {key} is {found!r}, expected a positive int.")
    return found


def number(values: Mapping[str, Any], key: str, default: float) -> float:
    """A number; ValueError for another value."""
    return float(_found(values, key, default, (int, float), "a number"))


def mapping(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object, by default an empty one; ValueError for another value."""
    return _found({key: values.get(key) or {}}, key, {}, Mapping, "an object")


def one_of(values: Mapping[str, Any], key: str, default: str, allowed: Any) -> str:
    """A name among those that are supported; ValueError for another one."""
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

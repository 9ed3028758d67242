"""Architectures as option values rather than indices: what people read and write in files."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxnas.choice import Choice, nearest


def to_dict(
    choices: Mapping[str, Choice], arch: Mapping[str, Any], active: Mapping[str, Any]
) -> dict[str, Any]:
    """The option values of an architecture; see `Space.to_dict`."""
    values: dict[str, Any] = {}
    for name, choice in choices.items():
        mask, index = np.asarray(active[name]), np.asarray(arch[name])
        if choice.length is None and mask:
            values[name] = choice.options[int(index)]
        elif mask.any():
            values[name] = [
                choice.options_at(p)[int(index[p])] if mask[p] else None
                for p in range(int(np.flatnonzero(mask)[-1]) + 1)
            ]
    return values


def indices(
    choices: Mapping[str, Choice], values: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The index of each element, 0 where no value is given; and where one is given, bool.

    Raises:
      TypeError: the values are not a dict.
      ValueError: an unknown name or option, or a list of another length.
    """
    if not isinstance(values, Mapping):
        raise TypeError(
            f"architecture: expected a dict of option values with the names {list(choices)}, got {values!r}."
        )
    for name in values:
        if name not in choices:
            raise ValueError(
                f"architecture: {name!r} is not a choice of the space"
                f"{nearest(name, choices)} Its choices are {list(choices)}."
            )
    index, given = {}, {}
    for name, choice in choices.items():
        row = _row(name, choice, values)
        index[name] = np.zeros(choice.shape, np.int32)
        given[name] = np.zeros(choice.shape, bool)
        for p, option in enumerate(row):
            if option is None:
                continue
            at = () if choice.length is None else (p,)
            try:
                index[name][at] = choice.index(option, p)
            except ValueError as error:
                raise ValueError(f"architecture: {name!r}{list(at) or ''}: {error}") from None
            given[name][at] = True
    return index, given


def _row(name: str, choice: Choice, values: Mapping[str, Any]) -> list:
    if choice.length is None:
        return [values.get(name)]
    row = values.get(name, ())
    if isinstance(row, str) or not hasattr(row, "__len__"):
        raise ValueError(
            f"architecture: {name!r} is {row!r}, expected a list with a value for each position."
        )
    if len(row) > choice.length:
        raise ValueError(f"architecture: {name!r} has {len(row)} values, expected at most {choice.length}.")
    return list(row)


def check_complete(
    choices: Mapping[str, Choice],
    values: Mapping[str, Any],
    given: Mapping[str, np.ndarray],
    active: Mapping[str, Any],
) -> None:
    """Checks that every active element has a value.

    Raises:
      ValueError: one has none, or a list is longer than the depth and is not padded to its full length.
    """
    for name, choice in choices.items():
        mask = np.asarray(active[name])
        missing = np.argwhere(mask & ~given[name])
        if len(missing):
            at = "" if choice.length is None else f" at position {missing[0][0]}"
            raise ValueError(
                f"architecture: no value for {name!r}{at}, which is active there; it "
                f"needs {int(mask.sum())} value(s)."
            )
        if choice.active is not None:
            length, depth = len(values.get(name, ())), values.get(choice.active, 0)
            # Longer than the depth is a mistake, unless padded to the full length.
            if depth < length < math.prod(choice.shape):
                raise ValueError(
                    f"architecture: {name!r} has {length} values, but "
                    f"{choice.active!r} is {depth}: give {depth}, or all "
                    f"{choice.length}."
                )

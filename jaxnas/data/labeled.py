"""Labeled examples in roles: images, texts or rows with their classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from jaxnas.data.roles import Parts
from jaxnas.data.splits import HeldOut, Split, select


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Labeled(Parts[Split]):
    """Labeled examples in disjoint splits; see `Parts`.

    Args:
      classes: name of each label; () for a regression.

    Raises:
      ValueError: a label that is no class, or as `Parts`.
    """

    classes: tuple[str, ...]

    def __post_init__(self):
        super().__post_init__()
        for role, split in self.splits.items():
            if split.labels.dtype == np.int32 and (largest := split.labels.max()) >= len(self.classes):
                raise ValueError(
                    f"{self.name}: the {role} split has the label {largest}, expected one of "
                    f"{len(self.classes)} classes, numbered from 0."
                )

    @property
    def num_classes(self) -> int:
        """Labels are in [0, num_classes)."""
        return len(self.classes)


def as_labels(labels: Any) -> np.ndarray:
    """Labels as an array: of integers where they are whole numbers in a column of pandas."""
    array = np.asarray(labels)
    if array.dtype.kind == "O" and all(type(one) is int for one in array.ravel().tolist()):
        return array.astype(np.int64)
    return array


def number_labels(
    labels: Any, classes: Sequence[str] | None, what: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers labels by their classes.

    Args:
      labels: [n], integers from 0, or strings.
      classes: name of each class in the order of their numbers; None for the strings that occur, in
        alphabetical order, or for all integers up to the largest.
      what: the labels, for messages.

    Returns:
      The labels as int32 [n], and the classes.

    Raises:
      TypeError: classes without an order, or a string for them.
      ValueError: labels that are neither, or in no class; a number that no label has; a class named twice.
    """
    array = as_labels(labels)
    if isinstance(classes, str | Set):
        raise TypeError(f"{what}: classes are {classes!r}, expected a list: their order numbers the labels.")
    if classes is not None and len(set(classes)) < len(classes):
        raise ValueError(f"{what}: classes are {some(classes)}, of which some are named twice.")
    strings = array.dtype.kind in "UT" or (
        array.dtype.kind == "O" and all(isinstance(label, str) for label in array.ravel().tolist())
    )
    if array.ndim != 1 or not array.size or not (strings or array.dtype.kind in "iu"):
        hint = " Write labels.astype(int)." if array.dtype.kind in "fb" else ""
        raise ValueError(
            f"{what} are {array.dtype}{list(array.shape)}; expected integers [n] from 0, or strings "
            f"[n].{hint}"
        )
    if strings:
        known = tuple(sorted(set(array.tolist()))) if classes is None else tuple(classes)
        number = {name: i for i, name in enumerate(known)}
        numbers = np.array([number.get(label, -1) for label in array.tolist()], np.int64)
    else:
        distinct = np.unique(array)  # and not a name for each number: labels that are ids may be large
        gaps = np.flatnonzero(distinct != np.arange(len(distinct)))
        if classes is None and distinct[0] >= 0 and gaps.size:
            raise ValueError(
                f"{what} are {len(distinct):,} integers up to {distinct[-1]}, and {gaps[0]} never occurs. "
                "Number the classes from 0 without a gap, as np.unique(labels, return_inverse=True)[1] does, "
                "or give the labels as strings."
            )
        known = tuple(map(str, range(len(distinct)))) if classes is None else tuple(classes)
        numbers = array.astype(np.int64)
    if (wrong := (numbers < 0) | (numbers >= len(known))).any():
        raise ValueError(
            f"{what}: {int(wrong.sum()):,} are in none of the {len(known)} classes {some(known)}; the first "
            f"is {array[wrong][0].item()!r}."
        )
    return numbers.astype(np.int32), known


def check_classes(what: str, classes: Sequence[str]) -> None:
    """Raises a ValueError where all examples have one label, which nothing can be learned from."""
    if len(classes) < 2:
        raise ValueError(f"{what}: all labels are {classes[0]!r}; expected at least two classes.")


def make_splits(
    what: str,
    given: Mapping[str, tuple[Mapping[str, Any], np.ndarray]],
    held_out: HeldOut,
    classes: Sequence[str],
) -> dict[str, Split]:
    """Makes splits of examples, and holds out the roles that are not given.

    Args:
      what: the data, for messages.
      given: inputs and labels by role, at least of "train".
      held_out: shares of the roles that are not given.
      classes: names of the labels; () for targets of a regression.

    Raises:
      ValueError: another number of labels than of inputs, a class without an example in "train", or as
        `HeldOut.rows`.
    """
    for role, (inputs, labels) in given.items():
        if wrong := [f"{len(x):,} of {k!r}" for k, x in inputs.items() if len(x) != len(labels)]:
            raise ValueError(f"{what}: {wrong[0]} and {len(labels):,} labels to {role}; expected as many.")
    inputs, labels = given["train"]
    rows = held_out.rows(labels if classes else np.zeros(len(labels), np.int32), list(given), what)
    if classes:
        check_classes(what, classes)
        if gone := set(labels.tolist()) - set(labels[rows["train"]].tolist()):
            raise ValueError(
                f"{what}: all examples of the class {classes[min(gone)]!r} are held out, and none is left to "
                "train on. Give more of it, or hold out smaller shares."
            )
    parts = {
        role: ({k: select(x, part) for k, x in inputs.items()}, labels[part]) for role, part in rows.items()
    }
    parts |= {role: part for role, part in given.items() if role != "train"}
    return {role: Split(role, *part) for role, part in parts.items()}


def some(names: Sequence[Any]) -> str:
    """The first five names for a message, and how many more there are."""
    shown = ", ".join(str(name) for name in names[:5])
    return shown + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")

"""Labeled examples in roles: images or texts with their classes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from jaxnas.data.roles import Parts
from jaxnas.data.splits import Split, hold_out, select

_SHOWN = 5  # Names of classes in a message.


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Labeled(Parts[Split]):
    """Labeled examples in disjoint splits; see `Parts`.

    Args:
      classes: the name of each label.

    Raises:
      ValueError: a label that is no class, or as `Parts`.
    """

    classes: tuple[str, ...]

    def __post_init__(self):
        super().__post_init__()
        for role, split in self.splits.items():
            if split.labels.dtype == np.int32 and (largest := split.labels.max()) >= len(self.classes):
                raise ValueError(
                    f"{self.name}: the {role} split has the label {largest}, and there are"
                    f" {len(self.classes)} classes, numbered from 0"
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
      classes: the name of each class in the order of their numbers; None for the strings that occur,
        in alphabetical order, or for all integers up to the largest.
      what: the labels, for messages.

    Returns:
      The labels as int32 [n], and the classes.

    Raises:
      TypeError: classes without an order, or a string for them.
      ValueError: labels that are neither, that are in no class, or a number that no label has; no label; a
        class that is named twice.
    """
    array = as_labels(labels)
    if isinstance(classes, str | Set):
        raise TypeError(f"{what}: classes are {classes!r}, expected a list: their order numbers the labels.")
    if classes is not None and (twice := [x for x, count in Counter(classes).items() if count > 1]):
        raise ValueError(f"{what}: the class {twice[0]!r} is named twice.")
    strings = array.dtype.kind in "UT" or (
        array.dtype.kind == "O" and all(isinstance(label, str) for label in array.ravel().tolist())
    )
    if not array.size:
        raise ValueError(f"{what}: there are none.")
    if array.ndim != 1 or not (strings or array.dtype.kind in "iu"):
        hint = " Write labels.astype(int)." if array.dtype.kind in "fb" else ""
        if array.dtype.kind == "O" and array.ndim == 1:
            other = next(one for one in array.tolist() if not isinstance(one, str))
            hint = f" The first that is no string is {other!r}."
        raise ValueError(
            f"{what} are {array.dtype}{list(array.shape)}; expected integers [n], from 0, or strings "
            f"[n].{hint}"
        )
    if strings:
        known = tuple(sorted(set(array.tolist()))) if classes is None else tuple(classes)
        number = {name: i for i, name in enumerate(known)}
        wrong = [label for label in array.tolist() if label not in number]
        if not wrong:
            return np.array([number[label] for label in array.tolist()], np.int32), known
    else:
        wrong = array[array < 0].tolist()
        if wrong:
            raise ValueError(
                f"{what}: {len(wrong):,} are negative, the first is {wrong[0]}; expected integers from 0. "
                "Leave out examples that have no label."
            )
        distinct = np.unique(array)  # and not a name for each number: labels that are ids may be large
        if classes is None and (gaps := np.flatnonzero(distinct != np.arange(len(distinct)))).size:
            raise ValueError(
                f"{what} are {len(distinct):,} integers up to {distinct[-1]}, and {gaps[0]} never occurs. "
                "Number the classes from 0 without a gap, as np.unique(labels, return_inverse=True)[1] does, "
                "or give the labels as strings."
            )
        known = tuple(map(str, range(len(distinct)))) if classes is None else tuple(classes)
        wrong = array[array >= len(known)].tolist()
        if not wrong:
            return array.astype(np.int32), known
    raise ValueError(
        f"{what}: {len(wrong):,} are in none of the {len(known)} classes, the first is {wrong[0]!r}. The "
        f"classes are {some(known)}."
    )


def check_classes(what: str, classes: Sequence[str]) -> None:
    """Raises a ValueError where all examples have one label, which nothing can be learned from."""
    if len(classes) < 2:
        raise ValueError(f"{what}: all labels are {classes[0]!r}; expected at least two classes.")


def make_splits(
    what: str,
    given: Mapping[str, tuple[Mapping[str, np.ndarray], np.ndarray]],
    fractions: Mapping[str, float],
    seed: int,
    classes: Sequence[str],
) -> dict[str, Split]:
    """Makes the splits of examples, and holds those that are not given out of the training examples.

    Args:
      what: the data, for messages.
      given: inputs and labels by role, at least of "train".
      fractions: what is held out for each role that is not given; see `hold_out`.
      seed: of what is held out.
      classes: names of the labels; none of targets, of which any are drawn.

    Raises:
      ValueError: shares out of range, nothing for the test, or a class of which "train" or a role that is
        held out of it gets nothing.
    """
    if "test" not in given and not fractions["test"] > 0:
        raise ValueError(
            f"{what}: test_fraction is {fractions['test']} and nothing is given for the test, on which"
            " chosen networks are measured. Give examples for it, or a test_fraction of 0.2, say."
        )
    inputs, labels = given["train"]
    wanted = {role: fraction for role, fraction in fractions.items() if role not in given}
    rows = hold_out(labels if classes else np.zeros(len(labels), np.int32), wanted, seed, what)
    if classes:
        _check_shares(what, {role: labels[part] for role, part in rows.items()}, wanted, classes)
    parts = {
        role: ({k: select(x, part) for k, x in inputs.items()}, labels[part]) for role, part in rows.items()
    }
    parts |= {role: part for role, part in given.items() if role != "train"}
    return {role: Split(role, *part) for role, part in parts.items()}


def _check_shares(
    what: str, labels: Mapping[str, np.ndarray], wanted: Mapping[str, float], classes: Sequence[str]
) -> None:
    """Refuses a division of examples in which a role has none of a class; see `make_splits`."""
    counts = {role: np.bincount(part, minlength=len(classes)) for role, part in labels.items()}
    short = np.flatnonzero(np.min(list(counts.values()), axis=0) == 0)
    check_classes(what, classes)
    if len(short):
        first, total = short[0], int(sum(count[short[0]] for count in counts.values()))
        divided = ", ".join(f"{count[first]} for {role}" for role, count in counts.items())
        asked = ", ".join(f"{role}_fraction={share}" for role, share in wanted.items())
        others = f", or choose other fractions than {asked}" if asked and total >= len(counts) else ""
        raise ValueError(
            f"{what}: the class {classes[first]!r} has {total} example{'s' * (total != 1)}, which are "
            f"divided as {divided}; each role needs at least one of each class. Give more of it{others}."
            + (f" The same is true of {len(short) - 1} more classes." if len(short) > 1 else "")
        )


def some(names: Sequence[Any]) -> str:
    """The first few names for a message, and how many more there are."""
    shown = ", ".join(str(name) for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else "")

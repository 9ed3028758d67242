"""A data set of rows of numbers, with a class or a target of a regression for each."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxnas.data.labeled import Labeled, make_splits, number_labels
from jaxnas.data.splits import Split


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Table(Labeled):
    """Standardized rows of numbers in disjoint splits; see `Labeled`.

    A row is "row" of its split, float32 [F]. A label is the number of a class, int32, or a standardized
    target, float32.

    Args:
      classes: the name of each class; () for a regression.
      mean, std: float64 [F], of the columns over the rows to train on; the `std` of a constant column is 1.
      target_mean, target_std: of the targets of a regression, likewise.
    """

    mean: np.ndarray
    std: np.ndarray
    target_mean: float = 0.0
    target_std: float = 1.0

    def rows(self, x: Any) -> np.ndarray:
        """Returns rows [n, F] in their own units as a network takes them, float32 [n, F].

        Raises:
          ValueError: no finite numbers, or rows of other columns.
        """
        x = _numbers("x", x, 2)
        if x.shape[1:] != self.mean.shape:
            raise ValueError(f"{self.name}: rows have {x.shape[1]} columns, expected {len(self.mean)}.")
        return ((x - self.mean) / self.std).astype(np.float32)

    def targets(self, outputs: Any) -> np.ndarray:
        """Returns a network's outputs [n, 1] as targets of a regression in their own unit, float64 [n]."""
        return np.asarray(outputs, np.float64)[:, 0] * self.target_std + self.target_mean


def from_table(
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    *,
    name: str = "table",
    search_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Table:
    """Makes a data set of rows of numbers, and holds part of the rows out for the other roles.

    Columns may have any unit: networks get each one standardized by its mean and standard deviation over the
    rows to train on. So they do the targets of a regression, whose metrics are in the unit of the targets.

    Args:
      x: rows to train on, numbers [n, F].
      y: what to predict, [n]: floating-point numbers for a regression, integers from 0 or strings for
        classes.
      x_test, y_test: for the networks that are chosen, likewise; None to hold a part of `x` out.
      name: of the data.
      search_fraction, validation_fraction, test_fraction, seed: as of `from_arrays`.

    Raises:
      ValueError: shapes or values that do not fit each other, NaNs, rows or targets that are all alike, or
        shares that leave a role without a class.
    """
    what = f"from_table ({name})"
    if (x_test is None) != (y_test is None):
        raise ValueError("from_table: give both x_test and y_test, or none of them.")
    labels, classes = _labels("y", y)
    parts = {"train": (_numbers("x", x, 2), labels)}
    if x_test is not None:
        parts["test"] = _numbers("x_test", x_test, 2), _labels("y_test", y_test, classes)[0]
    shape = parts["train"][0].shape[1:]
    for role, (rows, labels) in parts.items():
        if rows.shape != (len(labels), *shape):
            raise ValueError(
                f"from_table: {list(rows.shape)} numbers and {len(labels):,} labels to {role}; expected "
                f"[{len(labels)}, {shape[0]}] numbers."
            )
    given = {role: ({"row": rows}, labels) for role, (rows, labels) in parts.items()}
    fractions = {"test": test_fraction, "validation": validation_fraction, "search": search_fraction}
    splits = make_splits(what, given, fractions, seed, classes)
    train, labels = splits["train"].inputs["row"][:], splits["train"].labels
    if not np.ptp(train, axis=0).any():
        raise ValueError(f"{what}: all rows to train on are alike; there is nothing to learn from them.")
    mean, std = _moments(train)
    target_mean, target_std = (0.0, 1.0) if classes else map(float, _moments(labels))
    # In float64, in which a time in seconds and a target of nine digits keep their differences.
    splits = {
        role: Split(
            role,
            {"row": ((split.inputs["row"][:] - mean) / std).astype(np.float32)},
            split.labels if classes else ((split.labels - target_mean) / target_std).astype(np.float32),
        )
        for role, split in splits.items()
    }
    moments = dict(mean=mean, std=std, target_mean=target_mean, target_std=target_std)
    return Table(name=name, classes=classes, **moments, **splits)


def _numbers(name: str, given: Any, ndim: int) -> np.ndarray:
    """Numbers as float64, of so many axes."""
    try:
        array = np.asarray(given)
        text = array.dtype.kind not in "biufO" or any(isinstance(one, str) for one in array.flat)
        array = array if text else array.astype(np.float64)
    except (TypeError, ValueError):  # rows of several lengths, or objects that are no numbers
        array, text = np.asarray(given, object), True
    if text or array.ndim != ndim or not array.size:
        expected = "numbers [rows, columns]" if ndim == 2 else "numbers [rows]"
        hint = " Give columns of text as numbers, as by pandas.get_dummies(x)." * text
        raise ValueError(
            f"from_table: {name} is {array.dtype}{list(array.shape)}; expected {expected}.{hint}"
        )
    if not np.abs(array).max() <= np.finfo(np.float32).max:
        row = np.argwhere(~(np.abs(array) <= np.finfo(np.float32).max))[0].tolist()
        raise ValueError(
            f"from_table: {name}{row} is {array[tuple(row)]}; expected finite numbers in the range of "
            "float32. Fill in missing values first, or leave these rows out."
        )
    return array


def _labels(
    name: str, given: Any, classes: tuple[str, ...] | None = None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Targets float64 [n] with no classes, or numbers of classes int32 [n]; `classes` are those of `y`."""
    array = np.asarray(given)
    regression = array.dtype.kind == "f"
    if classes is not None and regression == bool(classes):
        raise ValueError(
            f"from_table: {name} is {array.dtype}, and y has {len(classes) or 'no'} classes; expected labels "
            "of one kind: floating-point numbers for a regression, integers or strings for classes."
        )
    if not regression:
        return number_labels(given, classes, f"from_table: {name}")
    targets = _numbers(name, array, 1)
    if classes is None and len(np.unique(targets)) < 3:
        raise ValueError(
            f"from_table: {name} has the values {np.unique(targets)} alone; expected more for a regression. "
            f"For classes write {name}.astype(int)."
        )
    return targets, ()


def _moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the standard deviation over the first axis; the latter of what is constant is 1."""
    return values.mean(0), np.where(np.ptp(values, axis=0) == 0, 1, values.std(0))

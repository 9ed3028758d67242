"""A data set of rows of numbers, with a class or a target of a regression for each."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxnas.data.splits import HeldOut, Labeled, Split, make_splits, number_labels


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Table(Labeled):
    """Standardized rows "row", float32 [F], with classes int32 or targets float32; see `Labeled`.

    Args:
      mean, std: float64 [F], of the training rows; the `std` of a constant column is 1.
      target_mean, target_std: of the targets of a regression, likewise.
    """

    mean: np.ndarray
    std: np.ndarray
    target_mean: float = 0.0
    target_std: float = 1.0

    def rows(self, x: Any) -> np.ndarray:
        """Standardizes rows [n, F] as a network takes them, float32 [n, F]."""
        x = _numbers("x", x, 2)
        if x.shape[1:] != self.mean.shape:
            raise ValueError(f"{self.name}: rows have {x.shape[1]} columns, expected {len(self.mean)}.")
        return ((x - self.mean) / self.std).astype(np.float32)

    def targets(self, outputs: Any) -> np.ndarray:
        """Converts a network's outputs [n, 1] to targets in their own unit, float64 [n]."""
        return np.asarray(outputs, np.float64)[:, 0] * self.target_std + self.target_mean


def from_table(
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    *,
    name: str = "table",
    held_out: HeldOut = HeldOut(),
) -> Table:
    """Makes a data set of rows of numbers, and holds out part of the rows for the other roles.

    Columns, and targets of a regression, may have any unit: they are standardized by the training rows.
    Metrics are in the unit of the targets.

    Args:
      x: rows to train on, numbers [n, F].
      y: [n]: floating-point targets of a regression; integers from 0 or strings are classes.
      x_test, y_test: of the test, likewise; None to hold out a part of `x`.
      name: of the data.
      held_out: shares of the other roles.

    Raises:
      ValueError: arrays that do not fit each other, non-finite values, or constant rows or targets.

    Example:
      >>> x = np.random.default_rng(0).normal(size=(90, 4))
      >>> given = data.from_table(x[:70], x[:70].sum(1), x[70:], x[70:].sum(1), name="sums")
      >>> given.rows(x[:5]).shape  # standardized, for a trained network
      (5, 4)
    """
    what = f"from_table ({name})"
    if (x_test is None) != (y_test is None):
        raise ValueError("from_table: give both x_test and y_test, or none of them.")
    labels, classes = _labels("y", y)
    parts = {"train": (_numbers("x", x, 2), labels)}
    if x_test is not None:
        parts["test"] = _numbers("x_test", x_test, 2), _labels("y_test", y_test, classes)[0]
        if parts["test"][0].shape[1] != parts["train"][0].shape[1]:
            raise ValueError(
                f"from_table: x and x_test have {[x.shape[1] for x, _ in parts.values()]} columns."
            )
    given = {role: ({"row": rows}, labels) for role, (rows, labels) in parts.items()}
    splits = make_splits(what, given, held_out, classes)
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
    scale = dict(mean=mean, std=std, target_mean=target_mean, target_std=target_std)
    return Table(name=name, classes=classes, **scale, **splits)


def _numbers(name: str, given: Any, ndim: int) -> np.ndarray:
    """Numbers as float64, of so many axes."""
    try:
        array = np.asarray(given)
        if array.dtype.kind not in "biufO" or any(isinstance(one, str) for one in array.flat):
            raise ValueError("text")  # which NumPy would read as numbers
        array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"from_table: {name} holds something else than numbers ({error}). Give columns of text as "
            "numbers, as by pandas.get_dummies(x)."
        ) from error
    if array.ndim != ndim or not array.size:
        raise ValueError(
            f"from_table: {name} is {array.dtype}{list(array.shape)}; expected numbers with {ndim} axes."
        )
    if not np.abs(array).max() <= np.finfo(np.float32).max:
        row = np.argwhere(~(np.abs(array) <= np.finfo(np.float32).max))[0].tolist()
        raise ValueError(
            f"from_table: {name}{row} is {array[tuple(row)]}; expected finite numbers of float32. Fill in "
            "missing values first, or leave these rows out."
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
            f"from_table: {name} is {array.dtype}, and y has {len(classes) or 'no'} classes; expected "
            "floating-point numbers in both for a regression, integers or strings in both for classes."
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

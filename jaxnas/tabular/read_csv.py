"""A table from a CSV file."""

import csv
import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxnas import files
from jaxnas.choice import Choice, Option, nearest
from jaxnas.space import Arch, Space, check_space
from jaxnas.tabular.table import Table, from_arrays


def from_csv(
    path: str | os.PathLike,
    space: Space | None = None,
    objectives: Mapping[str, str] | None = None,
    name: str | None = None,
    ignore: Sequence[str] = (),
    *,
    canonical: Callable[[Arch], Arch] | None = None,
    features: Callable[[Arch], Any] | None = None,
) -> Table:
    """Reads a table: a header, then a line for each architecture.

        op_0,op_1,accuracy
        conv,pool,91.5

    With a space, a column named as a choice of it, or `op_0`, `op_1`, ... for a repeated choice `op`, holds
    its option; it may be empty where the choice is inactive. All other columns are metrics.

    Without a space, the metrics are the columns that `objectives` names, and each other column is a choice.
    Its options are the values seen: in numeric order if all are numbers, else as first seen.

    An empty cell of a metric is NaN.

    Args:
      path: the file, UTF-8, cells separated by commas.
      space: the search space; None to read it from the columns.
      objectives: "max" or "min" by metric.
      name: of the table; by default the file's name without its ending.
      ignore: columns that are left out.
      canonical, features: of the table; see `from_arrays`.

    Raises:
      OSError: there is no such file, or it cannot be read.
      ValueError: no such text; a missing or unknown column; or, with line and column, a cell that is no
        option, no finite number, or empty where its choice is active.
    """
    path = files.as_path(path)
    columns, lines = _read(path)
    for column in ignore:
        if columns.pop(column, None) is None:
            raise ValueError(f"{path}: ignore has {column!r}, which is no column{nearest(column, columns)}")
    if space is None:
        space = _space(path, columns, objectives or {})
    check_space(space, "from_csv")
    archs: dict[str, Any] = {
        key: np.zeros((len(lines), *choice.shape), np.int32) for key, choice in space.decisions
    }
    empty = []  # cells of choices, as line, column, name and place of the decision
    for key, choice in space.decisions:
        for place in range(choice.length or 1):
            column = key if choice.length is None else f"{key}_{place}"
            if column not in columns:
                raise ValueError(f"{path}: no column {column!r}, only {list(columns)}.")
            for row, cell in enumerate(columns.pop(column)):
                index = (row, place) if choice.shape else row
                if not cell:
                    empty.append((lines[row], column, key, index))
                    continue
                try:
                    archs[key][index] = choice.index(_option(cell, choice), place)
                except ValueError as error:
                    raise ValueError(f"{path}, line {lines[row]}: column {column!r}: {error}") from None
    with jax.ensure_compile_time_eval():
        active = {key: np.asarray(x) for key, x in space.active(archs).items()}
    for line, column, key, index in empty:
        if active[key][index]:
            raise ValueError(f"{path}, line {line}: column {column!r} is empty, but the choice is active.")
    metrics = {}
    for column, cells in columns.items():
        if column in space or column.rpartition("_")[0] in space:
            raise ValueError(
                f"{path}: the space has no place for the column {column!r}; rename or ignore it."
            )
        metrics[column] = [
            _number(f"{path}, line {line}: column {column!r}", cell)
            for line, cell in zip(lines, cells, strict=True)
        ]
    name = name or path.stem
    return from_arrays(name, space, archs, metrics, objectives, canonical=canonical, features=features)


def _read(path: Any) -> tuple[dict[str, list[str]], list[int]]:
    """The cells of each column without spaces around them, and the line of each row in the file."""
    try:
        with io.TextIOWrapper(path.open("rb"), "utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no CSV file in UTF-8: {error}.") from error
    header = rows[0][1] if rows else []
    if len(rows) < 2 or "" in header or len(set(header)) < len(header):
        raise ValueError(
            f"{path}: expected different names of columns in the first line, and lines behind it; the first "
            f"line is {header}. pandas leaves the column of row numbers out with index=False."
        )
    for line, row in rows:
        if len(row) != len(header):
            raise ValueError(f"{path}, line {line}: {len(row)} cells, but the header has {len(header)}.")
    cells = zip(*(row for _, row in rows[1:]), strict=True)
    return dict(zip(header, map(list, cells), strict=True)), [line for line, _ in rows[1:]]


def _space(path: Any, columns: Mapping[str, list[str]], objectives: Mapping[str, str]) -> Space:
    """The space of the values seen in all columns that are no metrics."""
    if not objectives or not objectives.keys() < columns.keys():
        raise ValueError(
            f"{path}: without a space, objectives must name columns that are metrics, and other columns are "
            f"choices; objectives are {dict(objectives)}, and the columns {list(columns)}."
        )
    choices = {}
    for column, cells in columns.items():
        if column in objectives:
            continue
        options = _options(cells)
        values = len(options)
        alone = len(columns) - len(objectives) == 1
        if "" in cells or (
            not alone and len(cells) > 2 and (values == len(cells) or 10 < len(cells) < 2 * values)
        ):
            raise ValueError(
                f"{path}: column {column!r} has empty cells, or nearly as many values ({values}) as there "
                "are lines. If it is a metric, give it an objective; if it is neither metric nor choice, "
                f"ignore=({column!r},); if it is a choice, give the space."
            )
        choices[column] = Choice(*options)
    return Space(**choices)


def _options(cells: list[str]) -> list[Option]:
    """The different values of cells: in numeric order if all are numbers, else as first seen."""
    different = list(dict.fromkeys(cells))
    try:
        numbers = sorted({float(cell) for cell in different})
    except ValueError:
        return list(different)
    if not all(math.isfinite(number) for number in numbers):
        return list(different)
    return [int(x) for x in numbers] if all(x.is_integer() for x in numbers) else list(numbers)


def _option(cell: str, choice: Choice) -> Option:
    """The option that a cell writes: as its text, or as its number ("3.0" for 3)."""
    for option in choice.options:
        if cell == str(option):
            return option
    try:
        number = float(cell)
    except ValueError:
        return cell
    return number if number in [o for o in choice.options if not isinstance(o, str)] else cell


def _number(what: str, cell: str) -> float:
    """A number of float32; NaN for an empty cell."""
    try:
        number = float(cell or "nan")
    except ValueError:
        number = math.inf
    if abs(number) > float(np.finfo(np.float32).max):
        raise ValueError(
            f"{what} is {cell!r}, expected a finite number, or an empty cell for an unknown one. If the "
            "column is no metric, ignore it, or give the space."
        )
    return number

"""A table from a CSV file."""

import csv
import io
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxnas import files
from jaxnas.choice import Choice, Option, nearest
from jaxnas.space import Arch, Space, check_space
from jaxnas.tabular.table import Table, check_objectives, from_arrays


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

    With a space, a column named as a choice of it, or `op_0`, `op_1`, ... for a choice `op` that is
    repeated, holds its option; it may be empty where the choice is inactive. All other columns are
    metrics.

    Without a space, the metrics are the columns that `objectives` names, and each other column is a
    choice. Its options are the values seen: in numeric order if all are numbers, else as first seen.

    An empty cell of a metric is NaN.

    Args:
      path: the file, UTF-8, cells separated by commas.
      space: the search space; None: read from the columns.
      objectives: "max" or "min" by metric.
      name: of the table; by default the file's name without its ending.
      ignore: columns that are left out.
      canonical, features: of the table; see `from_arrays`.

    Raises:
      OSError: there is no such file, or it cannot be read.
      TypeError: something else than a path, a space or a dict of objectives.
      ValueError: no UTF-8 text; a column that is missing, unknown or there twice; or, with its line in
        the file, an option that is not in the space, a metric that is not a finite number, or an
        architecture that is there twice.
    """
    check_objectives("from_csv", objectives)
    if space is not None:
        check_space(space, "from_csv")
    header, lines = _read(path)
    if "" in header and "" not in ignore:
        raise ValueError(
            f"{path}: column {header.index('') + 1} has no name in the header {header}. Name it, or leave it "
            "out by ignore=('',); pandas writes such a column of row numbers, but not with index=False."
        )
    if space is None:
        space = _space(path, header, lines, objectives or {}, ignore)
    places = {
        f"{key}_{p}" if choice.length is not None else key: (key, p)
        for key, choice in space.decisions
        for p in range(1 if choice.length is None else choice.length)
    }
    _check_header(path, header, places, space, ignore)
    columns = {key: [row[k] for _, row in lines] for k, key in enumerate(header)}
    numbers = [line for line, _ in lines]
    archs: dict[str, Any] = {
        key: np.zeros((len(lines), *choice.shape), np.int32) for key, choice in space.decisions
    }
    for column, (key, position) in places.items():
        index = _indices(path, column, columns[column], numbers, space[key], position)
        archs[key][(slice(None), position) if space[key].shape else slice(None)] = index
    _check_empty(path, columns, numbers, places, space, archs)
    metrics = {
        key: _numbers(path, key, column, numbers)
        for key, column in columns.items()
        if key not in places and key not in ignore
    }
    _check_twice(path, numbers, space, archs, list(metrics))
    name = name or pathlib.Path(path).stem
    return from_arrays(name, space, archs, metrics, objectives, canonical=canonical, features=features)


def _read(path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header, and each line with its number in the file; all cells without spaces around them."""
    path = files.as_path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; expected a CSV file.")
    if not path.exists():
        raise FileNotFoundError(f"there is no CSV file {path}.")
    try:
        with io.TextIOWrapper(path.open("rb"), "utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = [cell.strip() for cell in next(reader, [])]
            lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 (byte {error.start} is {error.object[error.start]:#04x}). "
            "Save it as CSV in UTF-8."
        ) from error
    except csv.Error as error:
        raise ValueError(f"{path} is no CSV file: {error}.") from error
    lines = [(number, row) for number, row in lines if any(row)]
    if not any(header):
        raise ValueError(f"{path}: the first line is empty, expected the names of the columns.")
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        raise ValueError(f"{path}: cells must be separated by commas; the header is {header[0]!r}.")
    if not lines:
        raise ValueError(f"{path}: no lines after the header.")
    for line, row in lines:
        if len(row) != len(header):
            raise ValueError(f"{path}, line {line}: {len(row)} cells, but the header has {len(header)}.")
    return header, lines


def _space(path, header: list[str], lines: list, objectives: Mapping[str, str], ignore) -> Space:
    """The space of the values seen in all columns that are neither metrics nor ignored."""
    if not objectives:
        raise ValueError(
            f"{path}: without a space, objectives must name the columns that are metrics, such as "
            f"{{{header[-1]!r}: 'max'}}; each other column is then a choice."
        )
    for column in objectives:
        if column not in header:
            raise ValueError(f"{path}: no column {column!r}{nearest(column, header)} There are {header}.")
    choices = {}
    for place, column in enumerate(header):
        if column in objectives or column in ignore:
            continue
        cells = [row[place] for _, row in lines]
        for (line, _), cell in zip(lines, cells, strict=True):
            if not cell:
                raise ValueError(
                    f"{path}, line {line}: column {column!r} is empty. A choice that is not always active "
                    "needs a space of its own; a metric needs an objective."
                )
        choices[column] = Choice(*_options(cells))
    if not choices:
        raise ValueError(f"{path}: every column is a metric or ignored, so there is nothing to choose.")
    for column, choice in choices.items():
        values = len(choice.options)
        if len(choices) > 1 and len(lines) > 2 and (values == len(lines) or 10 < len(lines) < 2 * values):
            raise ValueError(
                f"{path}: column {column!r} has {values} values in {len(lines)} lines. If it is a metric, "
                f"give it an objective; if it is neither metric nor choice, ignore=({column!r},); if it is a "
                "choice, give the space."
            )
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


def _check_header(path, header: list[str], places: dict, space: Space, ignore) -> None:
    for column in header:
        if header.count(column) > 1:
            raise ValueError(f"{path}: column {column!r} is there twice.")
        stem, _, position = column.rpartition("_")
        if (
            column not in places
            and column not in ignore
            and (column in space or (stem in space and position.isdigit()))
        ):
            raise ValueError(f"{path}: unknown column {column!r}: the space's columns are {list(places)}.")
    for column in places:
        if column not in header:
            others = [x for x in header if x not in places]
            raise ValueError(
                f"{path}: no column {column!r}{nearest(column, others)} It is needed "
                f"for the space's choices; the header has {header}."
            )
    for column in ignore:
        if column not in header or column in places:
            raise ValueError(
                f"{path}: ignore has {column!r}, which is no column of metrics"
                f"{nearest(column, [x for x in header if x not in places])}"
            )


def _indices(
    path, column: str, cells: list[str], lines: list[int], choice: Choice, position: int
) -> list[int]:
    """The index of the option in each cell; 0 where it is empty."""
    known: dict[str, int] = {"": 0}
    for line, cell in zip(lines, cells, strict=True):
        if cell not in known:
            try:
                known[cell] = choice.index(_option(cell, choice), position)
            except ValueError as error:
                raise ValueError(f"{path}, line {line}: column {column!r}: {error}") from None
    return [known[cell] for cell in cells]


def _option(cell: str, choice: Choice):
    """The option that a cell writes: as its text, or as its number ("3.0" for 3)."""
    for option in choice.options:
        if cell == str(option):
            return option
    try:
        number = float(cell)
    except ValueError:
        return cell
    return number if number in [o for o in choice.options if not isinstance(o, str)] else cell


def _check_empty(path, columns, lines, places, space: Space, archs) -> None:
    with jax.ensure_compile_time_eval():
        active = {key: np.asarray(x) for key, x in space.active(archs).items()}
    for column, (key, position) in places.items():
        needed = active[key][:, position] if space[key].shape else active[key]
        for line, cell, need in zip(lines, columns[column], needed, strict=True):
            if need and not cell:
                raise ValueError(
                    f"{path}, line {line}: column {column!r} is empty, but the choice "
                    f"is active; its options are {space[key].options_at(position)}."
                )


def _check_twice(path, lines, space: Space, archs, metrics: list[str]) -> None:
    with jax.ensure_compile_time_eval():
        codes = np.asarray(space.encode(space.canonical(archs)))
    seen: dict[bytes, int] = {}
    for line, code in zip(lines, codes, strict=True):
        first = seen.setdefault(code.tobytes(), line)
        if first != line:
            raise ValueError(
                f"{path}, lines {first} and {line} are one architecture; keep one of "
                f"them, or average their metrics. Taken as metrics, and not as choices, are {metrics}."
            )


def _numbers(path, column: str, cells: list[str], lines: list[int]) -> np.ndarray:
    values = np.full(len(cells), np.nan, np.float32)
    for k, (line, cell) in enumerate(zip(lines, cells, strict=True)):
        try:
            with np.errstate(over="ignore"):
                values[k] = np.float32(float(cell or "nan"))
        except ValueError:
            raise ValueError(
                f"{path}, line {line}: metric {column!r} is {cell!r}, not a number. "
                f"If the column is a choice, the space must have it; if it is neither, "
                f"ignore=({column!r},)."
            ) from None
        if np.isinf(values[k]):
            raise ValueError(
                f"{path}, line {line}: metric {column!r} is {cell!r}, expected a finite number of float32. "
                "An empty cell stands for one that is unknown."
            )
    return values

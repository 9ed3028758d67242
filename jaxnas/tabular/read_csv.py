"""A table from a CSV file."""

import csv
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxnas.choice import Choice, nearest
from jaxnas.space import Space
from jaxnas.tabular.table import Table, from_arrays


def from_csv(
    path: str | os.PathLike,
    space: Space,
    objectives: Mapping[str, str] | None = None,
    name: str | None = None,
    ignore: Sequence[str] = (),
) -> Table:
    """Reads a table: a header, then a line for each architecture.

        op_0,op_1,accuracy
        conv,pool,91.5

    A column named as a choice of the space, or `op_0`, `op_1`, ... for a choice `op` that is
    repeated, holds its option; it may be empty where the choice is inactive. All other columns are
    metrics; an empty cell of these is NaN.

    Args:
      path: the file, UTF-8.
      space: the search space.
      objectives: "max" or "min" by metric; only `Table.best` needs them.
      name: of the table; by default the file's name without its ending.
      ignore: columns that are left out.

    Raises ValueError for a column that is missing, unknown or there twice, and, with its line in
    the file, for an option that is not in the space, a metric that is not a number, and an
    architecture that is there twice.
    """
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        header = [cell.strip() for cell in next(reader, [])]
        lines = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    places = {
        f"{key}_{p}" if choice.length is not None else key: (key, p)
        for key, choice in space.decisions
        for p in range(1 if choice.length is None else choice.length)
    }
    _check_header(path, header, places, space, ignore)
    if not lines:
        raise ValueError(f"{path}: no lines after the header.")
    for line, row in lines:
        if len(row) != len(header):
            raise ValueError(f"{path}, line {line}: {len(row)} cells, but the header has {len(header)}.")
    columns = {key: [row[k].strip() for _, row in lines] for k, key in enumerate(header)}
    numbers = [line for line, _ in lines]
    archs: dict[str, Any] = {
        key: np.zeros((len(lines), *choice.shape), np.int32) for key, choice in space.decisions
    }
    for column, (key, position) in places.items():
        index = _indices(path, column, columns[column], numbers, space[key], position)
        archs[key][(slice(None), position) if space[key].shape else slice(None)] = index
    _check_empty(path, columns, numbers, places, space, archs)
    _check_twice(path, numbers, space, archs)
    metrics = {
        key: _numbers(path, key, column, numbers)
        for key, column in columns.items()
        if key not in places and key not in ignore
    }
    return from_arrays(name or pathlib.Path(path).stem, space, archs, metrics, objectives)


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
    """Returns the index of the option in each cell; 0 where it is empty."""
    known: dict[str, int] = {"": 0}
    for line, cell in zip(lines, cells, strict=True):
        if cell not in known:
            try:
                known[cell] = choice.index(_option(cell, choice), position)
            except ValueError as error:
                raise ValueError(f"{path}, line {line}: column {column!r}: {error}") from None
    return [known[cell] for cell in cells]


def _option(cell: str, choice: Choice):
    """Returns the option that a cell writes: as its text, or as its number ("3.0" for 3)."""
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


def _check_twice(path, lines, space: Space, archs) -> None:
    with jax.ensure_compile_time_eval():
        codes = np.asarray(space.encode(space.canonical(archs)))
    seen: dict[bytes, int] = {}
    for line, code in zip(lines, codes, strict=True):
        first = seen.setdefault(code.tobytes(), line)
        if first != line:
            raise ValueError(
                f"{path}, lines {first} and {line} are one architecture; keep one of "
                "them, or average their metrics."
            )


def _numbers(path, column: str, cells: list[str], lines: list[int]) -> np.ndarray:
    values = np.full(len(cells), np.nan, np.float32)
    for k, (line, cell) in enumerate(zip(lines, cells, strict=True)):
        try:
            values[k] = float(cell or "nan")
        except ValueError:
            raise ValueError(
                f"{path}, line {line}: metric {column!r} is {cell!r}, not a number. "
                f"A column that is neither a metric nor a choice: "
                f"ignore=({column!r},)."
            ) from None
    return values

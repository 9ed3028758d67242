"""The static part of a call of `run`: the axes of its operands, the combinations of sizes, the branches."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxnas.elastic.width import Joint, Width

Axes = tuple[str, ...] | None  # the names of an array's axes; None where all of them are whole
Sizes = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that is static in a call of `run`.

    Attributes:
      function, maskable, masked: see `run`.
      operand_axes, output_axes: their names.
      names: of the widths.
      rows: every combination of sizes that there is, in the order of `names`; None where the gate is 0.
      branches: the sizes at which each branch runs; None for the one that returns zeros.
      branch_of: for each row its branch.
    """

    function: Callable[..., Any]
    operand_axes: tuple[Axes, ...]
    output_axes: tuple[Axes, ...]
    names: tuple[str, ...]
    rows: tuple[Sizes | None, ...]
    branches: tuple[Sizes | None, ...]
    branch_of: tuple[int, ...]
    maskable: tuple[str, ...]
    masked: Callable[..., Any] | None

    @property
    def largest(self) -> Sizes:
        """The largest size of each width."""
        return tuple(map(max, zip(*(row for row in self.rows if row is not None), strict=True)))


@dataclasses.dataclass(frozen=True)
class _Method:
    """A method that equals that of an equal object, as Python's do not: equal layers have one plan."""

    function: Callable[..., Any]
    owner: Any

    def __call__(self, *arguments: Any) -> Any:
        return self.function(self.owner, *arguments)


def by_value(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """A bound method as a function that is compared by value."""
    return _Method(function.__func__, function.__self__) if inspect.ismethod(function) else function


@functools.lru_cache(maxsize=4096)
def make_plan(
    function: Callable[..., Any],
    axes: str,
    names: tuple[str, ...],
    rows: tuple[Sizes | None, ...],
    maskable: tuple[str, ...],
    max_branches: int,
    masked: Callable[..., Any] | None,
) -> Plan:
    """The plan of a call of `run`, whose arguments these are; `rows` as `rows_of` gives them."""
    plan = Plan(function, *parse(axes), names, rows, (), (), maskable, masked)
    return with_branches(plan, maskable, max_branches)


def with_branches(plan: Plan, maskable: tuple[str, ...], limit: int = 1) -> Plan:
    """The same with as few branches as masks for these widths allow, or as the limit asks for."""
    rounded = _round_up(plan.rows, tuple(name in maskable for name in plan.names), limit)
    branches = tuple(dict.fromkeys(rounded))
    branch_of = tuple(branches.index(sizes) for sizes in rounded)
    return dataclasses.replace(plan, branches=branches, branch_of=branch_of, maskable=maskable)


def _round_up(
    rows: tuple[Sizes | None, ...], may_grow: tuple[bool, ...], limit: int
) -> tuple[Sizes | None, ...]:
    """The rows with sizes rounded up, so that there are at most `limit` different ones, if that is possible.

    Sizes are given up one after another, and each time the one that adds least work for each branch saved.
    """

    def rounded(steps: dict[int, tuple[int, ...]]) -> tuple[Sizes | None, ...]:
        def up(column: int, size: int) -> int:
            return min(step for step in steps[column] if step >= size) if column in steps else size

        return tuple(row and tuple(up(column, size) for column, size in enumerate(row)) for row in rows)

    def count_and_work(found: tuple[Sizes | None, ...]) -> tuple[int, int]:
        return len(set(found) - {None}), sum(math.prod(row) for row in found if row is not None)

    columns = list(zip(*(row for row in rows if row is not None), strict=True))
    steps = {i: tuple(sorted(set(columns[i]))) for i in range(len(columns)) if may_grow[i]}
    found = rounded(steps)
    count, work = count_and_work(found)
    while count > limit and any(len(sizes) > 1 for sizes in steps.values()):
        candidates = []
        for column, sizes in steps.items():
            for size in sizes[:-1]:
                fewer = steps | {column: tuple(one for one in sizes if one != size)}
                fewer_count, more_work = count_and_work(rounded(fewer))
                saved = count - fewer_count
                candidates.append(((more_work - work) / saved if saved else math.inf, len(candidates), fewer))
        steps = min(candidates)[2]
        found = rounded(steps)
        count, work = count_and_work(found)
    return found


@functools.lru_cache(maxsize=1024)
def parse(axes: str) -> tuple[tuple[Axes, ...], tuple[Axes, ...]]:
    """The names of the axes of each operand and of each output."""

    def side(text: str) -> tuple[Axes, ...]:
        parts = [tuple(part.split()) for part in text.split(",")]
        return tuple(None if part == ("...",) else part for part in parts)

    operands, arrow, outputs = axes.partition("->")
    return side(operands), side(outputs) if arrow else ()


def check(
    axes: str, widths: dict[str, Width], operands: tuple[jax.Array, ...], maskable: tuple[str, ...]
) -> None:
    """Checks that the axes of a call of `run` are those of its operands."""
    named, outputs = parse(axes)
    if len(named) != len(operands):
        raise ValueError(f"{axes!r} names the axes of {len(named)} operands; there are {len(operands)}.")
    for number, (one, operand) in enumerate(zip(named, operands, strict=True)):
        sizes = zip(one or (), operand.shape, strict=False)
        expected = tuple(widths[name].maximum if name in widths else size for name, size in sizes)
        if one is not None and (len(one) != operand.ndim or expected != operand.shape):
            raise ValueError(
                f"Operand {number} has shape {operand.shape}; {' '.join(one)!r} with the maximal sizes of "
                f"the widths is {expected}."
            )
    if unknown := set(maskable) - set(widths):
        raise ValueError(f"maskable has {sorted(unknown)}, which are none of the widths {list(widths)}.")
    if maskable and not outputs:
        raise ValueError(f"With maskable widths, name the axes of the outputs too: '{axes} -> ...'.")


def rows_of(choice: Joint, count: int) -> tuple[tuple[Sizes | None, ...], jax.Array | int]:
    """The combinations of `count` sizes that there are, and the index of the active one if all are hard."""
    index = 0 if choice.is_soft else choice.index()
    if len(choice.tables) == count:
        return choice.rows, index
    sizes = [None if row[-1] == 0 else row[:-1] for row in choice.rows]
    rows = tuple(dict.fromkeys(sizes))
    to_rows = [rows.index(row) for row in sizes]
    return rows, to_rows[index] if isinstance(index, int) else jnp.asarray(to_rows, jnp.int32)[index]

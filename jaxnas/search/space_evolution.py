"""Evolution of a search space: the options of its choices move to where sampled architectures err less.

S3 (Chen et al., NeurIPS 2021, arXiv 2111.14725) trains a supernet, measures architectures of its space, and
moves the space for the next supernet:

    archs = space.sample(key, 1000)
    errors = 1 - np.asarray(evaluate(variables, archs)["accuracy"])
    evolved = search.evolve_space(space, archs, errors, rules={"depth": search.ShiftRule(most=16)})
    evolved.space  # of the next supernet
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxnas.checks import check_numbers
from jaxnas.choice import Choice, Option, nearest
from jaxnas.space import Arch, Space

TOP = 50  # architectures whose mean error is the top-tier error, as in the paper
LEAST_SAMPLE = 10  # architectures; what fewer of them say about a space is chance
_SURE = 2  # standard errors; a slope within them is taken for chance


def et_error(errors: Any, *, top: int = TOP) -> float:
    """Returns the E-T error of errors [n]: half their mean and half the mean of the `top` least of them."""
    errors = _sample(errors, top)
    return float(np.mean(_terms(errors, np.ones(len(errors)), top)))


def _terms(errors: np.ndarray, weights: np.ndarray, top: int) -> np.ndarray:
    """Numbers [n] whose weighted mean is the E-T error, and whose spread tells how far chance moves it.

    The mean of the top ones is q - sum(w (q - error)+) / sum(w of the top ones) with their greatest error q.
    """
    order = np.argsort(errors, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    taken = np.clip(top - before, 0, weights[order])  # the part of each weight that is at the top
    share = taken.sum() / weights.sum()
    worst = errors[order][taken > 0][-1]
    return (errors + worst - np.maximum(worst - errors, 0) / share) / 2


def _sample(errors: Any, top: int) -> np.ndarray:
    """The errors, float64 [n]; raises ValueError for what is no sample."""
    errors = np.asarray(errors, np.float64)
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise ValueError(f"top is {top!r}, expected a whole number of architectures, at least 1.")
    if errors.ndim != 1 or len(errors) < LEAST_SAMPLE:
        raise ValueError(
            f"The errors have the shape {list(errors.shape)}; expected [n], one for each of at least "
            f"{LEAST_SAMPLE} architectures, and better hundreds (the paper has 1,000)."
        )
    if len(wrong := np.flatnonzero(~np.isfinite(errors))):
        raise ValueError(
            f"{len(wrong)} of {len(errors)} errors are no numbers, the first of architecture {wrong[0]}: "
            f"{errors[wrong[0]]}. Evaluate these again, or leave out their architectures."
        )
    return errors


class OptionErrors(NamedTuple):
    """The E-T errors of the members of each of the k options of a choice."""

    options: tuple[Option, ...]
    errors: np.ndarray  # float64 [k]
    deviations: (
        np.ndarray
    )  # what each architecture adds, float64 [n, k]; a column's norm is the standard error


def decompose(
    space: Space, archs: Arch, errors: Any, *, top: int = TOP, names: Collection[str] | None = None
) -> dict[str, OptionErrors]:
    """Returns the E-T error of a sample by choice and option (in S3, of subspaces).

    The positions of a repeated choice are pooled: an architecture counts for an option by the share of its
    active positions that have it, so that all architectures count the same, however deep they are.

    Args:
      space, archs, errors, top: as of `evolve_space`.
      names: of the choices; by default all.
    """
    errors = _sample(errors, top)
    space.check(archs)
    if (batch := space.encode(archs).shape[:-1]) != errors.shape:
        raise ValueError(
            f"There are {len(errors)} errors, but the architectures have the leading axes {list(batch)}, "
            f"expected [{len(errors)}]: a batch of as many, as space.sample(key, {len(errors)}) gives it."
        )
    active, chosen = space.active(archs), list(space) if names is None else names
    return {
        name: _of_options(name, choice, archs[name], active[name], errors, top)
        for name, choice in space.decisions
        if name in chosen
    }


def _of_options(
    name: str, choice: Choice, indices: Any, active: Any, errors: np.ndarray, top: int
) -> OptionErrors:
    count, options = len(errors), choice.options
    rows = [choice.options_at(p) for p in range(math.prod(choice.shape))]  # options by position
    index, counts = (np.asarray(x).reshape(count, len(rows)) for x in (indices, active))
    hits = np.zeros((count, len(options)))  # how many active positions of each architecture have an option
    for position, own in enumerate(rows):
        numbers = np.asarray([options.index(option) for option in own])
        hits[np.arange(count), numbers[index[:, position]]] += counts[:, position]
    shares = hits / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    if len(empty := np.flatnonzero(~shares.any(axis=0))):
        raise ValueError(
            f"None of the {len(errors)} architectures has the option {options[empty[0]]!r} of {name!r}. "
            f"Sample more, or leave this choice out (of evolve_space by fixed=({name!r},))."
        )
    # Above the least one, so that equal errors give differences of exactly 0.
    least, found, deviations = errors.min(), np.zeros(len(options)), np.zeros(shares.shape)
    for column, weights in enumerate(shares.T):
        terms = _terms(errors - least, weights, top)
        mean = np.average(terms, weights=weights)
        found[column] = least + mean
        deviations[:, column] = weights * (terms - mean) / weights.sum()
    return OptionErrors(options, found, deviations)


def fit_line(found: OptionErrors) -> tuple[float, float, float]:
    """Fits a line through the E-T errors of the options of a choice, by least squares.

    Returns:
      Its slope, error for each unit of the option; the standard error of the slope, by the chance of which
      architectures were sampled; and the part of the differences between the options that the line explains.
    """
    values = np.asarray(found.options, np.float64)
    centered = values - values.mean()
    factors = centered / (centered @ centered)  # the slope is a sum of the errors with these factors
    slope = float(factors @ found.errors)
    around = found.errors - found.errors.mean()
    all_of_it, rest = float(around @ around), float(np.sum((around - slope * centered) ** 2))
    explained = min(max(1 - rest / all_of_it, 0.0), 1.0) if all_of_it > 0 else 0.0
    return slope, float(np.linalg.norm(found.deviations @ factors)), explained


@dataclasses.dataclass(frozen=True)
class ShiftRule:
    """How the options of one choice may move, and which values are legal.

    Attributes:
      step: the distance of one step, gamma in the paper; None for the least distance between two options.
      threshold: by how much the line must fall over a step for one step to be made, by twice as much for two,
        and so on: gamma times the paper's tau. None makes one step where the slope is beyond twice its
        standard error, and none elsewhere.
      least: no option may be below it. None keeps positive options positive, and others at 0 or above unless
        there is one below 0.
      most: no option may be above it; None for no bound.
      multiple: options are multiples of it, as of 8 for widths: moved ones are rounded to the nearest.
      values: all legal values, where they do not lie at even distances, as windows that divide a map. An
        option then moves by one place in them for each step.
    """

    step: float | None = None
    threshold: float | None = None
    least: float | None = None
    most: float | None = None
    multiple: float | None = None
    values: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_numbers(self, "step", "threshold", "multiple", above=0, none=True)
        check_numbers(self, "least", "most", none=True)
        if self.least is not None and self.most is not None and not self.least <= self.most:
            raise ValueError(
                f"ShiftRule: least is {self.least} and most is {self.most}; expected least <= most."
            )


def shift_options(
    name: str, options: tuple[float, ...], steps: int, rule: ShiftRule = ShiftRule()
) -> tuple[float, ...]:
    """Returns the options of a choice moved by some steps, and rounded, without those that are not legal."""
    whole = all(isinstance(option, int) for option in options)
    if wrong := [option for option in options if not _is_legal(option, options, rule)]:
        raise ValueError(
            f"{name!r} has the options {options}, of which {wrong} are not legal by {rule}. "
            "Widen the limits, or restrict the space first."
        )
    if not steps:
        return options
    step, moved = _step_of(options, rule), list[float]()
    places = sorted(rule.values)
    for option in options:
        if places:
            place = places.index(option) + steps
            moved += [places[place]] if 0 <= place < len(places) else []
            continue
        value = option + steps * step
        # Halves are rounded up, all of them, so that options keep their distances.
        if rule.multiple is not None:
            value = math.floor(value / rule.multiple + 0.5) * rule.multiple
        # Without the last digits, which are of the addition: 0.3 and not 0.30000000000000004.
        moved.append(math.floor(value + 0.5) if whole else float(f"{value:.10g}"))
    legal = tuple(dict.fromkeys(value for value in moved if _is_legal(value, options, rule)))
    if not legal:
        raise ValueError(
            f"{name!r} would have no legal value left: its options {options} move by {steps} x {step:g} to "
            f"{tuple(moved)}, and the rule is {rule}. Widen its limits, take a smaller step or a larger "
            f"threshold in rules[{name!r}], or leave the choice as it is by fixed=({name!r},)."
        )
    return legal


def _step_of(options: tuple[float, ...], rule: ShiftRule) -> float:
    if rule.step is None and len(options) < 2:
        raise ValueError(
            f"One option alone, {options}, says no distance of a step; give ShiftRule(step=...)."
        )
    return float(np.diff(np.sort(options)).min()) if rule.step is None else rule.step


def _is_legal(value: float, options: tuple[float, ...], rule: ShiftRule) -> bool:
    lowest = min(options)
    if rule.least is not None:
        above = value >= rule.least
    else:
        above = value > 0 if lowest > 0 else value >= 0 or lowest < 0
    below = rule.most is None or value <= rule.most
    ratio = 0.0 if rule.multiple is None else value / rule.multiple
    whole = math.isclose(ratio, round(ratio), abs_tol=1e-6)
    return above and below and whole and (not rule.values or value in rule.values)


@dataclasses.dataclass(frozen=True)
class Shift:
    """The move of one choice."""

    name: str
    old: tuple[float, ...]  # its options in the space
    new: tuple[float, ...]  # and in the next one
    step: float  # the distance of one step
    steps: int  # along the negative slope; 0 where rounding brought all options back
    slope: float  # of the line through the errors of the options; see `fit_line`
    standard_error: float
    r_squared: float


@dataclasses.dataclass(frozen=True)
class EvolvedSpace:
    """The next space, and why it is that one."""

    space: Space  # with the same names in the same order
    et_error: float  # of the sample of the old space
    errors: tuple[float, ...]  # of its architectures, as they were given
    shifts: tuple[Shift, ...]  # of the choices that could move


def evolve_space(
    space: Space,
    archs: Arch,
    errors: Any,
    *,
    rules: Mapping[str, ShiftRule] | None = None,
    fixed: Collection[str] = (),
    top: int = TOP,
) -> EvolvedSpace:
    """Returns the next space (S3's algorithm of space evolution).

    All options of a choice move together, along the negative slope of the line through their E-T errors. What
    is repeated up to a depth gets as many positions as the depth then needs. Choices that are no sizes stay:
    those with words or one option alone, whose options differ by position, or that a condition names.

    Args:
      space: the search space.
      archs: a batch of hard architectures, leading axis n, drawn uniformly: `space.sample(key, n)`.
      errors: of these, [n], such as 1 - accuracy with the weights of the supernet; less is better.
      rules: by name of a choice, how it may move; others follow `ShiftRule()`.
      fixed: names of choices that do not move.
      top: how many architectures count for a top-tier error.

    Raises:
      ValueError: options that are not legal by their rule, or none that is after the move.
    """
    rules, movable = rules or {}, _movable(space, fixed)
    for name in (*fixed, *rules):
        if name not in space:
            raise ValueError(f"evolve_space: {name!r} in fixed or rules is no choice{nearest(name, space)}")
    for name, rule in rules.items():
        if not isinstance(rule, ShiftRule):
            raise TypeError(f"evolve_space: the rule of {name!r} must be a ShiftRule, got {rule!r}.")
        if name not in movable and len(space[name].options) > 1:  # with one left, it has come to its limits
            raise ValueError(f"evolve_space: {name!r} has a rule and does not move, only {movable} do.")
    errors, shifts = _sample(errors, top), []
    for name, found in decompose(space, archs, errors, top=top, names=movable).items():
        slope, error, explained = fit_line(found)
        options: Any = found.options
        rule = rules.get(name, ShiftRule())
        step = _step_of(options, rule)
        if rule.threshold is None:
            steps = -int(math.copysign(1, slope)) if abs(slope) > _SURE * error else 0
        else:
            steps = -int(slope * step / rule.threshold)  # int() cuts towards 0
        new = shift_options(name, options, steps, rule)
        steps = steps if new != options else 0
        shifts.append(Shift(name, options, new, step, steps, slope, error, explained))
    moved = _replace(space, {shift.name: shift.new for shift in shifts})
    return EvolvedSpace(moved, et_error(errors, top=top), tuple(errors.tolist()), tuple(shifts))


def _movable(space: Space, fixed: Collection[str]) -> list[str]:
    """The names of the choices that can move; see `evolve_space`."""
    kinds = {choice.condition[0] for choice in space.choices.values() if choice.condition is not None}
    return [
        name
        for name, choice in space.decisions
        if name not in kinds and name not in fixed and choice.per_position is None and choice.length != 0
        if len(choice.options) > 1 and not any(isinstance(option, str) for option in choice.options)
    ]


def _replace(space: Space, options: Mapping[str, tuple[Option, ...]]) -> Space:
    """The space with other options for some names, and as many positions as its depths then need."""
    choices = {
        name: choice.replace(options=options[name]) if name in options else choice
        for name, choice in space.decisions
    }
    # Where a depth has moved, what is repeated up to it follows; and so does what has to be as long as that.
    lengths = {
        name: max(choices[choice.active].table.tolist())
        for name, choice in space.decisions
        if choice.active is not None and choices[choice.active] != space[choice.active]
    }
    pairs = [
        (name, choice.condition[0])
        for name, choice in space.decisions
        if choice.condition is not None and choice.length is not None and space[choice.condition[0]].shape
    ]
    for _ in pairs:
        for pair in pairs:
            known = [lengths[name] for name in pair if name in lengths]
            lengths |= dict.fromkeys(pair, max(known)) if known else {}
    for name, length in lengths.items():
        last = math.prod(choices[name].shape) - 1  # new positions have the options of the last one
        rows = [choices[name].options_at(min(place, last)) for place in range(length)]
        choices[name] = choices[name].keep(rows) if length != last + 1 else choices[name]
    return Space(**choices)

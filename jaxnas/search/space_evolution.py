"""Evolution of a search space: the options of its choices move to where sampled architectures err less.

S3 (Chen et al., "Searching the Search Space of Vision Transformer", NeurIPS 2021, arXiv 2111.14725). A
supernet is trained, architectures of its space are sampled and measured, and the next supernet has the moved
space:

    archs = space.sample(key, 1000)
    errors = 1 - np.asarray(evaluate(variables, archs)["accuracy"])
    evolved = search.evolve_space(space, archs, errors, rules={"depth": search.ShiftRule(most=16)})
    evolved.space  # of the next supernet

Its parts are functions of their own. All are pure, on the host and in float64. They know a space and a table
of errors, and no network: the stage of a network is a part of the name of a choice, as in "stage3_window".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from jaxnas.checks import check_numbers
from jaxnas.choice import Choice, Option, nearest
from jaxnas.space import Arch, Space

TOP = 50  # architectures whose mean error is the top-tier error, as in the paper
LEAST_SAMPLE = 10  # architectures; what fewer of them say about a space is chance
_SURE = 2  # standard errors; a slope within them is taken for chance


# ---- The E-T error of a sample.


def et_error(errors: Any, *, top: int = TOP) -> float:
    """The E-T error Q = (Q_e + Q_t) / 2 of a sample of architectures (S3, the measure of a space).

    Q_e, the expected error, is the mean of all; Q_t, the top-tier error, is the mean of the `top` least ones.

    Args:
      errors: of the architectures, [n]; less is better.
      top: how many count for the top-tier error; all, where there are no more.

    Raises:
      ValueError: errors that are no numbers, another shape, fewer than 10 architectures, or a top below 1.
    """
    errors = _sample(errors, top)
    return float(np.mean(_terms(errors, np.ones(len(errors)), top)))


def _terms(errors: np.ndarray, weights: np.ndarray, top: int) -> np.ndarray:
    """Numbers whose weighted mean is the E-T error, one for each architecture, [n].

    The mean of the top ones is q - sum(w (q - error)+) / sum(w of the top ones) with their greatest error q,
    and so it is a mean over all architectures, too. The spread of these numbers tells how far chance moves
    the E-T error: to first order it makes no difference that q is itself one of the sampled errors.
    """
    order = np.argsort(errors, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    taken = np.clip(top - before, 0, weights[order])  # the part of each weight that is at the top
    share = taken.sum() / weights.sum()
    worst = errors[order][taken > 0][-1]
    return (errors + worst - np.maximum(worst - errors, 0) / share) / 2


def _sample(errors: Any, top: int) -> np.ndarray:
    """The errors, float64 [n]; refuses what is no sample."""
    errors = np.asarray(errors, np.float64)
    if errors.ndim != 1:
        raise ValueError(
            f"The errors have the shape {list(errors.shape)}; expected [n], one for each architecture."
        )
    wrong = np.flatnonzero(~np.isfinite(errors))
    if len(wrong):
        raise ValueError(
            f"{len(wrong)} of {len(errors)} errors are no numbers, the first of architecture {wrong[0]}: "
            f"{errors[wrong[0]]}. Evaluate these again, or leave them out together with their architectures."
        )
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise ValueError(f"top is {top!r}, expected a whole number of architectures, at least 1.")
    if len(errors) < LEAST_SAMPLE:
        raise ValueError(
            f"Got {len(errors)} architectures; expected at least {LEAST_SAMPLE}, and better hundreds "
            "(the paper has 1,000): with so few, the errors of the options differ by chance."
        )
    return errors


# ---- Its decomposition, and a line through it.


@dataclasses.dataclass(frozen=True, eq=False)
class OptionErrors:
    """The E-T errors of the members of each option of a choice.

    Attributes:
      options: of the choice, k of them.
      errors: the E-T error of each option, float64 [k].
      deviations: what each architecture adds to the difference of an E-T error from that of infinitely many
        architectures, to first order, float64 [n, k]. The root of the sum of their squares is the standard
        error.
    """

    options: tuple[Option, ...]
    errors: np.ndarray
    deviations: np.ndarray


def decompose(
    space: Space, archs: Arch, errors: Any, *, top: int = TOP, names: Collection[str] | None = None
) -> dict[str, OptionErrors]:
    """The E-T error of a sample by choice and option (S3: of subspaces, one for each dimension of a stage).

    The members of an option of a choice made once are the architectures that have it. A repeated choice is
    one dimension, and its positions are pooled: an architecture counts for an option by the share of its
    active positions that have it. So all architectures count the same, however deep they are. A difference
    between options is that of one position on average, not of all positions together.

    Args:
      space: the search space.
      archs: a batch of hard architectures of it, leading axis n.
      errors: of these, [n]; less is better.
      top: how many members count for the top-tier error of an option; all, where there are no more.
      names: of the choices; by default all.

    Returns:
      The errors by name, in the order of the space.

    Raises:
      ValueError: architectures of another space or number; an unknown name; what `et_error` refuses; an
        option without members.
    """
    errors = _sample(errors, top)
    _check_archs(space, archs, len(errors))
    _check_names(space, names or (), "names")
    shares = _shares(space, archs, len(errors))
    return {
        name: _of_options(name, choice.options, shares[name], errors, top)
        for name, choice in space.decisions
        if names is None or name in names
    }


def _check_archs(space: Space, archs: Arch, count: int) -> None:
    batch = space.encode(archs).shape[:-1]  # refuses soft ones
    space.check(archs)
    if batch != (count,):
        raise ValueError(
            f"There are {count} errors, but the architectures have the leading axes {list(batch)}, expected "
            f"[{count}]: a batch of as many, as space.sample(key, {count}) gives it."
        )


def _shares(space: Space, archs: Arch, count: int) -> dict[str, np.ndarray]:
    """By choice, the share of the active positions of each architecture that have each option, [n, k]."""
    active, shares = space.active(archs), {}
    for name, choice in space.decisions:
        rows = [choice.options_at(p) for p in range(math.prod(choice.shape))]  # options by position
        index, counts = (np.asarray(x).reshape(count, len(rows)) for x in (archs[name], active[name]))
        hits = np.zeros((count, len(choice.options)))
        for position, options in enumerate(rows):
            numbers = np.asarray([choice.options.index(option) for option in options])
            hits[np.arange(count), numbers[index[:, position]]] += counts[:, position]
        shares[name] = hits / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return shares


def _of_options(
    name: str, options: tuple[Option, ...], shares: np.ndarray, errors: np.ndarray, top: int
) -> OptionErrors:
    # Above the least one, so that equal errors give differences of exactly 0.
    least, found, deviations = errors.min(), np.zeros(len(options)), np.zeros(shares.shape)
    for column, option in enumerate(options):
        weights = shares[:, column]
        if not weights.any():
            raise ValueError(
                f"None of the {len(errors)} architectures has the option {option!r} of {name!r}, so nothing "
                "is known about it. Sample more architectures, or leave this choice out "
                f"(of evolve_space by fixed=({name!r},))."
            )
        terms = _terms(errors - least, weights, top)
        mean = np.average(terms, weights=weights)
        found[column] = least + mean
        deviations[:, column] = weights * (terms - mean) / weights.sum()
    return OptionErrors(options, found, deviations)


def fit_line(found: OptionErrors) -> tuple[float, float, float]:
    """The line through the E-T errors of the options of a choice, by least squares (S3: of each subspace).

    Returns:
      Its slope w, error for each unit of the option. The standard error of the slope, by the chance of which
      architectures were sampled; that of training and of the data that they were measured on is not in it,
      and a threshold keeps small slopes from counting. The part of the differences between the options that
      the line explains, from 0 to 1; 0 where there is no difference, and always 1 of two options that differ.

    Raises:
      ValueError: fewer than two options, or options that are no numbers.
    """
    if len(found.options) < 2 or any(isinstance(option, str) for option in found.options):
        raise ValueError(f"fit_line: a line needs two options that are numbers; got {found.options}.")
    values = np.asarray(found.options, np.float64)
    centered = values - values.mean()
    factors = centered / (centered @ centered)  # the slope is a sum of the errors with these factors
    slope = float(factors @ found.errors)
    around = found.errors - found.errors.mean()
    all_of_it, rest = float(around @ around), float(np.sum((around - slope * centered) ** 2))
    explained = min(max(1 - rest / all_of_it, 0.0), 1.0) if all_of_it > 0 else 0.0
    return slope, float(np.linalg.norm(found.deviations @ factors)), explained


# ---- The shift of a choice.


@dataclasses.dataclass(frozen=True)
class ShiftRule:
    """How the options of one choice may move, and which values are legal.

    Attributes:
      step: the distance of one step, gamma in the paper; None for the least distance between two options.
      threshold: by how much the line must fall over a step for one step to be made, by twice as much for two,
        and so on. It is gamma times the paper's tau, which is a slope. None makes one step where the slope
        is beyond twice its standard error, and none elsewhere.
      least: no option may be below it. None keeps positive options positive, and others at 0 or above unless
        there is one below 0.
      most: no option may be above it; None for no bound.
      multiple: options are multiples of it, as of 8 for widths: moved ones are rounded to the nearest.
      values: all legal values, where they do not lie at even distances, as windows that divide a map. An
        option then moves by one place in them for each step.

    Raises:
      ValueError: a step, threshold or multiple that is no number above 0, or `least` above `most`.
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


def steps_of(slope: float, standard_error: float, step: float, threshold: float | None = None) -> int:
    """How many steps the options of a choice make along the negative slope; see `ShiftRule`.

    Args:
      slope: of the line through the errors of the options.
      standard_error: of the slope.
      step: the distance of one step, gamma.
      threshold: the fall of the line over one step that is needed, tau gamma.

    Returns:
      -floor(w / tau), taken of the size of w, so that a slope below tau moves nothing; without a threshold
      -1, 0 or 1.
    """
    if threshold is None:
        return -int(math.copysign(1, slope)) if abs(slope) > _SURE * standard_error else 0
    return -int(slope * step / threshold)  # int() cuts towards 0


def shift_options(
    name: str, options: tuple[float, ...], steps: int, rule: ShiftRule = ShiftRule()
) -> tuple[float, ...]:
    """The options of a choice moved by some steps and rounded; those that are no longer legal are dropped.

    Whole numbers stay whole numbers. Without steps nothing changes.

    Args:
      name: of the choice, for messages.
      options: numbers.
      steps: how many, and in which direction.
      rule: the distance of a step, and the limits.

    Raises:
      ValueError: options that are not legal by the rule as they are, or no legal one after the shift.
    """
    whole = all(isinstance(option, int) for option in options)
    if wrong := [option for option in options if not _is_legal(option, options, rule)]:
        raise ValueError(
            f"{name!r} has the options {options}, of which {wrong} are not legal; its limits are: "
            f"{_limits(rule)}. Widen them, or restrict the space first."
        )
    if not steps:
        return options
    step, moved = step_of(options, rule), list[float]()
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
            f"{tuple(moved)}, and its limits are: {_limits(rule)}. Widen them, or take a smaller step or a "
            f"larger threshold in rules[{name!r}], or leave the choice as it is by fixed=({name!r},)."
        )
    return legal


def step_of(options: tuple[float, ...], rule: ShiftRule = ShiftRule()) -> float:
    """The distance of one step: that of the rule, or the least one between two of the options.

    Raises:
      ValueError: one option alone, and no step in the rule.
    """
    if rule.step is not None:
        return rule.step
    if len(options) < 2:
        raise ValueError(
            f"One option alone, {options}, says no distance of a step; give ShiftRule(step=...)."
        )
    return float(np.diff(np.sort(options)).min())


def _is_legal(value: float, options: tuple[float, ...], rule: ShiftRule) -> bool:
    lowest = min(options)
    if rule.least is not None:
        above = value >= rule.least
    else:
        above = value > 0 if lowest > 0 else value >= 0 or lowest < 0
    if rule.values and value not in rule.values:
        return False
    ratio = 0.0 if rule.multiple is None else value / rule.multiple
    return (
        above
        and (rule.most is None or value <= rule.most)
        and math.isclose(ratio, round(ratio), abs_tol=1e-6)
    )


def _limits(rule: ShiftRule) -> str:
    """The limits of a rule in words."""
    if rule.values:
        return f"one of {rule.values}"
    given = {"least": rule.least, "most": rule.most, "multiple": rule.multiple}
    texts = [f"{name}={value:g}" for name, value in given.items() if value is not None]
    return ", ".join(texts if rule.least is not None else ["positive options stay positive", *texts])


# ---- All of it: from a space to the next.


@dataclasses.dataclass(frozen=True)
class Shift:
    """What became of one choice.

    Attributes:
      name: of the choice.
      old: its options.
      new: its options in the next space.
      step: the distance of one step.
      steps: how many were made along the negative slope; below 0 towards smaller values, and 0 where rounding
        brought all options back.
      slope, standard_error, r_squared: of the line through the errors of the options; see `fit_line`.
    """

    name: str
    old: tuple[float, ...]
    new: tuple[float, ...]
    step: float
    steps: int
    slope: float
    standard_error: float
    r_squared: float


@dataclasses.dataclass(frozen=True)
class EvolvedSpace:
    """The next space, and why it is that one.

    Attributes:
      space: the next space, with the same names in the same order.
      et_error: of the sample of the old space.
      errors: of its architectures, as they were given.
      shifts: of the choices that could move.
    """

    space: Space
    et_error: float
    errors: tuple[float, ...]
    shifts: tuple[Shift, ...]


def evolve_space(
    space: Space,
    archs: Arch,
    errors: Any,
    *,
    rules: Mapping[str, ShiftRule] | None = None,
    fixed: Collection[str] = (),
    top: int = TOP,
) -> EvolvedSpace:
    """One step of the evolution of a space (S3, its algorithm of space evolution).

    All options of a choice move together, along the negative slope of the line through their E-T errors. What
    is repeated up to a depth gets as many positions as the depth then needs. Some choices stay as they are:
    those with words among their options, or with one option alone; those whose options differ by position, or
    that the condition of another choice names, since such numbers are places and kinds, and no sizes; and
    `fixed` ones.

    Args:
      space: the search space.
      archs: a batch of hard architectures, leading axis n, drawn uniformly: `space.sample(key, n)`.
      errors: of these, [n], such as 1 - accuracy with the weights of the supernet; less is better. Where all
        are within a bound of the cost, those of a wide option are narrow in other choices, so that a slope
        is closer to that of the error at equal cost.
      rules: by name of a choice, how it may move; others follow `ShiftRule()`.
      fixed: names of choices that do not move.
      top: how many architectures count for a top-tier error.

    Returns:
      The next space and what led to it.

    Raises:
      TypeError: soft architectures, or a rule that is none.
      ValueError: architectures of another space; an unknown name; a rule for a choice that cannot move; what
        `et_error`, `decompose` and `shift_options` refuse.
    """
    rules, movable = rules or {}, _movable(space, fixed)
    _check_names(space, fixed, "fixed")
    _check_names(space, rules, "rules")
    for name, rule in rules.items():
        if not isinstance(rule, ShiftRule):
            raise TypeError(f"evolve_space: the rule of {name!r} must be a ShiftRule, got {rule!r}.")
        if name not in movable and len(space[name].options) > 1:  # with one left, it has come to its limits
            raise ValueError(
                f"evolve_space: there is a rule for {name!r}, which does not move: {space[name]}. Only "
                f"choices of sizes that are not fixed do; here they are {movable}."
            )
    errors, shifts = _sample(errors, top), []
    for name, found in decompose(space, archs, errors, top=top, names=movable).items():
        slope, error, explained = fit_line(found)
        options: Any = found.options
        rule = rules.get(name, ShiftRule())
        step = step_of(options, rule)
        steps = steps_of(slope, error, step, rule.threshold)
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
    return Space(**{name: _lengthen(choice, lengths.get(name)) for name, choice in choices.items()})


def _lengthen(choice: Choice, length: int | None) -> Choice:
    """A repeated choice with another number of positions; new ones have the options of the last one."""
    if length is None or length == choice.length:
        return choice
    if choice.per_position is None:
        return choice.replace(length=length)
    rows = list(choice.per_position[:length])
    return choice.keep(rows + [rows[-1]] * (length - len(rows)))


def _check_names(space: Space, names: Collection[str], what: str) -> None:
    for name in names:
        if name not in space:
            raise ValueError(f"evolve_space: {what} has {name!r}, which is no choice{nearest(name, space)}")

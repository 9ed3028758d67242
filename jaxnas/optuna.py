"""Optuna beside jaxnas: a search as a study, and any sampler of Optuna as a strategy.

study = jaxnas.optuna.to_study(space, result.history)      # for optuna-dashboard, importances, plots
strategy = jaxnas.optuna.FromOptuna(space, sampler=optuna.samplers.TPESampler)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.choice import element_name
from jaxnas.counting import Element
from jaxnas.search import bounds as bounds_lib
from jaxnas.search.proposals import propose
from jaxnas.search.strategy import State, Strategy, canonical
from jaxnas.space import Arch, Space

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
    from optuna.trial import FrozenTrial, Trial, TrialState
except ImportError as error:
    raise ImportError("jaxnas.optuna needs the package optuna: pip install 'jaxnas[optuna]'") from error

_CONSTRAINTS = "constraints"  # the system attribute in which Optuna keeps the constraints of a trial
_ATTEMPTS = 50  # of a sampler, to propose an architecture that is new and within the bounds


def to_study(
    space: Space,
    history: Iterable[Mapping[str, Any]],
    *,
    bounds: Any = (),
    study: optuna.Study | None = None,
) -> optuna.Study:
    """The evaluations of a search as a study of Optuna.

    Args:
      space: that was searched.
      history: the lines of the search: `Result.history`, or the parsed lines of a history file.
      bounds: of the search, {cost name: (min | None, max | None)}, which become constraints.
      study: to add to, such as one in a database that optuna-dashboard reads; a new one in memory if None.

    Returns:
      The study: decisions are parameters, such as "depth" and "width[0]", if they are active; scores are
      values, to be maximized; costs are user attributes; failed evaluations are failed trials.

    Raises:
      ValueError: a line or the study is of another space.
    """
    limits, known = bounds_lib.normalize(bounds), _distributions(space)
    trials = [_trial(space, known, line, limits) for line in history]
    if study is None:
        counts = {len(trial.values) for trial in trials if trial.values}
        study = optuna.create_study(directions=["maximize"] * max(counts, default=1))
    _check_study(study, known)
    study.add_trials(trials)
    return study


def _check_study(study: optuna.Study, known: Mapping[str, BaseDistribution]) -> None:
    """Raises ValueError if a study has parameters that are not decisions of the space."""
    for trial in study.get_trials(deepcopy=False):
        for name, given in trial.distributions.items():
            if known.get(name) != given:
                raise ValueError(
                    f"Study {study.study_name!r} is of another space: its trial {trial.number} has "
                    f"{name!r} with {given}, expected {known.get(name, f'one of {sorted(known)}')}. Give "
                    "a study of its own to each space."
                )


def _name(space: Space, element: Element) -> str:
    return element_name(element[0], space[element[0]], element[1])


def _distributions(space: Space) -> dict[str, BaseDistribution]:
    """The distributions of all parameters: integers where options are evenly spaced, else categories."""
    found: dict[str, BaseDistribution] = {}
    for name, position in space.elements:
        options = space[name].options_at(position)
        numbers = [option for option in options if isinstance(option, int)]
        steps = set(np.diff(numbers).tolist())
        even = len(numbers) == len(options) and len(steps) == 1 and min(steps) > 0
        found[_name(space, (name, position))] = (
            IntDistribution(numbers[0], numbers[-1], step=min(steps))
            if even
            else CategoricalDistribution(options)
        )
    return found


def _trial(
    space: Space,
    known: Mapping[str, BaseDistribution],
    line: Mapping[str, Any],
    limits: bounds_lib.Bounds = (),
) -> FrozenTrial:
    """An evaluation, a line of a history, as a trial that ended."""
    params: dict[str, Any] = {}
    for name, value in space.to_dict(space.from_dict(line["architecture"])).items():
        row = enumerate(value) if isinstance(value, list) else [(0, value)]
        params |= {_name(space, (name, at)): option for at, option in row if option is not None}
    scores = [x for x in np.atleast_1d(line["score"]) if x is not None and np.isfinite(x)]
    costs = {
        name: value
        for name, value in line.items()
        if isinstance(value, int | float) and name not in ("index", "generation", "score")
    }
    return optuna.trial.create_trial(
        state=TrialState.COMPLETE if scores else TrialState.FAIL,
        values=[float(x) for x in scores] or None,
        params=params,
        distributions={name: known[name] for name in params},
        user_attrs={"strategy": line["strategy"], "generation": line["generation"], **costs},
        system_attrs={_CONSTRAINTS: _violations(limits, line)} if limits else {},
    )


def _violations(limits: bounds_lib.Bounds, costs: Mapping[str, Any]) -> list[float]:
    """By how much costs leave their bounds, one number for each limit; not positive within it."""
    above = [float(costs[name] - high) for name, _, high in limits if high is not None]
    return above + [float(low - costs[name]) for name, low, _ in limits if low is not None]


class _Asked:
    """A study that a sampler proposes from, and the trials whose scores it awaits, by code."""

    def __init__(self, space: Space, sampler: optuna.samplers.BaseSampler) -> None:
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(direction="maximize", sampler=sampler)
        optuna.logging.set_verbosity(verbosity)
        self.space, self.distributions = space, _distributions(space)
        self.waiting: dict[bytes, Trial] = {}
        self.known: dict[bytes, float] = {}

    def suggest(self) -> tuple[Trial, np.ndarray]:
        """The next trial of the sampler, and its code."""
        trial, space = self.study.ask(), self.space
        arch = {name: np.zeros(choice.shape, np.int32) for name, choice in space.choices.items()}
        chosen: dict[Element, int] = {}  # of the active elements alone
        for element, needs in space.elements.items():
            if all(chosen.get(parent) in allowed for parent, allowed in needs):
                name, (choice, position) = _name(space, element), element
                options, given = space[choice].options_at(position), self.distributions[name]
                value: Any = (
                    trial.suggest_int(name, given.low, given.high, step=given.step)
                    if isinstance(given, IntDistribution)
                    else trial.suggest_categorical(name, options)
                )
                chosen[element] = arch[choice].reshape(-1)[position] = options.index(value)
        return trial, np.asarray(space.encode(arch), np.int32)

    def tell(self, code: np.ndarray, score: float) -> None:
        """Tells a score, also of an architecture that the sampler did not propose."""
        key, space = code.tobytes(), self.space
        self.known[key] = score
        if (trial := self.waiting.pop(key, None)) is not None:
            state = TrialState.COMPLETE if np.isfinite(score) else TrialState.FAIL
            self.study.tell(trial, score if np.isfinite(score) else None, state=state)
        else:
            line = {"architecture": space.to_dict(space.decode(code)), "score": score}
            line |= {"strategy": "optuna", "generation": 0}
            self.study.add_trial(_trial(space, self.distributions, line))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class _Memory:
    """The live study of a state, which is made again where a state is not the one that came next."""

    asked: list[_Asked] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class FromOptuna(Strategy):
    """Architectures that a sampler of Optuna proposes; use as `Strategy` by `search.run`, not by `scan`.

    Proposals that were evaluated before or leave the bounds are told to the sampler at once, and the next one
    is taken; after 50 of them a random architecture is.

    Attributes:
      sampler: from a seed, an int given by name, to a sampler: `optuna.samplers.TPESampler`, or
        `functools.partial(TPESampler, multivariate=True)`.
    """

    sampler: Callable[..., optuna.samplers.BaseSampler] = optuna.samplers.TPESampler

    @property
    def name(self) -> str:
        """The name of a search in a history."""
        return f"optuna {getattr(self.sampler, '__name__', 'sampler')}"

    def init(self, key: jax.Array) -> State:
        """The state before the first evaluation; see `Strategy`."""
        return dataclasses.replace(super().init(key), memory=_Memory())

    def ask(self, state: State) -> tuple[Arch, State]:  # pyrefly: ignore[bad-override-mutable-attribute]
        """One architecture and the next state; see `Strategy`."""
        size, pending = int(state.size), int(state.pending)
        codes, scores = np.asarray(state.codes), np.asarray(state.scores)
        if self.evaluations <= size + pending:
            return self.space.decode(state.codes[:1]), dataclasses.replace(state, valid=jnp.zeros(1, bool))
        asked = self._following(state.memory, state.key, codes[:size], scores[:size])
        running = {code.tobytes() for code in codes[size : size + pending]}
        code = next((key for key in asked.waiting if key not in running), None)
        code = self._proposed(asked, running) if code is None else code
        row = np.zeros(self.space.length, np.int32) if code is None else np.frombuffer(code, np.int32)
        return self._batch(state, jax.random.fold_in(state.key, size + pending), row, int(code is not None))

    @functools.partial(jax.jit, static_argnums=0)
    def _batch(self, state: State, key: jax.Array, code: jax.Array, count: jax.Array) -> tuple[Arch, State]:
        return propose(self, state, key, [(code[None], count)])

    def _following(self, memory: _Memory, key: jax.Array, codes: np.ndarray, scores: np.ndarray) -> _Asked:
        """The study that knows the scores so far: the live one, or one to which all are told again."""
        told = [code.tobytes() for code in codes]
        if not memory.asked or list(memory.asked[0].known) != told[: len(memory.asked[0].known)]:
            memory.asked[:] = [_Asked(self.space, self.sampler(seed=int(jax.random.bits(key))))]
        asked = memory.asked[0]
        for code, score in list(zip(codes, scores, strict=True))[len(asked.known) :]:
            if code.tobytes() not in asked.waiting:
                self._proposed(asked, set())  # so that the sampler draws as it did
            asked.tell(code, float(score))
        return asked

    def _proposed(self, asked: _Asked, running: set[bytes]) -> bytes | None:
        """The code of a new proposal within the bounds, whose score is awaited; None if there is none."""
        for _ in range(_ATTEMPTS):
            trial, code = asked.suggest()
            code, feasible = map(np.asarray, self._judged(code))
            key = code.tobytes()
            if key in asked.known and np.isfinite(asked.known[key]):
                asked.study.tell(trial, asked.known[key])
            elif key in asked.known or key in running or key in asked.waiting or not feasible:
                asked.study.tell(trial, state=TrialState.FAIL)
            else:
                asked.waiting[key] = trial
                return key
        return None

    @functools.partial(jax.jit, static_argnums=0)
    def _judged(self, code: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The code of the architecture that stands for this one, and whether it is within the bounds."""
        codes = canonical(self, code[None])
        return codes[0], bounds_lib.feasible(self.space, self.cost, self.bounds, codes)[0]

"""Successive halving and Hyperband: many cheap evaluations, and dear ones for the best of them.

Jamieson and Talwalkar (AISTATS 2016); Li et al. (JMLR 2018). A fidelity is an index: 0 is the
cheapest (few epochs), the last one is what counts.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.checks import check_counts, check_numbers
from jaxnas.search.neighbors import canonical_codes
from jaxnas.search.proposals import propose
from jaxnas.search.strategy import Pool, State, Strategy, as_told, check_best, check_pool, next_rows
from jaxnas.space import Arch, check_space


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Race:
    """The memory of a state. A rung is the architectures of a race at one fidelity."""

    fidelity: jax.Array  # of each evaluation; -1 in free rows. int32 [H]
    seconds: jax.Array  # that each took; 0 where that was not told, and in free rows. float32 [H]
    current: jax.Array  # the fidelity of the rung. int32 []
    number: jax.Array  # of the race, from 0. int32 []
    previous: jax.Array  # the first row of the rung before; `begun` if the rung starts a race. int32 []
    begun: jax.Array  # the first row of the rung. int32 []
    want: jax.Array  # how many architectures the rung has. int32 []


@dataclasses.dataclass(frozen=True)
class Hyperband(Strategy):
    """Races of successive halving that start at each fidelity in turn, until the budget is spent.

    A race that starts at fidelity f draws architectures that were never evaluated, evaluates them at f, and
    promotes the best 1 / `eta` of them to the next fidelity, up to the last. Use as `Strategy`, but with
    fidelities and seconds:

        archs, state = strategy.ask(state)
        scores, seconds = evaluate(archs, strategy.fidelity(state))
        state = strategy.tell(state, archs, scores, seconds)

    An evaluation counts if it ends within the budget; the best is that at the highest fidelity of which there
    is a score.

    Attributes:
      evaluations: at most, of all fidelities together: the capacity of the history.
      fidelities: how many there are.
      budget: seconds, as the evaluation returns them; None for no limit.
      eta: one in `eta` is promoted, and at least one.
      first: architectures at the start of a race from the cheapest fidelity.
      starts: the fidelities where races start, in turn; by default all.
      batch: how many to ask for at a time; 0 for `first`. With 1 the history file is written after every
        evaluation.
      given: the architectures of the only race, in their order, from the cheapest fidelity to the last; they
        replace `first` and `evaluations`.
    """

    fidelities: int = 2
    budget: float | None = None
    eta: int = 3
    first: int = 27
    starts: tuple[int, ...] | None = None
    batch: int = 0
    given: Pool | None = None

    def __post_init__(self):
        check_counts(self, "fidelities", "first")
        check_counts(self, "eta", least=2)
        check_counts(self, "batch", least=0)
        check_numbers(self, "budget", above=0, none=True)
        every = range(self.fidelities)
        starts = every if self.starts is None else self.starts
        if not isinstance(starts, tuple | list | range) or not starts or set(starts) - set(every):
            raise ValueError(
                f"Hyperband: starts is {starts!r}, expected a tuple of fidelities from 0 to "
                f"{self.fidelities - 1}."
            )
        object.__setattr__(self, "starts", tuple(starts))
        if self.given is not None:
            codes = self._check_given(self.given)
            object.__setattr__(self, "starts", (0,))
            object.__setattr__(self, "first", len(codes))
            object.__setattr__(self, "evaluations", sum(self.rungs(0)))
        if self.batch == 0:
            object.__setattr__(self, "batch", self.first)
        super().__post_init__()

    def _check_given(self, given: Pool) -> np.ndarray:
        check_space(self.space, "Hyperband")
        codes = check_pool(given, self.space, "Hyperband: given")
        with jax.ensure_compile_time_eval():
            networks = np.asarray(canonical_codes(self.space, codes))
        if len(np.unique(networks, axis=0)) < len(codes):
            raise ValueError("Hyperband: some of the given architectures are equal; give each one once.")
        if self.bounds:
            raise ValueError(
                "Hyperband: bounds are for architectures that are drawn, and not for given ones."
            )
        return codes

    def rungs(self, start: int) -> list[int]:
        """Returns how many architectures a race has at each fidelity from `start`, if none fails."""
        counts = [max(-(-self.first // self.eta**start), 1)]
        while len(counts) < self.fidelities - start:
            counts.append(max(counts[-1] // self.eta, 1))
        return counts

    def init(self, key: jax.Array) -> State:
        """The first state; see `Strategy`."""
        rows, zero = self.evaluations, jnp.zeros((), jnp.int32)
        nothing = jnp.full((rows,), -1, jnp.int32), jnp.zeros((rows,), jnp.float32)
        race = Race(*nothing, zero, zero, zero, zero, zero)
        return dataclasses.replace(super().init(key), memory=self._start(race, zero, zero))

    def fidelity(self, state: State) -> jax.Array:
        """The fidelity of the batch that was asked, int32 []."""
        return state.memory.current

    def columns(self, state: State) -> dict[str, jax.Array]:
        """See `Strategy.columns`."""
        return {"fidelity": state.memory.fidelity, "seconds": state.memory.seconds}

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state: State) -> tuple[Arch, State]:
        """A batch of architectures to evaluate at `fidelity` of the next state, and that state."""
        key, ask_key = jax.random.split(state.key)
        state, race = dataclasses.replace(state, key=key), state.memory
        done = state.size - race.begun
        open_rows = jnp.minimum(race.want - done, self.evaluations - state.size)
        place = jnp.arange(self.batch, dtype=jnp.int32)
        asked = place < open_rows

        def new() -> tuple[jax.Array, State]:
            if self.given is not None:
                codes = jnp.asarray(self.given.codes, jnp.int32)
                rows = jnp.where(asked, done + place, done)
                return codes[rows], dataclasses.replace(state, valid=asked)
            archs, proposed = propose(self, state, ask_key, [])
            valid = proposed.valid & asked
            found = jnp.sum(valid, dtype=jnp.int32)
            # Fewer than the rung has room for, and not than a whole batch.
            exhausted = found < jnp.sum(asked, dtype=jnp.int32)
            proposed = dataclasses.replace(proposed, valid=valid, exhausted=exhausted)
            return self.space.encode(archs), proposed

        def promoted() -> tuple[jax.Array, State]:
            order = jnp.argsort(-jnp.where(_rung_before(state), state.scores, -jnp.inf))
            rows = order[jnp.clip(done + place, 0, self.evaluations - 1)]
            first = state.codes[rows[0]]
            codes = jnp.where(asked[:, None], state.codes[rows], first[None, :])
            return codes, dataclasses.replace(state, valid=asked)

        codes, state = jax.lax.cond(_starts_race(state), new, promoted)
        return self.space.decode(codes), state

    def tell(  # pyrefly: ignore[bad-override-mutable-attribute] # checks what a program cannot, then runs it
        self, state: State, archs: Arch, scores: Any, seconds: Any = None
    ) -> State:
        """Returns the state that knows the scores of the batch last asked.

        Args:
          state, archs, scores: as of `Strategy.tell`; a score that is NaN is never promoted.
          seconds: of each evaluation, float [batch], at least 0; needed for a budget. Where they are traced,
            what is less or no number counts as 0.
        """
        if seconds is None and self.budget is not None:
            raise ValueError(
                f"Hyperband: for the budget of {self.budget} seconds an evaluation returns (scores, seconds)."
            )
        shape = state.valid.shape
        seconds = as_told("seconds", jnp.zeros(shape) if seconds is None else seconds, shape)
        if not any(isinstance(x, jax.core.Tracer) for x in (seconds, state.valid)):
            told = np.asarray(seconds, np.float32)[np.asarray(state.valid)]
            if not np.all(np.isfinite(told) & (told >= 0)):
                raise ValueError(
                    f"Hyperband: seconds are {told.tolist()}, expected numbers of at least 0, also of an "
                    "evaluation that failed. The budget counts them."
                )
        return self._tell(state, archs, scores, seconds)

    @functools.partial(jax.jit, static_argnums=0)
    def _tell(self, state: State, archs: Arch, scores: Any, seconds: jax.Array) -> State:
        race = state.memory
        rows = next_rows(state.size, state.valid, self.evaluations)
        told = jnp.where(jnp.isfinite(seconds), jnp.maximum(seconds, 0), 0).astype(jnp.float32)
        race = dataclasses.replace(
            race,
            fidelity=race.fidelity.at[rows].set(race.current, mode="drop"),
            seconds=race.seconds.at[rows].set(told, mode="drop"),
        )
        state = dataclasses.replace(super().tell(state, archs, scores), memory=race)
        return dataclasses.replace(state, memory=self._advance(state))

    def finished(self, state: State) -> jax.Array:
        """Whether the budget is spent, the given race over or the feasible space exhausted, bool []."""
        # An exhausted space has no new race, but the current one runs to its end.
        over = state.exhausted & _starts_race(state) & ~jnp.any(state.valid)
        over |= state.size >= self.evaluations
        if self.given is not None:
            over |= state.memory.number > 0
        return over if self.budget is None else over | (jnp.sum(state.memory.seconds) >= self.budget)

    def best(self, state: State) -> tuple[Arch, jax.Array]:
        """Returns the best architecture at the highest fidelity within the budget, and its score."""
        usable, race = ~jnp.isnan(state.scores), state.memory
        if self.budget is not None:
            usable &= jnp.cumsum(race.seconds) <= self.budget
        check_best(state, jnp.sum(usable))
        usable &= race.fidelity == jnp.max(jnp.where(usable, race.fidelity, -1))
        row = jnp.argmax(jnp.where(usable, state.scores, -jnp.inf))
        return self.space.decode(state.codes[row]), state.scores[row]

    def _start(self, race: Race, number: jax.Array, row: jax.Array) -> Race:
        """The memory at the start of a race, whose first evaluation is in that row."""
        assert self.starts is not None  # set at the start
        turn = number % len(self.starts)
        counts = jnp.asarray([self.rungs(start)[0] for start in self.starts], jnp.int32)
        return dataclasses.replace(
            race,
            number=number,
            current=jnp.asarray(self.starts, jnp.int32)[turn],
            previous=row,
            begun=row,
            want=counts[turn],
        )

    def _advance(self, state: State) -> Race:
        """The memory with the next rung, or the next race, where the rung is complete."""
        race = state.memory
        count = state.size - race.begun
        complete = (count >= race.want) | (_starts_race(state) & state.exhausted)
        row = jnp.arange(self.evaluations, dtype=jnp.int32)
        usable = jnp.sum((row >= race.begun) & ~jnp.isnan(state.scores), dtype=jnp.int32)
        kept = jnp.minimum(jnp.maximum(count // self.eta, 1), usable)
        up = dataclasses.replace(
            race, current=race.current + 1, previous=race.begun, begun=state.size, want=kept
        )
        last = (race.current == self.fidelities - 1) | (kept == 0)
        after = jax.tree.map(
            lambda a, b: jnp.where(last, a, b), self._start(race, race.number + 1, state.size), up
        )
        return jax.tree.map(lambda a, b: jnp.where(complete, a, b), after, race)


@dataclasses.dataclass(frozen=True)
class SuccessiveHalving(Hyperband):
    """A `Hyperband` whose races all start at the cheapest fidelity.

    candidates = search.Pool(space.encode(archs))
    race = search.SuccessiveHalving(space, given=candidates, fidelities=3, eta=2, batch=1)
    result = search.run(race, evaluate, key, history_path=path)  # evaluate(values, fidelity)
    """

    starts: tuple[int, ...] | None = dataclasses.field(default=(0,), init=False)


def _starts_race(state: State) -> jax.Array:
    return state.memory.previous == state.memory.begun


def _rung_before(state: State) -> jax.Array:
    """The rows of the rung before whose score is a number, bool [H]."""
    row = jnp.arange(state.scores.shape[0], dtype=jnp.int32)
    there = (row >= state.memory.previous) & (row < state.memory.begun)
    return there & ~jnp.isnan(state.scores)

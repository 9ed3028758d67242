"""Strategies: settings, a state, and how scores enter the state.

Several architectures can be evaluated at a time, where `batch` is 1: after `begin_evaluation` another can be
asked for, and `end_evaluation` takes the scores in any order. Those that are being evaluated are no parents.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.checks import check_counts, check_key
from jaxnas.search import bounds as bounds_lib
from jaxnas.search.bounds import Cost
from jaxnas.space import Arch, Space, check_space


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The state of a search. H = evaluations (the capacity), P = batch, L = space.length."""

    key: jax.Array  # a typed key, []
    codes: jax.Array  # the evaluated architectures, encoded; -1 in free rows. int32 [H, L]
    # Their scores; NaN where one failed, and in free rows. float32 [H], or [H, M] of M objectives.
    scores: jax.Array
    born: jax.Array  # the generation of each. int32 [H]
    size: jax.Array  # the number of rows in use. int32 []
    generation: jax.Array  # the number of generations told. int32 []
    skipped: jax.Array  # how many failed: they are not repeated, and never are parents. int32 []
    valid: jax.Array  # the rows of the batch last asked that are to be evaluated. bool [P]
    exhausted: jax.Array  # whether no new feasible architecture was found for some row. bool []
    seeds: jax.Array  # codes of some feasible architectures. int32 [S, L]
    memory: Any = ()  # what the strategy itself keeps, a pytree
    # How many are being evaluated, asked one at a time: their codes are in the rows after `size`. int32 []
    pending: jax.Array | int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Pool:
    """Architectures that are given, as canonical codes, int32 [n, space.length]."""

    codes: np.ndarray


def check_pool(pool: Any, space: Space, what: str) -> np.ndarray:
    """Checks that a pool is of a space, and returns its codes, int [n, space.length]."""
    if not isinstance(pool, Pool):
        raise TypeError(
            f"{what} is {type(pool).__name__}, expected architectures as search.Pool(space.encode(archs))."
        )
    codes = np.asarray(pool.codes)
    if codes.ndim != 2 or codes.shape[1] != space.length or codes.dtype.kind not in "iu" or not len(codes):
        raise ValueError(
            f"{what} has codes {codes.dtype}{list(codes.shape)}, expected int32 [n, {space.length}] with n "
            "of at least 1: search.Pool(space.encode(archs))."
        )
    outside = np.any((codes < 0) | (codes >= space.sizes), axis=1)  # NumPy, since `ask` may be traced
    if outside.any():
        row = int(np.argmax(outside))
        raise ValueError(
            f"{what} has codes that are not of the space, first in row {row}: {codes[row].tolist()}; the "
            f"elements have {space.sizes.tolist()} options. Make them by space.encode(archs)."
        )
    return codes


@dataclasses.dataclass(frozen=True)
class Strategy:
    """The base of all strategies; a subclass is a frozen dataclass, too, and has at least `ask`.

        state = strategy.init(key)
        while not strategy.finished(state):
            archs, state = strategy.ask(state)
            state = strategy.tell(state, archs, evaluate(archs))
        arch, score = strategy.best(state)

    `ask`, `tell` and `finished` are pure and work under jit, vmap and scan. A subclass replaces a property
    below by a property, an attribute, or a field with a default.

    Attributes:
      space: the search space.
      cost: a function from an architecture to {name: number}, traceable; needed for bounds.
      bounds: {cost name: (min | None, max | None)}.
      evaluations: how many architectures to evaluate: the capacity of the history.
      canonical: from an architecture to the one that stands for all equal networks, as
        `Table.canonical` of a table of cells; then no evaluation is spent twice on one network.
    """

    space: Space
    cost: Cost | None = None
    bounds: Any = ()
    evaluations: int = 1000
    canonical: Callable[[Arch], Arch] | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self):
        check_space(self.space, type(self).__name__)
        for name in ("cost", "canonical"):
            if (value := getattr(self, name)) is not None and not callable(value):
                raise TypeError(
                    f"{type(self).__name__}: {name} is {value!r}, expected a function of architectures."
                )
        object.__setattr__(self, "bounds", bounds_lib.normalize(self.bounds))
        check_counts(self, "evaluations", "batch")

    @property
    def name(self) -> str:
        """The name of a search by this strategy in a history."""
        return type(self).__name__

    @property
    def batch(self) -> int:
        """The number of architectures that are asked for at a time."""
        return 1

    @property
    def objectives(self) -> int | None:
        """The number of scores of an architecture; None for a single one, without an axis of scores."""

    @property
    def fidelities(self) -> int | None:
        """The number of fidelities; None: the evaluation takes no fidelity and returns no seconds."""

    @property
    def pool(self) -> Pool | None:
        """The only architectures that can be asked for; None: all of the space."""

    @property
    def plans_by_budget(self) -> bool:
        """Whether a larger budget changes the search from its start, and does not only make it longer."""
        return False

    @property
    def learns(self) -> bool:
        """Whether scores change what is asked for; a strategy that ignores them is a baseline itself."""
        return True

    def init(self, key: jax.Array) -> State:
        """Returns the state before the first generation.

        Raises:
          ValueError: bounds that no architecture keeps; the message has the reachable range.
        """
        check_key("search", key)
        seeds = bounds_lib.check_bounds(self.space, self.cost, self.bounds)
        rows, zero = self.evaluations, jnp.zeros((), jnp.int32)
        return State(
            key=key,
            codes=jnp.full((rows, self.space.length), -1, jnp.int32),
            scores=jnp.full((rows, *score_shape(self)), jnp.nan, jnp.float32),
            born=jnp.full((rows,), -1, jnp.int32),
            size=zero,
            generation=zero,
            skipped=zero,
            seeds=jnp.asarray(seeds, jnp.int32),
            valid=jnp.zeros((self.batch,), bool),
            exhausted=jnp.zeros((), bool),
            pending=zero,
        )

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state: State) -> tuple[Arch, State]:
        """Returns architectures to evaluate, leading axis `batch`, and the state that awaits their scores.

        Rows where `state.valid` is False are fillers, and are ignored by `tell`: the budget of evaluations
        ends, or (`state.exhausted`) no other new feasible architecture was found.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method ask(state) -> (archs, state).")

    @functools.partial(jax.jit, static_argnums=0)
    def tell(self, state: State, archs: Arch, scores: Any) -> State:
        """Returns the state that knows the scores of the batch last asked.

        Args:
          state, archs: as `ask` returned them.
          scores: float [batch], or [batch, objectives]; higher is better. A row with a NaN or an
            infinity failed: it is counted in `skipped`, and never is the best or a parent.
        """
        scores = as_told("scores", scores, (self.batch, *score_shape(self))).astype(jnp.float32)
        codes = self.space.encode(archs)
        failed = jnp.any(~jnp.isfinite(scores.reshape(len(scores), -1)), axis=1)
        scores = jnp.where(failed.reshape(-1, *[1] * (scores.ndim - 1)), jnp.nan, scores)
        rows = next_rows(state.size, state.valid, self.evaluations)
        return dataclasses.replace(
            state,
            codes=state.codes.at[rows].set(codes, mode="drop"),
            scores=state.scores.at[rows].set(scores, mode="drop"),
            born=state.born.at[rows].set(state.generation, mode="drop"),
            size=state.size + jnp.sum(state.valid, dtype=jnp.int32),
            generation=state.generation + 1,
            skipped=state.skipped + jnp.sum(state.valid & failed, dtype=jnp.int32),
            valid=jnp.zeros_like(state.valid),
        )

    def finished(self, state: State) -> jax.Array:
        """Whether the budget is spent or the feasible space exhausted, bool []."""
        return (state.size >= self.evaluations) | (state.exhausted & ~jnp.any(state.valid))

    def best(self, state: State) -> tuple[Arch, jax.Array]:
        """Returns the architecture with the best score, and the score."""
        order, count = ranking(state)
        check_best(state, count)
        return self.space.decode(state.codes[order[0]]), state.scores[order[0]]

    def fidelity(self, state: State) -> jax.Array:
        """Returns the fidelity of the batch last asked, int32 []; 0 is the cheapest."""
        return jnp.zeros((), jnp.int32)

    def columns(self, state: State) -> dict[str, jax.Array]:
        """Returns what the history has of each evaluation beside its score: arrays [H] by name."""
        return {}


@functools.partial(jax.jit, static_argnums=0)
def begin_evaluation(strategy: Strategy, state: State, archs: Arch) -> State:
    """Returns the state in which the architecture that was asked for, leading axis 1, is being evaluated."""
    row = jnp.where(state.valid, state.size + state.pending, strategy.evaluations)  # [1]
    return dataclasses.replace(
        state,
        codes=state.codes.at[row].set(strategy.space.encode(archs), mode="drop"),
        pending=state.pending + jnp.sum(state.valid, dtype=jnp.int32),
        valid=jnp.zeros_like(state.valid),
    )


@functools.partial(jax.jit, static_argnums=0)
def end_evaluation(strategy: Strategy, state: State, archs: Arch, scores: Any) -> State:
    """Returns the state that knows the score, float [1], of one architecture whose evaluation began.

    It is NaN where the evaluation failed, and is ignored if the architecture is not being evaluated.
    """
    row = jnp.arange(strategy.evaluations)
    begun = (row >= state.size) & (row < state.size + state.pending)
    same = begun & jnp.all(state.codes == strategy.space.encode(archs), axis=1)
    place, there = jnp.argmax(same), jnp.any(same)
    # `tell` writes to the row at `size`. The architecture that stands there moves to the place of the one
    # that is told, so that the rows that are being evaluated stay together.
    codes = state.codes.at[place].set(jnp.where(there, state.codes[state.size], state.codes[place]))
    state = dataclasses.replace(
        state, codes=codes, pending=state.pending - there.astype(jnp.int32), valid=there[None]
    )
    return strategy.tell(state, archs, scores)


# ---- For strategies.


def ranking(state: State) -> tuple[jax.Array, jax.Array]:
    """Returns the rows of the history from the best score down, int32 [H], and how many of them count."""
    usable = ~jnp.isnan(state.scores)  # [H]
    order = jnp.lexsort((-jnp.where(usable, state.scores, 0), ~usable))
    return order.astype(jnp.int32), jnp.sum(usable, dtype=jnp.int32)


def next_rows(start: jax.Array, used: jax.Array, beyond: int) -> jax.Array:
    """Returns consecutive rows from `start` for what is used, and the row `beyond` the end for the rest."""
    return jnp.where(used, start + jnp.cumsum(used, dtype=jnp.int32) - 1, beyond)


def canonical(strategy: Strategy, codes: jax.Array) -> jax.Array:
    """Returns the codes [n, L] of the architectures that stand for these; see `Strategy.canonical`."""
    space, function = strategy.space, strategy.canonical or strategy.space.canonical
    return jax.vmap(lambda code: space.encode(function(space.decode(code))))(codes)


def score_shape(strategy: Strategy) -> tuple[int, ...]:
    """Returns the shape of the scores of one architecture: () for one score, (M,) for M objectives."""
    return () if strategy.objectives is None else (strategy.objectives,)


def as_told(what: str, told: Any, shape: tuple[int, ...]) -> jax.Array:
    """Returns the scores or seconds of an evaluation as a float array, if they have a shape."""
    try:
        array = jnp.asarray(told)
        given = f"{array.dtype}{list(array.shape)}"
    except (TypeError, ValueError):  # None, text, a dict or rows of different lengths
        array, given = None, type(told).__name__
    if array is None or array.shape != shape or not jnp.issubdtype(array.dtype, jnp.floating):
        raise ValueError(
            f"search: {what} are {given}, expected a float for each row asked, {list(shape)}; rows where "
            "state.valid is False may hold anything."
        )
    return array


def check_best(state: State, count: Any) -> None:
    """Checks that some scores count, where it is known how many do."""
    if not isinstance(count, jax.core.Tracer) and count == 0:
        raise ValueError(f"best: none of {int(state.size)} evaluations gave a number that counts.")

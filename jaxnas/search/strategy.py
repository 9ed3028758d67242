"""What every strategy is: settings, a first state, and how scores enter the state.

A strategy of one's own inherits `Strategy` and says which architectures it asks for next:

    @dataclasses.dataclass(frozen=True)
    class Mine(search.Strategy):
        batch: int = 10

        @functools.partial(jax.jit, static_argnums=0)
        def ask(self, state):
            key, ask_key = jax.random.split(state.key)
            codes = ...  # candidates, int32 [n, space.length]
            state = dataclasses.replace(state, key=key)
            return search.propose(self, state, ask_key, [(codes, self.batch)])
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.checks import check_counts
from jaxnas.search import bounds as bounds_lib
from jaxnas.search.bounds import Cost
from jaxnas.search.state import State, next_rows, ranking
from jaxnas.space import Arch, Space, check_space


@dataclasses.dataclass(frozen=True, eq=False)
class Pool:
    """Architectures that are given, as canonical codes, int32 [n, space.length]."""

    codes: np.ndarray


def check_pool(pool: Any, space: Space, what: str) -> np.ndarray:
    """The codes of a pool, int [n, space.length], if they are of the space.

    Args:
      pool: that was given.
      space: of the search.
      what: the start of the message: who has the pool, and as what.

    Raises:
      TypeError: something else than a pool.
      ValueError: it is empty, its codes have another shape or are no ints, or some is not of the space.
    """
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
    outside = np.any((codes < 0) | (codes >= space.sizes), axis=1)
    if outside.any():
        row = int(np.argmax(outside))
        raise ValueError(
            f"{what} has codes that are not of the space, first in row {row}: {codes[row].tolist()}; the "
            f"elements have {space.sizes.tolist()} options. Make them by space.encode(archs)."
        )
    return codes


@dataclasses.dataclass(frozen=True)
class Strategy:
    """What all strategies share; a subclass is a frozen dataclass, too, and has at least `ask`.

        state = strategy.init(key)
        while not strategy.finished(state):
            archs, state = strategy.ask(state)
            state = strategy.tell(state, archs, evaluate(archs))
        arch, score = strategy.best(state)

    `ask`, `tell` and `finished` are pure and work under jit, vmap and scan. The properties below say
    what a strategy has; a subclass replaces one by a property or an attribute of its own, or by a field with
    a default.

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
        for name, example in (("cost", "jaxnas.cost(net, inputs)"), ("canonical", "table.canonical")):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(
                    f"{type(self).__name__}: {name} is {value!r}, expected a function of an architecture, "
                    f"such as {example}."
                )
        object.__setattr__(self, "bounds", bounds_lib.normalize(self.bounds))
        check_counts(self, "evaluations", "batch")

    @property
    def name(self) -> str:
        """What a history calls a search by this strategy."""
        return type(self).__name__

    @property
    def batch(self) -> int:
        """How many architectures are asked for at a time."""
        return 1

    @property
    def objectives(self) -> int | None:
        """How many scores an architecture has; None for a single one, without an axis of scores."""
        return None

    @property
    def fidelities(self) -> int | None:
        """How many fidelities there are; None: the evaluation takes no fidelity and tells no seconds."""
        return None

    @property
    def pool(self) -> Pool | None:
        """The only architectures that can be asked for; None: all of the space."""
        return None

    @property
    def plans_by_budget(self) -> bool:
        """Whether a larger budget changes the search from its start, and does not only make it longer."""
        return False

    @property
    def learns(self) -> bool:
        """Whether scores change what is asked for; a strategy that ignores them is a baseline itself."""
        return True

    def init(self, key: jax.Array) -> State:
        """The state before the first generation.

        Raises:
          TypeError: not a typed key.
          ValueError: bounds that no architecture keeps; the message has the reachable range.
        """
        check_key(key)
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
        """A batch of architectures to evaluate, and the next state.

        Rows where `state.valid` is False are fillers, and are ignored by `tell`: the budget of
        evaluations ends, or (`state.exhausted`) no other new feasible architecture was found.

        Args:
          state: as `init` or `tell` returned it.

        Returns:
          Architectures with a leading axis `batch`, and the state that awaits their scores.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method ask(state) -> (archs, state).")

    @functools.partial(jax.jit, static_argnums=0)
    def tell(self, state: State, archs: Arch, scores: Any) -> State:
        """The state that knows the scores of the batch last asked.

        Args:
          state: as `ask` returned it.
          archs: the architectures that `ask` returned, leading axis `batch`.
          scores: float [batch], or [batch, objectives]; higher is better. A row with a NaN or an
            infinity failed: it is counted in `skipped`, and never is the best or a parent.

        Raises:
          ValueError: other shapes or dtypes.
        """
        expected = (self.batch, *score_shape(self))
        scores = as_told("scores", scores, expected).astype(jnp.float32)
        codes = self.space.encode(archs)
        if codes.shape[:-1] != expected[:1]:
            raise ValueError(
                f"tell: architectures have batch axes {codes.shape[:-1]}, expected "
                f"{expected[:1]}: pass the batch that ask returned."
            )
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
        """The architecture with the best score, and the score.

        Raises:
          ValueError: no score is a number.
        """
        order, count = ranking(state)
        if not isinstance(count, jax.core.Tracer) and count == 0:
            raise ValueError(f"best: {nothing_usable(state)}")
        return self.space.decode(state.codes[order[0]]), state.scores[order[0]]

    def fidelity(self, state: State) -> jax.Array:
        """The fidelity at which the batch last asked is to be evaluated, int32 []; 0 is the cheapest."""
        return jnp.zeros((), jnp.int32)

    def columns(self, state: State) -> dict[str, jax.Array]:
        """What the history says of each evaluation beside its score: arrays [H] by name."""
        return {}


def score_shape(strategy: Strategy) -> tuple[int, ...]:
    """The shape of the scores of one architecture: () for one score, (M,) for M objectives."""
    return () if strategy.objectives is None else (strategy.objectives,)


def as_told(what: str, told: Any, shape: tuple[int, ...]) -> jax.Array:
    """The scores or seconds that an evaluation returned, as a float array of that shape.

    Raises:
      ValueError: no array, or one of another shape or dtype.
    """
    text = any(isinstance(leaf, str) for leaf in jax.tree.leaves(told))
    try:
        array = jnp.asarray(None if text else told)
        given = f"{array.dtype}{list(array.shape)}"
    except (TypeError, ValueError):  # None, text, a dict or rows of different lengths
        array, given = None, f"a {type(told).__name__} that is no array"
    if array is None or array.shape != shape or not jnp.issubdtype(array.dtype, jnp.floating):
        raise ValueError(
            f"search: {what} are {given}, expected a float for each row asked, {list(shape)}; rows where "
            "state.valid is False may hold anything."
        )
    return array


def canonical(strategy: Strategy, codes: jax.Array) -> jax.Array:
    """The codes [n, L] of the architectures that stand for these; see `Strategy.canonical`."""
    space, function = strategy.space, strategy.canonical or strategy.space.canonical
    return jax.vmap(lambda code: space.encode(function(space.decode(code))))(codes)


def nothing_usable(state: State) -> str:
    """A sentence for a search without any score that is a number."""
    if state.size == 0:
        return "none of 0 evaluations gave a number."
    return f"none of {int(state.size)} evaluations gave a finite number."


def check_key(key: Any) -> None:
    """Checks that a key is one typed key.

    Raises:
      TypeError: it is something else.
    """
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not typed or key.shape:
        what = jax.typeof(key) if isinstance(key, jax.Array) else repr(key)
        raise TypeError(f"search: key is {what}, expected one typed key, such as jax.random.key(0).")

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
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.search import bounds as bounds_lib
from jaxnas.search.bounds import Cost
from jaxnas.search.state import State, next_rows, ranking
from jaxnas.space import Arch, Space


@dataclasses.dataclass(frozen=True, eq=False)
class Pool:
    """Architectures that are given, as canonical codes, int32 [n, space.length]."""

    codes: np.ndarray


@dataclasses.dataclass(frozen=True)
class Strategy:
    """What all strategies share; a subclass is a frozen dataclass, too, and has at least `ask`.

        state = strategy.init(key)
        while not strategy.finished(state):
            archs, state = strategy.ask(state)
            state = strategy.tell(state, archs, evaluate(archs))
        arch, score = strategy.best(state)

    `ask`, `tell` and `finished` are pure and work under jit, vmap and scan. The properties below say
    what a strategy has; a subclass replaces one by a property of its own, or by a field with a default.

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
        object.__setattr__(self, "bounds", bounds_lib.normalise(self.bounds))
        self.check_counts("evaluations", "batch")

    def check_counts(self, *names: str) -> None:
        """Checks that settings are ints of at least 1, and makes plain ints of NumPy's.

        Raises:
          ValueError: one is not.
        """
        for name in names:
            value = getattr(self, name)
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
                raise ValueError(
                    f"{type(self).__name__}: {name} is {value!r}, expected an int of at least 1."
                )
            if isinstance(value, np.integer):
                object.__setattr__(self, name, operator.index(value))

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
        """How many scores an architecture has, in an axis of their own; None: one, without the axis."""
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
        """Whether another number of evaluations is another search, and not the same one for longer."""
        return False

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
        scores = jnp.asarray(scores)
        expected = (self.batch, *score_shape(self))
        if scores.shape != expected or not jnp.issubdtype(scores.dtype, jnp.floating):
            raise ValueError(
                f"tell: scores are {scores.dtype}{list(scores.shape)}, expected a float "
                f"for each row asked, {list(expected)}; rows where state.valid is False "
                "may hold anything."
            )
        scores, codes = scores.astype(jnp.float32), self.space.encode(archs)
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

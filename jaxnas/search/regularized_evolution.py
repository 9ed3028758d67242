"""Regularized evolution: tournaments in a population that ages (Real et al., AAAI 2019, section 3)."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.search import state as state_lib
from jaxnas.search.bits import below, random_words
from jaxnas.search.bounds import Cost
from jaxnas.search.neighbours import mutate_one
from jaxnas.search.state import State
from jaxnas.space import Arch, Space

_ATTEMPTS = 32  # Mutants of the winner that are tried where a new or feasible one is asked for.


@dataclasses.dataclass(frozen=True)
class RegularizedEvolution:
    """Mutates the winner of a tournament among the youngest; use as `RandomSearch`.

    The population is what was evaluated last: the oldest leaves, however good it is. A mutation
    changes one decision. As published, an architecture may be evaluated again; with `unique`,
    bounds or `canonical` it is not, and the next mutant is tried.

    Attributes:
      space, cost, bounds, evaluations, canonical: as for `RandomSearch`.
      population: how many are alive.
      sample: how many of them, different ones, take part in a tournament.
      unique: never evaluate an architecture twice.
      batch: how many to ask for at a time; more than one evaluates in parallel.
    """

    space: Space
    cost: Cost | None = None
    bounds: Any = ()
    evaluations: int = 1000
    population: int = 50
    sample: int = 10
    unique: bool = False
    batch: int = 1
    canonical: Callable[[Arch], Arch] | None = None

    def __post_init__(self):
        state_lib.check_settings(self)
        if not 1 <= self.sample <= self.population:
            raise ValueError(
                f"RegularizedEvolution: sample is {self.sample}, expected 1 to the "
                f"population of {self.population}."
            )
        if self.population >= 2**15:  # places are drawn by words of 16 bits
            raise ValueError(
                f"RegularizedEvolution: population is {self.population}, expected less than {2**15}."
            )

    def init(self, key: jax.Array) -> State:
        """Returns the first state; raises ValueError for bounds that no architecture keeps."""
        return state_lib.init(self, key)

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state: State) -> tuple[Arch, State]:
        """Returns a batch of architectures and the next state; see `RandomSearch`."""
        attempts = self.batch * (_ATTEMPTS if self._looks_back else 1)
        count = max(self.sample + 2, self.space.length)
        words = random_words(state.key, state.generation, (attempts, count))
        growing = state.size < self.population
        if self._looks_back:
            groups = [(self._mutants(words, state), jnp.where(growing, 0, self.batch))]
            ask_key = jax.random.fold_in(jax.random.fold_in(state.key, state.generation), 1)
            return state_lib.propose(self, state, ask_key, groups)
        # The plain form, without a look at the history. Many searches at once are as old as each
        # other: the condition is one for all of them, and stays a condition.
        codes = jax.lax.cond(growing, self._fresh, self._mutants, words, state)
        valid = jnp.arange(self.batch) < jnp.int32(self.evaluations) - state.size
        return self.space.decode(codes), dataclasses.replace(state, valid=valid)

    @property
    def _looks_back(self) -> bool:
        return self.unique or bool(self.bounds) or self.canonical is not None

    @functools.partial(jax.jit, static_argnums=0)
    def tell(self, state: State, archs: Arch, scores: Any) -> State:
        """Returns the state that knows the scores, float [batch]; see `RandomSearch.tell`."""
        return state_lib.tell(self, state, archs, scores)

    def finished(self, state: State) -> jax.Array:
        """Returns whether the budget is spent or the feasible space exhausted, bool []."""
        return state_lib.finished(self, state)

    def best(self, state: State) -> tuple[Arch, jax.Array]:
        """Returns the best architecture and its score; ValueError if no score is a number."""
        return state_lib.best(self, state)

    def _fresh(self, words: jax.Array, state: State) -> jax.Array:
        """Returns random architectures, int32 [attempts, L]."""
        codes = below(words[:, : self.space.length], self.space.sizes.astype(np.int32)[None, :])
        return self.space.encode(self.space.canonical(self.space.decode(codes)))

    def _mutants(self, words: jax.Array, state: State) -> jax.Array:
        """Returns mutants of the winners of a tournament each, int32 [attempts, L]."""
        alive = jnp.minimum(state.size, self.population)

        def mutant(words: jax.Array) -> jax.Array:
            rows = jnp.maximum(state.size - 1 - _distinct(words[: self.sample], alive), 0)
            scores = jnp.where(jnp.isnan(state.scores[rows]), -jnp.inf, state.scores[rows])
            winner = state.codes[rows[jnp.argmax(scores)]]
            changes = words[self.sample : self.sample + 2]
            return mutate_one(self.space, changes, jnp.maximum(winner, 0))

        return jax.vmap(mutant)(words)


def _distinct(words: jax.Array, n: jax.Array) -> jax.Array:
    """Returns k different numbers below n from k words (some repeat if n < k); Floyd's algorithm."""
    taken: list[jax.Array] = []
    for i, word in enumerate(words):
        last = jnp.maximum(n - len(words) + i, 0)
        drawn = below(word, last + 1)
        repeated = jnp.zeros((), bool)
        for other in taken:
            repeated |= drawn == other
        taken.append(jnp.where(repeated, last, drawn))
    return jnp.stack(taken)

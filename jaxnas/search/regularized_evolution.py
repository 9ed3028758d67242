"""Regularized evolution: tournaments in a population that ages (Real et al., AAAI 2019, section 3)."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.search import state as state_lib
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
            raise ValueError(f"RegularizedEvolution: sample is {self.sample}, expected 1 to the "
                             f"population of {self.population}.")

    def init(self, key: jax.Array) -> State:
        """Returns the first state; raises ValueError for bounds that no architecture keeps."""
        return state_lib.init(self, key)

    def draw(self, key: jax.Array, generation: jax.Array) -> jax.Array:
        """Returns the random bits of one generation, uint16 [attempts, words].

        They depend on nothing but the key and the number, so that `search.scan` draws those of all
        generations at once: most of the time of thousands of searches would be drawing.
        """
        attempts = self.batch * (_ATTEMPTS if self._looks_back else 1)
        words = max(self.sample + 2, self.space.length)
        # 16 bits suffice: the remainder by a population of 50 is uniform to one in a thousand.
        return jax.random.bits(jax.random.fold_in(key, generation), (attempts, words), jnp.uint16)

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state: State, bits: jax.Array | None = None) -> tuple[Arch, State]:
        """Returns a batch of architectures and the next state; see `RandomSearch`.

        `bits` are those of `draw` for this generation, if they were drawn before.
        """
        bits = self.draw(state.key, state.generation) if bits is None else bits
        growing = state.size < self.population
        mutants = jax.vmap(lambda row: self._mutant(row, state))(bits)
        if self._looks_back:
            groups = [(mutants, jnp.where(growing, 0, self.batch))]
            ask_key = jax.random.fold_in(jax.random.fold_in(state.key, state.generation), 1)
            return state_lib.propose(self, state, ask_key, groups)
        # The plain form, without a look at the history.
        sizes = self.space.sizes.astype(np.int32)[None, :]
        fresh = bits[:, :self.space.length].astype(jnp.int32) % sizes
        fresh = self.space.encode(self.space.canonical(self.space.decode(fresh)))
        valid = jnp.arange(self.batch) < jnp.int32(self.evaluations) - state.size
        codes = jnp.where(growing, fresh, mutants)
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

    def _mutant(self, bits: jax.Array, state: State) -> jax.Array:
        """Returns a mutant of the winner of a tournament, int32 [L]."""
        alive = jnp.minimum(state.size, self.population)
        places = _distinct(bits[:self.sample], alive)
        rows = jnp.clip(state.size - 1 - places, 0, self.evaluations - 1)
        scores = jnp.where(jnp.isnan(state.scores[rows]), -jnp.inf, state.scores[rows])
        winner = state.codes[rows[jnp.argmax(scores)]]
        return mutate_one(self.space, bits[self.sample:self.sample + 2], jnp.maximum(winner, 0))


def _distinct(bits: jax.Array, n: jax.Array) -> jax.Array:
    """Returns k different numbers below n from k words (some repeat if n < k), int32 [k].

    Floyd's algorithm; the bias of the remainder is below n / 2**16.
    """
    taken: list[jax.Array] = []
    for i in range(len(bits)):
        last = jnp.maximum(n - len(bits) + i, 0)
        drawn = bits[i].astype(jnp.int32) % (last + 1)
        repeated = jnp.zeros((), bool)
        for other in taken:
            repeated |= drawn == other
        taken.append(jnp.where(repeated, last, drawn))
    return jnp.stack(taken)

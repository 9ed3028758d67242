"""Regularized evolution: tournaments in a population that ages (Real et al., AAAI 2019, section 3)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxnas.checks import check_counts
from jaxnas.search.neighbors import mutate_one
from jaxnas.search.proposals import propose
from jaxnas.search.strategy import State, Strategy
from jaxnas.space import Arch

_ATTEMPTS = 32  # Mutants of the winner that are tried where a new or feasible one is asked for.


@dataclasses.dataclass(frozen=True)
class RegularizedEvolution(Strategy):
    """Mutates the winner of a tournament among the youngest; use as `Strategy`.

    The population is what was evaluated last: the oldest leaves, however good it is. A mutation
    changes one decision. As published, an architecture may be evaluated again; with `unique`,
    bounds or `canonical` it is not, and the next mutant is tried.

    Attributes:
      population: how many are alive.
      sample: how many of them, different ones, take part in a tournament.
      unique: never evaluate an architecture twice.
      batch: how many to ask for at a time; more than one evaluates in parallel.
    """

    population: int = 50
    sample: int = 10
    unique: bool = False
    batch: int = 1

    def __post_init__(self):
        super().__post_init__()
        check_counts(self, "population", "sample")
        if self.sample > self.population:
            raise ValueError(
                f"RegularizedEvolution: sample is {self.sample}, expected 1 to the "
                f"population of {self.population}."
            )

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state: State) -> tuple[Arch, State]:
        """A batch of architectures and the next state; see `Strategy`."""
        key, draw_key, ask_key = jax.random.split(state.key, 3)
        state, growing = dataclasses.replace(state, key=key), state.size + state.pending < self.population
        if self.unique or self.bounds or self.canonical is not None:
            codes = self._mutants(jax.random.split(draw_key, _ATTEMPTS * self.batch), state)
            return propose(self, state, ask_key, [(codes, jnp.where(growing, 0, self.batch))])
        # Here architectures may be evaluated again, so the history is not looked at. Searches under one vmap
        # have all made equally many evaluations: the condition is the same for all, and one side runs.
        keys = jax.random.split(draw_key, self.batch)
        codes = jax.lax.cond(growing, self._fresh, self._mutants, keys, state)
        valid = jnp.arange(self.batch) < self.evaluations - state.size - state.pending
        return self.space.decode(codes), dataclasses.replace(state, valid=valid)

    def _fresh(self, keys: jax.Array, state: State) -> jax.Array:
        """Random architectures, one for each key, int32 [n, L]."""
        return self.space.encode(jax.vmap(self.space.sample)(keys))

    def _mutants(self, keys: jax.Array, state: State) -> jax.Array:
        """Mutants of the winners of a tournament each, one for each key, int32 [n, L]."""

        def mutant(key: jax.Array) -> jax.Array:
            draw_key, key = jax.random.split(key)
            rows = jnp.maximum(state.size - 1 - _distinct(draw_key, self.population, self.sample), 0)
            winner = rows[jnp.argmax(jnp.nan_to_num(state.scores[rows], nan=-jnp.inf))]
            return mutate_one(self.space, key, jnp.maximum(state.codes[winner], 0))

        return jax.vmap(mutant)(keys)


def _distinct(key: jax.Array, n: int, k: int) -> jax.Array:
    """Different numbers below n, every set of k equally probable, int32 [k]; Floyd's algorithm.

    A sort, as in `jax.random.choice`, takes several times as long in a thousand searches at once.
    """
    last = jnp.arange(n - k, n, dtype=jnp.int32)
    drawn = jax.random.randint(key, (k,), 0, last + 1)

    def take(i: jax.Array, taken: jax.Array) -> jax.Array:
        return taken.at[i].set(jnp.where(jnp.any(taken == drawn[i]), last[i], drawn[i]))

    return jax.lax.fori_loop(0, k, take, jnp.full((k,), -1, jnp.int32))

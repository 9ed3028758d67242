"""AutoFormer's evolutionary search (arXiv 2107.00651, section 3.4), and regularized evolution."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxnas.checks import check_counts, check_numbers
from jaxnas.search.neighbors import mutants, mutate_one
from jaxnas.search.proposals import propose
from jaxnas.search.strategy import State, Strategy, ranking
from jaxnas.space import Arch

_ATTEMPTS = 32  # Mutants of a tournament's winner that are tried where a new or feasible one is asked for.


@dataclasses.dataclass(frozen=True)
class Evolution(Strategy):
    """Evolution within bounds: mutation and crossover of the best of all generations.

    Use as `Strategy`. The first generation, or more of them, is random. Each later one has `mutations`
    mutants of random parents and `crossovers` children of two, completed by random ones; the parents are the
    `parents` best of everything evaluated so far. It follows the paper where the released code differs: the
    two probabilities are not swapped, parents of any depth cross over (positions beyond the depth of one come
    from the other), the last generation counts, and attempts are limited.

    Attributes:
      population: how many a generation has: the batch. The paper evaluates 20 generations of 50.
      parents: how many of the best are parents.
      mutations: mutants per generation.
      crossovers: children of two parents per generation.
      network_probability: of resampling a decision made once for the network, as depth and width
        (P_d in the paper).
      layer_probability: of resampling a decision at each position where it is repeated (P_m).
      random_first: how many evaluations are random before there are children; at least one generation is.

    Example:
      >>> space = Space(width=Choice(*range(8)).repeat(3))
      >>> settings = dict(population=10, parents=4, mutations=5, crossovers=5)
      >>> strategy = search.Evolution(space, evaluations=60, **settings)
    """

    name = "evolution"
    population: int = 50
    parents: int = 10
    mutations: int = 25
    crossovers: int = 25
    network_probability: float = 0.2
    layer_probability: float = 0.4
    random_first: int = 0

    def __post_init__(self):
        check_counts(self, "population")
        super().__post_init__()
        check_counts(self, "parents")
        check_counts(self, "mutations", "crossovers", "random_first", least=0)
        check_numbers(self, "network_probability", "layer_probability", least=0, most=1)
        if self.mutations + self.crossovers > self.population:
            raise ValueError(
                f"Evolution: {self.mutations} mutations and {self.crossovers} "
                f"crossovers are more than the population of {self.population}."
            )
        if self.random_first > self.evaluations:
            raise ValueError(
                f"Evolution: random_first is {self.random_first}, expected 0 to the {self.evaluations} "
                "evaluations."
            )

    @property
    def batch(self) -> int:
        """A generation is asked for at a time."""
        return self.population

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state: State) -> tuple[Arch, State]:
        """A generation of architectures and the next state; see `Strategy`."""
        key, mutation_key, crossover_key, ask_key = jax.random.split(state.key, 4)
        order, usable = ranking(state)
        started = (usable > 0) & (state.size >= self.random_first)
        groups = []
        if self.mutations:
            made = self._mutants(mutation_key, state, order, usable)
            groups.append((made, jnp.where(started, self.mutations, 0)))
        if self.crossovers:
            children = self._children(crossover_key, state, order, usable)
            groups.append((children, jnp.where(started, self.crossovers, 0)))
        return propose(self, dataclasses.replace(state, key=key), ask_key, groups)

    def _pick(self, key: jax.Array, usable: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
        """Two different parents, if there are two, for each of n children; int32 [n] each."""
        count = jnp.maximum(jnp.minimum(usable, self.parents), 1)
        first_key, step_key = jax.random.split(key)
        first = jax.random.randint(first_key, (n,), 0, count)
        step = jax.random.randint(step_key, (n,), 1, jnp.maximum(count, 2))
        return first, (first + step) % count

    def _mutants(self, key, state, order, usable) -> jax.Array:
        probability = {
            name: self.network_probability if choice.length is None else self.layer_probability
            for name, choice in self.space.choices.items()
        }

        pick_key, key = jax.random.split(key)
        first, _ = self._pick(pick_key, usable, 10 * self.mutations)  # the official limit of attempts
        return mutants(self.space, key, state.codes[order[first]], probability)

    def _children(self, key, state, order, usable) -> jax.Array:
        def child(key, *rows):
            a, b = (self.space.decode(jnp.maximum(state.codes[row], 0)) for row in rows)
            return self.space.encode(self.space.crossover(key, a, b))

        pick_key, key = jax.random.split(key)
        n = 10 * self.crossovers
        first, second = self._pick(pick_key, usable, n)
        return jax.vmap(child)(jax.random.split(key, n), order[first], order[second])


@dataclasses.dataclass(frozen=True)
class RegularizedEvolution(Strategy):
    """Mutates the winner of a tournament among the youngest (Real et al., AAAI 2019, section 3).

    Use as `Strategy`. The population is what was evaluated last: the oldest leaves, however good it is. A
    mutation changes one decision. As published, an architecture may be evaluated again; with `unique`, bounds
    or `canonical` it is not, and the next mutant is tried.

    Attributes:
      population: how many are alive.
      sample: how many of them, different ones, take part in a tournament.
      unique: never evaluate an architecture twice.
      batch: how many to ask for at a time; more than one evaluates in parallel.

    Example:
      >>> space = Space(width=Choice(*range(8)).repeat(3))
      >>> strategy = search.RegularizedEvolution(space, evaluations=100, population=20, sample=5)
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

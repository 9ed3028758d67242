"""AutoFormer's evolutionary search (arXiv 2107.00651, section 3.4)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxnas.checks import check_counts, check_numbers
from jaxnas.search.neighbors import mutants
from jaxnas.search.proposals import propose
from jaxnas.search.strategy import State, Strategy, ranking
from jaxnas.space import Arch


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

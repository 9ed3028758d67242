"""AutoFormer's evolutionary search (arXiv 2107.00651, section 3.4), regularized evolution, local search."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxnas.checks import check_counts, check_numbers
from jaxnas.search.neighbors import mutants, mutate_one, neighbors
from jaxnas.search.proposals import Group, propose
from jaxnas.search.strategy import Pool, State, Strategy, canonical, check_pool, ranking
from jaxnas.space import Arch

_ATTEMPTS = 32  # Mutants of a tournament's winner that are tried where a new or feasible one is asked for.


@dataclasses.dataclass(frozen=True)
class Evolution(Strategy):
    """Evolution within bounds: mutation and crossover of the best of all generations; use as `Strategy`.

    Each generation has mutants of random parents and children of two, completed by random ones. It follows
    the paper where the released code differs: the two probabilities are not swapped, parents of any depth
    cross over (positions beyond the depth of one come from the other), and the last generation counts.

    Attributes:
      population: how many a generation has: the batch. The paper evaluates 20 generations of 50.
      parents: how many of the best are parents.
      mutations, crossovers: mutants, and children of two parents, per generation.
      network_probability: of resampling a decision made once for the network, as depth and width
        (P_d in the paper).
      layer_probability: of resampling a decision at each position where it is repeated (P_m).
      random_first: how many evaluations are random before there are children; at least one generation is.
      first: architectures that are evaluated before any others, in their order, such as the best of many by a
        zero-cost proxy.

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
    first: Pool | None = None

    def __post_init__(self):
        check_counts(self, "population")
        super().__post_init__()
        if self.first is not None:
            check_pool(self.first, self.space, "Evolution: first")
        check_counts(self, "parents")
        check_counts(self, "mutations", "crossovers", least=0)
        check_numbers(self, "network_probability", "layer_probability", least=0, most=1)
        if self.mutations + self.crossovers > self.population:
            raise ValueError(
                f"Evolution: {self.mutations} mutations and {self.crossovers} crossovers are more than the "
                f"population of {self.population}."
            )
        check_counts(self, "random_first", least=0, most=self.evaluations)

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
        groups = _first(self)
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
    mutation changes one decision. As published, an architecture may be evaluated again; with `unique`,
    `first`, bounds or `canonical` it is not.

    Attributes:
      population: how many are alive.
      sample: how many of them, different ones, take part in a tournament.
      unique: never evaluate an architecture twice.
      batch: how many to ask for at a time; more than one evaluates in parallel.
      first: architectures that are evaluated before any others; see `Evolution`.

    Example:
      >>> space = Space(width=Choice(*range(8)).repeat(3))
      >>> strategy = search.RegularizedEvolution(space, evaluations=100, population=20, sample=5)
    """

    population: int = 50
    sample: int = 10
    unique: bool = False
    batch: int = 1
    first: Pool | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.first is not None:
            check_pool(self.first, self.space, "RegularizedEvolution: first")
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
        if self.unique or self.bounds or self.canonical is not None or self.first is not None:
            codes = self._mutants(jax.random.split(draw_key, _ATTEMPTS * self.batch), state)
            return propose(self, state, ask_key, [*_first(self), (codes, jnp.where(growing, 0, self.batch))])
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
            # In a parallel search the first tournaments may know fewer than a population.
            last = state.size - 1 - _distinct(draw_key, self.population, self.sample)
            rows = last % jnp.maximum(state.size, 1)
            winner = rows[jnp.argmax(jnp.nan_to_num(state.scores[rows], nan=-jnp.inf))]
            return mutate_one(self.space, key, jnp.maximum(state.codes[winner], 0))

        return jax.vmap(mutant)(keys)


def _first(strategy: Evolution | RegularizedEvolution) -> list[Group]:
    """The given architectures as candidates, of which those are taken that are not evaluated yet."""
    given = strategy.first
    return [] if given is None else [(jnp.asarray(given.codes, jnp.int32), strategy.batch)]


def _distinct(key: jax.Array, n: int, k: int) -> jax.Array:
    """Different numbers below n, every set of k equally probable, int32 [k] (Floyd's algorithm)."""
    last = jnp.arange(n - k, n, dtype=jnp.int32)
    drawn = jax.random.randint(key, (k,), 0, last + 1, jnp.int32)

    def take(i: jax.Array, taken: jax.Array) -> jax.Array:
        return taken.at[i].set(jnp.where(jnp.any(taken == drawn[i]), last[i], drawn[i]))

    return jax.lax.fori_loop(0, k, take, jnp.full((k,), -1, jnp.int32))


@dataclasses.dataclass(frozen=True)
class LocalSearch(Strategy):
    """Climbs by single changes and starts anew at a local optimum; use as `Strategy`.

    Evaluates the neighbors of where it is, architectures that differ in one decision, in random order, moves
    to the first better one, and at last to a random architecture (White et al., UAI 2021, algorithm 1, with
    the first improvement instead of the best). Nothing is evaluated twice.
    """

    batch: int = 1  # how many to ask for at a time

    def init(self, key: jax.Array) -> State:
        """The first state; see `Strategy`."""
        nowhere = jnp.zeros((self.space.length,), jnp.int32), jnp.float32(-jnp.inf)
        return dataclasses.replace(super().init(key), memory=nowhere)

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state: State) -> tuple[Arch, State]:
        """A batch of architectures and the next state; see `Strategy`."""
        key, order_key, ask_key = jax.random.split(state.key, 3)
        here, best = state.memory  # the code of the place, int32 [L], and its score, float32 []
        around = canonical(self, neighbors(self.space, here))
        started = best > -jnp.inf
        groups = [(jax.random.permutation(order_key, around), jnp.where(started, self.batch, 0))]
        archs, state = propose(self, dataclasses.replace(state, key=key), ask_key, groups)
        asked = self.space.encode(archs)
        is_neighbor = jnp.any(jnp.all(asked[:, None, :] == around[None, :, :], axis=2), axis=1)
        # At a local optimum all neighbors are known, and what is asked for is random. With a score of
        # -infinity for the place that is left, the climb resumes from whatever score comes.
        leave = ~jnp.any(is_neighbor & state.valid)
        return archs, dataclasses.replace(state, memory=(here, jnp.where(leave, -jnp.inf, best)))

    @functools.partial(jax.jit, static_argnums=0)
    def tell(self, state: State, archs: Arch, scores: Any) -> State:
        """The state that knows the scores, float [batch]; see `Strategy`."""
        valid, (here, best) = state.valid, state.memory
        state = super().tell(state, archs, scores)
        scores = jnp.asarray(scores, jnp.float32)
        usable = jnp.where(valid & jnp.isfinite(scores), scores, -jnp.inf)
        row = jnp.argmax(usable)
        better = usable[row] > best
        here = jnp.where(better, self.space.encode(archs)[row], here)
        return dataclasses.replace(state, memory=(here, jnp.where(better, usable[row], best)))

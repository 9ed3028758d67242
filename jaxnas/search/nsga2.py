"""NSGA-II: several scores at once (Deb et al. 2002, doi 10.1109/4235.996017)."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxnas.checks import check_counts, check_numbers
from jaxnas.search import pareto
from jaxnas.search.proposals import propose
from jaxnas.search.strategy import State, Strategy, check_best
from jaxnas.space import Arch

_ATTEMPTS = 10  # Children made for each that is wanted: many repeat what is known.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Survivors:
    """The population of P that survived the last generation, as `state.memory`."""

    rows: jax.Array  # of the history, from the best down; -1 where there is none. int32 [P]
    rank: jax.Array  # the front of each. int32 [P]
    crowding: jax.Array  # the distance of its neighbors in that front. float32 [P]


@dataclasses.dataclass(frozen=True)
class NSGA2(Strategy):
    """NSGA-II within bounds: a population spread along the front of several scores.

        state = strategy.init(key)
        while not strategy.finished(state):
            archs, state = strategy.ask(state)
            state = strategy.tell(state, archs, scores_of(archs))  # [population, objectives]
        archs, scores = strategy.best(state)  # all that no other dominates

    The first generation is random. Each later one has children of two parents from binary tournaments by
    front, then by crowding: crossover, then mutation. The better half of parents and children survives. All
    scores are maximized; negate what is to be small. Crossover takes each element from either parent,
    mutation draws options anew, and no architecture is evaluated twice: a child that is known makes way for
    another.

    Attributes:
      population: how many a generation has: the batch.
      objectives: how many scores an architecture has, at least 2.
      crossover_probability: of a child having two parents and not one.
      mutation_probability: of resampling each element; by default 0.3 / space.length, less than usual:
        children that are known are refused, and those that are left have changed more than the average.

    Example:
      >>> space = Space(x=Choice(*range(8)), y=Choice(*range(8)))
      >>> strategy = search.NSGA2(space, evaluations=40, population=10, objectives=2)
      >>> strategy.batch
      10
    """

    population: int = 50
    objectives: int = 2
    crossover_probability: float = 0.9
    mutation_probability: float | None = None

    def __post_init__(self):
        check_counts(self, "population")
        super().__post_init__()
        check_counts(self, "objectives")
        check_numbers(self, "crossover_probability", least=0, most=1)
        check_numbers(self, "mutation_probability", least=0, most=1, none=True)
        if self.objectives < 2:
            raise ValueError(
                f"NSGA2: objectives is {self.objectives}, expected at least 2; for one "
                "score there is Evolution."
            )

    @property
    def batch(self) -> int:
        """A generation is asked for at a time."""
        return self.population

    def init(self, key: jax.Array) -> State:
        """The first state; see `Strategy`."""
        empty = jnp.full((self.population,), -1, jnp.int32)
        memory = Survivors(empty, jnp.zeros_like(empty), jnp.zeros(empty.shape, jnp.float32))
        return dataclasses.replace(super().init(key), memory=memory)

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state: State) -> tuple[Arch, State]:
        """A generation of architectures and the next state; see `Strategy`."""
        key, child_key, ask_key = jax.random.split(state.key, 3)
        usable = jnp.sum(state.memory.rows >= 0, dtype=jnp.int32)
        children = self._children(child_key, state, usable)
        groups = [(children, jnp.where(usable > 0, self.population, 0))]
        return propose(self, dataclasses.replace(state, key=key), ask_key, groups)

    @functools.partial(jax.jit, static_argnums=0)
    def tell(self, state: State, archs: Arch, scores: Any) -> State:
        """The state that knows the scores, float [population, objectives]; see `Strategy`."""
        new = super().tell(state, archs, scores)
        rows = state.size + jnp.arange(self.population, dtype=jnp.int32)
        rows = jnp.concatenate([state.memory.rows, jnp.where(rows < new.size, rows, -1)])  # [2 P]
        scores = new.scores[jnp.maximum(rows, 0)]
        usable = (rows >= 0) & ~jnp.any(jnp.isnan(scores), axis=1)
        rank = pareto.non_dominated_rank(scores, usable)
        crowding = pareto.crowding_distance(scores, rank, usable)
        order = jnp.lexsort((-crowding, rank))[: self.population]
        return dataclasses.replace(
            new, memory=Survivors(jnp.where(usable[order], rows[order], -1), rank[order], crowding[order])
        )

    def best(self, state: State) -> tuple[Arch, jax.Array]:
        """Returns the front: architectures, leading axis F, and scores, float32 [F, objectives], best first.

        On the host, since F is not known before.
        """
        rows = jnp.flatnonzero(pareto.pareto_front(state.scores))
        check_best(state, len(rows))
        rows = rows[jnp.argsort(-state.scores[rows, 0])]
        return self.space.decode(state.codes[rows]), state.scores[rows]

    def _parents(self, key: jax.Array, memory: Survivors, usable: jax.Array, n: int) -> jax.Array:
        """The winners of 2 n tournaments of two, as places in the population; int32 [n, 2]."""
        draw_key, tie_key = jax.random.split(key)
        one, two = jax.random.randint(draw_key, (2, n, 2), 0, jnp.maximum(usable, 1))
        rank, crowding = memory.rank, memory.crowding
        equal = rank[one] == rank[two]
        wins = (rank[one] < rank[two]) | (equal & (crowding[one] > crowding[two]))
        wins |= equal & (crowding[one] == crowding[two]) & jax.random.bernoulli(tie_key, shape=(n, 2))
        return jnp.where(wins, one, two)

    def _children(self, key: jax.Array, state: State, usable: jax.Array) -> jax.Array:
        """Codes of children, int32 [10 P, length]; anything while there are no parents."""
        rate = self.mutation_probability
        rate = 0.3 / self.space.length if rate is None else rate

        def child(key, rows):
            cross_key, choose_key, mutate_key = jax.random.split(key, 3)
            a, b = (self.space.decode(code) for code in jnp.maximum(state.codes[rows], 0))
            both = jax.random.bernoulli(choose_key, self.crossover_probability)
            mixed = self.space.crossover(cross_key, a, b)
            arch = jax.tree.map(lambda x, y: jnp.where(both, x, y), mixed, a)
            return self.space.encode(self.space.mutate(mutate_key, arch, rate))

        parent_key, key = jax.random.split(key)
        n = _ATTEMPTS * self.population
        rows = jnp.maximum(state.memory.rows, 0)[self._parents(parent_key, state.memory, usable, n)]
        return jax.vmap(child)(jax.random.split(key, n), rows)

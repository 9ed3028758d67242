"""Several scores at once: dominance, fronts, crowding, hypervolume, and NSGA-II.

Scores are maximized, as everywhere in jaxnas; negate what is to be small. Shapes are fixed: rows where
`valid` is False, or that hold a NaN, do not count. N points, M objectives. NSGA-II is that of Deb et al. 2002
(doi 10.1109/4235.996017).
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxnas.checks import check_counts, check_numbers
from jaxnas.search.proposals import propose
from jaxnas.search.strategy import State, Strategy, check_best
from jaxnas.space import Arch

_BLOCK = 128  # Rows compared with all others at a time, where N x N would not fit in memory.


def dominates(a: jax.Array, b: jax.Array) -> jax.Array:
    """Whether scores a, float [..., M], are at least b in all objectives and above it in one, bool [...]."""
    return jnp.all(a >= b, axis=-1) & jnp.any(a > b, axis=-1)


@jax.jit
def non_dominated_rank(objectives: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    """The front of each point: 0 is not dominated, 1 only by points of front 0, and so on.

    Args:
      objectives: scores, float [N, M].
      valid: the rows that count, bool [N]; by default all.

    Returns:
      int32 [N]; rows that are not valid have N, behind all others. Memory grows with N x N bytes.
    """
    scores, usable = _prepare(objectives, valid)
    beats = jnp.zeros((len(scores),) * 2, bool)  # [i, j]: i is above j in some objective
    bars = ~beats
    for column in scores.T:  # [N, N] for each in turn, and not [N, N, M]
        beats |= column[:, None] > column[None, :]
        bars &= column[:, None] >= column[None, :]
    beats &= bars

    def peel(carry):
        rank, left, level = carry
        front = left & ~jnp.any(beats & left[:, None], axis=0)
        return jnp.where(front, level, rank), left & ~front, level + 1

    rank = jnp.full((len(scores),), len(scores), jnp.int32)
    return lax.while_loop(lambda carry: jnp.any(carry[1]), peel, (rank, usable, jnp.int32(0)))[0]


@jax.jit
def crowding_distance(objectives: jax.Array, rank: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    """Returns how far the neighbors of each point are in its front, of `rank` int32 [N]; more is better.

    As in Deb et al. (2002, section III-B), but averaged over objectives and not summed, as pymoo does.

    Returns:
      float32 [N]: the gap between the two neighbors as a part of the front's range; infinite at the ends of
      each objective, and in fronts of one or two; 0 in rows that are not valid. An objective in which a front
      has one value, or an infinite range, adds 0.
    """
    scores, usable = _prepare(objectives, valid)
    n = len(scores)
    rank, place = jnp.where(usable, rank, n), jnp.arange(n)
    total, size = jnp.zeros((n,), jnp.float32), jnp.zeros((n,), jnp.int32)
    for column in scores.T:  # a loop, so that sums have the same order under vmap
        order = jnp.lexsort((-column, rank))
        value, front = -column[order], rank[order]
        first = jnp.roll(front, 1) != front
        first = first.at[0].set(True)
        last = jnp.roll(first, -1).at[-1].set(True)
        start = lax.cummax(jnp.where(first, place, 0))
        stop = lax.cummin(jnp.where(last, place, n - 1), reverse=True)
        span = value[stop] - value[start]
        gap = jnp.where(first, jnp.inf, value - jnp.roll(value, 1)) + jnp.where(
            last, jnp.inf, jnp.roll(value, -1) - value
        )
        counts = (span > 0) & jnp.isfinite(span)
        part = jnp.where(counts, gap / jnp.where(counts, span, 1), 0)
        total = total.at[order].add(part)
        size = size.at[order].set(stop - start + 1)
    distance = jnp.where(size <= 2, jnp.inf, total / scores.shape[1])
    return jnp.where(usable, distance, 0)


@jax.jit
def pareto_front(objectives: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    """Returns which points no other dominates, bool [N]; equal points are all in the front."""
    scores, usable = _prepare(objectives, valid)
    others = jnp.where(usable[:, None], scores, jnp.nan)

    def beaten(row):
        return jnp.any(dominates(others, row[None, :]))

    return usable & ~lax.map(beaten, scores, batch_size=_BLOCK)


@jax.jit
def hypervolume(objectives: jax.Array, reference: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    """Returns the volume that is dominated by the points and above a reference, float [M], float32 [].

    Exact but for rounding: a sweep in O(N log N) for two objectives, O(N^2) for three. Points that are not
    above the reference in all objectives add 0.
    """
    scores, usable = _prepare(objectives, valid)
    bound = jnp.asarray(reference, jnp.float32)
    if scores.shape[1] not in (2, 3) or bound.shape != scores.shape[1:]:
        raise ValueError(
            f"hypervolume: got objectives {list(scores.shape)} and a reference {list(bound.shape)}, expected "
            "[N, M] and [M] with M of 2 and 3."
        )
    gains = jnp.where(usable[:, None], jnp.maximum(scores - bound[None, :], 0), 0)
    gains = gains[jnp.argsort(-gains[:, 0])]
    x, y = gains[:, 0], gains[:, 1]
    widths = x - jnp.append(x[1:], 0)
    if scores.shape[1] == 2:
        return jnp.sum(widths * lax.cummax(y))
    levels = -jnp.sort(-gains[:, 2])

    def area(level):  # of the slice at one height of the third objective
        return jnp.sum(widths * lax.cummax(jnp.where(gains[:, 2] >= level, y, 0)))

    return jnp.sum((levels - jnp.append(levels[1:], 0)) * lax.map(area, levels, batch_size=_BLOCK))


def _prepare(objectives: jax.Array, valid: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Scores as float32 [N, M], and the rows that count, bool [N]."""
    scores = jnp.asarray(objectives, jnp.float32)
    if scores.ndim != 2 or 0 in scores.shape:
        raise ValueError(
            f"objectives: got shape {list(scores.shape)}, expected [N, M]: a row for "
            "each point (vmap over more axes)."
        )
    usable = ~jnp.any(jnp.isnan(scores), axis=1)
    if valid is None:
        return scores, usable
    if jnp.shape(valid) != usable.shape:
        raise ValueError(
            f"valid: got shape {list(jnp.shape(valid))}, expected "
            f"{list(usable.shape)}, one for each row of the objectives."
        )
    return scores, usable & jnp.asarray(valid, bool)


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
    """NSGA-II within bounds: a population spread along the front of several scores; use as `Strategy`.

    The first generation is random. Each later one has children of two parents from binary tournaments by
    front, then by crowding: crossover, which takes each element from either parent, then mutation, which
    draws options anew. The better half of parents and children survives. No architecture is evaluated twice.

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
        rank = non_dominated_rank(scores, usable)
        crowding = crowding_distance(scores, rank, usable)
        order = jnp.lexsort((-crowding, rank))[: self.population]
        return dataclasses.replace(
            new, memory=Survivors(jnp.where(usable[order], rows[order], -1), rank[order], crowding[order])
        )

    def best(self, state: State) -> tuple[Arch, jax.Array]:
        """The front: architectures, leading axis F, and scores float32 [F, objectives], the best first."""
        rows = jnp.flatnonzero(pareto_front(state.scores))
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

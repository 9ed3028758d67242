"""Local search: from an architecture to a better neighbor, until there is none (White et al., 2021)."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxnas.search.neighbors import neighbors
from jaxnas.search.proposals import propose
from jaxnas.search.strategy import State, Strategy, canonical
from jaxnas.space import Arch


@dataclasses.dataclass(frozen=True)
class LocalSearch(Strategy):
    """Climbs by single changes and starts anew at a local optimum; use as `Strategy`.

    Evaluates the neighbors of where it is (architectures that differ in one decision) in random
    order and moves to the first better one. When all were evaluated it goes to a random
    architecture. Nothing is evaluated twice (Local Search is State of the Art for NAS Benchmarks,
    UAI 2021, algorithm 1, with the first improvement instead of the best).

    Attributes:
      batch: how many to ask for at a time.
    """

    batch: int = 1

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

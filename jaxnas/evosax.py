"""evosax beside jaxnas: evolution strategies, such as CMA-ES, as strategies of a compiled search.

    strategy = jaxnas.evosax.FromEvosax(space, algorithm=evosax.algorithms.CMA_ES, batch=16)
    state = jax.jit(functools.partial(search.scan, strategy, evaluate))(key)

These algorithms move a normal distribution of real genes. A gene is rounded to an option by the share of the
standard normal distribution below it, so that at first all options are equally likely.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from jaxnas.checks import check_key
from jaxnas.search.proposals import propose
from jaxnas.search.strategy import State, Strategy, canonical
from jaxnas.space import Arch

try:
    from evosax import algorithms
except ImportError as error:
    raise ImportError("jaxnas.evosax needs the package evosax: pip install 'jaxnas[evosax]'") from error


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Memory:
    """The state of an algorithm of evosax, and the genes of its last population, float32 [batch, L]."""

    state: Any
    genes: jax.Array


@dataclasses.dataclass(frozen=True)
class FromEvosax(Strategy):
    """An algorithm of evosax on batches of architectures; use as `Strategy`.

    The new architectures of a population that keep the bounds are evaluated, and random ones if there
    are too few. The algorithm hears the scores of its whole population: known ones of the history, and the
    worst of the population for what breaks the bounds or failed.

    Attributes:
      algorithm: distribution-based, such as `CMA_ES`, `SNES` or `Sep_CMA_ES`; called with `population_size`
        and `solution`.
      batch: the size of a population.
    """

    algorithm: Callable[..., Any] = algorithms.CMA_ES
    batch: int = 16  # pyrefly: ignore[bad-override]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not hasattr(self._made, "get_mean"):
            raise TypeError(
                f"FromEvosax: algorithm is {self.algorithm!r}, expected one of evosax.algorithms that is "
                "distribution-based, such as CMA_ES, SNES or Open_ES."
            )

    @functools.cached_property
    def _made(self) -> Any:
        with _lenient():
            return self.algorithm(population_size=self.batch, solution=jnp.zeros(self.space.length))

    def init(self, key: jax.Array) -> State:
        """The first state; see `Strategy`."""
        check_key("FromEvosax", key)
        key, own_key = jax.random.split(key)
        start = jnp.zeros(self.space.length)
        with _lenient():
            state = self._made.init(own_key, start, self._made.default_params)
        genes = jnp.zeros((self.batch, self.space.length))
        return dataclasses.replace(super().init(key), memory=Memory(state, genes))

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state: State) -> tuple[Arch, State]:
        """A batch of architectures and the next state; see `Strategy`."""
        key, own_key, ask_key = jax.random.split(state.key, 3)
        with _lenient():
            genes, own = self._made.ask(own_key, state.memory.state, self._made.default_params)
        state = dataclasses.replace(state, key=key, memory=Memory(own, genes))
        return propose(self, state, ask_key, [(self._codes(genes), self.batch)])

    @functools.partial(jax.jit, static_argnums=0)
    def tell(self, state: State, archs: Arch, scores: Any) -> State:
        """The state that knows the scores, float [batch]; see `Strategy`."""
        memory, (key, own_key) = state.memory, jax.random.split(state.key)
        state = super().tell(state, archs, scores)
        codes = self._codes(memory.genes)
        same = jnp.all(codes[:, None] == state.codes[None], axis=2)  # [batch, H]
        known = jnp.where(jnp.any(same, axis=1), state.scores[jnp.argmax(same, axis=1)], jnp.nan)
        worst = jnp.min(jnp.where(jnp.isnan(known), jnp.inf, known))
        worst = jnp.where(jnp.isinf(worst), 0.0, worst)
        fitness = -jnp.where(jnp.isnan(known), worst, known)  # evosax minimizes
        with _lenient():
            given = memory.genes, fitness, memory.state, self._made.default_params
            own, _ = self._made.tell(own_key, *given)
        return dataclasses.replace(state, key=key, memory=Memory(own, memory.genes))

    def _codes(self, genes: jax.Array) -> jax.Array:
        """The canonical codes of genes, both [batch, L]."""
        sizes = jnp.asarray(self.space.sizes, jnp.float32)[None]
        options = jnp.floor(jax.scipy.stats.norm.cdf(genes) * sizes)
        return canonical(self, jnp.clip(options, 0, sizes - 1).astype(jnp.int32))


@contextlib.contextmanager
def _lenient() -> Iterator[None]:
    """Lets evosax mix types and ranks, as JAX does by default."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield

"""Strategies that learn nothing: random search, the baseline of all others, and given architectures."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxnas.search.proposals import propose
from jaxnas.search.strategy import Pool, State, Strategy, check_pool
from jaxnas.space import Arch


@dataclasses.dataclass(frozen=True)
class RandomSearch(Strategy):
    """Random architectures within bounds, each evaluated once; use as `Strategy`.

    Example:
      >>> strategy = search.RandomSearch(Space(width=Choice(1, 2, 3)), evaluations=3, batch=3)
      >>> archs, state = strategy.ask(strategy.init(jax.random.key(0)))
      >>> sorted(archs["width"].tolist())
      [0, 1, 2]
    """

    name = "random"
    learns = False  # it is what others are compared with
    batch: int = 50  # how many to ask for at a time

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state: State) -> tuple[Arch, State]:
        """A batch of architectures and the next state; see `Strategy`."""
        key, ask_key = jax.random.split(state.key)
        return propose(self, dataclasses.replace(state, key=key), ask_key, [])


@dataclasses.dataclass(frozen=True)
class Listed(Strategy):
    """Evaluates the architectures of a pool, `given`, in their order; use as `Strategy`."""

    learns = False
    batch: int = 1
    given: Pool | None = None
    name: str = "listed"

    def __post_init__(self) -> None:
        codes = check_pool(self.given, self.space, "Listed: given")
        object.__setattr__(self, "evaluations", len(codes))
        super().__post_init__()

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state: State) -> tuple[Arch, State]:
        """The next architectures and the next state; see `Strategy`."""
        assert self.given is not None
        rows = state.size + jnp.arange(self.batch, dtype=jnp.int32)
        codes = jnp.asarray(self.given.codes, jnp.int32)[jnp.clip(rows, 0, self.evaluations - 1)]
        return self.space.decode(codes), dataclasses.replace(state, valid=rows < self.evaluations)

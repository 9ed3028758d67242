"""Random search: the baseline every other strategy has to beat."""

import dataclasses
import functools

import jax

from jaxnas.search.proposals import propose
from jaxnas.search.strategy import State, Strategy
from jaxnas.space import Arch


@dataclasses.dataclass(frozen=True)
class RandomSearch(Strategy):
    """Random architectures within bounds, each evaluated once; use as `Strategy`.

    Attributes:
      batch: how many to ask for at a time.
    """

    name = "random"
    learns = False  # it is what others are compared with
    batch: int = 50

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state: State) -> tuple[Arch, State]:
        """A batch of architectures and the next state; see `Strategy`."""
        key, ask_key = jax.random.split(state.key)
        return propose(self, dataclasses.replace(state, key=key), ask_key, [])

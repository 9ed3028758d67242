"""Random search: the baseline every other strategy has to beat."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from jaxnas.search import state as state_lib
from jaxnas.search.bounds import Cost
from jaxnas.search.state import State
from jaxnas.space import Arch, Space


@dataclasses.dataclass(frozen=True)
class RandomSearch:
    """Random architectures within bounds, each evaluated once.

        state = strategy.init(key)
        while not strategy.finished(state):
            archs, state = strategy.ask(state)
            state = strategy.tell(state, archs, evaluate(archs))
        arch, score = strategy.best(state)

    `ask`, `tell` and `finished` are pure and work under jit, vmap and scan.

    Attributes:
      space: the search space.
      cost: a function from an architecture to {name: number}, traceable; needed for bounds.
      bounds: {cost name: (min | None, max | None)}.
      evaluations: how many architectures to evaluate: the capacity of the history.
      population: how many to ask for at a time.
      canonical: from an architecture to the one that stands for all equal networks, as
        `Table.canonical` of a table of cells; then no evaluation is spent twice on one network.
    """

    space: Space
    cost: Cost | None = None
    bounds: Any = ()
    evaluations: int = 1000
    population: int = 50
    canonical: Callable[[Arch], Arch] | None = None

    def __post_init__(self):
        state_lib.check_settings(self)

    def init(self, key: jax.Array) -> State:
        """Returns the first state; raises ValueError for bounds that no architecture keeps."""
        return state_lib.init(self, key)

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state: State) -> tuple[Arch, State]:
        """Returns a batch of `population` architectures to evaluate, and the next state.

        Rows where `state.valid` is False are fillers, and are ignored by `tell`: the budget of
        evaluations ends, or (`state.exhausted`) no other new feasible architecture was found.
        """
        key, ask_key = jax.random.split(state.key)
        return state_lib.propose(self, dataclasses.replace(state, key=key), ask_key, [])

    @functools.partial(jax.jit, static_argnums=0)
    def tell(self, state: State, archs: Arch, scores: Any) -> State:
        """Returns the state that knows the scores of the batch last asked.

        Args:
          state: as `ask` returned it.
          archs: the architectures that `ask` returned, leading axis `population`.
          scores: float [population], higher is better. NaN: skipped and counted, never best.

        Raises ValueError for other shapes or dtypes.
        """
        return state_lib.tell(self, state, archs, scores)

    def finished(self, state: State) -> jax.Array:
        """Returns whether the budget is spent or the feasible space exhausted, bool []."""
        return state_lib.finished(self, state)

    def best(self, state: State) -> tuple[Arch, jax.Array]:
        """Returns the best architecture and its score; ValueError if no score is a number."""
        return state_lib.best(self, state)

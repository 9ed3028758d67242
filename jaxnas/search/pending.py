"""Architectures that are being evaluated: a strategy is asked for the next one while others run.

    archs, state = strategy.ask(state)
    state = begin_evaluation(strategy, state, archs)  # and ask again, as often as there are workers
    ...
    state = end_evaluation(strategy, state, archs, scores)  # of any that began, in any order

Both functions are pure. What is being evaluated is never asked for again, and is no parent.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxnas.search.state import State
from jaxnas.search.strategy import Strategy
from jaxnas.space import Arch


def check_one_at_a_time(strategy: Strategy) -> None:
    """Checks that a strategy can be asked for the next architecture while others are evaluated.

    Raises:
      ValueError: it asks for generations, or its next question needs all answers.
    """
    if strategy.batch != 1 or strategy.fidelities is not None or strategy.objectives is not None:
        raise ValueError(
            f"search: {type(strategy).__name__} asks for {strategy.batch} at a time"
            f"{'' if strategy.fidelities is None else ', and races over fidelities'}, so that it cannot be "
            "asked for the next architecture while others are evaluated. RandomSearch, LocalSearch, "
            "RegularizedEvolution, PredictorGuided and Reinforce can, with batch=1; for the others call "
            "search.run(..., batched=True) with an evaluation that spreads its batch over workers itself."
        )


@functools.partial(jax.jit, static_argnums=0)
def begin_evaluation(strategy: Strategy, state: State, archs: Arch) -> State:
    """The state in which the architecture that was asked for is being evaluated.

    Args:
      strategy: of the search, with a batch of 1.
      state: as `ask` returned it; nothing changes where it is not valid.
      archs: the architecture that `ask` returned, leading axis 1.
    """
    row = jnp.where(state.valid, state.size + state.pending, strategy.evaluations)  # [1]
    return dataclasses.replace(
        state,
        codes=state.codes.at[row].set(strategy.space.encode(archs), mode="drop"),
        pending=state.pending + jnp.sum(state.valid, dtype=jnp.int32),
        valid=jnp.zeros_like(state.valid),
    )


@functools.partial(jax.jit, static_argnums=0)
def end_evaluation(strategy: Strategy, state: State, archs: Arch, scores: Any) -> State:
    """The state that knows the score of one architecture whose evaluation began; see `Strategy.tell`.

    Args:
      strategy: of the search, with a batch of 1.
      state: in which the architecture is being evaluated; the score of another one is ignored.
      archs: the architecture, leading axis 1.
      scores: float [1]; NaN where the evaluation failed.
    """
    row = jnp.arange(strategy.evaluations)
    begun = (row >= state.size) & (row < state.size + state.pending)
    same = begun & jnp.all(state.codes == strategy.space.encode(archs), axis=1)
    place, there = jnp.argmax(same), jnp.any(same)
    # `tell` writes to the row at `size`. The architecture that stands there moves to the place of the one
    # that is told, so that the rows that are being evaluated stay together.
    codes = state.codes.at[place].set(jnp.where(there, state.codes[state.size], state.codes[place]))
    state = dataclasses.replace(
        state, codes=codes, pending=state.pending - there.astype(jnp.int32), valid=there[None]
    )
    return strategy.tell(state, archs, scores)

"""Several steps of a training in one compiled call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxnas.training.settings import Training
from jaxnas.training.state import TrainState
from jaxnas.training.step import Step


def several(step: Step) -> Callable[[TrainState, tuple[Any, ...]], Any]:
    """A step for each of a tuple of batches, one after another in one compiled call.

    Fewer calls mean less time between steps. On CPUs each call also asks the system for the memory of
    its buffers anew.

    Args:
      step: from (state, batches) to (state, metrics).

    Returns:
      From (state, tuple of batches) to the state and the metrics of the last step, but for "finite",
      "archs" and "losses", which are those of each step. The state is donated. Batches of different shapes,
      as texts of different `lengths`, are refused with a ValueError.
    """

    @functools.partial(jax.jit, static_argnums=3, donate_argnums=0)
    def steps(state: Any, shared: dict[int, Any], others: Sequence[dict[int, Any]], tree: Any) -> Any:
        def one(state: Any, own: dict[int, Any]) -> Any:
            leaves = shared | own
            return step(state, tree.unflatten([leaves[i] for i in sorted(leaves)]))

        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *others)
        state, metrics = jax.lax.scan(one, state, stacked, length=len(others))
        metrics["losses"] = metrics["loss"]
        each = ("finite", "archs", "losses")
        return state, {k: x if k in each else jax.tree.map(lambda y: y[-1], x) for k, x in metrics.items()}

    def call(state: Any, batches: tuple[Any, ...]) -> Any:
        shapes = {tuple(x.shape for x in jax.tree.leaves(batch)) for batch in batches}
        if len(shapes) > 1:
            raise ValueError(
                f"{len(batches)} steps are one call (training.steps_per_call), and their batches have "
                f"{len(shapes)} different shapes: set training.steps_per_call=1, or leave out the task's "
                "`lengths`."
            )
        tree, flat = jax.tree.structure(batches[0]), [jax.tree.leaves(batch) for batch in batches]
        # An array that is in every batch, as a graph may be, is not stacked.
        shared = {i: x for i, x in enumerate(flat[0]) if all(leaves[i] is x for leaves in flat)}
        others = [{i: x for i, x in enumerate(leaves) if i not in shared} for leaves in flat]
        return steps(state, shared, others, tree)

    return call


def steps_of_call(number: int, training: Training) -> int:
    """How many steps the call that begins with step `number` has: up to where something is recorded."""
    every = (*map(training.every, ("log", "evaluate", "checkpoint")), training.steps_per_call)
    return min(training.steps - number, *(n - number % n for n in every))

"""Differentiable search: weights and architecture parameters trained together, by gradients.

The architecture parameters are logits shaped as the space; a relaxation turns them into a soft
architecture in every step. Three ways, after PAR Transformer (arXiv 2009.04534, section 2) and DARTS
(arXiv 1806.09055, section 2.3):

* "joint": one gradient on the training stream for both;
* "first": weights on the training stream; now and then the logits on text held out of it;
* "second": the same, but through one step of plain gradient descent of the weights, exactly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, get_args

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jaxnas.space import Arch
from jaxnas.training import relaxations
from jaxnas.training.language import Batch, Loss, compile_step
from jaxnas.training.relaxations import Relaxation

Order = Literal["joint", "first", "second"]


@flax.struct.dataclass
class SearchState:
    """All that a differentiable search needs to go on.

    Attributes:
      step: steps done, int32 [].
      params, opt_state: the weights and their optimizer's state.
      logits, logits_opt_state: architecture parameters, float32 [..., options] by name, and theirs.
      memory, search_memory: of the training stream and of the one held out.
      search_loss: of the last update of the logits, float32 []; NaN before the first.
      key: typed key of the run; the randomness of step n comes from folding n into it.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    logits: Arch
    logits_opt_state: Any
    memory: Any
    search_memory: Any
    search_loss: jax.Array
    key: jax.Array


@dataclasses.dataclass(frozen=True)
class SearchSettings:
    """How architecture parameters are trained.

    Attributes:
      order: see the module.
      start: steps before which the logits stay as they are.
      every: steps from one update of the logits to the next ("joint" updates in each).
      cost_weight: of the term `max(0, expected cost / target - 1)`, as Planer (arXiv 2208.14580) adds
        it while the network is too dear; 0 leaves it out.
      target: the cost to reach, in units of the cost function.

    Raises:
      ValueError: an unknown order, or numbers out of range.
    """

    order: Order = "first"
    start: int = 0
    every: int = 4
    cost_weight: float = 0.0
    target: float | None = None

    def __post_init__(self):
        if self.order not in get_args(Order):
            raise ValueError(
                f"SearchSettings: order is {self.order!r}, expected one of {', '.join(get_args(Order))}."
            )
        if self.every < 1 or self.start < 0:
            raise ValueError(
                f"SearchSettings: every is {self.every} and start {self.start}, expected at least 1 and 0."
            )
        if self.cost_weight and not (self.target or 0) > 0:
            raise ValueError(f"SearchSettings: a cost_weight needs a target above 0, got {self.target}.")


def make_search_step(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    logits_optimizer: optax.GradientTransformation,
    relaxation: Relaxation,
    temperature: optax.Schedule,
    settings: SearchSettings,
    mesh: Mesh,
    state: SearchState,
    *,
    cost: Callable[[Arch], jax.Array] | None = None,
) -> Callable[[SearchState, dict[str, Batch]], tuple[SearchState, dict[str, jax.Array]]]:
    """The compiled step of a differentiable search.

    Args:
      loss: of a soft architecture; see `language_loss`.
      optimizer, schedule: of the weights; the schedule is also the rate of the step that "second"
        unrolls.
      logits_optimizer: of the architecture parameters.
      relaxation: see `relaxations`.
      temperature: by step.
      settings: see `SearchSettings`.
      mesh: with an axis "data".
      state: the first one, for its structure.
      cost: from probabilities to the expected cost, float32 []; needed with a cost weight.

    Returns:
      `step(state, {"train": batch, "search": batch}) -> (state, metrics)`. Of the search batch nothing
      is read where the logits are not updated: it then may be any. Metrics are float32 []: "loss",
      "search_loss" (of the last update), "learning_rate", "temperature", "entropy" (nats),
      "confidence" and, with a cost, "expected_cost". The state is donated.

    Raises:
      ValueError: a cost weight without a cost.
    """
    if settings.cost_weight and cost is None:
        raise ValueError("make_search_step: settings have a cost_weight, but there is no cost.")

    def too_dear(logits: Arch) -> jax.Array:
        if not settings.cost_weight:
            return jnp.float32(0)
        expected = cost(relaxations.softmax(logits))
        return settings.cost_weight * jnp.maximum(expected / settings.target - 1, 0)

    def weights_gradient(
        params: Any, logits: Arch, batch: Batch, memory: Any, keys: jax.Array, at: jax.Array
    ) -> Any:
        """((loss, memory), gradients of weights and logits) on a batch."""

        def total(params: Any, logits: Arch) -> tuple[jax.Array, Any]:
            arch = relaxation(logits, keys[0], at)
            value, new = loss(params, arch, batch, memory, keys[1])
            return value + too_dear(logits), (value, new)

        (_, found), grads = jax.value_and_grad(total, (0, 1), has_aux=True)(params, logits)
        return found, grads

    def logits_gradient(
        state: SearchState, batches: dict[str, Batch], keys: jax.Array, at: jax.Array
    ) -> tuple[tuple[jax.Array, Any], Arch]:
        """((loss, memory), gradient of the logits) on the search stream."""

        def total(logits: Arch) -> tuple[jax.Array, Any]:
            params = state.params
            if settings.order == "second":
                arch = relaxation(logits, keys[0], at)
                grads = jax.grad(lambda p: loss(p, arch, batches["train"], state.memory, keys[1])[0])
                rate = schedule(state.step)
                params = jax.tree.map(lambda p, g: p - rate * g, params, grads(params))
            arch = relaxation(logits, keys[2], at)
            value, new = loss(params, arch, batches["search"], state.search_memory, keys[3])
            return value + too_dear(logits), (value, new)

        (_, found), grads = jax.value_and_grad(total, has_aux=True)(state.logits)
        return found, grads

    def update_logits(state: SearchState, grads: Arch) -> tuple[Arch, Any]:
        updates, opt_state = logits_optimizer.update(grads, state.logits_opt_state, state.logits)
        return optax.apply_updates(state.logits, updates), opt_state

    def step(state: SearchState, batches: dict[str, Batch]) -> tuple[SearchState, dict[str, jax.Array]]:
        keys = jax.random.split(jax.random.fold_in(state.key, state.step), 6)
        at = jnp.asarray(temperature(state.step), jnp.float32)
        due = state.step >= settings.start
        logits, logits_opt_state = state.logits, state.logits_opt_state
        search_memory, search_loss = state.search_memory, state.search_loss
        if settings.order != "joint":
            # First the logits, then the weights under the new ones, as DARTS does.
            due &= (state.step - settings.start) % settings.every == 0

            def update(_: None) -> Any:
                (value, memory), grads = logits_gradient(state, batches, keys[2:], at)
                return *update_logits(state, grads), memory, value

            logits, logits_opt_state, search_memory, search_loss = jax.lax.cond(
                due,
                update,
                lambda _: (logits, logits_opt_state, search_memory, search_loss),
                None,
            )
        (value, memory), (grads, logits_grads) = weights_gradient(
            state.params, logits, batches["train"], state.memory, keys[:2], at
        )
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        if settings.order == "joint":
            new = update_logits(state, logits_grads)
            old = (logits, logits_opt_state)
            logits, logits_opt_state = jax.tree.map(lambda a, b: jnp.where(due, a, b), new, old)
        probabilities = relaxations.softmax(logits)
        metrics = {
            "loss": value,
            "search_loss": search_loss,
            "learning_rate": jnp.asarray(schedule(state.step), jnp.float32),
            "temperature": at,
            "entropy": relaxations.entropy(probabilities),
            "confidence": relaxations.confidence(probabilities),
        }
        if cost is not None:
            metrics["expected_cost"] = cost(probabilities)
        state = SearchState(
            state.step + 1,
            params,
            opt_state,
            logits,
            logits_opt_state,
            memory,
            search_memory,
            search_loss,
            state.key,
        )
        return state, metrics

    return compile_step(step, mesh, state)


@dataclasses.dataclass(frozen=True)
class PairedBatches:
    """Batches of the training stream, each with the one of the search stream that is due with it.

    Attributes:
      train, search: as `data.ContiguousBatches`; the search stream goes on at each update of the logits
        and stands still in between.
      settings: says when the logits are updated.
    """

    train: Any
    search: Any
    settings: SearchSettings

    def at(self, step: int) -> dict[str, Batch]:
        """The batches of a step."""
        updates = max(step - self.settings.start, 0) // self.settings.every
        return {"train": self.train.at(step), "search": self.search.at(updates)}

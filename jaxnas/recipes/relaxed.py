"""Differentiable search: architecture parameters that are trained beside the weights, by gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import optax

from jaxnas.checks import check_counts, check_numbers
from jaxnas.choice import nearest
from jaxnas.cost import Cost
from jaxnas.recipes import relaxations
from jaxnas.recipes.recipe import Gradients, Problem, Recipe, TrainState, Watches, check_cost, standard
from jaxnas.space import Arch, Space

Order = Literal["joint", "first", "second"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relaxed(Recipe):
    """Differentiable search: parameters and architecture parameters trained together, by gradients.

    The architecture parameters are logits of the shape of the space; a relaxation turns them into a soft
    architecture in every step (PAR Transformer, arXiv 2009.04534, section 2; DARTS, arXiv 1806.09055,
    section 2.3).

    Attributes:
      order: "joint", one gradient on the training batches for both; "first", the logits now and then on
        batches held out of training; "second", the same through one step of plain gradient descent of
        the parameters, exactly.
      relaxation: "gumbel_softmax", "straight_through", "softmax" or "average".
      start: steps before which the logits stay as they are.
      every: steps from one update of the logits to the next ("joint" updates in each).
      learning_rate, weight_decay: of Adam on the logits.
      temperature: its course over all steps, "constant", "exponential" or "linear".
      start_temperature, end_temperature: its ends.
      cost: name of the cost that is penalized, as "macs"; None for none.
      cost_weight: of the term `max(0, expected cost / target - 1)` (Planer, arXiv 2208.14580).
      target: the cost to reach, as a share of that of `reference`. Both are counted above the cost of the
        smallest network, which every network has.
      reference: an architecture as option values by choice; None for the largest.
      confidence: the training ends when every decision has an option of this probability; None to continue.
    """

    order: str = "first"
    relaxation: str = "gumbel_softmax"
    start: int = 0
    every: int = 4
    learning_rate: float = 1e-2
    weight_decay: float = 5e-4
    temperature: str = "exponential"
    start_temperature: float = 5.0
    end_temperature: float = 0.5
    cost: str | None = None
    cost_weight: float = 0.0
    target: float = 0.7
    reference: Mapping[str, Any] | None = None
    confidence: float | None = None

    def __post_init__(self) -> None:
        for name, known in (
            ("order", get_args(Order)),
            ("relaxation", tuple(relaxations.RELAXATIONS)),
            ("temperature", get_args(relaxations.Kind)),
        ):
            if (value := getattr(self, name)) not in known:
                raise ValueError(
                    f"Relaxed: {name} is {value!r}, expected one of {', '.join(known)}{nearest(value, known)}"
                )
        check_counts(self, "every")
        check_counts(self, "start", least=0)
        check_numbers(self, "learning_rate", "weight_decay", "cost_weight", least=0)
        check_numbers(self, "start_temperature", "end_temperature", "target", above=0)
        check_numbers(self, "confidence", above=0, most=1, none=True)
        if self.confidence is not None and self.relaxation == "average":
            raise ValueError(
                f"Relaxed: confidence is {self.confidence}, and even weights (relaxation='average') never "
                "become surer: leave it out."
            )
        if self.cost_weight and self.cost is None:
            raise ValueError(
                f"Relaxed: cost_weight is {self.cost_weight} and cost None: a penalty needs the name of a "
                "cost, as 'macs'."
            )

    @property
    def watches(self) -> Watches:
        return "probabilities"

    @property
    def needs_cost(self) -> bool:
        return self.cost is not None

    @property
    def roles(self) -> tuple[str, ...]:
        """The logits are trained on batches of their own, but for the joint order."""
        return ("train",) if self.order == "joint" else ("train", "search")

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.adamw(self.learning_rate, weight_decay=self.weight_decay)

    def check(self, space: Space, cost: Cost | None) -> None:
        self.relative_cost(space, cost)

    def init(self, space: Space) -> tuple[Any, Any]:
        """Every option is equally likely at the start."""
        logits = space.logits()
        own = {"opt_state": self._optimizer().init(logits), "search_loss": jnp.float32(jnp.nan)}
        return logits, own

    def numbers(self, step: int) -> Mapping[str, int]:
        """The search batches advance with each update of the logits."""
        return {"train": step, "search": max(step - self.start, 0) // self.every}

    def done(self, record: Mapping[str, Any]) -> bool:
        return self.confidence is not None and record.get("confidence", 0) >= self.confidence

    def relative_cost(self, space: Space, cost: Cost | None) -> Callable[[Arch], Any] | None:
        """From an architecture, hard or soft, to its cost in units of the reference's; None without a cost.

        A cost that the network does not have, or a reference that costs nothing, raises a ValueError.
        """
        if self.cost is None:
            return None
        with jax.ensure_compile_time_eval():  # also within a compiled step
            reference = space.largest() if self.reference is None else space.from_dict(self.reference)
            known = {} if cost is None else cost(reference)
            smallest = {} if cost is None else cost(space.smallest())
        check_cost("Relaxed", self.cost, known)
        assert cost is not None
        least = float(smallest[self.cost])
        span = float(known[self.cost]) - least
        if not span > 0:
            raise ValueError(
                f"Relaxed: the reference has {self.cost} of {known[self.cost]}, no more than the smallest "
                "network of the space; name another reference."
            )
        return lambda arch: (cost(arch)[self.cost] - least) / span

    def gradients(
        self, problem: Problem, state: TrainState, batches: Mapping[str, Any], key: jax.Array
    ) -> Gradients:
        """Trains parameters and, where it is due, the logits before them, as DARTS does."""
        if self.start >= problem.steps:
            raise ValueError(
                f"recipe.start is {self.start}, and training.steps {problem.steps}: the architecture "
                "parameters would never be trained. Start earlier, or train longer."
            )
        keys = jax.random.split(key, 6)
        relaxation = relaxations.RELAXATIONS[self.relaxation]
        schedule = relaxations.temperature_schedule(
            self.temperature, self.start_temperature, self.end_temperature, problem.steps
        )
        temperature = jnp.asarray(standard(schedule)(state.step), jnp.float32)
        cost = self.relative_cost(problem.space, problem.cost)
        loss = problem.loss

        def penalty(logits: Arch) -> jax.Array:
            if not self.cost_weight or cost is None:
                return jnp.float32(0)
            return self.cost_weight * jnp.maximum(cost(relaxations.softmax(logits)) / self.target - 1, 0)

        def on_train(params: Any, logits: Arch) -> tuple[jax.Array, Any]:
            arch = relaxation(logits, keys[0], temperature)
            value, found = loss(params, arch, batches["train"], state.carry["train"], keys[1])
            return value + penalty(logits), (value, *found)

        def on_search(logits: Arch) -> tuple[jax.Array, Any]:
            params = state.params
            if self.order == "second":
                arch = relaxation(logits, keys[2], temperature)
                grads = jax.grad(lambda p: loss(p, arch, batches["train"], state.carry["train"], keys[3])[0])(
                    params
                )
                rate = problem.schedule(state.step)
                params = jax.tree.map(lambda p, g: p - rate * g, params, grads)
            arch = relaxation(logits, keys[4], temperature)
            value, (carry, _) = loss(params, arch, batches["search"], state.carry["search"], keys[5])
            return value + penalty(logits), (carry, value)

        def updated(grads: Arch) -> tuple[Arch, Any]:
            update = standard(self._optimizer().update)
            updates, opt_state = update(grads, state.recipe["opt_state"], state.logits)
            logits = optax.apply_updates(state.logits, updates)
            return logits, opt_state  # pyrefly: ignore[bad-return] # of the logits' type

        logits, own, carries = state.logits, state.recipe, dict(state.carry)
        due = state.step >= self.start
        if self.order != "joint":
            due &= (state.step - self.start) % self.every == 0

            def update(_: None) -> Any:
                (_, (carry, value)), grads = jax.value_and_grad(on_search, has_aux=True)(logits)
                new, opt_state = updated(grads)
                return new, {"opt_state": opt_state, "search_loss": value}, carry

            logits, own, carries["search"] = jax.lax.cond(
                due, update, lambda _: (logits, own, carries["search"]), None
            )
        (_, (value, carries["train"], sums)), (grads, logits_grads) = jax.value_and_grad(
            on_train, (0, 1), has_aux=True
        )(state.params, logits)
        if self.order == "joint":
            new, opt_state = updated(logits_grads)
            pair = (new, {**own, "opt_state": opt_state})
            logits, own = optax.tree.where(due, pair, (logits, own))
        probabilities, metrics = relaxations.softmax(logits), {"search_loss": own["search_loss"]}
        if self.relaxation != "average":  # with even weights there is no temperature, and nothing is decided
            metrics |= {
                "temperature": temperature,
                "entropy": relaxations.entropy(probabilities),
                "confidence": relaxations.confidence(probabilities),
            }
        if cost is not None:
            metrics["expected_cost"] = jnp.asarray(cost(probabilities), jnp.float32)
        return Gradients(grads, None, carries, value, sums, logits, own, metrics)

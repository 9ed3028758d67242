"""The training step: one compiled program, traced once, whatever a recipe trains and on what.

Parallelism is where the arrays lie (`mesh.py`): the same program on a mesh of any size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh

from jaxnas import network
from jaxnas.cost import Cost
from jaxnas.space import Arch
from jaxnas.tasks import Call, Task, check_predicts
from jaxnas.training import optimizer as optimizer_lib
from jaxnas.training.distillation import teacher_logits
from jaxnas.training.mesh import everywhere, program_of, rows_of
from jaxnas.training.recipe import Gradients, Problem, Recipe
from jaxnas.training.state import TrainState
from jaxnas.weights import channel_sorter

Step = Callable[[TrainState, Mapping[str, Any]], tuple[TrainState, dict[str, Any]]]


def active_masks(net: nn.Module, inputs: Any) -> Callable[[Arch], Any]:
    """A function from an architecture to the tree of bool masks of the parameters that it uses."""
    specs = network.annotated(net, inputs).specs

    def masks(arch: Arch) -> Any:
        flat = {path: spec.mask(arch) for path, spec in specs.items()}
        return flax.traverse_util.unflatten_dict(flat)

    return masks


def differentiate(
    task: Task,
    net: Any,
    recipe: Recipe,
    schedule: optax.Schedule,
    mesh: Mesh,
    state: TrainState,
    batches: Mapping[str, Any],
    *,
    steps: int,
    cost: Cost | None,
) -> tuple[TrainState, Gradients]:
    """The state that a step starts from, as the recipe leaves it, and the step's gradients; traceable."""

    def call(of_task: Callable[[Call], Any], params: Any, arch: Any, *given: Any) -> Any:
        try:
            return of_task(Call(net, {**state.variables, "params": params}, arch, *given))
        except Exception as error:  # whatever a network says that never met weights of options
            if not _is_soft(arch):
                raise
            name = type(net).__name__
            raise ValueError(
                f"{name} fails with a soft architecture, which {type(recipe).__name__} gives it: for each "
                "decision float32 weights of its options, in place of an index. The layers of jaxnas.elastic "
                "take both; a recipe of hard architectures is Uniform(). It fails with "
                f"{type(error).__name__}: {error}"
            ) from error

    def loss(params: Any, arch: Any, batch: Any, carry: Any, key: jax.Array) -> Any:
        return call(task.loss, params, arch, batch, carry, key)

    def predict(params: Any, arch: Any, batch: Any, carry: Any, key: jax.Array) -> Any:
        check_predicts(task)
        return call(task.predict, params, arch, batch, carry, key)

    def teach(teacher: nn.Module, variables: Any, batch: Any, carry: Any, key: jax.Array) -> jax.Array:
        return teacher_logits(task, teacher, variables, batch, carry, key)

    def sort(state: TrainState) -> TrainState:
        return sort_channels(net, task.inputs, state)

    problem = Problem(loss, net.space, steps, schedule, cost, mesh, predict=predict, teach=teach, sort=sort)
    with program_of(mesh):
        state = recipe.begin(problem, state)
        return state, recipe.gradients(problem, state, batches, jax.random.fold_in(state.key, state.step))


def _is_soft(arch: Arch | None) -> bool:
    return any(jnp.issubdtype(value.dtype, jnp.floating) for value in (arch or {}).values())


def sort_channels(net: nn.Module, inputs: Any, state: TrainState) -> TrainState:
    """The state with the hidden channels of the network sorted, in moments and averages too; traceable."""
    structure = jax.tree.structure(state.params)

    def is_like(tree: Any) -> bool:
        return jax.tree.structure(tree) == structure

    parts, tree = jax.tree.flatten((state.opt_state, state.average), is_leaf=is_like)
    params, *moved = channel_sorter(net, inputs)(state.params, *filter(is_like, parts))
    order = iter(moved)
    opt_state, average = tree.unflatten([next(order) if is_like(part) else part for part in parts])
    variables = {**state.variables, "params": params}
    return dataclasses.replace(state, variables=variables, opt_state=opt_state, average=average)


def make_step(
    task: Task,
    net: Any,
    recipe: Recipe,
    optimizer: tuple[optax.GradientTransformation, optax.Schedule],
    mesh: Mesh,
    state: TrainState,
    *,
    steps: int,
    cost: Cost | None = None,
    freeze_inactive: bool = True,
    average: float = 0.0,
) -> Step:
    """The compiled training step.

    Args:
      task: the kind of data, the loss and the metrics.
      net: a network with a `space`.
      recipe: which architectures are trained; see `recipes`.
      optimizer: of the parameters, and its learning rate by step.
      mesh: of the devices; see `make_mesh`.
      state: the first one, or its shapes, where it is to lie; see `prepare.abstract_state`.
      steps: of the whole training.
      cost: of architectures, for recipes that ask for one.
      freeze_inactive: leave parameters untouched, bit for bit, that no trained architecture uses; False
        is the official AutoFormer behavior, where decay and momentum move them.
      average: decay of the average of the parameters, as 0.999; needed if the state has one.

    Returns:
      `step(state, batches) -> (state, metrics)`, with a batch for each role of the recipe, rows divided
      over the mesh. Metrics are float32 []: "loss", "learning_rate", "finite" (1 if loss and gradients
      are numbers, or the step was skipped), "skipped" (steps so far, where that is allowed), those of the
      task and those of the recipe; and "archs", the hard architectures that were trained, if it was any.
      The state is donated.
    """
    transformation, schedule = optimizer
    masks = active_masks(net, task.inputs) if freeze_inactive and net.space.cardinality > 1 else None
    where = jax.tree.map(lambda leaf: leaf.sharding, state)

    def step(state: TrainState, batches: Mapping[str, Any]) -> tuple[TrainState, dict[str, Any]]:
        state, found = differentiate(
            task, net, recipe, schedule, mesh, state, batches, steps=steps, cost=cost
        )
        # So that each device gets the sum of its own part alone.
        gradients = lax.with_sharding_constraint(found.params, where.params)
        active = None
        if masks is not None and found.archs is not None:
            active = jax.tree.map(lambda mask: jnp.any(mask, axis=0), jax.vmap(masks)(found.archs))
        params, opt_state = optimizer_lib.update(
            transformation, gradients, state.opt_state, state.params, active
        )
        finite, skipped, carry = jnp.isfinite(found.loss + optax.tree.norm(gradients)), {}, found.carry
        if isinstance(opt_state, optax.ApplyIfFiniteState):
            carry = jax.tree.map(
                lambda new, old: jnp.where(opt_state.last_finite, new, old), carry, state.carry
            )
            skipped = {"skipped": opt_state.total_notfinite.astype(jnp.float32)}
            finite = optax.tree.norm(params) < jnp.inf  # Too many in a row: the last one was not skipped.
        averaged = state.average
        if averaged != ():
            averaged = optax.incremental_update(params, averaged, 1 - average)
        metrics = {
            "loss": found.loss,
            **{m.name: m.value(found.sums) for m in task.metrics if m.name != "loss"},
            "learning_rate": jnp.asarray(schedule(state.step), jnp.float32),
            **found.metrics,
            **skipped,
            "finite": finite.astype(jnp.float32),
        }
        if found.archs is not None:
            metrics["archs"] = found.archs
        state = TrainState(
            step=state.step + 1,
            variables={**state.variables, "params": params},
            opt_state=opt_state,
            carry=carry,
            logits=found.logits,
            recipe=found.recipe,
            average=averaged,
            key=state.key,
        )
        return state, metrics

    shardings = dict(in_shardings=(where, rows_of(mesh)), out_shardings=(where, everywhere(mesh)))
    return jax.jit(step, **shardings, donate_argnums=0)

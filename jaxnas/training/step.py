"""The training step: one compiled program, traced once, whatever a recipe trains and on what.

Parallelism is where the arrays lie (`mesh.py`): the same program on a mesh of any size.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxnas import network
from jaxnas.space import Arch
from jaxnas.tasks import Call
from jaxnas.tasks.task import check_predicts
from jaxnas.training.distillation import teacher_logits
from jaxnas.training.mesh import everywhere, program_of, rows_of
from jaxnas.training.recipe import Gradients, Problem, TrainState
from jaxnas.training.settings import Training, standard
from jaxnas.weights import channel_sorter

if TYPE_CHECKING:
    from jaxnas.training.setup import Setup

Step = Callable[[TrainState, Mapping[str, Any]], tuple[TrainState, dict[str, Any]]]


def make_step(setup: Setup, state: TrainState) -> Step:
    """The compiled training step.

    Args:
      setup: of the training.
      state: the first one, or its shapes with shardings; see `setup.abstract_state`.

    Returns:
      `step(state, batches) -> (state, metrics)`; see `step_of`. It donates the state.
    """
    where = jax.tree.map(lambda leaf: leaf.sharding, state)
    shardings = dict(in_shardings=(where, rows_of(setup.mesh)), out_shardings=(where, everywhere(setup.mesh)))
    return jax.jit(step_of(setup, where), **shardings, donate_argnums=0)


def step_of(setup: Setup, where: Any = None) -> Step:
    """The training step, traceable.

    Args:
      setup: of the training.
      where: the sharding of each part of the state, so that each device gets the sum of its own part of the
        gradients alone; None to leave that to the compiler.

    Returns:
      `step(state, batches) -> (state, metrics)`, with a batch for each role of the recipe. Metrics are
      float32 []: "loss", "learning_rate", "finite" (1 if loss and gradients are finite, or the step was
      skipped), "skipped" (steps so far, where that is allowed), those of the task and those of the recipe;
      and "archs", the hard architectures that were trained, if any.
    """
    task, net, training = setup.task, setup.net, setup.training
    transformation, schedule = setup.optimizer
    freezes = training.freeze_inactive and net.space.cardinality > 1
    masks = active_masks(net, task.inputs) if freezes else None

    def step(state: TrainState, batches: Mapping[str, Any]) -> tuple[TrainState, dict[str, Any]]:
        state, found = _gradients(setup, state, batches)
        gradients = found.params
        if where is not None:
            gradients = lax.with_sharding_constraint(gradients, where.params)
        active = None
        if masks is not None and found.archs is not None:
            active = jax.tree.map(lambda mask: jnp.any(mask, axis=0), jax.vmap(masks)(found.archs))
        params, opt_state = update(transformation, gradients, state.opt_state, state.params, active)
        finite, skipped, carry = jnp.isfinite(found.loss + optax.tree.norm(gradients)), {}, found.carry
        if isinstance(opt_state, optax.ApplyIfFiniteState):
            carry = jax.tree.map(
                lambda new, old: jnp.where(opt_state.last_finite, new, old), carry, state.carry
            )
            skipped = {"skipped": opt_state.total_notfinite.astype(jnp.float32)}
            finite = optax.tree.norm(params) < jnp.inf  # Too many in a row: the last one was not skipped.
        average = state.average
        if average != ():
            average = optax.incremental_update(params, average, 1 - training.average)
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
        following = TrainState(
            step=state.step + 1,
            variables={**state.variables, "params": params},
            opt_state=opt_state,
            carry=carry,
            logits=found.logits,
            recipe=found.recipe,
            average=average,
            key=state.key,
        )
        return following, metrics

    return step


def _gradients(setup: Setup, state: TrainState, batches: Mapping[str, Any]) -> tuple[TrainState, Gradients]:
    """The state that a step starts from, as the recipe leaves it, and the step's gradients; traceable."""
    task, net, recipe = setup.task, setup.net, setup.recipe

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

    def predict(*given: Any) -> Any:
        check_predicts(task)
        return call(task.predict, *given)

    problem = Problem(
        functools.partial(call, task.loss),
        net.space,
        setup.training.steps,
        setup.optimizer[1],
        setup.cost,
        setup.mesh,
        predict=predict,
        teach=functools.partial(teacher_logits, task),
        sort=functools.partial(sort_channels, net, task.inputs),
    )
    with program_of(setup.mesh):
        state = recipe.begin(problem, state)
        return state, recipe.gradients(problem, state, batches, jax.random.fold_in(state.key, state.step))


def _is_soft(arch: Arch | None) -> bool:
    return any(jnp.issubdtype(value.dtype, jnp.floating) for value in (arch or {}).values())


def update(
    optimizer: optax.GradientTransformation,
    grads: Any,
    opt_state: Any,
    params: Any,
    active: Any = None,
) -> tuple[Any, Any]:
    """One optimizer step that leaves inactive weights, and their moments, bit for bit unchanged.

    Weight decay and momentum would otherwise move the layers and channels that were not sampled, too.

    Args:
      optimizer: any optax transformation.
      grads, opt_state, params: as optax takes them.
      active: a tree as `params` of bool arrays that broadcast to them, or None to update everything,
        as the official AutoFormer code does.

    Returns:
      New parameters and optimizer state.
    """
    updates, new_state = standard(optimizer.update)(grads, opt_state, params)
    if active is None:
        return optax.apply_updates(params, updates), new_state

    def keep(mask: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(jnp.broadcast_to(mask, old.shape), new, old)

    # The old value is selected: adding an update of zero would make 0.0 of -0.0.
    params = jax.tree.map(lambda m, p, u: keep(m, p + u, p), active, params, updates)
    # The mask of each leaf of the state: that of its parameter, or True for counters.
    masks = optax.tree_utils.tree_map_params(
        optimizer.init,
        lambda _, mask: mask,
        new_state,
        active,
        transform_non_params=lambda _: jnp.array(True),
    )
    new_state = jax.tree.map(keep, masks, new_state, opt_state)
    return params, new_state


def active_masks(net: nn.Module, inputs: Any) -> Callable[[Arch], Any]:
    """A function from an architecture to the tree of bool masks of the parameters that it uses."""
    specs = network.annotated(net, inputs).specs

    def masks(arch: Arch) -> Any:
        flat = {path: spec.mask(arch) for path, spec in specs.items()}
        return flax.traverse_util.unflatten_dict(flat)

    return masks


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


def several(step: Step) -> Callable[[TrainState, tuple[Any, ...]], Any]:
    """A step for each of a tuple of batches in one compiled call, which takes less time between steps.

    Args:
      step: from (state, batches) to (state, metrics).

    Returns:
      From (state, tuple of batches) to the state and the metrics of the last step, but for "finite",
      "archs" and "losses", which are those of each step. The state is donated. Batches of different shapes,
      as texts of different `lengths`, raise a ValueError.
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


def steps_of_call(number: int, training: Training) -> range:
    """The steps of the call that begins with step `number`: up to where something is recorded."""
    every = (*map(training.every, ("log", "evaluate", "checkpoint")), training.steps_per_call)
    return range(number, number + min(training.steps - number, *(n - number % n for n in every)))

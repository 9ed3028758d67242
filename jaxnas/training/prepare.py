"""Everything that a training begins with: the state, the compiled step, and the batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding

from jaxnas import files
from jaxnas.cost import Cost
from jaxnas.cost import cost as cost_of
from jaxnas.network import check_variables
from jaxnas.processes import on_host
from jaxnas.subnet import init
from jaxnas.tasks import Task, check_fits
from jaxnas.training.keys import check_seed, stream
from jaxnas.training.mesh import everywhere, place, shard_batch, state_sharding
from jaxnas.training.recipe import Recipe
from jaxnas.training.settings import Training
from jaxnas.training.state import TrainState
from jaxnas.training.step import Step, make_step


def _is_optimizer(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and not hasattr(value, "update")  # optax's own transformations are tuples, too
        and len(value) == 2
        and hasattr(value[0], "update")
        and callable(value[1])
    )


# What `fit` is given by name, and how a message says it.
_GIVEN: dict[str, tuple[Callable[[Any], bool], str]] = {
    "task": (lambda x: not isinstance(x, type), "a task, as tasks.Images(data=...)"),
    "net": (lambda x: not isinstance(x, type), "a network, as supernets.ViT(space, ...)"),
    "recipe": (
        lambda x: not isinstance(x, type) and hasattr(x, "gradients"),
        "a recipe, as training.Uniform() or training.Sandwich()",
    ),
    "variables": (lambda x: isinstance(x, Mapping), 'a dict by collection, as {"params": ...}'),
    "optimizer": (
        _is_optimizer,
        "a transformation and its learning rate by step, as (optax.sgd(rate), rate) with "
        "rate = optax.constant_schedule(0.1)",
    ),
    "cost": (callable, "a function of architectures, as jaxnas.cost(net, task.inputs)"),
    "workdir": (
        lambda x: isinstance(x, str | os.PathLike) and not files.as_path(x).is_file(),
        "the path of a folder, which may be new",
    ),
    "config": (lambda x: isinstance(x, Mapping), "a dict of plain values"),
    "may_differ": (lambda x: isinstance(x, tuple | list), 'a tuple of names, as ("training.steps",)'),
    "mesh": (lambda x: isinstance(x, Mesh), "a mesh, as training.make_mesh(2)"),
    "progress": (callable, "a function of a number of steps and a record"),
}


def check_given(**given: Any) -> None:
    """Checks the kind of what a training is given, by name; None stands for a default.

    Raises:
      TypeError: something else; the message says what to pass.
    """
    for name, value in given.items():
        is_right, expected = _GIVEN[name]
        if value is not None and not is_right(value):
            raise TypeError(f"fit: {name} is {value!r:.200}, expected {expected}.")


def prepare(
    task: Task,
    net: Any,
    training: Training,
    recipe: Recipe,
    mesh: Mesh,
    *,
    variables: Any = None,
    optimizer: tuple[optax.GradientTransformation, optax.Schedule] | None = None,
    cost: Cost | None = None,
    seed: int = 0,
    name: str = "training",
) -> tuple[TrainState, Step, Callable[[int], Any]]:
    """The state at step 0, the compiled step, and the batches by step on the mesh; see `fit`."""
    check_seed(seed)
    check_fits(task, net)
    batch_size = batch_size_of(task, training, recipe, mesh)
    optimizer = training.optimizer() if optimizer is None else optimizer
    if recipe.needs_cost and cost is None:
        cost = cost_of(net, task.inputs)
    recipe.check(net.space, cost)  # before anything is compiled
    shard = (jax.process_index(), jax.process_count())
    batches = {role: task.batches(role, batch_size, seed, shard) for role in recipe.roles}
    if variables is not None:
        variables = place(on_host(check_variables(net, variables, task.inputs)), everywhere(mesh))
    shapes = abstract_state(task, net, training, recipe, optimizer[0], batch_size, mesh)

    def make(variables: Any) -> TrainState:
        state = initial_state(task, net, training, recipe, optimizer[0], batch_size, variables, seed, name)
        # A step consumes its state, and an architecture in it may be the caller's.
        return jax.tree.map(jnp.copy, state)

    # Each part is made where it is to lie. The program runs once, so compiling it is all that it costs.
    where, options = jax.tree.map(lambda x: x.sharding, shapes), {"xla_backend_optimization_level": 0}
    state = jax.jit(make, out_shardings=where, compiler_options=options)(variables)
    step = make_step(
        task,
        net,
        recipe,
        optimizer,
        mesh,
        state,
        steps=training.steps,
        cost=cost,
        freeze_inactive=training.freeze_inactive,
        average=training.average,
    )

    # What batches share, such as a graph that is trained on as a whole, is moved to the devices once.
    moved: dict[int, tuple[Any, jax.Array]] = {}

    def batch(number: int) -> Any:
        nonlocal moved
        numbers, before = recipe.numbers(number), moved
        moved = {}

        def move(x: Any) -> jax.Array:
            if id(x) not in moved:
                moved[id(x)] = before[id(x)] if id(x) in before else (x, shard_batch(x, mesh))
            return moved[id(x)][1]

        return jax.tree.map(move, {role: batches[role].at(numbers[role]) for role in recipe.roles})

    return state, step, batch


def initial_state(
    task: Task,
    net: Any,
    training: Training,
    recipe: Recipe,
    optimizer: optax.GradientTransformation,
    batch_size: int,
    variables: Any,
    seed: int,
    name: str,
) -> TrainState:
    """The state at step 0; see `fit`. Traceable."""
    if variables is None:
        variables = init(net, stream(seed, f"{name}_init"), task.inputs)
    logits, own = recipe.init(net.space)
    return TrainState(
        step=jnp.int32(0),
        variables=variables,
        opt_state=optimizer.init(variables["params"]),
        carry={role: task.carry(net, batch_size) for role in recipe.roles},
        logits=logits,
        recipe=own,
        average=variables["params"] if training.average else (),
        key=stream(seed, name),
    )


def abstract_state(
    task: Task,
    net: Any,
    training: Training,
    recipe: Recipe,
    optimizer: optax.GradientTransformation,
    batch_size: int,
    mesh: Mesh,
) -> TrainState:
    """The shapes and dtypes of a training's state, and where its parts lie on a mesh."""
    state = jax.eval_shape(
        lambda: initial_state(task, net, training, recipe, optimizer, batch_size, None, 0, "training")
    )

    def placed(x: jax.ShapeDtypeStruct, where: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)

    return jax.tree.map(placed, state, state_sharding(task, net, mesh, state))


def batch_size_of(task: Task, training: Training, recipe: Recipe, mesh: Mesh) -> int:
    """Rows of a batch: as the settings ask, or 128, or all there are if they are fewer."""
    if (batch_size := training.batch_size) is None:
        rows = min(128, *(task.rows(role) for role in recipe.roles))
        batch_size = max(rows - rows % mesh.size, 1)
    if rest := batch_size % mesh.size:
        below = batch_size - rest
        nearest = [size for size in (below, below + mesh.size) if size]
        raise ValueError(
            f"training.batch_size is {batch_size}, which {mesh.size} devices cannot share: choose "
            f"{' or '.join(map(str, nearest))}, or fewer devices."
        )
    return batch_size

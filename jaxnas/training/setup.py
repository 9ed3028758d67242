"""The beginning of a training: its arguments, the first state, the compiled step, and the batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jaxnas.checks import check_counts
from jaxnas.cost import Cost
from jaxnas.cost import cost as cost_of
from jaxnas.network import check_variables
from jaxnas.processes import on_host
from jaxnas.subnet import init
from jaxnas.tasks import Task
from jaxnas.tasks.task import check_fits
from jaxnas.training.keys import check_seed, stream
from jaxnas.training.mesh import everywhere, place, processes_of, shard_batch, state_sharding
from jaxnas.training.recipe import Recipe, TrainState
from jaxnas.training.settings import Training
from jaxnas.training.step import Step, make_step

Optimizer = tuple[optax.GradientTransformation, optax.Schedule]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Rarely needed options of a training.

    Attributes:
      variables: to start from; None for new ones.
      optimizer: an optax transformation and its learning rate by step; None for AdamW by the settings.
      cost: of architectures, for recipes that ask for one; None for parameters and products.
      mesh: of the devices, see `make_mesh`; None for the one that the settings ask for.
      stream: name of the random stream, in `keys.py`.
      may_differ: (dotted) names of what may differ from a checkpoint; "program" for changed code that
        computes the same.
      progress: called with the number of steps done and the record, after each record of metrics.jsonl.
      together: how many trainings `train_seeds` runs at once; None for all.
    """

    variables: Mapping[str, Any] | None = None
    optimizer: Optimizer | None = None
    cost: Cost | None = None
    mesh: Mesh | None = None
    stream: str = "training"
    may_differ: tuple[str, ...] = ()
    progress: Callable[[int, Mapping[str, Any]], None] | None = None
    together: int | None = None

    def __post_init__(self) -> None:
        check_counts(self, "together", none=True)
        given = self.optimizer
        if given is not None and not (
            isinstance(given, tuple)
            and len(given) == 2
            and isinstance(given[0], optax.GradientTransformation)
            and callable(given[1])
        ):
            raise TypeError(
                f"Options: optimizer is {given!r:.200}, expected a transformation and its learning rate by "
                "step, as (optax.sgd(rate), rate) with rate = optax.constant_schedule(0.1)."
            )
        if isinstance(self.may_differ, str):
            raise TypeError(f"Options: may_differ is {self.may_differ!r}, expected a tuple of names.")


@dataclasses.dataclass(frozen=True)
class Setup:
    """A training that is checked, with all defaults filled in. See `Options` for the fields."""

    task: Task
    net: Any
    training: Training
    recipe: Recipe
    mesh: Mesh
    optimizer: Optimizer
    cost: Cost | None = None
    seed: int = 0
    stream: str = "training"

    @property
    def batch_size(self) -> int:
        """Rows of a batch: those of the settings, or 128, or all there are if they are fewer."""
        devices = self.mesh.size
        if (batch_size := self.training.batch_size) is None:
            rows = min(128, *(self.task.rows(role) for role in self.recipe.roles))
            batch_size = max(rows - rows % devices, 1)
        if rest := batch_size % devices:
            near = [size for size in (batch_size - rest, batch_size - rest + devices) if size]
            raise ValueError(
                f"training.batch_size is {batch_size}, which {devices} devices cannot share: choose "
                f"{' or '.join(map(str, near))}, or fewer devices."
            )
        return batch_size


def set_up(
    task: Task, net: Any, training: Training, recipe: Recipe, *, seed: int = 0, options: Options = Options()
) -> Setup:
    """Checks a training before anything is compiled, fills in defaults, and loads what the recipe names."""
    if isinstance(recipe, type) or not hasattr(recipe, "gradients"):
        raise TypeError(f"recipe is {recipe!r}, expected a recipe, as training.Uniform().")
    check_seed(seed)
    check_fits(task, net)
    cost, mesh = options.cost, options.mesh
    if recipe.needs_cost and cost is None:
        cost = cost_of(net, task.inputs)
    recipe = recipe.loaded()
    recipe.check(net.space, cost)
    return Setup(
        task=task,
        net=net,
        training=training,
        recipe=recipe,
        mesh=training.mesh() if mesh is None else mesh,
        optimizer=training.optimizer() if options.optimizer is None else options.optimizer,
        cost=cost,
        seed=seed,
        stream=options.stream,
    )


def prepare(
    task: Task, net: Any, training: Training, recipe: Recipe, *, seed: int = 0, options: Options = Options()
) -> tuple[TrainState, Step, Callable[[int], Any]]:
    """The state at step 0, the compiled step, and the batches by step on the mesh; see `fit`."""
    setup = set_up(task, net, training, recipe, seed=seed, options=options)
    return begin(setup, options.variables)


def begin(setup: Setup, variables: Any = None) -> tuple[TrainState, Step, Callable[[int], Any]]:
    """The state at step 0, the compiled step, and the batches by step on the mesh."""
    batch = batches_of(setup)
    if variables is not None:
        variables = check_variables(setup.net, variables, setup.task.inputs)
        variables = place(on_host(variables), everywhere(setup.mesh))
    shapes = abstract_state(setup)

    def make(variables: Any) -> TrainState:
        # A step consumes its state, and an architecture in it may be the caller's.
        return jax.tree.map(jnp.copy, initial_state(setup, variables))

    # Each part is made where it is to lie. The program runs once, so compiling it is all that it costs.
    where, options = jax.tree.map(lambda x: x.sharding, shapes), {"xla_backend_optimization_level": 0}
    state = jax.jit(make, out_shardings=where, compiler_options=options)(variables)
    return state, make_step(setup, state), batch


def initial_state(setup: Setup, variables: Any = None) -> TrainState:
    """The state at step 0, with these variables or new ones. Traceable."""
    task, net, training = setup.task, setup.net, setup.training
    if variables is None:
        variables = init(net, stream(setup.seed, f"{setup.stream}_init"), task.inputs)
    logits, own = setup.recipe.init(net.space)
    return TrainState(
        step=jnp.int32(0),
        variables=variables,
        opt_state=setup.optimizer[0].init(variables["params"]),
        carry={role: task.carry(net, setup.batch_size) for role in setup.recipe.roles},
        logits=logits,
        recipe=own,
        average=variables["params"] if training.average else (),
        key=stream(setup.seed, setup.stream),
    )


def abstract_state(setup: Setup) -> TrainState:
    """The shapes and dtypes of a training's state, with the sharding of each part."""
    state = jax.eval_shape(lambda: initial_state(setup))
    where = state_sharding(setup.task, setup.net, setup.mesh, state)
    return jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), state, where)


def batches_of(setup: Setup) -> Callable[[int], Any]:
    """The batches of a step on the mesh, by role. Each process reads its own rows."""
    given = {
        role: setup.task.batches(role, setup.batch_size, setup.seed, processes_of(setup.mesh))
        for role in setup.recipe.roles
    }
    # What batches share, such as a graph that is trained on as a whole, is moved to the devices once.
    moved: dict[int, tuple[Any, jax.Array]] = {}

    def batch(number: int) -> Any:
        nonlocal moved
        numbers, before = setup.recipe.numbers(number), moved
        moved = {}

        def move(x: Any) -> jax.Array:
            if id(x) not in moved:
                moved[id(x)] = before[id(x)] if id(x) in before else (x, shard_batch(x, setup.mesh))
            return moved[id(x)][1]

        return jax.tree.map(move, {role: given[role].at(numbers[role]) for role in given})

    return batch

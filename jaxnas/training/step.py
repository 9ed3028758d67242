"""The beginning and the step of a training: its arguments, first state, compiled program and batches.

The step is traced once, whatever a recipe trains and on what. Parallelism is where the arrays lie
(`mesh.py`): the same program on a mesh of any size.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh

from jaxnas import network, trackers
from jaxnas.artifacts import load_subnet
from jaxnas.checks import check_counts
from jaxnas.cost import Cost
from jaxnas.cost import cost as cost_of
from jaxnas.network import check_variables
from jaxnas.processes import on_host
from jaxnas.recipes.distillation import teacher_logits
from jaxnas.recipes.hard import Fixed, Uniform
from jaxnas.recipes.recipe import Problem, Recipe, TrainState, standard
from jaxnas.space import Arch
from jaxnas.subnet import init
from jaxnas.tasks import Call, Task
from jaxnas.tasks.task import check_fits, check_predicts
from jaxnas.tensors import unflatten
from jaxnas.training.keys import check_seed, stream
from jaxnas.training.mesh import (
    everywhere,
    place,
    processes_of,
    program_of,
    rows_of,
    shard_batch,
    state_sharding,
)
from jaxnas.training.settings import Training
from jaxnas.weights import channel_sorter

Optimizer = tuple[optax.GradientTransformation, optax.Schedule]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Rarely needed options of a training.

    Attributes:
      variables: to start from; None for new ones.
      optimizer: an optax transformation and its learning rate by step; None for AdamW by the settings.
      cost: of architectures, for recipes that ask for one; None for parameters and products.
      stream: name of the random stream, in `keys.py`.
      may_differ: (dotted) names of what may differ from a checkpoint; "program" for changed code that
        computes the same.
      log: `jaxnas.trackers`, which each record of metrics.jsonl is passed to.
      together: how many trainings `train_seeds` runs at once; None for all.
    """

    variables: Mapping[str, Any] | None = None
    optimizer: Optimizer | None = None
    cost: Cost | None = None
    stream: str = "training"
    may_differ: tuple[str, ...] = ()
    log: Iterable[Any] = trackers.NONE
    together: int | None = None

    def __post_init__(self) -> None:
        check_counts(self, "together", none=True)
        object.__setattr__(self, "log", trackers.as_log(self.log))
        given = self.optimizer
        if given and not (isinstance(given[0], optax.GradientTransformation) and callable(given[1])):
            raise TypeError(
                f"Options: optimizer is {given!r:.200}, expected a transformation and its learning rate by "
                "step, as (optax.sgd(rate), rate) with rate = optax.constant_schedule(0.1)."
            )
        if isinstance(self.may_differ, str):
            raise TypeError(f"Options: may_differ is {self.may_differ!r}, expected a tuple of names.")


@dataclasses.dataclass(frozen=True)
class Setup:
    """A training that is checked, with all defaults filled in."""

    task: Task
    net: Any
    training: Training
    recipe: Recipe
    mesh: Mesh
    optimizer: Optimizer
    cost: Cost | None = None
    seed: int = 0
    options: Options = Options()

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
    task: Task,
    net: Any,
    training: Training,
    recipe: Recipe | None,
    *,
    seed: int = 0,
    options: Options = Options(),
) -> Setup:
    """Checks a training before anything is compiled, fills in defaults, and loads what the recipe names."""
    if recipe is not None and (isinstance(recipe, type) or not hasattr(recipe, "gradients")):
        raise TypeError(f"recipe is {recipe!r}, expected a recipe, as recipes.Uniform().")
    check_seed(seed)
    check_fits(task, net)
    if recipe is None:
        recipe = Uniform() if net.space.cardinality > 1 else Fixed()
    recipe, cost = recipe.loaded(load_subnet), options.cost
    if recipe.needs_cost and cost is None:
        cost = cost_of(net, task.inputs)
    recipe.check(net.space, cost)
    optimizer = training.optimizer() if options.optimizer is None else options.optimizer
    return Setup(task, net, training, recipe, training.mesh(), optimizer, cost, seed, options)


def prepare(
    task: Task, net: Any, training: Training, recipe: Recipe, *, seed: int = 0, options: Options = Options()
) -> tuple[TrainState, Step, Callable[[int], Any]]:
    """The state at step 0, the compiled step, and the batches by step on the mesh; see `fit`."""
    return begin(set_up(task, net, training, recipe, seed=seed, options=options))


def begin(setup: Setup) -> tuple[TrainState, Step, Callable[[int], Any]]:
    """The state at step 0, the compiled step, and the batches by step on the mesh."""
    batch, variables = batches_of(setup), setup.options.variables
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
        variables = init(net, stream(setup.seed, f"{setup.options.stream}_init"), task.inputs)
    logits, own = setup.recipe.init(net.space)
    return TrainState(
        step=jnp.int32(0),
        variables=variables,
        opt_state=setup.optimizer[0].init(variables["params"]),
        carry={role: task.carry(net, setup.batch_size) for role in setup.recipe.roles},
        logits=logits,
        recipe=own,
        average=variables["params"] if training.average else (),
        key=stream(setup.seed, setup.options.stream),
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


Step = Callable[[TrainState, Mapping[str, Any]], tuple[TrainState, dict[str, Any]]]


class Ahead:
    """Batches by number, of which the next `count` are made in a thread while a step runs.

    A batch is a function of its number, so making it ahead changes nothing. `end` is the number after the
    last one.
    """

    def __init__(self, batch: Callable[[int], Any], count: int, end: int) -> None:
        self._batch, self._count, self._end = batch, count, end
        self._made: dict[int, concurrent.futures.Future] = {}
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="batches")

    def __call__(self, number: int) -> Any:
        """The batch of a number; an error of making it is raised here."""
        if not self._count:
            return self._batch(number)
        for following in range(number, min(number + self._count + 1, self._end)):
            if following not in self._made:
                self._made[following] = self._thread.submit(self._batch, following)
        return self._made.pop(number).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)


def make_step(setup: Setup, state: TrainState) -> Step:
    """The step of `step_of`, compiled; it donates the state, of which `state` is the first, or its shapes."""
    where = jax.tree.map(lambda leaf: leaf.sharding, state)
    shardings = dict(in_shardings=(where, rows_of(setup.mesh)), out_shardings=(where, everywhere(setup.mesh)))
    return jax.jit(step_of(setup, where), **shardings, donate_argnums=0)


def step_of(setup: Setup, where: Any = None) -> Step:
    """The training step, traceable: `step(state, batches) -> (state, metrics)`, with a batch for each role.

    Metrics are float32 []: "loss", "learning_rate", "finite" (1 if loss and gradients are finite, or the step
    was skipped), "skipped" (steps so far, where that is allowed), those of the task and those of the recipe;
    and "archs", the hard architectures that were trained, if any. With `where`, the sharding of each part of
    the state, each device gets the sum of its own part of the gradients alone.
    """
    task, net, training = setup.task, setup.net, setup.training
    transformation, schedule = setup.optimizer
    freezes = training.freeze_inactive and net.space.cardinality > 1
    masks = active_masks(net, task.inputs) if freezes else None

    def step(state: TrainState, batches: Mapping[str, Any]) -> tuple[TrainState, dict[str, Any]]:
        problem, key = _problem(setup, state.variables), jax.random.fold_in(state.key, state.step)
        with program_of(setup.mesh):
            state = setup.recipe.begin(problem, state)
            found = setup.recipe.gradients(problem, state, batches, key)
        gradients = found.params
        if where is not None:
            gradients = lax.with_sharding_constraint(gradients, where.params)
        active = None
        if masks is not None and found.archs is not None:
            active = jax.tree.map(lambda mask: jnp.any(mask, axis=0), jax.vmap(masks)(found.archs))
        params, opt_state = update(transformation, gradients, state.opt_state, state.params, active)
        finite, skipped, carry = jnp.isfinite(found.loss + optax.tree.norm(gradients)), {}, found.carry
        if isinstance(opt_state, optax.ApplyIfFiniteState):
            carry = optax.tree.where(opt_state.last_finite, carry, state.carry)
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


def _problem(setup: Setup, variables: Any) -> Problem:
    """The training as its recipe sees it; `variables` are those of the state."""
    task, net = setup.task, setup.net

    def call(of_task: Callable[[Call], Any], params: Any, arch: Any, *given: Any) -> Any:
        try:
            return of_task(Call(net, {**variables, "params": params}, arch, *given))
        except Exception as error:  # whatever a network says that never met weights of options
            if not any(jnp.issubdtype(value.dtype, jnp.floating) for value in (arch or {}).values()):
                raise
            name, recipe = type(net).__name__, type(setup.recipe).__name__
            raise ValueError(
                f"{name} fails with a soft architecture, which {recipe} gives it: for each decision float32 "
                "weights of its options, in place of an index. The layers of jaxnas.elastic take both; a "
                "recipe of hard architectures is Uniform(). It fails with "
                f"{type(error).__name__}: {error}"
            ) from error

    def predict(*given: Any) -> Any:
        check_predicts(task)
        return call(task.predict, *given)

    return Problem(
        functools.partial(call, task.loss),
        net.space,
        setup.training.steps,
        setup.optimizer[1],
        setup.cost,
        predict=predict,
        teach=functools.partial(teacher_logits, task),
        sort=functools.partial(sort_channels, net, task.inputs),
    )


def update(
    optimizer: optax.GradientTransformation, grads: Any, opt_state: Any, params: Any, active: Any = None
) -> tuple[Any, Any]:
    """New parameters and optimizer state; inactive weights and their moments stay bit for bit unchanged.

    Weight decay and momentum would otherwise move the layers and channels that were not sampled, too.
    `active` is a tree as `params` of bool arrays that broadcast to them; None updates everything.
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
    return params, jax.tree.map(keep, masks, new_state, opt_state)


def active_masks(net: nn.Module, inputs: Any) -> Callable[[Arch], Any]:
    """A function from an architecture to the tree of bool masks of the parameters that it uses."""
    specs = network.annotated(net, inputs).specs
    return lambda arch: unflatten({path: spec.mask(arch) for path, spec in specs.items()})


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
    """A step for each of a tuple of batches of one shape in one compiled call, which donates the state.

    It takes less time between steps, and gives the state and the metrics of the last step, but for "finite",
    "archs" and "losses", which are those of each step.
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

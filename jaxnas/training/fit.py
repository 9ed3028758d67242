"""Training to the end: steps, metrics, checkpoints, exact resume, and where the time went."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from jaxnas import files
from jaxnas.cost import Cost
from jaxnas.cost import cost as cost_of
from jaxnas.elastic.loop import STACKED, stack_layers, unstack_layers
from jaxnas.network import check_contract
from jaxnas.space import Arch, Space
from jaxnas.subnet import init
from jaxnas.tasks import Task, apply, check_fits
from jaxnas.tensors import check_tensors, flatten
from jaxnas.training import optimizer as optimizer_lib
from jaxnas.training import relaxations
from jaxnas.training.checkpoint import Checkpointer, NotFinite
from jaxnas.training.evaluate import make_evaluator
from jaxnas.training.keys import stream
from jaxnas.training.metrics import JsonlWriter
from jaxnas.training.preemption import stop_on_signals
from jaxnas.training.progress import Progress
from jaxnas.training.recipes import Fixed, Recipe, Uniform
from jaxnas.training.state import TrainState, init_state, state_sharding
from jaxnas.training.step import Step, data_mesh, make_step, shard_batch

PARTS = ("input", "step", "evaluation", "checkpoint")
# Settings that change no weights.
FREE = ("devices", "log_every", "evaluate_every", "checkpoint_every", "steps_per_call")
TIMES, DIVERGED = "times.json", "diverged.json"
# What may be another after a training that diverged: of a supernet, or of a network alone.
MENDS = tuple(
    f"{group}.{name}"
    for group in ("training", "retraining")
    for name in ("learning_rate", "clip", "warmup_steps")
)


class DivergedError(RuntimeError):
    """The loss or a gradient is no longer a number."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """How long and how to train, and what to record.

    Attributes:
      steps: of the whole training.
      batch_size: rows of a batch, over all devices; None for 128, or as many as there are.
      learning_rate: at its peak, after the warm-up; a cosine leads down from there.
      warmup_steps: of the learning rate; None for a twentieth of all steps.
      weight_decay: of kernels.
      clip: largest norm of the gradient; None for no limit.
      freeze_inactive: leave parameters untouched, bit for bit, that no trained architecture uses.
      average: decay of an average of the parameters that evaluations use, as 0.999; 0 for none.
      log_every: steps between two records of the training metrics.
      evaluate_every: steps between two evaluations; None for a tenth of all steps.
      checkpoint_every: steps between two checkpoints; None for a tenth of all steps.
      steps_per_call: steps in one compiled call; fewer where something is recorded first.
      devices: how many to use; None for all.

    Raises:
      ValueError: a number out of range, named.
    """

    steps: int
    batch_size: int | None = None
    learning_rate: float = 2e-3
    warmup_steps: int | None = None
    weight_decay: float = 0.05
    clip: float | None = None
    freeze_inactive: bool = True
    average: float = 0.0
    log_every: int = 50
    evaluate_every: int | None = None
    checkpoint_every: int | None = None
    steps_per_call: int = 1
    devices: int | None = None

    def __post_init__(self) -> None:
        every = ("log_every", "evaluate_every", "checkpoint_every")
        for name in ("steps", "batch_size", *every, "steps_per_call", "warmup_steps"):
            value, least = getattr(self, name), 0 if name == "warmup_steps" else 1
            if value is not None and (type(value) is not int or value < least):
                raise ValueError(
                    f"training.{name} is {value!r}, expected a whole number of at least {least}."
                )
        for name in ("learning_rate", "weight_decay"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise ValueError(f"training.{name} is {value}, expected a number of at least 0.")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(
                f"training.clip is {self.clip}, expected a number above 0, or none for no limit."
            )
        if not 0 <= self.average < 1:
            raise ValueError(f"training.average is {self.average}, expected 0 to below 1.")

    def deciding(self) -> dict[str, Any]:
        """The settings that decide the weights; a training may go on with other values of the others."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in FREE}

    def every(self, what: str) -> int:
        """Steps between two of "log", "evaluate" or "checkpoint"."""
        asked = getattr(self, f"{what}_every")
        return max(self.steps // 10, 1) if asked is None else asked

    def optimizer(self) -> tuple[optax.GradientTransformation, optax.Schedule]:
        """AdamW, with clipped gradients if asked for, and its learning rate by step."""
        warmup = self.steps // 20 if self.warmup_steps is None else self.warmup_steps
        schedule = optimizer_lib.warmup_cosine(self.learning_rate, self.steps, warmup)
        adamw = optimizer_lib.adamw(schedule, weight_decay=self.weight_decay)
        # The state has one structure, so that a training that diverged can go on with a limit.
        clip = optax.identity() if self.clip is None else optax.clip_by_global_norm(self.clip)
        return optax.chain(clip, adamw), schedule


@dataclasses.dataclass(frozen=True)
class Trained:
    """What `fit` returns.

    Attributes:
      state: the last one.
      complete: whether the training came to its end; else it was stopped, and is saved.
      times: seconds in all ("seconds"), steps made then per second ("steps_per_second"), and the shares
        of "input", "step", "evaluation" and "checkpoint"; not reproducible.
    """

    state: TrainState
    complete: bool
    times: Mapping[str, float]

    @property
    def variables(self) -> Any:
        """The network's variables, to evaluate and extract with."""
        return self.state.evaluated()


class Clock:
    """Where the time of a loop goes."""

    def __init__(self) -> None:
        """Starts."""
        self._begun = time.perf_counter()
        self.seconds = dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts the time within as that of a part."""
        begun = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - begun

    def shares(self, steps: int) -> dict[str, float]:
        """Seconds in all, steps per second, and the share of each part."""
        total = time.perf_counter() - self._begun
        shares = {name: seconds / total for name, seconds in self.seconds.items()}
        return {"seconds": total, "steps_per_second": steps / total, **shares}


def fit(
    task: Task,
    net: nn.Module,
    training: Training | int,
    *,
    recipe: Recipe | None = None,
    variables: Any = None,
    optimizer: tuple[optax.GradientTransformation, optax.Schedule] | None = None,
    cost: Cost | None = None,
    seed: int = 0,
    workdir: str | os.PathLike | None = None,
    config: Mapping[str, Any] | None = None,
    may_differ: tuple[str, ...] = (),
    mesh: Mesh | None = None,
    name: str = "training",
) -> Trained:
    """Trains a network on a task, from the last checkpoint of the workdir if there is one.

    Killed at any moment and started again, it ends with the same weights and the same metrics file, bit
    for bit on the same machine: a batch is a function of the step, the randomness of a step is folded
    from its number, and metrics beyond the checkpoint are cut off and written again.

    Args:
      task: the data, the loss and the metrics.
      net: a network with a `space`.
      training: the settings, or only a number of steps.
      recipe: which architectures are trained; by default a random one in each step (`Uniform`), or the one
        that there is (`Fixed`).
      variables: to start from; None for new ones.
      optimizer: a transformation of optax and its learning rate by step; None for AdamW by the settings.
      cost: of architectures, for recipes that ask for one; None for parameters and products.
      seed: of everything that is random.
      workdir: checkpoints/ and metrics.jsonl go there; None to keep nothing.
      config: compared with that of a checkpoint, but for the (dotted) fields of `may_differ`; None for
        {"seed": ..., "training": ...}, the settings that decide the weights.
      mesh: with an axis "data"; None for the devices that the settings ask for.
      name: of the random stream of this training; a retraining has one of its own.

    Returns:
      The last state, whether the training is complete (False after SIGTERM or Ctrl-C, when the state has
      been saved), and where the time went.

    Raises:
      ValueError: a network that does not take the task's batches, variables of another network, or a batch
        that the devices can't share.
      ConfigMismatch: a checkpoint of another config.
      DivergedError: a loss or gradient that is not finite; the checkpoints before it stay.
    """
    check_contract(net)
    training = training if isinstance(training, Training) else Training(steps=training)
    if recipe is None:
        recipe = Uniform() if net.space.cardinality > 1 else Fixed()
    mesh = data_mesh(training.devices) if mesh is None else mesh
    config = {"seed": seed, "training": training.deciding()} if config is None else config
    state, step, batch = prepare(
        task,
        net,
        training,
        recipe,
        mesh,
        variables=variables,
        optimizer=optimizer,
        cost=cost,
        seed=seed,
        name=name,
    )
    watch = make_watch(task, net, recipe, mesh, stream(seed, "monitor"))
    return _loop(state, step, batch, watch, recipe, training, workdir, config, may_differ)


def prepare(
    task: Task,
    net: nn.Module,
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
    check_fits(task, net)
    batch_size = _batch_size(task, training, recipe, mesh)
    optimizer = training.optimizer() if optimizer is None else optimizer
    if recipe.needs_cost and cost is None:
        cost = cost_of(net, task.inputs)
    recipe.check(net.space, cost)  # before anything is compiled
    batches = {role: task.batches(role, batch_size, seed) for role in recipe.roles}
    state = _initial(task, net, training, recipe, optimizer[0], batch_size, variables, seed, name)
    # A copy, since a step consumes its state, and variables or an architecture may be the caller's.
    state = jax.device_put(jax.tree.map(jnp.copy, state), state_sharding(task, mesh, state))
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

    def batch(number: int) -> Any:
        numbers = recipe.numbers(number)
        return {role: shard_batch(batches[role].at(numbers[role]), mesh) for role in recipe.roles}

    return state, step, batch


def _initial(
    task: Task,
    net: nn.Module,
    training: Training,
    recipe: Recipe,
    optimizer: optax.GradientTransformation,
    batch_size: int,
    variables: Any,
    seed: int,
    name: str,
) -> TrainState:
    init_key = stream(seed, f"{name}_init")
    if variables is None:
        variables = init(net, init_key, task.inputs)
    else:
        _check_variables(net, variables, jax.eval_shape(lambda key: init(net, key, task.inputs), init_key))
    variables = _stacked(net, variables, task.inputs)
    key, average = stream(seed, name), training.average > 0
    return init_state(task, net, recipe, optimizer, variables, batch_size, key, average=average)


def _batch_size(task: Task, training: Training, recipe: Recipe, mesh: Mesh) -> int:
    if (batch_size := training.batch_size) is None:
        rows = min(128, *(task.rows(role) for role in recipe.roles))
        batch_size = max(rows - rows % mesh.size, 1)
    if batch_size % mesh.size:
        raise ValueError(
            f"training.batch_size is {batch_size}, which {mesh.size} devices cannot share: choose a "
            "multiple, or fewer devices."
        )
    return batch_size


def restore(
    task: Task,
    net: nn.Module,
    training: Training,
    recipe: Recipe,
    workdir: str | os.PathLike,
    config: Mapping[str, Any] | None = None,
    mesh: Mesh | None = None,
) -> Trained | None:
    """The last state that a training has saved; None if it has saved none.

    Args:
      task, net, training, recipe: as given to `fit`.
      workdir: of the training.
      config: compared with that of the checkpoint.
      mesh: with an axis "data"; None for the devices that the settings ask for.

    Raises:
      ConfigMismatch: a checkpoint of another config.
    """
    folder = pathlib.Path(workdir) / "checkpoints"
    if not folder.is_dir():  # asking must not create it
        return None
    mesh = data_mesh(training.devices) if mesh is None else mesh
    rows, optimizer = _batch_size(task, training, recipe, mesh), training.optimizer()[0]
    example = jax.eval_shape(
        lambda: _initial(task, net, training, recipe, optimizer, rows, None, 0, "training")
    )
    example = jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
        example,
        state_sharding(task, mesh, example),
    )
    with Checkpointer(folder) as checkpointer:
        found = checkpointer.restore_latest(example, config)
    if found is None:
        return None
    _, state, metadata = found
    return Trained(state, bool(metadata.get("complete")), {})


def _loop(
    state: TrainState,
    step: Step,
    batch: Callable[[int], Any],
    watch: Callable[[TrainState], dict[str, Any]],
    recipe: Recipe,
    training: Training,
    workdir: str | os.PathLike | None,
    config: Mapping[str, Any],
    may_differ: tuple[str, ...],
) -> Trained:
    folder = None if workdir is None else pathlib.Path(workdir)
    clock, start = Clock(), 0
    with ExitStack() as stack:
        checkpointer = writer = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            checkpointer = stack.enter_context(Checkpointer(folder / "checkpoints"))
            if (folder / DIVERGED).exists():
                may_differ = (*may_differ, *MENDS)
            restored = checkpointer.restore_latest(state, config, may_differ)
            if restored is not None:
                start, state, metadata = restored
                if metadata.get("complete"):
                    stored = folder / TIMES
                    times = files.read_json(stored) if stored.is_file() else clock.shares(0)
                    return Trained(state, True, times)
            writer = JsonlWriter(folder / "metrics.jsonl", resume=start if restored else None)
        progress = stack.enter_context(Progress(training.steps, start))
        stop = stack.enter_context(stop_on_signals())
        done, calls, flags = start, several(step), []
        while done < training.steps:
            numbers = range(done, done + steps_of_call(done, training))
            with clock.part("input"):
                rows = tuple(batch(number) for number in numbers)
            with clock.part("step"):
                state, metrics = step(state, rows[0]) if len(rows) == 1 else calls(state, rows)
            flags.append((numbers.stop, metrics["finite"]))
            done = numbers.stop
            last, stopped = done == training.steps, stop.requested
            saves = done % training.every("checkpoint") == 0 or last or stopped
            if done % training.log_every == 0 or saves:
                with clock.part("step"):
                    _check_finite(flags, folder)
                    record = {"step": done, "split": "train", **_plain(metrics)}
                flags = []
                if done % training.log_every == 0 or last:
                    if writer is not None:
                        writer.write(record)
                    progress.update(done, {k: record[k] for k in _SHOWN if k in record})
            if done % training.every("evaluate") == 0 or last:
                with clock.part("evaluation"):
                    watched = {"step": done, **watch(state)}
                if writer is not None and len(watched) > 1:
                    writer.write(watched)
                last = last or recipe.done(watched)
            if checkpointer is not None and (saves or last):
                with clock.part("checkpoint"):
                    metadata = {"config": dict(config), "complete": last}
                    try:
                        checkpointer.save(done, state, metadata, state.finite())
                    except NotFinite as error:
                        raise _diverged(done, folder) from error
                    if last:
                        checkpointer.wait()
            if stopped or last:
                times = clock.shares(done - start)
                if folder is not None and last:
                    files.write_json(folder / TIMES, times)
                    (folder / DIVERGED).unlink(missing_ok=True)  # another config is one again
                return Trained(state, last, times)
    raise AssertionError("a training has at least one step")


_SHOWN = ("loss", "accuracy", "temperature", "confidence")


def _plain(metrics: Mapping[str, jax.Array]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if name != "finite"}


def _check_finite(flags: list[tuple[int, jax.Array]], folder: pathlib.Path | None) -> None:
    """Raises DivergedError for the first call whose loss or gradient was not finite."""
    for done, finite in flags:
        if not float(finite):
            raise _diverged(done, folder)


def _diverged(step: int, folder: pathlib.Path | None) -> DivergedError:
    if folder is not None:
        files.write_json(folder / DIVERGED, {"step": step})
    return DivergedError(
        f"The loss or a gradient of step {step} is not finite. What was saved before is good: start again "
        "with the same workdir and a smaller training.learning_rate, with training.clip=1, or with a longer "
        "training.warmup_steps, and the run goes on from the last checkpoint."
    )


def several(step: Step) -> Callable[[TrainState, tuple[Any, ...]], Any]:
    """A step for each of a tuple of batches, one after another in one compiled call.

    Fewer calls mean less time between steps. On CPUs each call also asks the system for the memory of
    its buffers anew.

    Args:
      step: from (state, batches) to (state, metrics).

    Returns:
      From (state, tuple of batches) to the state and the metrics of the last step, but for "finite", which
      is 0 if it was 0 in any. The state is donated.
    """

    def steps(state: Any, batches: tuple[Any, ...]) -> tuple[Any, dict[str, jax.Array]]:
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
        state, metrics = jax.lax.scan(step, state, stacked)
        last = {name: each[-1] for name, each in metrics.items()}
        if "finite" in last:
            last["finite"] = jnp.min(metrics["finite"])
        return state, last

    return jax.jit(steps, donate_argnums=0)


def steps_of_call(number: int, training: Training) -> int:
    """How many steps the call that begins with step `number` has: up to where something is recorded."""
    every = (*map(training.every, ("log", "evaluate", "checkpoint")), training.steps_per_call)
    return min(training.steps - number, *(n - number % n for n in every))


def monitored(space: Space, key: jax.Array, count: int = 8) -> Arch:
    """The architectures watched during training: smallest, largest and `count` random ones."""
    ends = jax.tree.map(lambda *leaves: jnp.stack(leaves), space.smallest(), space.largest())
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), ends, space.sample(key, count))


def make_watch(
    task: Task, net: nn.Module, recipe: Recipe, mesh: Mesh, key: jax.Array
) -> Callable[[TrainState], dict[str, Any]]:
    """What is looked at during a training: from a state to a record for the metrics file.

    Of a supernet the first metric of some architectures on "search"; of a recipe with architecture
    parameters their probabilities; of a fixed network its metrics on "validation". A task without the
    role is watched by its training metrics alone.
    """
    if recipe.watches == "probabilities":
        return _watch_probabilities
    role = "validation" if recipe.watches == "network" else "search"
    if role not in task.sizes:
        return lambda state: {}
    evaluate = make_evaluator(task, net, role, mesh=mesh)
    if recipe.watches == "network":

        def network(state: TrainState) -> dict[str, Any]:
            arch = state.recipe["arch"] if state.recipe else None
            metrics = evaluate(state.evaluated(), arch)
            return {"split": role, **{name: float(value) for name, value in metrics.items()}}

        return network
    archs, metric = monitored(net.space, key), task.metrics[0].name

    def sampled(state: TrainState) -> dict[str, Any]:
        smallest, largest, *random = np.asarray(evaluate(state.evaluated(), archs)[metric]).tolist()
        return {
            "split": role,
            f"smallest_{metric}": smallest,
            f"largest_{metric}": largest,
            f"random_{metric}_mean": sum(random) / len(random),
            f"random_{metric}_min": min(random),
            f"random_{metric}_max": max(random),
        }

    return sampled


def _watch_probabilities(state: TrainState) -> dict[str, Any]:
    probabilities = relaxations.softmax(state.logits)
    return {
        "split": "architecture",
        "confidence": float(relaxations.confidence(probabilities)),
        "probabilities": {
            name: np.asarray(x, np.float64).round(6).tolist() for name, x in probabilities.items()
        },
    }


def _check_variables(net: nn.Module, variables: Any, expected: Any) -> None:
    """Raises ValueError for variables that are not a network's; layers may be stacked."""
    given = variables
    if STACKED in variables.get("params", {}):
        given = {**variables, "params": jax.eval_shape(unstack_layers, variables["params"])}
    check_tensors(flatten(given), flatten(expected), f"{type(net).__name__}; variables are {{'params': ...}}")


def _stacked(net: nn.Module, variables: Any, inputs: Any) -> Any:
    """The variables with the parameters of layers stacked, if the network reads them so in training.

    A network whose layers run in a scan would otherwise stack them in every step.
    """
    if "block_0" not in variables["params"]:
        return variables
    try:
        stacked = {**variables, "params": stack_layers(variables["params"])}
        given = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), inputs)
        arch = net.space.smallest()
        jax.eval_shape(lambda v: apply(net, v, given, arch, jax.random.key(0), True), stacked)
    except ValueError:
        return variables
    return stacked

"""Training to the end: steps, metrics, checkpoints, exact resume, and where the time went."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jaxnas import files
from jaxnas.cost import Cost
from jaxnas.network import check_contract
from jaxnas.processes import is_first
from jaxnas.space import Space
from jaxnas.tasks import Task
from jaxnas.tasks.task import check_task
from jaxnas.testing import check_network
from jaxnas.training.ahead import Ahead
from jaxnas.training.checkpoint import Checkpointer, NotFinite
from jaxnas.training.clock import Clock, times_line
from jaxnas.training.divergence import check_finite, diverged
from jaxnas.training.keys import stream
from jaxnas.training.metrics import check_unchanged
from jaxnas.training.preemption import stop_on_signals
from jaxnas.training.prepare import abstract_state, batch_size_of, prepare
from jaxnas.training.progress import Progress
from jaxnas.training.recipe import Recipe
from jaxnas.training.recipes import usual_recipe
from jaxnas.training.settings import SETTINGS, Training, described
from jaxnas.training.state import TrainState
from jaxnas.training.step import Step
from jaxnas.training.store import CHECKPOINTS, RECORDS, Store
from jaxnas.training.watch import make_watch, score_of

_log = logging.getLogger(__name__)
PARTS = ("input", "step", "evaluation", "checkpoint")


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
    progress: Callable[[int, Mapping[str, Any]], None] | None = None,
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
      workdir: checkpoints/ and metrics.jsonl go there; None to keep nothing. So does times.jsonl, with the
        seconds between two records and the shares of input, step, evaluation and checkpoint in them, which
        differ from run to run; diverged.json, with the step, the architectures and the key of a step that
        is not finite, until the training is complete; and mends.jsonl, with the settings that a training
        that diverged went on with.
      config: compared with that of a checkpoint, but for the (dotted) fields of `may_differ`; None for
        {"seed": ..., "training": ...}, the settings that decide the weights.
      mesh: of the devices, see `make_mesh`; None for those that the settings ask for.
      name: of the random stream of this training; a retraining has one of its own.
      progress: called with the number of steps done and the record, after each record of metrics.jsonl.

    Returns:
      The last state, whether the training is complete (False after SIGTERM or Ctrl-C, when the state has
      been saved), and where the time went, which is logged at the level INFO, too.

    Raises:
      TypeError: an object that is no task, such as a data set, or a network that does not keep the contract.
      ValueError: a network that does not take the task's batches, one that `jaxnas.testing.check_network`
        refuses (checked once, when a training begins), variables of another network, or a batch
        that the devices can't share; records in the workdir that were changed.
      ConfigMismatch: a checkpoint of another config.
      DivergedError: a loss or gradient that is not finite; the checkpoints before it stay.
    """
    check_task(task)
    check_contract(net)
    training = training if isinstance(training, Training) else Training(steps=training)
    recipe = usual_recipe(net.space) if recipe is None else recipe
    mesh = training.mesh() if mesh is None else mesh
    config = training.recorded(seed) if config is None else config
    store = Store(workdir, config, may_differ)
    begun = prepare(
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
    if not store.begun():
        start = time.perf_counter()
        with Progress(1, label="checking the network"):
            check_network(net, task.inputs)
        _log.info("Checked the network against its extracted networks: %.1f s.", time.perf_counter() - start)
    watch = make_watch(task, net, recipe, mesh, stream(seed, "monitor"))

    def evaluate(done: int, state: TrainState) -> tuple[dict[str, Any], float | None, bool]:
        watched = {"step": done, **watch(state)}
        return watched, score_of(task, watched), recipe.done(watched)

    trained = _loop(net.space, training, seed, store, begun, evaluate, progress)
    if trained.complete and workdir is not None and is_first():
        files.write_json(files.as_path(workdir) / SETTINGS, described(training, recipe, seed))
    return trained


def restore(
    task: Task,
    net: nn.Module,
    training: Training,
    recipe: Recipe,
    workdir: str | os.PathLike,
    config: Mapping[str, Any] | None = None,
    mesh: Mesh | None = None,
    best: bool = False,
) -> Trained | None:
    """The last state that a training has saved, or the best one; None if it has saved none.

    Args:
      task, net, training, recipe: as given to `fit`.
      workdir: of the training.
      config: compared with that of the checkpoint.
      mesh: of the devices, see `make_mesh`; None for those that the settings ask for.
      best: take the saved state with the best first metric, of a network on "validation", or of the random
        architectures of a supernet on "search". It is measured every `evaluate_every` steps.

    Raises:
      ConfigMismatch: a checkpoint of another config.
      CheckpointError: the best is asked for, and no saved state was measured.
      ValueError: the records of a complete training were changed.
    """
    folder = files.as_path(workdir) / CHECKPOINTS
    if not folder.is_dir():  # asking must not create it
        return None
    mesh = training.mesh() if mesh is None else mesh
    rows, optimizer = batch_size_of(task, training, recipe, mesh), training.optimizer()[0]
    example = abstract_state(task, net, training, recipe, optimizer, rows, mesh)
    with Checkpointer(folder) as checkpointer:
        found = checkpointer.restore(example, config, best=best)
    if found is None:
        return None
    _, state, metadata = found
    if metadata.get("complete"):
        check_unchanged(folder.with_name(RECORDS), metadata.get("records"))
    return Trained(state, bool(metadata.get("complete")), {})


def _loop(
    space: Space,
    training: Training,
    seed: int,
    store: Store,
    begun: tuple[TrainState, Step, Callable[[int], Any]],
    evaluate: Callable[[int, TrainState], tuple[dict[str, Any], float | None, bool]],
    progress: Callable[[int, Mapping[str, Any]], None] | None,
) -> Trained:
    """The steps from the last checkpoint to the end, or to a signal.

    Args:
      space: of the network.
      training, seed: the settings.
      store: of the files.
      begun: a new state, a step, and the batch of a step by its number.
      evaluate: from the number of steps done and the state to the record of what is measured, the score of
        the state (None if it has none), and whether the training is done.
      progress: called with the number of steps done and the record, after each record.
    """
    state, step, batch = begun
    clock = Clock(PARTS)
    with ExitStack() as stack:
        stack.enter_context(store)
        state, start, complete = store.restore(state)
        if complete:
            return Trained(state, True, store.times() or clock.shares(steps=0))
        shown = stack.enter_context(Progress(training.steps, start))
        stop = stack.enter_context(stop_on_signals())
        ahead = stack.enter_context(Ahead(batch, training.prefetch, training.steps))

        def record(values: dict[str, Any]) -> None:
            store.record(values)
            if progress is not None:
                progress(values["step"], values)

        done, turn, calls, flags = start, 0, several(step), []
        while done < training.steps:
            turn += 1
            numbers = range(done, done + steps_of_call(done, training))
            with clock.part("input"):
                rows = tuple(ahead(number) for number in numbers)
            with clock.part("step"):
                state, metrics = step(state, rows[0]) if len(rows) == 1 else calls(state, rows)
            flags.append((numbers, metrics.pop("finite"), metrics.pop("archs", None)))
            done = numbers.stop
            last, stopped = done == training.steps, stop.reached(turn)
            saves = done % training.every("checkpoint") == 0 or last or stopped
            if done % training.log_every == 0 or saves:
                with clock.part("step"):
                    check_finite(space, flags, store.folder, seed, state.key)
                    logged: dict[str, Any] = {"step": done, "split": "train", **_plain(metrics)}
                flags = []
                if done % training.log_every == 0 or last:
                    record(logged)
                    store.lap({"step": done, **clock.lap()})
                    shown.update(done, {k: logged[k] for k in _SHOWN if k in logged})
            score = None
            if done % training.every("evaluate") == 0 or last:
                with clock.part("evaluation"):
                    watched, score, enough = evaluate(done, state)
                if len(watched) > 1:
                    record(watched)
                last = last or enough
            if saves or last:
                with clock.part("checkpoint"):
                    try:
                        store.save(done, state, last, score)
                    except NotFinite as error:
                        raise diverged(done, store.folder, seed, state.key) from error
            if stopped or last:
                times = clock.shares(steps=done - start)
                _log.info(times_line(times))
                if last:
                    store.finish(times)
                return Trained(state, last, times)
    raise AssertionError("a training has at least one step")


_SHOWN = ("loss", "accuracy", "temperature", "confidence")


def _plain(metrics: Mapping[str, jax.Array]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def several(step: Step) -> Callable[[TrainState, tuple[Any, ...]], Any]:
    """A step for each of a tuple of batches, one after another in one compiled call.

    Fewer calls mean less time between steps. On CPUs each call also asks the system for the memory of
    its buffers anew.

    Args:
      step: from (state, batches) to (state, metrics).

    Returns:
      From (state, tuple of batches) to the state and the metrics of the last step, but for "finite" and
      "archs", which are those of each step. The state is donated. Batches of different shapes, as texts of
      different `lengths`, are refused with a ValueError.
    """

    @functools.partial(jax.jit, static_argnums=3, donate_argnums=0)
    def steps(state: Any, shared: dict[int, Any], others: Sequence[dict[int, Any]], tree: Any) -> Any:
        def one(state: Any, own: dict[int, Any]) -> Any:
            leaves = shared | own
            return step(state, tree.unflatten([leaves[i] for i in sorted(leaves)]))

        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *others)
        state, metrics = jax.lax.scan(one, state, stacked, length=len(others))
        each = ("finite", "archs")
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

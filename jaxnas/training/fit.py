"""Training to the end: steps, metrics, checkpoints, exact resume, and where the time went."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Mapping
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
from jaxnas.testing import check_collections, check_network
from jaxnas.training.ahead import Ahead
from jaxnas.training.calls import several, steps_of_call
from jaxnas.training.checkpoint import Checkpointer, NotFinite
from jaxnas.training.clock import Clock, times_line
from jaxnas.training.deciding import compared_with, deciding, optimizer_digest, weights_digest
from jaxnas.training.divergence import check_steps, diverged
from jaxnas.training.keys import stream
from jaxnas.training.metrics import check_unchanged
from jaxnas.training.preemption import stop_on_signals
from jaxnas.training.prepare import abstract_state, batch_size_of, check_given, prepare
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
      complete: whether the training came to its end; else `restore` found it stopped, or `Stopped` has it.
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
        differ from run to run; and diverged.json, with the step and the architectures of a step that is not
        finite, until the training is complete.
      config: compared with that of a checkpoint, as what decides the weights always is: task, data, network
        and its program, recipe, settings, `variables`, `optimizer` and `seed`.
      may_differ: (dotted) fields that may differ from those of a checkpoint; "program" for changed code that
        computes the same.
      mesh: of the devices, see `make_mesh`; None for those that the settings ask for.
      name: of the random stream of this training; a retraining has one of its own.
      progress: called with the number of steps done and the record, after each record of metrics.jsonl.

    Returns:
      The last state, and where the time went, which is logged at the level INFO, too.

    Raises:
      Stopped: Ctrl-C (it is a KeyboardInterrupt) or SIGTERM (a SystemExit), after the state has been saved.
      TypeError: an argument of another kind, as a class in place of an instance, or a data set in place of a
        task; a network that does not keep the contract.
      ValueError: a network that does not take the task's batches, one that `jaxnas.testing.check_network`
        refuses (checked once, when a training begins), variables of another network, or a batch
        that the devices can't share; records in the workdir that were changed.
      ConfigMismatch: a checkpoint of another training; the message names the fields that differ.
      DivergedError: a loss or gradient that is not finite, or a loss far above its course; the message
        names the last good checkpoint, and later ones are removed.
    """
    check_given(
        task=task,
        net=net,
        recipe=recipe,
        variables=variables,
        optimizer=optimizer,
        cost=cost,
        workdir=workdir,
        config=config,
        may_differ=may_differ,
        mesh=mesh,
        progress=progress,
    )
    check_task(task)
    check_contract(net)
    training = training if isinstance(training, Training) else Training(steps=training)
    recipe = usual_recipe(net.space) if recipe is None else recipe
    mesh = training.mesh() if mesh is None else mesh
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
    decided_by = None
    if workdir is not None:
        decided_by = {
            **deciding(task, net, training, recipe),
            "seed": seed,
            "stream": name,
            "variables": None if variables is None else weights_digest(variables),
            "optimizer": None if optimizer is None else optimizer_digest(optimizer, begun[0]),
            "cost": files.plain(cost(net.space.largest()))
            if cost is not None and recipe.needs_cost
            else None,
        }
    store = Store(workdir, training.recorded(seed) if config is None else config, may_differ, decided_by)
    if not store.begun():
        start = time.perf_counter()
        row = task.preprocess(jax.tree.map(jnp.asarray, task.batches("train", 1, 0).at(0)))
        check_collections(net, row)
        with Progress(1, label="checking the network"):
            check_network(net, row)
        _log.info("Checked the network against its extracted networks: %.1f s.", time.perf_counter() - start)
    watch = make_watch(task, net, recipe, mesh, stream(seed, "monitor"))

    def evaluate(done: int, state: TrainState) -> tuple[dict[str, Any], float | None, bool]:
        watched = {"step": done, **watch(state)}
        return watched, score_of(task, watched), recipe.done(watched)

    trained = _loop(net.space, training, seed, store, begun, evaluate, progress)
    if workdir is not None and is_first():
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
      ConfigMismatch: a checkpoint of another training than these arguments are of.
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
        differ = compared_with(deciding(task, net, training, recipe))
        found = checkpointer.restore(example, config, best=best, differ=differ)
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
            losses = metrics.pop("losses", metrics["loss"])
            flags.append((numbers, metrics.pop("finite"), metrics.pop("archs", None), losses))
            done = numbers.stop
            last, stopped = done == training.steps, stop.reached(turn)
            saves = done % training.every("checkpoint") == 0 or last or stopped
            if done % training.log_every == 0 or saves:
                with clock.part("step"):
                    check_steps(space, flags, store, seed)
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
            if last and store.course.bad:
                raise diverged(store.course.since, store, seed)
            if (saves or last) and not store.course.bad:
                with clock.part("checkpoint"):
                    try:
                        store.save(done, state, last, score)
                    except NotFinite as error:
                        raise diverged(done, store, seed) from error
            if stopped or last:
                times = clock.shares(steps=done - start)
                _log.info(times_line(times))
                if last:
                    store.finish(times)
                trained = Trained(state, last, times)
                if last:
                    return trained
                kept = "is saved, and the same call goes on from there" if store.folder else "is not saved"
                raise stop.kind(
                    f"stopped by a signal at step {done} of {training.steps}, which {kept}", trained
                )
    raise AssertionError("a training has at least one step")


_SHOWN = ("loss", "accuracy", "temperature", "confidence")


def _plain(metrics: Mapping[str, jax.Array]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}

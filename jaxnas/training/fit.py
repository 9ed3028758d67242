"""Training to the end: steps, metrics, checkpoints, exact resume, and where the time went."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas import files
from jaxnas.processes import is_first
from jaxnas.recipes.recipe import Recipe, TrainState
from jaxnas.tasks import Task
from jaxnas.testing import check_collections, check_network
from jaxnas.trackers import Log, as_log
from jaxnas.training.checkpoint import Checkpointer, NotFinite
from jaxnas.training.deciding import compared_with, deciding, fingerprint
from jaxnas.training.evaluate import make_watch, score_of
from jaxnas.training.preemption import stop_on_signals
from jaxnas.training.progress import Clock, Progress, times_line
from jaxnas.training.settings import SETTINGS, Training, described
from jaxnas.training.step import (
    Ahead,
    Options,
    Setup,
    Step,
    abstract_state,
    begin,
    set_up,
    several,
    steps_of_call,
)
from jaxnas.training.store import CHECKPOINTS, LAPS, RECORDS, Store, check_unchanged

_log = logging.getLogger(__name__)
PARTS = ("input", "step", "evaluation", "checkpoint")
_SHOWN = ("loss", "accuracy", "temperature", "confidence")


@dataclasses.dataclass(frozen=True)
class Trained:
    """The result of `fit`: the last state, and whether the training came to its end.

    Where it did not, `restore` found it stopped, or `Stopped` has it. Times are seconds in all ("seconds"),
    steps made then per second ("steps_per_second"), and the shares of "input", "step", "evaluation" and
    "checkpoint"; not reproducible.
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
    workdir: str | os.PathLike | None = None,
    seed: int = 0,
    options: Options = Options(),
) -> Trained:
    """Trains a network on a task, from the last checkpoint of the workdir if there is one.

    Killed at any moment and started again, it ends with the same weights and the same metrics file, bit
    for bit on the same machine: a batch is a function of the step, the randomness of a step is folded
    from its number, and metrics beyond the checkpoint are cut off and written again.

    Args:
      task: the data, the loss and the metrics.
      net: a network with a `space`.
      training: the settings, or only a number of steps.
      recipe: which architectures are trained; by default a random one in each step (`Uniform`), or the only
        one (`Fixed`).
      workdir: folder of checkpoints/, metrics.jsonl, times.jsonl (the seconds between two records and the
        shares of input, step, evaluation and checkpoint, which differ from run to run), and, until the
        training is complete, diverged.json with the step and the architectures of a step that diverged; None
        to keep nothing. A checkpoint resumes only the training that it is of: task, data, network and its
        program, recipe, settings, seed and options are compared.
      seed: of all that is random.
      options: what few trainings set: variables, an optimizer.

    Returns:
      The last state, and where the time went, which is logged at the level INFO, too.

    Raises:
      Stopped: Ctrl-C (it is a KeyboardInterrupt) or SIGTERM (a SystemExit), after the state has been saved.
      ValueError: a network that does not fit the task, or fails `jaxnas.testing.check_network` (called once,
        when a training begins), or records in the workdir that were changed.
      ConfigMismatch: a checkpoint of another training; the message names the fields that differ.
      DivergedError: a loss or gradient that is not finite, or a loss far above its course; the message
        names the last good checkpoint, and later ones are removed.

    Example:
      >>> x = np.random.default_rng(0).normal(size=(90, 4))
      >>> task = tasks.Table(data=data.from_table(x[:70], x[:70].sum(1), x[70:], x[70:].sum(1), name="sums"))
      >>> net = supernets.TableMlp(spaces.mlp((8, 16), (1,), (8, 16)), num_outputs=1)
      >>> trained = training.fit(task, net, 3)
      >>> evaluate = training.make_evaluator(task, net, "search")
      >>> evaluate(trained.variables, net.space.sample(jax.random.key(0), 5))["rmse"].shape
      (5,)
    """
    training = training if isinstance(training, Training) else Training(steps=training)
    setup = set_up(task, net, training, recipe, seed=seed, options=options)
    state, step, batch = begin(setup)
    decided_by = {} if workdir is None else fingerprint(setup, state)
    with Store(workdir, decided_by, options.may_differ) as store:
        if not store.begun:
            _check_network(task, net)
        trained = _train(setup, state, step, batch, store, as_log(options.log))
    if workdir is not None and is_first():
        files.write_json(files.as_path(workdir) / SETTINGS, described(training, setup.recipe, seed))
    return trained


def _train(
    setup: Setup,
    state: TrainState,
    step: Step,
    batch: Callable[[int], Any],
    store: Store,
    log: Log,
) -> Trained:
    """The steps from the last checkpoint to the end, or to a signal."""
    training, clock = setup.training, Clock(PARTS)
    state, start, complete = store.restore(state)
    if complete:
        return Trained(state, True, store.times() or clock.shares(steps=0))
    watch, calls = make_watch(setup), several(step)
    done, last, flags = start, False, list[Any]()

    def record(values: dict[str, Any]) -> None:
        store.write(RECORDS, values)
        log.record(values)

    def checked(metrics: Mapping[str, Any]) -> dict[str, float]:
        """The metrics of a step as numbers, after the losses of all steps since the last check."""
        store.check_steps(setup, flags)
        flags.clear()
        return {name: float(value) for name, value in metrics.items()}

    with (
        Progress(training.steps, start) as shown,
        stop_on_signals() as stop,
        Ahead(batch, training.prefetch, training.steps) as ahead,
    ):
        for turn in itertools.count(1):
            numbers = steps_of_call(done, training)
            with clock.part("input"):
                rows = tuple(ahead(number) for number in numbers)
            with clock.part("step"):
                state, metrics = step(state, rows[0]) if len(rows) == 1 else calls(state, rows)
                losses = metrics.pop("losses", metrics["loss"])
                flags.append((numbers, metrics.pop("finite"), metrics.pop("archs", None), losses))
            done = numbers.stop
            last, stopped = done == training.steps, stop.reached(turn)
            saves = done % training.every("checkpoint") == 0 or last or stopped
            logs = done % training.log_every == 0 or last
            if logs or saves:
                with clock.part("step"):
                    values = checked(metrics)
                if logs:
                    record({"step": done, "split": "train", **values})
                    store.write(LAPS, {"step": done, **clock.lap()})
                    shown.update(done, {name: values[name] for name in _SHOWN if name in values})
            if not logs:
                shown.update(done)
            score = None
            if done % training.every("evaluate") == 0 or last:
                with clock.part("evaluation"):
                    watched = {"step": done, **watch(state)}
                score, last = score_of(setup.task, watched), last or setup.recipe.done(watched)
                if last and flags:  # the recipe has ended it between two records
                    record({"step": done, "split": "train", **checked(metrics)})
                if len(watched) > 1:
                    record(watched)
            if last and store.course.bad:
                raise store.diverged(store.course.since, setup)
            if (saves or last) and not store.course.bad:
                with clock.part("checkpoint"):
                    try:
                        store.save(done, state, last, score)
                    except NotFinite as error:
                        raise store.diverged(done, setup) from error
            if last or stopped:
                break
    trained = Trained(state, last, clock.shares(steps=done - start))
    _log.info(times_line(trained.times))
    if not last:
        saved = store.folder and not store.course.bad
        kept = "is saved, and the same call resumes from there" if saved else "is not saved"
        raise stop.kind(f"stopped by a signal at step {done} of {training.steps}, which {kept}", trained)
    store.finish(trained.times)
    return trained


def restore(
    task: Task,
    net: nn.Module,
    training: Training,
    recipe: Recipe,
    workdir: str | os.PathLike,
    *,
    seed: int | None = None,
    best: bool = False,
    options: Options = Options(),
) -> Trained | None:
    """The last state that a training has saved, or the best one; None if it has saved none.

    Args:
      task, net, training, recipe: as given to `fit`.
      workdir: of the training.
      seed: compared with that of the checkpoint; None accepts any.
      best: take the saved state with the best first metric, of a network on "validation", or of the random
        architectures of a supernet on "search". It is measured every `evaluate_every` steps.
      options: as given to `fit`; an `optimizer` decides what a state holds.

    Raises:
      ConfigMismatch: a checkpoint of another training than these arguments are of.
      CheckpointError: the best is asked for, and no saved state was measured.
    """
    folder = files.as_path(workdir) / CHECKPOINTS
    if not folder.is_dir():  # asking must not create it
        return None
    setup = set_up(task, net, training, recipe, options=options)
    now = deciding(task, net, training, setup.recipe) | ({} if seed is None else {"seed": seed})
    with Checkpointer(folder, reads=True) as checkpointer:
        found = checkpointer.restore(abstract_state(setup), compared_with(now), best)
    if found is None:
        return None
    _, state, metadata = found
    complete = bool(metadata.get("complete"))
    if complete:
        check_unchanged(folder.with_name(RECORDS), metadata.get("records"))
    return Trained(state, complete, {})


def _check_network(task: Task, net: nn.Module) -> None:
    """Compares the network with its extracted networks on a row of the task, once before a training."""
    start = time.perf_counter()
    row = task.preprocess(jax.tree.map(jnp.asarray, task.batches("train", 1, 0).at(0)))
    check_collections(net, row)
    with Progress(1, label="checking the network"):
        check_network(net, row)
    _log.info("Checked the network against its extracted networks: %.1f s.", time.perf_counter() - start)

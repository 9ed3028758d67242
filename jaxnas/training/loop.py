"""The training loop: steps, metrics, monitored sub-networks, checkpoints, and exact resume."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxnas.space import Arch, Space
from jaxnas.training.checkpoint import Checkpointer
from jaxnas.training.metrics import JsonlWriter
from jaxnas.training.preemption import stop_on_signals
from jaxnas.training.progress import Progress
from jaxnas.training.step import shard_batch

Step = Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]]


class Batches(Protocol):
    """The batches of a run: `at(n)` is that of step n, a tree of arrays with rows in front."""

    def at(self, step: int) -> Any:
        """The batch of a step."""


class DivergedError(RuntimeError):
    """The loss is no longer a number."""


@dataclasses.dataclass(frozen=True)
class LoopSettings:
    """How long to train and what to record.

    Attributes:
      steps: of the whole training.
      log_every: steps between two records of the training loss.
      evaluate_every: steps between two calls of `watch`.
      checkpoint_every: steps between two checkpoints.
      steps_per_call: steps in one compiled call, see `several`; fewer where one of the above comes first,
        and each number of steps is compiled: best is one that divides them all.

    Raises:
      ValueError: a number below 1.
    """

    steps: int
    log_every: int
    evaluate_every: int
    checkpoint_every: int
    steps_per_call: int = 1

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value < 1:
                raise ValueError(f"{name} is {value}; it is a number of steps, at least 1.")


def several(step: Step) -> Step:
    """A step for each of a tuple of batches, one after another in one compiled call.

    On CPUs each call asks the system for the memory of its buffers anew, a tenth of a step or more; here
    all steps but the first find it there.

    Args:
      step: from (state, batch) to (state, metrics).

    Returns:
      From (state, tuple of batches) to the state and the metrics of the last step. The state is donated.
    """

    def steps(state: Any, batches: tuple[Any, ...]) -> tuple[Any, dict[str, jax.Array]]:
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
        state, metrics = jax.lax.scan(step, state, stacked)
        return state, jax.tree.map(lambda each: each[-1], metrics)

    return jax.jit(steps, donate_argnums=0)


def steps_of_call(number: int, settings: LoopSettings) -> int:
    """How many steps the call that begins with step `number` has: up to where something is recorded."""
    every = settings.log_every, settings.evaluate_every, settings.checkpoint_every, settings.steps_per_call
    return min(settings.steps - number, *(n - number % n for n in every))


def monitored(space: Space, key: jax.Array, count: int = 8) -> Arch:
    """The architectures watched during training: smallest, largest and `count` random ones."""
    archs = [space.smallest(), space.largest()]
    fixed = jax.tree.map(lambda *leaves: jnp.stack(leaves), *archs)
    random = space.sample(key, count)
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), fixed, random)


def watch_record(scores: Any) -> dict[str, Any]:
    """A metrics record from the accuracies of `monitored` architectures."""
    smallest, largest, *random = (float(score) for score in scores)
    return {
        "split": "search",
        "smallest_accuracy": smallest,
        "largest_accuracy": largest,
        "random_accuracy_mean": sum(random) / len(random),
        "random_accuracy_min": min(random),
        "random_accuracy_max": max(random),
    }


def fit(
    state: Any,
    step: Step,
    batches: Batches,
    workdir: pathlib.Path,
    settings: LoopSettings,
    *,
    mesh: Any,
    watch: Callable[[Any], Mapping[str, Any]],
    config: Mapping[str, Any],
    may_differ: tuple[str, ...] = (),
    stop_when: Callable[[Mapping[str, Any]], bool] | None = None,
) -> tuple[Any, bool]:
    """Trains to the end, from the last checkpoint of the workdir if there is one.

    Killed at any moment and started again, it ends with the same weights and the same metrics file,
    bit for bit on the same machine: a batch is a function of the step, the randomness of a step is
    folded from its number, and metrics beyond the checkpoint are cut off and written again.

    Args:
      state: at step 0, on the mesh; also says where restored arrays go.
      step: the compiled training step.
      batches: `batches.at(n)` is the batch of step n.
      workdir: checkpoints and metrics.jsonl go there.
      settings: see `LoopSettings`.
      mesh: with an axis "data".
      watch: from the state to a record for the metrics file, with its "split".
      config: compared with the checkpoint's, but for the (dotted) fields of `may_differ`.
      stop_when: from such a record to whether the training is done, before its last step.

    Returns:
      The last state, and whether the training is complete (False after SIGTERM or Ctrl-C, when the
      state has been saved). The state says how many steps it has done.

    Raises:
      ConfigMismatch: a checkpoint of another config.
      DivergedError: a loss that is not finite.
    """
    with Checkpointer(workdir / "checkpoints") as checkpointer:
        restored = checkpointer.restore_latest(state, config, may_differ)
        start = 0
        if restored is not None:
            start, state, metadata = restored
            if metadata.get("complete"):
                return state, True
        writer = JsonlWriter(workdir / "metrics.jsonl", resume=start if restored else None)
        progress = Progress(settings.steps, start)
        with progress, stop_on_signals() as stop:
            done, calls = start, several(step)
            while done < settings.steps:
                numbers = range(done, done + steps_of_call(done, settings))
                rows = tuple(shard_batch(batches.at(number), mesh) for number in numbers)
                state, metrics = step(state, rows[0]) if len(rows) == 1 else calls(state, rows)
                done = numbers.stop
                last = done == settings.steps
                if done % settings.log_every == 0 or last:
                    record = _train_record(done, metrics)
                    writer.write(record)
                    progress.update(done, {k: record[k] for k in _SHOWN if k in record})
                if done % settings.evaluate_every == 0 or last:
                    watched = {"step": done, **watch(state)}
                    writer.write(watched)
                    last = last or (stop_when is not None and stop_when(watched))
                if done % settings.checkpoint_every == 0 or last or stop.requested:
                    checkpointer.save(done, state, {"config": dict(config), "complete": last})
                if stop.requested or last:
                    return state, last
    return state, True


_SHOWN = ("loss", "accuracy", "temperature", "confidence")


def _train_record(step: int, metrics: Mapping[str, jax.Array]) -> dict[str, Any]:
    values = {name: float(value) for name, value in metrics.items()}
    if not math.isfinite(values["loss"]):
        raise DivergedError(
            f"The loss is {values['loss']} at step {step}. Start again from the last checkpoint with a "
            "smaller learning rate, a longer warm-up, or float32 instead of bfloat16."
        )
    return {"step": step, "split": "train", **values}

"""Trials of architectures trained alone for a while, and a supernet trained on between decisions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxnas import executors
from jaxnas.space import Arch, Space
from jaxnas.tasks import Task
from jaxnas.training.clock import Clock
from jaxnas.training.divergence import DivergedError
from jaxnas.training.evaluate import Evaluator
from jaxnas.training.fit import PARTS
from jaxnas.training.prepare import prepare
from jaxnas.training.recipes import Fixed
from jaxnas.training.settings import Training
from jaxnas.training.state import TrainState


def make_trials(
    task: Task,
    net: nn.Module,
    training: Training,
    steps: tuple[int, ...],
    evaluate: Evaluator,
    mesh: Mesh,
    *,
    seed: int = 0,
    clock: Clock | None = None,
) -> Callable[[Arch, Any], np.ndarray]:
    """A function from architectures and a fidelity to the scores that they have after training alone.

    Every trial starts from the same new weights, so that its learning rate has come down when it is judged.
    One compiled program for each fidelity trains all architectures.

    Args:
      task, net: what is trained: the supernet, of which a trial uses the part of one architecture.
      training: as for a supernet; its warm-up is cut to a tenth of a trial's steps.
      steps: of a trial, by fidelity.
      evaluate: measures the trained networks.
      mesh: with an axis "data".
      seed: of the run.
      clock: what counts the time of "input", "step" and "evaluation"; None for none.

    Returns:
      `scores(archs, fidelity)`, float32 [n] for a batch of n hard architectures; higher is better.
    """
    prepared: dict[int, Any] = {}
    clock = Clock(PARTS) if clock is None else clock

    def prepare_for(fidelity: int) -> Any:
        if fidelity not in prepared:
            count = steps[fidelity]
            warmup = count // 10 if training.warmup_steps is None else min(training.warmup_steps, count // 10)
            short = dataclasses.replace(training, steps=count, warmup_steps=warmup)
            recipe = Fixed(net.space.smallest())
            prepared[fidelity] = prepare(task, net, short, recipe, mesh, seed=seed, name="trials")
        return prepared[fidelity]

    def scores(archs: Arch, fidelity: Any) -> np.ndarray:
        start, step, batch = prepare_for(int(fidelity))
        found = []
        for row in range(len(next(iter(archs.values())))):
            one = jax.tree.map(lambda x, row=row: jnp.asarray(x[row : row + 1]), archs)
            arch = jax.tree.map(lambda x: x[0], one)
            # A copy, since a step consumes its state.
            state = jax.tree.map(jnp.copy, start.replace(recipe={"arch": arch}))
            for number in range(steps[int(fidelity)]):
                with clock.part("input"):
                    rows = batch(number)
                with clock.part("step"):
                    state, _ = step(state, rows)
            with clock.part("step"):
                jax.block_until_ready(state)  # else the evaluation would wait for it
            with clock.part("evaluation"):
                found.append(evaluate.scores(state.evaluated(), one)[0])
        return np.asarray(found, np.float32)

    return scores


def on_workers(
    calls: executors.Calls, space: Space, clock: Clock | None = None
) -> Callable[[Arch, Any], np.ndarray]:
    """Scores of architectures trained alone, each by a call of its own on a worker; all are begun at once.

    Args:
      calls: of a function from an architecture as a JSON text, and from what says how it is trained, as the
        fidelity of `make_trials`, to its score.
      space: of the architectures.
      clock: counts the time of waiting as that of "step"; None for none.

    Returns:
      `scores(archs, how)`, float32 [n] for a batch of n hard architectures; those that were begun before by
      `begin(calls, space, archs, how)` are waited for.
    """
    clock = Clock(PARTS) if clock is None else clock

    def scores(archs: Arch, how: Any) -> np.ndarray:
        with clock.part("step"):
            return np.asarray([calls(text, how) for text in begin(calls, space, archs, how)], np.float32)

    return scores


def begin(calls: executors.Calls, space: Space, archs: Arch, how: Any) -> list[str]:
    """Begins the calls of `on_workers`, and returns the architectures as JSON texts."""
    rows = range(len(next(iter(archs.values()))))
    texts = [json.dumps(space.to_dict(jax.tree.map(lambda x, row=row: x[row], archs))) for row in rows]
    for text in texts:
        calls.begin(text, how)
    return texts


def make_tuner(
    task: Task,
    net: nn.Module,
    training: Training,
    steps: int,
    state: TrainState,
    mesh: Mesh,
    *,
    seed: int = 0,
    clock: Clock | None = None,
) -> Callable[[Arch], Any]:
    """A function that trains a supernet on under a soft architecture, as between the decisions of DARTS-PT.

    Args:
      task, net: what was trained.
      training: as in the training; the learning rate begins anew, without a warm-up, and falls to its end.
      steps: of each call.
      state: the last one of the training, which is left as it is.
      mesh: with an axis "data".
      seed: of the run.
      clock: what counts the time of "input" and "step"; None for none.

    Returns:
      `tune(arch)`, which gives the variables to evaluate with after the steps of all calls so far. It raises
      `DivergedError` where they are no numbers.
    """
    short = dataclasses.replace(training, steps=steps, warmup_steps=0)
    even = jax.tree.map(lambda x: jax.nn.softmax(x), net.space.logits())
    start, step, batch = prepare(task, net, short, Fixed(even), mesh, seed=seed, name="tuning")
    last, calls = state, 0
    clock = Clock(PARTS) if clock is None else clock

    def tune(arch: Arch) -> Any:
        nonlocal last, calls
        own = dataclasses.replace(
            start, variables=last.variables, average=last.average, recipe={"arch": arch}
        )
        own = jax.tree.map(jnp.copy, own)  # since a step consumes its state
        metrics: dict[str, Any] = {}
        for number in range(steps):
            with clock.part("input"):
                rows = batch(calls * steps + number)
            with clock.part("step"):
                own, metrics = step(own, rows)
        with clock.part("step"):
            finite = bool(metrics["finite"])  # waits for the steps
        if not finite:
            raise DivergedError(
                f"The training between decisions, {steps} steps each, has no numbers any more after "
                f"{calls + 1} of them. Choose a smaller learning rate, or clip gradients."
            )
        last, calls = own, calls + 1
        return last.evaluated()

    return tune

"""Architectures and seeds trained alone by the one step: side by side under `vmap`, or one after another.

For means and deviations over seeds, for the trials and finalists of a search, and for what inherited weights
are compared with. Nothing is kept but the best variables of each training, and its metrics.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from jaxnas import executors
from jaxnas.checks import check_counts
from jaxnas.processes import on_host
from jaxnas.recipes.hard import Fixed
from jaxnas.recipes.recipe import TrainState
from jaxnas.space import Arch, Space
from jaxnas.subnet import init
from jaxnas.tasks import Task
from jaxnas.tasks.task import check_role
from jaxnas.training.evaluate import is_batch, make_evaluator
from jaxnas.training.keys import stream
from jaxnas.training.progress import Progress
from jaxnas.training.settings import Training
from jaxnas.training.step import (
    Options,
    Setup,
    abstract_state,
    batches_of,
    initial_state,
    make_step,
    prepare,
    set_up,
    step_of,
)
from jaxnas.training.store import DivergedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Where a training alone is best, and when it ends.

    Attributes:
      metric: its name; None for the task's first.
      role: that it is measured on, "validation" or "search", every `training.evaluate_every` steps.
      patience: steps without a better value after which a training ends; None for all steps.
      limit: batches at most that it is measured on; None for all of the role.
    """

    metric: str | None = None
    role: str = "validation"
    patience: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        check_counts(self, "patience", "limit", none=True)


@dataclasses.dataclass(frozen=True)
class Seeds:
    """The result of `train_seeds`, with a leading axis of S seeds.

    Attributes:
      variables: of the network where it was best, [S, ...].
      best_steps: after how many steps that was, int32 [S]; 0 where no metric was finite.
      steps: how many the longest training made.
      metrics: by role ("validation", say, and "test") and name, float32 [S], with those variables.
    """

    variables: Any
    best_steps: np.ndarray
    steps: int
    metrics: Mapping[str, Mapping[str, np.ndarray]]


@flax.struct.dataclass
class _Best:
    """The best of a training so far."""

    variables: Any
    score: jax.Array  # float32 []
    step: jax.Array  # int32 []

    def running(self, step: Any, patience: int | None) -> jax.Array:
        """Whether the training continues after so many steps, bool []."""
        if patience is None:
            return jnp.bool_(True)
        return (step - self.step <= patience) | ~jnp.isfinite(self.score)


def train_seeds(
    task: Task,
    net: nn.Module,
    training: Training,
    seeds: Sequence[int],
    *,
    arch: Arch | None = None,
    stopping: EarlyStopping = EarlyStopping(),
    options: Options = Options(),
) -> Seeds:
    """Trains one network with many seeds, keeps each where it is best, and measures it on the test data once.

    A seed decides the first weights, augmentation and dropout. The order of the batches is the same for all.
    The network of one architecture, extracted, is faster than a supernet with `arch`.

    Args:
      task: the data, the loss and the metrics; `task.whole()` for a retraining.
      net: a network with a `space`.
      training: steps, batch size, optimizer, and how often networks are measured (`evaluate_every`).
      seeds: of the trainings.
      arch: the architecture, or a batch of them, one for each seed; None for a network that has only one.
      stopping: where a network is best.
      options: see `fit`, without `log`, `stream` and `may_differ`; `together` seeds are trained at once, on
        one device. One after another, they use all devices.

    Raises:
      DivergedError: a seed whose metric was never finite.
    """
    several = arch is not None and is_batch(net.space, arch)
    if not len(seeds) or (len(set(seeds)) < len(seeds) and not several):
        raise ValueError(f"train_seeds: seeds are {list(seeds)}; expected at least one, and none twice.")
    if arch is not None and several and (count := len(next(iter(arch.values())))) != len(seeds):
        raise ValueError(f"train_seeds: {count} architectures and {len(seeds)} seeds; expected as many.")
    size = min(options.together or len(seeds), len(seeds))
    one = jax.tree.map(lambda x: x[0], arch) if several else arch
    setup = set_up(task, net, training, Fixed(one), options=options)
    train = _trainer(setup, stopping, at_once=size > 1, several=several)
    groups = []
    for first in range(0, len(seeds), size):
        own = slice(first, first + size)
        end = min(own.stop, len(seeds))
        group = f"training {end}" if end == first + 1 else f"trainings {first + 1} to {end}"
        archs = jax.tree.map(lambda x, own=own: x[own], arch) if several else arch
        groups.append(train(seeds[own], archs, f"{group} of {len(seeds)}, step"))
    variables, best_steps, metrics = jax.tree.map(
        lambda *parts: np.concatenate(parts),
        *((one.variables, one.best_steps, one.metrics) for one in groups),
    )
    lost = [seed for seed, step in zip(seeds, best_steps, strict=True) if step == 0]
    if lost:
        raise DivergedError(
            f"train_seeds: the metric on {stopping.role!r} was never finite with the seeds {lost}. Choose a "
            "smaller learning rate, or clip gradients."
        )
    return Seeds(variables, best_steps, max(one.steps for one in groups), metrics)


def make_scorer(
    task: Task,
    net: nn.Module,
    training: Training,
    *,
    seed: int = 0,
    limit: int | None = None,
    together: int | None = None,
) -> Callable[[Arch], Iterator[float]]:
    """A function from architectures to their scores on the role "search" after training alone.

    All start from weights and see batches of one seed. One program trains architectures of any size:
    `together` at once, by default all, but on a CPU one after another, where each then pays for its own size.
    `scores(archs)` yields the first metric of each as soon as it is known; higher is better, and NaN where a
    training diverged. `limit` are the batches at most that they are measured on, None for all.
    """
    # Measured once, at the end, as inherited weights are: the best step would be an advantage.
    once = dataclasses.replace(training, evaluate_every=training.steps)
    stopping, metric = EarlyStopping(role="search", limit=limit), task.metrics[0]
    together = together or (1 if jax.default_backend() == "cpu" else None)

    @functools.cache
    def trainer(at_once: bool) -> Callable[..., Seeds]:
        setup = set_up(task, net, once, Fixed(net.space.smallest()))
        return _trainer(setup, stopping, at_once=at_once, several=True, test=False)

    def scores(archs: Arch) -> Iterator[float]:
        count = len(next(iter(archs.values())))
        size = min(together or count, count)
        for first in range(0, count, size):
            own = jax.tree.map(lambda x, first=first: x[first : first + size], archs)
            found = trainer(size > 1)([seed] * len(next(iter(own.values()))), own)
            values = metric.score(found.metrics["search"][metric.name])
            yield from np.where(found.best_steps > 0, values, np.nan).tolist()

    return scores


def make_trials(
    task: Task,
    net: nn.Module,
    training: Training,
    steps: Sequence[int],
    *,
    seed: int = 0,
    limit: int | None = None,
) -> Callable[[Arch, Any], np.ndarray]:
    """A function from architectures and a fidelity to scores, float32 [n], after `steps[fidelity]` steps.

    See `make_scorer`. Each training has its own schedule, so its learning rate has come down at the end.
    """

    @functools.cache
    def scorer(fidelity: int) -> Callable[[Arch], Iterator[float]]:
        return make_scorer(task, net, training.shortened(steps[fidelity]), seed=seed, limit=limit)

    return lambda archs, fidelity: np.asarray([*scorer(int(fidelity))(archs)], np.float32)


def on_workers(calls: executors.Calls, space: Space) -> Callable[[Arch, Any], np.ndarray]:
    """Scores of architectures trained alone on workers, float32 [n], all begun at once.

    `calls` are of a function from an architecture as JSON text, and the fidelity or the number of steps, to
    its score.
    """
    return lambda archs, how: np.asarray(
        [calls(text, how) for text in begin(calls, space, archs, how)], np.float32
    )


def begin(calls: executors.Calls, space: Space, archs: Arch, how: Any) -> list[str]:
    """Begins the calls of `on_workers`, and returns the architectures as JSON texts."""
    texts = [json.dumps(one) for one in space.to_dicts(archs)]
    for text in texts:
        calls.begin(text, how)
    return texts


def make_tuner(
    task: Task, net: nn.Module, training: Training, state: TrainState, seed: int = 0
) -> Callable[[Arch], Any]:
    """A function that trains a supernet on under a soft architecture, as between the decisions of DARTS-PT.

    Each call begins the learning rate of `training` anew; `state`, the last one of the supernet's training,
    is left as it is. `tune(arch)` gives the variables to evaluate with after the steps of all calls so far.
    """
    even = jax.tree.map(jax.nn.softmax, net.space.logits())
    start, step, batch = prepare(
        task, net, training, Fixed(even), seed=seed, options=Options(stream="tuning")
    )
    last, calls = state, 0

    def tune(arch: Arch) -> Any:
        nonlocal last, calls
        own = dataclasses.replace(
            start, variables=last.variables, average=last.average, recipe={"arch": arch}
        )
        own, metrics = jax.tree.map(jnp.copy, own), {}  # A step consumes its state.
        for number in range(training.steps):
            own, metrics = step(own, batch(calls * training.steps + number))
        if not metrics["finite"]:
            raise DivergedError(
                f"The training between decisions, {training.steps} steps each, is not finite after "
                f"{calls + 1} of them. Choose a smaller learning rate, or clip gradients."
            )
        last, calls = own, calls + 1
        return last.evaluated()

    return tune


def _trainer(
    setup: Setup, stopping: EarlyStopping, *, at_once: bool, several: bool, test: bool = True
) -> Callable[..., Seeds]:
    """`train(seeds, arch, label)`, which trains a group of seeds in one program.

    The group is trained under `vmap` if `at_once`, on one device; else it is of one seed, on all devices.
    With `several`, each seed has an architecture of its own; with `test`, they are measured on the test data.
    """
    if at_once:
        one = Mesh(np.asarray(jax.local_devices()[:1]).reshape(1, 1), ("data", "model"))
        setup = dataclasses.replace(setup, mesh=one)
    task, net, training, variables = setup.task, setup.net, setup.training, setup.options.variables
    known, patience = {metric.name: metric for metric in task.metrics}, stopping.patience
    if stopping.metric not in (None, *known):
        raise ValueError(f"train_seeds: there is no metric {stopping.metric!r}; expected {', '.join(known)}.")
    metric = known[stopping.metric or task.metrics[0].name]
    check_role(task.name, stopping.role, ("validation", "search"), "choosing where a training is best")
    limits = {stopping.role: stopping.limit, **({"test": None} if test else {})}
    evaluators = {
        role: make_evaluator(task, net, role, mesh=setup.mesh, limit=limit) for role, limit in limits.items()
    }
    watched, batch = evaluators[stopping.role], batches_of(setup)

    def start(key: jax.Array, arch: Any) -> TrainState:
        given = init(net, jax.random.fold_in(key, 0), task.inputs) if variables is None else variables
        state = initial_state(setup, given)
        own = state.recipe if arch is None else {"arch": arch}
        state = dataclasses.replace(state, key=jax.random.fold_in(key, 1), recipe=own)
        return jax.tree.map(jnp.copy, state)

    def watch(variables: Any, arch: Any, best: _Best, done: jax.Array, data: Any) -> _Best:
        values, _ = watched.one(variables, arch, data)
        score = metric.score(values[metric.name])
        # Without a finite loss, an accuracy is that of the first class.
        sound = jnp.all(jnp.isfinite(jnp.stack(list(values.values()))))
        better = (score > best.score) & best.running(done, patience) & sound
        return optax.tree.where(better, _Best(variables, score, done), best)

    own = 0 if several else None
    if at_once:
        # What all seeds share is not batched: of a shared architecture only its own branches run.
        axes: Any = TrainState(None, 0, 0, 0, None, own, 0, 0)  # pyrefly: ignore[bad-argument-type]
        begin_all = jax.jit(jax.vmap(start, (0, own), axes))
        step = jax.jit(jax.vmap(step_of(setup), (axes, None), (axes, 0)), donate_argnums=0)
        watch_all = jax.jit(jax.vmap(watch, (0, own, 0, None, None)), donate_argnums=2)
        measures = [jax.jit(jax.vmap(one.one, (0, own, None))) for one in evaluators.values()]
    else:
        shapes = abstract_state(setup)
        begin_all = jax.jit(start, out_shardings=jax.tree.map(lambda x: x.sharding, shapes))
        step, watch_all = make_step(setup, shapes), jax.jit(watch, donate_argnums=2)
        measures = [one.one for one in evaluators.values()]

    def train(seeds: Sequence[int], arch: Arch | None, label: str = "") -> Seeds:
        keys = jnp.stack([stream(seed, "seeds") for seed in seeds])
        arch = jax.tree.map(jnp.asarray, arch)
        if not at_once:
            keys, arch = keys[0], jax.tree.map(lambda x: x[0], arch) if several else arch
        state, data = begin_all(keys, arch), watched.divided()
        never = jnp.full(keys.shape, -jnp.inf, jnp.float32), jnp.zeros(keys.shape, jnp.int32)
        best = _Best(jax.tree.map(jnp.copy, state.evaluated()), *never)
        done = 0
        with Progress(training.steps, label=label) if label else contextlib.nullcontext() as shown:
            for done in range(1, training.steps + 1):
                state, _ = step(state, batch(done - 1))
                last = done == training.steps
                if done % training.every("evaluate") == 0 or last:
                    best = watch_all(state.evaluated(), arch, best, jnp.int32(done), data)
                    if patience is not None and not np.any(best.running(done, patience)):
                        break
                if shown is not None and (done % training.log_every == 0 or last):
                    jax.block_until_ready(state.step)  # Steps that only wait for the device are not done.
                    shown.update(done)
        found = {
            role: measure(best.variables, arch, evaluate.divided())[0]
            for measure, (role, evaluate) in zip(measures, evaluators.items(), strict=True)
        }
        result = on_host((best.variables, best.step, found))
        result = result if at_once else jax.tree.map(lambda x: x[None], result)
        return Seeds(result[0], result[1], done, result[2])

    return train

"""One network trained with many seeds by one program, each stopped where it is best on held-out data.

For means and standard deviations over seeds, of small networks. Seeds are trained side by side or one after
another, and nothing is kept but the best weights of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxnas.choice import nearest
from jaxnas.space import Arch
from jaxnas.subnet import init
from jaxnas.tasks import Metric, Task, check_fits
from jaxnas.tasks.task import Call, check_role, check_task
from jaxnas.training.divergence import DivergedError
from jaxnas.training.evaluate import is_batch, metrics_of, sums_by_batch
from jaxnas.training.keys import stream
from jaxnas.training.optimizer import standard
from jaxnas.training.progress import Progress
from jaxnas.training.settings import Training


@dataclasses.dataclass(frozen=True)
class Seeds:
    """What `train_seeds` returns, with the S seeds in front.

    Attributes:
      variables: of the network where it was best, [S, ...].
      best_steps: after how many steps that was, int32 [S].
      steps: how many the longest training made.
      metrics: by role ("validation", say, and "test") and name, float32 [S], with those variables.
    """

    variables: Any
    best_steps: np.ndarray
    steps: int
    metrics: Mapping[str, Mapping[str, np.ndarray]]


@flax.struct.dataclass
class _Run:
    """The training of one seed."""

    variables: Any
    opt_state: Any
    carry: Any
    key: jax.Array
    arch: Any  # of this run; None where all have one
    best: Any  # variables
    score: jax.Array  # of the best, float32 []
    best_step: jax.Array  # int32 []


def train_seeds(
    task: Task,
    net: nn.Module,
    training: Training,
    seeds: Sequence[int],
    *,
    arch: Arch | None = None,
    variables: Any = None,
    optimizer: optax.GradientTransformation | None = None,
    metric: str | None = None,
    role: str = "validation",
    patience: int | None = None,
    together: int | None = None,
    test: bool = True,
    may_diverge: bool = False,
    told: Callable[[Seeds], None] | None = None,
) -> Seeds:
    """Trains one network with many seeds, keeps each where it is best, and measures it on the test data once.

    A seed decides the first weights, augmentation and dropout. The order of the batches is the same for all.
    All is on one device. The network of one architecture, extracted, is faster than a supernet with `arch`.

    Args:
      task: the data, the loss and the metrics; `task.whole()` for a retraining.
      net: a network with a `space`, without batch statistics.
      training: steps, batch size, optimizer, and how often networks are measured (`evaluate_every`).
      seeds: of the trainings.
      arch: the architecture, or a batch of them, one for each seed, which may then be the same ones; None for
        a network that has only one.
      variables: to start from, the same for all seeds; None for new ones by seed.
      optimizer: any transformation of optax; None for that of the settings.
      metric: name of the one that says where a network is best; None for the task's first.
      role: that it is measured on, "validation" or "search".
      patience: steps without a better value after which a seed is done; None for all steps.
      together: how many seeds are trained at once, group by group; None for all. Fewer take less memory, and
        1 is the fastest on a CPU.
      test: whether they are measured on the test data.
      may_diverge: whether a seed may never have had a metric that is a number; its best step is then 0.
      told: called with the seeds of each group as soon as they are trained.

    Raises:
      ValueError: no seeds or one twice, an unknown metric, a role that the data do not have or that decides
        nothing, an architecture that is missing, a network that does not take the task's batches, or an
        average of parameters, which is not made here.
      DivergedError: a seed whose metric was never a number.
    """
    check_task(task)
    metric_ = _metric(task, metric)
    check_role(task.name, role, ("validation", "search"), "choosing where a training is best")
    several = arch is not None and is_batch(net.space, arch)
    if not len(seeds) or (len(set(seeds)) < len(seeds) and not several):
        raise ValueError(f"train_seeds: seeds are {list(seeds)}; expected at least one, and none twice.")
    for name, value in (("patience", patience), ("together", together)):
        if value is not None and value < 1:
            raise ValueError(f"train_seeds: {name} is {value}, expected at least 1, or None.")
    if training.average:
        raise ValueError(
            f"train_seeds: training.average is {training.average}, and no average of parameters is made "
            "here; set it to 0."
        )
    if arch is None and net.space.cardinality > 1:
        raise ValueError(
            f"train_seeds: the network has {net.space.cardinality:,} architectures; give one as arch."
        )
    if arch is not None:
        net.space.check(arch)
    if several and (count := len(next(iter(arch.values())))) != len(seeds):  # pyrefly: ignore[missing-attribute]
        raise ValueError(f"train_seeds: {count} architectures and {len(seeds)} seeds; expected as many.")
    check_fits(task, net)
    rows = min(128, task.rows("train")) if training.batch_size is None else training.batch_size
    transformation = training.optimizer()[0] if optimizer is None else optimizer
    drawn, evaluated = task.batches("train", rows, 0), task.evaluated(net)
    watched = jax.tree.map(jnp.asarray, task.evaluation(role, None, None))

    def start(key: jax.Array, one: Any) -> _Run:
        own = init(net, jax.random.fold_in(key, 0), task.inputs) if variables is None else variables
        if others := [name for name in own if name != "params"]:
            raise ValueError(
                f"train_seeds: the network has {', '.join(others)}; only parameters are trained."
            )
        opt_state, carry = transformation.init(own["params"]), task.carry(net, rows)
        score, never = jnp.float32(-jnp.inf), jnp.int32(0)
        return _Run(own, opt_state, carry, jax.random.fold_in(key, 1), one, own, score, never)

    def arch_of(run: _Run) -> Any:
        return run.arch if several else arch

    def train(run: _Run, step: jax.Array, batch: Any) -> _Run:
        key = jax.random.fold_in(run.key, step)

        def loss(params: Any) -> Any:
            return task.loss(Call(net, {"params": params}, arch_of(run), batch, run.carry, key))

        params = run.variables["params"]
        grads, (carry, _) = jax.grad(loss, has_aux=True)(params)
        updates, opt_state = standard(transformation.update)(grads, run.opt_state, params)
        variables = {"params": optax.apply_updates(params, updates)}
        return dataclasses.replace(run, variables=variables, opt_state=opt_state, carry=carry)

    def watch(run: _Run, step: jax.Array, batches: Any) -> _Run:
        values = measure(task, evaluated, run.variables, arch_of(run), batches)
        score, running = metric_.score(values[metric_.name]), _running(run, step, patience)
        # Without a loss that is a number, an accuracy is that of the first class.
        sound = jnp.all(jnp.isfinite(jnp.stack(list(values.values()))))
        better = (score > run.score) & running & sound
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), run.variables, run.best)
        return dataclasses.replace(
            run,
            best=best,
            score=jnp.where(better, score, run.score),
            best_step=jnp.where(better, step, run.best_step),
        )

    def finish(run: _Run, batches: Any) -> Any:
        return measure(task, evaluated, run.best, arch_of(run), batches)

    size = len(seeds) if together is None else min(together, len(seeds))
    start_all, train_all, watch_all, finish_all = (
        _of_group(function, axes, size, donated)
        for function, axes, donated in (
            (start, (0, 0 if several else None), ()),
            (train, (0, None, None), 0),
            (watch, (0, None, None), 0),
            (finish, (0, None), ()),
        )
    )
    metrics = {role: watched}
    if test:
        metrics["test"] = jax.tree.map(jnp.asarray, task.evaluation("test", None, None))
    keys = jnp.stack([stream(seed, "seeds") for seed in seeds])
    archs = jax.tree.map(jnp.asarray, arch) if several else None
    groups = []

    def train_group(runs: _Run, shown: Progress) -> tuple[_Run, int]:
        batch, moved = None, None
        for done in range(1, training.steps + 1):
            if (given := drawn.at(done - 1)) is not batch:  # One graph is the same batch in each step.
                batch, moved = given, jax.tree.map(jnp.asarray, given)
            runs, last = train_all(runs, jnp.int32(done - 1), moved), done == training.steps
            if done % training.every("evaluate") == 0 or last:
                runs = watch_all(runs, jnp.int32(done), watched)
                if patience is not None and not np.any(_running(runs, jnp.int32(done), patience)):
                    return runs, done
            if done % training.log_every == 0 or last:
                jax.block_until_ready(runs.score)  # Steps that only wait for the device are not done.
                shown.update(done)
        return runs, training.steps

    for first in range(0, len(seeds), size):
        runs = start_all(*jax.tree.map(lambda x, first=first: x[first : first + size], (keys, archs)))
        end = min(first + size, len(seeds))
        group = f"training {end}" if end == first + 1 else f"trainings {first + 1} to {end}"
        with Progress(training.steps, label=f"{group} of {len(seeds)}, step") as shown:
            runs, done = train_group(runs, shown)
        measured = {name: finish_all(runs, batches) for name, batches in metrics.items()}
        best, best_steps, measured = jax.tree.map(np.asarray, (runs.best, runs.best_step, measured))
        groups.append(Seeds(best, best_steps, done, measured))
        if told is not None:
            told(groups[-1])
    best, best_steps, measured = jax.tree.map(
        lambda *parts: np.concatenate(parts),
        *((one.variables, one.best_steps, one.metrics) for one in groups),
    )
    lost = [seed for seed, step in zip(seeds, best_steps, strict=True) if step == 0]
    if lost and not may_diverge:
        raise DivergedError(
            f"train_seeds: {metric_.name} on {role!r} was never a number with the seeds {lost}. Choose a "
            "smaller learning rate, or clip gradients."
        )
    return Seeds(best, best_steps, max(one.steps for one in groups), measured)


def measure(
    task: Task, net: nn.Module, variables: Any, arch: Arch | None, batches: Any
) -> dict[str, jax.Array]:
    """The metrics of one network on all batches of `Task.evaluation`, float32 [] by name; traceable."""
    rows = jax.tree.leaves(batches)[0].shape[1]
    return metrics_of(task, sums_by_batch(task, net, variables, arch, batches, task.carry(net, rows)))


def _of_group(function: Callable[..., Any], axes: Any, size: int, donated: Any) -> Callable[..., Any]:
    """A compiled function of `size` seeds at once, along the arguments' axes that are not None."""
    if size > 1:
        return jax.jit(jax.vmap(function, axes), donate_argnums=donated)

    def one(*arguments: Any) -> Any:  # not batched, so that of a choice only one branch runs
        own = [
            x if axis is None else jax.tree.map(lambda leaf: leaf[0], x)
            for x, axis in zip(arguments, axes, strict=True)
        ]
        return jax.tree.map(lambda leaf: leaf[None], function(*own))

    return jax.jit(one, donate_argnums=donated)


def _running(run: _Run, step: jax.Array, patience: int | None) -> jax.Array:
    """Whether a seed goes on, bool, after so many steps."""
    if patience is None:
        return jnp.bool_(True)
    return (step - run.best_step <= patience) | ~jnp.isfinite(run.score)


def _metric(task: Task, name: str | None) -> Metric:
    known = {metric.name: metric for metric in task.metrics}
    if name is not None and name not in known:
        raise ValueError(
            f"train_seeds: {task.name} has no metric {name!r}{nearest(name, known)} There are "
            f"{', '.join(known)}."
        )
    return task.metrics[0] if name is None else known[name]

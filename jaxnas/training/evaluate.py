"""Metrics of architectures with given weights, a population at a time, and the evaluations of a training.

A population runs as `lax.map` over architectures: each keeps its real branches and pays for its own
size, in one program that is compiled once. (`vmap` would run every architecture at the maximal size.)
Several devices evaluate different architectures, dealt by their products to balance the work.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxnas.calibration import calibrate, calibrate_one
from jaxnas.cost import Cost, cost
from jaxnas.network import check_contract, check_variables, variable_shapes
from jaxnas.recipes import relaxations
from jaxnas.recipes.recipe import TrainState
from jaxnas.space import Arch, Space
from jaxnas.tasks import Metric, Task
from jaxnas.tasks.task import Call, Sums, check_role, check_task
from jaxnas.training.keys import stream
from jaxnas.training.mesh import everywhere, make_mesh, on_mesh, place, program_of, rows_of
from jaxnas.training.step import Setup

Metrics = dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluator:
    """From variables and architectures to the task's metrics on one role of the data.

    `one` and `many` are compiled functions of (variables, arch, batches), for one architecture and for a
    batch; the first also gives standard errors. `divided` are the role's batches for `one`, whose rows
    devices share, and `whole` those for `many`. `deal` gives the rows of some architectures in the order
    in which devices take them; some may be repeated.
    """

    task: Task
    role: str
    mesh: Mesh
    one: Callable[..., tuple[Metrics, Metrics]]
    many: Callable[..., Metrics]
    divided: Callable[[], Any]
    whole: Callable[[], Any]
    deal: Callable[[Arch], np.ndarray]
    net: nn.Module

    def __call__(self, variables: Any, archs: Arch | None = None) -> Metrics:
        """The metrics by name, float32 [], or float32 [n] for a batch of n architectures; exact.

        Args:
          variables: of the network.
          archs: hard or soft; one of them, or a batch with a leading axis. None if the network has only one.
        """
        variables, archs = self._checked(variables, archs)
        if archs is None or not is_batch(self.net.space, archs):
            return self.one(variables, place(archs, everywhere(self.mesh)), self.divided())[0]
        order = self.deal(archs)
        dealt = place({name: x[order] for name, x in archs.items()}, everywhere(self.mesh))
        metrics = self.many(variables, dealt, self.whole())
        places = np.unique(order, return_index=True)[1]  # of each architecture, without the copies
        return {name: np.asarray(value)[places] for name, value in metrics.items()}

    @property
    def examples(self) -> int | None:
        """How many examples are measured; None for batches that do not say by "weight" what counts."""
        batches, _ = self.whole()
        weight = batches.get("weight") if isinstance(batches, Mapping) else None
        return None if weight is None else int(jnp.sum(weight > 0))

    def with_errors(self, variables: Any, arch: Arch | None = None) -> tuple[Metrics, Metrics]:
        """The metrics of one architecture, and the standard error of each, by name: float32 [].

        The error is that of the mean over the role's data: a jackknife that leaves out one batch at a time
        (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 11), NaN where there is only
        one. Batches are far longer than the correlations between neighboring tokens of a text.
        """
        variables, arch = self._checked(variables, arch)
        return self.one(variables, place(arch, everywhere(self.mesh)), self.divided())

    def _checked(self, variables: Any, archs: Arch | None) -> tuple[Any, Arch | None]:
        """Variables on the mesh, and architectures as NumPy arrays."""
        variables = check_variables(self.net, variables, self.task.inputs)
        if archs is not None:
            self.net.space.check(archs)
            archs = {name: np.asarray(jnp.asarray(value)) for name, value in archs.items()}
        return on_mesh(variables, self.mesh), archs

    def scores(self, variables: Any, archs: Arch, size: int | None = None) -> np.ndarray:
        """The first metric of a batch of architectures as scores, float32 [n]: higher is better.

        A shorter batch is padded to `size` rows, so that nothing new is compiled. On the role "test" nothing
        may be compared, which raises a ValueError.
        """
        check_role(self.task.name, self.role, ("search", "validation"), "a comparison of architectures")
        count = len(next(iter(archs.values())))
        if size is not None and size > count:
            rows = jnp.arange(size) % count
            archs = jax.tree.map(lambda x: x[rows], archs)
        metric = self.task.metrics[0]
        return np.asarray(metric.score(self(variables, archs)[metric.name]), np.float32)[:count]


def make_evaluator(
    task: Task,
    net: nn.Module,
    role: str,
    *,
    mesh: Mesh | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    calibration: int = 8,
) -> Evaluator:
    """A function from variables and architectures to metrics on a role of the task's data.

    Batch statistics are calibrated for each architecture before it is measured; see `jaxnas.calibrate`.

    Args:
      task: the data, the loss and the metrics.
      net: a network with a `space`.
      role: "search", "validation" or "test".
      mesh: of the devices, see `make_mesh`; None for all. A batch of architectures is divided over them, and
        for a single architecture, or where no device has all parameters, the rows of the data are.
      batch_size: rows at a time; None for the task's choice. Where devices share the rows it is rounded up.
      limit: batches at most; None for all of the role.
      calibration: training batches that batch statistics are made from.

    Example:
      >>> evaluate = training.make_evaluator(task, net, "search")  # doctest: +SKIP
      >>> evaluate(variables, net.space.sample(key, 50))["accuracy"].shape  # doctest: +SKIP
      (50,)
    """
    if limit is not None and limit < 1:
        raise ValueError(f"make_evaluator: limit is {limit}, expected at least 1 batch, or None for all.")
    check_task(task)
    check_contract(net)
    mesh = make_mesh() if mesh is None else mesh
    net = task.evaluated(net)
    given = task.evaluation(role, batch_size, limit)

    @functools.cache
    def divided() -> Any:
        rows = _rows(given)
        host = given if rows % mesh.size == 0 else task.evaluation(role, rows + -rows % mesh.size, limit)
        return place((host, _calibrating(task, net, _rows(host), calibration)), rows_of(mesh, 1))

    @functools.cache
    def whole() -> Any:
        return place((given, _calibrating(task, net, _rows(given), calibration)), everywhere(mesh))

    def evaluate(mesh: Mesh | None, variables: Any, arch: Any, batches: Any) -> tuple[Metrics, Metrics]:
        batches, calibrating = batches
        if "batch_stats" in variables:
            variables = calibrate(net, variables, arch, calibrating)

        carry = task.carry(net, _rows(batches))
        if mesh is not None:
            where = jax.tree.map(lambda axis: rows_of(mesh, axis), task.carry_axes(carry))
            carry = lax.with_sharding_constraint(carry, where)

        def one(carry: Any, batch: Any) -> tuple[Any, Any]:
            _, (carry, sums) = task.loss(Call(net, variables, arch, batch, carry))
            return carry, sums

        _, parts = lax.scan(one, carry, batches)  # the sums of each batch, float32 [batches] by name
        total = jax.tree.map(lambda x: jnp.sum(x, axis=0), parts)
        errors = {metric.name: _standard_error(metric, parts) for metric in task.metrics}
        return {metric.name: metric.value(total) for metric in task.metrics}, errors

    def in_turns(mesh: Mesh | None, variables: Any, archs: Any, batches: Any) -> Metrics:
        return lax.map(lambda arch: evaluate(mesh, variables, arch, batches)[0], archs)

    def in_program(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            with program_of(mesh):
                return function(mesh, *given)

        return run

    many, deal, batches = in_program(in_turns), _in_order, divided
    if mesh.size > 1 and mesh.shape.get("model", 1) == 1:  # Each device has all parameters.
        by_device = P(mesh.axis_names)
        many = jax.shard_map(
            functools.partial(in_turns, None),
            mesh=mesh,
            in_specs=(P(), by_device, P()),
            out_specs=by_device,
            check_vma=False,
        )
        batches = whole
        deal = functools.partial(_deal, cost(net, task.inputs), mesh.size)
    compiled = functools.partial(jax.jit, out_shardings=everywhere(mesh))
    one = compiled(in_program(evaluate))
    return Evaluator(task, role, mesh, one, compiled(many), divided, batches, deal, net)


def calibrated(
    task: Task, net: nn.Module, variables: Any, arch: Arch | None = None, *, calibration: int = 8
) -> Any:
    """The variables with the batch statistics of one architecture, made from training batches.

    For a network that leaves its supernet, or its training: an evaluator makes statistics by itself.
    Variables without batch statistics are returned as they are.
    """
    if "batch_stats" not in variables:
        return variables
    held_out = [role for role in task.sizes if role != "train"]
    rows = _rows(task.evaluation(held_out[0], None, 1)) if held_out else task.rows("train")
    return calibrate_one(net, variables, arch, _calibrating(task, net, rows, calibration))


def _standard_error(metric: Metric, parts: Sums) -> jax.Array:
    """The standard error of a metric, float32 []; `parts` are the sums of each batch, [batches]."""
    count = len(jax.tree.leaves(parts)[0])
    if count == 1:
        return jnp.asarray(jnp.nan, jnp.float32)
    without = jax.vmap(metric.value)(jax.tree.map(lambda x: jnp.sum(x, axis=0) - x, parts))  # [batches]
    return jnp.sqrt((count - 1) * jnp.mean(jnp.square(without - jnp.mean(without))))


def _in_order(archs: Arch) -> np.ndarray:
    return np.arange(len(next(iter(archs.values()))))


def _deal(costs: Cost, devices: int, archs: Arch) -> np.ndarray:
    """Rows of the architectures, device by device, such that all have about as many products to compute.

    Where the devices do not divide the architectures, some get the cheapest one again.
    """
    macs = jax.vmap(lambda arch: jnp.asarray(costs(arch)["macs"], jnp.float32))(archs)
    dearest_first = np.argsort(-np.asarray(macs), stable=True)
    missing = -len(dearest_first) % devices
    turns = np.concatenate([dearest_first, np.repeat(dearest_first[-1], missing)]).reshape(-1, devices)
    turns[1::2] = turns[1::2, ::-1]  # so that the device with the dearest gets the cheapest next
    return turns.T.reshape(-1)


def _rows(batches: Any) -> int:
    """Rows of each batch of a pytree [batches, rows, ...]."""
    return jax.tree.leaves(batches)[0].shape[1]


def _calibrating(task: Task, net: nn.Module, rows: int, count: int) -> Any:
    """Inputs of some training batches [batches, rows, ...], or () for a network without batch statistics."""
    if "batch_stats" not in variable_shapes(net, task.inputs):
        return ()
    train = task.batches("train", min(rows, task.rows("train")), 0)
    inputs = [task.preprocess(train.at(number)) for number in range(count)]
    shapes = {tuple(x.shape for x in jax.tree.leaves(batch)) for batch in inputs}
    if len(shapes) > 1:
        raise ValueError(
            f"{type(net).__name__} has batch statistics, which are made from training batches of one shape; "
            f"those of {task.name} have {len(shapes)} different ones. Leave out the task's `lengths`."
        )
    return jax.tree.map(lambda *x: np.stack(x), *inputs)


def is_batch(space: Space, archs: Arch) -> bool:
    """Whether architectures, hard or soft, have a leading axis."""
    name, choice = space.decisions[0]
    soft = jnp.issubdtype(archs[name].dtype, jnp.floating)
    return archs[name].ndim > len(choice.shape) + soft


def make_watch(setup: Setup) -> Callable[[TrainState], dict[str, Any]]:
    """A function from a state to a record for the metrics file, {} for a task without the role.

    It has the first metric of some architectures of a supernet on "search", the probabilities of a recipe
    with architecture parameters, or the metrics of a fixed network on "validation".
    """
    task, net, recipe = setup.task, setup.net, setup.recipe
    if recipe.watches == "probabilities":

        def decided(state: TrainState) -> dict[str, Any]:
            found = relaxations.softmax(state.logits)
            rounded = {name: np.asarray(x, np.float64).round(6).tolist() for name, x in found.items()}
            confidence = float(relaxations.confidence(found))
            return {"split": "architecture", "confidence": confidence, "probabilities": rounded}

        return decided
    role = "validation" if recipe.watches == "network" else "search"
    if role not in task.sizes:
        return lambda state: {}
    evaluate = make_evaluator(task, net, role, limit=setup.training.evaluate_limit, mesh=setup.mesh)
    if recipe.watches == "network":

        def network(state: TrainState) -> dict[str, Any]:
            arch = state.recipe.get("arch") if state.recipe else None
            metrics = evaluate(state.evaluated(), arch)
            return {"split": role, **{name: float(value) for name, value in metrics.items()}}

        return network
    space, metric = net.space, task.metrics[0].name
    archs = space.sample(stream(setup.seed, "monitor"), 8)
    ends = jax.tree.map(lambda *x: jnp.stack(x), space.smallest(), space.largest())
    archs = jax.tree.map(lambda *x: jnp.concatenate(x), ends, archs)

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


def score_of(task: Task, watched: Mapping[str, Any]) -> float | None:
    """The score of a state by its record, higher is better; None if nothing was measured.

    It is the first metric of a network, or the mean of the random architectures of a supernet.
    """
    metric = task.metrics[0]
    known = (watched.get(name) for name in (metric.name, f"random_{metric.name}_mean"))
    value = next((value for value in known if value is not None), None)
    return None if value is None or not np.isfinite(value) else metric.score(value)

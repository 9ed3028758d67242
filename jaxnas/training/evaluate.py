"""Metrics of architectures with given weights, a population at a time.

A population runs as `lax.map` over architectures: each keeps its real branches and pays for its own
size, in one program that is compiled once. (`vmap` would run every architecture at the maximal size.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxnas.calibration import calibrate
from jaxnas.space import Arch, Space
from jaxnas.tasks import Task
from jaxnas.tasks.task import check_role
from jaxnas.training.step import data_mesh, shard_batch

Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluator:
    """From variables and architectures to the task's metrics on one role of the data.

    Attributes:
      task: whose metrics they are.
      role: of the data.
      one, many: compiled functions of (variables, arch, batches), for one and for a batch of architectures.
      batches: of the role, on the devices.
      space: of the network.
    """

    task: Task
    role: str
    one: Callable[..., Metrics]
    many: Callable[..., Metrics]
    batches: Any
    space: Space

    def __call__(self, variables: Any, archs: Arch | None = None) -> Metrics:
        """The metrics by name.

        Args:
          variables: of the network.
          archs: hard or soft; one of them, or a batch with a leading axis. None if the network has only one.

        Returns:
          float32 [] for a single architecture, float32 [n] for a batch of n; exact over the role's data.

        Raises:
          ValueError: an architecture that is not one of the network's space, or parameters alone.
        """
        if "params" not in variables:
            raise ValueError(f"variables are {{'params': ...}}, by collection; got {', '.join(variables)}.")
        if archs is not None:
            self.space.check(archs)
            archs = {name: jnp.asarray(value) for name, value in archs.items()}
        many = archs is not None and _is_batch(self.space, archs)
        return (self.many if many else self.one)(variables, archs, self.batches)

    def scores(self, variables: Any, archs: Arch, size: int | None = None) -> np.ndarray:
        """The first metric of a batch of architectures as scores, float32 [n]: higher is better.

        Args:
          variables: of the network.
          archs: a batch of n.
          size: rows to which a shorter batch is filled up, so that it compiles nothing new.

        Raises:
          ValueError: the role is "test", on which nothing may be compared.
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

    Batch statistics, where the network has them, are made anew for each architecture from training
    batches before it is measured; see `jaxnas.calibrate`.

    Args:
      task: the data, the loss and the metrics.
      net: a network with a `space`.
      role: "search", "validation" or "test".
      mesh: with an axis "data", over which each batch is split; None for all devices.
      batch_size: rows at a time, rounded up to a multiple of the devices; None for the task's choice.
      limit: batches at most; None for all of the role.
      calibration: training batches that batch statistics are made from.

    Raises:
      ValueError: a role that the data do not have, or that is not for evaluations.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"make_evaluator: limit is {limit}, expected at least 1 batch, or None for all.")
    mesh = data_mesh() if mesh is None else mesh
    devices = mesh.shape["data"]
    net = task.evaluated(net)
    host = task.evaluation(role, batch_size, limit)
    rows = jax.tree.leaves(host)[0].shape[1]
    if rows % devices:
        rows = -(-rows // devices) * devices
        host = task.evaluation(role, rows, limit)
    batches = shard_batch(host, mesh, axis=1)  # [batches, rows, ...]

    def evaluate(variables: Any, arch: Any, given: Any) -> Metrics:
        batches, calibrating = given
        if "batch_stats" in variables:
            variables = calibrate(net, variables, arch, calibrating)

        def one(carry: Any, batch: Any) -> tuple[Any, Any]:
            _, (carry, sums) = task.loss(net, variables, arch, batch, carry, None, False)
            return carry, sums

        carry = task.carry(net, rows)
        where = jax.tree.map(
            lambda axis: NamedSharding(mesh, P(*[None] * axis, "data")), task.carry_axes(carry)
        )
        carry = lax.with_sharding_constraint(carry, where)
        sums = lax.scan(one, carry, batches)[1]
        sums = jax.tree.map(lambda x: jnp.sum(x, axis=0), sums)
        return {metric.name: metric.value(sums) for metric in task.metrics}

    def many(variables: Any, archs: Any, given: Any) -> Metrics:
        return lax.map(lambda arch: evaluate(variables, arch, given), archs)

    return Evaluator(
        task,
        role,
        jax.jit(evaluate),
        jax.jit(many),
        (batches, _calibrating(task, net, mesh, rows, calibration)),
        net.space,
    )


def _calibrating(task: Task, net: nn.Module, mesh: Mesh, rows: int, count: int) -> Any:
    """Inputs of some training batches [batches, rows, ...], or () for a network without batch statistics."""
    variables = jax.eval_shape(net.init, jax.random.key(0), task.inputs, jax.eval_shape(net.space.smallest))
    if "batch_stats" not in variables:
        return ()
    train = task.batches("train", min(rows, task.sizes["train"]), 0)
    inputs = [task.preprocess(train.at(number)) for number in range(count)]
    return shard_batch(jax.tree.map(lambda *x: np.stack(x), *inputs), mesh, axis=1)


def _is_batch(space: Space, archs: Arch) -> bool:
    name, choice = space.decisions[0]
    soft = jnp.issubdtype(archs[name].dtype, jnp.floating)
    return archs[name].ndim > len(choice.shape) + soft

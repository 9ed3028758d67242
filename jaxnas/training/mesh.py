"""The devices of a run as a mesh, and the shardings of its arrays.

A mesh has two axes. The rows of a batch are divided over all devices. A parameter, its gradient, its average
and its moments are divided over the axis "model" and replicated along "data". With one device for "model",
the default, each device has all parameters; with more, a supernet may be larger than one device, and the
parameters that a layer uses are gathered there.
"""

from __future__ import annotations

import contextlib
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxnas.network import annotated
from jaxnas.processes import on_host
from jaxnas.recipes.recipe import TrainState
from jaxnas.tasks import Task
from jaxnas.tensors import flatten

# Logical names of axes that are divided over "model", the first one first.
RULES = ("vocabulary", "mlp", "heads", "embed")


def make_mesh(devices: int | None = None, model: int = 1) -> Mesh:
    """A mesh with the axes "data" and "model".

    Args:
      devices: how many, the first ones; None for all, of all processes.
      model: how many of them share each parameter; the default is that each has all.
    """
    found = jax.devices()
    count = len(found) if devices is None else devices
    if not isinstance(count, int | np.integer) or not 1 <= count <= len(found):
        choices = "1" if len(found) == 1 else f"1 to {len(found)}"
        raise ValueError(f"devices is {devices!r}; this machine has {len(found)}, so choose {choices}.")
    if count < len(found) and jax.process_count() > 1:
        raise ValueError(f"devices is {devices}; a run of several processes uses all {len(found)} devices.")
    if model < 1 or count % model:
        fitting = ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
        raise ValueError(f"model_devices is {model}, with {count} device(s) in all; choose one of {fitting}.")
    # In the order of the processes, so that each reads rows that follow one another.
    return Mesh(np.asarray(found[:count]).reshape(count // model, model), ("data", "model"))


def rows_of(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """Arrays whose rows, along `axis`, are divided over all devices."""
    return NamedSharding(mesh, P(*[None] * axis, mesh.axis_names))


def everywhere(mesh: Mesh) -> NamedSharding:
    """Arrays that each device has whole."""
    return NamedSharding(mesh, P())


def processes_of(mesh: Mesh) -> tuple[int, int]:
    """The place of this process among those that hold devices of the mesh, and their number."""
    processes = sorted({device.process_index for device in mesh.devices.flat})
    return processes.index(jax.process_index()), len(processes)


def program_of(mesh: Mesh) -> contextlib.AbstractContextManager:
    """A context to trace in: layers gather what they use of parameters that devices share."""
    if mesh.shape.get("model", 1) == 1:
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def shard_batch(batch: Any, mesh: Mesh) -> Any:
    """Puts this process's rows of a batch on the mesh; a ValueError if the devices cannot share them."""

    def put(x: Any) -> jax.Array:
        size = x.shape[0] * jax.process_count()
        if size % mesh.size:
            raise ValueError(
                f"A batch of {size} does not divide by the mesh's {mesh.size} devices; "
                "choose a multiple, or fewer devices."
            )
        return jax.make_array_from_process_local_data(rows_of(mesh), np.asarray(x))

    return jax.tree.map(put, batch)


def place(tree: Any, sharding: NamedSharding) -> Any:
    """Puts arrays that every process has whole where they are to lie."""

    def put(x: Any) -> jax.Array:
        x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    return jax.tree.map(put, tree)


def on_mesh(tree: Any, mesh: Mesh) -> Any:
    """The tree with arrays that lie elsewhere than on all devices of the mesh put on each of them."""
    devices = set(mesh.devices.flat)

    def put(x: Any) -> jax.Array:
        there = isinstance(x, jax.Array) and x.sharding.device_set == devices
        return x if there else place(on_host(x), everywhere(mesh))

    return jax.tree.map(put, tree)


def state_sharding(task: Task, net: nn.Module, mesh: Mesh, state: TrainState) -> TrainState:
    """Where the parts of a state lie on a mesh: a `NamedSharding` for each leaf.

    The task knows the rows of what it carries from batch to batch, and the network names the axes of its
    parameters. A matrix without names is divided along its largest axis, and vectors are on each device.
    """
    devices = mesh.shape.get("model", 1)
    # Where each device has everything, the network need not be traced for the names of its axes.
    specs = {} if devices == 1 else _parameter_specs(net, task.inputs, devices, state.params)

    def where(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        # The optimizer's state and the average have trees like the parameters' in them.
        keys = tuple(jax.tree_util.keystr(path, simple=True, separator="/").split("/"))
        tails = (keys[start:] for start in range(len(keys)))
        shape, spec = next((specs[tail] for tail in tails if tail in specs), (None, P()))
        return NamedSharding(mesh, spec if shape == leaf.shape else P())

    def rows(carry: Any) -> Any:
        axes = task.carry_axes(carry)
        return jax.tree.map(lambda axis, _: rows_of(mesh, axis), axes, carry)

    sharding = jax.tree_util.tree_map_with_path(where, state)
    return sharding.replace(carry={role: rows(carry) for role, carry in state.carry.items()})


def _parameter_specs(
    net: nn.Module, inputs: Any, devices: int, params: Any
) -> dict[tuple[str, ...], tuple[tuple[int, ...], P]]:
    """For each parameter its shape and how it is divided, by path."""
    boxed = annotated(net, inputs).variables["params"]
    names = {
        path: leaf.names if isinstance(leaf, nn.LogicallyPartitioned) else (None,) * leaf.ndim
        for path, leaf in flatten(boxed).items()
    }
    return {
        path: (leaf.shape, _spec(leaf.shape, names[path], devices)) for path, leaf in flatten(params).items()
    }


def _spec(shape: tuple[int, ...], names: tuple[str | None, ...], devices: int) -> P:
    """The axis that devices share: the first that the rules name, else the largest, if it divides."""
    if devices == 1 or len(shape) < 2:
        return P()
    axes = range(len(shape))
    named = sorted((axis for axis in axes if names[axis] in RULES), key=lambda axis: RULES.index(names[axis]))
    for axis in (*named, *sorted(axes, key=lambda axis: -shape[axis])):
        if shape[axis] % devices == 0:
            return P(*[None] * axis, "model")
    return P()

"""Latency in a run: a table of it as a cost of the search, and the found network itself, timed in the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax

import jaxnas
from jaxnas import files, latency, processes
from jaxnas.cost import Cost, cost
from jaxnas.report.findings import TIMED
from jaxnas.space import Arch
from jaxnas.tasks import Task

Measure = Callable[[nn.Module, Task, int], latency.LatencyTable]


def costs_with_latency(
    task: Task, net: nn.Module, rows: int, workdir: str | os.PathLike | None, measure: Measure | None = None
) -> Cost:
    """Parameters and products of architectures, and "latency_ms" by a table that is measured once.

    The table is of batches of `rows`, 0 for no latency, and kept in latency.json of the workdir, so that a
    resumed search uses the same one. `measure` makes it, by default one decision at a time. A table of
    another device raises a ValueError.
    """
    exact = cost(net, task.inputs)
    if not rows:
        return exact
    measure, path = measure or measured, None if workdir is None else files.as_path(workdir) / "latency.json"
    if path is None:
        table = measure(net, task, rows)
    else:
        if not path.exists():
            if processes.is_first():
                path.parent.mkdir(parents=True, exist_ok=True)
                measure(net, task, rows).save(path)
            processes.wait("the latency is measured")
        table = latency.load(path)
    if table.device != (here := jax.devices()[0].device_kind):
        raise ValueError(
            f"{path} was measured on {table.device}, and this is {here}. Take another workdir, or delete the "
            "file to measure anew."
        )
    own = table.cost(net.space)
    return lambda arch: {**exact(arch), **own(arch)}


def measured(net: nn.Module, task: Task, rows: int) -> latency.LatencyTable:
    """A latency table of any network, one decision at a time; see `jaxnas.latency.table`."""
    return latency.table(net, jaxnas.init(net, jax.random.key(0), task.inputs), _batch(task, rows))


def time_found(
    task: Task, net: nn.Module, variables: Any, archs: Mapping[str, Arch], rows: int, workdir: os.PathLike
) -> None:
    """Times extracted networks, by name, from end to end, in turn, and writes what the page shows of it."""
    seconds = latency.measure(net, variables, _batch(task, rows), archs, repeats=50)
    record = {
        "rows": rows,
        "device": jax.devices()[0].device_kind,
        "architecture": net.space.to_dict(archs["found"]),
        "milliseconds": {name: [1e3 * x for x in values] for name, values in seconds.items()},
    }
    files.write_json(files.as_path(workdir) / TIMED, files.plain(record))


def _batch(task: Task, rows: int) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), task.inputs)

"""Several processes that are one run: how they begin, agree and wait, and what each may do.

Every process runs the same program on the same arguments. All compute; the first one writes the files.
With a single process nothing here does anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxnas import files

HEARTBEAT = 30  # seconds without a sign of a process until it counts as lost


class ProcessesDisagree(ValueError):
    """A process of the run was started with other settings."""


def start(coordinator: str | None = None, count: int | None = None, index: int | None = None) -> None:
    """Joins the processes of a run; before anything else of JAX is used.

    TPU pods, Slurm, Open MPI and Kubernetes jobs are recognised by JAX, and then nothing has to be given.

    Args:
      coordinator: address and port of the first process, as "10.0.0.1:1234".
      count: of the processes.
      index: of this one, from 0.

    Raises:
      ValueError: only some of the three are given, an index that is not below the count, or nothing is given
        and JAX recognises nothing.
      RuntimeError: the coordinator does not answer.
    """
    if len({one is None for one in (coordinator, count, index)}) > 1:
        raise ValueError(
            f"coordinator is {coordinator}, processes {count} and process {index}: give all three, or "
            "none on a TPU pod and under Slurm, where JAX finds them."
        )
    if count is not None and index is not None and not 0 <= index < count:
        raise ValueError(f"process is {index}, expected 0 to {count - 1} with {count} processes.")
    try:
        jax.distributed.initialize(coordinator, count, index, heartbeat_timeout_seconds=HEARTBEAT)
    except ValueError as error:
        raise ValueError(
            "JAX does not recognise a cluster here. Outside of a TPU pod, Slurm, Open MPI and Kubernetes "
            f"give the coordinator's address, the number of processes and the index of this one ({error})."
        ) from error


def is_first() -> bool:
    """Whether this is the process that writes files."""
    return jax.process_index() == 0


def wait(what: str) -> None:
    """Returns when all processes have come to the same place, which `what` names."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"jaxnas: {what}")


def check_same(config: Mapping[str, Any]) -> None:
    """Checks that all processes run the same config.

    Raises:
      ProcessesDisagree: in every process, if one has another; those name the fields that differ.
    """
    if jax.process_count() == 1:
        return
    text = json.dumps(files.plain(config)).encode()
    size = int(np.max(multihost_utils.process_allgather(np.int64(len(text)))))
    padded = np.frombuffer(text.ljust(size), np.uint8)  # [size]
    configs = [json.loads(bytes(row)) for row in np.asarray(multihost_utils.process_allgather(padded))]
    differing = [
        f"process {number}: {', '.join(files.diff(configs[0], other, ('process 0', f'process {number}')))}"
        for number, other in enumerate(configs)
        if other != configs[0]
    ]
    if differing:
        raise ProcessesDisagree(
            f"The processes of a run need one config, and they have others: {'; '.join(differing)}. Start "
            "all with the same command."
        )


def on_host(tree: Any) -> Any:
    """The arrays of a tree as NumPy arrays, whole, also those of which other processes hold parts."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
            return multihost_utils.process_allgather(leaf, tiled=True)
        return np.asarray(leaf)

    return jax.tree.map(one, tree)

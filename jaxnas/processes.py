"""Several processes that are one run: how they begin, agree and wait, and what each may do.

Every process runs the same program on the same arguments. All compute; the first one writes the files.
With a single process nothing here does anything.
"""

from __future__ import annotations

import contextlib
import json
import logging
import pathlib
import secrets
import socket
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxnas import files

_log = logging.getLogger(__name__)
HEARTBEAT = 30  # seconds without a sign of a process until it counts as lost
SAID, GIVEN_UP = 30, 300  # seconds after which those that have not come are named, and no longer waited for


class ProcessesDisagree(ValueError):
    """A process of the run was started with other settings."""


def start(coordinator: str | None = None, count: int | None = None, index: int | None = None) -> None:
    """Joins the processes of a run; before anything else of JAX is used.

    TPU pods, Slurm, Open MPI and Kubernetes jobs are recognized by JAX, and then nothing has to be given.

    Args:
      coordinator: address and port of the first process, as "10.0.0.1:1234".
      count: of the processes.
      index: of this one, from 0.

    Raises:
      ValueError: only some of the three are given, an index that is not below the count or that another
        process has, or nothing is given and JAX recognizes nothing.
      TimeoutError: processes that did not come, which are named.
      RuntimeError: the coordinator does not answer.
    """
    if len({one is None for one in (coordinator, count, index)}) > 1:
        raise ValueError(
            f"coordinator is {coordinator}, processes {count} and process {index}: give all three, or "
            "none on a TPU pod and under Slurm, where JAX finds them."
        )
    if count is not None and index is not None and not 0 <= index < count:
        raise ValueError(f"process is {index}, expected 0 to {count - 1} with {count} processes.")
    if coordinator is not None and count is not None and index is not None:
        gather(coordinator, count, index)  # JAX itself waits in silence, and aborts
    try:
        jax.distributed.initialize(coordinator, count, index, heartbeat_timeout_seconds=HEARTBEAT)
    except ValueError as error:
        raise ValueError(
            "JAX does not recognize a cluster here. Outside of a TPU pod, Slurm, Open MPI and Kubernetes "
            f"give the coordinator's address, the number of processes and the index of this one ({error})."
        ) from error


def gather(coordinator: str, count: int, index: int) -> None:
    """Returns when all processes of a run have reached the first one's address; see `start`."""
    host, _, port = coordinator.rpartition(":")
    if not port.isdecimal():
        raise ValueError(f"coordinator is {coordinator!r}, expected an address and a port, as 10.0.0.1:1234.")
    if count > 1:
        if index:
            _join((host.strip("[]"), int(port)), count, index)
        else:
            _wait_for_all(int(port), count)


def _wait_for_all(port: int, count: int) -> None:
    """Accepts the other processes of a run, and releases them when the last one is there."""
    waiting = _Waiting()
    with contextlib.ExitStack() as stack:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        server = socket.create_server(("", port), family=family, dualstack_ipv6=both)
        stack.enter_context(server).settimeout(0.2)
        there: dict[int, socket.socket] = {}
        while len(there) < count - 1:
            missing = ", ".join(str(i) for i in range(1, count) if i not in there)
            waiting.check(
                f"of {count} processes, {missing} did not come to process 0",
                "Start all, each with its own index and the same coordinator.",
            )
            with contextlib.suppress(OSError, ValueError):  # none came, or it was none of ours
                connection = stack.enter_context(server.accept()[0])
                connection.settimeout(5)
                other, others = map(int, connection.recv(100).split())
                if others == count and 0 < other < count and other not in there:
                    there[other] = connection
                else:
                    connection.sendall(f"process {other} of {others} is wrong or there twice".encode())
        for connection in there.values():
            with contextlib.suppress(OSError):
                connection.sendall(b"go")
                connection.recv(1)  # until the other end is closed, so that the port is free


def _join(address: tuple[str, int], count: int, index: int) -> None:
    """Connects to the first process of a run, and returns when it releases this one."""
    waiting = _Waiting()
    while True:
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=5) as connection:
            connection.settimeout(GIVEN_UP)
            connection.sendall(f"{index} {count}".encode())
            answer = connection.recv(200).decode()
            if answer == "go":
                return
            if answer:
                raise ValueError(f"{answer}: give each of the {count} processes an index of its own, from 0.")
        waiting.check(
            f"process 0 does not answer at {address[0]}:{address[1]}",
            "Start it, and give all processes its address as the coordinator.",
        )
        time.sleep(0.5)


class _Waiting:
    """Warns once after `SAID` seconds, and raises a TimeoutError after `GIVEN_UP`."""

    def __init__(self) -> None:
        self._start, self._said = time.monotonic(), False

    def check(self, what: str, cure: str) -> None:
        waited = time.monotonic() - self._start
        text = f"{what} after {waited:.0f} seconds"
        if waited > GIVEN_UP:
            raise TimeoutError(f"{text}. {cure}")
        if waited > SAID and not self._said:
            _log.warning("%s. Waiting on.", text)
            self._said = True


def check_shared(folder: pathlib.Path) -> None:
    """Raises FileNotFoundError in each process of a run unless all see the folder of the first one."""
    if jax.process_count() == 1:
        return
    nonce = int(multihost_utils.broadcast_one_to_all(np.uint32(secrets.randbits(32))))
    path, start = folder / ".shared", time.monotonic()
    if is_first():
        files.write_text(path, str(nonce))
    wait("the folder is there")

    def seen() -> bool:
        with contextlib.suppress(OSError):
            return path.read_text() == str(nonce)
        return False

    while not (here := seen()) and time.monotonic() - start < SAID:  # network file systems may be late
        time.sleep(0.5)
    everywhere = np.asarray(multihost_utils.process_allgather(np.bool_(here)))
    if is_first():
        path.unlink(missing_ok=True)
    if blind := ", ".join(map(str, np.flatnonzero(~everywhere))):
        raise FileNotFoundError(
            f"{folder} is not one folder for all processes: {blind} of {len(everywhere)} do not see what "
            "process 0 wrote there. Choose a workdir on a file system that all share, or in a bucket (gs://)."
        )


def is_first() -> bool:
    """Whether this is the process that writes files."""
    return jax.process_index() == 0


def wait(what: str) -> None:
    """Returns when all processes have come to the same place, which `what` names."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"jaxnas: {what}")


def check_same(config: Mapping[str, Any]) -> None:
    """Raises ProcessesDisagree, with the fields that differ, unless all processes run the same config."""
    if jax.process_count() == 1:
        return
    text = json.dumps(files.plain(config)).encode()
    size = int(np.max(multihost_utils.process_allgather(np.int64(len(text)))))
    padded = np.frombuffer(text.ljust(size), np.uint8)  # [size]
    configs = [json.loads(bytes(row)) for row in np.asarray(multihost_utils.process_allgather(padded))]
    differing = []
    for number, other in enumerate(configs):
        if lines := files.diff(configs[0], other, ("process 0", f"process {number}")):
            differing.append(f"process {number}: {', '.join(lines)}")
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

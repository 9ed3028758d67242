"""The directory of a run, held by one process at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import socket
from collections.abc import Iterator

from jaxnas import files, processes
from jaxnas.training import lease

LOCK = ".lock"


class WorkdirError(RuntimeError):
    """A workdir cannot be used: it is not writable, or held by another run."""


@contextlib.contextmanager
def open_workdir(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Creates a workdir and holds it for this run until the context ends.

    The kernel drops the lock when its process ends, however it ends: a killed run leaves nothing
    to clean up. The file `.lock` stays; it only says who was last. Of several processes that are one run,
    the first holds it. In an object store the holder renews its lock, and one that was killed is known by
    two minutes of silence, for which the next run waits; see `lease`.

    Args:
      path: the directory, or gs://bucket/folder; parents are created.

    Yields:
      The absolute path of the directory.

    Raises:
      WorkdirError: not writable, or in use by another run.
      FileNotFoundError: of several processes some see another directory; they are named.
    """
    workdir = files.absolute(files.as_path(path).expanduser())
    if not processes.is_first():
        processes.wait("the workdir is there")
        processes.check_shared(workdir)
        yield workdir
        return
    with contextlib.ExitStack() as held:
        try:
            workdir.mkdir(parents=True, exist_ok=True)
            if files.is_remote(workdir):
                held.enter_context(lease.hold(workdir / LOCK, _holder()))
            else:
                lock = os.open(workdir / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
                held.callback(os.close, lock)
                _lock(lock, workdir / LOCK)
        except BlockingIOError as error:
            raise WorkdirError(
                f"the workdir {workdir} is in use by another run ({error}). "
                "Wait for that run, stop it, or choose another directory."
            ) from error
        except OSError as error:
            why = f"{error.strerror} ({error.filename})" if error.strerror else str(error)
            raise WorkdirError(
                f"cannot write to the workdir {workdir}: {why}. Choose a directory that you may write to."
            ) from error
        processes.wait("the workdir is there")
        processes.check_shared(workdir)
        yield workdir


def _lock(lock: int, path: pathlib.Path) -> None:
    """Locks an open file and writes this process into it.

    Raises:
      BlockingIOError: another process holds it; the message says which.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise WorkdirError(
                f"cannot lock {path}: {error.strerror}. Without a lock two runs could "
                "write to one workdir; put it on a file system that supports flock."
            ) from error
        holder = os.pread(lock, 1000, 0).decode(errors="replace").strip()
        raise BlockingIOError(holder or "just starting") from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{_holder()}\n".encode(), 0)


def _holder() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"

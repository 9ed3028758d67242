"""The directory of a run, held by one process at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import re
import socket
from collections.abc import Iterator

import tensorstore

from jaxnas import files, processes

LOCK = ".lock"
ANSWER = 60.0  # seconds that an object store has to answer


class WorkdirError(RuntimeError):
    """A workdir cannot be used: it is not writable, or held by another run."""


@contextlib.contextmanager
def open_workdir(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Creates a workdir, also gs://bucket/folder, and holds it for this run until the context ends.

    On a disk the kernel drops the lock when its process ends; the file `.lock` stays and only names the last
    holder. In an object store the lock is an object that the run creates and removes. A run that was killed
    leaves it: the next run on that machine takes it over, and one elsewhere names the object to remove. Of
    several processes that are one run, the first holds the lock.

    Raises:
      WorkdirError: not writable, or in use by another run.
      FileNotFoundError: some of several processes see another directory; they are named.
    """
    workdir = files.absolute(files.as_path(path).expanduser())
    with contextlib.ExitStack() as held:
        if processes.is_first():
            held.enter_context(_held(workdir))
        processes.wait("the workdir is there")
        processes.check_shared(workdir)
        yield workdir


@contextlib.contextmanager
def _held(workdir: pathlib.Path) -> Iterator[None]:
    """Holds the lock of a workdir, or raises WorkdirError."""
    with contextlib.ExitStack() as held:
        try:
            workdir.mkdir(parents=True, exist_ok=True)
            if files.is_remote(workdir):
                held.enter_context(_object(os.fspath(workdir / LOCK)))
            else:
                lock = os.open(workdir / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
                held.callback(os.close, lock)
                _lock(lock)
        except BlockingIOError as error:
            raise WorkdirError(
                f"the workdir {workdir} is in use by another run ({error}). "
                "Wait for that run, stop it, or choose another directory."
            ) from error
        except OSError as error:
            why = f"{error.strerror} ({error.filename or workdir})" if error.strerror else str(error)
            raise WorkdirError(
                f"cannot write to the workdir {workdir}, or lock it: {why}. Choose a directory that you may "
                "write to, on a file system that supports flock."
            ) from error
        yield


def _lock(lock: int) -> None:
    """Locks an open file and writes this process into it, or raises BlockingIOError with the holder."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        holder = os.pread(lock, 1000, 0).decode(errors="replace").strip()
        raise BlockingIOError(holder or "just starting") from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{_holder()}\n".encode(), 0)


@contextlib.contextmanager
def _object(path: str) -> Iterator[None]:
    """Holds an object gs://bucket/folder/name: created if there is none, or one of a killed process.

    If there is one, a BlockingIOError names its process, and how to remove it.
    """
    bucket, _, name = path.removeprefix("gs://").partition("/")
    folder, _, name = name.rpartition("/")
    # Not by its address, in which TensorStore gives # ? and % a meaning.
    place = {"driver": "gcs", "bucket": bucket, "path": folder + "/" if folder else ""}
    with _errors_of_store(path):
        store = tensorstore.KvStore.open(place).result(timeout=ANSWER)
        found = store.read(name).result(timeout=ANSWER)
        mine = b""
        if found.state == "missing" or _gone(found.value.decode(errors="replace")):
            written = store.write(name, _holder(), if_equal=found.stamp.generation).result(timeout=ANSWER)
            mine = written.generation
        if not mine:
            holder = store.read(name).result(timeout=ANSWER).value.decode(errors="replace").strip()
            raise BlockingIOError(f"{holder}; if that process is gone, remove {path}")
    try:
        yield
    finally:
        with _errors_of_store(path):
            store.write(name, None, if_equal=mine).result(timeout=ANSWER)


@contextlib.contextmanager
def _errors_of_store(path: str) -> Iterator[None]:
    """Turns failures of a store, of which TensorStore has a type for each status, into OSError."""
    try:
        yield
    except BlockingIOError:
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise OSError(f"the lock {path} cannot be read or written: {reason}") from error


def _holder() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"


def _gone(holder: str) -> bool:
    """Whether a holder was a process of this machine that has ended."""
    match = re.fullmatch(rf"pid (\d+) on {re.escape(socket.gethostname())}", holder.strip())
    if match is None:
        return False
    try:
        os.kill(int(match[1]), 0)  # which only asks whether there is such a process
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):  # of another user; no number of a process
        return False
    return False

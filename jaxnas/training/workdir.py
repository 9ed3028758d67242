"""The directory of a run: who holds it, and the JSON files in it."""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import json
import math
import os
import pathlib
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

LOCK = ".lock"


class WorkdirError(RuntimeError):
    """A workdir cannot be used: not writable, held by another run, or not empty."""


@contextlib.contextmanager
def open_workdir(path: str | os.PathLike, resume_ok: bool = True) -> Iterator[pathlib.Path]:
    """Creates a workdir and holds it for this process until the context ends.

    The kernel drops the lock when its process ends, however it ends: a killed run leaves nothing
    to clean up. The file `.lock` stays; it only says who was last.

    Args:
      path: the directory; parents are created.
      resume_ok: if False, a directory that already has files in it is refused.

    Yields:
      The absolute path of the directory.

    Raises:
      WorkdirError: not writable, in use by another run, or not empty while `resume_ok` is False.
    """
    workdir = pathlib.Path(path).expanduser().absolute()
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock = os.open(workdir / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise WorkdirError(
            f"cannot write to the workdir {workdir}: {error.strerror} ({error.filename}). "
            "Choose a directory that you may write to."
        ) from error
    try:
        _lock(lock, workdir)
        present = sorted(entry.name for entry in workdir.iterdir() if entry.name != LOCK)
        if present and not resume_ok:
            raise WorkdirError(
                f"the workdir {workdir} already holds a run ({', '.join(present[:5])}). "
                "Choose a new or empty directory, or move this one away."
            )
        yield workdir
    finally:
        os.close(lock)


def _lock(lock: int, workdir: pathlib.Path) -> None:
    """Locks an open file and writes this process into it, or says who holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise WorkdirError(
                f"cannot lock {workdir / LOCK}: {error.strerror}. Without a lock two runs could "
                "write to one workdir; put it on a file system that supports flock."
            ) from error
        holder = os.pread(lock, 1000, 0).decode(errors="replace").strip()
        raise WorkdirError(
            f"the workdir {workdir} is in use by another run ({holder or 'just starting'}). "
            "Wait for that run, stop it, or choose another directory."
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def plain(value: Any) -> Any:
    """Turns a value into what JSON can hold.

    Tuples become lists, arrays and NumPy or JAX scalars become lists and numbers; NaN and the
    infinities, which JSON lacks, become None.

    Raises:
      TypeError: for anything else, naming the type.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        array = np.asarray(value)
        # bfloat16 and its like are no NumPy numbers: tolist() would give objects.
        if array.dtype.kind not in "biufUS":
            array = array.astype(np.float32)
        return plain(array.tolist())
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be written as JSON")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"JSON needs strings as keys, not {key!r} of type {type(key).__name__}")
    return key


def write_json_atomic(path: str | os.PathLike, value: Any) -> None:
    """Writes a JSON file so that a reader sees the old file or the whole new one, never a part."""
    path = pathlib.Path(path)
    text = json.dumps(plain(value), indent=2, allow_nan=False) + "\n"
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    fsync(path.parent)


def fsync(path: str | os.PathLike) -> None:
    """Makes a file, or the names in a directory, survive a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: str | os.PathLike) -> Any:
    """Reads a JSON file.

    Raises:
      FileNotFoundError: no such file; the message names the nearest file beside it.
      ValueError: the file is not JSON; the message says where it stops being JSON.
    """
    path = pathlib.Path(path)
    try:
        text = path.read_bytes().decode("utf-8")
        return json.loads(text)
    except FileNotFoundError as error:
        names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, names, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise FileNotFoundError(f"there is no file {path}.{hint}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a JSON file: byte {error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        what = "it is empty" if not text.strip() else f"{error.msg} at line {error.lineno}"
        raise ValueError(
            f"{path} is not valid JSON: {what}. It was truncated or edited; delete it and run "
            "again what writes it."
        ) from error


_ABSENT = object()


def diff(before: Mapping, after: Mapping, names: tuple[str, str] = ("checkpoint", "now")) -> list:
    """Names what differs between two nested dictionaries, as JSON would hold them.

    Args:
      before: a dictionary of values and dictionaries.
      after: the other one.
      names: what to call the two.

    Returns:
      Lines such as "training.steps: 3 (checkpoint) / 4 (now)"; empty if they are equal.
    """
    first, second = _flat(plain(before)), _flat(plain(after))
    lines = []
    for key in [*first, *(key for key in second if key not in first)]:
        a, b = first.get(key, _ABSENT), second.get(key, _ABSENT)
        if a != b:
            lines.append(f"{key}: {_show(a)} ({names[0]}) / {_show(b)} ({names[1]})")
    return lines


def _flat(tree: Mapping, prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}; an empty dictionary stays a value."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _show(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value)

"""Files that are written whole or not at all, and JSON that says what is wrong with it.

Every file of a run is written here: under a temporary name beside its place, put safely on disk, and
renamed. A reader finds the old file or the whole new one, also while several processes write it. What a
killed process leaves behind is named `.<name>.tmp-*`; it is never read, and whoever writes the same file
more than a day later removes it.

Paths may also be of an object store, gs://bucket/folder. An object is written whole or not at all there, so
that no temporary name is needed; nothing can be appended to or renamed.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import glob
import hashlib
import importlib
import io
import json
import math
import os
import pathlib
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, cast

import jax
import numpy as np
from etils import epath

Path = str | os.PathLike
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_STORE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def as_path(path: Path) -> pathlib.Path:
    """The path of a file or a folder, on this machine, where ~ is the home folder, or gs://bucket/folder.

    Returns:
      A path of `pathlib`. In an object store it is one of `etils.epath`, with those methods of `pathlib`
      that are called here; its `mkdir` does nothing, since there are only names of objects.

    Raises:
      TypeError: neither text nor a path.
      ValueError: another store, or what reads and writes this one is not installed.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"a path is expected, as text or as a pathlib.Path, and {path!r} was given.")
    text = os.fspath(path)
    if not _STORE.match(text):
        # A shell leaves the ~ of --workdir=~/run as it is.
        return pathlib.Path(path).expanduser() if text == "~" or text.startswith("~/") else pathlib.Path(path)
    if not text.startswith("gs://"):
        raise ValueError(
            f"{text} is in no store that can be used: expected a path of this machine, or gs://bucket/folder "
            "as a string, since pathlib makes one slash of two. Mount other stores as a folder."
        )
    try:
        fsspec = importlib.import_module("fsspec")
        fsspec.get_filesystem_class("gcs")
    except ImportError as error:
        raise ValueError(f"{text} needs the package gcsfs: pip install 'jaxnas[gcs]'") from error
    # Other processes write there, too: what was listed before says nothing.
    fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    return cast(pathlib.Path, epath.Path(path))


def absolute(path: Path) -> pathlib.Path:
    """`as_path` from the root of this machine; a path in an object store is one already."""
    path = as_path(path)
    # `absolute` of etils would take gs://bucket for a name in the folder of this process.
    return path if is_remote(path) else path.absolute()


def is_remote(path: Path) -> bool:
    """Whether a path is in an object store."""
    return os.fspath(path).startswith("gs://")


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file so that a reader sees the old one or the whole new one, never a part.

    Raises:
      OSError: the directory cannot be written, or the disk is full; the old file is then untouched.
    """
    path = as_path(path)
    if is_remote(path):
        path.write_bytes(data)
        return
    _remove_old_leftovers(path)
    with replacing(path, len(data)) as file:
        file.write(data)
    fsync(path.parent)


def copy_file(source: pathlib.Path, path: Path) -> None:
    """`write_bytes` of another file, piece by piece: it may be larger than the memory."""
    path = as_path(path)
    written = path.open("wb") if is_remote(path) else replacing(path, source.stat().st_size)
    with source.open("rb") as given, written as file:
        shutil.copyfileobj(given, file)
    if not is_remote(path):
        fsync(path.parent)


@contextlib.contextmanager
def replacing(path: pathlib.Path, size: int) -> Iterator[BinaryIO]:
    """A file of `size` bytes under another name, which takes the place of `path` when it is whole."""
    temporary = path.with_name(f".{path.name}.tmp-{secrets.token_hex(4)}")
    kept = "The old file is kept" if path.exists() else "Nothing was written"
    try:
        with room_for(path, size, kept), open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def room_for(path: Path, size: int, kept: str) -> Iterator[None]:
    """Turns the error of a full disk into one that says how much was needed, and what was kept."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise OSError(
            f"{path} could not be written: {os.strerror(error.errno)}. It takes {size:,} bytes. {kept}. "
            "Delete something, or move the workdir to a larger disk. Started again, the run resumes."
        ) from error


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of a text in UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """`write_bytes` of a value as indented JSON; see `plain` for what JSON can hold."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """`write_bytes` of named arrays as a compressed npz file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # pyrefly: ignore[bad-argument-type] # none is "allow_pickle"
    write_bytes(path, buffer.getvalue())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Reads an npz file whole; its check sums show damage.

    Raises:
      FileNotFoundError: no such file.
      ValueError: it is empty, cut short, damaged or no npz file; the message says which.
    """
    data = as_path(path).read_bytes()
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # zipfile, zlib and NumPy each raise several kinds for damaged bytes.
        raise ValueError(f"{path} is no whole npz file: {len(data):,} bytes, {error}") from error


def replace_folder(
    path: Path, files: Mapping[str, bytes | pathlib.Path], *, known: Iterable[str] = ()
) -> None:
    """Puts a folder of files in place of an older one, complete or not at all.

    In an object store this holds for readers that take a folder without its last file for none: that
    file is removed first and written last.

    Args:
      path: of the folder; the one that it lies in is made if needed.
      files: contents by name, or files to copy.
      known: names of other files that an older folder may hold, and that go with it.

    Raises:
      FileExistsError: the path is a file, or the older folder holds files that are not ours.
    """
    folder = absolute(path)

    def put(new: pathlib.Path) -> None:
        for name, data in files.items():
            write_bytes(new / name, data) if isinstance(data, bytes) else copy_file(data, new / name)

    if folder.is_file():
        raise FileExistsError(f"{folder} is a file; choose a folder.")
    if not is_remote(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        for leftover in _leftovers(folder):
            shutil.rmtree(leftover)
    if folder.exists():
        ours = {*files, *known}
        others = sorted(p.name for p in folder.iterdir() if p.name not in ours and not is_leftover(p))
        if others:
            raise FileExistsError(
                f"{folder} holds other files, which would be lost: {', '.join(others[:8])}. "
                "Choose a folder of its own."
            )
    if is_remote(folder):
        for name in (*reversed([*files]), *known):
            (folder / name).unlink(missing_ok=True)
        put(folder)
        return
    new, old = (folder.with_name(f".{folder.name}.tmp-{name}") for name in ("new", "old"))
    new.mkdir()
    put(new)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    fsync(folder.parent)


@contextlib.contextmanager
def temporary_folder(path: Path) -> Iterator[pathlib.Path]:
    """Yields a new folder beside `path` to prepare files in, for this process alone; it is removed then."""
    path = pathlib.Path(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_old_leftovers(path)
    prefix = f".{path.name}.tmp-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=path.parent, ignore_cleanup_errors=True) as folder:
        yield pathlib.Path(folder)


def commit_folder(folder: Path, path: Path) -> None:
    """Moves a complete folder to its place on the same disk by a rename, unless another process did."""
    path = pathlib.Path(path)
    for inner in pathlib.Path(folder).rglob("*"):
        fsync(inner)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(folder, path)
    except OSError:
        if not path.is_dir():
            raise
    fsync(path.parent)


def _leftovers(path: pathlib.Path) -> list[pathlib.Path]:
    return list(path.parent.glob(f".{glob.escape(path.name)}.tmp-*"))


def _remove_old_leftovers(path: pathlib.Path) -> None:
    """Removes what is too old to be the work of a process that still runs."""
    for leftover in _leftovers(path):
        with contextlib.suppress(FileNotFoundError):  # Another process may remove it, too.
            if time.time() - leftover.stat().st_mtime > 86_400:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def is_leftover(path: pathlib.Path) -> bool:
    """Whether a path is what a killed writer of this module left behind."""
    # Before there were several writers at once, the name was `.<name>.tmp`.
    return path.name.startswith(".") and (path.name.endswith(".tmp") or ".tmp-" in path.name)


def fsync(path: Path) -> None:
    """Makes a file, or the names in a directory, survive a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(data: bytes | pathlib.Path) -> str:
    """The SHA-256 digest of bytes, or of a file, as hexadecimal digits."""
    if isinstance(data, bytes):
        return hashlib.sha256(data).hexdigest()
    with data.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(data: Any) -> str:
    """The first 16 hexadecimal digits of a SHA-256, which tell records of a run apart.

    `data`: bytes, a file, or a pytree of arrays, numbers and texts, of which paths, dtypes and shapes count.
    """
    if isinstance(data, bytes | pathlib.Path):
        return sha256(data)[:16]
    total = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(data, is_leaf=lambda x: x is None):
        total.update(jax.tree_util.keystr(path).encode())
        if not hasattr(leaf, "dtype"):
            total.update(repr(leaf).encode())
            continue
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf, order="C")
        total.update(f"{array.dtype}{array.shape}".encode())
        total.update(repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes())
    return total.hexdigest()[:16]


def plain(value: Any) -> Any:
    """Turns a value into what JSON can hold, or raises TypeError, naming the type.

    Tuples become lists, arrays and NumPy or JAX scalars become lists and numbers; NaN and the
    infinities, which JSON lacks, become None.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"JSON needs strings as keys, not {wrong[0]!r} of type {type(wrong[0]).__name__}")
        return {key: plain(item) for key, item in value.items()}
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


def read_json(path: Path) -> Any:
    """Reads a JSON file.

    Raises:
      FileNotFoundError: no such file; the message names the nearest file beside it.
      ValueError: the file is not JSON; the message says where it stops being JSON.
    """
    path = as_path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, names, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise FileNotFoundError(f"there is no file {path}.{hint}") from error
    return parse_json(data, str(path))


def parse_json(data: bytes, name: str) -> Any:
    """The value of a JSON document; ValueError, beginning with `name`, says where it stops being JSON."""
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not JSON: byte {error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        what = "it is empty" if not data.strip() else f"{error.msg} at line {error.lineno}"
        raise ValueError(
            f"{name} is not valid JSON: {what}. It was truncated or edited; delete it and run again what "
            "writes it."
        ) from error
    except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
        raise ValueError(f"{name} is JSON that is nested too deeply, or has numbers too long.") from error


def append_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Appends records to a file of JSON lines, which is made if there is none, and puts them safely on disk.

    A process killed meanwhile leaves at most a part of the last line, which `read_lines` ignores; it is cut
    off before records are appended. In an object store the whole file is written anew.
    """
    text = "".join(json.dumps(plain(record), allow_nan=False) + "\n" for record in records)
    data, path = text.encode("utf-8"), as_path(path)
    if is_remote(path):
        before = path.read_bytes() if path.exists() else None
        if data or before is None:
            write_bytes(path, _whole_lines(before or b"") + data)
        return
    with room_for(path, len(data), "The lines before are kept"), open(path, "a+b") as file:
        if data and file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(len(_whole_lines(file.read())))
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _whole_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


def read_lines(path: Path, keys: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Reads a file of JSON lines; [] if there is none. A part of a line at the end is ignored.

    Raises:
      ValueError: a line is not a JSON object, or lacks one of the keys; the message names file and line.
    """
    path = as_path(path)
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        record = parse_json(line, f"line {number} of {path}")
        wrong = "is no JSON object" if not isinstance(record, dict) else ""
        wrong = wrong or next((f"has no {key!r}" for key in keys if key not in record), "")
        if wrong:
            raise ValueError(
                f"line {number} of {path} {wrong}: {line[:80]!r}. Move the file away or mend that "
                "line, then start again."
            )
        records.append(record)
    return records


def truncate_lines(path: Path, keep: int) -> None:
    """Cuts a file of JSON lines behind its first `keep` lines; a file that is not there stays so."""
    path = as_path(path)
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if lines[keep:]:
        write_bytes(path, b"".join(lines[:keep]))


_ABSENT = object()


def diff(before: Mapping, after: Mapping, names: tuple[str, str] = ("checkpoint", "now")) -> list[str]:
    """Names what differs between two nested dictionaries, as JSON would hold them.

    Returns:
      Lines such as "training.steps: 3 (checkpoint) / 4 (now)", with the names of the two.
    """
    first, second = _flat(plain(before)), _flat(plain(after))
    pairs = {key: (first.get(key, _ABSENT), second.get(key, _ABSENT)) for key in first | second}

    def show(value: Any) -> str:
        return "absent" if value is _ABSENT else json.dumps(value)

    return [f"{k}: {show(a)} ({names[0]}) / {show(b)} ({names[1]})" for k, (a, b) in pairs.items() if a != b]


def indented(lines: Sequence[str], most: int = 10) -> str:
    """Lines of `diff` for a message, each on one of its own, and how many more there are than `most`."""
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return "".join(f"\n  {line}" for line in [*lines[:most], *more])


def _flat(tree: Mapping, prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}; an empty dictionary stays a value."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat

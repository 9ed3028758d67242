"""Files of data: of a user, prepared by TFDS, and copies of what lies in an object store."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import io
import lzma
import os
import pathlib
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from absl import logging

from jaxnas import files
from jaxnas.choice import nearest

_CHUNK = 256  # Examples read at a time where all of a split are gone through.


def read_bytes(path: str | os.PathLike) -> bytes:
    """Reads a file, plain or compressed by gzip or xz or as the one member of a zip archive."""
    data = files.as_path(path).read_bytes()
    size = len(data)
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        elif data[:6] == b"\xfd7zXZ\x00":
            data = lzma.decompress(data)
        elif data[:4] == b"PK\x03\x04":
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                members = [member for member in archive.infolist() if not member.is_dir()]
                if len(members) != 1:
                    raise ValueError(f"{path} holds {len(members)} files, expected one; unpack it.")
                data = archive.read(members[0])
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: truncated or corrupt, {size} bytes ({error}). Copy it again.") from error
    if not data:
        raise ValueError(f"{path} is empty. Copy it again.")
    return data


def decode(path: str | os.PathLike, data: bytes, encoding: str = "utf-8") -> str:
    """Returns the bytes of a file as text, without a byte order mark; `encoding` is as Python names it."""
    try:
        return data.decode(encoding).removeprefix("\ufeff")
    except LookupError as error:
        raise ValueError(f"encoding is {encoding!r}, unknown to Python; try 'latin-1'.") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: expected text in {encoding}, found the byte {data[error.start]:#04x} at offset "
            f"{error.start:,}. Give its encoding, such as 'latin-1' or 'utf-16'."
        ) from error


def read_text(path: str | os.PathLike, encoding: str = "utf-8") -> str:
    """Reads a text, plain or compressed; see `read_bytes` and `decode`."""
    path = files.as_path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{path} is {'a folder' if path.is_dir() else 'not there'}; expected a file.")
    return decode(path, read_bytes(path), encoding)


def find_source(folder: str | os.PathLike, *names: str) -> pathlib.Path:
    """Finds the first of some files in a folder or its subfolders, also compressed (.xz, .gz, .zip)."""
    root = pathlib.Path(folder)
    for place in (root, *sorted(path for path in root.glob("*") if path.is_dir())):
        for name in names:
            for suffix in ("", ".xz", ".gz", ".zip"):
                if (path := place / (name + suffix)).is_file():
                    return path
    raise FileNotFoundError(f"{folder} has no file {' or '.join(names)}.")


# ---- Data prepared by TFDS, read without TensorFlow.


def data_root(data_dir: str | os.PathLike | None) -> pathlib.Path:
    """The folder of prepared data; None is TFDS's own default, ~/tensorflow_datasets."""
    if data_dir is None:
        from tensorflow_datasets.core import constants  # Imported here: TFDS takes a while.

        data_dir = constants.DATA_DIR
    return files.as_path(data_dir).expanduser()


def local_copy(path: str | os.PathLike, below: str = "") -> pathlib.Path:
    """A file or a folder on this machine: the given one, or a copy of what lies in an object store.

    A copy is made once, in $XDG_CACHE_HOME/jaxnas/copies (~/.cache/jaxnas/copies), in a folder named by a
    digest of the address and of the names, sizes and generations of the objects: changed objects are copied
    anew, and a copy is there whole or not at all. Old copies are not removed.

    Args:
      path: on this machine, or gs://bucket/folder.
      below: part of a folder that is needed, as a path in it; "" for all.
    """
    path = files.as_path(path).expanduser()
    if not files.is_remote(path):
        return path
    root = os.fspath(path).removeprefix("gs://").rstrip("/")
    store = importlib.import_module("fsspec").filesystem("gcs")

    def objects() -> dict[str, tuple[int, str]]:
        """Sizes and generations by name; a name that ends with a slash stands for an empty folder."""
        found = store.find(f"{root}/{below}".rstrip("/"), detail=True)
        return {
            name: (about["size"], str(about.get("generation")))
            for name, about in sorted(found.items())
            if about["type"] == "file" and not name.endswith("/")
        }

    there = objects()
    if not there:
        raise FileNotFoundError(f"there is nothing in {path / below if below else path}.")
    digest = files.digest(repr((root, there)).encode())
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "jaxnas" / "copies"
    kept = cache / digest
    if not kept.exists():
        size = sum(size for size, _ in there.values())
        logging.warning("Copying %d objects of %s, %.1f MB, to %s", len(there), path, size / 1e6, kept)
        with files.temporary_folder(kept) as own:
            new = own / "copy"
            to = [str(new / path.name / name.removeprefix(root).lstrip("/")) for name in there]
            for place in to:
                os.makedirs(os.path.dirname(place), exist_ok=True)
            store.get(list(there), to)
            if objects() != there:
                raise OSError(f"{path} was changed while it was copied. Start again.")
            files.commit_folder(new, kept)
    return kept / path.name


def open_prepared(name: str, data_dir: str | os.PathLike | None) -> Any:
    """Returns TFDS's builder of a dataset that is prepared as array_record."""
    # Imported here: TFDS takes a while, and those who bring their own images don't need it.
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import read_only_builder

    root = data_root(data_dir)
    base = name.partition(":")[0].partition("/")[0]
    if files.is_remote(root):
        root = local_copy(root, base)
    with reading(root / base), contextlib.suppress(tfds.core.DatasetNotFoundError):
        # TFDS would look for configs of names that it knows, and `tools.convert_data` makes none.
        own = root / name / "1.0.0"
        if own.is_dir():
            builder = tfds.builder_from_directory(own)
        else:
            builder = read_only_builder.builder_from_files(name, data_dir=root)
        if builder.info.file_format.value == "array_record":
            return builder
    found = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    raise FileNotFoundError(
        f"{name} is not prepared as array_record in {root}{nearest(base, [*found, 'digits'])} `python -m "
        f"tools.convert_data {base} FOLDER`, in a clone, makes it of original files, if it knows it. Or run "
        f"once, where TensorFlow is installed: tfds.builder({name!r}, data_dir={str(root)!r}, "
        "file_format='array_record').download_and_prepare()"
    )


def check_prepared(name: str, info: Any, features: Iterable[str], splits: Iterable[str]) -> None:
    """Raises a ValueError for a prepared data set that lacks some features or splits; `info` is TFDS's."""
    for kind, wanted, found in (("feature", features, info.features), ("split", splits, info.splits)):
        if missing := sorted(set(wanted) - set(found)):
            raise ValueError(
                f"{name} has no {kind} {' and '.join(map(repr, missing))}, only {', '.join(sorted(found))}."
            )


@contextlib.contextmanager
def reading(folder: str | os.PathLike) -> Iterator[None]:
    """Converts errors while reading prepared data to an OSError that names the folder and the remedy."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # TFDS, protobuf, JSON and array_record raise several kinds for damaged files.
        raise OSError(
            f"The data prepared in {folder} cannot be read ({type(error).__name__}: {error}). Delete this "
            "folder, and prepare or copy the data again."
        ) from error


def examples(builder: Any, split: str, **options: Any) -> Iterator[dict[str, Any]]:
    """All examples of a part of a data set in their order; `options` are those of `as_data_source`."""
    with reading(builder.data_path):
        source = builder.as_data_source(split=split, **options)
        for start in range(0, len(source), _CHUNK):
            yield from source.__getitems__(list(range(start, min(start + _CHUNK, len(source)))))


def class_names(info: Any, labels: Iterable[np.ndarray]) -> tuple[str, ...]:
    """Names of the classes of a prepared data set; where it has none, the numbers of these labels."""
    feature = info.features["label"]
    if (names := getattr(feature, "names", None)) is not None:
        return tuple(names)
    count = getattr(feature, "num_classes", None) or 1 + max(int(array.max()) for array in labels)
    return tuple(map(str, range(count)))

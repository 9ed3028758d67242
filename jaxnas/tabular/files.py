"""Where the tables' files are, and whether they hold what they should."""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Mapping

import numpy as np

from jaxnas.files import as_path, read_arrays

VARIABLE = "JAXNAS_DATA"


@dataclasses.dataclass(frozen=True)
class File:
    """A file of arrays (npz).

    Attributes:
      path: below the data directory; the file is also found right in that directory.
      digests: the `digest` of its arrays, for each of its known versions.
      origin: where to get it; the end of a message.
    """

    path: str
    digests: tuple[str, ...]
    origin: str


def data_directory(given: str | os.PathLike | None = None) -> pathlib.Path:
    """The directory given, else that of the variable JAXNAS_DATA, else ~/.cache/jaxnas."""
    return as_path(given or os.environ.get(VARIABLE) or "~/.cache/jaxnas").expanduser()


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """The SHA-256 of named arrays: of their names in order, dtypes, shapes and bytes.

    How a file is compressed does not change it.
    """
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype.str} {list(array.shape)}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def read(file: File, data_dir: str | os.PathLike | None = None) -> dict[str, np.ndarray]:
    """Reads the arrays of a file and checks them.

    Raises:
      FileNotFoundError: it is not there; the message says where it was looked for and where to get
        it.
      ValueError: it is corrupt or another version; the message says what was expected and found.
    """
    folder = data_directory(data_dir)
    places = [folder / file.path, folder / pathlib.Path(file.path).name]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        by = (
            "data_dir"
            if data_dir
            else f"the environment variable {VARIABLE}"
            if os.environ.get(VARIABLE)
            else f"default; data_dir or the environment variable {VARIABLE} names another"
        )
        raise FileNotFoundError(
            f"{file.path} was not found: neither {places[0]} nor {places[1]} "
            f"is a file (that directory is given by {by}). {file.origin}"
        )
    expected = f"arrays with the SHA-256 {' or '.join(file.digests)}"
    try:
        arrays = read_arrays(path)
    except ValueError as error:
        raise ValueError(
            f"{path}: expected an npz file of {expected}; found {len(path.read_bytes()):,} bytes that "
            f"are not one ({error.__cause__}). Copy it again. {file.origin}"
        ) from error
    found = digest(arrays)
    if found not in file.digests:
        raise ValueError(
            f"{path}: expected {expected}; found {len(arrays)} arrays with {found} in "
            f"{len(path.read_bytes()):,} bytes. It is corrupt, or another version. {file.origin}"
        )
    return arrays

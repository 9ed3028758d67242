"""Files of tables: where they are, and digests of arrays."""

import hashlib
import os
import pathlib
from collections.abc import Mapping

import numpy as np

from jaxnas.files import as_path, read_arrays

VARIABLE = "JAXNAS_DATA"


def data_directory(given: str | os.PathLike | None = None) -> pathlib.Path:
    """The directory given, else that of the variable JAXNAS_DATA, else ~/.cache/jaxnas."""
    return as_path(given or os.environ.get(VARIABLE) or "~/.cache/jaxnas").expanduser()


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """The SHA-256 of named arrays: of their names in order, dtypes, shapes and bytes."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype.str} {list(array.shape)}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def read(path: str, data_dir: str | os.PathLike | None = None) -> dict[str, np.ndarray]:
    """Reads the arrays of a file (npz) below the data directory, or right in it.

    Raises:
      FileNotFoundError: it is not there.
      ValueError: it is damaged.
    """
    folder = data_directory(data_dir)
    places = [folder / path, folder / pathlib.Path(path).name]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise FileNotFoundError(
            f"neither {places[0]} nor {places[1]} is a file; data_dir or ${VARIABLE} names another "
            "directory. `python -m tools.convert_tables`, in a clone, makes those of NAS-Bench-201 and "
            "NAS-Bench-Graph; copy others there."
        )
    return read_arrays(found)

"""Tables by name, and where their files are."""

import functools
import hashlib
import os
import pathlib
from collections.abc import Mapping

import numpy as np

from jaxnas.choice import nearest
from jaxnas.files import as_path, read_arrays
from jaxnas.tabular import nasbench201, nasbench_graph, transformers
from jaxnas.tabular.table import Table

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
    """Reads the arrays of a file (npz) below the data directory, or right in it."""
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


_TABLES = {
    **{
        "nasbench201" + f"_{data}" * (data != "cifar10"): (
            path,
            functools.partial(nasbench201.table, data=data),
        )
        for data, path in nasbench201.PATHS.items()
    },
    **{
        f"nasbench_graph_{data}": (nasbench_graph.PATHS[stem], nasbench_graph.table)
        for stem, sets in nasbench_graph.SETS.items()
        for data in sets
    },
    "hwgpt_s": (transformers.HWGPT, transformers.hwgpt),
    **{name: (path, transformers.lts) for name, path in transformers.LTS.items()},
}


def names() -> list[str]:
    """The names that `load` knows."""
    return list(_TABLES)


def load(name: str, data_dir: str | os.PathLike | None = None) -> Table:
    """Loads a table; `table`, `hwgpt` or `lts` in its module describes its metrics.

    Args:
      name: one of `names()`.
      data_dir: of the files, in the folders `nb201`, `nasbench_graph`, `hwgpt` and `lts_transformer` or
        directly; by default the directory in the environment variable JAXNAS_DATA, else ~/.cache/jaxnas.
        `python -m tools.convert_tables`, in a clone, fills it.
    """
    if name not in _TABLES:
        raise ValueError(
            f"load: {name!r} is not a table{nearest(name, _TABLES)} The names are those of tabular.names()."
        )
    path, make = _TABLES[name]
    return make(name, read(path, data_dir))

"""Tables by name."""

import functools
import os

from jaxnas.choice import nearest
from jaxnas.tabular import files, nasbench201, nasbench_graph, transformers
from jaxnas.tabular.table import Table

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

    Raises:
      ValueError: an unknown name, or a damaged file.
      FileNotFoundError: the table's file is missing.
    """
    if name not in _TABLES:
        raise ValueError(
            f"load: {name!r} is not a table{nearest(name, _TABLES)} The names are those of tabular.names()."
        )
    path, make = _TABLES[name]
    return make(name, files.read(path, data_dir))

"""The tables that come by name."""

import functools
import os

from jaxnas.choice import nearest
from jaxnas.tabular import files, nasbench201, nasbench_graph, transformers
from jaxnas.tabular.table import Table

_MAKERS = {
    **{
        name: (nasbench201.FILES[data], functools.partial(nasbench201.table, name, data=data))
        for name, data in (
            ("nasbench201", "cifar10"),
            ("nasbench201_cifar100", "cifar100"),
            ("nasbench201_imagenet16_120", "imagenet16_120"),
        )
    },
    **{
        f"nasbench_graph_{data}": (
            nasbench_graph.FILES[stem],
            functools.partial(nasbench_graph.table, f"nasbench_graph_{data}"),
        )
        for stem, sets in nasbench_graph.SETS.items()
        for data in sets
    },
    "hwgpt_s": (transformers.HWGPT_FILE, functools.partial(transformers.hwgpt, "hwgpt_s")),
    **{
        name: (file, functools.partial(transformers.lts, name))
        for name, file in transformers.LTS_FILES.items()
    },
}


def names() -> list[str]:
    """The names that `load` knows."""
    return list(_MAKERS)


def load(name: str, data_dir: str | os.PathLike | None = None) -> Table:
    """Loads a table; what its metrics are is said at `table` (`hwgpt`, `lts`) in its module.

    Args:
      name: one of `names()`.
      data_dir: where the files are, in the folders `nb201`, `nasbench_graph`, `hwgpt` and
        `lts_transformer` or directly; by default the directory in the environment variable
        JAXNAS_DATA, else ~/.cache/jaxnas. `python -m tools.convert_tables`, in a clone,
        fills it.

    Raises:
      ValueError: an unknown name, or a corrupt file.
      FileNotFoundError: the table's file is missing; the message says where to get it.
    """
    if name not in _MAKERS:
        raise ValueError(
            f"load: {name!r} is not a table{nearest(name, _MAKERS)} The names are those of tabular.names()."
        )
    file, make = _MAKERS[name]
    return make(files.read(file, data_dir))

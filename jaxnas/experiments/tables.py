"""The tables that `jaxnas compare` knows by name, and those of a user's own."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from jaxnas import tabular
from jaxnas.choice import nearest


def find(
    name: str, data_dir: str | None = None, objectives: Sequence[str] = (), ignore: Sequence[str] = ()
) -> tabular.Table:
    """The table of a benchmark: known by name, in a CSV file, or of module:function.

    Args:
      name: of the table, path of the file, or a function without arguments that returns a table.
      data_dir: where the known tables are.
      objectives: for a CSV file its metrics, each as "accuracy=max" or "error=min".
      ignore: for a CSV file the columns that are neither metrics nor choices.
    """
    if not name.endswith(".csv") and (objectives or ignore):
        raise ValueError(f"--objectives and --ignore are for a CSV file, and --benchmark is {name!r}.")
    if name.endswith(".csv"):
        if not objectives:
            raise ValueError(
                f"--benchmark={name} needs --objectives: the columns that are metrics, such as "
                "--objectives=accuracy=max,error=min. Each other column is then a choice, but for those that "
                "--ignore names."
            )
        return tabular.from_csv(name, objectives=_objectives(objectives), ignore=ignore)
    if ":" in name:
        return _own(name)
    if name not in tabular.names():
        raise ValueError(
            f"--benchmark={name} is not a table{nearest(name, tabular.names())} `jaxnas` "
            "lists all; path/to/my.csv or module:function is one of your own."
        )
    return tabular.load(name, data_dir)


def metrics(table: tabular.Table, search: str | None, report: str | None) -> tuple[str, str]:
    """The metric that strategies see and the one that is reported.

    By default they see validation_accuracy, or the first metric that has an objective, and test_accuracy is
    reported, or what they see. ValueError where no metric has an objective.
    """
    if not table.objectives:
        raise ValueError(
            f"{table.name}: no metric has an objective, so nothing can be searched for. Make the table with "
            f"objectives={{{next(iter(table.metrics))!r}: 'max'}} or 'min'."
        )
    known = table.objectives
    first = "validation_accuracy" if "validation_accuracy" in known else next(iter(known))
    seen = search or first
    return seen, report or ("test_accuracy" if "test_accuracy" in known else seen)


def own_function(flag: str, name: str, expected: str):
    """The object that `module:name` on a command line names; ValueError if it cannot be imported."""
    module, function = name.split(":", 1)
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{flag}: {name!r} could not be imported: {error}. Expected module:function, the module in the "
            f"current directory or on PYTHONPATH, the function {expected}."
        ) from error


def _own(name: str) -> tabular.Table:
    table = own_function("--benchmark", name, "without arguments, returning a table of jaxnas.tabular")
    table = table() if callable(table) else table
    if not isinstance(table, tabular.Table):
        raise ValueError(
            f"--benchmark={name} gave {type(table).__name__}, expected a table: see "
            "jaxnas.tabular.from_arrays and from_csv."
        )
    return table


def _objectives(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        metric, _, objective = text.rpartition("=")
        if not metric or objective not in ("max", "min"):
            raise ValueError(f"--objectives has {text!r}, expected such as accuracy=max or error=min.")
        if metric in found:
            raise ValueError(f"--objectives has {metric!r} twice ({','.join(texts)}); give it once.")
        found[metric] = objective
    return found

"""The calls in Python that make a run again, with every setting that is not a default."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from jaxnas import files, search
from jaxnas.runs.lab import Lab
from jaxnas.runs.methods import METHODS, Search
from jaxnas.training.plain import field_names
from jaxnas.training.settings import SETTINGS, Training

_MODULES = {Training: "training", **dict.fromkeys((Search, *METHODS.values()), "runs")}


def trained_by(workdir: str | os.PathLike) -> dict[str, Any]:
    """The settings of the training that ended in a workdir, as plain values; {} where there was none."""
    path = files.as_path(workdir) / SETTINGS
    return dict(files.read_json(path)) if path.is_file() else {}


def calls(trained: Mapping[str, Any], settings: Search, lab: Lab) -> str:
    """The calls that train a supernet and search it.

    Args:
      trained: see `trained_by`.
      settings: of the search.
      lab: of the search.
    """
    lines = []
    if "training" in trained:
        more = f", seed={trained['seed']}" if trained["seed"] else ""
        recipe = trained["recipe"]
        given = ", ".join(f"{name}={value!r}" for name, value in recipe.items() if name != "type")
        more += f", recipe=training.{recipe['type']}({given})" if recipe["type"] != "Uniform" or given else ""
        of_training = code(Training(**trained["training"]))
        lines.append(f'trained = training.fit(task, net, {of_training}{more}, workdir="DIR")')
    more = f", seed={lab.seed}" if lab.seed else ""
    more += "" if lab.alone is None else f", alone={code(lab.alone)}"
    call = f'runs.search_and_finish(task, net, trained.variables, settings, runs.Lab("DIR"{more}))'
    return "\n".join([*lines, f"settings = {code(settings)}", f"result = {call}"])


def code(value: Any) -> str:
    """The call that makes settings, without what is a default."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return getattr(value, "__qualname__", None) or repr(value)
    defaults = {field.name: field.default for field in dataclasses.fields(value)}
    given = [name for name in field_names(value) if getattr(value, name) is not defaults[name]]
    given = [name for name in given if repr(getattr(value, name)) != repr(defaults[name])]
    parts = [f"{one}={code(getattr(value, one))}" for one in given]
    if isinstance(value, search.Strategy):
        parts.insert(0, "net.space")
    return f"{_MODULES.get(type(value), 'search')}.{type(value).__name__}({', '.join(parts)})"

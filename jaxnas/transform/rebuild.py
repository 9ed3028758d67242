"""An extracted network as a module of the user's own class."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax

from jaxnas.axes.models import model_of, paths
from jaxnas.choice import nearest
from jaxnas.tensors import Path, unflatten
from jaxnas.transform.supernet import Supernet


def rebuilt(
    small: Supernet, variables: dict[str, Any], rebuild: Callable[[Mapping[str, Any]], Any], inputs: Any
) -> tuple[Any, dict[str, Any], Callable[[dict[str, Any], Any], Any]]:
    """Makes a module of the analyzed class from `Supernet.sizes` of an extracted network, with its weights.

    Returns:
      The module, its variables by collection, and its function of variables and inputs.

    Raises:
      ValueError: a module with other variables, or a function.
    """
    sizes = small.sizes()
    try:
        module = rebuild(sizes)
    except KeyError as error:
        if (name := error.args[0]) in sizes or not isinstance(name, str):
            raise
        raise ValueError(
            f"rebuild reads the size {name!r}{nearest(name, sizes)} There are {', '.join(sizes)}."
        ) from error
    if inspect.isfunction(module):
        raise ValueError(
            f"rebuild returned the function {module.__name__}, expected a module of Flax Linen, Flax NNX or "
            "Equinox. A plain function needs no rebuild: it takes the extracted variables as they are."
        )
    groups = small.groups.groups
    skipped = [one.name for one in small.places if one.turn is None and one.name not in groups]
    names = _renamed([(name, bool(sizes[name])) for name in skipped])
    stored = {_rename(path, names): value for path, value in paths(variables)}
    tree = unflatten(stored)
    model = model_of(module, tree if isinstance(module, nn.Module) else None)
    made = model.variables if model.init is None else jax.eval_shape(model.init, jax.random.key(0), inputs)
    expected = dict(paths(made))
    for path in {**expected, **stored}:
        given, wanted = (x[path].shape if path in x else None for x in (stored, expected))
        if given != wanted:
            raise ValueError(
                f"rebuild: {'/'.join(path)} has the shape {wanted} in the module and {given} in the "
                f"extracted network. The sizes are {sizes}; one that the class computes from another needs "
                "an argument of its own."
            )
    key = jax.random.key(0)
    return model.load(tree), tree, lambda variables, inputs: model.call(variables, inputs, key, False)[0]


def _renamed(modules: list[tuple[str, bool]]) -> dict[str, str]:
    """New names of modules that run, where others of the same numbered name do not: Block_2 is Block_1."""
    names, following = {}, dict[str, int]()
    for name, runs in modules:
        if match := re.fullmatch(r"(.*?)(\d+)", name):
            number = following.setdefault(match[1], int(match[2]))
            if runs:
                names[name] = f"{match[1]}{number}"
                following[match[1]] += 1
    return names


def _rename(path: Path, names: Mapping[str, str]) -> Path:
    for old, new in names.items():
        parts = tuple(old.split("/"))
        if path[1 : len(parts) + 1] == parts:
            return (path[0], *new.split("/"), *path[len(parts) + 1 :])
    return path

"""A network of any library as one pure function of its variables and inputs."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from jaxnas.space import Arch, Space

Variables = dict[str, Any]
Updates = dict[str, Any]
_TRAIN = {"train": True, "training": True, "is_training": True, "deterministic": False, "inference": False}
_KEYS = ("key", "rng")
INTERMEDIATES = ("intermediates", "perturbations")


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A network as a pure function.

    Attributes:
      call: `call(variables, inputs, key, train) -> (outputs, updates)`; `updates` are the collections that it
        writes in training, such as batch statistics. Of a module with a space an architecture comes behind.
      variables: by collection, `{"params": ..., ...}`.
      init: from a key and inputs to new variables; None where the network has no initialization of its own,
        and begins with the variables that it has.
      name: of its class or function.
      load: from variables to the module with them; a Linen module, which holds none, as it is.
      root: the outermost named scope that its library sets, which is no module.
      space: of decisions that a Linen module has itself, and takes as its second argument; None of others.
    """

    call: Callable[..., tuple[Any, Updates]]
    variables: Variables
    init: Callable[[jax.Array, Any], Variables] | None
    name: str
    load: Callable[[Variables], Any]
    root: str = ""
    space: Space | None = None


def model_of(model: Any, variables: Any) -> Model:
    """The pure function of a network.

    Args:
      model: a Flax Linen, Flax NNX or Equinox module, or a function of (variables, inputs).
      variables: of a Linen module or a function; None for a module that holds its own.

    Raises:
      TypeError: a model of another kind, or variables that are missing or not expected.
    """
    if isinstance(model, nn.Module):
        return _linen(model, variables)
    if (kind := _library(model[0] if isinstance(model, tuple) and model else model)) is not None:
        from jaxnas.transform import stateful

        if variables is not None:
            raise TypeError(
                f"{type(model).__name__} holds its own variables: call analyze(model, inputs=...)."
            )
        return getattr(stateful, kind)(model)
    if not callable(model):
        raise TypeError(
            "analyze takes a Flax Linen, Flax NNX or Equinox module, or a function of (variables, "
            "inputs); got "
            f"{model!r}."
        )
    return _function(model, variables)


def _library(model: Any) -> str | None:
    """The library of a module that holds its variables, by the classes that it inherits from."""
    packages = {(cls.__module__.split(".")[0], cls.__name__) for cls in type(model).__mro__}
    if ("equinox", "Module") in packages:
        return "equinox"
    return "nnx" if ("flax", "Module") in packages else None


def given(function: Callable[..., Any], key: jax.Array, train: bool, **more: Any) -> dict[str, Any]:
    """The training flag and random key of a function, by the names of its arguments."""
    names = inspect.signature(function).parameters
    found = {name: train == value for name, value in _TRAIN.items()} | dict.fromkeys(_KEYS, key) | more
    return {name: value for name, value in found.items() if name in names}


def arguments(function: Callable[..., Any], inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs as a call takes them: a dict by name, if the names are those of its arguments."""
    names = inspect.signature(function).parameters
    if isinstance(inputs, dict) and all(name in names for name in inputs):
        return (), inputs
    return (inputs,), {}


def _linen(module: nn.Module, variables: Any) -> Model:
    if not isinstance(variables, dict) or "params" not in variables:
        raise TypeError(
            f"The variables of {type(module).__name__} are Flax's collections, {{'params': ...}}, as "
            "module.init "
            "gives them."
        )
    variables = {k: v for k, v in nn.meta.unbox(variables).items() if k not in INTERMEDIATES}

    space = getattr(module, "space", None)
    space = space if isinstance(space, Space) else None

    def call(
        variables: Variables, inputs: Any, key: jax.Array, train: bool, arch: Arch | None = None
    ) -> tuple[Any, Updates]:
        positional, named = _arguments(module, space, inputs, arch)
        options = named | given(module.__call__, key, train)
        if not train:
            return module.apply(variables, *positional, **options), {}
        rngs = {"dropout": key, "params": jax.random.fold_in(key, 0)}
        stored = [name for name in variables if name != "params"]
        outputs, updates = module.apply(variables, *positional, **options, rngs=rngs, mutable=stored)
        return outputs, dict(updates)

    def init(key: jax.Array, inputs: Any) -> Variables:
        positional, named = _arguments(module, space, inputs, None if space is None else space.smallest())
        options = named | given(module.__call__, key, False)
        made = nn.meta.unbox(module.init(key, *positional, **options))
        return {k: v for k, v in made.items() if k not in INTERMEDIATES}

    name = type(module).__name__
    return Model(call, variables, init, name, lambda _: module, module.name or name, space)


def _arguments(
    module: Any, space: Space | None, inputs: Any, arch: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a module, of which one with a space takes an architecture as its second one."""
    return arguments(module.__call__, inputs) if space is None else ((inputs, arch), {})


def _function(function: Callable[..., Any], variables: Any) -> Model:
    name = getattr(function, "__name__", type(function).__name__)
    if variables is None:
        raise TypeError(f"analyze({name}, ...) needs the variables of the function, a pytree of arrays.")
    whole = isinstance(variables, dict) and "params" in variables
    named = dict(variables) if whole else {"params": variables}

    def call(variables: Variables, inputs: Any, key: jax.Array, train: bool) -> tuple[Any, Updates]:
        outputs = function(variables if whole else variables["params"], inputs, **given(function, key, train))
        return outputs, {}

    return Model(call, named, None, name, lambda _: function)

"""A network of any library as one pure function of its variables and inputs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.space import Arch, Space
from jaxnas.tensors import Path, flatten, unflatten

Variables = dict[str, Any]
Updates = dict[str, Any]
_TRAIN = dict.fromkeys(("train", "training", "is_training"), True)
_TRAIN |= dict.fromkeys(("deterministic", "inference", "use_running_average"), False)
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
    first = model[0] if isinstance(model, tuple) and model else model
    packages = {(cls.__module__.split(".")[0], cls.__name__) for cls in type(first).__mro__}
    for package, make in (("equinox", _equinox), ("flax", _nnx)):
        if (package, "Module") in packages:
            if variables is not None:
                raise TypeError(
                    f"{type(model).__name__} holds its own variables: call analyze(model, inputs=...)."
                )
            return make(model)
    if isinstance(model, type) or not callable(model):
        raise TypeError(
            "analyze takes a Flax Linen, Flax NNX or Equinox module, or a function of (variables, inputs); "
            f"got {model!r}."
        )
    return _function(model, variables)


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
            "module.init gives them."
        )
    variables = {k: v for k, v in nn.meta.unbox(variables).items() if k not in INTERMEDIATES}

    space = getattr(module, "space", None)
    space = space if isinstance(space, Space) else None

    def asked(inputs: Any, arch: Any, key: jax.Array, train: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # A module with a space takes an architecture as its second argument.
        positional, named = arguments(module.__call__, inputs) if space is None else ((inputs, arch), {})
        return positional, named | given(module.__call__, key, train)

    def call(
        variables: Variables, inputs: Any, key: jax.Array, train: bool, arch: Arch | None = None
    ) -> tuple[Any, Updates]:
        positional, options = asked(inputs, arch, key, train)
        if not train:
            return module.apply(variables, *positional, **options), {}
        rngs = {"dropout": key, "params": jax.random.fold_in(key, 0)}
        stored = [name for name in variables if name != "params"]
        outputs, updates = module.apply(variables, *positional, **options, rngs=rngs, mutable=stored)
        return outputs, dict(updates)

    def init(key: jax.Array, inputs: Any) -> Variables:
        positional, options = asked(inputs, None if space is None else space.smallest(), key, False)
        made = nn.meta.unbox(module.init(key, *positional, **options))
        return {k: v for k, v in made.items() if k not in INTERMEDIATES}

    name = type(module).__name__
    return Model(call, variables, init, name, lambda _: module, module.name or name, space)


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


_RNGS = "rngs"


def _nnx(module: Any) -> Model:
    """The pure function of a module of Flax NNX, which is not changed.

    The collections are those of Linen: "params", "batch_stats", and others by the type of the variable.
    Arrays that are no `nnx.Variable` are "constants". Keys are no variables: a call makes all streams of its
    own key.
    """
    from flax import nnx

    graph, state = nnx.split(module)
    structure, initial = jax.tree.structure(state), dict(_arrays(state))
    own = {path: x for path, x in initial.items() if path[0] not in (*INTERMEDIATES, _RNGS)}

    def load(variables: Variables, key: jax.Array | None = None) -> Any:
        found = flatten(variables)
        leaves = [
            _stream(x, jax.random.fold_in(key, number))
            if path[0] == _RNGS and key is not None
            else found.get(path, x)
            for number, (path, x) in enumerate(initial.items())
        ]
        made = nnx.merge(graph, jax.tree.unflatten(structure, leaves))
        made.eval()
        return made

    def call(variables: Variables, inputs: Any, key: jax.Array, train: bool) -> tuple[Any, Updates]:
        model, found = load(variables, key), flatten(variables)
        if train:
            model.train()
        positional, named = arguments(type(module).__call__, inputs)
        with _named(model, _nnx_modules):
            options = given(type(module).__call__, key, train, rngs=nnx.Rngs(key))
            outputs = model(*positional, **named, **options)
        now = dict(_arrays(nnx.state(model))) if train else {}
        changed = {path[0] for path in now.keys() & found.keys() if now[path] is not found[path]} - {"params"}
        return outputs, unflatten({path: now[path] for path in found if path[0] in changed})

    return Model(call, unflatten(own), None, type(module).__name__, load)


def _arrays(state: Any) -> Iterator[tuple[Path, Any]]:
    """The arrays of a state of NNX, by collection and path."""
    from flax import nnx

    found, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=lambda x: isinstance(x, nnx.Variable))
    for path, variable in found:
        collection = "constants"
        if isinstance(variable, nnx.RngState):
            collection = _RNGS
        elif isinstance(variable, nnx.Variable):
            known = next((kind for kind in (nnx.Param, nnx.BatchStat) if isinstance(variable, kind)), None)
            collection = nnx.variable_name_from_type(known or type(variable), allow_register=True)
        for inner, x in paths(variable):
            yield (collection, *(str(part.key) for part in path), *inner[1:]), x


def _stream(old: jax.Array, key: jax.Array) -> jax.Array:
    """Keys, or counts, of a stream of random numbers that begins."""
    if not jax.dtypes.issubdtype(old.dtype, jax.dtypes.prng_key):
        return jnp.zeros_like(old)
    return key if not old.shape else jax.random.split(key, math.prod(old.shape)).reshape(old.shape)


def _nnx_modules(module: Any) -> Iterator[tuple[Path, Any]]:
    from flax import nnx

    return ((tuple(map(str, path)), one) for path, one in nnx.iter_modules(module))


def _equinox(model: Any) -> Model:
    """The pure function of a module of Equinox, called for each example of a batch.

    Floating arrays are the collection "params", other ones "constants", and the values of a state "state".

    Args:
      model: a module of one example, or a module and its `equinox.nn.State`.

    Raises:
      TypeError: a module that needs a state, without it.
    """
    import equinox as eqx

    module, state = model if isinstance(model, tuple) else (model, None)
    name = type(module).__name__
    index = eqx.nn.StateIndex
    indices = [(path, one) for path, one in _nodes(module, index) if isinstance(one, index)]
    if indices and state is None:
        raise TypeError(
            f"{name} has a state: call analyze((module, state), inputs=...) with the two results of "
            "equinox.nn.make_with_state."
        )
    arrays, static = eqx.partition(module, eqx.is_array)
    kinds = {True: "params", False: "constants"}
    own: dict[Path, Any] = {(kinds[eqx.is_inexact_array(x)], *path): x for path, x in paths(arrays)}
    structure, order = jax.tree.structure(arrays), list(own)
    names = {getattr(one, "axis_name", None) for _, one in _equinox_modules(module)} - {None}
    if len(names) > 1:
        raise TypeError(f"The layers of {name} name the batch {sorted(map(str, names))}: expected one name.")

    leaves, form = jax.tree.flatten(state)
    numbers = jax.tree.unflatten(form, range(len(leaves)))  # the place of each value of the state
    stored = {
        ("state", *path, *part): number for path, one in indices for part, number in paths(numbers.get(one))
    }
    own |= {path: leaves[number] for path, number in stored.items()}

    def load(variables: Variables) -> Any:
        found = flatten(variables)
        made = eqx.combine(jax.tree.unflatten(structure, [found[path] for path in order]), static)
        if state is None:
            return made
        values = [found[path] for path in sorted(stored, key=stored.__getitem__)]
        return made, jax.tree.unflatten(form, values)

    def call(variables: Variables, inputs: Any, key: jax.Array, train: bool) -> tuple[Any, Updates]:
        made, *states = (load(variables),) if state is None else load(variables)
        made = eqx.nn.inference_mode(made, value=not train)

        def one(example: Any, key: jax.Array, *states: Any) -> Any:
            positional, named = arguments(type(module).__call__, example)
            options = named | given(type(module).__call__, key, train)
            with _named(made, _equinox_modules):
                return made(*positional, *states, **options)

        keys = jax.random.split(key, jax.tree.leaves(inputs)[0].shape[0])
        if not states:
            return jax.vmap(one, axis_name=next(iter(names), None))(inputs, keys), {}
        batched = jax.vmap(one, (0, 0, None), (0, None), axis_name=next(iter(names), None))
        outputs, now = batched(inputs, keys, *states)
        after = jax.tree.leaves(now)
        return outputs, unflatten({path: after[number] for path, number in stored.items()}) if train else {}

    return Model(call, unflatten(own), None, name, load)


def _nodes(tree: Any, kind: type) -> list[tuple[Path, Any]]:
    """The leaves of a pytree, of which those below it of a class are some, with their paths."""
    found, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda x: x is not tree and isinstance(x, kind)
    )
    return [(tuple(map(text, path)), x) for path, x in found]


def _equinox_modules(module: Any) -> Iterator[tuple[Path, Any]]:
    """A module and those below it, with their paths."""
    import equinox as eqx

    yield (), module
    for outer, one in _nodes(module, eqx.Module):
        if isinstance(one, eqx.Module):
            yield from ((outer + inner, below) for inner, below in _equinox_modules(one))


@contextlib.contextmanager
def _named(model: Any, modules: Callable[[Any], Iterable[tuple[Path, Any]]]) -> Iterator[None]:
    """Calls of the modules of a model run in named scopes that are their paths, while it lasts.

    A transformation of the library, as a checkpoint or a scan, makes its modules anew. Such a module is known
    where it is the only one of its class in the module that is called.
    """
    known: dict[int, tuple[Path, Any]] = {}  # with the modules, which must live as long as their ids
    around: list[Path] = [()]
    every = list(modules(model))

    def learn(prefix: Path, module: Any) -> None:
        for path, one in modules(module):
            known.setdefault(id(one), ((*prefix, *path), one))

    def path_of(module: Any) -> Path | None:
        if id(module) not in known:
            here = around[-1]
            same = [p for p, one in every if type(one) is type(module) and p[: len(here)] == here]
            if len(same) != 1:
                return None
            learn(same[0], module)
        return known[id(module)][0]

    def wrapped(function: Any) -> Any:
        @functools.wraps(function)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            bound = function.__get__(self, type(self))
            if (path := path_of(self)) is None:
                return bound(*args, **kwargs)
            here = around[-1]
            around.append(path)
            try:
                with contextlib.ExitStack() as scopes:
                    for part in path[len(here) :] if path[: len(here)] == here else path:
                        scopes.enter_context(jax.named_scope(part))
                    return bound(*args, **kwargs)
            finally:
                around.pop()

        return call

    learn((), model)
    classes = {
        cls: None
        for _, one in every
        for cls in type(one).__mro__
        if hasattr(vars(cls).get("__call__"), "__get__")
    }
    before = {cls: vars(cls)["__call__"] for cls in classes}
    try:
        for cls, function in before.items():
            type.__setattr__(cls, "__call__", wrapped(function))
        yield
    finally:
        for cls, function in before.items():
            type.__setattr__(cls, "__call__", function)


def paths(variables: Any) -> list[tuple[Path, Any]]:
    """The arrays of a pytree with their paths, as strings."""
    found, _ = jax.tree_util.tree_flatten_with_path(variables)
    return [(tuple(text(part) for part in path), x) for path, x in found]


def text(part: Any) -> str:
    """A part of a path."""
    for name in ("key", "name", "idx"):
        if hasattr(part, name):
            return str(getattr(part, name))
    return str(part)

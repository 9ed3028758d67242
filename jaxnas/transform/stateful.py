"""Modules of Flax NNX and Equinox, which hold their variables, as pure functions.

Unlike Linen's, their calls set no named scopes, by which operations are known to be of a module. While such a
network is traced, `_named` runs the calls of its modules in scopes that are their paths.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from jaxnas.tensors import Path, flatten, unflatten
from jaxnas.transform.groups import paths, text
from jaxnas.transform.models import INTERMEDIATES, Model, Updates, Variables, arguments, given

_RNGS = "rngs"


def nnx(module: Any) -> Model:
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
        return nnx.merge(graph, jax.tree.unflatten(structure, leaves))

    def call(variables: Variables, inputs: Any, key: jax.Array, train: bool) -> tuple[Any, Updates]:
        model, found = load(variables, key), flatten(variables)
        model.train() if train else model.eval()
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


def equinox(model: Any) -> Model:
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
    indices = [
        (path, one) for path, one in _nodes(module, eqx.nn.StateIndex) if isinstance(one, eqx.nn.StateIndex)
    ]
    if indices and state is None:
        raise TypeError(
            f"{name} has a state: call analyze((module, state), inputs=...) with the two results of "
            "equinox.nn.make_with_state."
        )
    arrays, static = eqx.partition(module, eqx.is_array)
    own: dict[Path, Any] = {
        ("params" if eqx.is_inexact_array(x) else "constants", *path): x for path, x in paths(arrays)
    }
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
        made, *states = load(variables) if state is not None else (load(variables),)
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

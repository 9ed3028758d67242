"""The contract of a network, checked in one place.

A network is a Flax module with a field `space`, called as `net.apply(variables, inputs, arch, train=...)`
with one pytree of inputs, batch in front. It returns its predictions, or a tuple whose first element they
are. Everything else that `jaxnas.init`, `cost`, `extract` and their like need is found out by tracing.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.annotations import Annotations, annotations
from jaxnas.axes.models import paths
from jaxnas.choice import element_name, nearest
from jaxnas.elastic.width import Table
from jaxnas.inputs import one_example
from jaxnas.space import Space
from jaxnas.tensors import check_tensors, flatten, unflatten, without_sown

Variables = dict[str, Any]

# What a network may compute in; a whole number loses what lies between.
DTYPES = ("float32", "bfloat16", "float16", "float64")


def predictions(outputs: Any) -> Any:
    """The predictions of a network, without the state of a recurrent one."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def check_contract(net: Any) -> None:
    """Checks that a network has a space, takes an architecture and `train`, and computes in floating point.

    Raises:
      TypeError: it is no Flax module, its call takes others, or its `dtype` or `param_dtype` is none.
    """
    name = type(net).__name__
    for field in ("dtype", "param_dtype"):
        if (dtype := getattr(net, field, None)) is not None:  # Flax takes None for that of the inputs
            _check_dtype(name, field, dtype)
    if all(hasattr(net, part) for part in ("space", "init", "apply", "clone", "annotations")):
        return  # says all by itself, as `jaxnas.supernet` does
    if not isinstance(net, nn.Module):
        saved = " Load it as one: jaxnas.load_subnet(folder, module=net)." if hasattr(net, "exported") else ""
        raise TypeError(
            f"A network is a Flax module (flax.linen.Module) with a field `space`; got a {name}.{saved}"
        )
    if not isinstance(getattr(net, "space", None), Space):
        raise TypeError(
            f"{name} has no search space. Give the module a field `space: jaxnas.Space`, and read its "
            "decisions in __call__ by jaxnas.elastic.Decisions(self.space, arch)."
        )
    if not callable(net):
        raise TypeError(f"{name} has no __call__(self, inputs, arch=None, *, train=False).")
    signature = inspect.signature(net.__call__)
    try:
        for more in ({}, {"train": False}):
            signature.bind(None, None, **more)
    except TypeError as error:
        raise TypeError(
            f"{name}.__call__{signature} cannot be called with inputs, an architecture and `train`: {error}. "
            "Write it as __call__(self, inputs, arch=None, *, train=False), with one pytree of inputs."
        ) from error


def _check_dtype(name: str, field: str, dtype: Any) -> None:
    try:
        given = jnp.dtype(dtype).name
    except TypeError:
        given = str(dtype)
    if given not in DTYPES:
        expected = " or ".join(f"jnp.{one}" for one in DTYPES)
        raise TypeError(f"{name}: {field} is {given!r}, expected {expected}{nearest(given, DTYPES)}")


def annotated(net: nn.Module, inputs: Any) -> Annotations:
    """The annotations of a network that keeps the contract; `jaxnas.testing.check_network` proves them.

    The network is traced by shape once: the next call with the same network and inputs costs nothing. The
    batch size of `inputs` does not matter; see `specification`.

    Raises:
      TypeError: a network that does not keep the contract.
      ValueError: inputs that it cannot take; a decision that changes nothing that could be counted.
    """
    check_contract(net)
    return cached(_annotated, net, one_example(inputs))


def _annotated(net: nn.Module, example: Any) -> Annotations:
    _check_decisions(net, recorded := annotations(net, example))
    return recorded


def variable_shapes(net: nn.Module, inputs: Any) -> Variables:
    """The maximal variables of a network as `jax.ShapeDtypeStruct`; traced once, as `annotated` is."""
    return cached(_variable_shapes, net, one_example(inputs))


def _variable_shapes(net: nn.Module, example: Any) -> Variables:
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.eval_shape(functools.partial(initial, net), key, example)


def initial(net: nn.Module, key: jax.Array, inputs: Any) -> Variables:
    """Maximal variables without boxes; traceable."""
    return nn.meta.unbox(without_sown(net.init(key, inputs, net.space.smallest())))


def check_variables(net: nn.Module, variables: Any, inputs: Any) -> Variables:
    """The variables without boxes, if names and shapes are those of the network's own; else ValueError."""
    variables = collections(variables)
    check_tensors(
        flatten(jax.eval_shape(lambda x: x, variables)),
        flatten(variable_shapes(net, inputs)),
        f"the variables of {type(net).__name__}",
    )
    return variables


def collections(variables: Any) -> Variables:
    """The variables without boxes; ValueError for parameters alone, or no collections."""
    if isinstance(variables, Mapping) and "params" in variables:  # of a function also lists of arrays
        variables = unflatten(dict(paths(nn.meta.unbox(variables))))
    nested = isinstance(variables, dict) and all(isinstance(value, dict) for value in variables.values())
    if not nested or (variables and "params" not in variables):
        got = f"a dict with {sorted(variables)[:8]}" if nested else type(variables).__name__
        raise ValueError(
            f"Variables are Flax's collections, {{'params': {{...}}, ...}}, as jaxnas.init gives them; got "
            f"{got}. Parameters alone are given as {{'params': params}}."
        )
    return {"params": {}, **nn.meta.unbox(variables)}


def cached(function: Callable[..., Any], net: nn.Module, example: Any, *more: Any) -> Any:
    """`function(net, example, *more)`, computed once for each network and specification of one example."""
    leaves, structure = jax.tree.flatten(example)
    key = (function, net, structure, tuple((leaf.shape, jnp.dtype(leaf.dtype)) for leaf in leaves), *more)
    try:
        hash(key)
    except TypeError:  # a field of the user's, such as a list, that cannot be a key
        return function(net, example, *more)
    return _by_key(*key)


@functools.lru_cache(maxsize=256)
def _by_key(function: Any, net: nn.Module, structure: Any, leaves: tuple[Any, ...], *more: Any) -> Any:
    example = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
    return function(net, example, *more)


def _check_decisions(net: nn.Module, recorded: Annotations) -> None:
    tables = [*recorded.macs, *recorded.choices]
    for spec in (*recorded.specs.values(), *recorded.state.values()):
        tables += spec.tables
    counted = {name for table in dict.fromkeys(tables) for name in _that_matter(table)}
    unseen = [
        element_name(name, net.space[name], position or 0)
        for name, position in _elements(net.space)
        if (name, position) not in counted
    ]
    if unseen:
        raise ValueError(
            f"{type(net).__name__}: no parameter, no product and no choice of a Mixture that jaxnas can see "
            f"changes by {', '.join(unseen[:8])}: costs and extracted networks would be wrong. A mask made "
            "by hand is not seen. Use the layers of jaxnas.elastic or a Mixture, declare parameters by "
            "jaxnas.elastic.parameter, say by jaxnas.elastic.record_choice that a decision is read which "
            "changes neither, or take the decision out of the space."
        )


def _that_matter(table: Table) -> list[Any]:
    """The decisions that change an entry of a table."""
    values = table.array()
    return [name for axis, name in enumerate(table.names) if np.any(np.diff(values, axis=axis))]


def _elements(space: Space) -> list[tuple[str, int | None]]:
    """The decisions that are left to an architecture, by name and position."""
    return [
        (name, None if choice.length is None else position)
        for name, choice in space.decisions
        for position in range(math.prod(choice.shape))
        if len(choice.options_at(position)) > 1
        and all(allowed for _, allowed in space.elements[name, position])
    ]

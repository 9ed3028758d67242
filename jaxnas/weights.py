"""Weights of a supernet in another place: in a supernet of another space, or in another order.

Weight entanglement stores the weights of a narrow option as the first ones of a wide option. So a supernet of
a space that has moved can begin with what both have in common, and only the rest begins anew.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from jaxnas import network
from jaxnas.annotations import annotations
from jaxnas.elastic.bank import BankSpec
from jaxnas.elastic.parameter import ParameterSpec
from jaxnas.elastic.width import Table
from jaxnas.network import Variables
from jaxnas.tensors import Path, flatten, unflatten

Spec = ParameterSpec | BankSpec


class Carried(NamedTuple):
    """Variables of a network, some of them from another one.

    Attributes:
      variables: of the new network, by collection, layer by layer.
      carried: how many numbers are from the other network.
      total: how many there are.
      new: the arrays that have none of them, as "params/head/bias".
    """

    variables: Variables
    carried: int
    total: int
    new: tuple[str, ...]


def carry_weights(
    net: nn.Module, variables: Variables, new_net: nn.Module, new_variables: Variables, inputs: Any
) -> Carried:
    """Copies the weights of a supernet into those of a supernet of another space, as far as both store them.

    Arrays of the same name are compared axis by axis. Where the sizes differ, the first entries are copied
    along an axis whose size a decision sets, and the middle ones where its active part is its center, as the
    taps of a convolution. An array that differs along any other axis stays new, since the entries there do
    not mean the same: those of a table of relative positions, or classes. An array with own values for each
    option stays new unless the options are the same.

    Args:
      net: a network with a space.
      variables: its maximal variables, by collection.
      new_net: the network with the other space, otherwise the same.
      new_variables: its initial variables, as `jaxnas.init` gives them, which are left as they are.
      inputs: of both networks; see `jaxnas.init`.

    Returns:
      The variables of the new network, in its dtypes, and how much of them was carried over.

    Raises:
      ValueError: variables that are not those of their network, or of which nothing can be carried over.
    """
    old, old_specs = _described(net, variables, inputs)
    new, new_specs = _described(new_net, new_variables, inputs)
    if not old.keys() & new.keys():
        raise ValueError(
            f"{type(net).__name__} and {type(new_net).__name__} have no array of the same name, so nothing "
            f"can be carried over: the first has {_names(old)}, and the second {_names(new)}."
        )
    options, new_options = (
        {name: (choice.options, choice.per_position) for name, choice in one.space.decisions}
        for one in (net, new_net)
    )
    unchanged = {name for name in options if options[name] == new_options.get(name)}
    result, carried = dict(new), 0
    for path in old.keys() & new.keys():
        places = _overlap(old[path], new[path], old_specs[path], new_specs[path], unchanged)
        if places is not None:
            from_old, to_new = places
            value = np.array(new[path])
            value[to_new] = np.asarray(old[path])[from_old]
            result[path] = jnp.asarray(value)
            carried += value[to_new].size
    if not carried:
        raise ValueError(
            f"All arrays of {type(net).__name__} differ from those of {type(new_net).__name__} along axes "
            "that no decision sets, so nothing can be carried over. Make both for the same task."
        )
    untouched = tuple("/".join(path) for path in new if result[path] is new[path])
    return Carried(unflatten(result), carried, sum(value.size for value in new.values()), untouched)


def channel_sorter(net: nn.Module, inputs: Any) -> Callable[..., tuple[Any, ...]]:
    """A function that orders the hidden channels of each layer by what the next layer makes of them.

    A narrow network has the first channels of a wide one. Sorted, these are those that count most, by the
    sum of the absolute weights that read a channel (Cai et al., Once-for-All, ICLR 2020, section 3.3). The
    largest network stays the same function. Hidden channels are axes with the name "mlp" whose size a
    decision sets. Layers with own values for each option stay as they are.

    Returns:
      `sort(params, *others)`, traceable: the parameters, and other trees like them, such as moments, in
      the same order.
    """
    specs: dict[Path, Any] = annotations(net, inputs).specs
    groups: dict[Table, list[tuple[Path, int]]] = {}
    shared = set()  # layers that are left alone
    for path, spec in specs.items():
        if isinstance(spec, BankSpec):
            continue
        for axis, (table, name) in enumerate(zip(spec.axes, spec.names, strict=True)):
            if name == "mlp" and len(set(table.values)) > 1:
                groups.setdefault(table, []).append((path, axis))
                shared |= set() if spec.option is None else {table}

    def reading(path: Path, axis: int) -> bool:
        return axis < len(specs[path].axes) - 1

    def sort(params: Any, *others: Any) -> tuple[Any, ...]:
        flat, *rest = map(flatten, (params, *others))
        for table, places in groups.items():
            readers = [(path, axis) for path, axis in places if reading(path, axis)]
            if table in shared or not readers:
                continue
            weights = [jnp.abs(jnp.moveaxis(flat[path], axis, 0)) for path, axis in readers]
            importance = sum(jnp.sum(w.reshape(len(w), -1), axis=1) for w in weights)
            order = jnp.argsort(-importance, stable=True)
            for tree in (flat, *rest):
                for path, axis in places:
                    tree[path] = jnp.take(tree[path], order, axis=axis)
        return tuple(unflatten(tree) for tree in (flat, *rest))

    return sort


def _described(net: Any, variables: Variables, inputs: Any) -> tuple[dict[Path, Any], dict[Path, Spec]]:
    """The arrays of a network and what they are made of, by path."""
    network.check_contract(net)
    recorded = annotations(net, inputs)
    stored = flatten(network.check_variables(net, variables, inputs))
    return stored, {("params", *path): spec for path, spec in recorded.specs.items()} | recorded.state


def _overlap(
    old: Any, new: Any, old_spec: Spec, new_spec: Spec, unchanged: set[str]
) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Which entries of the old array go to which of the new one; None where none do.

    `unchanged` are the names of the choices that have the same options in both spaces.
    """
    whole = tuple(slice(size) for size in new.shape)
    if isinstance(old_spec, BankSpec) or isinstance(new_spec, BankSpec):
        same = isinstance(old_spec, BankSpec) and isinstance(new_spec, BankSpec)
        return (whole, whole) if same and old_spec.uses == new_spec.uses and old.shape == new.shape else None
    if old_spec.option is not None or new_spec.option is not None:
        names = {name for name, _ in old_spec.option.names} if old_spec.option is not None else set()
        same = old_spec.option == new_spec.option and names <= unchanged and old.shape == new.shape
        return (whole, whole) if same else None
    if old.ndim != new.ndim:
        return None
    from_old, to_new = [], []
    for axis, (before, after) in enumerate(zip(old.shape, new.shape, strict=True)):
        elastic = any(len(set(spec.axes[axis].values)) > 1 for spec in (old_spec, new_spec))
        centered = axis in new_spec.centered
        inner = [spec.inner_sizes(axis) for spec in (old_spec, new_spec)]
        # Sizes of which one is even and the other odd have no common center.
        if before != after and (not elastic or (centered and (after - before) % 2)):
            return None
        if inner[0] != inner[1] or (before != after and inner[0] is None):
            return None
        size = min(before, after)
        for slices, stored in ((from_old, before), (to_new, after)):
            start = (stored - size) // 2 if centered else 0
            slices.append(slice(start, start + size))
    return tuple(from_old), tuple(to_new)


def _names(arrays: dict[Path, Any]) -> str:
    names = ["/".join(path) for path in sorted(arrays)]
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")

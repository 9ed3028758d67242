"""Networks as Flax NNX modules, and their variables back.

module = jaxnas.nnx.from_linen(found.net, found.variables)
optimizer = nnx.Optimizer(module, optax.adamw(1e-4), wrt=nnx.Param)
"""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx
from flax.linen import meta

from jaxnas.network import Variables
from jaxnas.space import Arch


class Network(nnx.Module):
    """A network of jaxnas that holds its variables: parameters are `nnx.Param`s."""

    def __init__(self, net: Any, variables: Variables) -> None:
        """Holds the arrays of variables, whose other collections become `nnx.BatchStat` or `nnx.Variable`."""
        self.net = net
        self.variables = nnx.data(
            {
                collection: jax.tree.map(_KINDS.get(collection, nnx.Variable), meta.unbox(tree))
                for collection, tree in variables.items()
            }
        )

    def __call__(
        self, inputs: Any, arch: Arch | None = None, *, train: bool = False, key: jax.Array | None = None
    ) -> Any:
        """Predictions as of `net.apply`; in training, collections other than parameters are updated.

        Args:
          inputs: a pytree of arrays, batch in front.
          arch: a hard or soft architecture of the network's space; none for an extracted network.
          train: whether dropout and batch statistics are in training mode.
          key: of dropout.
        """
        variables = to_linen(self)
        rngs = None if key is None else {"dropout": key}
        changing = [name for name in variables if name != "params"] if train else []
        if not changing:
            return self.net.apply(variables, inputs, arch, train=train, rngs=rngs)
        outputs, changed = self.net.apply(variables, inputs, arch, train=train, rngs=rngs, mutable=changing)
        for collection, tree in changed.items():
            if collection in self.variables:
                jax.tree.map(_assign, self.variables[collection], tree, is_leaf=_is_variable)
        return outputs


_KINDS: dict[str, Any] = {"params": nnx.Param, "batch_stats": nnx.BatchStat}


def from_linen(net: Any, variables: Variables) -> Network:
    """The NNX module of a network and its variables.

    Args:
      net: a supernet, an extracted network, or any Flax Linen module with a `space`.
      variables: Flax's collections.

    Returns:
      A module whose outputs and gradients equal those of `net.apply`, called as
      `module(inputs, arch, train=..., key=...)`.
    """
    return Network(net, variables)


def to_linen(module: Network) -> Variables:
    """The variables of a module as Flax's collections, for `net.apply`, `jaxnas.extract` or `save_subnet`."""
    return jax.tree.map(lambda leaf: leaf[...], dict(module.variables), is_leaf=_is_variable)


def _is_variable(leaf: Any) -> bool:
    return isinstance(leaf, nnx.Variable)


def _assign(variable: nnx.Variable[Any], value: jax.Array) -> None:
    variable[...] = value

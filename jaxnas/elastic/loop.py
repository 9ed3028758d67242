"""The loop over layers of equal form: one after another, or compiled once and run in a `lax.scan`.

Unrolled, each layer is compiled by itself: the fastest steps. In a scan the layers' parameters are stacked in
every call, and compile time hardly grows with depth. The function, its gradients and the layout of the
parameters ("block_0", "block_1", ...) are the same.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.elastic.parameter import ANNOTATIONS
from jaxnas.elastic.width import Decision, Table, Width, joint


def run_layer(
    call: Callable[[Any, Any], Any],
    layer: nn.Module,
    x: Any,
    *,
    remat: bool = False,
    gate: Width | None = None,
) -> Any:
    """Runs one layer, by itself or of several that are not of equal form.

    Args:
      call: `call(layer, x)` runs the layer. What it uses beside x is in its closure.
      layer: a module, or the network in whose `compact` method this is called.
      x: what goes from layer to layer, a pytree of arrays.
      remat: whether the backward pass computes the layer again, so that of the layer only x is kept.
      gate: a width of 1, or of 0 where `call` would give x. Then nothing of it runs, if the gate is hard and
        neither parameters are initialized nor collections written.
    """
    run = nn.remat(call) if remat else call
    chosen = None if gate is None or gate.is_fixed else joint(gate)
    if chosen is None or chosen.is_soft or layer.is_initializing() or _writes(layer, "intermediates"):
        return run(layer, x)
    runs = jnp.asarray(chosen.rows)[chosen.index(), 0] > 0
    return nn.cond(runs, run, lambda _, x: x, layer, x)


def _writes(module: nn.Module, *also: str) -> bool:
    """Whether a call of the module writes collections: annotations, its own ones or those named here."""
    own = {*ANNOTATIONS, *module.variables} - {"intermediates"}  # which a scan can capture from outside
    return any(map(module.is_mutable_collection, {*own, *also}))


def run_layers(
    network: nn.Module,
    make: Callable[..., nn.Module],
    call: Callable[[Any, Any, Any], tuple[Any, Any]],
    x: Any,
    inputs: Sequence[Any],
    *,
    scan: bool = False,
    remat: bool = False,
) -> tuple[Any, Any]:
    """Runs layers of equal form, each with its own inputs.

    Example, in the `compact` method of a network with a repeated decision and residual layers:

        def call(layer, x, inputs):
            return x + layer(x, embed, inputs["hidden"]), None

        inputs = [{"hidden": elastic.width(int, decisions["hidden", i])} for i in range(12)]
        x, _ = elastic.run_layers(self, elastic.Mlp, call, x, inputs, scan=self.scan_layers)

    Layers are scanned where they differ in values only, and unrolled otherwise: if their choices have
    different options, while parameters are initialized, and while collections such as annotations and batch
    statistics are written.

    Args:
      network: the module in whose `compact` method this is called; the layers become its parts.
      make: makes the module of one layer, given `name` or `parent`: a module's class, or a
        `functools.partial` of it with its attributes.
      call: `call(layer, x, inputs) -> (x, output)` runs a layer with its inputs.
      x: the carry, a pytree of arrays.
      inputs: for each layer a pytree of arrays, numbers, `Width`s and `Decision`s. In a scan, `call` gets
        them without their position in the space, and arrays in place of numbers.
      scan: whether to scan where that is possible.
      remat: whether the backward pass recomputes each layer from its input: less memory for about a third
        more time. XLA for CPUs may recompute unrolled layers too early to save anything.

    Returns:
      x behind the last layer, and the outputs of all layers, stacked leaf by leaf [layers, ...].
    """
    stacked = None if not scan or _writes(network) or network.is_initializing() else _stack_inputs(inputs)
    if stacked is None:
        outputs = []
        for i, one in enumerate(inputs):
            layer = functools.partial(lambda one, module, x: call(module, x, one), one)
            x, output = run_layer(layer, make(name=f"block_{i}"), x, remat=remat)
            outputs.append(output)
        return x, _stack(outputs)

    names = [f"block_{i}" for i in range(len(inputs))]
    variables = {
        collection: _stack([tree[name] for name in names])
        for collection, tree in nn.meta.unbox(network.variables).items()
        if names[0] in tree
    }
    # The random streams that the network was given, with a key for each layer.
    streams = [name for name in network.scope.rngs if name != "params"] if network.scope else []
    keys = {name: jax.random.split(network.make_rng(name), len(inputs)) for name in streams}

    def body(x: Any, layer: Any) -> Any:
        variables, keys, inputs = layer
        # A new module for each layer, with the parameters of the turn.
        return nn.apply(lambda module, x: call(module, x, inputs), make(parent=None))(variables, x, rngs=keys)

    body = jax.checkpoint(body, prevent_cse=False) if remat else body
    return jax.lax.scan(body, x, (variables, keys, stacked))


def _stack(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(one) for one in leaves]), *trees)


def _stack_inputs(inputs: Sequence[Any]) -> Any:
    """The inputs of all layers as one tree, leaves [layers, ...]; None if they differ in more than values."""
    leaves, structures = zip(
        *(jax.tree.flatten(one, is_leaf=lambda x: isinstance(x, Width)) for one in map(_anywhere, inputs)),
        strict=True,
    )
    if len(set(structures)) > 1:
        return None
    columns = [_alike(column, number) for number, column in enumerate(zip(*leaves, strict=True))]
    layers = [jax.tree.unflatten(structures[0], row) for row in zip(*columns, strict=True)]
    forms = {
        (jax.tree.structure(one), *((jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(one)))
        for one in layers
    }
    return _stack(layers) if len(forms) == 1 else None


def _anywhere(inputs: Any) -> Any:
    """The inputs of a layer without their position in the space."""

    def one(x: Any) -> Any:
        if isinstance(x, Decision):
            return x.replace(name=(x.name[0], None))  # pyrefly: ignore[missing-attribute]
        if not isinstance(x, Width):
            return x
        table = dataclasses.replace(x.table, names=tuple((name, None) for name, _ in x.table.names))
        values = {(name, None): x.values[name, position] for name, position in x.table.names}
        return x.replace(table=table, values=values)  # pyrefly: ignore[missing-attribute]

    return jax.tree.map(one, inputs, is_leaf=lambda x: isinstance(x, Width | Decision))


def _alike(column: Sequence[Any], number: int) -> Sequence[Any]:
    """The same input of all layers; widths with different tables as choices among all of their sizes.

    Gates that the depth decides have a table for each layer. `number` tells their decision from others.
    """
    if not all(isinstance(one, Width) for one in column):
        return column
    if len({one.table for one in column}) == 1 or len({one.maximum for one in column}) > 1:
        return column
    sizes = sorted({size for one in column for size in one.table.values})
    name, table = ("size", number), Table((("size", number),), (len(sizes),), tuple(sizes))
    choices = [joint(one) for one in column]
    to_sizes = [np.array([sizes.index(size) for (size,) in choice.rows], np.int32) for choice in choices]
    soft = any(choice.is_soft for choice in choices)
    values = [
        jnp.zeros(len(sizes)).at[to].add(choice.weights()) if soft else jnp.asarray(to)[choice.index()]
        for to, choice in zip(to_sizes, choices, strict=True)
    ]
    return [Width(table, {name: value}, column[0].axis) for value in values]

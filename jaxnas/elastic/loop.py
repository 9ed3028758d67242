"""The loop over layers of equal form: one after another, or compiled once and run in a `lax.scan`.

Unrolled, each layer is compiled by itself: the fastest steps. In a scan, compile time does not grow with
depth, and each step copies what it reads from, and writes to, the stacked parameters. The function, the
names of the parameters ("block_0", "block_1", ...) and their gradients are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.elastic.parameter import ANNOTATIONS
from jaxnas.elastic.width import Decision, Table, Width, joint

STACKED = "blocks"


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
      gate: a width of 1, or of 0 where the layer is skipped and x goes on as it is. `call` has to give the
        same there; with a gate nothing of it runs, while operations write the zeros that are added to x. It
        is no use while parameters are initialized, while collections are written, and if it is soft.

    Returns:
      What `call` returns.
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
    """Runs layers of equal form, each with inputs of its own.

    Example, in the `compact` method of a network with a repeated decision and residual layers:

        def call(layer, x, inputs):
            return x + layer(x, embed, inputs["hidden"]), None

        inputs = [{"hidden": elastic.width(int, decisions["hidden", i])} for i in range(12)]
        x, _ = elastic.run_layers(self, elastic.Mlp, call, x, inputs, scan=self.scan_layers)

    A scan is possible where the layers differ in values only. Otherwise they are unrolled all the same: if
    their choices have different options, while parameters are initialized, and while collections are written,
    as annotations and batch statistics are.

    Args:
      network: the module in whose `compact` method this is called; the layers become its parts.
      make: makes the module of one layer, given `name` or `parent`: a module's class, or a
        `functools.partial` of it with its attributes.
      call: `call(layer, x, inputs) -> (x, output)` runs a layer, with the inputs of its own.
      x: what goes from layer to layer, a pytree of arrays.
      inputs: for each layer a pytree of arrays, numbers, `Width`s and `Decision`s. In a scan, `call` gets
        them without their position in the space, and arrays in place of numbers.
      scan: whether to scan where that is possible.
      remat: whether the backward pass computes each layer again, so that of each layer only its input is
        kept: less memory for about a third more time. In a scan that is certain; of unrolled layers XLA may
        do it too early to save anything, as for CPUs.

    Returns:
      x behind the last layer, and the outputs of all layers, stacked leaf by leaf [layers, ...].

    Raises:
      ValueError: stacked parameters, where the layers have to be unrolled.
    """
    stacked = None if not scan or _writes(network) or network.is_initializing() else _stack_inputs(inputs)
    if stacked is None:
        if STACKED in network.variables.get("params", {}):
            raise ValueError(
                "These parameters are stacked by layer, and the layers run one after another: no scan was "
                "asked for, the space has one architecture, the layers differ in their options, or a "
                "collection is written. Give jaxnas.elastic.unstack_layers(params)."
            )
        outputs = []
        for i, one in enumerate(inputs):
            layer = functools.partial(lambda one, module, x: call(module, x, one), one)
            x, output = run_layer(layer, make(name=f"block_{i}"), x, remat=remat)
            outputs.append(output)
        return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)

    variables = {
        name: stack_layers(tree)[STACKED]
        for name, tree in nn.meta.unbox(network.variables).items()
        if STACKED in tree or "block_0" in tree
    }
    # The random streams that the network was given, with a key for each layer.
    streams = [name for name in network.scope.rngs if name != "params"] if network.scope else []
    keys = {name: jax.random.split(network.make_rng(name), len(inputs)) for name in streams}
    values, restore = stacked

    def body(x: Any, layer: Any) -> Any:
        variables, keys, values = layer
        # A module of its own for each layer, whose parameters are those of the turn.
        return nn.apply(lambda module, x: call(module, x, restore(values)), make(parent=None))(
            variables, x, rngs=keys
        )

    body = jax.checkpoint(body, prevent_cse=False) if remat else body
    return jax.lax.scan(body, x, (variables, keys, values))


def _stack_inputs(inputs: Sequence[Any]) -> tuple[Any, Callable[[Any], Any]] | None:
    """Arrays with the inputs of all layers, and what makes one layer's inputs of its part of them.

    None if the layers differ in more than values.
    """

    def is_leaf(x: Any) -> bool:
        return isinstance(x, Width | Decision)

    leaves, structures = zip(*(jax.tree.flatten(one, is_leaf=is_leaf) for one in inputs), strict=True)
    if len(set(structures)) > 1:
        return None
    values, makers = [], []
    for column in zip(*leaves, strict=True):
        if (stacked := _stack_leaves(column)) is None:
            return None
        values.append(stacked[0])
        makers.append(stacked[1])

    def restore(values: Any) -> Any:
        made = [make(value) for make, value in zip(makers, values, strict=True)]
        return jax.tree.unflatten(structures[0], made)

    return values, restore


def _stack_leaves(leaves: Sequence[Any]) -> tuple[Any, Callable[[Any], Any]] | None:
    first = leaves[0]
    if isinstance(first, Decision):
        if len({(one.name[0], one.options) for one in leaves}) > 1:
            return None
        name, options = (first.name[0], None), first.options
        return jnp.stack([one.value for one in leaves]), lambda value: Decision(name, options, value)
    if isinstance(first, Width):
        return _stack_widths(leaves)
    if len({(jnp.shape(one), jnp.result_type(one)) for one in leaves}) > 1:
        return None
    return jnp.stack([jnp.asarray(one) for one in leaves]), lambda value: value


def _stack_widths(widths: Sequence[Width]) -> tuple[Any, Callable[[Any], Any]] | None:
    """Widths with one table over the same choices, at positions of their own; or with different tables."""
    first, axis = widths[0], widths[0].axis
    names = tuple((name, None) for name, _ in first.table.names)
    tables = {
        Table(tuple((name, None) for name, _ in w.table.names), w.table.counts, w.table.values)
        for w in widths
    }
    if len(tables) == 1:
        (table,) = tables
        values = [
            jnp.stack([w.values[name] for w, name in zip(widths, column, strict=True)])
            for column in zip(*(w.table.names for w in widths), strict=True)
        ]
        return values, lambda values: Width(table, dict(zip(names, values, strict=True)), axis)
    if len({w.maximum for w in widths}) > 1:
        return None
    # Each layer has a table of its own, as those of gates that the depth decides. What all layers have in
    # common is then the list of sizes, and a layer's value is its place in that list.
    sizes = sorted({size for w in widths for size in w.table.values})
    table = Table((("size", None),), (len(sizes),), tuple(sizes))
    choices = [joint(w) for w in widths]
    to_sizes = [[sizes.index(row[0]) for row in choice.rows] for choice in choices]
    if any(choice.is_soft for choice in choices):
        every = [
            jnp.zeros(len(sizes)).at[jnp.asarray(to)].add(choice.weights())
            for choice, to in zip(choices, to_sizes, strict=True)
        ]
    else:
        every = [
            jnp.asarray(to, jnp.int32)[choice.index()] for choice, to in zip(choices, to_sizes, strict=True)
        ]
    return jnp.stack(every), lambda value: Width(table, {("size", None): value}, axis)


def stack_layers(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters with the layers' leaves stacked, as a supernet that scans its layers reads them directly.

    Args:
      params: of a network that uses `run_layers`, or a tree like it; stacked ones come back as they are.

    Returns:
      The tree with "blocks", leaves [layers, ...], in place of "block_0", "block_1", ...

    Raises:
      ValueError: layers of different sizes.
    """
    if STACKED in params:
        return params
    names = sorted(filter(_is_layer, params), key=lambda name: int(name.removeprefix("block_")))
    layers = [params[name] for name in names]
    for name, layer in zip(names, layers, strict=True):
        if jax.tree.map(jnp.shape, layer) != jax.tree.map(jnp.shape, layers[0]):
            raise ValueError(
                f"{name} and {names[0]} differ in size, so they cannot be stacked: a scan "
                "needs layers with the same options."
            )
    rest = {name: tree for name, tree in params.items() if not _is_layer(name)}
    return rest | {STACKED: jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)}


def unstack_layers(params: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `stack_layers`: parameters layer by layer, as a network reads them that does not scan.

    Args:
      params: with "blocks", leaves [layers, ...]; those that are stored layer by layer come back as they are.

    Returns:
      The tree with "block_0", "block_1", ... in place of "blocks".
    """
    if STACKED not in params:
        return params
    rest, stacked = {k: v for k, v in params.items() if k != STACKED}, params[STACKED]
    count = len(jax.tree.leaves(stacked)[0])
    return rest | {f"block_{i}": jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(count)}


def _is_layer(name: str) -> bool:
    return name.startswith("block_")

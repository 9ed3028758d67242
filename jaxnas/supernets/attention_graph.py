"""The layers of AutoAttend: a graph of additions and attentions with operations on its edges.

AutoAttend (Guan et al., ICML 2021, section 4). Layer l takes its first input from layer l - 1 and the others
from any earlier one. An addition sums two inputs, and an attention takes queries, keys and values from three;
each input passes through an operation of its own. There are no other projections.

Every operation has weights for each pair of layers that it may connect, and for each context: the kind of
the layer that it comes from, and the role that it plays where it goes to (section 4.2.2).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import products
from jaxnas.choice import nearest
from jaxnas.elastic.bank import bank
from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.parameter import ELASTIC_SCOPE, MACS, record_macs
from jaxnas.elastic.width import Decision, Table, width
from jaxnas.space import Space

Context = Literal["none", "source", "target", "full"]
LAYERS = ("addition", "attention")
# Decisions that name an operation, and what is required for one to count: the kind of the layer.
ROLES = {"first": None, "second": "addition", "key": "attention", "value": "attention"}
ZERO = "zero"  # the operation that only the second input of an addition may have


def check_space(space: Any, operations: Sequence[str], network: str) -> None:
    """Checks that a space is one of AutoAttend's.

    Raises:
      TypeError: no space.
      ValueError: other decisions, operations that the network does not have, or a source that is not below.
    """
    if not isinstance(space, Space):
        raise TypeError(f"{network}: space is {space!r}, expected one such as jaxnas.spaces.autoattend(24).")
    attends = "layer" in space and "attention" in space["layer"].options
    names = {"layer", "source", "first"}
    names |= {"second"} if "layer" in space and "addition" in space["layer"].options else set()
    names |= {"key", "value"} if attends else set()
    if not names <= set(space) <= {"layer", "source", *ROLES}:
        raise ValueError(
            f"{network}: the space has the decisions {list(space)}, expected {sorted(names)}, as "
            "jaxnas.spaces.autoattend(24) makes them."
        )
    lengths = {name: choice.length for name, choice in space.choices.items()}
    if len(set(lengths.values())) > 1 or None in lengths.values():
        raise ValueError(
            f"{network}: all decisions are repeated as often as there are layers; got {lengths}."
        )
    for name in ROLES:
        for option in space[name].options if name in space else ():
            if option not in operations:
                raise ValueError(
                    f"{network}: {option!r}, an option of {name!r}, is not one of its operations, which are "
                    f"{tuple(operations)}{nearest(option, operations)}"
                )
            if option == ZERO and name != "second":
                raise ValueError(f"{network}: {ZERO!r} is an option of {name!r}, only 'second' may have it.")
    for layer in range(space["source"].length or 0):
        above = [x for x in space["source"].options_at(layer) if not isinstance(x, int) or not 0 <= x <= layer]
        if above:
            raise ValueError(
                f"{network}: layer {layer} may take its input from {above[0]!r}, which is not below it; its "
                f"sources are 0, the input, to {layer}, the layer before."
            )


def _values(space: Space, name: str, arch: Mapping[str, Any], number: Callable[[Any], int]) -> Any:
    """The option of a repeated decision at each position as a number, int32 [layers]."""
    choice = space[name]
    rows = [[number(option) for option in choice.options_at(i)] for i in range(choice.length or 0)]
    table = np.array([row + row[-1:] * (choice.width - len(row)) for row in rows], np.int32)
    if not jnp.issubdtype(arch[name].dtype, jnp.integer):
        raise ValueError(
            f"AutoAttend takes hard architectures, int32; {name!r} is {arch[name].dtype}. Its sources cannot "
            "be mixed, so search with a strategy rather than by gradients."
        )
    if isinstance(arch[name], np.ndarray):
        return table[np.arange(len(table)), arch[name]]
    return jnp.asarray(table)[jnp.arange(len(table)), arch[name]]


def _layout(space: Space, arch: Mapping[str, Any], operations: Sequence[str]) -> dict[str, Any]:
    """An architecture as numbers, int32 [layers] each: "attends" (0 or 1), "source", and operations."""
    found = {
        "attends": _values(space, "layer", arch, lambda kind: int(kind == "attention")),
        "source": _values(space, "source", arch, int),
    }
    for name in ROLES:
        present = _values(space, name, arch, operations.index) if name in space else 0 * found["source"]
        found[name] = present
    return found


@dataclasses.dataclass(frozen=True)
class OperationUses:
    """Which copies of an operation's weights an architecture uses (section 4.2.2).

    Attributes:
      space: of the network.
      context: what a copy is for beside a pair of layers: nothing more, the kind of the "source", the role
        at the "target", or both.
      operations: all names, in order.
      operation: one of them.
    """

    space: Space
    context: Context
    operations: tuple[str, ...]
    operation: str

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return self.space["layer"].length or 0

    @property
    def _sizes(self) -> tuple[int, int]:
        """The number of kinds of a source, and of roles at a target, that are told apart."""
        return 2 if self.context in ("source", "full") else 1, 4 if self.context in ("target", "full") else 1

    @property
    def copies(self) -> int:
        """How many copies there are: n(n + 1)/2, n², 2n(n + 1) or 4n² of n layers."""
        kinds, roles = self._sizes
        return sum(roles * (1 + layer * kinds) for layer in range(self.layers))

    @functools.cached_property
    def fresh(self) -> tuple[Table, ...]:
        """See `elastic.bank.Uses`: an edge counts if no earlier edge into its layer has the same copy."""
        distinct = self.context in ("target", "full")  # Queries, keys and values share no copy.
        decisions = Decisions(self.space, None, initializing=True)
        own, tables = self.operation, []
        for i in range(self.layers):
            found = {name: decisions[name, i] for name in ("layer", "source", *ROLES) if name in self.space}
            tables.append(width(lambda first: first == own, found["first"]).table)

            def count(new: Callable[..., bool], *names: str, found=found) -> Table:  # noqa: ANN001
                return width(new, *(found[name] for name in names)).table

            if "second" in found:
                tables.append(
                    count(
                        lambda kind, source, first, second, i=i: (
                            kind == "addition" and second == own and not (first == own and source == i)
                        ),
                        *("layer", "source", "first", "second"),
                    )
                )
            if "key" in found and distinct:
                for name in ("key", "value"):
                    tables.append(count(lambda kind, own_: kind == "attention" and own_ == own, "layer", name))
            elif "key" in found:
                tables.append(
                    count(
                        lambda kind, source, first, key, i=i: (
                            kind == "attention" and key == own and not (first == own and source == i)
                        ),
                        *("layer", "source", "first", "key"),
                    )
                )
                tables.append(
                    count(
                        lambda kind, source, first, key, value, i=i: (
                            kind == "attention"
                            and value == own
                            and key != own
                            and not (first == own and source == i)
                        ),
                        *("layer", "source", "first", "key", "value"),
                    )
                )
        return tuple(tables)

    def __call__(self, arch: dict[str, Any]) -> tuple[Any, Any]:
        """The copy that each edge takes, int32 [3 layers], and whether it is in use, bool [3 layers]."""
        x = _layout(self.space, arch, self.operations)
        kinds, roles = self._sizes
        layers = np.arange(self.layers)
        start = roles * (layers + kinds * (layers * (layers - 1) // 2))  # of each layer's copies
        source = jnp.stack([jnp.asarray(layers), x["source"], x["source"]], axis=1)  # [layers, 3]
        kind = jnp.concatenate([jnp.zeros(1, jnp.int32), x["attends"]])[source]  # the input has none
        attends = jnp.asarray(x["attends"])
        role = jnp.stack([attends, 2 * attends, 3 * attends], axis=1)
        below = jnp.where(source > 0, 1 + (source - 1) * kinds + (kind if kinds > 1 else 0), 0)
        index = jnp.asarray(start)[:, None] + roles * below + (role if roles > 1 else 0)
        second = jnp.where(attends > 0, x["key"], x["second"])
        chosen = jnp.stack([x["first"], second, x["value"]], axis=1)
        there = jnp.stack([attends >= 0, attends >= 0, attends > 0], axis=1)
        used = there & (chosen == self.operations.index(self.operation))
        return index.astype(jnp.int32).reshape(-1), used.reshape(-1)


@dataclasses.dataclass(frozen=True)
class NormUses:
    """Each layer has a normalisation of its own, which an attention uses; see `elastic.bank.Uses`."""

    space: Space

    @property
    def copies(self) -> int:
        """One for each layer."""
        return self.space["layer"].length or 0

    @property
    def fresh(self) -> tuple[Table, ...]:
        """1 where the layer is an attention."""
        decisions = Decisions(self.space, None, initializing=True)
        return tuple(
            width(lambda kind: kind == "attention", decisions["layer", i]).table for i in range(self.copies)
        )

    def __call__(self, arch: dict[str, Any]) -> tuple[Any, Any]:
        """Its own for each layer, int32 [layers], and whether it is an attention, bool [layers]."""
        attends = _values(self.space, "layer", arch, lambda kind: int(kind == "attention"))
        return jnp.arange(self.copies), jnp.asarray(attends) > 0


def run_graph(
    network: Any,
    operations: Mapping[str, nn.Module],
    attend: Callable[..., jax.Array],
    x: jax.Array,
    inputs: tuple[Any, ...],
    decisions: Decisions,
    *,
    context: Context,
    dropout: float,
    attention_macs: int,
    train: bool,
) -> jax.Array:
    """Runs all layers, and returns the output of the last one.

    Args:
      network: the module with a `space` in whose `compact` method this is called.
      operations: modules by name, made with `parent=None`, called as `operation(x, *inputs, train=train)`;
        they return an array of the shape of x, and have parameters and dropout only.
      attend: `attend(query, key, value, *inputs, keep)` gives an array of the shape of x. `keep` is a function
        that applies dropout to attention weights.
      x: of layer 0, [..., D].
      inputs: what operations and attention get beside x.
      decisions: of the network.
      context: which copies of an operation's weights are told apart; see `OperationUses`.
      dropout: of the results of layers and of attention weights.
      attention_macs: multiply-accumulates of `attend` on one example.
      train: whether dropout is on.

    Returns:
      Of the shape of x.

    Raises:
      ValueError: a soft architecture, or a `context` that there is not.
    """
    if context not in get_args(Context):
        raise ValueError(f"context is {context!r}, expected one of {get_args(Context)}.")
    space, names = network.space, tuple(operations)
    arch = decisions.arch
    layout = _layout(space, arch, names)
    layers, single = len(layout["source"]), space.cardinality == 1
    picked = {}
    for name, operation in operations.items():
        uses = OperationUses(space, context, names, name)
        copies = bank(network, name, lambda key, op=operation: _init(op, key, x, inputs), uses, arch)
        picked[name] = jax.tree.map(lambda leaf: leaf.reshape(layers, 3, *leaf.shape[1:]), copies)
    norm = nn.LayerNorm(parent=None)
    norms = bank(network, "norm", lambda key: _init(norm, key, x, ()), NormUses(space), arch)
    if network.is_mutable_collection(MACS) and not network.is_initializing():
        _record_macs(network, operations, x, inputs, decisions, attention_macs)
    keys = None
    if train and network.has_rng("dropout"):
        keys = jax.random.split(network.make_rng("dropout"), (layers, 6))

    def operate(options: Sequence[str], chosen: Any, place: int, x: jax.Array, weights: Any, keys: Any) -> Any:
        def branch(name: str) -> Callable[[jax.Array], jax.Array]:
            parameters = jax.tree.map(lambda leaf: leaf[place], weights[name])
            rngs = None if keys is None else {"dropout": keys[place]}
            return lambda x: operations[name].apply(
                {"params": parameters or {}}, x, *inputs, train=train, rngs=rngs
            )

        if isinstance(chosen, int):
            return branch(names[chosen])(x)
        index = np.zeros(len(names), np.int32)
        index[[names.index(name) for name in options]] = np.arange(len(options))
        return jax.lax.switch(jnp.asarray(index)[chosen], [branch(name) for name in options], x)

    def drop(x: jax.Array, place: int, keys: Any) -> jax.Array:
        if keys is None or dropout == 0:
            return x
        keep = jax.random.bernoulli(keys[place], 1 - dropout, x.shape)
        return jnp.where(keep, x / (1 - dropout), jnp.zeros_like(x))

    def layer(first: jax.Array, other: jax.Array, layout: Any, weights: Any, norm_: Any, keys: Any) -> Any:
        first = operate(space["first"].options, layout["first"], 0, first, weights, keys)

        def addition() -> jax.Array:
            other_ = operate(space["second"].options, layout["second"], 1, other, weights, keys)
            return drop(first + other_, 3, keys)

        def attention() -> jax.Array:
            key, value = (
                operate(space[name].options, layout[name], place, other, weights, keys)
                for place, name in ((1, "key"), (2, "value"))
            )
            y = attend(first, key, value, *inputs, lambda weights: drop(weights, 4, keys))
            return norm.apply({"params": norm_}, drop(y, 5, keys))

        branches = [branch for kind, branch in zip(LAYERS, (addition, attention), strict=True)]
        there = [kind in space["layer"].options for kind in LAYERS]
        if isinstance(layout["attends"], int):
            return branches[layout["attends"]]()
        if not all(there):
            return branches[there.index(True)]()
        return jax.lax.switch(layout["attends"], branches)

    with jax.named_scope(ELASTIC_SCOPE):
        if single:
            outputs = [x]
            for i in range(layers):
                numbers = {name: int(column[i]) for name, column in layout.items()}
                weights, norm_, of_layer = jax.tree.map(lambda leaf, i=i: leaf[i], (picked, norms, keys))
                outputs.append(
                    layer(outputs[i], outputs[numbers["source"]], numbers, weights, norm_, of_layer)
                )
            return outputs[-1]

        # The backward pass runs a layer again: a switch would keep what each of its branches computed.
        again = jax.checkpoint(layer, prevent_cse=False)

        def body(outputs: jax.Array, turn: Any) -> tuple[jax.Array, None]:
            i, layout, weights, norm_, keys = turn
            first, other = (
                jax.lax.dynamic_index_in_dim(outputs, at, keepdims=False) for at in (i, layout["source"])
            )
            y = again(first, other, layout, weights, norm_, keys)
            return jax.lax.dynamic_update_index_in_dim(outputs, y, i + 1, 0), None

        outputs = jnp.zeros((layers + 1, *x.shape), x.dtype).at[0].set(x)
        turns = (jnp.arange(layers), layout, picked, norms, keys)
        outputs, _ = jax.lax.scan(body, outputs, turns)
        return outputs[-1]


def _init(module: nn.Module, key: jax.Array, x: jax.Array, inputs: tuple[Any, ...]) -> Any:
    """The initial parameters of one copy, without a run of the module."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (x, *inputs))
    return module.lazy_init(key, *shapes).get("params", {})


def _record_macs(
    network: nn.Module,
    operations: Mapping[str, nn.Module],
    x: jax.Array,
    inputs: tuple[Any, ...],
    decisions: Decisions,
    attention_macs: int,
) -> None:
    """Says how many products each decision makes; x holds one example."""

    def count(operation: nn.Module) -> int:
        variables = jax.eval_shape(operation.init, jax.random.key(0), x, *inputs)
        program = jax.make_jaxpr(lambda variables, x: operation.apply(variables, x, *inputs))(variables, x)
        return products.total(program.jaxpr).least

    macs = {name: count(operation) for name, operation in operations.items()}

    def of_role(needed: str | None, layer: Decision, chosen: Decision) -> Table:
        return width(
            lambda kind, name: macs[name] if needed in (None, kind) else 0, layer, chosen
        ).table

    space: Space = network.space  # pyrefly: ignore[missing-attribute]
    for i in range(space["layer"].length or 0):
        layer = decisions["layer", i]
        for name, needed in ROLES.items():
            if name in space:
                record_macs(network, of_role(needed, layer, decisions[name, i]))
        record_macs(network, width(lambda kind: attention_macs * (kind == "attention"), layer).table)

"""The layers of AutoAttend: a graph of additions and attentions with operations on its edges.

AutoAttend (Guan et al., ICML 2021, section 4). Layer l takes its first input from layer l - 1 and the others
from any earlier one. An addition sums two inputs, and an attention takes queries, keys and values from three;
each input passes through an operation of its own. There are no other projections.

Every operation has weights for each pair of layers that it may connect, and for each context: the kind of
the layer that it comes from, and the role that it plays where it goes to (section 4.2.2).

`run_graph` has a loop of its own, where other networks use `elastic.run_layers`. The layers of that one are
modules that have their own weights and see only the layer before. Here weights belong to pairs of layers and
are gathered from banks, and a layer reads the output of any earlier one. A network of several architectures
is never unrolled, since each operation would be compiled for each edge of each layer.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
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
Attend = Callable[..., jax.Array]
ZERO = "zero"  # the operation that only the second input of an addition may have


def check_space(space: Any, operations: Sequence[str], network: str, context: str) -> None:
    """Checks that a space is one of AutoAttend's, and that there is such a context of weights.

    Raises:
      TypeError: no space.
      ValueError: other decisions, operations that the network does not have, a source that is not below, or
        a context that there is not.
    """
    if context not in get_args(Context):
        raise ValueError(f"{network}: context is {context!r}, expected one of {get_args(Context)}.")
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
    if wrong := [kind for kind in space["layer"].options if kind not in LAYERS]:
        raise ValueError(f"{network}: {wrong[0]!r} is no kind of layer, only {' and '.join(LAYERS)} are.")
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
        above = [
            x for x in space["source"].options_at(layer) if not isinstance(x, int) or not 0 <= x <= layer
        ]
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


def _numbers(space: Space, arch: Mapping[str, Any], operations: Sequence[str]) -> dict[str, Any]:
    """An architecture as numbers, int32: "attends" (0 or 1) and "source" [layers], and "edges" [layers, 3].

    An edge has the number of its operation. An addition has no third edge: its number there is the count of
    the operations.
    """
    attends = _values(space, "layer", arch, lambda kind: int(kind == "attention"))
    found = {
        name: _values(space, name, arch, operations.index) if name in space else 0 * attends for name in ROLES
    }
    numpy = np if isinstance(attends, np.ndarray) else jnp
    second = numpy.where(attends > 0, found["key"], found["second"])
    third = numpy.where(attends > 0, found["value"], len(operations))
    return {
        "attends": attends,
        "source": _values(space, "source", arch, int),
        "edges": numpy.stack([found["first"], second, third], axis=1),
    }


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
    def distinct(self) -> tuple[Table, ...]:
        """See `elastic.bank.Uses`: an edge counts if no earlier edge into its layer has the same copy."""
        decisions, tables = Decisions(self.space, None, initializing=True), []
        for i, role in itertools.product(range(self.layers), ROLES):
            if role in self.space:
                names = self._deciding(role)
                count = functools.partial(self._counts, i, role, names)
                tables.append(width(count, *(decisions[name, i] for name in names)).table)
        return tuple(tables)

    @property
    def _apart(self) -> bool:
        """Whether queries, keys and values have copies of their own."""
        return self.context in ("target", "full")

    def _deciding(self, role: str) -> tuple[str, ...]:
        """The decisions of a layer that say whether the edge of a role needs one more copy."""
        if role == "first" or (self._apart and role != "second"):
            return "layer", role
        earlier = ("first", "key") if role == "value" else ("first",)
        return "layer", "source", *earlier, role

    def _counts(self, i: int, role: str, names: Sequence[str], *options: Any) -> bool:
        """Whether the edge of a role into layer i + 1 needs one more copy."""
        x = dict(zip(names, options, strict=True))
        if x[role] != self.operation or ROLES[role] not in (None, x["layer"]):
            return False
        as_first = x.get("source") == i and x.get("first") == self.operation and role != "first"
        return not as_first and (role != "value" or x.get("key") != self.operation)

    def __call__(self, arch: dict[str, Any]) -> tuple[Any, Any]:
        """The copy that each edge takes, int32 [3 layers], and whether it is in use, bool [3 layers]."""
        x = _numbers(self.space, arch, self.operations)
        kinds, roles = self._sizes
        layers = np.arange(self.layers)
        start = roles * (layers + kinds * (layers * (layers - 1) // 2))  # of each layer's copies
        source = jnp.stack([jnp.asarray(layers), x["source"], x["source"]], axis=1)  # [layers, 3]
        kind = jnp.concatenate([jnp.zeros(1, jnp.int32), x["attends"]])[source]  # the input has none
        attends = jnp.asarray(x["attends"])
        role = jnp.stack([attends, 2 * attends, 3 * attends], axis=1)
        below = jnp.where(source > 0, 1 + (source - 1) * kinds + (kind if kinds > 1 else 0), 0)
        index = jnp.asarray(start)[:, None] + roles * below + (role if roles > 1 else 0)
        used = jnp.asarray(x["edges"]) == self.operations.index(self.operation)
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
    def distinct(self) -> tuple[Table, ...]:
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
    attend: Attend,
    x: jax.Array,
    inputs: tuple[Any, ...],
    decisions: Decisions,
    *,
    context: Context,
    dropout: float,
    attention_dropout: float,
    normalise: bool,
    attention_macs: int,
    train: bool,
) -> jax.Array:
    """Runs all layers, and returns the output of the last one.

    With more than one architecture the layers are compiled once and run in a `lax.scan`, which carries the
    outputs of all layers so far. With a single one they are unrolled, each with the operations that it has.

    Args:
      network: the module with a `space` in whose `compact` method this is called.
      operations: modules by name, made with `parent=None`, called as `operation(x, *inputs, train=train)`;
        they return an array of the shape of x, and have parameters and dropout only. Those that the space
        does not have are left out.
      attend: `attend(query, key, value, *inputs, drop)` gives an array of the shape of x. `drop` is a
        function that applies dropout to attention weights.
      x: of layer 0, [..., D].
      inputs: what operations and attention get beside x.
      decisions: of the network.
      context: which copies of an operation's weights are told apart; see `OperationUses`.
      dropout: of the results of layers.
      attention_dropout: of attention weights.
      normalise: whether an attention ends with a layer normalisation.
      attention_macs: multiply-accumulates of `attend` on one example.
      train: whether dropout is on.

    Returns:
      Of the shape of x.

    Raises:
      ValueError: a soft architecture.
    """
    space, arch = network.space, decisions.arch
    options = {option for role in ROLES if role in space for option in space[role].options}
    operations = {name: module for name, module in operations.items() if name in options}
    names = tuple(operations)
    numbers = _numbers(space, arch, names)
    count, single = len(numbers["source"]), space.cardinality == 1
    weights = {}
    for name, operation in operations.items():
        uses = OperationUses(space, context, names, name)
        copies = bank(network, name, lambda key, op=operation: _init(op, key, x, inputs), uses, arch)
        weights[name] = jax.tree.map(lambda leaf: leaf.reshape(count, 3, *leaf.shape[1:]), copies)
    norm, norms = nn.LayerNorm(parent=None) if normalise else None, None
    if norm is not None:
        norms = bank(network, "norm", lambda key: _init(norm, key, x, ()), NormUses(space), arch)
    if network.is_mutable_collection(MACS) and not network.is_initializing():
        _record_macs(network, operations, x, inputs, decisions, attention_macs)
    keys = None
    if train and network.has_rng("dropout"):
        keys = jax.random.split(network.make_rng("dropout"), (count, 6))
    layer = _Layer(operations, attend, norm, dropout, attention_dropout, train)
    turns = numbers, weights, norms, keys
    with jax.named_scope(ELASTIC_SCOPE):  # The products are recorded above.
        if single:
            outputs = [x]
            for i in range(count):
                turn = jax.tree.map(lambda leaf, i=i: leaf[i], turns)
                outputs.append(layer(outputs[i], outputs[turn[0]["source"]], inputs, *turn))
            return outputs[-1]

        # The backward pass runs a layer again: a switch would keep what each of its branches computed.
        again = jax.checkpoint(layer, prevent_cse=False)

        def body(outputs: jax.Array, turn: Any) -> tuple[jax.Array, None]:
            i, turn = turn
            first, other = (
                jax.lax.dynamic_index_in_dim(outputs, at, keepdims=False) for at in (i, turn[0]["source"])
            )
            y = again(first, other, inputs, *turn)
            return jax.lax.dynamic_update_index_in_dim(outputs, y, i + 1, 0), None

        outputs = jnp.zeros((count + 1, *x.shape), x.dtype).at[0].set(x)
        return jax.lax.scan(body, outputs, (jnp.arange(count), turns))[0][-1]


@dataclasses.dataclass(frozen=True, eq=False)
class _Layer:
    """One layer as a function of its two inputs and of numbers that say what it is; see `run_graph`.

    The numbers are integers of NumPy where there is no choice, and nothing is traced that does not run.
    """

    operations: Mapping[str, nn.Module]
    attend: Attend
    norm: nn.Module | None
    dropout: float
    attention_dropout: float
    train: bool

    def __call__(
        self,
        first: jax.Array,
        other: jax.Array,
        inputs: tuple[Any, ...],
        numbers: Mapping[str, Any],
        weights: Mapping[str, Any],
        norm: Any,
        keys: Any,
    ) -> jax.Array:
        """The output of a layer, of the shape of its inputs."""
        attends, operate = numbers["attends"], functools.partial(self._operate, inputs)
        edges = (numbers["edges"], weights, None if keys is None else keys[:3])

        def addition(x: Any) -> jax.Array:
            return _drop(x[0] + x[1], self.dropout, keys, 3)

        def attention(x: Any) -> Any:
            y = self.attend(*x, *inputs, lambda weights: _drop(weights, self.attention_dropout, keys, 4))
            y = _drop(y, self.dropout, keys, 5)
            return y if self.norm is None else self.norm.apply({"params": norm}, y)

        if isinstance(attends, np.integer):
            count = 3 if attends else 2
            of_edge = [jax.tree.map(lambda leaf, i=i: leaf[i], edges) for i in range(count)]
            x = [operate(x, *one) for x, one in zip((first, other, other), of_edge, strict=False)]
            return attention(x) if attends else addition(x)
        # In a loop over the three edges, so that each operation is compiled once.
        x = jax.lax.map(lambda edge: operate(*edge), (jnp.stack([first, other, other]), *edges))
        return jax.lax.switch(attends, [addition, attention], x)

    def _operate(
        self, inputs: tuple[Any, ...], x: jax.Array, number: Any, weights: Mapping[str, Any], key: Any
    ) -> jax.Array:
        """Runs an operation by its number; the count of operations stands for an edge that is not there."""

        def branch(name: str) -> Callable[[jax.Array], Any]:
            variables, rngs = {"params": weights[name] or {}}, None if key is None else {"dropout": key}
            operation = self.operations[name]
            return lambda x: operation.apply(variables, x, *inputs, train=self.train, rngs=rngs)

        branches = [branch(name) for name in self.operations]
        if isinstance(number, np.integer):
            return branches[number](x)
        return jax.lax.switch(number, [*branches, jnp.zeros_like], x)


def _drop(x: jax.Array, rate: float, keys: Any, place: int) -> jax.Array:
    """Dropout with the key of a place in a layer; without keys there is none."""
    if keys is None or rate == 0:
        return x
    keep = jax.random.bernoulli(keys[place], 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), jnp.zeros_like(x))


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
        return width(lambda kind, name: macs[name] if needed in (None, kind) else 0, layer, chosen).table

    space: Space = network.space  # pyrefly: ignore[missing-attribute]
    for i in range(space["layer"].length or 0):
        layer = decisions["layer", i]
        for name, needed in ROLES.items():
            if name in space:
                record_macs(network, of_role(needed, layer, decisions[name, i]))
        record_macs(network, width(lambda kind: attention_macs * (kind == "attention"), layer).table)

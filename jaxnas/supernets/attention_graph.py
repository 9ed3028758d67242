"""The layers of AutoAttend: a graph of additions and attentions with operations on its edges.

AutoAttend (Guan et al., ICML 2021, section 4). Layer l takes its first input from layer l - 1 and the others
from any earlier one. An addition sums two inputs, and an attention takes queries, keys and values from three;
each input passes through an operation of its own. There are no other projections.

Every operation has weights for each pair of layers that it may connect, and for each context: the kind of
the layer that it comes from, and the role that it plays where it goes to (section 4.2.2). Where the input,
the layers and the result differ in width, pairs whose weights have the same shapes share a bank.

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
from typing import Any, Literal, NamedTuple, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import products
from jaxnas.choice import nearest
from jaxnas.elastic.bank import bank
from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.parameter import ELASTIC_SCOPE, MACS, record_macs
from jaxnas.elastic.width import Table, width
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
class Pairs:
    """Pairs of layers between which an operation has weights of the same shapes.

    Attributes:
      targets: numbers of the layers that an edge may lead to, from 0.
      of_input, of_layers: whether it may come from the input, and from another layer.
    """

    targets: range
    of_input: bool = True
    of_layers: bool = True

    @property
    def all_sources(self) -> bool:
        """Whether an edge may come from anywhere."""
        return self.of_input and self.of_layers

    def have(self, source: Any) -> Any:
        """Whether an edge from a source, which is 0 for the input, is one of them."""
        return (source > 0) & self.of_layers | (source == 0) & self.of_input


@dataclasses.dataclass(frozen=True)
class OperationUses:
    """Which copies of an operation's weights an architecture uses (section 4.2.2).

    Attributes:
      space: of the network.
      context: what a copy is for beside a pair of layers: nothing more, the kind of the "source", the role
        at the "target", or both.
      operations: all names, in order.
      operation: one of them.
      pairs: of layers that the copies are for.
    """

    space: Space
    context: Context
    operations: tuple[str, ...]
    operation: str
    pairs: Pairs

    @property
    def _sizes(self) -> tuple[int, int]:
        """The number of kinds of a source, and of roles at a target, that are told apart."""
        return 2 if self.context in ("source", "full") else 1, 4 if self.context in ("target", "full") else 1

    @property
    def copies(self) -> int:
        """How many copies there are: n(n + 1)/2, n², 2n(n + 1) or 4n² of n layers in all."""
        return int(self._starts[-1])

    @property
    def _starts(self) -> np.ndarray:
        """The first copy of each layer, and behind them the number of all."""
        kinds, roles = self._sizes
        sources = [self.pairs.of_input + layer * kinds * self.pairs.of_layers for layer in self.pairs.targets]
        return np.cumsum([0, *(roles * count for count in sources)])

    @functools.cached_property
    def distinct(self) -> tuple[Table, ...]:
        """See `elastic.bank.Uses`: an edge counts if no earlier edge into its layer has the same copy."""
        decisions, tables = Decisions(self.space, None, initializing=True), []
        for i, role in itertools.product(self.pairs.targets, ROLES):
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
        if role == "first":
            return "layer", role
        if self._apart and role != "second":
            return ("layer", role) if self.pairs.all_sources else ("layer", "source", role)
        earlier = ("first", "key") if role == "value" else ("first",)
        return "layer", "source", *earlier, role

    def _counts(self, i: int, role: str, names: Sequence[str], *options: Any) -> bool:
        """Whether the edge of a role into layer i + 1 needs one more copy."""
        x = dict(zip(names, options, strict=True))
        if x[role] != self.operation or ROLES[role] not in (None, x["layer"]):
            return False
        if not self.pairs.all_sources and not self.pairs.have(i if role == "first" else x["source"]):
            return False
        as_first = x.get("source") == i and x.get("first") == self.operation and role != "first"
        return not as_first and (role != "value" or x.get("key") != self.operation)

    def __call__(self, arch: dict[str, Any]) -> tuple[Any, Any]:
        """The copy that each edge takes, int32 [3 T], and whether it is in use, bool [3 T], of T targets."""
        x = _numbers(self.space, arch, self.operations)
        kinds, roles = self._sizes
        targets = np.asarray(self.pairs.targets)
        other = jnp.asarray(x["source"])[targets]
        source = jnp.stack([jnp.asarray(targets), other, other], axis=1)  # [T, 3]
        kind = jnp.concatenate([jnp.zeros(1, jnp.int32), x["attends"]])[source]  # the input has none
        attends = jnp.asarray(x["attends"])[targets]
        role = jnp.stack([attends, 2 * attends, 3 * attends], axis=1)
        below = (source - 1) * kinds + (kind if kinds > 1 else 0) + int(self.pairs.of_input)
        below = jnp.where(source > 0, below, 0)
        index = jnp.asarray(self._starts)[:-1, None] + roles * below + (role if roles > 1 else 0)
        used = jnp.asarray(x["edges"])[targets] == self.operations.index(self.operation)
        used &= self.pairs.have(source)
        return jnp.where(used, index, 0).astype(jnp.int32).reshape(-1), used.reshape(-1)


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


class LayerKind(NamedTuple):
    """What layers are made of.

    Attributes:
      operations: modules by name, made with `parent=None`, called as `operation(x, *inputs, train=train)`;
        they return arrays of this width, and have parameters and dropout only.
      attend: `attend(query, key, value, *inputs, drop)` gives an array of the shape of the value. `drop` is a
        function that applies dropout to attention weights.
      width: channels of what the layers give.
    """

    operations: Mapping[str, nn.Module]
    attend: Attend
    width: int


@dataclasses.dataclass(frozen=True, eq=False)
class _Group:
    """Layers of one kind, and the banks of their operations by name.

    Attributes:
      kind: of all layers of the group.
      layers: their numbers, from 0.
      banks: of each the pairs of layers that it is for, the name of the operation, and an input of the
        shape that the operation gets. They are in the order in which a layer numbers its operations.
      split: whether edges from the input have banks of their own, which are the first ones.
    """

    kind: LayerKind
    layers: range
    banks: Mapping[str, tuple[Pairs, str, Any]]
    split: bool


def _groups(count: int, layer: LayerKind, last: LayerKind | None, x: Any) -> list[_Group]:
    """All layers as one group, or, where the last one is of another kind, as two."""
    if last is None:
        banks = {name: (Pairs(range(count)), name, x) for name in layer.operations}
        return [_Group(layer, range(count), banks, False)]
    found = []
    hidden = jax.ShapeDtypeStruct((*x.shape[:-1], layer.width), x.dtype)
    for kind, layers, prefix in (
        (layer, range(count - 1), ""),
        (last, range(count - 1, count), "last_"),
    ):
        banks = {f"{prefix}input_{name}": (Pairs(layers, True, False), name, x) for name in kind.operations}
        if max(layers, default=0) > 0:
            banks |= {f"{prefix}{name}": (Pairs(layers, False), name, hidden) for name in kind.operations}
        if layers:
            found.append(_Group(kind, layers, banks, True))
    return found


def run_graph(
    network: Any,
    layer: LayerKind,
    x: jax.Array,
    inputs: tuple[Any, ...],
    decisions: Decisions,
    *,
    last: LayerKind | None = None,
    context: Context,
    dropout: float,
    attention_dropout: float,
    normalise: bool,
    attention_macs: int,
    train: bool,
) -> jax.Array:
    """Runs all layers, and returns the output of the last one.

    With more than one architecture the layers of a kind are compiled once and run in a `lax.scan`, which
    carries the outputs of all layers so far. With a single one they are unrolled, each with the operations
    that it has.

    Args:
      network: the module with a `space` in whose `compact` method this is called.
      layer: what layers are made of. Operations that the space does not have are left out.
      x: the input, [..., E].
      inputs: what operations and attention get beside x.
      decisions: of the network.
      last: what the last layer is made of, if that is another kind. Then the input may be wider or narrower
        than the layers, and edges from it have weights of their own; else E is the width of the layers.
      context: which copies of an operation's weights are told apart; see `OperationUses`.
      dropout: of the results of layers.
      attention_dropout: of attention weights.
      normalise: whether an attention ends with a layer normalisation; not with a last layer of another kind.
      attention_macs: multiply-accumulates of `attend` on one example.
      train: whether dropout is on.

    Returns:
      What the last layer gives, [..., width].

    Raises:
      ValueError: a soft architecture.
    """
    space, arch = network.space, decisions.arch
    options = {option for role in ROLES if role in space for option in space[role].options}

    def kept(kind: LayerKind) -> LayerKind:
        return kind._replace(operations={k: v for k, v in kind.operations.items() if k in options})

    layer, last = kept(layer), None if last is None else kept(last)
    names = tuple(layer.operations)
    numbers = _numbers(space, arch, names)
    count, single = len(numbers["source"]), space.cardinality == 1
    groups = _groups(count, layer, last, x)
    norm, norms = nn.LayerNorm(parent=None) if normalise else None, None
    if norm is not None:
        norms = bank(network, "norm", lambda key: _init(norm, key, x, ()), NormUses(space), arch)
    if network.is_mutable_collection(MACS) and not network.is_initializing():
        _record_macs(network, groups, inputs, decisions, attention_macs)
    keys = None
    if train and network.has_rng("dropout"):
        keys = jax.random.split(network.make_rng("dropout"), (count, 6))
    prepared = []
    for group in groups:
        weights = {}
        for name, (pairs, operation, like) in group.banks.items():
            module = group.kind.operations[operation]
            uses = OperationUses(space, context, names, operation, pairs)
            copies = bank(network, name, lambda key, m=module, x=like: _init(m, key, x, inputs), uses, arch)
            weights[name] = jax.tree.map(lambda leaf: leaf.reshape(-1, 3, *leaf.shape[1:]), copies)
        operations = {
            # An edge from an input of another width takes it from here.
            name: (group.kind.operations[operation], None if pairs.of_layers else x)
            for name, (pairs, operation, _) in group.banks.items()
        }
        run = _Layer(operations, group.kind, norm, dropout, attention_dropout, train)
        here = slice(group.layers.start, group.layers.stop)
        of_layers, of_norms, of_keys = jax.tree.map(
            lambda leaf, here=here: leaf[here], (numbers, norms, keys)
        )
        of_layers["edges"] = _numbers_of_banks(of_layers, names, group)
        prepared.append((group, run, (of_layers, weights, of_norms, of_keys)))

    with jax.named_scope(ELASTIC_SCOPE):  # The products are recorded above.
        return (_unroll if single else _scan)(prepared, x, inputs)


def _unroll(
    prepared: Sequence[tuple[_Group, _Layer, Any]], x: jax.Array, inputs: tuple[Any, ...]
) -> jax.Array:
    """What the last of all layers gives, each with what is static of it; see `run_graph`."""
    outputs = [x]
    for group, run, turns in prepared:
        for place, i in enumerate(group.layers):
            turn = jax.tree.map(lambda leaf, place=place: leaf[place], turns)
            outputs.append(run(outputs[i], outputs[turn[0]["source"]], inputs, *turn))
    return outputs[-1]


def _scan(prepared: Sequence[tuple[_Group, _Layer, Any]], x: jax.Array, inputs: tuple[Any, ...]) -> jax.Array:
    """What the last of all layers gives; those of a group are compiled once."""
    first_group, last_group = prepared[0][0], prepared[-1][0]
    # Of the input, where it has the width of the layers, and of each layer.
    shape = (last_group.layers.stop + 1, *x.shape[:-1], first_group.kind.width)  # [n + 1, ..., D]
    outputs = jnp.zeros(shape, x.dtype)
    outputs = outputs if first_group.split else outputs.at[0].set(x)

    def one(run: Any, outputs: jax.Array, i: Any, turn: Any) -> jax.Array:
        first, other = (
            jax.lax.dynamic_index_in_dim(outputs, at, keepdims=False) for at in (i, turn[0]["source"])
        )
        # The backward pass runs a layer again: a switch would keep what each of its branches computed.
        return jax.checkpoint(run, prevent_cse=False)(first, other, inputs, *turn)

    for group, run, turns in prepared:
        if group.split and group is last_group:  # The result has another width than the layers.
            return one(run, outputs, group.layers.start, jax.tree.map(lambda leaf: leaf[0], turns))

        def body(outputs: jax.Array, turn: Any, run: Any = run) -> tuple[jax.Array, None]:
            y = one(run, outputs, *turn)
            return jax.lax.dynamic_update_index_in_dim(outputs, y, turn[0] + 1, 0), None

        outputs, _ = jax.lax.scan(body, outputs, (jnp.asarray(group.layers), turns))
    return outputs[-1]


def _numbers_of_banks(numbers: Any, names: tuple[str, ...], group: _Group) -> Any:
    """The bank of each edge into a group's layers, int32 [layers, 3]; their number where there is no edge."""
    numpy = np if isinstance(numbers["edges"], np.ndarray) else jnp
    sources = numpy.stack([numpy.asarray(group.layers), numbers["source"], numbers["source"]], axis=1)
    edges = numbers["edges"] + (numpy.where(sources > 0, len(names), 0) if group.split else 0)
    return numpy.where(numbers["edges"] == len(names), len(group.banks), edges)


@dataclasses.dataclass(frozen=True, eq=False)
class _Layer:
    """One layer as a function of its two inputs and of numbers that say what it is; see `run_graph`.

    The numbers are integers of NumPy where there is no choice, and nothing is traced that does not run.
    """

    operations: Mapping[str, tuple[nn.Module, jax.Array | None]]  # and what it takes in place of a layer's
    kind: LayerKind
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
        """The output of a layer, [..., width]."""
        attends, operate = numbers["attends"], functools.partial(self._operate, inputs)
        edges = (numbers["edges"], weights, None if keys is None else keys[:3])

        def addition(x: Any) -> jax.Array:
            return _drop(x[0] + x[1], self.dropout, keys, 3)

        def attention(x: Any) -> Any:
            y = self.kind.attend(*x, *inputs, lambda weights: _drop(weights, self.attention_dropout, keys, 4))
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
            operation, given = self.operations[name]
            run = functools.partial(operation.apply, train=self.train, rngs=rngs)
            return lambda x: run(variables, x if given is None else given, *inputs)

        def zeros(x: jax.Array) -> jax.Array:
            return jnp.zeros((*x.shape[:-1], self.kind.width), x.dtype)

        branches = [branch(name) for name in self.operations]
        if isinstance(number, np.integer):
            return branches[number](x)
        return jax.lax.switch(number, [*branches, zeros], x)


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
    groups: Sequence[_Group],
    inputs: tuple[Any, ...],
    decisions: Decisions,
    attention_macs: int,
) -> None:
    """Says how many products each decision makes; inputs hold one example."""

    def count(operation: nn.Module, x: Any) -> int:
        variables = jax.eval_shape(operation.init, jax.random.key(0), x, *inputs)
        program = jax.make_jaxpr(lambda variables, x: operation.apply(variables, x, *inputs))(variables, x)
        return products.total(program.jaxpr).least

    space: Space = network.space  # pyrefly: ignore[missing-attribute]
    for group in groups:
        macs = {
            (pairs, operation): count(group.kind.operations[operation], x)
            for pairs, operation, x in group.banks.values()
        }

        def of_edge(needed: str | None, kind: str, chosen: str, source: int, macs: Any = macs) -> int:
            found = (
                n for (pairs, operation), n in macs.items() if operation == chosen and pairs.have(source)
            )
            return next(found) if needed in (None, kind) else 0

        for i in group.layers:
            layer = decisions["layer", i]
            for name, needed in ROLES.items():
                if name not in space:
                    continue
                of_role = functools.partial(of_edge, needed)
                if name == "first" or not group.split:
                    made = width(functools.partial(of_role, source=i), layer, decisions[name, i])
                else:
                    made = width(of_role, layer, decisions[name, i], decisions["source", i])
                record_macs(network, made.table)
            record_macs(network, width(lambda kind: attention_macs * (kind == "attention"), layer).table)

"""The layers of AutoAttend: a graph of additions and attentions with operations on its edges.

AutoAttend (Guan et al., ICML 2021, section 4). Layer l takes its first input from layer l - 1 and the others
from any earlier one. An addition sums two inputs, and an attention takes queries, keys and values from three;
each input passes through an operation of its own. There are no other projections.

Every operation has weights for each pair of layers that it may connect; see `attention_weights`. Where the
input, the layers and the result differ in width, pairs whose weights have the same shapes share a bank.

`run_graph` has a loop of its own, where other networks use `elastic.run_layers`: weights belong to pairs of
layers, and a layer reads the output of any earlier one. A network of several architectures is never unrolled,
since each operation would be compiled for each edge of each layer.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.sparse import BCOO

from jaxnas import products
from jaxnas.elastic.bank import bank
from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.parameter import ELASTIC_SCOPE, MACS, record_choice, record_macs
from jaxnas.elastic.width import width
from jaxnas.space import Space
from jaxnas.supernets.autoattend.attention_weights import ROLES, NormUses, OperationUses, Pairs, as_numbers

Attend = Callable[..., jax.Array]


class LayerKind(NamedTuple):
    """The parts of a layer.

    Attributes:
      operations: modules by name, made with `parent=None`, called as `operation(x, *inputs, train=train)`;
        they return arrays of this width, and have parameters and dropout only.
      attend: `attend(query, key, value, *inputs, drop)` gives an array of the shape of the value. `drop` is a
        function that applies dropout to attention weights.
      width: channels of what the layers give.
      dropout, attention_dropout: of the results of layers, and of attention weights.
      attention_macs: multiply-accumulates of `attend` on one example.
      normalize: whether an attention ends with a layer normalization; not where the last layer is of another
        kind.
    """

    operations: Mapping[str, nn.Module]
    attend: Attend
    width: int
    dropout: float = 0.0
    attention_dropout: float = 0.0
    attention_macs: int = 0
    normalize: bool = False


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
    x: jax.Array | BCOO,
    inputs: tuple[Any, ...],
    decisions: Decisions,
    *,
    last: LayerKind | None = None,
    train: bool,
) -> jax.Array:
    """Runs all layers, and returns the output of the last one.

    With more than one architecture the layers of a kind are compiled once and run in a `lax.scan`, which
    carries the outputs of all layers so far. With a single one they are unrolled, each with the operations
    that it has.

    Args:
      network: the module with a `space` and a `context` in whose `compact` method this is called.
      layer: what layers are made of. Operations that the space does not have are left out.
      x: the input, [..., E]; a sparse matrix only with a last layer of another kind.
      inputs: what operations and attention get beside x.
      decisions: of the network.
      last: what the last layer is made of, if that is another kind. Then the input may be wider or narrower
        than the layers, and edges from it have weights of their own; else E is the width of the layers.
      train: whether dropout is on.

    Returns:
      What the last layer gives, [..., width].
    """
    space, arch = network.space, decisions.arch
    options = {option for role in ROLES if role in space for option in space[role].options}

    def kept(kind: LayerKind) -> LayerKind:
        return kind._replace(operations={k: v for k, v in kind.operations.items() if k in options})

    layer, last = kept(layer), None if last is None else kept(last)
    names = tuple(layer.operations)
    numbers = as_numbers(space, arch, names)
    count, single = len(numbers["source"]), space.cardinality == 1
    groups = _groups(count, layer, last, x)
    norm, norms = nn.LayerNorm(parent=None) if layer.normalize else None, None
    if norm is not None:
        norms = bank(network, "norm", lambda key: _init(norm, key, x, ()), NormUses(space), arch)
    if network.is_mutable_collection(MACS) and not network.is_initializing():
        _record_macs(network, groups, inputs, decisions)
        # Operations and sources may differ in nothing that is counted.
        record_choice(network, *(decisions[name, i] for name in space for i in range(count)))
    keys = None
    if train and network.has_rng("dropout"):
        keys = jax.random.split(network.make_rng("dropout"), (count, 6))
    prepared = []
    for group in groups:
        weights = {}
        for name, (pairs, operation, like) in group.banks.items():
            module = group.kind.operations[operation]
            uses = OperationUses(space, network.context, names, operation, pairs)
            copies = bank(network, name, lambda key, m=module, x=like: _init(m, key, x, inputs), uses, arch)
            weights[name] = jax.tree.map(lambda leaf: leaf.reshape(-1, 3, *leaf.shape[1:]), copies)
        operations = {
            # An edge from an input of another width takes it from here.
            name: (group.kind.operations[operation], None if pairs.of_layers else x)
            for name, (pairs, operation, _) in group.banks.items()
        }
        run = _Layer(operations, group.kind, norm, train)
        here = slice(group.layers.start, group.layers.stop)
        of_layers, *of_others = jax.tree.map(lambda leaf, here=here: leaf[here], (numbers, norms, keys))
        of_layers["edges"] = _numbers_of_banks(of_layers, names, group)
        prepared.append((group, run, (of_layers, weights, *of_others)))

    with jax.named_scope(ELASTIC_SCOPE):  # The products are recorded above.
        return (_unroll if single else _scan)(prepared, x, inputs)


def _unroll(prepared: Sequence[tuple[_Group, _Layer, Any]], x: Any, inputs: tuple[Any, ...]) -> jax.Array:
    """The outputs of the last layers, each with its static part; see `run_graph`."""
    outputs = [x]
    for group, run, turns in prepared:
        for place, i in enumerate(group.layers):
            turn = jax.tree.map(lambda leaf, place=place: leaf[place], turns)
            outputs.append(run(outputs[i], outputs[turn[0]["source"]], inputs, turn))
    return outputs[-1]


def _scan(prepared: Sequence[tuple[_Group, _Layer, Any]], x: Any, inputs: tuple[Any, ...]) -> jax.Array:
    """The outputs of the last layers; those of a group are compiled once."""
    first_group, last_group = prepared[0][0], prepared[-1][0]
    # Of the input, where it has the width of the layers, and of each layer.
    shape = (last_group.layers.stop + 1, *x.shape[:-1], first_group.kind.width)  # [n + 1, ..., D]
    outputs = jnp.zeros(shape, x.dtype)
    outputs = outputs if first_group.split else outputs.at[0].set(x)

    def one(run: Any, outputs: jax.Array, i: Any, turn: Any) -> jax.Array:
        first, other = (
            jax.lax.dynamic_index_in_dim(outputs, at, keepdims=False) for at in (i, turn[0]["source"])
        )
        return run(first, other, inputs, turn)

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

    operations: Mapping[str, tuple[nn.Module, Any]]  # and what it takes in place of a layer's
    kind: LayerKind
    norm: nn.Module | None
    train: bool

    def __call__(self, first: jax.Array, other: jax.Array, inputs: tuple[Any, ...], turn: Any) -> jax.Array:
        """The output of a layer, [..., width]; its turn has numbers, weights, those of the norm, and keys."""
        numbers, weights, norm, keys = turn
        attends, operate = numbers["attends"], functools.partial(self._operate, inputs)
        edges = (numbers["edges"], weights, None if keys is None else keys[:3])

        def addition(x: Any) -> jax.Array:
            return _drop(x[0] + x[1], self.kind.dropout, keys, 3)

        def attention(x: Any) -> Any:
            kind = self.kind
            y = kind.attend(*x, *inputs, lambda weights: _drop(weights, kind.attention_dropout, keys, 4))
            y = _drop(y, kind.dropout, keys, 5)
            return y if self.norm is None else self.norm.apply({"params": norm}, y)

        if isinstance(attends, np.integer):
            count = 3 if attends else 2
            of_edge = [jax.tree.map(lambda leaf, i=i: leaf[i], edges) for i in range(count)]
            x = [operate(x, *one) for x, one in zip((first, other, other), of_edge, strict=False)]
            return attention(x) if attends else addition(x)
        # In a loop over the three edges, so that each operation is compiled once.
        x = jax.lax.map(lambda edge: operate(*edge), (jnp.stack([first, other, other]), *edges))
        return _switch(attends, [addition, attention], x)

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
        return _switch(number, [*branches, zeros], x)


def _switch(index: Any, branches: Sequence[Callable[[Any], jax.Array]], x: Any) -> jax.Array:
    """Runs one of the branches, and for the backward pass that one again.

    Without that a switch would keep what each of its branches computed, as zeros where it did not run.
    """
    return jax.lax.switch(index, [jax.checkpoint(one, prevent_cse=False) for one in branches], x)


def _drop(x: jax.Array, rate: float, keys: Any, place: int) -> jax.Array:
    """Dropout with the key of a place in a layer; without keys there is none."""
    if keys is None or rate == 0:
        return x
    keep = jax.random.bernoulli(keys[place], 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), jnp.zeros_like(x))


def _init(module: nn.Module, key: jax.Array, x: Any, inputs: tuple[Any, ...]) -> Any:
    """The initial parameters of one copy, without a run of the module."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (x, *inputs))
    return module.lazy_init(key, *shapes).get("params", {})


def _record_macs(
    network: nn.Module, groups: Sequence[_Group], inputs: tuple[Any, ...], decisions: Decisions
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
            found = (n for (pairs, name), n in macs.items() if name == chosen and pairs.have(source))
            return next(found) if needed in (None, kind) else 0

        for i in group.layers:
            layer = decisions["layer", i]
            for name, needed in ROLES.items():
                if name in space:
                    of_role, own = functools.partial(of_edge, needed), (layer, decisions[name, i])
                    if name == "first" or not group.split:
                        made = width(functools.partial(of_role, source=i), *own)
                    else:
                        made = width(of_role, *own, decisions["source", i])
                    record_macs(network, made.table)
            attends = width(lambda kind, n=group.kind.attention_macs: n * (kind == "attention"), layer)
            record_macs(network, attends.table)

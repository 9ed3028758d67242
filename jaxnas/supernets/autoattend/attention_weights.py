"""Which weights the edges of AutoAttend's layers take (Guan et al., ICML 2021, section 4.2.2).

Every operation has weights for each pair of layers that it may connect, and for each context: the kind of
the layer that it comes from, and the role that it plays where it goes to. An architecture takes some of these
copies; see `elastic.bank`. `attention_graph` runs the layers.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np

from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.width import Table, width
from jaxnas.space import Space, check_space
from jaxnas.supernets.schema import Needs, check_decisions, check_values

Context = Literal["none", "source", "target", "full"]
LAYERS = ("addition", "attention")
# Decisions that name an operation, and what is required for one to count: the kind of the layer.
ROLES = {"first": None, "second": "addition", "key": "attention", "value": "attention"}
ZERO = "zero"  # the operation that only the second input of an addition may have


def check_graph(network: Any, operations: Sequence[str]) -> None:
    """Checks the context of weights of a network and its space, which is one of AutoAttend's."""
    owner, space = type(network).__name__, network.space
    check_values(network, context=get_args(Context))
    check_space(space, owner)
    kinds = space["layer"].options if "layer" in space else ()
    plain = tuple(name for name in operations if name != ZERO)
    needs = {"layer": Needs(LAYERS, times=1), "source": Needs(least=0, times=1)}
    for role, kind in ROLES.items():
        names = tuple(operations) if role == "second" else plain
        needs[role] = Needs(names, times=1, optional=kind is not None and kind not in kinds)
    check_decisions(owner, space, needs, "jaxnas.spaces.autoattend(24)")
    lengths = {name: choice.length or 0 for name, choice in space.choices.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{owner}: all decisions are repeated once for each layer; got {lengths}.")
    for layer in range(lengths["source"]):
        options: tuple[Any, ...] = space["source"].options_at(layer)
        if max(options) > layer:
            raise ValueError(
                f"{owner}: layer {layer} may read {max(options)}; expected sources from 0, the input, to "
                f"{layer}, the layer before."
            )


def _option_numbers(space: Space, name: str, arch: Mapping[str, Any], number: Callable[[Any], int]) -> Any:
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


def as_numbers(space: Space, arch: Mapping[str, Any], operations: Sequence[str]) -> dict[str, Any]:
    """An architecture as numbers, int32: "attends" (0 or 1) and "source" [layers], and "edges" [layers, 3].

    An edge has the number of its operation. An addition has no third edge: its number there is the count of
    the operations.
    """
    attends = _option_numbers(space, "layer", arch, lambda kind: int(kind == "attention"))
    found = {
        name: _option_numbers(space, name, arch, operations.index) if name in space else 0 * attends
        for name in ROLES
    }
    numpy = np if isinstance(attends, np.ndarray) else jnp
    second = numpy.where(attends > 0, found["key"], found["second"])
    third = numpy.where(attends > 0, found["value"], len(operations))
    return {
        "attends": attends,
        "source": _option_numbers(space, "source", arch, int),
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

    def have(self, source: Any) -> Any:
        """Whether an edge from a source, which is 0 for the input, is one of them."""
        return (source > 0) & self.of_layers | (source == 0) & self.of_input


@dataclasses.dataclass(frozen=True)
class OperationUses:
    """Which copies of an operation's weights an architecture uses (section 4.2.2).

    Attributes:
      space: of the network.
      context: what a copy is for beside a pair of layers: nothing more, the kind of the "source", the role at
        the "target", or both.
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

    def _deciding(self, role: str) -> tuple[str, ...]:
        """The decisions of a layer that say whether the edge of a role needs one more copy."""
        if role == "first":
            return "layer", role
        if self._sizes[1] > 1 and role != "second":  # queries, keys and values have copies of their own
            return (
                ("layer", role) if self.pairs.of_input and self.pairs.of_layers else ("layer", "source", role)
            )
        earlier = ("first", "key") if role == "value" else ("first",)
        return "layer", "source", *earlier, role

    def _counts(self, i: int, role: str, names: Sequence[str], *options: Any) -> bool:
        """Whether the edge of a role into layer i + 1 needs one more copy."""
        x = dict(zip(names, options, strict=True))
        if x[role] != self.operation or ROLES[role] not in (None, x["layer"]):
            return False
        if not self.pairs.have(i if role == "first" else x.get("source", i)):
            return False
        as_first = x.get("source") == i and x.get("first") == self.operation and role != "first"
        return not as_first and (role != "value" or x.get("key") != self.operation)

    def __call__(self, arch: dict[str, Any]) -> tuple[Any, Any]:
        """The copy that each edge takes, int32 [3 T], and whether it is in use, bool [3 T], of T targets."""
        x = as_numbers(self.space, arch, self.operations)
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
    """Each layer has a normalization of its own, which an attention uses; see `elastic.bank.Uses`."""

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
        attends = _option_numbers(self.space, "layer", arch, lambda kind: int(kind == "attention"))
        return jnp.arange(self.copies), jnp.asarray(attends) > 0

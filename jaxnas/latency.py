"""Measured latency: what extracted networks take on the device in use, and a table of it as a cost.

The times of random networks are divided among blocks: products that depend on the same decisions. A table is
stored as JSON with the device's name, and read wherever architectures are compared for that device. `check`
compares a table with whole networks.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import files, network
from jaxnas.choice import element_name
from jaxnas.cost import Cost, merge, table_cost
from jaxnas.elastic.width import Table, combine, constant
from jaxnas.inputs import describe, specification
from jaxnas.space import Arch, Space
from jaxnas.subnet import alone

Name = TypeVar("Name")

FORMAT = 4
_PENALTY = 1e-2  # of the weights of a table, relative to the errors of its networks


@dataclasses.dataclass(frozen=True)
class Block:
    """The time of a part of a network by the decisions that it depends on.

    Attributes:
      decisions: options as text by decision, as "depth" or "num_heads[3]".
      nanoseconds: for each combination of options, the last decision's changing fastest.
    """

    decisions: Mapping[str, Sequence[str]]
    nanoseconds: Sequence[int]


@dataclasses.dataclass(frozen=True)
class LatencyTable:
    """The time of a network as a sum over its blocks.

    Attributes:
      blocks: each decision is in one of them; one without decisions is what every network takes.
      device: its name, as JAX gives it.
      setting: what was measured: inputs, sizes.
    """

    blocks: Sequence[Block]
    device: str
    setting: Mapping[str, Any]

    def cost(self, space: Space) -> Cost:
        """The latency of an architecture, `arch -> {"latency_ms"}`.

        As `jaxnas.cost`: hard or soft, under jit and vmap, for bounds and for expected latency.

        Raises:
          ValueError: a table of another space.
        """
        labels = _labels(space)
        if missing := [*labels.keys() - {label for block in self.blocks for label in block.decisions}]:
            raise ValueError(
                f"The latency table for {self.device} is of another space: it has no {min(missing)!r}. "
                "Measure it again."
            )
        tables = tuple(self._table(block, space, labels) for block in self.blocks)
        exact = table_cost({"nanoseconds": tables}, space)

        def milliseconds(arch: Arch) -> dict[str, Any]:
            value = exact(arch)["nanoseconds"]
            value = value.astype(jnp.float32) if isinstance(value, jax.Array) else np.asarray(value)
            return {"latency_ms": value / 1e6}

        return milliseconds

    def _table(self, block: Block, space: Space, labels: Mapping[str, tuple[str, int]]) -> Table:
        values = np.reshape(block.nanoseconds, [*map(len, block.decisions.values())])
        # What is no decision here comes last: in a network alone, it was inactive.
        for axis, (label, measured) in sorted(
            enumerate(block.decisions.items()), key=lambda x: x[1][0] not in labels
        ):
            at = labels.get(label)
            options = measured[:1] if at is None else [*map(str, space[at[0]].options_at(at[1]))]
            missing = [option for option in options if option not in measured]
            if missing or (at is None and np.any(np.diff(values, axis=axis))):
                raise ValueError(
                    f"The latency table for {self.device} is of another space: it has {list(measured)} of "
                    f"{label!r}, expected {missing or 'no such decision'}. Measure it again."
                )
            values = values.take([[*measured].index(option) for option in options], axis)
        return _over(space, [labels.get(label, (label, 0)) for label in block.decisions], values)

    def check_device(self, source: str = "the latency table") -> None:
        """Raises ValueError unless the table was measured on the device in use."""
        if self.device != (here := jax.devices()[0].device_kind):
            raise ValueError(
                f"{source} was measured on {self.device}, and this is {here}. Measure it here: delete the "
                "file, or take another workdir. For a network of that device give its cost yourself: "
                "runs.Lab(cost=table.cost(net.space))."
            )

    def save(self, path: str | os.PathLike) -> None:
        """Writes the table as JSON, whole or not at all."""
        files.write_json(path, {"format": FORMAT, **dataclasses.asdict(self)})


def load(path: str | os.PathLike) -> LatencyTable:
    """Reads a table; FileNotFoundError, or ValueError for another file."""
    record = files.read_json(path)
    try:
        if not isinstance(record, dict):
            raise ValueError(f"expected an object, found {type(record).__name__}")
        if record.pop("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}")
        found = LatencyTable(**record | {"blocks": tuple(Block(**one) for one in record["blocks"])})
        _ = [np.reshape(one.nanoseconds, [*map(len, one.decisions.values())]) for one in found.blocks]
        return found
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a latency table: {error!r}. Measure it again.") from error


def median_times(
    calls: Mapping[Name, Callable[[], Any]], *, warmup: int = 3, repeats: int = 30
) -> dict[Name, float]:
    """Median seconds of each call; see `quartiles`."""
    found = quartiles(calls, warmup=warmup, repeats=repeats)
    return {name: middle for name, (_, middle, _) in found.items()}


def quartiles(
    calls: Mapping[Name, Callable[[], Any]], *, warmup: int = 3, repeats: int = 30
) -> dict[Name, tuple[float, float, float]]:
    """Seconds of each call, all of them in turn, so that a slow moment meets each alike.

    Args:
      calls: functions that start work on the device and return its arrays.
      warmup: calls of each that are not counted: the first one compiles.
      repeats: calls that are.

    Returns:
      The lower quartile, the median and the upper quartile.
    """
    for call in calls.values():
        for _ in range(warmup):
            jax.block_until_ready(call())
    times: dict[Name, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            times[name].append(time.perf_counter() - start)
    return {name: tuple(np.percentile(values, (25, 50, 75)).tolist()) for name, values in times.items()}


def measure(
    net: nn.Module, variables: dict[str, Any], inputs: Any, archs: Mapping[Name, Arch], *, repeats: int = 30
) -> dict[Name, tuple[float, float, float]]:
    """Measures the forward pass of extracted networks on the device in use, in turn.

    Args:
      net: any Flax module with a `space`.
      variables: its maximal variables, by collection.
      inputs: a batch, whose arrays are used, or its specification, for which zeros are.
      archs: hard architectures by name.
      repeats: timed calls of each network.

    Returns:
      Seconds of a call by name: the lower quartile, the median and the upper quartile.
    """
    calls = {name: _call(net, variables, inputs, arch) for name, arch in archs.items()}
    return quartiles(calls, repeats=repeats)


def _call(net: nn.Module, variables: dict[str, Any], inputs: Any, arch: Arch) -> Callable[[], Any]:
    _, small, weights = alone(net, variables, arch, inputs)
    batch = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else jnp.asarray(x),
        specification(inputs) if isinstance(inputs, tuple) else inputs,
    )
    compiled = jax.jit(lambda variables, batch: network.predictions(small.apply(variables, batch)))
    return lambda: compiled(weights, batch)


def table(
    net: nn.Module,
    variables: dict[str, Any],
    inputs: Any,
    *,
    networks: int = 32,
    repeats: int = 30,
    key: jax.Array | None = None,
) -> LatencyTable:
    """Measures a table: random networks, whose times are divided among their blocks.

    Products that depend on the same choices share a time for each multiply-accumulate and a time for each
    product that runs, and each active option has a time of its own, none of them negative. They follow
    from relative least squares with a small penalty, so that there may be fewer networks than times.

    Args:
      net, variables, inputs, repeats: see `measure`.
      networks: to compile and to measure, the smallest and the largest among them.
      key: of the random ones; None for `jax.random.key(0)`.
    """
    space = net.space
    archs = _random(space, networks, jax.random.key(0) if key is None else key)
    seconds = _seconds(net, variables, inputs, archs, repeats)
    terms = _terms(net, inputs)
    costs = table_cost({str(number): tables for number, tables in enumerate(terms.values())}, space)(archs)
    columns = np.stack([np.broadcast_to(costs[str(number)], len(seconds)) for number in range(len(terms))])
    base, *weights = _weights(columns, seconds) * 1e9
    scaled = [
        dataclasses.replace(one, values=tuple(round(value * weight) for value in one.values))
        for (kind, tables), weight in zip(terms.items(), weights, strict=True)
        if weight or kind[0] == "option"  # so that each decision is there
        for one in tables
    ]
    labels, blocks = {at: label for label, at in _labels(space).items()}, []
    for one in merge((constant(round(base)), *scaled)):
        places = [(name, position or 0) for name, position in one.names]
        texts = {labels[at]: [*map(str, space[at[0]].options_at(at[1]))] for at in places}
        blocks.append(Block(texts, list(one.values)))
    setting = {"network": type(net).__name__, "inputs": describe(specification(inputs)), "pass": "inference"}
    return LatencyTable(tuple(blocks), jax.devices()[0].device_kind, setting)


class Check(NamedTuple):
    """How far a table is from whole networks: relative errors, and Spearman's correlation."""

    median_error: float
    largest_error: float
    rank_correlation: float


def check(
    table: LatencyTable,
    net: nn.Module,
    variables: dict[str, Any],
    inputs: Any,
    *,
    networks: int = 16,
    repeats: int = 30,
    key: jax.Array | None = None,
) -> Check:
    """Compares a table with random networks, measured whole.

    The arguments are those of `latency.table`; by default the random networks are others, of
    `jax.random.key(1)`. A table of another device or space raises a ValueError.
    """
    import scipy.stats  # takes a second, and few runs need it

    table.check_device()
    archs = _random(net.space, networks, jax.random.key(1) if key is None else key)
    predicted = np.asarray(table.cost(net.space)(archs)["latency_ms"], np.float64)
    measured = 1e3 * _seconds(net, variables, inputs, archs, repeats)
    errors = np.abs(predicted - measured) / measured
    ranks = scipy.stats.spearmanr(predicted, measured).statistic
    return Check(float(np.median(errors)), float(errors.max()), float(ranks))


def _seconds(net: nn.Module, variables: Any, inputs: Any, archs: Arch, repeats: int) -> np.ndarray:
    """Seconds of each network of a batch, float64 [n]: the lower quartile, as other work only adds to it."""
    rows = range(len(next(iter(archs.values()))))
    named = {row: jax.tree.map(lambda x, row=row: x[row], archs) for row in rows}
    return np.asarray([x for x, _, _ in measure(net, variables, inputs, named, repeats=repeats).values()])


def _random(space: Space, count: int, key: jax.Array) -> Arch:
    """The smallest and the largest architecture and random ones, distinct, at most `count`."""
    ends = jax.tree.map(lambda *x: jnp.stack(x), space.smallest(), space.largest())
    drawn = jax.tree.map(lambda *x: jnp.concatenate(x), ends, space.sample(key, 4 * count))
    codes = np.asarray(space.encode(jax.vmap(space.canonical)(drawn)))
    _, first = np.unique(codes, axis=0, return_index=True)
    return space.decode(codes[np.sort(first)[:count]])


def _terms(net: nn.Module, inputs: Any) -> dict[tuple[str, ...], tuple[Table, ...]]:
    """What times are of, as tables whose sum is a column: all products, those of some choices, options."""
    space, macs = net.space, network.annotated(net, inputs).macs
    terms: dict[tuple[str, ...], tuple[Table, ...]] = {("all",): macs}
    for table in macs:
        choices = sorted({name for name, _ in table.names})
        runs = combine(lambda value: int(value > 0), table)
        for kind, one in (("product", table), ("run", runs)):
            terms[kind, *choices] = (*terms.get((kind, *choices), ()), one)
    for name, position in _labels(space).values():
        active, options = _active(space, name, position), space[name].options_at(position)
        for option, chosen in zip(options, np.eye(len(options)), strict=True):
            one = combine(operator.mul, active, _over(space, [(name, position)], chosen))
            terms["option", name, str(option)] = (*terms.get(("option", name, str(option)), ()), one)
    return terms


def _weights(columns: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Nonnegative weights [1 + terms] of a constant and columns [terms, n]; the first two are free."""
    import scipy.optimize  # takes a second

    columns = np.concatenate([np.ones((1, len(seconds))), columns]) / seconds
    scale = np.maximum(columns.mean(axis=1), 1e-30)
    penalty = np.diag([0.0, 0.0, *np.full(len(columns) - 2, (_PENALTY * len(seconds)) ** 0.5)])
    matrix = np.concatenate([(columns / scale[:, None]).T, penalty])
    target = np.concatenate([np.ones(len(seconds)), np.zeros(len(columns))])
    return scipy.optimize.nnls(matrix, target)[0] / scale


def _labels(space: Space) -> dict[str, tuple[str, int]]:
    """The name and the position of each decision by its label."""
    return {
        element_name(name, choice, position): (name, position)
        for name, choice in space.decisions
        for position in range(math.prod(choice.shape))
    }


def _active(space: Space, name: str, position: int) -> Table:
    """Whether an element counts: 1 or 0 by the decisions that it depends on."""
    gate = constant(1)
    for (parent, at), allowed in space.elements[name, position]:
        choice = space.choices[parent]
        on = tuple(int(index in allowed) for index in range(len(choice.options_at(at))))
        own = _over(space, [(parent, at)], on)
        gate = combine(lambda *all_on: math.prod(all_on), gate, own, _active(space, parent, at))
    return gate


def _over(space: Space, places: Sequence[tuple[str, int]], values: Any) -> Table:
    """A table over decisions, values [options, ...]; those with one option are no decisions."""
    values = np.asarray(values, np.int64)
    free = [at for at, count in zip(places, values.shape, strict=True) if count > 1]
    names = tuple((name, None if space[name].length is None else position) for name, position in free)
    counts = tuple(count for count in values.shape if count > 1)
    return Table(names, counts, tuple(values.ravel().tolist()))

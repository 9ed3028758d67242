"""Measured latency: what extracted networks take on the device in use, and a table of it as a cost.

A table is measured once (warm-up, then the median of interleaved runs), stored as JSON with the device's
name, and read again wherever architectures are compared for that device. It is additive: to the time of one
network it adds what each decision changes by itself.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import files, network
from jaxnas.choice import Choice
from jaxnas.cost import Cost, table_cost
from jaxnas.elastic.width import Table, combine, constant
from jaxnas.inputs import describe, specification
from jaxnas.space import Arch, Space
from jaxnas.subnet import alone

Name = TypeVar("Name")

FORMAT = 2


@dataclasses.dataclass(frozen=True)
class LatencyTable:
    """The time of a network, and what each option of each decision adds to it.

    Attributes:
      nanoseconds: of the network from which the others are counted.
      options: by decision, as "depth" or "num_heads[3]" (or "num_heads" for all positions alike), the
        nanoseconds that each option adds, by the option as text; they may be negative.
      device: its name, as JAX gives it.
      setting: what was measured: inputs, sizes.
    """

    nanoseconds: int
    options: Mapping[str, Mapping[str, int]]
    device: str
    setting: Mapping[str, Any]

    def cost(self, space: Space) -> Cost:
        """The latency of an architecture, `arch -> {"latency_ms"}`; what is inactive adds nothing.

        As `jaxnas.cost`: hard or soft, under jit and vmap, for bounds and for expected latency.

        Raises:
          ValueError: decisions or options of the space that were not measured.
        """
        tables = [constant(self.nanoseconds)]
        for name, choice in space.decisions:
            for position in range(math.prod(choice.shape)):
                added = self._added(name, choice, position)
                active = _active(space, name, position)
                tables.append(combine(lambda on, ns: on * ns, active, added))
        exact = table_cost({"nanoseconds": tuple(tables)}, space)

        def milliseconds(arch: Arch) -> dict[str, Any]:
            value = exact(arch)["nanoseconds"]
            value = value.astype(jnp.float32) if isinstance(value, jax.Array) else np.asarray(value)
            return {"latency_ms": value / 1e6}

        return milliseconds

    def _added(self, name: str, choice: Choice, position: int) -> Table:
        label = name if choice.length is None else f"{name}[{position}]"
        measured = self.options.get(label, self.options.get(name, {}))
        options = choice.options_at(position)
        if missing := [option for option in options if str(option) not in measured]:
            raise ValueError(
                f"The latency table for {self.device} has no {missing} of {label!r}, only {list(measured)}; "
                "measure it again with the options of this space."
            )
        values = tuple(measured[str(option)] for option in options)
        return _of_decision(name, choice, position, values)

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
        found = LatencyTable(**record)
        for options in found.options.values():
            _ = {name: int(value) for name, value in options.items()}
        return dataclasses.replace(found, nanoseconds=int(found.nanoseconds))
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


def table(net: nn.Module, variables: dict[str, Any], inputs: Any, *, repeats: int = 30) -> LatencyTable:
    """Measures a table: the largest network, and those that differ from it in one decision.

    This compiles one network for each option of each decision, so it suits small spaces.

    Args:
      net, variables, inputs, repeats: see `measure`.
    """
    space = net.space
    base: Arch = space.canonical(space.largest())
    archs: dict[tuple[str, str], Arch] = {("", ""): base}
    options: dict[str, dict[str, int]] = {}
    for name, choice in space.decisions:
        for position in range(math.prod(choice.shape)):
            label = name if choice.length is None else f"{name}[{position}]"
            at = () if choice.length is None else position
            for index, option in enumerate(choice.options_at(position)):
                value = np.array(base[name])
                options.setdefault(label, {})[str(option)] = 0
                if value[at] != index:
                    value[at] = index
                    archs[label, str(option)] = {**base, name: jnp.asarray(value)}
    seconds = {key: x for key, (_, x, _) in measure(net, variables, inputs, archs, repeats=repeats).items()}
    start = seconds.pop(("", ""))
    for (label, option), value in seconds.items():
        options[label][option] = round((value - start) * 1e9)
    setting = {
        "network": type(net).__name__,
        "inputs": describe(specification(inputs)),
        "base": space.to_dict(base),
        "pass": "inference",
    }
    return LatencyTable(round(start * 1e9), options, jax.devices()[0].device_kind, setting)


def _active(space: Space, name: str, position: int) -> Table:
    """Whether an element counts: 1 or 0 by the decisions that it depends on."""
    gate = constant(1)
    for (parent, at), allowed in space.elements[name, position]:
        choice = space.choices[parent]
        on = tuple(int(index in allowed) for index in range(len(choice.options_at(at))))
        own = _of_decision(parent, choice, at, on)
        gate = combine(lambda *all_on: math.prod(all_on), gate, own, _active(space, parent, at))
    return gate


def _of_decision(name: str, choice: Choice, position: int, values: tuple[int, ...]) -> Table:
    """A table with one value for each option of a decision."""
    if len(values) == 1:
        return constant(values[0])
    return Table(((name, None if choice.length is None else position),), (len(values),), values)

"""Measured latency: what each option of a decision takes on the device in use, as a cost of architectures.

A table is measured once (warm-up, then the median of interleaved runs), stored as JSON with the device's
name, and read again wherever architectures are compared for that device.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxnas.cost import Cost, table_cost
from jaxnas.elastic.recurrent import Context
from jaxnas.elastic.width import Table
from jaxnas.space import Space

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class LatencyTable:
    """Median times of the options of one repeated decision.

    Attributes:
      choice: name of the decision.
      nanoseconds: by option, for one call.
      device: its name, as JAX gives it.
      setting: what was measured: sizes, dtype, forward or training.
    """

    choice: str
    nanoseconds: Mapping[str, int]
    device: str
    setting: Mapping[str, Any]

    def cost(self, space: Space) -> Cost:
        """The latency of an architecture as the sum of its blocks': `arch -> {"latency_ns"}`.

        As `jaxnas.cost`: hard or soft, under jit and vmap, for bounds and for expected latency.

        Raises:
          ValueError: options of the space that were not measured.
        """
        choice = space[self.choice]
        if missing := sorted(set(map(str, choice.options)) - set(self.nanoseconds)):
            raise ValueError(
                f"The latency table for {self.device} has no {missing}, only {list(self.nanoseconds)}; "
                "measure it again with the blocks of this space."
            )
        tables = []
        for position in range(choice.length):
            options = choice.options_at(position)
            values = tuple(self.nanoseconds[str(option)] for option in options)
            free = len(options) > 1
            names = ((self.choice, position),) if free else ()
            tables.append(Table(names, (len(options),) if free else (), values))
        return table_cost({"latency_ns": tuple(tables)})

    def save(self, path: str | os.PathLike) -> None:
        """Writes the table as JSON, whole or not at all."""
        record = {"format": FORMAT, **dataclasses.asdict(self)}
        path = pathlib.Path(path)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        os.replace(temporary, path)


def load(path: str | os.PathLike) -> LatencyTable:
    """Reads a table.

    Raises:
      FileNotFoundError: no such file.
      ValueError: not such a file; the message says what is wrong.
    """
    path = pathlib.Path(path)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.pop("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}")
        return LatencyTable(**record)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a latency table: {error!r}. Measure it again.") from error


def median_times(
    calls: Mapping[str, Callable[[], Any]], *, warmup: int = 3, repeats: int = 30
) -> dict[str, float]:
    """Median seconds of each call, all of them in turn, so that a slow moment meets each alike.

    Args:
      calls: functions that start work on the device and return its arrays.
      warmup: calls of each that are not counted: the first one compiles.
      repeats: calls that are.
    """
    for call in calls.values():
        for _ in range(warmup):
            jax.block_until_ready(call())
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def measure_blocks(
    net: Any, batch: int, length: int, *, train: bool = False, repeats: int = 30
) -> LatencyTable:
    """Measures the blocks of a `supernets.TransformerXL` on the device in use.

    Args:
      net: the network; its sizes, memory and dtype are those that are measured.
      batch, length: of a segment.
      train: forward and backward pass, instead of the forward pass alone.
      repeats: timed calls of each block.
    """
    options = net.space["block"].options
    shape = (batch, length, net.width)
    keys = length + net.memory_length
    x = jax.random.normal(jax.random.key(0), shape, net.dtype)
    memory = jax.random.normal(jax.random.key(1), (batch, net.memory_length, net.width), net.dtype)
    mask = jnp.tril(jnp.ones((length, keys), bool), net.memory_length)
    positions = jax.random.normal(jax.random.key(2), (keys, net.width), jnp.float32)
    context = Context(memory, jnp.broadcast_to(mask, (batch, length, keys)), positions)
    calls = {}
    for name in options:
        block = net.block(name)
        params = jax.jit(block.init)(jax.random.key(3), x, context)

        def forward(params: Any, x: jax.Array, context: Context, block: Any = block) -> jax.Array:
            return block.apply(params, x, context)

        def gradient(params: Any, x: jax.Array, context: Context, forward: Any = forward) -> Any:
            total = lambda params, x: jnp.sum(forward(params, x, context).astype(jnp.float32))  # noqa: E731
            return jax.grad(total, (0, 1))(params, x)

        compiled = jax.jit(gradient if train else forward)
        calls[name] = lambda call=compiled, params=params: call(params, x, context)
    seconds = median_times(calls, repeats=repeats)
    # What a call costs by itself, as that of a block which does nothing shows, is no part of a network.
    idle = min(seconds.values()) if "identity" in seconds else 0.0
    return LatencyTable(
        "block",
        {name: round((value - idle) * 1e9) for name, value in seconds.items()},
        jax.devices()[0].device_kind,
        setting_of(net, batch, length, train=train),
    )


def setting_of(net: Any, batch: int, length: int, *, train: bool = False) -> dict[str, Any]:
    """What a table of `measure_blocks` says that it measured."""
    sizes = ("memory_length", "width", "num_heads", "head_dim", "hidden", "pre_norm")
    return {
        "batch": batch,
        "length": length,
        **{name: getattr(net, name) for name in sizes},
        "dtype": jnp.dtype(net.dtype).name,
        "pass": "training" if train else "inference",
    }

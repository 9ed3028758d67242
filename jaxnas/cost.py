"""Exact costs of architectures: parameters and multiply-accumulates, as table look-ups.

Every elastic parameter and product records a table of its size over the decisions that it depends on.
A cost is the sum of one entry of each table: nothing of the network is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import network
from jaxnas.elastic.decisions import within
from jaxnas.elastic.width import Table
from jaxnas.space import Space

Arch = dict[str, jax.Array]
Cost = Callable[[Arch], dict[str, Any]]
_LIMB = 1 << 20


def cost(net: Any, inputs: Any) -> Cost:
    """The cost function of a network.

    Args:
      net: any Flax module with a `space`; see `jaxnas.network` for the contract.
      inputs: a pytree of arrays or `jax.ShapeDtypeStruct`, batch in front, or a tuple of ints for one
        float32 array. Costs are for one example, whatever the batch.

    Returns:
      A pure function from an architecture to `{"params", "macs"}`: the number of elements of the
      extracted parameters, and the multiply-accumulates of all its products on one example. A padded
      convolution counts whole windows, as published figures do. A network may have further costs, as
      "kv_bytes" and "memory" of `jaxnas.hf.Prunable`.
      Concrete architectures, also batches of them, give exact int64 NumPy values. Under jit and vmap
      the result is int32, or float32 rounded once where the largest architecture exceeds int32.
      Soft architectures give the expected cost, differentiable in the weights.

    Raises:
      TypeError, ValueError: a network whose costs cannot be told exactly; see `jaxnas.network`.
        The function raises them for a concrete architecture that is not in the space.

    Example:
      >>> net = supernets.TableMlp(spaces.mlp((8, 16), (1,), (8, 16)), num_outputs=1)
      >>> cost_of = jaxnas.cost(net, jax.ShapeDtypeStruct((1, 4), "float32"))
      >>> {name: int(x) for name, x in cost_of(net.space.smallest()).items()}
      {'params': 225, 'macs': 168}
      >>> cost_of(net.space.sample(jax.random.key(0), 1000))["macs"].shape
      (1000,)
    """
    recorded = network.annotated(net, inputs)
    tables = {
        "params": tuple(size for spec in recorded.specs.values() for size in spec.sizes),
        "macs": recorded.macs,
        **recorded.costs,
    }
    return table_cost(tables, net.space)


def table_cost(tables: dict[str, tuple[Table, ...]], space: Space) -> Cost:
    """A cost function of the architectures of a space from named tables; see `cost`."""
    tables = {name: merge(entries) for name, entries in tables.items()}

    def costs(arch: Arch) -> dict[str, Any]:
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in arch.values())
        if not traced:
            space.check(arch)
        else:  # as the network runs it
            arch = {name: within(value, space.choices[name].sizes) for name, value in arch.items()}
        soft = any(jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in arch.values())
        of = _expected if soft else _traced if traced else _exact
        return {name: of(entries, arch) for name, entries in tables.items()}

    return costs


def merge(tables: tuple[Table, ...]) -> tuple[Table, ...]:
    """One table for all that depend on the same decisions: fewer look-ups."""
    sums: dict[Any, np.ndarray] = {}
    for table in tables:
        # Values may be summed in row-major order, since the decisions and their order are the same.
        key = (table.names, table.counts)
        sums[key] = sums.get(key, 0) + np.array(table.values, np.int64)
    return tuple(Table(names, counts, tuple(values.tolist())) for (names, counts), values in sums.items())


def _exact(tables: tuple[Table, ...], arch: Arch) -> Any:
    host = {name: np.asarray(value) for name, value in arch.items()}

    def entry(table: Table) -> np.ndarray:
        return table.array()[
            tuple(host[name] if at is None else host[name][..., at] for name, at in table.names)
        ]

    return sum(map(entry, tables), np.int64(0))


def _traced(tables: tuple[Table, ...], arch: Arch) -> jax.Array:
    if sum(table.maximum for table in tables) < 2**31:
        return sum((table.at(arch) for table in tables), jnp.int32(0))
    # Two limbs keep the sum exact in int32; only the last line rounds.
    high = low = jnp.int32(0)
    for table in tables:
        values = np.array(table.values, np.int64)
        index = table.index(arch)
        high = high + jnp.asarray((values // _LIMB).astype(np.int32))[index]
        low = low + jnp.asarray((values % _LIMB).astype(np.int32))[index]
    high, low = high + low // _LIMB, low % _LIMB
    return high.astype(jnp.float32) * _LIMB + low.astype(jnp.float32)


def _expected(tables: tuple[Table, ...], arch: Arch) -> jax.Array:
    total = jnp.float32(0)
    for table in tables:
        value = jnp.asarray(np.array(table.values, np.float32).reshape(table.counts))
        for name, position in reversed(table.names):
            weights = arch[name] if position is None else arch[name][position]
            count = value.shape[-1]
            if not jnp.issubdtype(weights.dtype, jnp.floating):
                weights = jax.nn.one_hot(weights, count, dtype=jnp.float32)
            value = value @ weights[:count].astype(jnp.float32)
        total = total + value
    return total

"""The memory of a decoder in use, its weights and its key/value cache, as costs of a search."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from jaxnas import network
from jaxnas.annotations import Annotations
from jaxnas.cost import Cost, table_cost
from jaxnas.elastic.width import Table, combine, constant
from jaxnas.hf.decoder import Decoder

KV_GROUPS = ("kv_heads", "heads")  # the names of the group of key/value heads in an attention


def memory_cost(
    net: Any, inputs: Any, module: Decoder, batch: int, length: int, dtype: Any = jnp.bfloat16
) -> Cost:
    """The costs of the sub-networks of a decoder, with the bytes that they need in use.

    Args:
      net: a `jaxnas.transform.Supernet` of the module.
      inputs: of the network; see `jaxnas.cost`.
      module: of `load`, which was analyzed.
      batch, length: of the texts that are generated: examples, and tokens each.
      dtype: of weights and cache.

    Returns:
      As `jaxnas.cost`, with two further costs: "kv_bytes", the key/value cache of a text of `length` tokens,
      of which a layer with a window keeps no more than that; and "memory", the bytes of all weights and of
      `batch` caches.

    Raises:
      ValueError: a batch or length below 1; a network whose costs cannot be told exactly.
    """
    if batch < 1 or length < 1:
        raise ValueError(f"memory_cost: expected a batch and a length of at least 1; got {batch}, {length}.")
    recorded = network.annotated(net, inputs)
    params = tuple(entry for spec in recorded.specs.values() for entry in spec.sizes)
    more = memory_tables(net, recorded, module, batch, length, dtype)
    return table_cost({"params": params, "macs": recorded.macs, **more}, net.space)


def memory_tables(
    net: Any, recorded: Annotations, module: Decoder, batch: int, length: int, dtype: Any
) -> dict[str, tuple[Table, ...]]:
    """The tables of "kv_bytes" and "memory"; see `memory_cost`."""
    size, dim = jnp.dtype(dtype).itemsize, module.form.head_dim
    tables = {place.name: place.table(net.space) for place in net.places}

    def cached(layer: int, groups: int, window: int | None) -> Table:
        where = f"layers_{layer}/attention"
        found = [tables[f"{where}/{name}"] for name in KV_GROUPS if f"{where}/{name}" in tables]
        gates = [tables[name] for name in (f"layers_{layer}", where) if name in tables]
        tokens = length if window is None else min(length, window)
        heads = found[0] if found else constant(groups)
        return combine(lambda *factors: 2 * dim * size * tokens * math.prod(factors), heads, *gates)

    params = tuple(entry for spec in recorded.specs.values() for entry in spec.sizes)
    caches = tuple(map(cached, range(len(module.windows)), module.kv_groups, module.windows))
    memory = (
        *(combine(lambda count: count * size, entry) for entry in params),
        *(combine(lambda count: count * batch, entry) for entry in caches),
    )
    return {"kv_bytes": caches, "memory": memory}

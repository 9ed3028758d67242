"""Exact costs of architectures: parameters and multiply-accumulates, as table look-ups.

Every elastic parameter and product records a table of its size over the decisions that it depends on.
A cost is the sum of one entry of each table: nothing of the network is computed.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.elastic.parameter import GATES, MACS, SPECS, ParameterSpec
from jaxnas.elastic.width import Table, combine, constant

Arch = dict[str, jax.Array]
Cost = Callable[[Arch], dict[str, Any]]
_LIMB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Annotations:
    """What a network records about itself when it is traced by shape.

    Attributes:
      shapes: maximal parameters as `jax.ShapeDtypeStruct`, in boxes with logical axis names.
      specs: `ParameterSpec` of each parameter, by its path.
      macs: tables of multiply-accumulates on one example.
    """

    shapes: Any
    specs: dict[tuple[str, ...], ParameterSpec]
    macs: tuple[Table, ...]


def annotations(net: nn.Module, input_shape: tuple[int, ...]) -> Annotations:
    """Traces a supernet by shape, without computing anything.

    Args:
      net: a supernet with a `space`.
      input_shape: of its input, with the batch in front.
    """
    inputs = jax.ShapeDtypeStruct(input_shape, input_dtype(net))
    arch = jax.eval_shape(net.space.smallest)
    variables = jax.eval_shape(net.init, jax.random.key(0), inputs, arch)
    _, recorded = jax.eval_shape(
        lambda *args: net.apply(*args, mutable=[SPECS, MACS, GATES]), variables, inputs, arch
    )
    flatten: Callable[..., dict[tuple[str, ...], Any]] = flax.traverse_util.flatten_dict
    gates = {  # of what lies below the path of a block, as Linen names the members of a dict
        (*path[:-1], f"blocks_{path[-1]}"): kept.table
        for path, (kept,) in flatten(recorded.get(GATES, {})).items()
    }

    def gated(path: tuple[str, ...], table: Table) -> Table:
        above = [gate for prefix, gate in gates.items() if path[: len(prefix)] == prefix]
        return functools.reduce(functools.partial(combine, operator.mul), above, table)

    specs = flatten(recorded.get(SPECS, {}), is_leaf=_is_spec)
    for path, leaf in flatten(nn.meta.unbox(variables["params"])).items():
        # A parameter that no elastic layer declared has one size.
        plain = ParameterSpec(tuple(map(constant, leaf.shape)), (None,) * leaf.ndim, constant(1))
        spec = specs.get(path, plain)
        specs[path] = dataclasses.replace(spec, gate=gated(path, spec.gate))
    macs = tuple(
        gated(path, entry.table)
        for path, entries in flatten(recorded.get(MACS, {})).items()
        for entry in entries
    )
    return Annotations(variables["params"], specs, macs)


def input_dtype(net: nn.Module) -> Any:
    """What a network's inputs are: float32, or what its class says as `input_dtype`."""
    return getattr(net, "input_dtype", jnp.float32)


def _is_spec(_: Any, value: Any) -> bool:
    return isinstance(value, ParameterSpec)


def cost(net: nn.Module, input_shape: tuple[int, ...]) -> Cost:
    """The cost function of a supernet.

    Args:
      net: a supernet with a `space`.
      input_shape: of its input, `(batch, ...)`; costs are for one example, whatever the batch.

    Returns:
      A pure function from an architecture to `{"params", "macs"}`: the number of elements of the
      extracted parameters, and the multiply-accumulates of all its products on one example.
      Concrete architectures, also batches of them, give exact int64 NumPy values. Under jit and vmap
      the result is int32, or float32 rounded once where the largest architecture exceeds int32.
      Soft architectures give the expected cost, differentiable in the weights.
    """
    recorded = annotations(net, input_shape)
    tables = {
        "params": tuple(spec.size for spec in recorded.specs.values()),
        "macs": recorded.macs,
    }
    return table_cost(tables)


def table_cost(tables: dict[str, tuple[Table, ...]]) -> Cost:
    """A cost function from named tables; see `cost`."""
    tables = {name: _merge(entries) for name, entries in tables.items()}

    def costs(arch: Arch) -> dict[str, Any]:
        leaves = list(arch.values())
        if any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
            return {name: _expected(entries, arch) for name, entries in tables.items()}
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return {name: _traced(entries, arch) for name, entries in tables.items()}
        return {name: _exact(entries, arch) for name, entries in tables.items()}

    return costs


def _merge(tables: tuple[Table, ...]) -> tuple[Table, ...]:
    """One table for all that depend on the same decisions: fewer look-ups."""
    sums: dict[Any, np.ndarray] = {}
    for table in tables:
        # Values may be summed in row-major order, since the decisions and their order are the same.
        key = (table.names, table.counts)
        sums[key] = sums.get(key, 0) + np.array(table.values, np.int64)
    return tuple(Table(*key, tuple(values.tolist())) for key, values in sums.items())


def _exact(tables: tuple[Table, ...], arch: Arch) -> np.ndarray:
    host = {name: np.asarray(value) for name, value in arch.items()}
    total: Any = np.int64(0)
    for table in tables:
        index: Any = 0
        for (name, position), count in zip(table.names, table.counts, strict=True):
            value = host[name] if position is None else host[name][..., position]
            index = index * count + value
        total = total + np.array(table.values, np.int64)[index]
    return total


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


def autoformer_flops(net: nn.Module) -> Callable[[Arch], float]:
    """The FLOPs function of the official AutoFormer code, quirks included, for comparison with papers.

    It counts multiply-accumulates with one token too many inside blocks, the head on every token and an
    approximate relative-position term; biases and activations partly. For the true products use `cost`.

    Args:
      net: a `supernets.ViT` on RGB images.

    Returns:
      A function from a concrete architecture to a float (the official formula has halves).
    """

    def flops(arch: Arch) -> float:
        values = net.space.to_dict(arch)
        dim, depth = values["embed_dim"], values["depth"]
        patches = (net.image_size // net.patch_size) ** 2
        patch = 3 * net.patch_size**2
        tokens = patches + 2
        total = dim + patches * patch * dim + (patches + 1) * dim / 2
        for heads, ratio in list(zip(values["num_heads"], values["mlp_ratio"], strict=True))[:depth]:
            inner, hidden = heads * net.head_dim, int(dim * ratio)
            total += tokens * dim + tokens * 3 * inner * dim + 2 * tokens**2 * inner
            total += tokens * inner * dim
            if net.max_relative_position:
                total += net.max_relative_position * tokens**2 + tokens**2 / 2
                total += net.max_relative_position * tokens**2 + tokens * inner / 2
            total += tokens * dim + 2 * tokens * dim * hidden
        return total + (patches + 1) * net.num_classes * dim

    return flops

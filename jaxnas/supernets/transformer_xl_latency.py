"""Measured latency of the blocks of a Transformer-XL, each alone: PAR's cost (section 2).

The blocks of all positions are alike, so one measurement of each is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxnas.elastic.recurrent import Context
from jaxnas.supernets.transformer_xl import TransformerXL


def block_calls(
    net: TransformerXL, batch: int, length: int, *, train: bool = False
) -> dict[str, Callable[[], Any]]:
    """For each option of `block` a function that runs it once.

    Args:
      net: the network; its sizes, memory and dtype are those that are run.
      batch, length: of a segment.
      train: forward and backward pass, instead of the forward pass alone.
    """
    shape = (batch, length, net.width)
    keys = length + net.memory_length
    x = jax.random.normal(jax.random.key(0), shape, net.dtype)
    memory = jax.random.normal(jax.random.key(1), (batch, net.memory_length, net.width), net.dtype)
    mask = jnp.tril(jnp.ones((length, keys), bool), net.memory_length)
    positions = jax.random.normal(jax.random.key(2), (keys, net.width), jnp.float32)
    context = Context(memory, jnp.broadcast_to(mask, (batch, length, keys)), positions)
    calls: dict[str, Callable[[], Any]] = {}
    for name in map(str, net.space["block"].options):
        block = net.block(name)
        params = jax.jit(block.init)(jax.random.key(3), x, context)

        def forward(params: Any, x: jax.Array, context: Context, block: Any = block) -> jax.Array:
            return block.apply(params, x, context)

        def gradient(params: Any, x: jax.Array, context: Context, forward: Any = forward) -> Any:
            total = lambda params, x: jnp.sum(forward(params, x, context).astype(jnp.float32))  # noqa: E731
            return jax.grad(total, (0, 1))(params, x)

        compiled = jax.jit(gradient if train else forward)
        calls[name] = lambda call=compiled, params=params: call(params, x, context)
    return calls


def setting_of(net: TransformerXL, batch: int, length: int, *, train: bool = False) -> dict[str, Any]:
    """What was measured, for `jaxnas.latency.LatencyTable.setting`."""
    sizes = ("memory_length", "width", "num_heads", "head_dim", "hidden", "pre_norm")
    return {
        "batch": batch,
        "length": length,
        **{name: getattr(net, name) for name in sizes},
        "dtype": jnp.dtype(net.dtype).name,
        "pass": "training" if train else "inference",
    }

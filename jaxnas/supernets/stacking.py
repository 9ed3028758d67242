"""Parameters of layers that run in a loop: stacked leaf by leaf."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

STACKED = "blocks"


def stack_layers(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters with the layers' leaves stacked, as a supernet that scans its layers reads them directly.

    Args:
      params: of a ViT or TransformerXL, or a tree like it; stacked ones come back as they are.

    Returns:
      The tree with "blocks", leaves [layers, ...], in place of "block_0", "block_1", ...

    Raises:
      ValueError: layers of different sizes.
    """
    if STACKED in params:
        return params
    names = _layer_names(params)
    layers = [params[name] for name in names]
    for name, layer in zip(names, layers, strict=True):
        if jax.tree.map(jnp.shape, layer) != jax.tree.map(jnp.shape, layers[0]):
            raise ValueError(
                f"{name} and {names[0]} differ in size, so they cannot be stacked: a network with "
                "scan_layers needs layers with the same options."
            )
    rest = {name: tree for name, tree in params.items() if not name.startswith("block_")}
    return rest | {STACKED: jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)}


def unstack_layers(params: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `stack_layers`; parameters stored layer by layer come back as they are."""
    if STACKED not in params:
        return params
    rest, stacked = {k: v for k, v in params.items() if k != STACKED}, params[STACKED]
    count = len(jax.tree.leaves(stacked)[0])
    return rest | {f"block_{i}": jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(count)}


def _layer_names(params: dict[str, Any]) -> list[str]:
    names = [name for name in params if name.startswith("block_")]
    return sorted(names, key=lambda name: int(name.removeprefix("block_")))

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
    """
    if STACKED in params:
        return params
    layers = [params[name] for name in _layer_names(params)]
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

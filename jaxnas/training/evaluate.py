"""Accuracy of sub-networks with inherited weights, a population at a time.

A population runs as `lax.map` over architectures: each keeps its real branches and pays for its own
size, in one program that is compiled once. (`vmap` would run every architecture at the maximal size.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from jaxnas.data import Split, evaluation_batches
from jaxnas.training.step import Arch, Preprocess, shard_batch


def make_evaluator(
    net: nn.Module,
    split: Split,
    batch_size: int,
    preprocess: Preprocess,
    mesh: Mesh,
    *,
    role: str,
) -> Callable[[Any, Arch], jax.Array]:
    """A function from parameters and architectures to accuracies on a split.

    Args:
      net: a network with a `space`.
      split: what to evaluate on.
      batch_size: images at a time; rounded up to a multiple of the mesh's devices.
      preprocess: from images as stored to float32 images, without augmentation.
      mesh: with an axis "data", over which each batch is split.
      role: what the caller means to use, "search" or "test"; a split of another role is refused, so
        that nobody searches on the test split by accident.

    Returns:
      `evaluate(params, archs) -> float32 [n]` for a batch of n architectures (leading axis), and
      `float32 []` for a single one; exact over all images.
    """
    split.require(role)
    devices = mesh.shape["data"]
    batch_size = -(-min(batch_size, len(split)) // devices) * devices
    batches = shard_batch(evaluation_batches(split, batch_size), mesh, axis=1)  # [n, B, ...]
    total = float(len(split))

    def accuracy(params: Any, arch: Arch, batches: Any) -> jax.Array:
        def correct(batch: Any) -> jax.Array:
            images = preprocess(batch["image"])
            logits = net.apply({"params": params}, images, arch)
            hit = (jnp.argmax(logits, axis=1) == batch["label"]).astype(jnp.float32)
            return jnp.sum(hit * batch["weight"])

        return jnp.sum(lax.map(correct, batches)) / total

    @jax.jit
    def one(params: Any, arch: Arch, batches: Any) -> jax.Array:
        return accuracy(params, arch, batches)

    @jax.jit
    def many(params: Any, archs: Arch, batches: Any) -> jax.Array:
        return lax.map(lambda arch: accuracy(params, arch, batches), archs)

    def evaluate(params: Any, archs: Arch) -> jax.Array:
        single = next(iter(archs.values())).ndim == len(next(iter(net.space.choices.values())).shape)
        return (one if single else many)(params, archs, batches)

    return evaluate

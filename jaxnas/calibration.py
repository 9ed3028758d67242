"""Batch statistics as a function of weights, architecture and data.

The running statistics of a supernet belong to no architecture: each has activations of its own. They are
made anew for one architecture before it is scored or extracted (Once-for-All, Cai et al., ICLR 2020; Yu and
Huang, ICCV 2019, section 3.1 call it post-statistics).
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import network
from jaxnas.inputs import describe
from jaxnas.space import Arch
from jaxnas.tensors import Path, flatten, unflatten

STATISTICS = "batch_stats"
_START = 1024.0  # much larger than statistics; a power of two, so that the momentum times it is exact


def calibrate(
    net: nn.Module,
    variables: dict[str, Any],
    arch: Arch | None,
    batches: Any,
    *,
    key: jax.Array | None = None,
) -> dict[str, Any]:
    """Makes the batch statistics of one architecture anew. It is pure: it works under jit, vmap and lax.map.

    A running average is linear, `new = m * old + (1 - m) * batch`, whatever layer keeps it. The first batch,
    run from two different averages, tells m; every batch run from zeros then gives its own statistics. They
    are joined as if all batches were one: of each pair named "mean" and "var" the mean of the means, and
    the variance of the union. Whatever else "batch_stats" holds, and statistics that no batch changes, such
    as those of layers that do not run, stay as they are. The rounding of m limits the relative error, to
    about 1e-5 at a momentum of 0.99.

    Args:
      net: any Flax module with a `space`.
      variables: its variables, with "batch_stats".
      arch: hard or soft; None for a network of one architecture.
      batches: a pytree of inputs with one more axis in front, of batches of equal size.
      key: for random layers such as dropout, which run as in training; a fixed one by default.

    Returns:
      The variables with new "batch_stats"; the others are the same arrays.

    Raises:
      ValueError: no batches, variables of another network, or one without batch statistics.
    """
    network.check_contract(net)
    if not variables.get(STATISTICS):
        raise ValueError(
            f"{type(net).__name__} has no batch statistics to calibrate: its variables have the collections "
            f"{sorted(variables)}, and no 'batch_stats'."
        )
    lengths = {leaf.shape[0] for leaf in jax.tree.leaves(batches) if jnp.ndim(leaf)}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            "calibrate needs at least one batch: a pytree of inputs whose arrays have an axis of batches in "
            f"front, the same for all; got {describe(batches)}."
        )
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batches)
    try:
        network.annotated(net, example)
    except ValueError as error:
        raise ValueError(
            "calibrate takes batches stacked along a new first axis, as by jnp.stack; from "
            f"{describe(batches)} each has {describe(example)}. {error}"
        ) from error
    variables = network.check_variables(net, variables, example)
    key = jax.random.key(0) if key is None else key
    old = flatten(variables[STATISTICS])
    averages = statistics_of(old)

    def run(start: float, batch: Any) -> dict[tuple[str, ...], jax.Array]:
        flat = {path: jnp.full_like(x, start) if path in averages else x for path, x in old.items()}
        given = {**variables, STATISTICS: unflatten(flat)}
        _, changed = net.apply(given, batch, arch, train=True, mutable=[STATISTICS], rngs=key)
        new = flatten(nn.meta.unbox(changed[STATISTICS]))
        return {path: new[path] for path in averages}

    first = jax.tree.map(lambda x: x[0], batches)
    zero, one = run(0.0, first), run(_START, first)
    found = jax.lax.map(lambda batch: run(0.0, batch), batches)  # [batches, ...]
    new = dict(old)
    changed = {path: (zero[path] != 0) | (one[path] != _START) for path in averages}
    found = {path: x / _share_of_the_batch(zero[path], one[path], changed[path]) for path, x in found.items()}
    for path in averages:
        value = jnp.mean(found[path], axis=0)
        if path[-1] == "var":
            value = value + jnp.var(found[*path[:-1], "mean"], axis=0)
        new[path] = jnp.where(changed[path], value, old[path])
    return {**variables, STATISTICS: unflatten(new)}


def calibrate_one(
    net: nn.Module, variables: dict[str, Any], arch: Arch | None, batches: Any
) -> dict[str, Any]:
    """`calibrate` as a program for one concrete architecture, in which no other options are compiled."""
    if arch is not None:
        arch = {name: np.asarray(value) for name, value in arch.items()}
    return jax.jit(lambda variables, batches: calibrate(net, variables, arch, batches))(variables, batches)


def statistics_of(stored: dict[Path, Any]) -> set[Path]:
    """The paths of the pairs "mean" and "var" among arrays of "batch_stats"."""
    pairs = {path[:-1] for path in stored if {(*path[:-1], "mean"), (*path[:-1], "var")} <= stored.keys()}
    return {(*layer, name) for layer in pairs for name in ("mean", "var")}


def check_calibrated(net: nn.Module, variables: dict[str, Any]) -> None:
    """Raises ValueError for batch statistics that all have their initial values, which no data gave."""
    stored = flatten(nn.meta.unbox(variables.get(STATISTICS, {})))
    found = statistics_of(stored)
    if found and all(np.all(np.asarray(stored[path]) == (path[-1] == "var")) for path in found):
        raise ValueError(
            f"The batch statistics of {type(net).__name__} have their initial values, means of 0 and "
            "variances of 1: training does not change them, since each architecture has its own. Make them "
            "from training batches by jaxnas.calibrate(net, variables, arch, batches), or by "
            "jaxnas.extract(..., batches=batches)."
        )


def _share_of_the_batch(zero: jax.Array, one: jax.Array, changed: jax.Array) -> jax.Array:
    """The factor 1 - m of a batch in a running average; 1 where no element is changed."""
    # All elements have the same momentum: its mean is rounded less than each of them.
    momenta = jnp.where(changed, (one - zero) / _START, jnp.zeros_like(zero))
    count = jnp.sum(changed, dtype=zero.dtype)
    return jnp.where(count > 0, 1 - jnp.sum(momenta) / jnp.maximum(count, 1), jnp.ones_like(count))

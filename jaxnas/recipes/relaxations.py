"""Relaxations: pure functions from architecture parameters to soft or hard architectures.

Each takes (logits, key, temperature), as `space.logits()` shapes them, and returns an architecture: they
can stand for one another in a training step.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from jaxnas.space import Arch

Kind = Literal["constant", "exponential", "linear"]
Relaxation = Callable[[Arch, jax.Array, Any], Arch]


def gumbel_softmax(logits: Arch, key: jax.Array, temperature: Any) -> Arch:
    """Weights that approach a categorical sample as the temperature falls (Jang et al., ICLR 2017).

    Args:
      logits: float [..., options] by name.
      key: consumed.
      temperature: float [], above 0; traced values are not checked.
    """
    check_temperature(temperature)
    return {
        name: jax.nn.softmax((logits[name] + jax.random.gumbel(k, logits[name].shape)) / temperature)
        for name, k in _keys(logits, key).items()
    }


def straight_through(logits: Arch, key: jax.Array, temperature: Any) -> Arch:
    """A sample as one-hot weights, with the gradient of `gumbel_softmax` of the same key."""

    def harden(soft: jax.Array) -> jax.Array:
        hard = jax.nn.one_hot(jnp.argmax(soft, axis=-1), soft.shape[-1], dtype=soft.dtype)
        # In this order the values are exactly 0 and 1: a - a + b, and not (b + a) - a.
        return soft - jax.lax.stop_gradient(soft) + hard

    return jax.tree.map(harden, gumbel_softmax(logits, key, temperature))


def softmax(logits: Arch, key: jax.Array | None = None, temperature: Any = 1.0) -> Arch:
    """The probabilities of the options (DARTS, arXiv 1806.09055, section 2.2); the key is not used."""
    _check_key(key)
    check_temperature(temperature)
    return jax.tree.map(lambda x: jax.nn.softmax(x / temperature), logits)


def average(logits: Arch, key: jax.Array | None = None, temperature: Any = 1.0) -> Arch:
    """Every option with equal weight, whatever the logits (fixed alpha, arXiv 2108.04392, section 6)."""
    _check_key(key)
    del temperature

    def equal(x: jax.Array) -> jax.Array:
        there = (jax.lax.stop_gradient(x) > -5e8).astype(x.dtype)  # see space.logits()
        return there / jnp.sum(there, axis=-1, keepdims=True)

    return jax.tree.map(equal, logits)


def _check_key(key: Any) -> None:
    """Raises TypeError for a number in the place of a key: a temperature comes after it."""
    if isinstance(key, numbers.Number):
        raise TypeError(
            f"The second argument of a relaxation is a key of jax.random; got {key!r}. Give a temperature by "
            f"its name, as temperature={key!r}."
        )


def _keys(logits: Arch, key: jax.Array) -> dict[str, jax.Array]:
    if key is None:
        raise TypeError("A sample needs a key, such as jax.random.key(0); got None.")
    # By name, since a dict that comes out of a compiled program is in another order.
    return dict(zip(sorted(logits), jax.random.split(key, len(logits)), strict=True))


RELAXATIONS: dict[str, Relaxation] = {
    "gumbel_softmax": gumbel_softmax,
    "straight_through": straight_through,
    "softmax": softmax,
    "average": average,
}


def check_temperature(temperature: Any) -> None:
    """Raises ValueError for a temperature, if it is known, that is not above 0 and finite."""
    if not isinstance(temperature, jax.core.Tracer) and not 0 < float(temperature) < math.inf:
        raise ValueError(
            f"The temperature is {float(temperature)}, expected one above 0, and finite; towards 0 samples "
            "become hard, so end an annealing at 0.1, say."
        )


def temperature_schedule(kind: str, start: float, end: float, steps: int) -> optax.Schedule:
    """The temperature by step: constant at `start`, or from `start` to `end` over `steps`."""
    if kind == "constant":
        return optax.constant_schedule(start)
    if kind == "exponential":
        return optax.exponential_decay(start, steps, end / start, end_value=end)
    return optax.linear_schedule(start, end, steps)


def entropy(weights: Arch) -> jax.Array:
    """The mean entropy of the decisions in nats, float32 []; `weights` are probabilities."""
    each = [-jnp.sum(jax.scipy.special.xlogy(p, p), axis=-1).reshape(-1) for p in weights.values()]
    return jnp.mean(jnp.concatenate(each))


def confidence(weights: Arch) -> jax.Array:
    """The largest probability of the least decided decision, float32 []."""
    return jnp.min(jnp.concatenate([jnp.max(p, axis=-1).reshape(-1) for p in weights.values()]))

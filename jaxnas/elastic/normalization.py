"""Batch normalization of an elastic number of channels.

Its statistics belong to no architecture: they are a function of weights, architecture and data. In training
those of the batch are used, and `jaxnas.calibrate` makes the stored ones for one architecture.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from jaxnas.elastic.layers import Arrays
from jaxnas.elastic.parameter import annotate, parameter
from jaxnas.elastic.switch import Keep, as_rows, run
from jaxnas.elastic.width import Width

STATISTICS = "batch_stats"


@dataclasses.dataclass(frozen=True)
class _Normalize:
    """Normalizes rows x [N, C] by given statistics [C], in float32, and applies the activation."""

    epsilon: float
    dtype: Any
    activation: Callable[[jax.Array], jax.Array] | None

    def __call__(
        self, x: jax.Array, scale: jax.Array, bias: jax.Array, mean: jax.Array, variance: jax.Array
    ) -> jax.Array:
        factor = lax.rsqrt(variance + self.epsilon) * scale
        y = (x.astype(jnp.float32) - mean[None, :]) * factor[None, :] + bias[None, :]
        y = y.astype(self.dtype)
        return y if self.activation is None else self.activation(y)


@dataclasses.dataclass(frozen=True)
class _NormalizeBatch:
    """Normalizes rows x [N, C] by their own statistics, which it returns too, without a gradient."""

    normalize: _Normalize

    def __call__(self, x: jax.Array, scale: jax.Array, bias: jax.Array, *, keep: Keep) -> Arrays:
        rows = x.astype(jnp.float32)
        mean = keep(jnp.mean(rows, axis=0))
        variance = keep(jnp.mean(jnp.square(rows - mean[None, :]), axis=0))
        y = self.normalize(x, scale, bias, mean, variance)
        return y, lax.stop_gradient(mean), lax.stop_gradient(variance)


class BatchNorm(nn.Module):
    """Batch normalization over the active channels, for arrays with channels last.

    In training the statistics of the batch are used. Where "batch_stats" is mutable, running averages of them
    are stored there, as Flax does: `momentum * old + (1 - momentum) * batch`, with the biased variance. Those
    of channels that are not active stay as they are. In evaluation the stored ones are used: make those
    of an architecture by `jaxnas.calibrate` before it is scored or extracted.

    Example, in the `compact` method of a network called with `train`:

        x = elastic.BatchNorm(activation=jax.nn.relu, name="norm")(x, width, train=train)

    Attributes:
      momentum: of the running averages, 1 minus that of PyTorch; 0 stores the last batch's statistics.
      epsilon: added to the variance.
      dtype: of the result; statistics are computed in float32.
      scale_init: initializer; with zeros a residual branch is 0 at the start.
      activation: a function of arrays that is applied to the result, element by element. It is computed at
        the active sizes here, and outside it would be at the largest ones. Give a function that a module
        defines, since a new lambda in each call is traced anew.
    """

    momentum: float = 0.9
    epsilon: float = 1e-5
    dtype: Any = jnp.float32
    scale_init: nn.initializers.Initializer = nn.initializers.ones
    activation: Callable[[jax.Array], jax.Array] | None = None

    @nn.compact
    def __call__(
        self, x: jax.Array, width: Width, *, train: bool, gate: Width | None = None, max_branches: int = 3
    ) -> jax.Array:
        """Normalizes x [..., maximum] over all axes but the last; zero beyond the active channels.

        Args:
          x: with zeros beyond `width`.
          width: active channels.
          train: whether to use the batch's statistics.
          gate: 0 where the layer is skipped, which gives zeros and stores nothing.
          max_branches: see `run`. There are few by default, since the layer is cheap in its network.
        """
        if gate is not None and not gate.maximum:  # no architecture of the space runs it
            return jnp.zeros(x.shape, self.dtype)
        scale = parameter(self, "scale", self.scale_init, (width,), gate=gate)
        bias = parameter(self, "bias", nn.initializers.zeros, (width,), gate=gate)
        stored = [
            self.variable(STATISTICS, "mean", jnp.zeros, width.maximum),
            self.variable(STATISTICS, "var", jnp.ones, width.maximum),
        ]
        for name in ("mean", "var"):
            annotate(self, name, (width,), gate=gate)
        normalize = _Normalize(self.epsilon, self.dtype, self.activation)
        options = dict(gate=gate, maskable=("channels",), max_branches=max_branches)
        operands, axes = (as_rows(x), scale, bias), "rows channels, channels, channels"
        if not train:
            axes += ", channels, channels -> rows channels"
            statistics = [variable.value for variable in stored]
            y = run(normalize, axes, {"channels": width}, *operands, *statistics, **options)
            return y.reshape(x.shape)
        axes += " -> rows channels, channels, channels"
        y, *batch = run(_NormalizeBatch(normalize), axes, {"channels": width}, *operands, **options)
        if self.is_mutable_collection(STATISTICS) and not self.is_initializing():
            active = width.mask() > 0
            if gate is not None:
                active = active & (gate.mask() > 0)
            for variable, new in zip(stored, batch, strict=True):
                average = self.momentum * variable.value + (1 - self.momentum) * new
                variable.value = jnp.where(active, average, variable.value)
        return y.reshape(x.shape)

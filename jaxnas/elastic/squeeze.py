"""Squeeze-and-excitation: each channel is weighted by what all channels of an image are on average."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.elastic.layers import Dense, Initializer
from jaxnas.elastic.width import Width


class SqueezeExcite(nn.Module):
    """Squeeze-and-excitation (Hu et al., CVPR 2018, section 3) of an elastic number of channels.

    Example, in the `compact` method of a network with the choice `squeeze` of 0 and 1:

        on = elastic.width(int, decisions["squeeze"])
        x = elastic.SqueezeExcite(name="squeeze")(x, width, elastic.fixed(8), gate=on)

    Attributes:
      activation: of the hidden channels.
      dtype: of the computation; parameters are float32.
      kernel_init: initializer of both kernels.
    """

    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu
    dtype: Any = jnp.float32
    kernel_init: Initializer = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, x: jax.Array, width: Width, hidden: Width, *, gate: Width | None = None) -> jax.Array:
        """Maps images x [B, H, W, maximum] to the same shape, zero beyond the active width.

        Args:
          x: images with zeros beyond `width`.
          width: active channels of x.
          hidden: active channels between the two dense layers.
          gate: 0 where the layer is left out, which gives x itself.
        """
        if gate is not None and gate.maximum == 0:
            return x
        common = dict(gate=gate, max_branches=1)  # small in any network
        make = {"dtype": self.dtype, "kernel_init": self.kernel_init}
        mean = jnp.mean(x, axis=(1, 2))  # [B, maximum]
        squeezed = self.activation(Dense(name="in", **make)(mean, width, hidden, **common))
        scale = jax.nn.sigmoid(Dense(name="out", **make)(squeezed, hidden, width, **common))
        if gate is not None and not gate.is_fixed:
            on = gate.mask(scale.dtype)[0]
            scale = on * scale + (1 - on)
        return x * scale[:, None, None, :]

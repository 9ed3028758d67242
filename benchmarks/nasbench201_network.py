"""The networks of NAS-Bench-201 as one supernet (Dong and Yang, ICLR 2020, section 2.2)."""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas import elastic
from jaxnas.space import Arch, Space
from jaxnas.tabular.nasbench201 import EDGES, SPACE

# The initial kernels of PyTorch, with which the benchmark's networks and published proxies were made.
_INIT = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


class Convolution(nn.Module):
    """ReLU, a convolution without a bias, and batch normalization."""

    channels: int
    kernel: int
    strides: int = 1

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Maps x [B, H, W, C] to [B, H / strides, W / strides, channels]."""
        y = _convolve(nn.relu(x), self.channels, self.kernel, self.strides, "conv")
        return elastic.BatchNorm(name="norm")(y, elastic.fixed(self.channels), train=train)


def _convolve(x: jax.Array, channels: int, kernel: int, strides: int, name: str) -> jax.Array:
    conv = elastic.Conv((strides, strides), symmetric=True, use_bias=False, kernel_init=_INIT, name=name)
    return conv(x, elastic.fixed(x.shape[-1]), elastic.fixed(channels), elastic.fixed(kernel))


class Zero(nn.Module):
    """No edge."""

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Zeros of the shape of x."""
        return jnp.zeros_like(x)


class Identity(nn.Module):
    """A skip connection."""

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """The same x."""
        return x


class AveragePool(nn.Module):
    """The mean of 3 x 3 places, without those outside of the image."""

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Maps x [B, H, W, C] to the same shape."""
        # Sums of shifted images, which XLA:CPU fuses; a window runs place by place.
        count = jnp.ones((1, *x.shape[1:3], 1), x.dtype)
        return _sums(_sums(x, 1), 2) / _sums(_sums(count, 1), 2)


def _sums(x: jax.Array, axis: int) -> jax.Array:
    size = x.shape[axis]
    x = jnp.pad(x, [(int(i == axis), int(i == axis)) for i in range(x.ndim)])
    shifted = [x[(slice(None),) * axis + (slice(at, at + size),)] for at in range(3)]
    return shifted[0] + shifted[1] + shifted[2]


class Cell(nn.Module):
    """Four nodes, and an operation on each of the six edges from earlier ones; a node is a sum."""

    channels: int

    @nn.compact
    def __call__(self, x: jax.Array, decisions: elastic.Decisions, train: bool) -> jax.Array:
        """Maps x [B, H, W, channels] to the same shape."""
        nodes = [x]
        for node in (1, 2, 3):
            terms = []
            for edge, (start, end) in enumerate(EDGES.tolist()):
                if end == node:
                    blocks = {
                        "none": Zero(),
                        "skip_connect": Identity(),
                        "nor_conv_1x1": Convolution(self.channels, 1, name=f"edge_{edge}_nor_conv_1x1"),
                        "nor_conv_3x3": Convolution(self.channels, 3, name=f"edge_{edge}_nor_conv_3x3"),
                        "avg_pool_3x3": AveragePool(),
                    }
                    mixture = elastic.Mixture(blocks, name=f"edge_{edge}")
                    terms.append(mixture(decisions["op", edge], nodes[start], train=train))
            nodes.append(functools.reduce(jnp.add, terms))
        return nodes[-1]


class Reduction(nn.Module):
    """A residual block that halves the image and doubles the channels."""

    channels: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Maps x [B, H, W, C] to [B, H / 2, W / 2, channels]."""
        y = Convolution(self.channels, 3, 2, name="first")(x, train)
        y = Convolution(self.channels, 3, name="second")(y, train)
        batch, height, width, before = x.shape
        halved = x.reshape(batch, height // 2, 2, width // 2, 2, before).mean((2, 4))
        return y + _convolve(halved, self.channels, 1, 1, "shortcut")


class NasBench201(nn.Module):
    """A stem, three stages of equal cells with a reduction between them, and a linear classifier.

    Attributes:
      space: an operation for each edge of the cell; `jaxnas.tabular.nasbench201.SPACE`, or a part of it.
      cells: of each stage; the benchmark's networks have 5.
      channels: of the first stage.
      num_classes: logits.
    """

    space: Space = SPACE
    cells: int = 5
    channels: int = 16
    num_classes: int = 10

    @nn.compact
    def __call__(self, images: jax.Array, arch: Arch | None = None, *, train: bool = False) -> jax.Array:
        """Classifies images float [B, H, W, 3], H and W divisible by 4: logits [B, num_classes]."""
        decisions = elastic.Decisions(self.space, arch, initializing=self.is_initializing())
        x = _convolve(images, self.channels, 3, 1, "stem")
        x = elastic.BatchNorm(name="stem_norm")(x, elastic.fixed(self.channels), train=train)
        for stage in range(3):
            channels = self.channels * 2**stage
            if stage:
                x = Reduction(channels, name=f"reduction_{stage}")(x, train)
            for cell in range(self.cells):
                x = Cell(channels, name=f"stage_{stage}_cell_{cell}")(x, decisions, train)
        norm = elastic.BatchNorm(activation=nn.relu, name="norm")
        x = norm(x, elastic.fixed(x.shape[-1]), train=train).mean((1, 2))
        return nn.Dense(self.num_classes, kernel_init=_INIT, name="head")(x)

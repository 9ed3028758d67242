"""A residual convolutional network for small pictures, with elastic widths, depths and kernel sizes.

Pre-activation blocks (He et al., ECCV 2016) without normalization, whose last convolution starts at zero (as
in Fixup, Zhang et al., ICLR 2019), and the maximum over all places in front of the classifier. On some
hundred to thousand pictures this learns in fewer steps than averages and normalizations do, and no batch
statistics need to be calibrated.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.checks import check_counts, check_numbers
from jaxnas.elastic.convolution import Conv
from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.layers import Dense
from jaxnas.elastic.width import Width, fixed, width
from jaxnas.space import Arch, Space, check_space
from jaxnas.supernets.schema import Needs, check_decisions


class Block(nn.Module):
    """A residual block of a stage."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, channels: Width, kernel: Width, gate: Width) -> jax.Array:
        """Maps x [B, H, W, channels maximum] to the same shape; nothing of it runs where `gate` is 0."""
        y = Conv(dtype=self.dtype, name="spatial")(nn.relu(x), channels, channels, kernel, gate=gate)
        last = Conv(kernel_init=nn.initializers.zeros, dtype=self.dtype, name="pointwise")
        return x + last(nn.relu(y), channels, channels, fixed(1), gate=gate)


class ConvNet(nn.Module):
    """A supernet of residual convolutional networks, over a space with the choices of each stage.

    Stage i, from 1 on, has `depth_i` blocks of `width_i` channels, and each block its own `kernel_i`; see
    `jaxnas.spaces.convnet`. A convolution of 3 x 3 leads into each stage and halves height and width; that of
    the first stage does so for images of at least 24 x 24 only.

    Attributes:
      space: the search space.
      num_classes: logits.
      dropout: of the channels before the classifier.
      dtype: of the computation, float32 or bfloat16; parameters are float32.
    """

    space: Space
    num_classes: int
    dropout: float = 0.0
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "num_classes")
        check_numbers(self, "dropout", least=0, below=1)
        check_space(self.space, "ConvNet")
        needs = {}
        for i in range(1, max(self.stages, 1) + 1):
            needs |= {f"width_{i}": Needs(), f"depth_{i}": Needs(least=0)}
            needs[f"kernel_{i}"] = Needs(times=f"depth_{i}")
        check_decisions("ConvNet", self.space, needs, "jaxnas.spaces.convnet(...)")

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len([name for name in self.space.choices if name.startswith("width_")])

    @nn.compact
    def __call__(self, images: jax.Array, arch: Arch | None = None, *, train: bool = False) -> jax.Array:
        """Classifies images.

        Args:
          images: float [B, H, W, channels].
          arch: architecture of the space; not needed if the space has only one.
          train: whether dropout is on (needs the "dropout" random stream).

        Returns:
          Logits, float32 [B, num_classes].
        """
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        x, before = images, fixed(images.shape[-1])
        for stage in range(1, self.stages + 1):
            channels = width(int, decisions[f"width_{stage}"])
            strides = (1, 1) if stage == 1 and min(x.shape[1:3]) < 24 else (2, 2)
            x = Conv(strides, dtype=self.dtype, name=f"into_{stage}")(x, before, channels, fixed(3))
            for i in range(int(self.space[f"depth_{stage}"].table.max())):
                gate = width(lambda depth, i=i: int(i < depth), decisions[f"depth_{stage}"])
                kernel = width(int, decisions[f"kernel_{stage}", i])
                x = Block(self.dtype, name=f"stage_{stage}_block_{i}")(x, channels, kernel, gate)
            before, x = channels, nn.relu(x)
        x = nn.Dropout(self.dropout, deterministic=not train)(x.max(axis=(1, 2)))
        return Dense(name="head")(x, before, fixed(self.num_classes)).astype(jnp.float32)

"""A residual MLP with elastic width, depth and hidden widths, for rows of numbers."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.checks import check_counts, check_numbers
from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.layers import Dense, LayerNorm, Mlp
from jaxnas.elastic.width import fixed, width
from jaxnas.space import Space
from jaxnas.supernets.schema import Needs, check_decisions


class TableMlp(nn.Module):
    """A residual MLP over a space with `width`, `depth` and `hidden`, see `spaces.mlp`.

    Blocks of a layer normalization and an MLP are added to a residual stream, as in the ResNet for tables of
    Gorishniy et al. (NeurIPS 2021, section 3.2).

    Attributes:
      space: the search space.
      num_outputs: logits, or 1 for a regression.
      dropout: of the result of each block in training.
      dtype: of the computation, float32 or bfloat16; parameters are float32.
    """

    space: Space
    num_outputs: int
    dropout: float = 0.0
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "num_outputs")
        check_numbers(self, "dropout", least=0, below=1)
        needs = {"width": Needs(), "depth": Needs(), "hidden": Needs(times="depth")}
        check_decisions("TableMlp", self.space, needs, "jaxnas.spaces.mlp((16, 32))")

    @nn.compact
    def __call__(
        self, rows: jax.Array, arch: dict[str, jax.Array] | None = None, *, train: bool = False
    ) -> jax.Array:
        """Maps rows to outputs with the sub-network `arch`.

        Args:
          rows: float [B, F].
          arch: architecture of the space, hard or soft; not needed if the space has only one.
          train: whether dropout is on (needs the "dropout" random stream).

        Returns:
          float32 [B, num_outputs].
        """
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        channels = width(int, decisions["width"], axis="embed")
        x = Dense(dtype=self.dtype, name="in")(rows, fixed(rows.shape[-1]), channels)
        for i in range(int(self.space["depth"].table.max())):
            gate = width(lambda depth, i=i: int(i < depth), decisions["depth"])
            hidden = width(int, decisions["hidden", i], axis="mlp")
            norm = LayerNorm(dtype=self.dtype, name=f"norm_{i}")(None, channels, gate=gate)
            y = Mlp(dtype=self.dtype, name=f"block_{i}")(x, channels, hidden, gate=gate, norm=norm)
            x = x + nn.Dropout(self.dropout, deterministic=not train)(y)
        x = LayerNorm(dtype=self.dtype, name="norm")(x, channels, max_branches=1)
        out = Dense(dtype=self.dtype, name="out")(x, channels, fixed(self.num_outputs), max_branches=1)
        return out.astype(jnp.float32)

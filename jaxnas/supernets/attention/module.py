"""The interface of the modules, and projections to heads and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.elastic.parameter import parameter
from jaxnas.elastic.width import fixed
from jaxnas.supernets.attention.core import check_mask, check_sizes


class Attention(nn.Module, kw_only=True):
    """Multi-head attention by a mechanism, which a subclass gives as `attend`. Projections have no biases.

    Attributes:
      num_heads: number of heads H.
      head_dim: channels of a head d; None is the width of the input divided by the number of heads.
      dtype: of the computation; parameters, and sums of a softmax, are float32.
      kernel_init: initializer of all kernels.
    """

    num_heads: int
    head_dim: int | None = None
    dtype: Any = jnp.float32
    kernel_init: Callable[..., jax.Array] = nn.initializers.xavier_uniform()

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, *, train: bool = False) -> jax.Array:
        """Attends.

        Args:
          x: float [B, T, E].
          mask: bool [B, T], True where a token is. What x holds elsewhere changes nothing.
          train: nothing depends on it; it is there for the interface of blocks.

        Returns:
          An array like x, in the dtype of the computation; 0 where there is no token.

        Raises:
          ValueError: shapes that do not fit each other or the module's fields.
          TypeError: a mask that is not bool.
        """
        if x.ndim != 3:
            raise ValueError(f"Attention takes [batch, positions, channels]; got {tuple(x.shape)}.")
        check_mask(mask, (x.shape[0], x.shape[1]))
        check_sizes(type(self).__name__, num_heads=self.num_heads, head_dim=self.size(x))
        x = jnp.where(mask[:, :, None], x, jnp.zeros_like(x)).astype(self.dtype)
        attended = self.attend(x, mask)  # [B, H, T, d]
        rows = attended.transpose(0, 2, 1, 3).reshape(-1, self.num_heads * self.size(x))  # [B T, H d]
        return (rows @ self.matrix("out_kernel", rows.shape[-1], x.shape[-1], ("heads", "embed"))).reshape(
            x.shape
        )

    def attend(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """The heads' outputs [B, H, T, d], of x [B, T, E] with zeros at padded positions."""
        raise NotImplementedError

    def size(self, x: jax.Array) -> int:
        """Channels of a head."""
        if self.head_dim is None and x.shape[-1] % max(self.num_heads, 1):
            raise ValueError(
                f"{x.shape[-1]} channels cannot be divided among {self.num_heads} heads. Take a number of "
                "heads that divides them, or give head_dim."
            )
        return x.shape[-1] // max(self.num_heads, 1) if self.head_dim is None else self.head_dim

    def heads(self, x: jax.Array, *names: str) -> list[jax.Array]:
        """Projects x [B, T, E] to heads [B, H, T, d], once for each name of a kernel."""
        size = self.size(x)
        kernels = [
            self.matrix(f"{name}_kernel", x.shape[-1], self.num_heads * size, ("embed", "heads"))
            for name in names
        ]
        shape = (*x.shape[:2], self.num_heads, size)
        rows = x.reshape(-1, x.shape[-1])  # over flattened rows it is one plain matrix product
        return [(rows @ kernel).reshape(shape).transpose(0, 2, 1, 3) for kernel in kernels]

    def matrix(
        self, name: str, size_in: int, size_out: int, axes: tuple[str | None, str | None]
    ) -> jax.Array:
        """Declares a matrix of parameters, in the dtype of the computation."""
        widths = fixed(size_in, axes[0]), fixed(size_out, axes[1])
        return parameter(self, name, self.kernel_init, widths).astype(self.dtype)

    def matrices(self, name: str, size_in: int, size_out: int) -> jax.Array:
        """Declares a matrix for each head [H, size_in, size_out], each initialized as one of its own."""

        def init(key: jax.Array, shape: tuple[int, ...], *args: Any) -> jax.Array:
            keys = jax.random.split(key, shape[0])
            return jax.vmap(lambda key: self.kernel_init(key, shape[1:], *args))(keys)

        widths = fixed(self.num_heads, "heads"), fixed(size_in), fixed(size_out)
        return parameter(self, name, init, widths).astype(self.dtype)

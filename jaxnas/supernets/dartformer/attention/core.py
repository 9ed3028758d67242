"""Parts that the mechanisms share: blocks of positions, a softmax over several sets of keys, and the module.

Sequences are cut into blocks of neighboring positions, and a query meets only the blocks that its
mechanism names. The keys of one query often lie in several arrays: a window, global tokens, random blocks. A
softmax over all of them needs no array with all scores: the sums over each set are joined at the end.

Shapes: B examples, H heads, T positions, d channels of a head, N blocks, s positions of a block, Q queries
and K keys that meet.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from jaxnas.elastic.parameter import parameter
from jaxnas.elastic.width import fixed

NEVER = -1e30  # the score of what is not seen: finite, so that a query that sees nothing has no NaN
Keys = tuple[Array, Array, Array]  # keys [..., K, d], values [..., K, e], seen [..., Q or 1, K]


class Partial(NamedTuple):
    """The attention of queries over one set of keys, before it is divided by its total; all float32.

    Attributes:
      value: values weighted by exp(score - largest), [..., Q, e].
      total: the sum of these weights, [..., Q, 1]; 0 where nothing is seen.
      largest: the greatest score, [..., Q, 1].
    """

    value: Array
    total: Array
    largest: Array


def weigh(scores: Array, value: Array, seen: Array) -> Partial:
    """Attends to one set of keys.

    Args:
      scores: float32 [..., Q, K].
      value: [..., K, e]; products are computed in its dtype, and summed in float32.
      seen: which keys each query may see, bool, broadcastable to the scores.
    """
    scores = jnp.where(seen, scores, NEVER)
    # A softmax does not depend on the shift, so no gradient has to pass through it.
    largest = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.where(seen, jnp.exp(scores - largest), 0.0)
    kept = dict(preferred_element_type=jnp.float32)
    summed = jnp.einsum("...qk,...ke->...qe", weights.astype(value.dtype), value, **kept)
    return Partial(summed, jnp.sum(weights, axis=-1, keepdims=True), largest)


def join(*parts: Partial) -> Array:
    """The softmax over all keys of all parts, float32 [..., Q, e]; 0 for a query that sees none."""
    largest = functools.reduce(jnp.maximum, [part.largest for part in parts])
    shares = [jnp.exp(part.largest - largest) for part in parts]
    total = sum(share * part.total for share, part in zip(shares, parts, strict=True))
    value = sum(share * part.value for share, part in zip(shares, parts, strict=True))
    return value / jnp.where(total > 0, total, 1.0)


def product(query: Array, key: Array) -> Array:
    """The scores q . k / sqrt(d), float32 [..., Q, K]."""
    scale = jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    return jnp.einsum("...qd,...kd->...qk", query * scale, key, preferred_element_type=jnp.float32)


def attend(query: Array, *sets: Keys) -> Array:
    """Softmax attention of queries [..., Q, d] over all keys of several sets; [..., Q, e], as the queries."""
    parts = [weigh(product(query, key), value, seen) for key, value, seen in sets]
    return join(*parts).astype(query.dtype)


def split(x: Array, size: int) -> Array:
    """Cuts positions into blocks: [..., T, d] -> [..., N, s, d], with zeros (False) behind the last."""
    *lead, length, channels = x.shape
    count = -(-length // size)
    x = jnp.pad(x, [(0, 0)] * len(lead) + [(0, count * size - length), (0, 0)])
    return x.reshape(*lead, count, size, channels)


def unsplit(x: Array, mask: Array) -> Array:
    """Puts blocks together: [B, H, N, s, d] -> [B, H, T, d], with zeros where the mask [B, T] is False."""
    *lead, count, size, channels = x.shape
    return clear(x.reshape(*lead, count * size, channels)[..., : mask.shape[1], :], mask)


def clear(x: Array, mask: Array) -> Array:
    """Zeros at padded positions of x [B, H, T, d], by the mask [B, T]."""
    return jnp.where(mask[:, None, :, None], x, jnp.zeros_like(x))


def split_mask(mask: Array, size: int) -> Array:
    """Cuts a mask [B, T] as `split` cuts what it masks: [B, 1, N, 1, s], to mask the keys of blocks."""
    return split(mask[:, None, :, None], size).swapaxes(-1, -2)


def neighbors(x: Array, before: int, after: int) -> Array:
    """Each block with those around it: [..., N, s, d] -> [..., N, (before + 1 + after) s, d].

    Beyond the ends there are zeros. Slices that are put together, not a gather: their gradient is a sum.
    """
    count = x.shape[-3]
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [(before, after), (0, 0), (0, 0)])
    return jnp.concatenate([padded[..., i : i + count, :, :] for i in range(before + 1 + after)], axis=-2)


def check_sizes(mechanism: str, least: int = 1, **sizes: int) -> None:
    """Raises a ValueError for a size of a mechanism that is below the least one."""
    for name, size in sizes.items():
        if size < least:
            raise ValueError(f"{mechanism}: {name} is {size}, expected at least {least}.")


def check_length(length: int, longest: int, what: str) -> None:
    """Raises a ValueError for a sequence that is longer than a mechanism with fixed parameters takes."""
    if length > longest:
        raise ValueError(
            f"{what} has parameters for max_length={longest} positions; got a sequence of {length}. "
            "Cut the sequence, or make the module with a greater max_length."
        )


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
    kernel_init: Callable[..., Array] = nn.initializers.xavier_uniform()

    @nn.compact
    def __call__(self, x: Array, mask: Array, *, train: bool = False) -> Array:
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
        check_sizes("attention", positions=x.shape[1])
        if mask.dtype != jnp.bool_:
            raise TypeError(f"A mask is bool, True where a token is; got {mask.dtype}. Write `mask != 0`.")
        if mask.shape != x.shape[:2]:
            raise ValueError(f"A mask has an entry for each position, {x.shape[:2]}; got {mask.shape}.")
        check_sizes(type(self).__name__, num_heads=self.num_heads, head_dim=self.size(x))
        x = jnp.where(mask[:, :, None], x, jnp.zeros_like(x)).astype(self.dtype)
        attended = self.attend(x, mask)  # [B, H, T, d]
        rows = attended.transpose(0, 2, 1, 3).reshape(-1, self.num_heads * self.size(x))  # [B T, H d]
        kernel = self.matrix("out_kernel", rows.shape[-1], x.shape[-1], ("heads", "embed"))
        return (rows @ kernel).reshape(x.shape)

    def attend(self, x: Array, mask: Array) -> Array:
        """The heads' outputs [B, H, T, d], of x [B, T, E] with zeros at padded positions."""
        raise NotImplementedError

    def size(self, x: Array) -> int:
        """Channels of a head."""
        if self.head_dim is None and x.shape[-1] % max(self.num_heads, 1):
            raise ValueError(
                f"{x.shape[-1]} channels cannot be divided among {self.num_heads} heads. Take a number of "
                "heads that divides them, or give head_dim."
            )
        return x.shape[-1] // max(self.num_heads, 1) if self.head_dim is None else self.head_dim

    def heads(self, x: Array, *names: str) -> list[Array]:
        """Projects x [B, T, E] to heads [B, H, T, d], once for each name of a kernel."""
        size, axes = self.size(x), ("embed", "heads")
        sizes = x.shape[-1], self.num_heads * size
        kernels = [self.matrix(f"{name}_kernel", *sizes, axes) for name in names]
        shape = (*x.shape[:2], self.num_heads, size)
        rows = x.reshape(-1, x.shape[-1])  # over flattened rows it is one plain matrix product
        return [(rows @ kernel).reshape(shape).transpose(0, 2, 1, 3) for kernel in kernels]

    def qkv(self, x: Array) -> tuple[Array, Array, Array]:
        """Queries, keys and values of x [B, T, E], each [B, H, T, d]."""
        query, key, value = self.heads(x, "query", "key", "value")
        return query, key, value

    def matrix(self, name: str, size_in: int, size_out: int, axes: tuple[str | None, str | None]) -> Array:
        """Declares a matrix of parameters, in the dtype of the computation."""
        widths = fixed(size_in, axes[0]), fixed(size_out, axes[1])
        return parameter(self, name, self.kernel_init, widths).astype(self.dtype)

    def matrices(self, name: str, size_in: int, size_out: int) -> Array:
        """Declares a matrix for each head [H, size_in, size_out], each initialized as one of its own."""

        def init(key: Array, shape: tuple[int, ...], *args: Any) -> Array:
            keys = jax.random.split(key, shape[0])
            return jax.vmap(lambda key: self.kernel_init(key, shape[1:], *args))(keys)

        widths = fixed(self.num_heads, "heads"), fixed(size_in), fixed(size_out)
        return parameter(self, name, init, widths).astype(self.dtype)

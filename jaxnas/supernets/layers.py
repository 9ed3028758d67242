"""Layers that networks of several systems have, and the sizes of a Transformer as decisions set them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.elastic.attention import RelativePositions, products, relative_entries, skew
from jaxnas.elastic.layers import gelu, normal, trunc_normal
from jaxnas.space import Space
from jaxnas.supernets.schema import RATIO, Needs, check_decisions, check_fit
from jaxnas.transform.places import Place


class Attention(nn.Module):
    """Self-attention; with relative positions, of a class token and the patches of a grid."""

    heads: int
    head_dim: int
    grid: tuple[int, int] = (0, 0)
    max_relative_position: int = 0
    dtype: Any = jnp.float32
    init_std: float | None = None

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Maps tokens [B, T, E] to the same shape; they see those that the mask [B, T] shows."""
        batch, tokens, size = x.shape
        shape = (size, 3, self.heads, self.head_dim)
        init = normal(self.init_std) or nn.initializers.lecun_normal(in_axis=0, out_axis=(1, 2, 3))
        kernel = self.param("qkv_kernel", init, shape).astype(self.dtype)
        bias = self.param("qkv_bias", nn.initializers.zeros, shape[1:]).astype(self.dtype)
        # Plain matrices, [B * T, E] and [B * H, T, D], are what CPUs multiply fastest.
        qkv = x.reshape(-1, size) @ kernel.reshape(size, -1) + bias.reshape(1, -1)
        qkv = qkv.reshape(batch, tokens, *shape[1:]).transpose(2, 0, 3, 1, 4)
        q, k, v = qkv.reshape(3, -1, tokens, self.head_dim)
        q = q * self.head_dim**-0.5
        logits, positions = products(q, k), RelativePositions(self.grid)
        if self.max_relative_position:
            logits += positions.logits(q, self.entries("key"))
        if mask is not None:
            visible = jnp.broadcast_to(mask[:, None, None, :], (batch, self.heads, 1, tokens))
            logits = jnp.where(visible.reshape(-1, 1, tokens), logits, jnp.finfo(jnp.float32).min)
        weights = jax.nn.softmax(logits, axis=-1).astype(self.dtype)
        y = weights @ v
        if self.max_relative_position:
            y += positions.values(weights, self.entries("value"))
        y = y.reshape(batch, -1, tokens, self.head_dim).transpose(0, 2, 1, 3).reshape(batch * tokens, -1)
        return dense(self, size, "projection")(y).reshape(x.shape)

    def entries(self, name: str) -> jax.Array:
        """Entries of the tables of keys or values for all offsets, [offsets, D]."""
        shape = (2 * self.max_relative_position + 2, self.head_dim)
        rows, columns = (self.param(f"{name}_{axis}", trunc_normal, shape) for axis in ("rows", "columns"))
        return relative_entries(rows, columns, self.grid, self.dtype)


class Mlp(nn.Module):
    """Two dense layers."""

    hidden: int
    dtype: Any = jnp.float32
    init_std: float | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps tokens [B, T, E] to the same shape."""
        y = gelu(dense(self, self.hidden, "in")(x.reshape(-1, x.shape[-1])))
        return dense(self, x.shape[-1], "out")(y).reshape(x.shape)


def dense(module: Any, size: int, name: str) -> nn.Dense:
    """A dense layer in the dtype of a module, with kernels of its standard deviation."""
    init = normal(module.init_std) or nn.initializers.lecun_normal()
    return nn.Dense(size, dtype=module.dtype, kernel_init=init, name=name)


def norm(name: str, x: jax.Array) -> jax.Array:
    """Normalizes tokens [B, T, E] by a layer of this name, in float32 and back."""
    return nn.LayerNorm(1e-5, name=name)(x.astype(jnp.float32)).astype(x.dtype)


class Block(nn.Module):
    """A pre-norm block of the layers that these make, with dropout behind each branch."""

    attention: Callable[..., nn.Module]
    mlp: Callable[..., nn.Module]
    dropout: Callable[[], nn.Module]
    remat: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, *mask: jax.Array) -> jax.Array:
        """Maps tokens [B, T, E] to the same shape."""
        run = nn.remat(Block.run) if self.remat else Block.run
        return run(self, x, *mask)

    def run(self, x: jax.Array, *mask: jax.Array) -> jax.Array:
        """Runs the block, of which the backward pass may keep the input only."""
        x = x + self.dropout()(self.attention(name="attention")(norm("attention_norm", x), *mask))
        return x + self.dropout()(self.mlp(name="mlp")(norm("mlp_norm", x)))


def layer_places(space: Space) -> Iterator[Place]:
    """The sizes of a space of `jaxnas.spaces.vit` in a Transformer of the layers "block_0", "block_1", ..."""
    yield Place("norm/scale[0]", (("embed_dim", None),), int)
    for i in range(int(space["depth"].table.max())):
        hidden = ("embed_dim", None), ("mlp_ratio", i)
        yield Place(f"block_{i}/attention/qkv_bias[1]", (("num_heads", i),), int)
        yield Place(f"block_{i}/mlp/in/bias[0]", hidden, lambda size, ratio: int(size * ratio))
        yield Place(f"block_{i}", (("depth", None),), lambda depth, i=i: int(i < depth))


def layer_sizes(sizes: Mapping[str, int]) -> dict[str, Any]:
    """The width, and the heads and hidden channels of each layer, of the sizes of `layer_places`."""
    layers, of_layer = [name for name in sizes if "/" not in name], {}
    for name, axis in {"heads": "attention/qkv_bias[1]", "hidden": "mlp/in/bias[0]"}.items():
        of_layer[name] = tuple(sizes[f"{layer}/{axis}"] for layer in layers)
    return {"width": sizes["norm/scale[0]"], **of_layer}


def check_layers(network: str, space: Space) -> None:
    """Checks that a space has the four decisions of `jaxnas.spaces.vit`, for each layer."""
    of_layer = {"num_heads": Needs(times="depth"), "mlp_ratio": dataclasses.replace(RATIO, times="depth")}
    needs = {"embed_dim": Needs(), "depth": Needs(), **of_layer}
    check_decisions(network, space, needs, "jaxnas.spaces.digits()")
    sizes = ["embed_dim", "mlp_ratio"]
    check_fit(network, space, sizes, lambda e, r: int(e * r) > 0, "a hidden channel at least")


def relative_bias(table: jax.Array) -> jax.Array:
    """The bias of attention logits for each query and key of a window.

    Args:
      table: [2 * window - 1, 2 * window - 1, heads], by the key's row and column less those of the query; the
        middle is for a token and itself.

    Returns:
      [heads, query row, query column, key row, key column]. That of a smaller window is a prefix of it.
    """
    offsets, _, heads = table.shape
    size = (offsets + 1) // 2
    by_row = table.transpose(2, 1, 0)[:, None]  # [heads, 1, column offset, row offset]
    by_row = skew(jnp.broadcast_to(by_row, (heads, size, offsets, offsets)))
    by_column = by_row.transpose(0, 1, 3, 2)[:, :, None]  # [heads, query row, 1, key row, column offset]
    return skew(jnp.broadcast_to(by_column, (heads, size, size, size, offsets)))


def sinusoids(length: int, width: int, clamp: int | None = None) -> np.ndarray:
    """Encodings of the distances length - 1, ..., 0: sines and then cosines, float32 [length, width].

    All distances above `clamp` have the encoding of that one.
    """
    distances = np.arange(length - 1, -1, -1.0)
    if clamp is not None:
        distances = np.minimum(distances, clamp)
    rates = 10000.0 ** -(np.arange(0, width, 2.0) / width)
    angles = distances[:, None] * rates[None, :]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :width].astype(np.float32)


def tuned(vectors: jax.Array | None, tokens: jax.Array, vocabulary: int) -> jax.Array:
    """Adds to each word's vector a difference that is learned, the parameter `difference/embedding`.

    The function and its gradients are those of an embedding that begins with the vectors, and no table of
    data is a parameter. Vectors are float32 [B, T, G], or None where the task gives none, which raises
    ValueError; tokens are int32 [B, T].
    """
    if vectors is None:
        raise ValueError("tune_vectors is True, and the task gives no vectors of words.")
    zeros, size = nn.initializers.zeros, vectors.shape[-1]
    return vectors + nn.Embed(vocabulary, size, embedding_init=zeros, name="difference")(tokens)

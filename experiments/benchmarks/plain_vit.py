"""AutoFormer's vision transformer as a plain Flax module, unaware that its sizes will be searched.

AutoFormer: Searching Transformers for Visual Recognition (Chen et al., ICCV 2021), with 2-D relative
positions in keys and values. Parameters have the paths and shapes of `jaxnas.supernets.ViT`.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

import jaxnas
from jaxnas import Depth, Size
from jaxnas.elastic.attention import RelativePositions, relative_entries

_normal = nn.initializers.normal(0.02)


class Attention(nn.Module):
    """Self-attention of a class token and patches."""

    heads: int
    head_dim: int
    grid: tuple[int, int]
    max_relative_position: int = 14

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps tokens [B, T, E] to the same shape."""
        batch, tokens, size = x.shape
        shape, lecun = (size, 3, self.heads, self.head_dim), nn.initializers.lecun_normal
        kernel = self.param("qkv_kernel", lecun(in_axis=0, out_axis=(1, 2, 3)), shape)
        qkv = x.reshape(-1, size) @ kernel.reshape(size, -1)
        qkv = qkv + self.param("qkv_bias", nn.initializers.zeros, shape[1:]).reshape(1, -1)
        qkv = qkv.reshape(batch, tokens, *shape[1:]).transpose(2, 0, 3, 1, 4)
        q, k, v = qkv.reshape(3, -1, tokens, self.head_dim)  # [B * H, T, D]
        q = q * self.head_dim**-0.5
        relative = RelativePositions(self.grid)
        logits = q @ k.mT + relative.logits(q, self.entries("key"))
        weights = jax.nn.softmax(logits, axis=-1)
        y = weights @ v + relative.values(weights, self.entries("value"))
        y = y.reshape(batch, -1, tokens, self.head_dim).transpose(0, 2, 1, 3).reshape(batch * tokens, -1)
        return nn.Dense(size, name="projection")(y).reshape(x.shape)

    def entries(self, name: str) -> jax.Array:
        """Entries of the tables of an axis for all offsets, [offsets, D]."""
        shape = (2 * self.max_relative_position + 2, self.head_dim)
        rows, columns = (self.param(f"{name}_{axis}", _normal, shape) for axis in ("rows", "columns"))
        return relative_entries(rows, columns, self.grid, jnp.float32)


class Mlp(nn.Module):
    """Two dense layers."""

    hidden: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps tokens [B, T, E] to the same shape."""
        y = nn.Dense(self.hidden, name="in")(x.reshape(-1, x.shape[-1]))
        return nn.Dense(x.shape[-1], name="out")(nn.gelu(y, approximate=False)).reshape(x.shape)


class Block(nn.Module):
    """A pre-norm block."""

    heads: int
    head_dim: int
    hidden: int
    grid: tuple[int, int]
    max_relative_position: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps tokens [B, T, E] to the same shape."""
        norm = nn.LayerNorm(epsilon=1e-5, name="attention_norm")
        attention = Attention(
            self.heads, self.head_dim, self.grid, self.max_relative_position, name="attention"
        )
        x = x + attention(norm(x))
        return x + Mlp(self.hidden, name="mlp")(nn.LayerNorm(epsilon=1e-5, name="mlp_norm")(x))


class PlainViT(nn.Module):
    """The transformer."""

    width: int
    depth: int
    heads: int
    hidden: int
    num_classes: int
    patch_size: int
    head_dim: int = 64
    max_relative_position: int = 14

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Maps images [B, H, W, C] to logits [B, num_classes]."""
        p, (batch, *sides, channels) = self.patch_size, images.shape
        grid = (sides[0] // p, sides[1] // p)
        x = images.reshape(batch, grid[0], p, grid[1], p, channels).transpose(0, 1, 3, 2, 4, 5)
        x = Patches(self.width, name="patch_embed")(x.reshape(-1, p * p * channels))
        x = Tokens(name="tokens")(x.reshape(batch, -1, self.width))
        for i in range(self.depth):
            block = Block(
                self.heads, self.head_dim, self.hidden, grid, self.max_relative_position, name=f"block_{i}"
            )
            x = block(x)
        x = nn.LayerNorm(epsilon=1e-5, name="norm")(x)[:, 1:].mean(axis=1)
        return nn.Dense(self.num_classes, kernel_init=_normal, name="head")(x)


class Patches(nn.Module):
    """The projection of patches."""

    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [N, pixels] to [N, width]."""
        return nn.Dense(self.width, name="projection")(x)


class Tokens(nn.Module):
    """The class token and the positions."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [B, T - 1, E] to [B, T, E]."""
        size = x.shape[-1]
        token = self.param("cls", _normal, (size,))
        x = jnp.concatenate([jnp.broadcast_to(token[None, None], (len(x), 1, size)), x], axis=1)
        return x + self.param("positions", _normal, (x.shape[1], size))[None]


def supernet(space: jaxnas.Space, form: Any, images: jax.Array, **fields: Any) -> tuple[Any, Any]:
    """The transformer as a supernet over the decisions of `jaxnas.spaces.vit`, and its variables."""

    def options(name: str) -> Any:
        return space.choices[name].options

    width, depth, heads = (max(options(name)) for name in ("embed_dim", "depth", "num_heads"))
    model = PlainViT(width, depth, heads, int(width * max(options("mlp_ratio"))), **fields)
    variables = model.init(jax.random.key(0), images[:1])
    net = jaxnas.supernet(
        jaxnas.analyze(model, variables, images),
        {
            "width": Size(lambda embed_dim: embed_dim),
            "block_*/heads": Size(lambda num_heads: num_heads),
            "block_*/hidden": Size(lambda mlp_ratio, embed_dim: int(mlp_ratio * embed_dim)),
            "block_*": Depth(*options("depth")),
        },
        decisions={name: space.choices[name].replace(active=None) for name in space if name != "depth"},
        form=form,
    )
    return net, variables

"""AutoFormer's supernet: a vision transformer of elastic width, depth, heads and MLP ratio.

AutoFormer: Searching Transformers for Visual Recognition (Chen et al., ICCV 2021), section 3. `Transformer`
is a plain Flax module, and `ViT` says which of its sizes the decisions of a space set.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.checks import check_counts, check_numbers
from jaxnas.elastic.attention import RelativePositions, products, relative_entries
from jaxnas.elastic.layers import gelu, normal, trunc_normal, uniform_fan_in
from jaxnas.space import Space
from jaxnas.supernets.schema import RATIO, Needs, check_decisions, check_fit, check_images, check_multiple
from jaxnas.tensors import Path
from jaxnas.transform.declared import Declared
from jaxnas.transform.places import Place

# Of a space of `jaxnas.spaces.vit`.
NEEDS = {
    "embed_dim": Needs(),
    "depth": Needs(),
    "num_heads": Needs(times="depth"),
    "mlp_ratio": dataclasses.replace(RATIO, times="depth"),
}


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


class Patches(nn.Module):
    """Cuts images into patches and projects these."""

    size: int
    patch_size: int
    dtype: Any

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Maps images [B, H, W, C] to [B, patches, size], row by row."""
        p, (batch, height, width, channels) = self.patch_size, images.shape
        x = images.reshape(batch, height // p, p, width // p, p, channels)
        x = x.transpose(0, 1, 3, 2, 4, 5).reshape(-1, p * p * channels)
        init = uniform_fan_in(x.shape[1])  # as of PyTorch's convolutions
        project = nn.Dense(self.size, dtype=self.dtype, kernel_init=init, bias_init=init, name="projection")
        return project(x).reshape(batch, -1, self.size)


class Tokens(nn.Module):
    """Puts a class token before the patches, and adds absolute positions."""

    positions: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [B, T - 1, E] to [B, T, E]."""
        first = self.param("cls", trunc_normal, x.shape[2:]).astype(x.dtype)
        x = jnp.concatenate([jnp.broadcast_to(first[None, None], (x.shape[0], 1, x.shape[2])), x], axis=1)
        if self.positions:
            x = x + self.param("positions", trunc_normal, x.shape[1:]).astype(x.dtype)[None]
        return x


class Transformer(nn.Module):
    """The network of one architecture; see `ViT` for its attributes.

    Attributes:
      width: of the tokens.
      heads, hidden: of each layer.
    """

    width: int
    heads: tuple[int, ...]
    hidden: tuple[int, ...]
    image_size: int
    patch_size: int
    num_classes: int
    head_dim: int
    max_relative_position: int
    absolute_positions: bool
    drop_path_rate: float
    dtype: Any
    init_std: float | None
    remat: bool

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        """Maps images [B, image_size, image_size, C] to float32 logits [B, num_classes]."""
        check_images("ViT", images, self.image_size)
        grid, common = (
            (self.image_size // self.patch_size,) * 2,
            dict(dtype=self.dtype, init_std=self.init_std),
        )
        x = Patches(self.width, self.patch_size, self.dtype, name="patch_embed")(images)
        x = Tokens(self.absolute_positions, name="tokens")(x)
        for i, (heads, hidden) in enumerate(zip(self.heads, self.hidden, strict=True)):
            positions = (self.head_dim, grid, self.max_relative_position)
            attention = functools.partial(Attention, heads, *positions, **common)
            # Of whole examples, at rates that rise over all stored layers; as in the official code.
            rate = self.drop_path_rate * i / max(len(self.heads) - 1, 1)
            drop = functools.partial(nn.Dropout, rate, broadcast_dims=(1, 2), deterministic=not train)
            mlp = functools.partial(Mlp, hidden, **common)
            x = Block(attention, mlp, drop, self.remat, name=f"block_{i}")(x)
        x = norm("norm", x)[:, 1:].mean(axis=1)
        head = nn.Dense(self.num_classes, dtype=self.dtype, kernel_init=trunc_normal, name="head")
        return head(x).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class ViT(Declared):
    """The AutoFormer supernet over a space with `embed_dim`, `depth`, `num_heads` and `mlp_ratio`.

    With a space of a single architecture it is that plain network, which is what `jaxnas.extract` returns.
    Called as `net.apply(variables, images, arch, train=...)` with float images [B, image_size, image_size,
    C], it returns float32 logits [B, num_classes]. Training with drop path needs the "dropout" random stream.

    Attributes:
      space: the search space.
      image_size: height and width of the images, in pixels.
      patch_size: of a square patch; divides `image_size`.
      num_classes: logits.
      head_dim: channels of an attention head (64 in AutoFormer).
      max_relative_position: clip of 2-D relative positions; 0 leaves them out.
      absolute_positions: whether learned positions are added to the tokens.
      drop_path_rate: stochastic depth of the last stored layer, rising linearly from 0 at the first.
      dtype: of the computation, float32 or bfloat16; parameters and softmax are float32.
      init_std: standard deviation of the initial kernels of the blocks, 0.02 in AutoFormer; None scales it by
        the number of inputs, as Flax does.
      remat: compute each layer again in the backward pass, and keep its input only.
      qkv_bias_by_heads: whether each number of heads has its own bias of queries, keys and values. A whole
        official checkpoint can be converted to such a network only, see `supernets.convert`.
      form: of the supernet; see `jaxnas.supernet`.
    """

    image_size: int
    patch_size: int
    num_classes: int
    head_dim: int = 64
    max_relative_position: int = 14
    absolute_positions: bool = True
    drop_path_rate: float = 0.0
    dtype: Any = jnp.float32
    init_std: float | None = None
    remat: bool = False
    qkv_bias_by_heads: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "image_size", "patch_size", "num_classes", "head_dim")
        check_counts(self, "max_relative_position", least=0)
        check_numbers(self, "drop_path_rate", least=0, below=1)
        check_multiple("ViT: image_size", self.image_size, self.patch_size)
        check_layers("ViT", self.space)

    def places(self) -> Iterator[Place]:
        """See `Declared`."""
        return layer_places(self.space)

    def module(self, sizes: Mapping[str, int]) -> nn.Module:
        """See `Declared`."""
        return self.make(Transformer, **layer_sizes(sizes))

    def stacked(self) -> dict[Path, tuple[str, int]]:
        """See `Declared`."""
        layers = range(_layers(self.space) if self.qkv_bias_by_heads else 0)
        return {("params", f"block_{i}", "attention", "qkv_bias"): ("num_heads", i) for i in layers}


def _layers(space: Space) -> int:
    return int(space["depth"].table.max())


def layer_places(space: Space) -> Iterator[Place]:
    """The sizes of a space of `jaxnas.spaces.vit` in a transformer of the layers "block_0", "block_1", ..."""
    yield Place("norm/scale[0]", (("embed_dim", None),), int)
    for i in range(_layers(space)):
        yield Place(f"block_{i}/attention/qkv_bias[1]", (("num_heads", i),), int)
        yield Place(
            f"block_{i}/mlp/in/bias[0]",
            (("embed_dim", None), ("mlp_ratio", i)),
            lambda size, ratio: int(size * ratio),
        )
        yield Place(f"block_{i}", (("depth", None),), lambda depth, i=i: int(i < depth))


def layer_sizes(sizes: Mapping[str, int]) -> dict[str, Any]:
    """The width, and the heads and hidden channels of each layer, of the sizes of `layer_places`."""
    layers = [name for name in sizes if "/" not in name]
    heads, hidden = (
        tuple(sizes[f"{layer}/{axis}"] for layer in layers)
        for axis in ("attention/qkv_bias[1]", "mlp/in/bias[0]")
    )
    return {"width": sizes["norm/scale[0]"], "heads": heads, "hidden": hidden}


def check_layers(network: str, space: Space) -> None:
    """Checks that a space has the four decisions of `jaxnas.spaces.vit`, for each layer."""
    check_decisions(network, space, NEEDS, "jaxnas.spaces.digits()")
    sizes = ["embed_dim", "mlp_ratio"]
    check_fit(network, space, sizes, lambda e, r: int(e * r) > 0, "a hidden channel at least")

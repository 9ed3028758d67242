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
from jaxnas.elastic.layers import trunc_normal, uniform_fan_in
from jaxnas.space import Arch
from jaxnas.supernets.layers import Attention, Block, Mlp, check_layers, layer_places, layer_sizes, norm
from jaxnas.supernets.schema import check_images, check_multiple
from jaxnas.tensors import Path
from jaxnas.transform.declared import Declared
from jaxnas.transform.places import Place


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
    """The network of one architecture: of a width, and of heads and hidden channels of each layer."""

    net: ViT
    width: int
    heads: tuple[int, ...]
    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        """Maps images [B, image_size, image_size, C] to float32 logits [B, num_classes]."""
        net = self.net
        check_images("ViT", images, net.image_size)
        grid, common = (net.image_size // net.patch_size,) * 2, dict(dtype=net.dtype, init_std=net.init_std)
        x = Patches(self.width, net.patch_size, net.dtype, name="patch_embed")(images)
        x = Tokens(net.absolute_positions, name="tokens")(x)
        for i, (heads, hidden) in enumerate(zip(self.heads, self.hidden, strict=True)):
            positions = (net.head_dim, grid, net.max_relative_position)
            attention = functools.partial(Attention, heads, *positions, **common)
            # Of whole examples, at rates that rise over all stored layers; as in the official code.
            rate = net.drop_path_rate * i / max(len(self.heads) - 1, 1)
            drop = functools.partial(nn.Dropout, rate, broadcast_dims=(1, 2), deterministic=not train)
            mlp = functools.partial(Mlp, hidden, **common)
            x = Block(attention, mlp, drop, net.remat, name=f"block_{i}")(x)
        x = norm("norm", x)[:, 1:].mean(axis=1)
        head = nn.Dense(net.num_classes, dtype=net.dtype, kernel_init=trunc_normal, name="head")
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
        official checkpoint can be converted to such a network only, see `convert`.
      form: of the supernet; see `jaxnas.supernet`.

    Example:
      >>> space = spaces.vit(embed_dim=(16, 32), depth=(1, 2), num_heads=(1, 2), mlp_ratio=(2.0,))
      >>> net = supernets.ViT(space, image_size=8, patch_size=4, num_classes=10, head_dim=8)
      >>> int(jaxnas.cost(net, (1, 8, 8, 3))(space.largest())["params"])
      16970
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
        return Transformer(self, **layer_sizes(sizes))

    def stacked(self) -> dict[Path, tuple[str, int]]:
        """See `Declared`."""
        layers = range(int(self.space["depth"].table.max()) if self.qkv_bias_by_heads else 0)
        return {("params", f"block_{i}", "attention", "qkv_bias"): ("num_heads", i) for i in layers}


def autoformer_flops(net: ViT) -> Callable[[Arch], float]:
    """The FLOPs of a concrete architecture by the official AutoFormer code, for comparison with papers.

    It counts multiply-accumulates with one token too many inside blocks, the head on every token and an
    approximate relative-position term; biases and activations partly. `jaxnas.cost` counts true products.

    Args:
      net: on RGB images.
    """

    def flops(arch: Arch) -> float:
        values = net.space.to_dict(arch)
        dim, depth = values["embed_dim"], values["depth"]
        patches = (net.image_size // net.patch_size) ** 2
        patch = 3 * net.patch_size**2
        tokens = patches + 2
        total = dim + patches * patch * dim + (patches + 1) * dim / 2
        for heads, ratio in list(zip(values["num_heads"], values["mlp_ratio"], strict=True))[:depth]:
            inner, hidden = heads * net.head_dim, int(dim * ratio)
            total += tokens * dim + tokens * 4 * inner * dim + 2 * tokens**2 * inner
            if net.max_relative_position:
                total += 2 * net.max_relative_position * tokens**2 + tokens**2 / 2 + tokens * inner / 2
            total += tokens * dim + 2 * tokens * dim * hidden
        return total + (patches + 1) * net.num_classes * dim

    return flops

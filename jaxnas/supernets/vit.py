"""AutoFormer's supernet: a vision transformer with elastic width, depth, heads and MLP ratio.

AutoFormer: Searching Transformers for Visual Recognition (Chen et al., ICCV 2021), section 3. One set
of maximal weights; an architecture is a dict of arrays passed at call time.
"""

from __future__ import annotations

import functools
from typing import Any, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.checks import check_counts
from jaxnas.elastic.attention import MultiHeadAttention
from jaxnas.elastic.checks import check_images
from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.layers import (
    Dense,
    LayerNorm,
    LayerNormParameters,
    Mlp,
    PatchEmbed,
    Tokens,
    drop_branch,
    normal,
    trunc_normal,
)
from jaxnas.elastic.loop import run_layers
from jaxnas.elastic.parameter import Sharing
from jaxnas.elastic.width import Width, fixed, width
from jaxnas.space import Space

DECISIONS = {"embed_dim", "depth", "num_heads", "mlp_ratio"}  # of a space of `jaxnas.spaces.vit`


class Block(nn.Module):
    """A pre-norm transformer block; nothing of it runs where `gate` is 0."""

    grid: tuple[int, int]
    head_dim: int
    max_relative_position: int
    dtype: Any
    sharing: Sharing
    init_std: float | None = None
    qkv_bias_by_heads: bool = False

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        embed: Width,
        heads: Width,
        hidden: Width,
        gate: Width,
        drop_path_rate: jax.Array | float | None = None,
    ) -> jax.Array:
        """Maps x [B, T, embed maximum] to the same shape; `drop_path_rate` None drops nothing."""
        common = dict(dtype=self.dtype, sharing=self.sharing)
        norm_of = functools.partial(LayerNormParameters, **common)
        kernel_init = normal(self.init_std)
        attention = MultiHeadAttention(
            self.grid,
            self.head_dim,
            self.max_relative_position,
            kernel_init=kernel_init,
            qkv_bias_by_heads=self.qkv_bias_by_heads,
            name="attention",
            **common,
        )
        norm = norm_of(name="attention_norm")(embed, gate=gate)
        x = x + drop_branch(self, attention(x, embed, heads, gate=gate, norm=norm), drop_path_rate)
        norm = norm_of(name="mlp_norm")(embed, gate=gate)
        mlp = Mlp(kernel_init=kernel_init, name="mlp", **common)
        return x + drop_branch(self, mlp(x, embed, hidden, gate=gate, norm=norm), drop_path_rate)


class ViT(nn.Module):
    """The AutoFormer supernet over a space with `embed_dim`, `depth`, `num_heads` and `mlp_ratio`.

    With a space of a single architecture it is that plain network: every size is static and nothing is
    chosen, sliced or masked at run time. That is what `jaxnas.extract` returns.

    Attributes:
      space: the search space.
      image_size: height and width of the images, in pixels.
      patch_size: of a square patch; divides `image_size`.
      num_classes: logits.
      head_dim: channels of an attention head (64 in AutoFormer).
      max_relative_position: clip of 2-D relative positions; 0 leaves them out.
      absolute_positions: whether learned positions are added to the tokens.
      drop_path_rate: stochastic depth of the last stored layer, rising linearly from 0 at the first.
      sharing: "entangled" or "classic" weight sharing.
      dtype: of the computation, float32 or bfloat16; parameters and softmax are float32.
      init_std: standard deviation of the initial kernels of the blocks, 0.02 in AutoFormer; None scales it by
        the number of inputs, as Flax does.
      scan_layers: trace and compile one layer and run it in a loop: compile time does not grow with
        depth. The parameters are the same either way; `stack_layers` saves stacking them in every call.
        Layers whose options differ run one after the other all the same.
      remat: compute each layer again in the backward pass, and keep its input only.
      qkv_bias_by_heads: whether each number of heads has its own bias of queries, keys and values. A whole
        official checkpoint can be converted to such a network only, see `supernets.convert`.

    Raises:
      ValueError: image size not a multiple of the patch, a space without the four decisions or with
        options that are no sizes, or an attribute that is none of its values.
    """

    space: Space
    image_size: int
    patch_size: int
    num_classes: int
    head_dim: int = 64
    max_relative_position: int = 14
    absolute_positions: bool = True
    drop_path_rate: float = 0.0
    sharing: Sharing = "entangled"
    dtype: Any = jnp.float32
    init_std: float | None = None
    scan_layers: bool = False
    remat: bool = False
    qkv_bias_by_heads: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "image_size", "patch_size", "num_classes", "head_dim")
        if self.max_relative_position < 0 or not 0 <= self.drop_path_rate < 1:
            raise ValueError(
                f"ViT: max_relative_position {self.max_relative_position} and drop_path_rate "
                f"{self.drop_path_rate}; expected at least 0, and 0 to less than 1."
            )
        if self.sharing not in get_args(Sharing):
            raise ValueError(f"sharing is {self.sharing!r}, expected one of {', '.join(get_args(Sharing))}.")
        if self.image_size % self.patch_size:
            raise ValueError(
                f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}; "
                f"nearest sizes that are: {self.image_size // self.patch_size * self.patch_size} "
                f"and {-(-self.image_size // self.patch_size) * self.patch_size}."
            )
        check_space("ViT", self.space)

    @nn.compact
    def __call__(
        self, images: jax.Array, arch: dict[str, jax.Array] | None = None, *, train: bool = False
    ) -> jax.Array:
        """Classifies images with the sub-network `arch`.

        Args:
          images: float [B, image_size, image_size, channels].
          arch: architecture of the space, hard or soft (weights that sum to 1); not needed if the space has
            only one.
          train: whether drop path is on (needs the "dropout" random stream).

        Returns:
          float32 logits [B, num_classes].

        Raises:
          ValueError: images of another size; an architecture that doesn't fit the space.
        """
        check_images(images, self.image_size)
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        embed = width(lambda dim: dim, decisions["embed_dim"], axis="embed")
        common = dict(dtype=self.dtype, sharing=self.sharing)

        patches = PatchEmbed(self.patch_size, name="patch_embed", **common)(images, embed)
        patches = patches.reshape(images.shape[0], -1, embed.maximum)  # [B, T - 1, E]
        x = Tokens(positions=self.absolute_positions, name="tokens", **common)(patches, embed)
        x = self._layers(x, embed, decisions, train)  # [B, T, E]
        x = LayerNorm(name="norm", **common)(x, embed, max_branches=1)
        x = x[:, 1:].mean(axis=1)  # [B, E]
        classes = fixed(self.num_classes, "classes")
        head = Dense(kernel_init=trunc_normal, name="head", **common)(x, embed, classes, max_branches=1)
        return head.astype(jnp.float32)

    def _layers(self, x: jax.Array, embed: Width, decisions: Decisions, train: bool) -> jax.Array:
        count = int(self.space.choices["depth"].table.max())
        # Rising over all stored layers, whatever runs; as in the official code.
        rates = [self.drop_path_rate * layer / max(count - 1, 1) for layer in range(count)]
        side = self.image_size // self.patch_size
        make = functools.partial(
            Block,
            grid=(side, side),
            head_dim=self.head_dim,
            max_relative_position=self.max_relative_position,
            dtype=self.dtype,
            sharing=self.sharing,
            init_std=self.init_std,
            qkv_bias_by_heads=self.qkv_bias_by_heads,
        )

        def inputs(layer: int) -> dict[str, Any]:
            drops = train and self.drop_path_rate > 0
            return layer_widths(decisions, layer) | ({"drop_path_rate": rates[layer]} if drops else {})

        def call(block: Block, x: jax.Array, inputs: dict[str, Any]) -> tuple[jax.Array, None]:
            return block(x, embed, **inputs), None

        # A network of one architecture has nothing to choose and is the plain one.
        scan = self.scan_layers and self.space.cardinality > 1
        of_layers = [inputs(layer) for layer in range(count)]
        return run_layers(self, make, call, x, of_layers, scan=scan, remat=self.remat)[0]


def layer_widths(decisions: Decisions, layer: int) -> dict[str, Width]:
    """The heads and the hidden channels of a layer, and its gate, over the space of `jaxnas.spaces.vit`."""
    ratio = decisions["mlp_ratio", layer]
    return {
        "heads": width(lambda heads: heads, decisions["num_heads", layer], axis="heads"),
        "hidden": width(lambda dim, r: int(dim * r), decisions["embed_dim"], ratio, axis="mlp"),
        "gate": width(lambda depth: int(layer < depth), decisions["depth"]),
    }


def check_space(network: str, space: Space) -> None:
    """Checks that a space has the four decisions of `jaxnas.spaces.vit`, for each layer.

    Raises:
      TypeError: no space.
      ValueError: other decisions, options that are no sizes, or too few layers.
    """
    if not isinstance(space, Space):
        raise TypeError(f"{network}: space is {space!r}, expected a space such as jaxnas.spaces.digits().")
    if missing := DECISIONS - set(space.choices):
        raise ValueError(
            f"A {network} space needs the decisions {sorted(DECISIONS)}; missing: {sorted(missing)}, got "
            f"{sorted(space.choices)}."
        )
    options: dict[str, tuple[Any, ...]] = {name: space[name].options for name in sorted(DECISIONS)}
    for name, sizes in options.items():
        _check_sizes(name, sizes, whole=name != "mlp_ratio")
    layers = max(options["depth"])
    for name in ("num_heads", "mlp_ratio"):
        if (length := space.choices[name].length) is None or length < layers:
            raise ValueError(
                f"A {network} space needs '{name}' once for each of {layers} layers, as Choice(...).repeat("
                f"{layers}, active='depth'); got {'one for all' if length is None else length}."
            )
    narrowest, least = min(options["embed_dim"]), min(options["mlp_ratio"])
    if narrowest * least < 1:
        raise ValueError(
            f"An MLP of ratio {least} has no hidden channel in a network of width {narrowest}; raise "
            "'mlp_ratio' or 'embed_dim'."
        )


def _check_sizes(name: str, options: tuple[Any, ...], *, whole: bool) -> None:
    """Refuses options that are no sizes; heads have a width of their own, so any number fits any width."""
    kind = int if whole else (int, float)
    wrong = [x for x in options if isinstance(x, bool) or not isinstance(x, kind) or x <= 0]
    if wrong:
        expected = "whole numbers of at least 1" if whole else "numbers above 0"
        raise ValueError(
            f"A ViT space: '{name}' has the options {options}; expected {expected}, not {wrong}."
        )

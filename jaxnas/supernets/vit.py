"""AutoFormer's supernet: a vision transformer with elastic width, depth, heads and MLP ratio.

AutoFormer: Searching Transformers for Visual Recognition (Chen et al., ICCV 2021), section 3. One set
of maximal weights; an architecture is a dict of arrays passed at call time.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.elastic.attention import MultiHeadAttention
from jaxnas.elastic.layers import Dense, LayerNorm, PatchEmbed, Tokens, drop_path
from jaxnas.elastic.parameter import Sharing
from jaxnas.elastic.width import Decision, Width, fixed, width
from jaxnas.space import Space


class Block(nn.Module):
    """A pre-norm transformer block; nothing of it runs where `gate` is 0."""

    grid: tuple[int, int]
    head_dim: int
    max_relative_position: int
    drop_path_rate: float
    dtype: Any
    sharing: Sharing

    @nn.compact
    def __call__(
        self, x: jax.Array, embed: Width, heads: Width, hidden: Width, gate: Width, train: bool
    ) -> jax.Array:
        """Maps x [B, T, embed maximum] to the same shape."""
        common = dict(dtype=self.dtype, sharing=self.sharing)
        tokens = x.shape[1]

        def add(x: jax.Array, branch: jax.Array) -> jax.Array:
            branch = branch.reshape(x.shape)
            if not gate.is_fixed:
                branch = branch * gate.mask(branch.dtype)[None, None, :]
            if train and self.drop_path_rate > 0:
                branch = drop_path(branch, self.drop_path_rate, self.make_rng("drop_path"))
            return x + branch

        y = LayerNorm(name="attention_norm", **common)(self._rows(x), embed, gate=gate)
        attention = MultiHeadAttention(
            self.grid, self.head_dim, self.max_relative_position, name="attention", **common
        )
        x = add(x, attention(y, embed, heads, gate=gate))
        y = LayerNorm(name="mlp_norm", **common)(self._rows(x), embed, gate=gate)
        y = Dense(name="mlp_in", **common)(y, embed, hidden, gate=gate, rows=tokens)
        y = Dense(activation="gelu", name="mlp_out", **common)(y, hidden, embed, gate=gate, rows=tokens)
        return add(x, y)

    @staticmethod
    def _rows(x: jax.Array) -> jax.Array:
        # Dense products over flattened tokens compile to one plain matrix product.
        return x.reshape(-1, x.shape[2])


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

    Raises:
      ValueError: image size not a multiple of the patch, or a space without the four decisions.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_size % self.patch_size:
            raise ValueError(
                f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}; "
                f"nearest sizes that are: {self.image_size // self.patch_size * self.patch_size} "
                f"and {-(-self.image_size // self.patch_size) * self.patch_size}."
            )
        needed = {"embed_dim", "depth", "num_heads", "mlp_ratio"}
        if missing := needed - set(self.space.choices):
            raise ValueError(
                f"A ViT space needs the decisions {sorted(needed)}; missing: {sorted(missing)}."
            )

    @nn.compact
    def __call__(
        self, images: jax.Array, arch: dict[str, jax.Array] | None = None, *, train: bool = False
    ) -> jax.Array:
        """Classifies images with the sub-network `arch`.

        Args:
          images: float [B, image_size, image_size, channels].
          arch: architecture of the space, hard or soft; not needed if the space has only one.
          train: whether drop path is on (needs the "drop_path" random stream).

        Returns:
          float32 logits [B, num_classes].

        Raises:
          ValueError: images of another size; an architecture that doesn't fit the space.
        """
        if images.ndim != 4 or images.shape[1:3] != (self.image_size, self.image_size):
            raise ValueError(
                f"Expected images [B, {self.image_size}, {self.image_size}, channels], got shape "
                f"{images.shape}."
            )
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        depths = self.space.choices["depth"].options
        embed = width(lambda dim: dim, decisions["embed_dim"], axis="embed")
        grid = (self.image_size // self.patch_size,) * 2
        common = dict(dtype=self.dtype, sharing=self.sharing)

        patches = PatchEmbed(self.patch_size, name="patch_embed", **common)(images, embed)
        patches = patches.reshape(images.shape[0], -1, embed.maximum)  # [B, T - 1, E]
        x = Tokens(positions=self.absolute_positions, name="tokens", **common)(patches, embed)
        for layer in range(max(depths)):
            heads = width(lambda h: h, decisions["num_heads", layer], axis="heads")
            hidden = width(
                lambda dim, ratio: int(dim * ratio),
                decisions["embed_dim"],
                decisions["mlp_ratio", layer],
                axis="mlp",
            )
            gate = width(lambda depth: int(layer < depth), decisions["depth"])
            rate = self.drop_path_rate * layer / max(max(depths) - 1, 1)
            block = Block(
                grid, self.head_dim, self.max_relative_position, rate, name=f"block_{layer}", **common
            )
            x = block(x, embed, heads, hidden, gate, train)  # [B, T, E]
        batch, tokens, maximum = x.shape
        x = LayerNorm(name="norm", **common)(x.reshape(-1, maximum), embed)
        x = x.reshape(batch, tokens, maximum)[:, 1:].mean(axis=1)  # [B, E]
        head = Dense(name="head", **common)(x, embed, fixed(self.num_classes, "classes"))
        return head.astype(jnp.float32)


class Decisions:
    """The decisions of a space with the values of an architecture, by name and position."""

    def __init__(
        self, space: Space, arch: dict[str, jax.Array] | None, *, initializing: bool = False
    ) -> None:
        if arch is None:
            if space.cardinality > 1 and not initializing:
                raise ValueError(
                    "The space has more than one architecture, so the network needs `arch`: for "
                    "example space.sample(key), or space.largest()."
                )
            arch = space.smallest()
        self._space = space
        self._arch = {name: jnp.asarray(value) for name, value in arch.items()}
        space.check_static(self._arch)

    def __getitem__(self, key: str | tuple[str, int]) -> Decision:
        name, position = (key, None) if isinstance(key, str) else key
        choice = self._space.choices[name]
        value = self._arch[name] if position is None else self._arch[name][position]
        options = choice.options if position is None else choice.options_at(position)
        return Decision((name, position), options, value)

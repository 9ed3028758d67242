"""S3's supernet (AutoFormerV2): a vision transformer of stages, with attention in shifted windows.

Searching the Search Space of Vision Transformer (Chen et al., NeurIPS 2021, arXiv 2111.14725), whose networks
are those of Swin Transformer (Liu et al., ICCV 2021, section 3). Every stage has its own choices, each of
which is one dimension of the search space, so that a space can be changed choice by choice.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.checks import check_counts, check_numbers
from jaxnas.elastic import layers
from jaxnas.elastic.attention import products
from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.loop import run_layer
from jaxnas.elastic.parameter import gated_macs, parameter, record_macs
from jaxnas.elastic.switch import run
from jaxnas.elastic.width import Width, combine, fixed, width
from jaxnas.space import Arch, Space, check_space
from jaxnas.supernets import schema
from jaxnas.supernets.layers import relative_bias

OF_BLOCK = ("window", "num_heads", "mlp_ratio", "qkv_dim")


def visible_tokens(side: int, window: int, shift: int) -> jax.Array:
    """Which tokens of its window a token may see, on a map [side, side] that is shifted up and to the left.

    The last windows then have tokens of opposite edges of the map, which do not see each other. Returns bool
    [windows, T, T].
    """
    moved = (np.arange(side) >= side - shift).astype(np.int32).reshape(-1, window)
    # [rows of windows, columns of windows, window, window]
    region = 2 * moved[:, None, :, None] + moved[None, :, None, :]
    region = jnp.asarray(region.reshape(-1, window**2))
    return region[:, :, None] == region[:, None, :]


@dataclasses.dataclass(frozen=True)
class _WindowAttention:
    """Attention within the windows of a map, a function for `run`.

    Operands: queries, keys and values [B, side, side, 3, Q], the `relative_bias` of the heads and the window,
    and the factor of the queries []. Output: [B, side, side, Q].

    Channel c belongs to head c % heads. So each head has the zeros behind the active channels at its own end,
    and widths can share a branch. Nothing is kept for the backward pass: attention weights are large, and
    are quickly computed again.
    """

    shifted: bool
    dtype: Any

    def __call__(self, x: jax.Array, bias: jax.Array, scale: jax.Array) -> jax.Array:
        batch, side, _, _, channels = x.shape
        heads, window = bias.shape[:2]
        grid, dim = (side // window, side // window), channels // heads
        shift = window // 2 if self.shifted and window < side else 0
        if shift:
            x = jnp.roll(x, (-shift, -shift), axis=(1, 2))
        x = x.reshape(batch, grid[0], window, grid[1], window, 3, dim, heads)
        x = x.transpose(5, 0, 1, 3, 7, 2, 4, 6)  # [3, B, grid, heads, window, window, D]
        queries, keys, values = x.reshape(3, batch, math.prod(grid), heads, window**2, dim)
        logits = products(queries * scale.astype(self.dtype), keys)  # [B, windows, heads, T, T]
        logits += bias.reshape(heads, window**2, window**2)[None, None]
        if shift:
            visible = visible_tokens(side, window, shift)[None, :, None]
            logits = jnp.where(visible, logits, jnp.finfo(jnp.float32).min)
        y = jax.nn.softmax(logits, axis=-1).astype(self.dtype) @ values
        y = y.reshape(batch, *grid, heads, window, window, dim)
        y = y.transpose(0, 1, 4, 2, 5, 6, 3).reshape(batch, side, side, channels)
        return jnp.roll(y, (shift, shift), axis=(1, 2)) if shift else y


@dataclasses.dataclass(frozen=True)
class _NormalizedDense:
    """Normalizes rows [N, parts, in] as a whole and maps them to [N, parts, out], a function for `run`."""

    dtype: Any

    def __call__(self, x: jax.Array, *weights: jax.Array) -> jax.Array:
        norm_scale, norm_bias, kernel, *bias = weights
        rows = x.reshape(x.shape[0], -1)
        rows = layers.normalize(rows, norm_scale.reshape(-1), norm_bias.reshape(-1), 1e-5, self.dtype)
        y = rows @ kernel.reshape(rows.shape[1], -1).astype(self.dtype)
        y = y.reshape(x.shape[0], *kernel.shape[2:])
        return y + bias[0].astype(self.dtype)[None] if bias else y


class NormalizedDense(nn.Module):
    """A layer normalization and a dense layer, of channels in several parts of one elastic width.

    Attributes:
      parts_in: of the input, normalized together: 4 where patches are merged.
      parts_out: of the output: 3 for queries, keys and values.
      use_bias: whether the dense layer adds one.
      dtype: of the computation; parameters are float32.
      kernel_init: initializer; None for that of `flax.linen.Dense`.
    """

    parts_in: int
    parts_out: int
    use_bias: bool
    dtype: Any = jnp.float32
    kernel_init: layers.Initializer | None = None

    @nn.compact
    def __call__(
        self, x: jax.Array, width_in: Width, width_out: Width, *, gate: Width | None = None
    ) -> jax.Array:
        """Maps x [B, H, W, parts_in, in maximum] to [B, H, W, parts_out, out maximum].

        Args:
          x: with zeros beyond `width_in`.
          width_in, width_out: active widths of each part.
          gate: 0 where the layer is skipped, which gives zeros.
        """
        declare = functools.partial(parameter, self, gate=gate)
        inner, outer = (fixed(self.parts_in), width_in), (fixed(self.parts_out), width_out)
        ones, zeros = nn.initializers.ones, nn.initializers.zeros
        by_inputs = nn.initializers.lecun_normal(in_axis=(0, 1), out_axis=(2, 3))
        weights = [declare("norm_scale", ones, inner), declare("norm_bias", zeros, inner)]
        weights.append(declare("kernel", self.kernel_init or by_inputs, (*inner, *outer)))
        weights += [declare("bias", zeros, outer)] if self.use_bias else []
        rows = x.shape[1] * x.shape[2]
        of_parts = rows * self.parts_in * self.parts_out
        record_macs(self, gated_macs(gate, lambda i, o: of_parts * i * o, width_in, width_out))
        bias = ", to out" if self.use_bias else ""
        axes = f"rows from in, from in, from in, from in to out{bias} -> rows to out"
        operands, widths = (x.reshape(-1, *x.shape[3:]), *weights), {"in": width_in, "out": width_out}
        y = run(_NormalizedDense(self.dtype), axes, widths, *operands, gate=gate, maskable=("out",))
        return y.reshape(*x.shape[:3], *y.shape[1:])


class Block(nn.Module):
    """A pre-norm transformer block with attention in windows; nothing of it runs where `gate` is 0.

    Attributes:
      shifted: whether windows smaller than the map are shifted by half of their size.
      dtype: of the computation; softmax and parameters are float32.
      init_std: standard deviation of the initial kernels; None scales it by the number of inputs.
    """

    shifted: bool
    dtype: Any = jnp.float32
    init_std: float | None = None

    @nn.compact
    def __call__(
        self, x: jax.Array, embed: Width, sizes: dict[str, Width], *, drop_path_rate: float | None = None
    ) -> jax.Array:
        """Maps x [B, H, W, embed maximum] to the same shape, zero beyond the active width.

        Args:
          x: maps with zeros beyond `embed`.
          embed: active width of x.
          sizes: the others, as `block_widths` makes them.
          drop_path_rate: of each of the two branches; None drops nothing.
        """
        window, heads, qkv, hidden, gate = sizes.values()
        common = dict(dtype=self.dtype, kernel_init=layers.normal(self.init_std))
        y = NormalizedDense(1, 3, use_bias=True, name="qkv", **common)(x[..., None, :], embed, qkv, gate=gate)
        y = self._attend(y, window, heads, qkv, gate)
        y = layers.Dense(name="projection", **common)(y, qkv, embed, gate=gate)
        x = x + layers.drop_branch(self, y, drop_path_rate)
        norm = layers.LayerNorm(dtype=self.dtype, name="mlp_norm")(None, embed, gate=gate)
        y = layers.Mlp(name="mlp", **common)(x, embed, hidden, gate=gate, norm=norm)
        return x + layers.drop_branch(self, y, drop_path_rate)

    def _attend(self, x: jax.Array, window: Width, heads: Width, qkv: Width, gate: Width) -> jax.Array:
        """From queries, keys and values [B, H, W, 3, Q] to [B, H, W, Q]."""
        offsets = Width(combine(lambda size: 2 * size - 1, window.table), window.values)
        declared = dict(gate=gate, centered=(0, 1))
        table = parameter(self, "relative_bias", layers.trunc_normal, (offsets, offsets, heads), **declared)
        dim = Width(combine(lambda q, h: q // h, qkv.table, heads.table), {**qkv.values, **heads.values})
        tokens = x.shape[1] * x.shape[2]
        record_macs(self, gated_macs(gate, lambda size, q: 2 * tokens * size**2 * q, window, qkv))
        operands = x, relative_bias(table), jax.lax.rsqrt(jnp.sum(dim.mask()))  # of the active channels
        axes = (
            "batch rows columns three qkv, heads window window window window, ... -> batch rows columns qkv"
        )
        widths, attention = (
            dict(window=window, heads=heads, qkv=qkv),
            _WindowAttention(self.shifted, self.dtype),
        )
        return run(attention, axes, widths, *operands, gate=gate, maskable=("qkv",))


class Swin(nn.Module):
    """S3's supernet over a space with the choices of each stage, see `jaxnas.spaces.swin`.

    Stage i, from 1 on, has `depth_i` blocks of the width `embed_dim_i`, and each block its own `window_i`,
    `num_heads_i`, `mlp_ratio_i` and `qkv_dim_i`, the width of queries, keys and values of all heads together.
    Between two stages four neighboring patches are merged, and the width of the next stage is free. All
    sizes are read from the space. Every other block of a stage shifts its windows by half of their size, and
    a window as large as the map is not shifted.

    With a space of a single architecture it is that plain network, which is what `jaxnas.extract` returns.

    A window has to divide its map, as in the authors' code, which pads nothing. One that is larger than its
    map is refused. Theirs becomes as large as the map, but then two options would be the same network.

    Attributes:
      space: the search space.
      image_size: height and width of the images, in pixels.
      patch_size: of a square patch, 4 in S3; together with the merging of patches it divides `image_size`.
      num_classes: logits.
      drop_path_rate: stochastic depth of the last stored block, rising linearly from 0 at the first.
      dtype: of the computation, float32 or bfloat16; parameters and softmax are float32.
      init_std: standard deviation of the initial kernels of the blocks, 0.02 in the authors' code; None
        scales it by the number of inputs, as Flax does.
      remat: compute each block again in the backward pass, and keep its input only.
    """

    space: Space
    image_size: int
    patch_size: int
    num_classes: int
    drop_path_rate: float = 0.0
    dtype: Any = jnp.float32
    init_std: float | None = None
    remat: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_space(self.space, "Swin")
        check_counts(self, "image_size", "patch_size", "num_classes")
        check_numbers(self, "drop_path_rate", least=0, below=1)
        stages = range(1, self._stages + 1)
        needs = {f"{name}_{i}": schema.Needs() for i in stages for name in ("depth", "embed_dim")}
        for i in stages:
            needs |= {f"{name}_{i}": schema.Needs(times=f"depth_{i}") for name in OF_BLOCK}
            needs[f"mlp_ratio_{i}"] = dataclasses.replace(schema.RATIO, times=f"depth_{i}")
        schema.check_decisions("Swin", self.space, needs, "jaxnas.spaces.swin(...)")
        schema.check_multiple("Swin: image_size", self.image_size, self.patch_size * 2 ** (self._stages - 1))
        for stage in stages:
            _check_sizes(self.space, stage, self._side(stage))

    @property
    def _stages(self) -> int:
        return max(sum(name.startswith("depth_") for name in self.space), 1)

    def _side(self, stage: int) -> int:
        """Height and width of the maps of a stage."""
        return self.image_size // self.patch_size // 2 ** (stage - 1)

    @nn.compact
    def __call__(self, images: jax.Array, arch: Arch | None = None, *, train: bool = False) -> jax.Array:
        """Classifies images with the sub-network `arch`.

        Args:
          images: float [B, image_size, image_size, channels].
          arch: architecture of the space, hard or soft; not needed if the space has only one.
          train: whether drop path is on (needs the "dropout" random stream).

        Returns:
          float32 logits [B, num_classes].
        """
        schema.check_images("Swin", images, self.image_size)
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        stages = range(1, self._stages + 1)
        embeds = [width(int, decisions[f"embed_dim_{stage}"], axis="embed") for stage in stages]
        depths = [int(self.space[f"depth_{stage}"].table.max()) for stage in stages]
        # Rising over all stored blocks, whatever runs.
        rates = iter(np.linspace(0, self.drop_path_rate, sum(depths)).tolist())
        drops = train and self.drop_path_rate > 0

        side, dtype = self._side(1), self.dtype
        x = layers.PatchEmbed(self.patch_size, dtype, name="patch_embed")(images, embeds[0])
        x = layers.LayerNorm(dtype=dtype, name="patch_norm")(x, embeds[0], max_branches=1)
        x = x.reshape(-1, side, side, embeds[0].maximum)  # [B, H, W, E]
        for stage, (embed, depth) in enumerate(zip(embeds, depths, strict=True), 1):
            if stage > 1:
                x = self._merge(x, stage, embeds[stage - 2], embed)
            for number in range(depth):
                block = Block(number % 2 == 1, dtype, self.init_std, name=f"stage_{stage}_block_{number}")
                sizes = block_widths(decisions, stage, number)
                rate = next(rates) if drops else None
                call = functools.partial(_call, embed, sizes, rate)
                x = run_layer(call, block, x, remat=self.remat, gate=sizes["gate"])
        x = layers.LayerNorm(dtype=dtype, name="norm")(x, embeds[-1], max_branches=1)
        x = x.mean(axis=(1, 2))  # [B, E]
        classes = fixed(self.num_classes, "classes")
        head = layers.Dense(dtype=dtype, kernel_init=layers.trunc_normal, name="head")
        return head(x, embeds[-1], classes, max_branches=1).astype(jnp.float32)

    def _merge(self, x: jax.Array, stage: int, width_in: Width, width_out: Width) -> jax.Array:
        """Merges each 2 x 2 patches of x [B, 2 H, 2 W, in] into one: [B, H, W, out]."""
        side = self._side(stage)
        x = x.reshape(-1, side, 2, side, 2, x.shape[-1]).transpose(0, 1, 3, 4, 2, 5)
        x = x.reshape(-1, side, side, 4, x.shape[-1])  # column by column, as in the authors' code
        common = dict(dtype=self.dtype, kernel_init=layers.normal(self.init_std))
        merge = NormalizedDense(4, 1, use_bias=False, name=f"merge_{stage}", **common)
        return merge(x, width_in, width_out)[..., 0, :]


def _call(embed: Width, sizes: dict[str, Width], rate: float | None, block: Block, x: jax.Array) -> jax.Array:
    return block(x, embed, sizes, drop_path_rate=rate)


def block_widths(decisions: Decisions, stage: int, number: int) -> dict[str, Width]:
    """The active sizes of one block of a stage: of windows, heads, queries (all heads), the MLP; its gate."""
    window, heads, ratio, qkv = (decisions[f"{name}_{stage}", number] for name in OF_BLOCK)
    return {
        "window": width(int, window),
        "heads": width(int, heads, axis="heads"),
        "qkv": width(int, qkv, axis="qkv"),
        "hidden": width(lambda e, r: int(e * r), decisions[f"embed_dim_{stage}"], ratio, axis="mlp"),
        "gate": width(lambda depth: int(number < depth), decisions[f"depth_{stage}"]),
    }


def _check_sizes(space: Space, stage: int, side: int) -> None:
    """Checks that the sizes of a stage, whose maps have this height and width, fit each other."""
    window, heads, ratio, qkv = (f"{name}_{stage}" for name in OF_BLOCK)
    fitting = [size for size in range(1, side + 1) if side % size == 0]
    divides = f"a window that divides the maps of {side} x {side}, of {fitting}"
    schema.check_fit("Swin", space, [window], lambda size: side % size == 0, divides)
    schema.check_fit("Swin", space, [qkv, heads], lambda q, h: q % h == 0, "widths that the heads divide")
    embed = f"embed_dim_{stage}"
    schema.check_fit("Swin", space, [embed, ratio], lambda e, r: int(e * r) > 0, "a hidden channel at least")

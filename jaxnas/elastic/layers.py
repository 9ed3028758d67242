"""Elastic layers: dense, MLP, layer normalization, embeddings, squeeze-and-excitation, drop path."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from jaxnas.elastic.parameter import gated_macs, parameter, record_macs
from jaxnas.elastic.switch import Keep, as_rows, run
from jaxnas.elastic.width import Width, fixed

Arrays = tuple[jax.Array, ...]
Masks = dict[str, jax.Array]
Initializer = Callable[..., jax.Array]
trunc_normal = nn.initializers.normal(0.02)  # official code cuts at +-2, where nothing is left


def normal(std: float | None) -> Initializer | None:
    """Normal initializer of a standard deviation; None for the default of the layers."""
    return None if std is None else nn.initializers.normal(std)


def gelu(x: jax.Array) -> jax.Array:
    """The exact GELU, in float32 and back; zero stays zero."""
    y = x.astype(jnp.float32)
    # `jax.nn.gelu` computes erfc, which costs twice as much. It is more exact only far below zero, where the
    # result is next to 0.
    return (0.5 * y * (1 + jax.lax.erf(y * 0.5**0.5))).astype(x.dtype)


def affine(x: jax.Array, kernel: jax.Array, bias: jax.Array, dtype: Any) -> jax.Array:
    """`x @ kernel + bias` computed in `dtype`."""
    return x.astype(dtype) @ kernel.astype(dtype) + bias.astype(dtype)[None, :]


@dataclasses.dataclass(frozen=True)
class _Dense:
    """`affine` in a dtype, as a function that can be compared with others."""

    dtype: Any

    def __call__(self, x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        return affine(x, kernel, bias, self.dtype)


class Dense(nn.Module):
    """A weight-entangled dense layer; computes in `dtype`.

    Example, in the `compact` method of a network whose width is a choice:

        x = elastic.Dense(name="hidden")(x, elastic.fixed(64), width)

    Attributes:
      kernel_init, bias_init: initializers; the defaults are those of `flax.linen.Dense`.
      dtype: of the computation.
    """

    kernel_init: Initializer | None = None
    bias_init: Initializer = nn.initializers.zeros
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: jax.Array | None,
        width_in: Width,
        width_out: Width,
        *,
        gate: Width | None = None,
        rows: int | None = None,
        max_branches: int = 8,
    ) -> Any:
        """Maps x [..., in maximum] to [..., out maximum], zero beyond the active widths.

        Args:
          x: rows with zeros beyond `width_in`. None returns the kernel and the bias, for an operation that
            computes the products itself.
          width_in, width_out: active widths.
          gate: 0 where the layer is skipped, which gives zeros.
          rows: rows of one example, for the count of multiply-accumulates; None takes the first axis of x
            as that of the examples.
          max_branches: see `run`; 1 suits a layer that is small in its network.
        """
        if rows is None:
            rows = 1 if x is None else math.prod(x.shape[1:-1])
        init = self.kernel_init or nn.initializers.lecun_normal()
        kernel = parameter(self, "kernel", init, (width_in, width_out), gate=gate)
        bias = parameter(self, "bias", self.bias_init, (width_out,), gate=gate)
        record_macs(self, gated_macs(gate, lambda i, o: rows * i * o, width_in, width_out))
        if x is None:
            return kernel, bias
        y = run(
            _Dense(self.dtype),
            "rows in, in out, out -> rows out",
            {"in": width_in, "out": width_out},
            as_rows(x),
            kernel,
            bias,
            gate=gate,
            maskable=("in", "out"),
            max_branches=max_branches,
        )
        return y.reshape(*x.shape[:-1], width_out.maximum)


def normalize(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float, dtype: Any) -> jax.Array:
    """Layer normalization of rows x [N, D], computed in float32."""
    rows = x.astype(jnp.float32)
    centered = rows - jnp.mean(rows, axis=1, keepdims=True)
    variance = jnp.mean(jnp.square(centered), axis=1, keepdims=True)
    y = centered * jax.lax.rsqrt(variance + epsilon) * scale[None, :] + bias[None, :]
    return y.astype(dtype)


@dataclasses.dataclass(frozen=True)
class _Normalize:
    """`normalize` as a function that can be compared with others, and a form of it with a mask [D]."""

    epsilon: float
    dtype: Any

    def __call__(self, x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
        return normalize(x, scale, bias, self.epsilon, self.dtype)

    def masked(self, masks: Masks, x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
        mask = masks["embed"][None, :]
        count = jnp.sum(mask)
        rows = x.astype(jnp.float32)
        mean = jnp.sum(rows, axis=1, keepdims=True) / count
        centered = (rows - mean) * mask
        variance = jnp.sum(centered * (rows - mean), axis=1, keepdims=True) / count
        y = centered * jax.lax.rsqrt(variance + self.epsilon)
        y = y * scale[None, :] + bias[None, :] * mask
        return y.astype(self.dtype)


@flax.struct.dataclass
class Norm:
    """The parameters of a layer normalization, for a layer that normalizes its input itself.

    Attributes:
      scale, bias: [maximum].
      function: of rows, scale and bias, with its form for masks (static).
    """

    scale: jax.Array
    bias: jax.Array
    function: _Normalize = flax.struct.field(pytree_node=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalizes rows [N, maximum] over all of their channels."""
        return self.function(x, self.scale, self.bias)


@dataclasses.dataclass(frozen=True)
class _Normalized:
    """A function of normalized rows: takes x, scale, bias and the other operands of `function`.

    As one function, normalized rows are not padded and cut again in between, and not kept.
    """

    norm: _Normalize
    function: Any

    def __call__(
        self, x: jax.Array, scale: jax.Array, bias: jax.Array, *others: jax.Array, keep: Keep
    ) -> jax.Array:
        return self.function(self.norm(x, scale, bias), *others, keep=keep)

    def masked(
        self, masks: Masks, x: jax.Array, scale: jax.Array, bias: jax.Array, *others: jax.Array
    ) -> jax.Array:
        return self.function.masked(masks, self.norm.masked(masks, x, scale, bias), *others)


class LayerNorm(nn.Module):
    """Layer normalization over the active channels (AutoFormer, section 3.1).

    Example, in the `compact` method of a network whose residual stream has the width `embed`:

        x = elastic.LayerNorm(name="norm")(x, embed)

    Attributes:
      epsilon: added to the variance; by default that of PyTorch.
      dtype: of the result; the statistics are computed in float32.
    """

    epsilon: float = 1e-5
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, x: jax.Array | None, width: Width, *, gate: Width | None = None, max_branches: int = 8
    ) -> Any:
        """Normalizes x [..., maximum] over the first `width` channels; zero beyond.

        Args:
          x: with zeros beyond `width`. None returns a `Norm`, for an operation that normalizes its input
            itself, such as `Mlp`.
          width: active channels.
          gate: 0 where the layer is skipped, which gives zeros.
          max_branches: see `run`; 1 suits a layer that is small in its network.

        Returns:
          The same shape, in `dtype`.
        """
        scale = parameter(self, "scale", nn.initializers.ones, (width,), gate=gate)
        bias = parameter(self, "bias", nn.initializers.zeros, (width,), gate=gate)
        norm = Norm(scale, bias, _Normalize(self.epsilon, self.dtype))
        if x is None:
            return norm
        y = run(
            norm.function,
            "rows embed, embed, embed -> rows embed",
            {"embed": width},
            as_rows(x),
            norm.scale,
            norm.bias,
            gate=gate,
            max_branches=max_branches,
            masked=norm.function.masked,
        )
        return y.reshape(x.shape)


@dataclasses.dataclass(frozen=True)
class _Mlp:
    """Two dense layers with an activation between. What the first one makes is kept."""

    dtype: Any
    activation: Callable[[jax.Array], jax.Array]

    def __call__(self, x: jax.Array, *weights: jax.Array, keep: Keep) -> jax.Array:
        kernel_in, bias_in, kernel_out, bias_out = weights
        hidden = keep(affine(x, kernel_in, bias_in, self.dtype))
        return affine(self.activation(hidden), kernel_out, bias_out, self.dtype)

    def masked(self, masks: Masks, x: jax.Array, *weights: jax.Array) -> jax.Array:
        embed, hidden = (masks[name].astype(self.dtype)[None, :] for name in ("embed", "hidden"))
        kernel_in, bias_in, kernel_out, bias_out = weights
        y = affine(x, kernel_in, bias_in, self.dtype) * hidden
        return affine(self.activation(y), kernel_out, bias_out, self.dtype) * embed


class Mlp(nn.Module):
    """Two weight-entangled dense layers with an activation between, as one operation.

    Example, in the `compact` method of a network whose residual stream has the width `embed`:

        hidden = elastic.width(lambda dim, ratio: int(dim * ratio), embed_dim, mlp_ratio)
        norm = elastic.LayerNorm(name="norm")(None, embed)
        x = x + elastic.Mlp(name="mlp")(x, embed, hidden, norm=norm)

    Attributes:
      dtype: of the computation.
      kernel_init: see `Dense`.
      activation: of the hidden channels, a function of a module that leaves zero zero.
    """

    dtype: Any = jnp.float32
    kernel_init: Initializer | None = None
    activation: Callable[[jax.Array], jax.Array] = gelu

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        embed: Width,
        hidden: Width,
        *,
        gate: Width | None = None,
        norm: Norm | None = None,
    ) -> jax.Array:
        """Maps x [B, ..., embed maximum] to the same shape, zero beyond the active width.

        Args:
          x: with zeros beyond `embed`.
          embed, hidden: active widths of x and between the two layers.
          gate: 0 where the layer is skipped, which gives zeros.
          norm: a layer normalization of x, as part of the same operation: `LayerNorm(...)(None, embed)`.
        """
        options = dict(gate=gate, rows=math.prod(x.shape[1:-1]))
        operands = (
            *Dense(self.kernel_init, name="in")(None, embed, hidden, **options),
            *Dense(self.kernel_init, name="out")(None, hidden, embed, **options),
        )
        function, axes = _Mlp(self.dtype, self.activation), "embed hidden, hidden, hidden embed, embed"
        if norm is not None:
            function, axes = _Normalized(norm.function, function), f"embed, embed, {axes}"
            operands = (norm.scale, norm.bias, *operands)
        y = run(
            function,
            f"rows embed, {axes} -> rows embed",
            {"embed": embed, "hidden": hidden},
            as_rows(x),
            *operands,
            gate=gate,
            maskable=("hidden",),
            masked=function.masked,
        )
        return y.reshape(x.shape)


def uniform_fan_in(fan_in: int) -> Initializer:
    """PyTorch's default of a convolution: uniform within 1 / sqrt(fan_in), for kernel and bias."""
    bound = 1 / math.sqrt(fan_in)

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


class PatchEmbed(nn.Module):
    """Cuts images into patches and maps each to the residual stream (a strided convolution).

    Attributes:
      patch_size: height and breadth of a patch in pixels; that of an image is a multiple of it.
      dtype: that it computes in.
    """

    patch_size: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, width: Width) -> jax.Array:
        """Maps images [B, H, W, C] to [B * patches, maximum], row by row, zero beyond the active channels."""
        batch, height, breadth, channels = images.shape
        p = self.patch_size
        grid = (height // p, breadth // p)
        x = images.reshape(batch, grid[0], p, grid[1], p, channels)
        x = x.transpose(0, 1, 3, 2, 4, 5)  # [B, rows, columns, p, p, C]
        x = x.reshape(batch * grid[0] * grid[1], p * p * channels)
        init = uniform_fan_in(x.shape[1])
        dense = Dense(dtype=self.dtype, kernel_init=init, bias_init=init, name="projection")
        return dense(x, fixed(x.shape[1], "patch"), width, rows=grid[0] * grid[1])


@dataclasses.dataclass(frozen=True)
class _LookUp:
    """Rows of a table [vocabulary, D] by their numbers [N], a function for `run`."""

    dtype: Any

    def __call__(self, tokens: jax.Array, table: jax.Array) -> jax.Array:
        # A number beyond the vocabulary gives NaN rather than the row of another token.
        return jnp.take(table, tokens, axis=0, mode="fill", fill_value=jnp.nan).astype(self.dtype)


class Embedding(nn.Module):
    """A weight-entangled table of token embeddings; a narrower one is the first channels of the widest.

    Example, in the `compact` method of a network of texts:

        x = elastic.Embedding(vocabulary=1000, name="embedding")(tokens, embed)  # [B, T, embed.maximum]

    Attributes:
      vocabulary: number of different tokens.
      dtype: of the result.
      embedding_init: initializer; the default is that of `flax.linen.Embed`.
    """

    vocabulary: int
    dtype: Any = jnp.float32
    embedding_init: Initializer = nn.initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0)

    @nn.compact
    def __call__(self, tokens: jax.Array, width: Width, *, max_branches: int = 8) -> jax.Array:
        """Maps integers tokens [...] to [..., maximum], zero beyond the active width.

        Args:
          tokens: from 0 to vocabulary - 1; a larger one gives NaN.
          width: active channels.
          max_branches: see `run`.
        """
        axes = (fixed(self.vocabulary, "vocabulary"), width)
        table = parameter(self, "embedding", self.embedding_init, axes)
        y = run(
            _LookUp(self.dtype),
            "tokens, vocabulary embed -> tokens embed",
            {"embed": width},
            tokens.reshape(-1),
            table,
            maskable=("embed",),
            max_branches=max_branches,
        )
        return y.reshape(*tokens.shape, width.maximum)


class SqueezeExcite(nn.Module):
    """Squeeze-and-excitation (Hu et al., CVPR 2018, section 3) of an elastic number of channels.

    Example, in the `compact` method of a network with the choice `squeeze` of 0 and 1:

        on = elastic.width(int, decisions["squeeze"])
        x = elastic.SqueezeExcite(name="squeeze")(x, width, elastic.fixed(8), gate=on)

    Attributes:
      activation: of the hidden channels.
      dtype: of the computation; parameters are float32.
      kernel_init: initializer of both kernels.
    """

    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu
    dtype: Any = jnp.float32
    kernel_init: Initializer = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, x: jax.Array, width: Width, hidden: Width, *, gate: Width | None = None) -> jax.Array:
        """Maps images x [B, H, W, maximum] to the same shape, zero beyond the active width.

        Args:
          x: images with zeros beyond `width`.
          width: active channels of x.
          hidden: active channels between the two dense layers.
          gate: 0 where the layer is left out, which gives x itself.
        """
        if gate is not None and gate.maximum == 0:
            return x
        common = dict(gate=gate, max_branches=1)  # small in any network
        make = {"dtype": self.dtype, "kernel_init": self.kernel_init}
        mean = jnp.mean(x, axis=(1, 2))  # [B, maximum]
        squeezed = self.activation(Dense(name="in", **make)(mean, width, hidden, **common))
        scale = jax.nn.sigmoid(Dense(name="out", **make)(squeezed, hidden, width, **common))
        if gate is not None and not gate.is_fixed:
            on = gate.mask(scale.dtype)[0]
            scale = on * scale + (1 - on)
        return x * scale[:, None, None, :]


def drop_path(key: jax.Array, rate: jax.Array | float, batch: int) -> jax.Array:
    """Stochastic depth (Huang et al., ECCV 2016): factors of a residual branch, one for each example.

    Returns:
      float32 [batch]: 0 with the probability `rate`, else 1 / (1 - rate), so that the mean stays.
    """
    keep = jax.random.bernoulli(key, 1 - rate, (batch,))
    return keep.astype(jnp.float32) / (1 - rate)


def drop_branch(module: nn.Module, y: jax.Array, rate: jax.Array | float | None) -> jax.Array:
    """Applies `drop_path` to the result y [B, ...] of a branch, by the stream "dropout"; not for None."""
    if rate is None:
        return y
    factors = drop_path(module.make_rng("dropout"), rate, y.shape[0]).astype(y.dtype)
    return y * factors.reshape(-1, *(1,) * (y.ndim - 1))

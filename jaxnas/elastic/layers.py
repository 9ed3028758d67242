"""Elastic layers: dense, layer normalisation, patch embedding, tokens and positions, drop path."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from jaxnas.elastic.parameter import Sharing, parameter, record_macs
from jaxnas.elastic.switch import Arrays, Shapes, backward_from, forward_keeping, run
from jaxnas.elastic.width import Width, combine, constant, fixed

Initializer = Callable[..., jax.Array]
trunc_normal = nn.initializers.normal(0.02)  # the official cut at +-2 is a hundred deviations away


def gelu(x: jax.Array) -> jax.Array:
    """The exact GELU, in float32 and back; zero stays zero."""
    y = x.astype(jnp.float32)
    # `jax.nn.gelu` takes erfc, which costs twice as much: exact far below zero, where nothing is left.
    return (0.5 * y * (1 + jax.lax.erf(y * 0.5**0.5))).astype(x.dtype)


def affine(x: jax.Array, kernel: jax.Array, bias: jax.Array, dtype: Any) -> jax.Array:
    """`x @ kernel + bias` computed in `dtype`."""
    return x.astype(dtype) @ kernel.astype(dtype) + bias.astype(dtype)[None, :]


class DenseParameters(nn.Module):
    """Declares a weight-entangled dense layer's kernel and bias and counts its products.

    Attributes:
      sharing: "entangled" (options are slices of one kernel) or "classic" (each has its own).
      kernel_init, bias_init: initializers.
    """

    sharing: Sharing = "entangled"
    kernel_init: Initializer = trunc_normal
    bias_init: Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(
        self, width_in: Width, width_out: Width, *, gate: Width | None = None, rows: int = 1
    ) -> Arrays:
        """Returns kernel [in maximum, out maximum] and bias [out maximum].

        Args:
          width_in, width_out: active widths.
          gate: 0 where the layer is skipped.
          rows: rows of one example, for the count of multiply-accumulates.
        """
        return self._declare(width_in, width_out, gate, rows)

    def _declare(self, width_in: Width, width_out: Width, gate: Width | None, rows: int) -> Arrays:
        options = (width_in, width_out) if self.sharing == "classic" else None
        common = dict(gate=gate, options=options)
        kernel = parameter(self, "kernel", self.kernel_init, (width_in, width_out), **common)
        bias = parameter(self, "bias", self.bias_init, (width_out,), **common)
        tables = width_in.table, width_out.table, constant(1) if gate is None else gate.table
        record_macs(self, combine(lambda i, o, g: rows * i * o * g, *tables))
        return kernel, bias


@dataclasses.dataclass(frozen=True)
class DenseOperation:
    """`x @ kernel + bias` for x [N, in], kernel [in, out], bias [out]; widths (in, out)."""

    dtype: Any

    def shapes(self, sizes: tuple[int, ...], x: jax.Array, *_: jax.Array) -> Shapes:
        return (x.shape[0], sizes[0]), sizes, sizes[1:]

    def compute(self, x: jax.Array, kernel: jax.Array, bias: jax.Array) -> Arrays:
        return (affine(x, kernel, bias, self.dtype),)

    def masked(self, masks: Arrays, x: jax.Array, kernel: jax.Array, bias: jax.Array) -> Arrays:
        # Channels beyond the input width are zero already.
        return (affine(x, kernel, bias, self.dtype) * masks[1].astype(self.dtype)[None, :],)


class Dense(DenseParameters):
    """A weight-entangled dense layer on flattened rows; computes in `dtype`."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        width_in: Width,
        width_out: Width,
        *,
        gate: Width | None = None,
        rows: int = 1,
        masked: bool = False,
    ) -> jax.Array:
        """Maps x [N, in maximum] to [N, out maximum], zero beyond the active widths.

        Args:
          x: rows with a zero tail beyond `width_in`.
          width_in, width_out, gate, rows: see `DenseParameters`; skipped, the layer gives zeros.
          masked: see `switch.run`.
        """
        kernel, bias = self._declare(width_in, width_out, gate, rows)
        operation = DenseOperation(self.dtype)
        widths = width_in, width_out
        return run(operation, widths, x, kernel, bias, gate=gate, masked=masked)[0]


@dataclasses.dataclass(frozen=True)
class MlpOperation:
    """Two dense layers with a GELU between; widths (embed, hidden).

    Operands: x [N, E], kernel [E, F] and bias [F] in, kernel [F, E] and bias [E] out. One operation and
    not two, so that the hidden activations are never padded and cut again; they are kept, before the
    GELU, for the backward pass.
    """

    dtype: Any

    def shapes(self, sizes: tuple[int, ...], x: jax.Array, *_: jax.Array) -> Shapes:
        embed, hidden = sizes
        return (x.shape[0], embed), (embed, hidden), (hidden,), (hidden, embed), (embed,)

    def compute(self, *operands: jax.Array) -> Arrays:
        return (self._second(self._first(*operands[:3]), *operands[3:]),)

    def forward(self, *operands: jax.Array) -> tuple[Arrays, Arrays]:
        hidden = self._first(*operands[:3])
        return (self._second(hidden, *operands[3:]),), (hidden,)

    def backward(self, operands: Arrays, kept: Arrays, cotangents: Arrays) -> Arrays:
        _, second = jax.vjp(self._second, *kept, *operands[3:])
        grad_hidden, *grad_out = second(cotangents[0])
        # Linear in each operand: what the product below gives is not needed and not computed.
        _, first = jax.vjp(self._first, *operands[:3])
        return *first(grad_hidden), *grad_out

    def masked(self, masks: Arrays, x: jax.Array, *weights: jax.Array) -> Arrays:
        embed, hidden = (mask.astype(self.dtype)[None, :] for mask in masks)
        y = affine(x, weights[0], weights[1], self.dtype) * hidden
        return (affine(gelu(y), weights[2], weights[3], self.dtype) * embed,)

    def _first(self, x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        return affine(x, kernel, bias, self.dtype)

    def _second(self, hidden: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        return affine(gelu(hidden), kernel, bias, self.dtype)


def normalise(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float, dtype: Any) -> jax.Array:
    """Layer normalisation of rows x [N, D], computed in float32."""
    rows = x.astype(jnp.float32)
    centred = rows - jnp.mean(rows, axis=1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=1, keepdims=True)
    y = centred * jax.lax.rsqrt(variance + epsilon) * scale[None, :] + bias[None, :]
    return y.astype(dtype)


@dataclasses.dataclass(frozen=True)
class LayerNormOperation:
    """Normalises rows over the active channels only: x [N, D], scale [D], bias [D]; widths (D,)."""

    epsilon: float
    dtype: Any

    def shapes(self, sizes: tuple[int, ...], x: jax.Array, *_: jax.Array) -> Shapes:
        return (x.shape[0], *sizes), sizes, sizes

    def compute(self, *operands: jax.Array) -> Arrays:
        return (self.normalise(*operands),)

    def normalise(self, x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
        """Normalises rows x [N, D]."""
        return normalise(x, scale, bias, self.epsilon, self.dtype)

    def masked(self, masks: Arrays, x: jax.Array, scale: jax.Array, bias: jax.Array) -> Arrays:
        mask = masks[0][None, :]
        count = jnp.sum(mask)
        rows = x.astype(jnp.float32)
        mean = jnp.sum(rows, axis=1, keepdims=True) / count
        centred = (rows - mean) * mask
        variance = jnp.sum(centred * (rows - mean), axis=1, keepdims=True) / count
        y = centred * jax.lax.rsqrt(variance + self.epsilon)
        y = y * scale[None, :] + bias[None, :] * mask
        return (y.astype(self.dtype),)


@dataclasses.dataclass(frozen=True)
class PreNorm:
    """Layer normalisation and an operation on its result, as one operation.

    Operands: x [N, D], scale [D], bias [D], and those of `inner` behind its own x; widths those of
    `inner`, whose first is x's. The normalised rows are never padded and cut again, and are not kept:
    the backward pass makes them anew.
    """

    inner: Any
    norm: LayerNormOperation

    def shapes(self, sizes: tuple[int, ...], *operands: jax.Array) -> Shapes:
        x, *weights = self.inner.shapes(sizes, operands[0], *operands[3:])
        return x, sizes[:1], sizes[:1], *weights

    def compute(self, *operands: jax.Array) -> Arrays:
        return self.inner.compute(self.norm.normalise(*operands[:3]), *operands[3:])

    def forward(self, *operands: jax.Array) -> tuple[Arrays, Arrays]:
        return forward_keeping(self.inner, self.norm.normalise(*operands[:3]), *operands[3:])

    def backward(self, operands: Arrays, kept: Arrays, cotangents: Arrays) -> Arrays:
        x, norm_vjp = jax.vjp(self.norm.normalise, *operands[:3])
        grad_x, *gradients = backward_from(self.inner, (x, *operands[3:]), kept, cotangents)
        return *norm_vjp(grad_x), *gradients

    def masked(self, masks: Arrays, *operands: jax.Array) -> Arrays:
        (x,) = self.norm.masked(masks[:1], *operands[:3])
        return self.inner.masked(masks, x, *operands[3:])


@flax.struct.dataclass
class Norm:
    """A layer normalisation that another layer applies to its input, within its first operation."""

    operation: LayerNormOperation = flax.struct.field(pytree_node=False)
    scale: jax.Array
    bias: jax.Array


def prenorm(norm: Norm | None, operation: Any, *operands: jax.Array) -> tuple[Any, ...]:
    """The operation and its operands behind x, with the normalisation of x put first if there is one."""
    if norm is None:
        return operation, *operands
    return PreNorm(operation, norm.operation), norm.scale, norm.bias, *operands


def without_norm(operation: Any) -> tuple[Callable[..., jax.Array], int, Any]:
    """What an operation does first, taking how many operands, and the operation on the result."""
    if isinstance(operation, PreNorm):
        return operation.norm.normalise, 3, operation.inner
    return lambda x: x, 1, operation


class LayerNormParameters(nn.Module):
    """Declares the parameters of a layer normalisation (epsilon as in PyTorch)."""

    epsilon: float = 1e-5
    dtype: Any = jnp.float32
    sharing: Sharing = "entangled"

    @nn.compact
    def __call__(self, width: Width, *, gate: Width | None = None) -> Norm:
        """Returns the normalisation, for a layer that takes one."""
        return self._declare(width, gate)

    def _declare(self, width: Width, gate: Width | None) -> Norm:
        common = dict(gate=gate, options=(width,) if self.sharing == "classic" else None)
        scale = parameter(self, "scale", nn.initializers.ones, (width,), **common)
        bias = parameter(self, "bias", nn.initializers.zeros, (width,), **common)
        return Norm(LayerNormOperation(self.epsilon, self.dtype), scale, bias)


class LayerNorm(LayerNormParameters):
    """Layer normalisation over the active channels (AutoFormer, section 3.1) as a layer of its own."""

    @nn.compact
    def __call__(self, x: jax.Array, width: Width, *, masked: bool = False) -> jax.Array:
        """Normalises x [N, maximum] over the first `width` channels; zero beyond.

        `masked`: see `switch.run`.
        """
        norm = self._declare(width, None)
        return run(norm.operation, (width,), x, norm.scale, norm.bias, masked=masked)[0]


def _uniform_fan_in(fan_in: int) -> Initializer:
    """PyTorch's default of a convolution: uniform within 1 / sqrt(fan_in), for kernel and bias."""
    bound = 1 / math.sqrt(fan_in)

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


class PatchEmbed(nn.Module):
    """Cuts images into patches and maps each to the residual stream (a strided convolution)."""

    patch_size: int
    dtype: Any = jnp.float32
    sharing: Sharing = "entangled"

    @nn.compact
    def __call__(self, images: jax.Array, width: Width) -> jax.Array:
        """Maps images [B, H, W, C] to [B * patches, maximum], row by row, as rows of patches."""
        batch, height, breadth, channels = images.shape
        p = self.patch_size
        grid = (height // p, breadth // p)
        x = images.reshape(batch, grid[0], p, grid[1], p, channels)
        x = x.transpose(0, 1, 3, 2, 4, 5)  # [B, rows, columns, p, p, C]
        x = x.reshape(batch * grid[0] * grid[1], p * p * channels)
        init = _uniform_fan_in(x.shape[1])
        dense = Dense(
            dtype=self.dtype, sharing=self.sharing, kernel_init=init, bias_init=init, name="projection"
        )
        return dense(x, fixed(x.shape[1], "patch"), width, rows=grid[0] * grid[1])


class Tokens(nn.Module):
    """Puts a class token before the patch tokens and adds the absolute positions."""

    dtype: Any = jnp.float32
    positions: bool = True
    sharing: Sharing = "entangled"

    @nn.compact
    def __call__(self, x: jax.Array, width: Width) -> jax.Array:
        """Maps x [B, patches, maximum] to [B, patches + 1, maximum]."""
        options = (width,) if self.sharing == "classic" else None
        cls = parameter(self, "cls", trunc_normal, (width,), options=options)
        batch, patches, maximum = x.shape
        first = jnp.broadcast_to(cls.astype(self.dtype)[None, None, :], (batch, 1, maximum))
        x = jnp.concatenate([first, x], axis=1)
        if self.positions:
            axes = (fixed(patches + 1), width)
            position = parameter(self, "positions", trunc_normal, axes, options=options)
            x = x + position.astype(self.dtype)[None]
        if width.is_fixed:
            return x
        return x * width.mask(self.dtype)[None, None, :]


def drop_path(key: jax.Array, rate: jax.Array | float, batch: int) -> jax.Array:
    """Stochastic depth: the factor of each example's branch, float32 [B], 0 with probability `rate`."""
    keep = jax.random.bernoulli(key, 1 - rate, (batch,))
    return keep.astype(jnp.float32) / (1 - rate)

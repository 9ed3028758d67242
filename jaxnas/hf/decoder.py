"""A decoder-only Transformer: the function that Llama, Mistral, Qwen 2 and 3, and Gemma 3 have in common.

`Decoder` is a plain Flax module. Its `Form` says how the families differ, and its per-layer fields let every
layer have sizes of its own: a layer without key/value groups has no attention, one without hidden units no
MLP.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np


def _gelu_tanh(x: jax.Array) -> jax.Array:
    """GELU by its approximation with tanh; the cubic is a product, and no array is added to another."""
    return x * (0.5 + 0.5 * jnp.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * jnp.square(x))))


ACTIVATIONS = {
    "silu": nn.silu,
    "gelu": lambda x: nn.gelu(x, approximate=False),
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": nn.relu,
}


@dataclasses.dataclass(frozen=True)
class Rope:
    """Rotary position embeddings.

    Attributes:
      theta: the base of the wavelengths.
      kind: "default", "linear" (all wavelengths times `factor`) or "llama3" (long ones times `factor`).
      factor: of the wavelengths.
      low, high: of "llama3": wavelengths beyond `original / low` are long, those below `original / high`
        short, and those between are interpolated.
      original: the context length of the pretraining, of "llama3".
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def frequencies(self, head_dim: int) -> np.ndarray:
        """Radians per position of each pair of channels, float32 [head_dim / 2]."""
        exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        plain = np.float32(1) / np.float32(self.theta) ** exponents
        scaled = plain / np.float32(self.factor)
        if self.kind == "default":
            return plain
        if self.kind == "linear":
            return scaled
        wavelengths = 2 * math.pi / plain
        share = (self.original / wavelengths - self.low) / (self.high - self.low)
        share = np.clip(share, 0, 1).astype(np.float32)
        return (1 - share) * scaled + share * plain


class RMSNorm(nn.Module):
    """Division by the root mean square over the last axis, in float32, then a weight for each channel.

    Attributes:
      epsilon: added to the mean square.
      offset: added to the weight, 1 in Gemma.
      dtype: of the result.
    """

    epsilon: float
    offset: float
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalizes an array [..., d]."""
        init = nn.initializers.zeros if self.offset else nn.initializers.ones
        scale = self.param("scale", init, (x.shape[-1],))
        x = x.astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.epsilon)
        scale = scale.astype(jnp.float32)
        scale = scale + self.offset if self.offset else scale
        return (x * jnp.broadcast_to(scale, x.shape)).astype(self.dtype)


@dataclasses.dataclass(frozen=True)
class Form:
    """Settings of all layers of a decoder, in which the families differ.

    Attributes:
      head_dim: channels of a head.
      rope: of layers without a window.
      local_rope: of layers with a window; None for `rope`.
      attention_scale: of products of queries and keys.
      epsilon: of norms.
      activation: of gates, by its name in a config.json.
      qkv_bias, out_bias, mlp_bias: which projections have a bias.
      qk_norm: whether queries and keys are normalized.
      post_norms: whether the results of attention and MLP are normalized, too.
      norm_offset: added to the weights of norms.
      embedding_scale: of the embeddings.
      softcap: of the logits, `softcap * tanh(logits / softcap)`; None for none.
      tied: whether the logits are products with the embeddings.
    """

    head_dim: int
    rope: Rope
    local_rope: Rope | None = None
    attention_scale: float = 1.0
    epsilon: float = 1e-6
    activation: str = "silu"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    softcap: float | None = None
    tied: bool = False


class Decoder(nn.Module):
    """A decoder-only Transformer.

    Attributes:
      form: what its layers have in common.
      vocabulary: the number of tokens.
      width: of the residual stream.
      kv_groups: of each layer, the key/value heads; 0 for no attention.
      group_heads: of each layer, the query heads of each key/value head.
      hidden: of each layer, the hidden units of its MLP; 0 for no MLP.
      windows: of each layer, how many positions it attends to, its own included; None for all before.
      dtype: of the computation.
    """

    form: Form
    vocabulary: int
    width: int
    kv_groups: tuple[int, ...]
    group_heads: tuple[int, ...]
    hidden: tuple[int, ...]
    windows: tuple[int | None, ...]
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Predicts the next token at each position.

        Args:
          tokens: int32 [B, T].

        Returns:
          Logits, float32 [B, T, vocabulary].
        """
        embed = nn.Embed(self.vocabulary, self.width, dtype=self.dtype, name="embed")
        x = embed(tokens)
        form = self.form
        if form.embedding_scale != 1.0:
            x = x * jnp.asarray(form.embedding_scale, x.dtype)
        for i, window in enumerate(self.windows):
            if self.kv_groups[i] or self.hidden[i]:
                sizes = self.kv_groups[i], self.group_heads[i], self.hidden[i]
                x = Layer(form, *sizes, window, self.dtype, name=f"layers_{i}")(x)
        x = RMSNorm(form.epsilon, form.norm_offset, self.dtype, name="norm")(x)
        if form.tied:
            logits = embed.attend(x)
        else:
            logits = nn.Dense(self.vocabulary, use_bias=False, dtype=self.dtype, name="head")(x)
        logits = logits.astype(jnp.float32)
        return logits if form.softcap is None else form.softcap * jnp.tanh(logits / form.softcap)


class Layer(nn.Module):
    """An attention and an MLP, each with its norms and its residual addition."""

    form: Form
    kv_groups: int
    group_heads: int
    hidden: int
    window: int | None
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Updates the stream [B, T, width]."""
        if self.kv_groups:
            sizes = self.kv_groups, self.group_heads
            x = Attention(self.form, *sizes, self.window, self.dtype, name="attention")(x)
        return MLP(self.form, self.hidden, self.dtype, name="mlp")(x) if self.hidden else x


class Attention(nn.Module):
    """Grouped-query attention to earlier positions, added to the stream."""

    form: Form
    kv_groups: int
    group_heads: int
    window: int | None
    dtype: Any

    @nn.compact
    def __call__(self, stream: jax.Array) -> jax.Array:
        """Updates the stream [B, T, width]."""
        form, dim, width = self.form, self.form.head_dim, stream.shape[-1]

        def project(name: str, *shape: int) -> jax.Array:
            return nn.DenseGeneral(shape, use_bias=form.qkv_bias, dtype=self.dtype, name=name)(x)

        def norm(name: str, x: jax.Array) -> jax.Array:
            return RMSNorm(form.epsilon, form.norm_offset, self.dtype, name=name)(x)

        x = norm("norm", stream)
        query = project("query", self.kv_groups, self.group_heads, dim)  # [B, T, K, G, D]
        key, value = (project(name, self.kv_groups, dim) for name in ("key", "value"))  # [B, T, K, D]
        if form.qk_norm:
            query, key = norm("query_norm", query), norm("key_norm", key)
        rope = form.local_rope if self.window is not None and form.local_rope is not None else form.rope
        query, key = (_rotated(one, rope) for one in (query, key))
        scores = jnp.einsum("btkgd,bskd->bkgts", query, key) * jnp.asarray(form.attention_scale, self.dtype)
        scores = jnp.where(_visible(x.shape[1], self.window), scores.astype(jnp.float32), -jnp.inf)
        weights = nn.softmax(scores, axis=-1).astype(self.dtype)
        x = jnp.einsum("bkgts,bskd->btkgd", weights, value)
        out = nn.DenseGeneral(width, axis=(-3, -2, -1), use_bias=form.out_bias, dtype=self.dtype, name="out")
        x = out(x)
        return stream + (norm("post_norm", x) if form.post_norms else x)


class MLP(nn.Module):
    """A gated feed-forward network, added to the stream."""

    form: Form
    hidden: int
    dtype: Any

    @nn.compact
    def __call__(self, stream: jax.Array) -> jax.Array:
        """Updates the stream [B, T, width]."""
        form = self.form

        def dense(name: str, size: int) -> nn.Dense:
            return nn.Dense(size, use_bias=form.mlp_bias, dtype=self.dtype, name=name)

        def norm(name: str) -> RMSNorm:
            return RMSNorm(form.epsilon, form.norm_offset, self.dtype, name=name)

        x = norm("norm")(stream)
        x = ACTIVATIONS[form.activation](dense("gate", self.hidden)(x)) * dense("up", self.hidden)(x)
        x = dense("down", stream.shape[-1])(x)
        return stream + (norm("post_norm")(x) if form.post_norms else x)


def _rotated(x: jax.Array, rope: Rope) -> jax.Array:
    """Turns channels j and j + D/2 of an array [B, T, ..., D] by an angle that grows with the position."""
    angles = np.arange(x.shape[1], dtype=np.float32)[:, None] * rope.frequencies(x.shape[-1])
    shape = (1, x.shape[1], *[1] * (x.ndim - 3), x.shape[-1] // 2)
    cos, sin = (jnp.asarray(f(angles).reshape(shape), x.dtype) for f in (np.cos, np.sin))
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _visible(length: int, window: int | None) -> jax.Array:
    """Which positions each position attends to, bool [length, length]."""
    distance = jnp.arange(length)[:, None] - jnp.arange(length)[None, :]
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)

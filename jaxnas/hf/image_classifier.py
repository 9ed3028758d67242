"""A vision transformer that classifies images: the function of ViT and DeiT.

`ImageClassifier` is a plain Flax module. Its per-layer fields let every layer have sizes of its own: a layer
without heads has no attention, one without hidden units no MLP.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.hf.decoder import ACTIVATIONS


@dataclasses.dataclass(frozen=True)
class ImageForm:
    """Settings of all layers of an image classifier.

    Attributes:
      image: height and width of the images.
      patch: height and width of the patches.
      channels: of the images.
      head_dim: channels of a head.
      classes: that are told apart.
      distilled: whether there is a distillation token behind the class token, as in DeiT.
      teacher: whether it has a head of its own, whose logits are averaged with those of the class token.
      qkv_bias: whether queries, keys and values have biases.
      epsilon: of norms.
      activation: of MLPs, by its name in a config.json.
    """

    image: tuple[int, int]
    patch: tuple[int, int]
    channels: int
    head_dim: int
    classes: int
    distilled: bool = False
    teacher: bool = False
    qkv_bias: bool = True
    epsilon: float = 1e-12
    activation: str = "gelu"


class ImageClassifier(nn.Module):
    """A vision transformer with a class token.

    Attributes:
      form: what its layers have in common.
      width: of the residual stream.
      heads: of each layer; 0 for no attention.
      hidden: of each layer, the hidden units of its MLP; 0 for no MLP.
      dtype: of the computation.
    """

    form: ImageForm
    width: int
    heads: tuple[int, ...]
    hidden: tuple[int, ...]
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Classifies images.

        Args:
          images: float [B, height, width, channels]. (PyTorch has [B, channels, height, width].)

        Returns:
          Logits, float32 [B, classes].
        """
        form, batch = self.form, images.shape[0]
        patches = nn.Conv(
            self.width, form.patch, strides=form.patch, padding="VALID", dtype=self.dtype, name="patches"
        )
        x = patches(images.astype(self.dtype)).reshape(batch, -1, self.width)
        normal = nn.initializers.normal(0.02)
        names = ("class_token", "distillation_token") if form.distilled else ("class_token",)
        tokens = [self.param(name, normal, (1, 1, self.width)).astype(self.dtype) for name in names]
        x = jnp.concatenate([*(jnp.broadcast_to(one, (batch, 1, self.width)) for one in tokens), x], axis=1)
        positions = self.param("positions", normal, (1, *x.shape[1:])).astype(self.dtype)
        x = x + jnp.broadcast_to(positions, x.shape)
        for i, (heads, hidden) in enumerate(zip(self.heads, self.hidden, strict=True)):
            if heads or hidden:
                x = ImageLayer(form, heads, hidden, self.dtype, name=f"layers_{i}")(x)
        x = _norm(form, self.dtype, "norm")(x)
        logits = nn.Dense(form.classes, dtype=self.dtype, name="head")(x[:, 0]).astype(jnp.float32)
        if not form.teacher:
            return logits
        second = nn.Dense(form.classes, dtype=self.dtype, name="distillation_head")(x[:, 1])
        return (logits + second.astype(jnp.float32)) / 2


class ImageLayer(nn.Module):
    """An attention and an MLP, each with its norm and its residual addition."""

    form: ImageForm
    heads: int
    hidden: int
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Updates the stream [B, N, width]."""
        if self.heads:
            x = ImageAttention(self.form, self.heads, self.dtype, name="attention")(x)
        return ImageMLP(self.form, self.hidden, self.dtype, name="mlp")(x) if self.hidden else x


class ImageAttention(nn.Module):
    """Attention to all positions, added to the stream."""

    form: ImageForm
    heads: int
    dtype: Any

    @nn.compact
    def __call__(self, stream: jax.Array) -> jax.Array:
        """Updates the stream [B, N, width]."""
        form, width = self.form, stream.shape[-1]

        def project(name: str) -> jax.Array:
            shape = (self.heads, form.head_dim)
            return nn.DenseGeneral(shape, use_bias=form.qkv_bias, dtype=self.dtype, name=name)(x)

        x = _norm(form, self.dtype, "norm")(stream)
        query, key, value = project("query"), project("key"), project("value")  # [B, N, H, D]
        scores = jnp.einsum("bthd,bshd->bhts", query, key) * jnp.asarray(form.head_dim**-0.5, self.dtype)
        weights = nn.softmax(scores.astype(jnp.float32), axis=-1).astype(self.dtype)
        x = jnp.einsum("bhts,bshd->bthd", weights, value)
        return stream + nn.DenseGeneral(width, axis=(-2, -1), dtype=self.dtype, name="out")(x)


class ImageMLP(nn.Module):
    """A feed-forward network, added to the stream."""

    form: ImageForm
    hidden: int
    dtype: Any

    @nn.compact
    def __call__(self, stream: jax.Array) -> jax.Array:
        """Updates the stream [B, N, width]."""
        x = _norm(self.form, self.dtype, "norm")(stream)
        x = ACTIVATIONS[self.form.activation](nn.Dense(self.hidden, dtype=self.dtype, name="up")(x))
        return stream + nn.Dense(stream.shape[-1], dtype=self.dtype, name="down")(x)


def _norm(form: ImageForm, dtype: Any, name: str) -> nn.LayerNorm:
    return nn.LayerNorm(form.epsilon, dtype=dtype, use_fast_variance=False, name=name)

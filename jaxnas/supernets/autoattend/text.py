"""AutoAttend for texts: its operations, and the network that classifies by its last layer.

AutoAttend (Guan et al., ICML 2021, sections 4.1 and 5.1). Operations give zeros behind the end of a text.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.checks import check_counts, check_numbers
from jaxnas.elastic.decisions import Decisions
from jaxnas.space import Arch, Space
from jaxnas.supernets.autoattend.attention_graph import LayerKind, run_graph
from jaxnas.supernets.autoattend.attention_weights import Context, check_graph
from jaxnas.supernets.autoattend.graph_operations import Identity, Zero
from jaxnas.supernets.layers import tuned
from jaxnas.supernets.schema import check_multiple


def _within(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Zeros in x [B, T, D] where the mask [B, T] is False."""
    return jnp.where(mask[..., None], x, jnp.zeros_like(x))


def _symmetric(scale: float) -> Any:
    """An initializer, uniform from -scale to scale."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -scale, scale)

    return init


class Convolution(nn.Module):
    """Layer normalization, a convolution along the text, a ReLU.

    The convolution is a dense layer of each word and its neighbors: within a switch, XLA for CPUs takes
    several times as long for a gradient of `nn.Conv`.

    Attributes:
      width: channels out.
      size: words that the kernel covers.
      dropout: of the result.
    """

    width: int
    size: int = 1
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, *, train: bool = False) -> jax.Array:
        """Maps x [B, T, E] to [B, T, width]."""
        x = _within(nn.LayerNorm(name="norm")(x), mask)
        before = (self.size - 1) // 2
        padded = jnp.pad(x, ((0, 0), (before, self.size - 1 - before), (0, 0)))
        near = [padded[:, i : i + x.shape[1]] for i in range(self.size)]
        x = nn.relu(nn.Dense(self.width, name="convolution")(jnp.concatenate(near, axis=2)))
        return nn.Dropout(self.dropout, deterministic=not train)(_within(x, mask))


class MaxPool(nn.Module):
    """Layer normalization, and the maximum of each word and its two neighbors."""

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, *, train: bool = False) -> jax.Array:
        """Maps x [B, T, D] to [B, T, D]."""
        x = jnp.where(mask[..., None], nn.LayerNorm(name="norm")(x), -jnp.inf)
        return _within(nn.max_pool(x, (3,), padding="SAME"), mask)


class BidirectionalGRU(nn.Module):
    """Layer normalization, and the sum of a GRU in each direction, with dropout."""

    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, *, train: bool = False) -> jax.Array:
        """Maps x [B, T, D] to [B, T, D]."""
        width, lengths = x.shape[-1], jnp.sum(mask, axis=1, dtype=jnp.int32)
        x = nn.LayerNorm(name="norm")(x)
        # As PyTorch's. Flax's own, orthogonal matrices, take XLA a batched QR of all copies in a bank.
        init = _symmetric(width**-0.5)
        kernels = {"kernel_init": init, "recurrent_kernel_init": init}
        y = jnp.zeros_like(x)
        for name in ("forward", "backward"):
            cell = nn.GRUCell(width, **kernels, name=name)
            rnn: Any = nn.RNN(cell, reverse=name == "backward", keep_order=True)
            y += rnn(x, seq_lengths=lengths)
        return nn.Dropout(self.dropout, deterministic=not train)(_within(y, mask))


def attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, keep: Any, *, num_heads: int
) -> jax.Array:
    """Multi-head attention without projections: softmax(Q Kᵀ / √d) V within a text, [B, T, D] each."""
    query, key, value = (x.reshape(*x.shape[:2], num_heads, -1) for x in (query, key, value))  # [B, T, H, d]
    scores = jnp.einsum("bthd,bshd->bhts", query, key) * query.shape[-1] ** -0.5
    # The least score in place of -inf: a text without a word gives no NaN.
    scores = jnp.where(mask[:, None, None], scores, jnp.finfo(scores.dtype).min)
    attended = jnp.einsum("bhts,bshd->bthd", keep(nn.softmax(scores)), value)
    return _within(attended.reshape(*mask.shape, -1), mask)


class AutoAttendText(nn.Module):
    """AutoAttend's supernet for texts; see `spaces.autoattend`.

    Words are vectors that the task gives, as GloVe's, or else an embedding that is learned. The head sees the
    greatest value of each channel of the last layer over the text. With the space of one architecture it is
    that plain network.

    Attributes:
      space: the search space.
      num_classes: of texts.
      vocabulary: number of different tokens; needed where the task gives no vectors, or to tune them.
      width: of all layers.
      num_heads: of attentions.
      embedding: width of an embedding that is learned, if the task gives no vectors.
      tune_vectors: whether the task's vectors are tuned, each by a difference that is learned.
      context: which contexts of an operation have weights of their own; "full" is the paper's.
      dropout: of the stem, of operations, of layers and of attention weights.
      window, stride: a text longer than `window` is read in windows that begin `stride` words apart, the last
        of which reaches its end, and the head sees the maximum over all of them; None reads it whole (section
        5.1, on long documents).
    """

    space: Space
    num_classes: int
    vocabulary: int | None = None
    width: int = 64
    num_heads: int = 8
    embedding: int = 64
    tune_vectors: bool = False
    context: Context = "full"
    dropout: float = 0.1
    window: int | None = None
    stride: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_graph(self, tuple(self.operations()))
        check_counts(self, "num_classes", "width", "num_heads", "embedding", "stride")
        check_counts(self, "vocabulary", "window", none=True)
        check_numbers(self, "dropout", least=0, below=1)
        check_multiple("AutoAttendText: width, of the heads,", self.width, self.num_heads)
        if self.window is not None and self.stride > self.window:
            raise ValueError(
                f"AutoAttendText: window is {self.window} and stride {self.stride}; windows that begin "
                "further apart than they are long would leave words out."
            )

    def operations(self) -> dict[str, nn.Module]:
        """The operations by the names that a space gives them, in the order of the released code."""
        common: dict[str, Any] = {"dropout": self.dropout, "parent": None}
        return {
            "zero": Zero(self.width, parent=None),
            "identity": Identity(self.width, parent=None),
            "convolution_1": Convolution(self.width, 1, **common),
            "convolution_3": Convolution(self.width, 3, **common),
            "max_pool": MaxPool(parent=None),
            "gru": BidirectionalGRU(**common),
        }

    @nn.compact
    def __call__(
        self, inputs: Mapping[str, jax.Array], arch: Arch | None = None, *, train: bool = False
    ) -> jax.Array:
        """Classifies texts.

        Args:
          inputs: "mask" bool [B, T], True where there is a word, and "vectors" float32 [B, T, G] or "tokens"
            int32 [B, T].
          arch: a hard architecture of the space; not needed if the space has only one.
          train: whether dropout is on (needs the "dropout" random stream).

        Returns:
          Logits, float32 [B, num_classes].
        """
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        x, mask = self._embed(inputs), inputs["mask"]
        batch = mask.shape[0]
        if self.window is not None and mask.shape[1] > self.window:
            x, mask = read_in_windows(x, mask, self.window, self.stride)  # [B * W, window, ...]
        x = Convolution(self.width, 1, self.dropout, name="stem")(x, mask, train=train)
        layer = LayerKind(
            self.operations(),
            functools.partial(attention, num_heads=self.num_heads),
            self.width,
            dropout=self.dropout,
            attention_dropout=self.dropout,
            attention_macs=2 * mask.shape[1] ** 2 * self.width * x.shape[0] // batch,
            normalize=True,
        )
        x = run_graph(self, layer, x, (mask,), decisions, train=train)
        words = mask.reshape(batch, -1, 1)
        x = jnp.where(words, x.reshape(batch, -1, self.width), jnp.finfo(x.dtype).min)
        # A text without a word has zeros.
        x = jnp.where(jnp.any(words, axis=1), jnp.max(x, axis=1), 0)  # [B, D]
        return nn.Dense(self.num_classes, kernel_init=nn.initializers.normal(0.02), name="head")(x)

    def _embed(self, inputs: Mapping[str, jax.Array]) -> jax.Array:
        """Vectors of words, float32 [B, T, G]."""
        vectors = inputs.get("vectors")
        if vectors is not None and not self.tune_vectors:
            return vectors
        if self.vocabulary is None:
            raise ValueError(
                "AutoAttendText: vocabulary is None; give the number of different tokens, since "
                + ("the task gives no vectors of words." if vectors is None else "tune_vectors is True.")
            )
        if self.tune_vectors:
            return tuned(vectors, inputs["tokens"], self.vocabulary)
        return nn.Embed(self.vocabulary, self.embedding, name="embedding")(inputs["tokens"])


def read_in_windows(x: jax.Array, mask: jax.Array, size: int, stride: int) -> tuple[jax.Array, jax.Array]:
    """The windows of texts x [B, T, D] and of their mask [B, T], as [B * W, size, D] and [B * W, size].

    A window is empty where the one before it has read the text to its end, as all those of the padding are.
    So a text is read alike however long its padding is.
    """
    cut = windows(mask, size, stride)
    has_more = jnp.any(cut[:, size - stride :], axis=1).reshape(mask.shape[0], -1)  # [B, W]
    has_more = has_more.at[:, 0].set(True)  # The first window of a text has none before it.
    return windows(x, size, stride), cut & has_more.reshape(-1, 1)


def windows(x: jax.Array, size: int, stride: int) -> jax.Array:
    """Overlapping windows of x [B, T, ...], as [B * W, size, ...]; the last ones are filled up with zeros."""
    count = -(-max(x.shape[1] - size, 0) // stride) + 1
    x = jnp.pad(x, [(0, 0), (0, (count - 1) * stride + size - x.shape[1])] + [(0, 0)] * (x.ndim - 2))
    cut = [x[:, i * stride : i * stride + size] for i in range(count)]
    return jnp.stack(cut, axis=1).reshape(-1, size, *x.shape[2:])

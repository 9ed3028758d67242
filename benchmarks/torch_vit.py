"""A plain PyTorch vision transformer of given sizes: what an extracted network is compared with.

It has the layers, sizes and parameters of `jaxnas.supernets.ViT` with a space of one architecture,
and computes the same function; it is written as one would write it in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RelativePositions(nn.Module):
    """2-D relative positions of a square grid of patches behind a class token, for keys or values.

    The embedding of a pair of patches is an entry of `rows`, for the difference of their rows, plus
    one of `columns`; a pair with the class token has entry 0 of both. The [T, T, D] tensor of all
    embeddings is never made: products are taken with the [side, side, D] embeddings of each axis,
    and a gradient takes two thirds of the time.
    """

    def __init__(self, side: int, head_dim: int, max_relative_position: int) -> None:
        super().__init__()
        entries = 2 * max_relative_position + 2
        self.rows = nn.Parameter(0.02 * torch.randn(entries, head_dim))
        self.columns = nn.Parameter(0.02 * torch.randn(entries, head_dim))
        self.side = side
        offset = torch.arange(side)[None, :] - torch.arange(side)[:, None]
        offset = offset.clamp(-max_relative_position, max_relative_position)
        self.entry: Tensor
        self.register_buffer("entry", offset + max_relative_position + 1, persistent=False)

    def logits(self, queries: Tensor) -> Tensor:
        """The product of each query [B, h, T, D] with the embedding of each key, [B, h, T, T]."""
        batch, heads, tokens, dim = queries.shape
        side = self.side
        grid = queries[:, :, 1:].reshape(-1, side, side, dim)
        by_row = torch.einsum("nrcd,rsd->nrcs", grid, self.rows[self.entry])
        by_column = torch.einsum("nrcd,csd->nrcs", grid, self.columns[self.entry])
        patches = by_row[..., :, None] + by_column[..., None, :]
        patches = patches.reshape(batch, heads, tokens - 1, tokens - 1)
        special = queries[:, :, 1:] @ (self.rows[0] + self.columns[0])
        # The class token's query gets the same product for every key, which the softmax ignores.
        return F.pad(torch.cat([special[..., None], patches], dim=-1), (0, 0, 1, 0))

    def mean(self, weights: Tensor) -> Tensor:
        """For each query the mean embedding under weights [B, h, T, T] of keys, [B, h, T, D]."""
        batch, heads, tokens, _ = weights.shape
        side = self.side
        grid = weights[:, :, 1:, 1:].reshape(-1, side, side, side, side)
        by_row = torch.einsum("nrcs,rsd->nrcd", grid.sum(dim=4), self.rows[self.entry])
        by_column = torch.einsum("nrcs,csd->nrcd", grid.sum(dim=3), self.columns[self.entry])
        patches = (by_row + by_column).reshape(batch, heads, tokens - 1, -1)
        special = self.rows[0] + self.columns[0]
        patches = patches + weights[:, :, 1:, :1] * special
        return torch.cat([special.expand(batch, heads, 1, -1), patches], dim=2)


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, embed: int, heads: int, head_dim: int, side: int, max_relative_position: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.qkv = nn.Linear(embed, 3 * heads * head_dim)
        self.projection = nn.Linear(heads * head_dim, embed)
        self.keys: RelativePositions | None = None
        self.values: RelativePositions | None = None
        if max_relative_position:
            self.keys = RelativePositions(side, head_dim, max_relative_position)
            self.values = RelativePositions(side, head_dim, max_relative_position)

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [B, T, embed] to the same shape."""
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if self.keys is None or self.values is None:
            out = F.scaled_dot_product_attention(q, k, v)
        else:
            q = q * self.head_dim**-0.5
            weights = (q @ k.transpose(2, 3) + self.keys.logits(q)).softmax(dim=-1)
            out = weights @ v + self.values.mean(weights)
        return self.projection(out.transpose(1, 2).reshape(batch, tokens, -1))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, embed: int, hidden: int, attention: Attention) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(embed)
        self.attention = attention
        self.mlp_norm = nn.LayerNorm(embed)
        self.mlp_in = nn.Linear(embed, hidden)
        self.mlp_out = nn.Linear(hidden, embed)

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [B, T, embed] to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x))))


class PlainViT(nn.Module):
    """A vision transformer with its own number of heads and hidden width in each layer.

    Args:
      image_size: height and width of the images.
      patch_size: of a square patch.
      num_classes: logits.
      embed: width of the residual stream.
      heads: number of heads of each layer.
      hidden: hidden width of the MLP of each layer.
      head_dim: channels of a head.
      max_relative_position: clip of 2-D relative positions; 0 leaves them out.
      channels: of the images.
    """

    def __init__(
        self,
        *,
        image_size: int,
        patch_size: int,
        num_classes: int,
        embed: int,
        heads: Sequence[int],
        hidden: Sequence[int],
        head_dim: int = 64,
        max_relative_position: int = 14,
        channels: int = 3,
    ) -> None:
        super().__init__()
        side = image_size // patch_size
        self.patch_embed = nn.Conv2d(channels, embed, patch_size, patch_size)
        self.cls = nn.Parameter(0.02 * torch.randn(1, 1, embed))
        self.positions = nn.Parameter(0.02 * torch.randn(1, side * side + 1, embed))
        self.blocks = nn.ModuleList(
            Block(embed, width, Attention(embed, count, head_dim, side, max_relative_position))
            for count, width in zip(heads, hidden, strict=True)
        )
        self.norm = nn.LayerNorm(embed)
        self.head = nn.Linear(embed, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Maps images [B, channels, image_size, image_size] to logits [B, num_classes]."""
        x = self.patch_embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 1:].mean(dim=1))


def timing_call(
    values: Mapping[str, Any], batch: int, kind: str, dtype: str, device: str, *, relative_positions: bool
) -> Callable[[], None]:
    """A call that runs the network of an architecture forward, or forward and backward.

    Args:
      values: the architecture as option values of an AutoFormer space.
      batch: images of 224 x 224.
      kind: "forward" or "gradient".
      dtype: "float32", whose products are of TF32 on a GPU as XLA's are, or "bfloat16" for automatic mixed
        precision.
      device: "cpu" or "cuda", for whose end each call waits.
      relative_positions: whether the network has them.
    """
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if device == "cuda" else "highest")
    embed = values["embed_dim"]
    model = PlainViT(
        image_size=224,
        patch_size=16,
        num_classes=1000,
        embed=embed,
        heads=values["num_heads"],
        hidden=[int(embed * ratio) for ratio in values["mlp_ratio"]],
        max_relative_position=14 if relative_positions else 0,
    ).to(device)
    images = torch.randn(batch, 3, 224, 224, device=device)
    labels = torch.randint(1000, (batch,), device=device)
    mixed = torch.autocast(device, dtype=torch.bfloat16, enabled=dtype == "bfloat16")

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def forward() -> None:
        with torch.inference_mode(), mixed:
            model(images)
        wait()

    def gradient() -> None:
        model.zero_grad(set_to_none=True)
        with mixed:
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        wait()

    return {"forward": forward, "gradient": gradient}[kind]

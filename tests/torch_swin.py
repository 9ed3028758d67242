"""Swin Transformer as its official PyTorch code computes it, in float64, for one network.

Written for the tests from the published description of the modules, with their official names. Unlike there,
queries, keys and values may be wider or narrower than the residual stream, as in S3's search space.
"""

import torch
import torch.nn.functional as F


def forward(state, images, *, depths, windows, heads):
    """Logits of a network.

    Args:
      state: names to float64 tensors.
      images: float64 [B, C, H, W].
      depths, windows, heads: of each stage.
    """
    weight = state["patch_embed.proj.weight"]
    x = F.conv2d(images, weight, state["patch_embed.proj.bias"], stride=weight.shape[2])
    x = _norm(state, "patch_embed.norm", x.permute(0, 2, 3, 1))
    for stage, (depth, window, number) in enumerate(zip(depths, windows, heads, strict=True)):
        for block in range(depth):
            name = f"layers.{stage}.blocks.{block}"
            shift = window // 2 if block % 2 and window < x.shape[1] else 0
            x = x + _attention(state, f"{name}.attn", _norm(state, f"{name}.norm1", x), window, shift, number)
            y = F.gelu(_linear(state, f"{name}.mlp.fc1", _norm(state, f"{name}.norm2", x)))
            x = x + _linear(state, f"{name}.mlp.fc2", y)
        if stage + 1 < len(depths):
            name = f"layers.{stage}.downsample"
            corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
            x = _norm(state, f"{name}.norm", torch.cat(corners, dim=3))
            x = x @ state[f"{name}.reduction.weight"].T
    return _linear(state, "head", _norm(state, "norm", x).mean(dim=(1, 2)))


def _linear(state, name, x):
    return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])


def _norm(state, name, x):
    return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], 1e-5)


def _attention(state, name, x, window, shift, heads):
    """One window after the other, with an explicit mask and an index for each pair of tokens."""
    size = x.shape[1]
    x = torch.roll(x, (-shift, -shift), dims=(1, 2))
    # Of which of 3 x 3 regions each place of the shifted map is; only tokens of one region see each other.
    edges = torch.zeros(size, dtype=torch.long)
    if shift:
        edges[size - window :], edges[size - shift :] = 1, 2
    regions = 3 * edges[:, None] + edges[None, :]
    table, index = state[f"{name}.relative_position_bias_table"], _relative_index(window)
    bias = table[index].permute(2, 0, 1)  # [heads, T, T]
    out = torch.zeros(*x.shape[:3], state[f"{name}.proj.weight"].shape[0], dtype=x.dtype)
    for row in range(0, size, window):
        for column in range(0, size, window):
            rows, columns = slice(row, row + window), slice(column, column + window)
            qkv = _linear(state, f"{name}.qkv", x[:, rows, columns].flatten(1, 2))
            q, k, v = qkv.reshape(*qkv.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
            region = regions[rows, columns].flatten()
            mask = torch.where(region[:, None] == region[None, :], 0.0, -100.0)
            logits = (q * q.shape[3] ** -0.5) @ k.transpose(2, 3) + bias + mask
            y = (logits.softmax(dim=3) @ v).transpose(1, 2).flatten(2)
            out[:, rows, columns] = _linear(state, f"{name}.proj", y).unflatten(1, (window, window))
    return torch.roll(out, (shift, shift), dims=(1, 2))


def _relative_index(window):
    """The entry of the table for each query and key: by the query's place less the key's."""
    rows, columns = torch.arange(window**2) // window, torch.arange(window**2) % window
    down, right = (of[:, None] - of[None, :] + window - 1 for of in (rows, columns))
    return down * (2 * window - 1) + right

"""Weights from elsewhere: the official PyTorch AutoFormer checkpoints.

The official code (microsoft/Cream, AutoFormer) stores queries, keys and values in one matrix whose row r is
channel r // 3 of part r % 3, but slices its bias as if the parts followed each other: with d channels, entry
part * d + c. So the bias of a stored channel depends on the number of heads, and a `ViT` with
`qkv_bias_by_heads`, which stores it once for each number of heads, holds a whole supernet exactly. If it is
trained further, these biases are independent, while the official code shares their entries.
"""

from __future__ import annotations

import functools
import os
import pathlib
import pickle
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from jaxnas.supernets.autoformer.vit import ViT
from jaxnas.tensors import Path, check_tensors

Params = dict[str, Any]

_TABLES = {
    "key_rows": "attn.rel_pos_embed_k.embeddings_table_v",
    "key_columns": "attn.rel_pos_embed_k.embeddings_table_h",
    "value_rows": "attn.rel_pos_embed_v.embeddings_table_v",
    "value_columns": "attn.rel_pos_embed_v.embeddings_table_h",
}


def from_torch_autoformer(
    state_dict: Mapping[str, Any], net: ViT, arch: dict[str, Any] | None = None
) -> tuple[ViT, Params]:
    """Converts an official AutoFormer supernet checkpoint, or one sub-network of it, exactly.

    Args:
      state_dict: names to tensors, PyTorch's or NumPy's, of a supernet trained with `--gp`,
        `--change_qkv` and `--relative_position`, as all published ones are; or the checkpoint that
        holds it under "model". It may store more than `net` can choose, as the official ones do.
        For one without `--relative_position`, `net` has `max_relative_position=0`.
      net: a supernet with the same image size, patch size, classes, head width and positions.
      arch: a concrete hard architecture of its space. Without one the whole supernet is converted, for
        which `net` has `qkv_bias_by_heads`, if it can choose the number of heads.

    Returns:
      The network of exactly that architecture, as `jaxnas.extract` makes it, or `net` itself without one;
      and its variables, float32 parameters, stored layer by layer. Images are [B, H, W, C] here, with the
      channels in the order of the checkpoint.

    Raises:
      ValueError: an architecture that isn't in the space; without one, a network that cannot hold the
        whole supernet; tensors that are missing, unknown or of another shape, by name; sizes of the
        architecture or of the space beyond those stored.
    """
    if arch is not None:
        net = net.clone(space=net.space.fix(arch))  # checks the architecture
    choices = net.space.choices
    size, layers = (int(choices[name].table.max()) for name in ("embed_dim", "depth"))
    # A ViT takes only ints as heads and only numbers as ratios.
    heads: list[tuple[Any, ...]] = [choices["num_heads"].options_at(layer) for layer in range(layers)]
    ratios: list[tuple[Any, ...]] = [choices["mlp_ratio"].options_at(layer) for layer in range(layers)]
    hidden = [int(size * max(row)) for row in ratios]
    if max(map(len, heads)) > 1 and not net.qkv_bias_by_heads:
        raise ValueError(
            "An official AutoFormer supernet has another bias of queries, keys and values for each number "
            "of heads. Give a network with qkv_bias_by_heads=True, or an architecture to convert alone."
        )

    if isinstance(state_dict.get("model"), Mapping):
        state_dict = state_dict["model"]
    stored = {name: _to_numpy(value) for name, value in state_dict.items()}
    most_embed, most_inner, most_hidden, depth = _stored_sizes(stored)
    expected = _expected_shapes(stored, net, most_embed, most_inner, most_hidden, max(depth, layers))
    given: list[dict[Path, Any]] = [{(name,): x for name, x in of.items()} for of in (stored, expected)]
    check_tensors(given[0], given[1], "an official AutoFormer supernet")
    needs = {
        "embedding width": (size, most_embed),
        "attention width": (max(map(max, heads)) * net.head_dim, most_inner),
        "hidden width": (max(hidden), most_hidden),
    }
    beyond = [f"{what} {need} of {have}" for what, (need, have) in needs.items() if need > have]
    if beyond:
        raise ValueError(f"The network is larger than the checkpoint: {', '.join(beyond)}.")

    params = _stem(stored, net, size)
    for layer in range(layers):
        params[f"block_{layer}"] = _block(stored, f"blocks.{layer}.", net, size, heads[layer], hidden[layer])
    return net, {"params": jax.tree.map(jnp.array, params)}


def read_checkpoint(path: str | os.PathLike) -> dict[str, Any]:
    """Reads a file of tensors by name: safetensors, or PyTorch's own, of which nothing is run.

    Args:
      path: of the file; its ending says what it is, ".safetensors" or else PyTorch's.

    Raises:
      FileNotFoundError: no such file.
      ImportError: a file of PyTorch's, and PyTorch is not installed.
      ValueError: it cannot be read, or holds more than tensors and plain values.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if path.suffix == ".safetensors":
        try:
            return dict(safetensors.numpy.load_file(path))
        except (safetensors.SafetensorError, ValueError) as error:  # NumPy's, of too many axes
            raise ValueError(f"{path} is no file of safetensors, or it is damaged: {error}") from error
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"{path} is a checkpoint of PyTorch's, which is not installed here. Install it, or write the "
            "tensors as safetensors where it is."
        ) from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"{path} cannot be read as one of tensors and plain values alone: {error}"
        ) from error


def _layer(stored: dict[str, np.ndarray], name: str, *sizes: int) -> Params:
    """A dense layer of the sizes out and in, or a normalization of one size."""
    weight = stored[f"{name}.weight"][tuple(map(slice, sizes))].T
    return {"kernel" if len(sizes) > 1 else "scale": weight, "bias": stored[f"{name}.bias"][: sizes[0]]}


def _stem(stored: dict[str, np.ndarray], net: ViT, size: int) -> Params:
    """All but the blocks."""
    tokens = {"cls": stored["cls_token"][0, 0, :size]}
    if net.absolute_positions:
        tokens["positions"] = stored["pos_embed"][0, :, :size]
    patch, bias = (stored[f"patch_embed_super.proj.{name}"][:size] for name in ("weight", "bias"))
    kernel = patch.transpose(2, 3, 1, 0).reshape(-1, size)  # by row, column, channel
    return {
        "patch_embed": {"projection": {"kernel": kernel, "bias": bias}},
        "tokens": tokens,
        "norm": _layer(stored, "norm", size),
        "head": _layer(stored, "head", net.num_classes, size),
    }


def _block(
    stored: dict[str, np.ndarray], at: str, net: ViT, size: int, heads: tuple[int, ...], hidden: int
) -> Params:
    """One block, with the numbers of heads that it can have."""
    most, layer = max(heads), functools.partial(_layer, stored)
    inner = most * net.head_dim
    weight = stored[f"{at}attn.qkv.weight"][: 3 * inner, :size]  # row 3 * channel + part
    attention = {
        "qkv_kernel": weight.reshape(most, net.head_dim, 3, size).transpose(3, 2, 0, 1),
        "qkv_bias": _qkv_bias(stored[f"{at}attn.qkv.bias"], heads, net.head_dim),
        "projection": layer(f"{at}attn.proj", size, inner),
    }
    if net.max_relative_position:
        attention |= {ours: stored[at + theirs] for ours, theirs in _TABLES.items()}
    return {
        "attention_norm": layer(f"{at}attn_layer_norm", size),
        "attention": attention,
        "mlp_norm": layer(f"{at}ffn_layer_norm", size),
        "mlp": {"in": layer(f"{at}fc1", hidden, size), "out": layer(f"{at}fc2", size, hidden)},
    }


def _qkv_bias(bias: np.ndarray, heads: tuple[int, ...], head_dim: int) -> np.ndarray:
    """From entries part * d + c to [3, H, D]; with a leading axis if there are several numbers of heads."""
    by_heads = np.zeros((len(heads), 3, max(heads), head_dim), np.float32)
    for option, count in enumerate(heads):
        by_heads[option, :, :count] = bias[: 3 * count * head_dim].reshape(3, count, head_dim)
    return by_heads if len(heads) > 1 else by_heads[0]


def _stored_sizes(stored: dict[str, np.ndarray]) -> tuple[int, int, int, int]:
    """Widths of the stream, of queries (as of keys and values) and of the MLP; number of blocks."""
    names = {"norm.weight", "blocks.0.attn.qkv.bias", "blocks.0.fc1.bias"}
    if missing := sorted(names - stored.keys()):
        raise ValueError(
            f"Not an official AutoFormer checkpoint: it has no {', '.join(missing)}. Its first "
            f"names are {', '.join(list(stored)[:4]) or '(none)'}."
        )
    blocks = [int(found[1]) for name in stored if (found := re.match(r"blocks\.(\d+)\.", name))]
    inner = stored["blocks.0.attn.qkv.bias"].size // 3
    return stored["norm.weight"].size, inner, stored["blocks.0.fc1.bias"].size, 1 + max(blocks)


def _expected_shapes(
    stored: dict[str, np.ndarray], net: ViT, embed: int, inner: int, hidden: int, depth: int
) -> dict[str, np.ndarray]:
    """Names and shapes of a whole checkpoint, as arrays without memory."""
    patch = stored.get("patch_embed_super.proj.weight", np.zeros(0))
    channels = patch.shape[1] if patch.ndim == 4 else 3
    shapes: dict[str, tuple[int, ...]] = {"cls_token": (1, 1, embed)}
    if net.absolute_positions:
        shapes["pos_embed"] = (1, (net.image_size // net.patch_size) ** 2 + 1, embed)

    def add(name: str, *weight: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = weight, weight[:1]

    add("patch_embed_super.proj", embed, channels, net.patch_size, net.patch_size)
    add("norm", embed)
    add("head", net.num_classes, embed)
    layers = {"attn_layer_norm": (embed,), "ffn_layer_norm": (embed,), "attn.qkv": (3 * inner, embed)}
    layers |= {"attn.proj": (embed, inner), "fc1": (hidden, embed), "fc2": (embed, hidden)}
    for block in range(depth):
        for name, weight in layers.items():
            add(f"blocks.{block}.{name}", *weight)
        for table in _TABLES.values() if net.max_relative_position else ():
            shapes[f"blocks.{block}.{table}"] = (2 * net.max_relative_position + 2, net.head_dim)
    return {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}


def _to_numpy(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):  # a PyTorch tensor, of any dtype and on any device
        value = value.detach().cpu().float().numpy()
    return np.asarray(value, np.float32)

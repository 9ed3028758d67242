"""AutoFormer's supernet as the official PyTorch code computes it, for one sub-network, in float64.

Written for the tests from the published description of the modules: weights are looked up by their
official names and sliced here, with the official order of queries, keys and values; relative
positions are the plain [T, T, head_dim] tensors.
"""

import itertools
import math

import torch
import torch.nn.functional as F


def random_state_dict(seed, *, embed, heads, hidden, depth, head_dim, num_classes, **sizes):
    """A random state dict of the official names and shapes, float32, by the sizes that are stored.

    In the official code `heads * head_dim` equals `embed`; here it may differ. `sizes` are image_size and
    patch_size, and may be channels and max_relative_position.
    """
    channels, limit = sizes.get("channels", 3), sizes.get("max_relative_position", 14)
    random = torch.Generator().manual_seed(seed)
    inner = heads * head_dim
    state = {}

    def normal(*shape, scale):
        return torch.randn(shape, generator=random) * scale

    def linear(name, *shape):
        state[f"{name}.weight"] = normal(*shape, scale=math.prod(shape[1:]) ** -0.5)
        state[f"{name}.bias"] = normal(shape[0], scale=0.3)

    def norm(name):
        state[f"{name}.weight"] = 1 + normal(embed, scale=0.3)
        state[f"{name}.bias"] = normal(embed, scale=0.3)

    patches = (sizes["image_size"] // sizes["patch_size"]) ** 2
    linear("patch_embed_super.proj", embed, channels, sizes["patch_size"], sizes["patch_size"])
    state["cls_token"] = normal(1, 1, embed, scale=1.0)
    state["pos_embed"] = normal(1, patches + 1, embed, scale=0.5)
    for i in range(depth):
        norm(f"blocks.{i}.attn_layer_norm")
        norm(f"blocks.{i}.ffn_layer_norm")
        linear(f"blocks.{i}.attn.qkv", 3 * inner, embed)
        linear(f"blocks.{i}.attn.proj", embed, inner)
        linear(f"blocks.{i}.fc1", hidden, embed)
        linear(f"blocks.{i}.fc2", embed, hidden)
        for part, axis in itertools.product("kv", "vh") if limit else ():
            name = f"blocks.{i}.attn.rel_pos_embed_{part}.embeddings_table_{axis}"
            state[name] = normal(2 * limit + 2, head_dim, scale=0.5)
    norm("norm")
    linear("head", num_classes, embed)
    return state


def official_forward(state, arch, images, *, head_dim):
    """Logits of the sub-network with some option values, of images [B, C, H, W]."""
    state = {name: value.double() for name, value in state.items()}
    size = arch["embed_dim"]
    weight = state["patch_embed_super.proj.weight"][:size]
    bias = state["patch_embed_super.proj.bias"][:size]
    x = F.conv2d(images.double(), weight, bias, stride=weight.shape[2])
    x = x.flatten(2).transpose(1, 2)
    cls = state["cls_token"][..., :size].expand(x.shape[0], -1, -1)
    x = torch.cat([cls, x], dim=1) + state["pos_embed"][..., :size]
    for layer in range(arch["depth"]):
        prefix = f"blocks.{layer}."
        block = {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}
        hidden = int(size * arch["mlp_ratio"][layer])
        y = _layer_norm(block, "attn_layer_norm", x)
        x = x + _attention(block, y, arch["num_heads"][layer], head_dim)
        y = _layer_norm(block, "ffn_layer_norm", x)
        y = F.gelu(_linear(block, "fc1", y, hidden))
        x = x + _linear(block, "fc2", y, size)
    x = _layer_norm(state, "norm", x)
    return _linear(state, "head", x[:, 1:].mean(dim=1), state["head.bias"].shape[0])


def _linear(state, name, x, size_out):
    weight = state[f"{name}.weight"][:size_out, : x.shape[-1]]
    return F.linear(x, weight, state[f"{name}.bias"][:size_out])


def _layer_norm(state, name, x):
    size = x.shape[-1]
    return F.layer_norm(x, (size,), state[f"{name}.weight"][:size], state[f"{name}.bias"][:size], 1e-5)


def _attention(block, x, heads, head_dim):
    batch, tokens, size = x.shape
    inner = heads * head_dim
    # Part i of queries, keys and values: rows i, i + 3, ... below 3 * inner; the bias as it lies.
    weight = block["attn.qkv.weight"][:, :size]
    weight = torch.cat([weight[i : 3 * inner : 3] for i in range(3)])
    qkv = x @ weight.T + block["attn.qkv.bias"][: 3 * inner]
    q, k, v = qkv.reshape(batch, tokens, 3, heads, head_dim).permute(2, 0, 3, 1, 4)
    scale = head_dim**-0.5
    logits = scale * torch.einsum("bhqd,bhkd->bhqk", q, k)
    relative = "attn.rel_pos_embed_k.embeddings_table_v" in block
    if relative:
        logits = logits + scale * torch.einsum("bhqd,qkd->bhqk", q, _relative(block, "k", tokens))
    weights = logits.softmax(dim=-1)
    out = torch.einsum("bhqk,bhkd->bqhd", weights, v)
    if relative:
        out = out + torch.einsum("bhqk,qkd->bqhd", weights, _relative(block, "v", tokens))
    return _linear(block, "attn.proj", out.reshape(batch, tokens, inner), size)


def _relative(block, part, tokens):
    """The embedding of every (query, key), [T, T, head_dim]."""
    rows = block[f"attn.rel_pos_embed_{part}.embeddings_table_v"]
    columns = block[f"attn.rel_pos_embed_{part}.embeddings_table_h"]
    limit, side = (rows.shape[0] - 2) // 2, math.isqrt(tokens - 1)
    places = torch.arange(tokens - 1)

    def index(of):
        offsets = (of[None, :] - of[:, None]).clamp(-limit, limit) + limit + 1
        return F.pad(offsets, (1, 0, 1, 0))  # Entry 0 is for pairs with the class token.

    return rows[index(places // side)] + columns[index(places % side)]

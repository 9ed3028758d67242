"""S3's supernet: published sizes and PyTorch; test_promises.py has its promises."""

import functools
import itertools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from small_nets import difference, jit, normal, random_params

import jaxnas
from jaxnas import spaces, supernets
from jaxnas.network import annotated

torch = pytest.importorskip("torch", reason="PyTorch, for comparison, comes with the extra `torch`")
from torch.nn import functional as F  # noqa: E402

pytestmark = pytest.mark.more  # a whole supernet

IMAGES = (1, 224, 224, 3)


@pytest.mark.parametrize(
    "space, name, params",
    [
        *(("tiny", "tiny", 28_328_674), ("tiny", "swin_tiny", 28_288_354)),
        *tiers.nightly(("small", "small", 49_737_298), ("base", "base", 71_125_762)),
    ],
)
def test_released_networks_are_members_of_their_exact_size(space, name, params):
    net = supernets.Swin(spaces.s3(space), 224, 4, 1000)
    arch = net.space.from_dict(spaces.s3_options(name))
    assert jaxnas.cost(net, IMAGES)(arch)["params"] == params
    small = net.clone(space=net.space.fix(arch))
    variables = nn.meta.unbox(annotated(small, IMAGES).variables)
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(variables["params"])) == params


def test_the_space_of_small_images_fits_their_sizes():
    for size, patch in ((28, 1), (32, 2)):
        assert len(supernets.Swin(spaces.s3_small_images(size), size, patch, 10).space) == 18


def dense(p, x):
    return x @ p["kernel"] + p["bias"]


def norm(scale, bias, x):
    return F.layer_norm(x, x.shape[-1:], scale.flatten(), bias.flatten(), 1e-5)


def reference(params, images, *, depths, windows, heads, patch):
    """Logits of images [B, C, H, W] in float64, as the official code computes them."""
    projection = params["patch_embed"]["projection"]
    kernel = projection["kernel"].reshape(patch, patch, -1, projection["kernel"].shape[-1])
    x = F.conv2d(images, kernel.permute(3, 2, 0, 1), projection["bias"], stride=patch)
    x = norm(**params["patch_norm"], x=x.permute(0, 2, 3, 1))
    for stage, (depth, window, number) in enumerate(zip(depths, windows, heads, strict=True), 1):
        if stage > 1:
            merge = params[f"merge_{stage}"]
            corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
            x = norm(merge["norm_scale"], merge["norm_bias"], torch.cat(corners, dim=3))
            x = x @ merge["kernel"].flatten(0, -2)
        for block in range(depth):
            p = params[f"stage_{stage}_block_{block}"]
            shift = window // 2 if block % 2 and window < x.shape[1] else 0
            x = x + dense(p["projection"], attention(p, x, window, shift, number))
            y = norm(**p["mlp_norm"], x=x)
            x = x + dense(p["mlp"]["out"], F.gelu(dense(p["mlp"]["in"], y)))
    return dense(params["head"], norm(**params["norm"], x=x).mean(dim=(1, 2)))


def attention(p, x, window, shift, heads):
    """One window after the other, with an explicit mask and an entry of the table for each pair of tokens."""
    size, qkv = x.shape[1], p["qkv"]
    x = torch.roll(norm(qkv["norm_scale"], qkv["norm_bias"], x), (-shift, -shift), dims=(1, 2))
    # Of which of 3 x 3 regions each place of the shifted map is; only tokens of one region see each other.
    edges = torch.zeros(size, dtype=torch.long)
    if shift:
        edges[size - window :], edges[size - shift :] = 1, 2
    regions = 3 * edges[:, None] + edges[None, :]
    rows, columns = torch.arange(window**2) // window, torch.arange(window**2) % window
    down, right = (of[None, :] - of[:, None] + window - 1 for of in (rows, columns))
    bias = p["relative_bias"][down, right].permute(2, 0, 1)  # [heads, T, T]
    parts = []
    for row, column in itertools.product(range(0, size, window), repeat=2):
        part = slice(row, row + window), slice(column, column + window)
        y = x[:, part[0], part[1]].flatten(1, 2)
        y = y @ qkv["kernel"].reshape(x.shape[-1], -1) + qkv["bias"].flatten()
        # Channel c is of head c % heads.
        q, k, v = y.unflatten(-1, (3, -1, heads)).permute(2, 0, 4, 1, 3)
        seen = regions[part].flatten()
        mask = torch.where(seen[:, None] == seen[None, :], 0.0, -100.0)
        logits = (q * q.shape[3] ** -0.5) @ k.transpose(2, 3) + bias + mask
        y = (logits.softmax(dim=3) @ v).permute(0, 2, 3, 1).flatten(2)
        parts.append(y.unflatten(1, (window, window)))
    bands = [torch.cat(parts[i : i + size // window], dim=2) for i in range(0, len(parts), size // window)]
    return torch.roll(torch.cat(bands, dim=1), (shift, shift), dims=(1, 2))


def test_forward_and_gradient_are_those_of_pytorch():
    """Two stages: shifted windows in the first, and windows as large as the map in the second."""
    torch.set_num_threads(1)  # threads that wait for small tensors cost more than they give
    attention = dict(window=((2,), (4,)), num_heads=((1,), (3,)), qkv_dim=((8,), (6,)))
    others = dict(depth=((2,), (2,)), embed_dim=((6,), (8,)), mlp_ratio=((2.0,), (1.5,)))
    net, shape = supernets.Swin(spaces.swin(**attention, **others), 16, 2, 5), (2, 16, 16, 3)
    params, images, weights = random_params(net, shape), normal(*shape), normal(2, 5)

    @jit
    def run(params):
        def loss(params):
            logits = net.apply({"params": params}, images)
            return jnp.sum(logits * weights), logits

        half = net.clone(dtype=jnp.bfloat16).apply({"params": params}, images)
        return *jax.grad(loss, has_aux=True)(params), half

    gradient, logits, half = run(params)
    state, pixels, factors = jax.tree.map(
        lambda x: torch.tensor(np.asarray(x, np.float64)), (params, images.transpose(0, 3, 1, 2), weights)
    )
    jax.tree.map(lambda x: x.requires_grad_(), state)
    expected = reference(state, pixels, depths=(2, 2), windows=(2, 4), heads=(1, 3), patch=2)
    (expected * factors).sum().backward()
    assert difference(logits, expected.detach().numpy()) <= 1e-5
    assert 0 < difference(half, logits) <= 5e-2
    slopes = jax.tree.map(lambda x: x.grad.numpy(), state)
    scale = max(np.max(np.abs(leaf)) for leaf in jax.tree.leaves(slopes))
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5 * scale)
    jax.tree.map(close, gradient, slopes)

"""S3's supernet: published sizes and PyTorch; test_promises.py has its promises."""

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


def test_forward_and_gradient_are_those_of_pytorch():
    """Two stages: shifted windows in the first, and windows as large as the map in the second."""
    torch = pytest.importorskip("torch", reason="PyTorch, for comparison, comes with the extra `torch`")
    import torch_swin

    torch.set_num_threads(1)  # threads that wait for small tensors cost more than they give
    alone = dict(
        depth=((2,), (2,)),
        embed_dim=((6,), (8,)),
        window=((2,), (4,)),
        num_heads=((1,), (3,)),
        mlp_ratio=((2.0,), (1.5,)),
        qkv_dim=((8,), (6,)),
    )
    sizes = dict(depths=(2, 2), windows=(2, 4), heads=(1, 3))
    net, shape = supernets.Swin(spaces.swin(**alone), 16, 2, 5), (2, 16, 16, 3)
    params, images, weights = random_params(net, shape), normal(*shape), normal(2, 5)

    @jit
    def run(params):
        def loss(params):
            logits = net.apply({"params": params}, images)
            return jnp.sum(logits * weights), logits

        half = net.clone(dtype=jnp.bfloat16).apply({"params": params}, images)
        return *jax.grad(loss, has_aux=True)(params), half

    gradient, logits, half = run(params)
    state = {
        name: torch.tensor(np.asarray(value, np.float64), requires_grad=True)
        for name, value in to_official(params, net).items()
    }
    pixels = torch.from_numpy(np.asarray(images, np.float64)).permute(0, 3, 1, 2)
    expected = torch_swin.forward(state, pixels, **sizes)
    (expected * torch.from_numpy(np.asarray(weights, np.float64))).sum().backward()
    assert difference(logits, expected.detach().numpy()) <= 1e-5
    assert 0 < difference(half, logits) <= 5e-2
    scale = max(float(value.grad.abs().max()) for value in state.values())
    for name, value in to_official(gradient, net).items():
        assert np.max(np.abs(value - state[name].grad.numpy())) <= 1e-5 * scale, name


def to_official(params, net):
    """Parameters, or their gradient, of a network of one architecture, by the official names and layouts."""
    state = {}

    def linear(name, kernel, bias=None):
        state[f"{name}.weight"] = kernel.T
        state.update({} if bias is None else {f"{name}.bias": bias})

    def norm(name, values):
        state.update({f"{name}.weight": values["scale"], f"{name}.bias": values["bias"]})

    def by_head(x, axis, heads):  # channel c is of head c % heads here, and of head c // width there
        x = np.moveaxis(x, axis, -1)
        x = x.reshape(*x.shape[:-1], -1, heads).swapaxes(-1, -2).reshape(x.shape)
        return np.moveaxis(x, -1, axis)

    params, values = jax.tree.map(np.asarray, params), net.space.to_dict(net.space.smallest())
    patch = params["patch_embed"]["projection"]
    kernel = patch["kernel"].reshape(net.patch_size, net.patch_size, -1, patch["kernel"].shape[1])
    state["patch_embed.proj.weight"] = kernel.transpose(3, 2, 0, 1)
    state["patch_embed.proj.bias"] = patch["bias"]
    norm("patch_embed.norm", params["patch_norm"])
    norm("norm", params["norm"])
    linear("head", **params["head"])
    for name, one in params.items():
        if name.startswith("merge"):
            layer = f"layers.{int(name.removeprefix('merge_')) - 2}.downsample"
            norm(f"{layer}.norm", {"scale": one["norm_scale"].ravel(), "bias": one["norm_bias"].ravel()})
            linear(f"{layer}.reduction", one["kernel"].reshape(-1, one["kernel"].shape[-1]))
        if name.startswith("stage"):
            _, stage, _, block = name.split("_")
            layer = f"layers.{int(stage) - 1}.blocks.{block}"
            heads = values[f"num_heads_{stage}"][int(block)]
            qkv = one["qkv"]
            norm(f"{layer}.norm1", {"scale": qkv["norm_scale"][0], "bias": qkv["norm_bias"][0]})
            kernel, bias = (by_head(qkv[leaf], -1, heads) for leaf in ("kernel", "bias"))
            linear(f"{layer}.attn.qkv", kernel.reshape(kernel.shape[1], -1), bias.reshape(-1))
            table = one["relative_bias"][::-1, ::-1]
            state[f"{layer}.attn.relative_position_bias_table"] = table.reshape(-1, heads)
            projection = one["projection"]
            linear(f"{layer}.attn.proj", by_head(projection["kernel"], 0, heads), projection["bias"])
            norm(f"{layer}.norm2", one["mlp_norm"])
            linear(f"{layer}.mlp.fc1", **one["mlp"]["in"])
            linear(f"{layer}.mlp.fc2", **one["mlp"]["out"])
    return state

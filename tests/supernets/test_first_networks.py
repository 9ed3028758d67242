"""The ConvNet for pictures and the Transformer for texts beside Flax's own layers, at each size."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
from small_nets import CONV, TEXT, flatten, jit, random_weights, take

import jaxnas
from jaxnas import spaces, supernets

RANDOM = np.random.default_rng(0)
INPUTS = {
    CONV: RANDOM.normal(size=(2, 12, 12, 3)).astype(np.float32),
    TEXT: {"tokens": RANDOM.integers(0, 7, (2, 5)), "mask": np.array([[1] * 5, [1, 1, 1, 0, 0]], bool)},
}


def dense(weights, x, name):
    params = {part: weights[f"{name}/{part}"] for part in ("kernel", "bias")}
    return nn.Dense(params["bias"].size).apply({"params": params}, x)


def conv_reference(weights, images, arch):
    def conv(x, name, strides=1, size=None):
        kernel, bias = weights[f"{name}/kernel"], weights[f"{name}/bias"]
        cut = 0 if size is None else (kernel.shape[0] - size) // 2
        kernel = kernel[cut : kernel.shape[0] - cut, cut : kernel.shape[1] - cut]
        layer = nn.Conv(kernel.shape[-1], kernel.shape[:2], strides)
        return layer.apply({"params": {"kernel": kernel, "bias": bias}}, x)

    x = images
    for stage in (1, 2):
        x = conv(x, f"into_{stage}", stage)
        for i in range(arch[f"depth_{stage}"]):
            name = f"stage_{stage}_block_{i}"
            y = conv(nn.relu(x), f"{name}/spatial", size=arch[f"kernel_{stage}"][i])
            x = x + conv(nn.relu(y), f"{name}/pointwise")
        x = nn.relu(x)
    return dense(weights, x.max(axis=(1, 2)), "head")


def text_reference(weights, inputs, arch):
    def norm(x, name):
        params = {"scale": weights[f"{name}/scale"], "bias": weights[f"{name}/bias"]}
        return nn.LayerNorm(epsilon=1e-5).apply({"params": params}, x)

    def attention(x, name, mask):
        layer = nn.MultiHeadDotProductAttention(
            *weights[f"{name}/query_kernel"].shape[1:2], qkv_features=None
        )
        layer = layer.clone(qkv_features=weights[f"{name}/query_kernel"][0].size)
        params = {
            part: {"kernel": weights[f"{name}/{part}_kernel"], "bias": weights[f"{name}/{part}_bias"]}
            for part in ("query", "key", "value", "out")
        }
        return layer.apply({"params": params}, x, mask=mask[:, None, None, :])

    mask = inputs["mask"]
    x = weights["embedding/embedding"][inputs["tokens"]] + weights["positions"][None]
    for i in range(arch["depth"]):
        x = x + attention(norm(x, f"block_{i}/attention_norm"), f"block_{i}/attention", mask)
        y = dense(weights, norm(x, f"block_{i}/mlp_norm"), f"block_{i}/mlp/in")
        x = x + dense(weights, nn.gelu(y, approximate=False), f"block_{i}/mlp/out")
    words = np.float32(mask)
    x = jnp.sum(norm(x, "norm") * words[..., None], axis=1) / words.sum(axis=1, keepdims=True)
    return dense(weights, x, "head")


@pytest.mark.parametrize("net, reference", [(CONV, conv_reference), (TEXT, text_reference)])
def test_each_network_is_that_of_flax_and_costs_what_it_has(net, reference):
    inputs, apply, cost = INPUTS[net], jit(net.apply), jaxnas.cost(net, INPUTS[net])
    variables = {"params": random_weights(net, inputs)}
    draws = net.space.sample(jax.random.key(0), 2)
    for arch in (net.space.smallest(), net.space.largest(), *(take(draws, i) for i in range(2))):
        small, small_variables, error = jaxnas.extract(net, variables, arch, verify=inputs)
        assert error < 1e-5
        weights = {
            "/".join(path): jnp.asarray(leaf) for path, leaf in flatten(small_variables["params"]).items()
        }
        assert int(cost(arch)["params"]) == sum(leaf.size for leaf in weights.values())
        expected = reference(weights, inputs, net.space.to_dict(arch))
        np.testing.assert_allclose(apply(variables, inputs, arch), expected, rtol=1e-4, atol=1e-5)
    assert apply._cache_size() == 1


def test_other_spaces_and_shares_are_refused():
    refusals.check(
        (lambda: supernets.ConvNet(spaces.digits(), 3), ValueError, "width_i", "'depth'"),
        (lambda: supernets.TextTransformer(spaces.mlp(), 7, 3, 5), ValueError, "'embed_dim'", "'width'"),
        (lambda: CONV.clone(dropout=1.0), ValueError, "dropout", "1.0"),
        (lambda: TEXT.clone(word_dropout=-0.1), ValueError, "word_dropout", "-0.1"),
    )

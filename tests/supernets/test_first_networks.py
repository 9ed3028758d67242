"""The networks for rows, pictures and texts beside Flax's own layers, at each size."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_nets import CONV, TABLE, TEXT, flatten, jit, random_weights

import jaxnas

RANDOM = np.random.default_rng(0)
INPUTS = {
    net: np.float32(RANDOM.normal(size=shape)) for net, shape in ((TABLE, (5, 6)), (CONV, (2, 12, 12, 3)))
}
INPUTS[TEXT] = {"tokens": RANDOM.integers(0, 7, (2, 5)), "mask": np.arange(5)[None] < np.array([[5], [3]])}


def dense(weights, x, name):
    params = {part: weights[f"{name}/{part}"] for part in ("kernel", "bias")}
    return nn.Dense(params["bias"].size).apply({"params": params}, x)


def norm(weights, x, name):
    params = {part: weights[f"{name}/{part}"] for part in ("scale", "bias")}
    return nn.LayerNorm(epsilon=1e-5).apply({"params": params}, x)


def mlp(weights, x, name, block):
    y = dense(weights, norm(weights, x, name), f"{block}/in")
    return dense(weights, nn.gelu(y, approximate=False), f"{block}/out")


def table_reference(weights, rows, arch):
    x = dense(weights, rows, "in")
    for i in range(arch["depth"]):
        x = x + mlp(weights, x, f"norm_{i}", f"block_{i}")
    return dense(weights, norm(weights, x, "norm"), "out")


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
    def attention(x, name, mask):
        kernels, biases = jnp.moveaxis(weights[f"{name}/qkv_kernel"], 1, 0), weights[f"{name}/qkv_bias"]
        out, bias = (weights[f"{name}/projection/{one}"] for one in ("kernel", "bias"))
        _, _, heads, size = kernels.shape
        params = {"out": {"kernel": out.reshape(heads, size, -1), "bias": bias}}
        for part, *own in zip(("query", "key", "value"), kernels, biases, strict=True):
            params[part] = dict(zip(("kernel", "bias"), own, strict=True))
        layer = nn.MultiHeadDotProductAttention(heads, qkv_features=heads * size)
        return layer.apply({"params": params}, x, mask=mask[:, None, None, :])

    mask = inputs["mask"]
    x = weights["embedding/embedding"][inputs["tokens"]] + weights["positions"][None]
    for i in range(arch["depth"]):
        y = norm(weights, x, f"block_{i}/attention_norm")
        x = x + attention(y, f"block_{i}/attention", mask)
        x = x + mlp(weights, x, f"block_{i}/mlp_norm", f"block_{i}/mlp")
    words = np.float32(mask)
    x = jnp.sum(norm(weights, x, "norm") * words[..., None], axis=1) / words.sum(axis=1, keepdims=True)
    return dense(weights, x, "head")


REFERENCES = {TABLE: table_reference, CONV: conv_reference, TEXT: text_reference}


@pytest.mark.parametrize("net, reference", list(REFERENCES.items()))
def test_each_network_is_its_reference(net, reference):
    inputs, apply, variables = INPUTS[net], jit(net.apply), {"params": random_weights(net, INPUTS[net])}
    for arch in (net.space.smallest(), net.space.largest(), net.space.sample(jax.random.key(0))):
        small = jaxnas.extract(net, variables, arch, inputs=inputs).variables["params"]
        weights = {"/".join(path): jnp.asarray(leaf) for path, leaf in flatten(small).items()}
        expected = reference(weights, inputs, net.space.to_dict(arch))
        found, tolerance = apply(variables, inputs, arch), 1e-4 if net is TABLE else 1e-5
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=tolerance)
    assert apply._cache_size() == 1


def test_dropout_is_for_training_alone():
    net, rows = TABLE.clone(dropout=0.5), INPUTS[TABLE]
    apply = functools.partial(net.apply, {"params": random_weights(net, rows)}, rows, net.space.largest())
    drop = [apply(train=True, rngs={"dropout": jax.random.key(seed)}) for seed in range(2)]
    assert not np.allclose(*drop) and not np.allclose(drop[0], apply())

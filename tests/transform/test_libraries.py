"""Modules of Flax NNX and Equinox, ours and public ones, as supernets: names, extraction, gradients."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import promises
import pytest
import tiers
from equimo.models.attnet import AttNet
from equimo.models.convnext import ConvNeXt
from equimo.models.vit import VisionTransformer
from flax import nnx

import jaxnas
from jaxnas import Choice, Skip, network, testing
from jaxnas.tensors import flatten, unflatten

KEY = jax.random.key(0)


class Mlp(nnx.Module):
    def __init__(self, size, rngs):
        self.up, self.down = nnx.Linear(size, 12, rngs=rngs), nnx.Linear(12, size, rngs=rngs)
        self.drop = nnx.Dropout(0.2, rngs=rngs)

    def __call__(self, x):
        return self.down(self.drop(nnx.gelu(self.up(x))))


class Block(nnx.Module):
    def __init__(self, size, rngs):
        self.norm, self.mlp = nnx.LayerNorm(size, rngs=rngs), Mlp(size, rngs)
        self.attention = nnx.MultiHeadAttention(2, size, decode=False, dropout_rate=0.1, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Pictures(nnx.Module):
    def __init__(self, rngs):
        self.stem, self.norm = nnx.Conv(3, 8, (3, 3), rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
        self.blocks = nnx.List([Block(8, rngs) for _ in range(2)])
        self.head = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.stem(x)))
        x = nnx.max_pool(x, (2, 2), (2, 2)).reshape(x.shape[0], -1, x.shape[-1])
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


CALL = Pictures.__call__


class Residual(eqx.Module):
    norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    drop: eqx.nn.Dropout

    def __init__(self, size, key):
        first, second = jax.random.split(key)
        self.norm, self.drop = eqx.nn.LayerNorm(size), eqx.nn.Dropout(0.2)
        self.attention = eqx.nn.MultiheadAttention(2, size, key=first)
        self.mlp = eqx.nn.MLP(size, size, 12, 1, key=second)

    def __call__(self, x, key):
        y = jax.vmap(self.norm)(x)
        x = x + self.attention(y, y, y)
        return x + self.drop(jax.vmap(self.mlp)(x), key=key)


class Rows(eqx.Module):
    embed: eqx.nn.Linear
    blocks: list[Residual]
    head: eqx.nn.Linear

    def __init__(self, key):
        first, last, *keys = jax.random.split(key, 4)
        self.embed, self.head = eqx.nn.Linear(5, 8, key=first), eqx.nn.Linear(8, 3, key=last)
        self.blocks = [Residual(8, key) for key in keys]

    def __call__(self, x, key):
        x = jax.vmap(self.embed)(x)
        for block, one in zip(self.blocks, jax.random.split(key, len(self.blocks)), strict=True):
            x = block(x, one)
        return self.head(x.mean(0))


class Normed(eqx.Module):
    convolution: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    mlp: eqx.nn.MLP

    def __init__(self, key):
        self.convolution = eqx.nn.Conv2d(3, 8, 3, padding=1, key=key)
        self.norm = eqx.nn.BatchNorm(8, "batch", mode="ema")
        self.mlp = eqx.nn.MLP(8, 3, 12, 1, key=key)

    def __call__(self, x, state):
        x, state = self.norm(self.convolution(x), state)
        return self.mlp(jax.nn.relu(x).mean((1, 2))), state


VIT = dict(reg_tokens=1, proj_drop=0.1)
CONVNEXT = dict(depths=[1, 1], dims=[8, 16], layer_scale_init_value=0.1)
ATTNET = dict(dims=[16, 32], depths=[1, 1], exp_rates=[2, 2], kernel_sizes=[3, 3])
PICTURE, LAST = (2, 3, 32, 32), dict(num_classes=3, key=KEY)
CASES = {  # a network, an example of its inputs, and its blocks
    "nnx": (lambda: Pictures(nnx.Rngs(0)), (2, 4, 4, 3), "blocks/*"),
    "equinox": (lambda: Rows(KEY), (2, 4, 5), "blocks/*"),
    "state": (lambda: eqx.nn.make_with_state(Normed)(KEY), (2, 3, 4, 4), ""),
    "ViT": (lambda: VisionTransformer(32, 3, 16, 8, 2, [2], **VIT, **LAST), PICTURE, "blocks/0/blocks/*"),
    "ConvNeXt": (lambda: ConvNeXt(3, **CONVNEXT, **LAST), PICTURE, "blocks/*/blocks/0"),
    "AttNet": (lambda: AttNet(3, **ATTNET, **LAST), PICTURE, "blocks/*/blocks/0"),
}
GROUPS = {  # that it has among others
    "nnx": "width blocks/0/attention/heads blocks/0/attention/head_dim blocks/1/mlp/hidden stem/kernel",
    "equinox": "width blocks/0/attention/heads blocks/0/attention/value_dim blocks/1/mlp/layers/hidden",
    "state": "convolution/channels convolution/kernel mlp/layers/hidden",
    "ViT": "width blocks/0/blocks/0/attn/heads blocks/0/blocks/0/attn/head_dim blocks/0/blocks/1/mlp/hidden",
    "ConvNeXt": "channels blocks/channels blocks/0/blocks/0/dwconv/kernel blocks/1/blocks/0/channels",
    "AttNet": "channels blocks/channels blocks/1/blocks/0/channel_mixer/channels",
}


def options(group):
    return Choice(group.size - 2 if group.kind == "kernel" else group.size // 2, group.size)


@pytest.fixture(scope="module", params=tiers.cases(CASES, ("nnx", "equinox")))
def made(request):
    """A supernet over all groups, its variables and inputs.

    Variables are random, so that nothing is equal by symmetry; integers and flags are as they were.
    """
    (make, shape, blocks), draw = CASES[request.param], np.random.default_rng(0)

    def drawn(x):
        if x.dtype != jnp.float32:
            return x
        signs = draw.choice([-1, 1], x.shape) / np.sqrt(x[0].size) if x.ndim > 1 else 1
        return jnp.asarray(draw.uniform(0.3, 1, x.shape) * signs, x.dtype)

    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        inputs = jax.random.normal(KEY, shape)
        groups = jaxnas.analyze(make(), inputs=inputs)
        assert set(GROUPS[request.param].split()) <= set(groups.groups)
        if request.param == "ViT":
            assert "positions of a convolution: params/global_pos_embed/weight[0]" in str(groups)
        choices = {group.name: options(group) for group in groups if group.kind != "kernel" or group.size > 2}
        net = jaxnas.supernet(groups, choices | ({blocks: Skip()} if blocks else {}), verify=False)
        yield net, jax.tree.map(drawn, groups.model.variables), inputs


def test_a_supernet_is_its_extracted_networks(made):
    """P1, P2, P3 and counted parameters, as the function says."""
    promises.check_transformed(*made, samples=1)


def test_the_largest_network_is_the_module_of_the_user(made):
    """Also its updates; and out of training, a random architecture is its extracted network."""
    net, given, inputs = made
    arch = net.space.canonical(net.space.sample(KEY))
    small, recorded = net.clone(space=net.space.fix(arch)), network.annotated(net, inputs)
    part = unflatten(testing.cut(flatten(given), recorded, arch))

    @jax.jit
    def run(variables, part, arch, largest):
        pairs = [(net.apply(variables, inputs, arch), small.apply(part, inputs))]
        for train in (False, True):
            ours = net.apply(variables, inputs, largest, train=train, mutable=True, rngs=KEY)
            pairs.append((ours, net.groups.model.call(variables, inputs, KEY, train)))
        return pairs

    for found, expected in run(given, part, arch, net.space.canonical(net.space.largest())):
        jax.tree.map(promises.close, found, expected)


def test_verification_allows_for_rounding_that_a_network_amplifies(monkeypatch):
    make, shape, _ = CASES["AttNet"]
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        inputs = jax.random.normal(KEY, shape)
        groups = jaxnas.analyze(make(), inputs=inputs)
        choices = {group.name: options(group) for group in groups if group.kind == "channels"}
        net = jaxnas.supernet(groups, choices, form="masked", verify=False)
        variables, arch = groups.model.variables, net.space.sample(KEY)
        monkeypatch.setattr("jaxnas.subnet.TOLERANCE", 1e-7)  # less than the error on any processor
        assert 1e-7 < jaxnas.extract(net, variables, arch, verify=inputs).error < 1e-3
        cut = testing.cut

        def off(*given):
            return {path: x * np.float32(1.01) for path, x in cut(*given).items()}

        monkeypatch.setattr(testing, "cut", off)
        with pytest.raises(ValueError, match="differs"):
            jaxnas.extract(net, variables, arch, verify=inputs)


def test_the_module_of_the_user_is_not_changed_and_needs_its_state():
    module = Pictures(nnx.Rngs(0))
    before = jax.tree.leaves(nnx.state(module))
    jaxnas.analyze(module, inputs=jnp.ones((2, 4, 4, 3)))
    assert all(x is y for x, y in zip(before, jax.tree.leaves(nnx.state(module)), strict=True))
    assert module.norm.use_running_average is False and Pictures.__call__ is CALL
    normed, _ = eqx.nn.make_with_state(Normed)(KEY)
    with pytest.raises(TypeError, match="Normed has a state: call analyze"):
        jaxnas.analyze(normed, inputs=jnp.ones((2, 3, 4, 4)))

"""Convolutions, batch norms and attention with soft decisions, in bfloat16, and in a scan over layers."""

import functools
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from small_nets import difference, normal, take

from jaxnas import Choice, Space, elastic
from jaxnas.elastic import Attention, BatchNorm, Conv, fixed, width

SIZE, GROUPS = Choice(1, 3, 5), dict(kv=Choice(1, 2), group=Choice(1, 3), dim=Choice(2, 4))


def convolve(layer, x, decisions):
    out = width(int, decisions["out"]) if layer.name == "dense" else fixed(4)
    return layer(x, fixed(4), out, width(int, decisions["size"]))


def normalize(train):
    return lambda layer, x, decisions: layer(x, width(int, decisions["width"]), train=train)


def attend(layer, x, decisions):
    kv, dim = width(int, decisions["kv"]), width(int, decisions["dim"])
    heads = width(lambda kv, group: kv * group, decisions["kv"], decisions["group"])
    return layer(x, fixed(6), heads, kv, dim)


# A layer, how it is called with the decisions, and the space of its sizes.
CASES = {
    "convolution": (Conv(name="dense"), convolve, Space(out=Choice(3, 5), size=SIZE)),
    "depthwise": (Conv(depthwise=True, name="depthwise"), convolve, Space(size=SIZE)),
    "transformed": (Conv(transformed=(1, 3, 5), name="transformed"), convolve, Space(size=SIZE)),
    "stored statistics": (BatchNorm(), normalize(False), Space(width=Choice(2, 4))),
    "statistics of the batch": (BatchNorm(), normalize(True), Space(width=Choice(2, 4))),
    "grouped queries": (Attention(causal=True), attend, Space(**GROUPS)),
}


def random_variables(shapes, high):
    draw = np.random.default_rng(2)
    return jax.tree.map(lambda s: np.float32(draw.uniform(0.1, high, s.shape)), nn.meta.unbox(shapes))


@pytest.mark.parametrize("layer, call, space", CASES.values(), ids=CASES)
def test_a_soft_decision_gives_the_expected_output_and_bfloat16_nearly_the_same(layer, call, space):
    """The sum over all architectures of their probability and their output; and differentiable twice."""
    x, choices = normal(2, 5, 6) if call is attend else normal(2, 7, 6, 4), dict(space.decisions)
    sizes = [range(len(choice.options)) for choice in choices.values()]
    # The smallest first, the largest last.
    archs = dict(zip(choices, np.int32([*itertools.product(*sizes)]).T, strict=True))
    logits = {key: normal(*choice.shape, len(choice.options)) for key, choice in choices.items()}

    def bind(way, arch, dtype=jnp.float32):
        decisions = elastic.Decisions(space, arch)
        return way(lambda layer: call(layer, x, decisions), layer.clone(dtype=dtype))

    shapes = jax.eval_shape(bind(nn.init, take(archs, 0)), jax.random.key(0))
    variables = random_variables(shapes, 0.4)

    @jax.jit
    def run(archs, logits):
        def second(logits):
            loss = lambda logits: jnp.sum(bind(nn.apply, soften(logits))(variables) ** 2)  # noqa: E731
            return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, jax.grad(loss)(logits), logits)))

        soften = functools.partial(jax.tree.map, jax.nn.softmax)
        hard = jax.lax.map(lambda arch: bind(nn.apply, arch)(variables), archs)
        ends = take(archs, jnp.array([0, -1]))
        rough = jax.lax.map(lambda arch: bind(nn.apply, arch, jnp.bfloat16)(variables), ends)
        soft = soften(logits)
        return hard, rough, soft, bind(nn.apply, soft)(variables), jax.grad(second)(logits)

    hard, rough, weights, soft, second = jax.tree.map(np.asarray, run(archs, logits))
    shares = np.prod([weights[key][index] for key, index in archs.items()], axis=0)
    assert difference(soft, np.tensordot(shares, hard, 1)) <= 1e-5
    assert all(np.all(np.isfinite(leaf)) and np.any(leaf) for leaf in jax.tree.leaves(second))
    assert rough.dtype == jnp.bfloat16
    for low, exact in zip(np.float32(rough), (hard[0], hard[-1]), strict=True):
        assert 0 < difference(low, exact) <= 3e-2
        np.testing.assert_array_equal(low[exact == 0], 0)


class Block(nn.Module):
    """Attention of the pixels and a convolution, with batch norms."""

    train: bool

    @nn.compact
    def __call__(self, x, decisions):
        channels, pixels = fixed(6), x.reshape(len(x), -1, 6)
        mixed = attend(Attention(name="attention"), pixels, decisions)
        x = x + BatchNorm(name="first")(mixed.reshape(x.shape), channels, train=self.train)
        y = Conv(depthwise=True, name="conv")(x, channels, channels, width(int, decisions["size"]))
        return x + BatchNorm(name="second")(y, channels, train=self.train)


class Network(nn.Module):
    """Two such blocks."""

    space: Space
    scan: bool

    @nn.compact
    def __call__(self, x, arch=None, *, train=False):
        decisions = elastic.Decisions(self.space, arch, initializing=self.is_initializing())
        inputs = [{name: decisions[name, i] for name in ("size", *GROUPS)} for i in range(2)]
        call = lambda block, x, own: (block(x, own), None)  # noqa: E731
        return elastic.run_layers(self, functools.partial(Block, train), call, x, inputs, scan=self.scan)[0]


@pytest.mark.more
@pytest.mark.parametrize("train", [True, *tiers.nightly(False)])
def test_layers_in_a_scan_are_those_one_after_another(train):
    choices = dict(kv=Choice(1, 2), group=Choice(3), dim=Choice(4), size=Choice(3, 5))
    space = Space(**{name: choice.repeat(2) for name, choice in choices.items()})
    x, key = normal(2, 5, 5, 6), jax.random.key(1)
    variables = random_variables(jax.eval_shape(Network(space, False).init, key, x, space.smallest()), 0.3)
    every = space.smallest(), space.sample(key), space.largest()
    archs = jax.tree.map(lambda *x: np.stack(x), *every)

    def run(scan, arch):
        def loss(params):
            y = Network(space, scan).apply(variables | {"params": params}, x, arch, train=train)
            return jnp.sum(jnp.sin(y)), y

        return jax.grad(loss, has_aux=True)(variables["params"])

    assert "scan[" in str(jax.make_jaxpr(functools.partial(run, True))(space.smallest()))
    both = jax.jit(lambda archs: [jax.lax.map(functools.partial(run, scan), archs) for scan in (True, False)])
    scanned, unrolled = jax.tree.map(np.asarray, both(archs))
    assert difference(scanned[1], unrolled[1]) <= 1e-5
    for i in range(3):
        found, expected = take(scanned[0], i), take(unrolled[0], i)
        largest = max(np.max(np.abs(leaf)) for leaf in jax.tree.leaves(expected))
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-4 * largest), found, expected)

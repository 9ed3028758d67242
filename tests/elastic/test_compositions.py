"""Convolutions, batch norms and attention with soft decisions, in bfloat16, and in a scan over layers."""

import dataclasses
import functools
import itertools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_nets import difference, normal

from jaxnas import Choice, Space, elastic
from jaxnas.elastic import Attention, BatchNorm, Conv, fixed, width

IMAGES, TOKENS = normal(2, 7, 6, 4), normal(2, 5, 6)
SIZE, GROUPS = Choice(1, 3, 5), dict(kv=Choice(1, 2), group=Choice(1, 3), dim=Choice(2, 4))


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A layer, a space for its sizes, how it is called with the decisions, and what it is given."""

    layer: nn.Module
    space: Space
    call: Callable
    x: jax.Array

    @functools.cached_property
    def run(self):
        """From architecture, input and dtype to the output, compiled."""
        variables = self.variables

        def run(arch, x, dtype=jnp.float32):
            decisions = elastic.Decisions(self.space, arch)
            call = nn.apply(lambda layer: self.call(layer, x, decisions), self.layer.clone(dtype=dtype))
            return call(variables)

        return jax.jit(run, static_argnums=2)

    @functools.cached_property
    def variables(self):
        decisions = elastic.Decisions(self.space, self.space.largest())
        init = nn.init(lambda layer: self.call(layer, self.x, decisions), self.layer)
        rng = np.random.default_rng(2)
        shapes = nn.meta.unbox(jax.eval_shape(init, jax.random.key(0)))
        return jax.tree.map(lambda s: jnp.asarray(rng.uniform(0.1, 0.4, s.shape), s.dtype), shapes)


def convolve(layer, x, decisions):
    out = width(int, decisions["out"]) if layer.name == "dense" else fixed(4)
    return layer(x, fixed(4), out, width(int, decisions["size"]))


def normalise(train):
    return lambda layer, x, decisions: layer(x, width(int, decisions["width"]), train=train)


def attend(layer, x, decisions):
    kv, dim = width(int, decisions["kv"]), width(int, decisions["dim"])
    heads = width(lambda kv, group: kv * group, decisions["kv"], decisions["group"])
    return layer(x, fixed(6), heads, kv, dim)


CASES = {
    "convolution": Case(Conv(name="dense"), Space(out=Choice(3, 5), size=SIZE), convolve, IMAGES),
    "depthwise": Case(Conv(depthwise=True, name="depthwise"), Space(size=SIZE), convolve, IMAGES),
    "transformed": Case(Conv(transformed=(1, 3, 5), name="transformed"), Space(size=SIZE), convolve, IMAGES),
    "stored statistics": Case(BatchNorm(), Space(width=Choice(2, 4)), normalise(False), IMAGES),
    "statistics of the batch": Case(BatchNorm(), Space(width=Choice(2, 4)), normalise(True), IMAGES),
    "grouped queries": Case(Attention(causal=True), Space(**GROUPS), attend, TOKENS),
}
every_case = pytest.mark.parametrize("name", CASES)


@every_case
def test_a_soft_decision_gives_the_expected_output(name):
    """The sum over all architectures of their probability and their output; and differentiable twice."""
    case = CASES[name]
    logits = {key: normal(*choice.shape, len(choice.options)) for key, choice in case.space.decisions}
    soft = {key: jax.nn.softmax(value) for key, value in logits.items()}
    expected = jnp.zeros(())
    for index in itertools.product(*(range(len(choice.options)) for _, choice in case.space.decisions)):
        arch = {key: jnp.int32(i) for (key, _), i in zip(case.space.decisions, index, strict=True)}
        share = np.prod([soft[key][i] for key, i in arch.items()])
        expected = expected + share * case.run(arch, case.x)
    assert difference(case.run(soft, case.x), expected) <= 1e-5

    def loss(logits):
        return jnp.sum(case.run(jax.tree.map(jax.nn.softmax, logits), case.x) ** 2)

    second = jax.jit(
        jax.grad(lambda logits: sum(jax.tree.leaves(jax.tree.map(jnp.vdot, jax.grad(loss)(logits), logits))))
    )
    assert all(np.all(np.isfinite(leaf)) and np.any(leaf) for leaf in jax.tree.leaves(second(logits)))


@every_case
def test_bfloat16_is_the_same_function_less_exactly(name):
    case = CASES[name]
    for arch in (case.space.smallest(), case.space.largest()):
        exact, rough = case.run(arch, case.x), case.run(arch, case.x, jnp.bfloat16)
        assert rough.dtype == jnp.bfloat16
        assert 0 < difference(rough.astype(jnp.float32), exact) <= 3e-2
        np.testing.assert_array_equal(np.asarray(rough, np.float32)[np.asarray(exact) == 0], 0)


class Block(nn.Module):
    """Attention of the pixels and a convolution, with batch norms."""

    train: bool

    @nn.compact
    def __call__(self, x, decisions):
        channels, kv = fixed(6), width(int, decisions["kv"])
        heads = width(lambda kv, group: kv * group, decisions["kv"], decisions["group"])
        pixels = x.reshape(len(x), -1, 6)
        mixed = Attention(name="attention")(pixels, channels, heads, kv, width(int, decisions["dim"]))
        x = x + BatchNorm(name="first")(mixed.reshape(x.shape), channels, train=self.train)
        y = Conv(depthwise=True, name="conv")(x, channels, channels, width(int, decisions["size"]))
        return x + BatchNorm(name="second")(y, channels, train=self.train)


class Network(nn.Module):
    """Three such blocks."""

    space: Space
    scan: bool

    @nn.compact
    def __call__(self, x, arch=None, *, train=False):
        decisions = elastic.Decisions(self.space, arch, initializing=self.is_initializing())
        inputs = [{name: decisions[name, i] for name in ("size", *GROUPS)} for i in range(3)]
        make = functools.partial(Block, train)
        return elastic.run_layers(
            self, make, lambda block, x, own: (block(x, own), None), x, inputs, scan=self.scan
        )[0]


@pytest.mark.more
@pytest.mark.hlo
@pytest.mark.parametrize("train", [False, True])
def test_layers_in_a_scan_are_those_one_after_another(train):
    space = Space(**{name: choice.repeat(3) for name, choice in (GROUPS | {"size": SIZE}).items()})
    x = normal(2, 5, 5, 6)
    shapes = jax.eval_shape(Network(space, False).init, jax.random.key(0), x, space.smallest())
    rng = np.random.default_rng(0)
    variables = jax.tree.map(
        lambda s: jnp.asarray(rng.uniform(0.1, 0.3, s.shape), s.dtype), nn.meta.unbox(shapes)
    )

    def run(scan):
        def loss(params, arch):
            y = Network(space, scan).apply(variables | {"params": params}, x, arch, train=train)
            return jnp.sum(jnp.sin(y)), y

        return jax.jit(jax.grad(loss, has_aux=True))

    unrolled, scanned = run(False), run(True)
    assert "while" in scanned.lower(variables["params"], space.smallest()).as_text()
    for arch in (space.smallest(), space.sample(jax.random.key(1)), space.largest()):
        found, expected = (one(variables["params"], arch) for one in (scanned, unrolled))
        assert difference(found[1], expected[1]) <= 1e-5
        largest = max(np.max(np.abs(leaf)) for leaf in jax.tree.leaves(expected[0]))
        same = functools.partial(np.testing.assert_allclose, atol=1e-4 * largest)
        jax.tree.map(same, found[0], expected[0])

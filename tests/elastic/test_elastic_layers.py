"""Convolutions, batch norms and attention: PyTorch's at each size, soft, in a scan, and extracted."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import promises
import pytest
import tiers
from jax import lax
from small_nets import difference, jit, normal, take
from user_networks import Elastic

from jaxnas import Choice, Space
from jaxnas.elastic import Attention, BatchNorm, Conv, Decisions, Dense, Embedding, fixed, width
from jaxnas.elastic.convolution import center as center
from jaxnas.elastic.convolution import convolve_as
from jaxnas.elastic.width import Decision

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

PADDING = np.arange(5)[None] < np.array([[3], [5]])
PAIRS = np.random.default_rng(0).random((2, 5, 5)) < 0.6
PAIRS[0, 1] = False  # a token that sees none


class Case(NamedTuple):
    layer: nn.Module
    call: Callable
    space: Space
    shape: tuple
    reference: Callable
    soft: dict = {}  # at what size of the input decisions are soft


def convolve(max_branches, layer, x, decisions):
    channels = width(int, decisions["channels"])
    out = channels if layer.depthwise else width(int, decisions["out"])
    return layer(x, channels, out, width(int, decisions["size"]), max_branches=max_branches)


def normalize(train, max_branches, layer, x, decisions):
    channels, gate = width(int, decisions["channels"]), width(int, decisions["gate"])
    return layer(x, channels, train=train, gate=gate, max_branches=max_branches)


def attend(mask, layer, x, decisions):
    embed, kv, dim = (width(int, decisions[name]) for name in ("channels", "kv", "dim"))
    heads = width(lambda kv, group: kv * group, decisions["kv"], decisions["group"])
    return layer(x, embed, heads, kv, dim, None if mask is None else jnp.asarray(mask))


def torch_convolution(layer, values, x, params, _):
    def same_padding(size, stride):
        total = max((-(-size // stride) - 1) * stride + values["size"] - size, 0)
        return total // 2, total - total // 2

    channels, size = values["channels"], values["size"]
    out = channels if layer.depthwise else values["out"]
    kernel = params["kernel"][..., : 1 if layer.depthwise else channels, :out]
    while (larger := kernel.shape[0]) > size:
        kernel = kernel[1:-1, 1:-1]
        if layer.transformed:
            matrix, flat = params[f"from_{larger}_to_{larger - 2}"], kernel.flatten(0, 1).flatten(1)
            kernel = F.linear(flat.T, matrix).T.reshape(kernel.shape)
    sides = [(size // 2, size // 2)] * 2
    if not layer.symmetric:
        sides = [same_padding(*pair) for pair in zip(x.shape[1:3], layer.strides, strict=True)]
    images = F.pad(x[..., :channels].permute(0, 3, 1, 2), (*sides[1], *sides[0]))
    bias = params["bias"][:out] if layer.use_bias else None
    groups = channels if layer.depthwise else 1
    y = F.conv2d(images, kernel.permute(3, 2, 0, 1), bias, layer.strides, groups=groups)
    return y.permute(0, 2, 3, 1)


def torch_norm(train, layer, values, x, params, statistics):
    given = {name: value[: values["channels"]] for name, value in (params | statistics).items()}
    images = x[..., : values["channels"]].movedim(-1, 1)
    y = F.batch_norm(images, *(given[name] for name in ("mean", "var", "scale", "bias")), training=train)
    return y.movedim(1, -1) * values["gate"]


def torch_attention(mask, layer, values, x, params, _):
    embed, kv, dim = (values[name] for name in ("channels", "kv", "dim"))
    heads = kv * values["group"]

    def project(name, number):
        y = torch.einsum("bte,ehd->bhtd", x[..., :embed], params[f"{name}_kernel"][:embed, :number, :dim])
        return y + params[f"{name}_bias"][:number, None, :dim]

    repeat = functools.partial(torch.repeat_interleave, repeats=values["group"], dim=1)
    keys, rows = (repeat(project(name, kv)) for name in ("key", "value"))
    seen = np.ones((2, 1, 5, 5), bool) if mask is None else np.asarray(mask).reshape(2, 1, -1, 5)
    seen = seen & np.tri(5, dtype=bool) if layer.causal else seen
    none = torch.tensor(~seen.any(axis=-1, keepdims=True))  # where PyTorch gives NaN
    y = F.scaled_dot_product_attention(project("query", heads), keys, rows, torch.tensor(seen) | none) * ~none
    out = torch.einsum("bhtd,hde->bte", y, params["out_kernel"][:heads, :dim, :embed])
    return out + params["out_bias"][:embed]


SIZES = dict(channels=Choice(2, 4), size=Choice(3, 5, 7))
GROUPS = dict(kv=Choice(1, 2), group=Choice(3), dim=Choice(2, 4))


def convolution(layer, max_branches):
    space = Space(**SIZES) if layer.depthwise else Space(**SIZES, out=Choice(3, 5))
    call = functools.partial(convolve, max_branches)
    return Case(layer, call, space, (2, 9, 8, 4), torch_convolution, {"channels": 4})


def norm(train, max_branches):
    space = Space(channels=Choice(2, 3, 5), gate=Choice(0, 1))
    call, reference = functools.partial(normalize, train, max_branches), functools.partial(torch_norm, train)
    return Case(BatchNorm(momentum=0.7), call, space, (4, 3, 2, 5), reference)


def attention(mask, causal, **sizes):
    call, reference = functools.partial(attend, mask), functools.partial(torch_attention, mask)
    space = Space(channels=Choice(4, 6), **GROUPS | sizes)
    return Case(Attention(causal=causal), call, space, (2, 5, 6), reference, {"channels": 6})


ONE = dict(kv=Choice(2), group=Choice(3), dim=Choice(4))
DEPTHWISE = Conv((2, 1), depthwise=True)
CASES = {
    "dense": convolution(Conv((2, 3)), 1),
    "symmetric, a branch for each size": convolution(Conv((2, 1), symmetric=True, use_bias=False), 100),
    "depthwise": convolution(DEPTHWISE, 1),
    "depthwise, a branch for each size": convolution(DEPTHWISE, 100),
    "transformed": convolution(Conv(transformed=(3, 5, 7), symmetric=True, depthwise=True), 1),
    "stored statistics": norm(False, 8),
    "statistics of the batch": norm(True, 8),
    "statistics of the batch, one branch": norm(True, 1),
    "attention of pairs": attention(PAIRS, True),
    "attention with padding": attention(PADDING, False, **ONE),
}
FURTHER = ("symmetric, a branch for each size", "attention with padding")
every_case = pytest.mark.parametrize("name", tiers.cases(CASES, set(CASES) - set(FURTHER)))


@functools.cache
def probe(name):
    case = CASES[name]
    archs, x = jax.tree.map(np.asarray, case.space.enumerate()), normal(*case.shape) + 1
    soft_space = case.space.restrict(**case.soft)
    logits = jax.tree.map(lambda leaf: normal(*leaf.shape), soft_space.logits())

    def bind(way, arch, x, space=case.space, dtype=jnp.float32, **options):
        decisions = Decisions(space, arch)
        return way(lambda layer: case.call(layer, x, decisions), case.layer.clone(dtype=dtype), **options)

    shapes = nn.meta.unbox(jax.eval_shape(bind(nn.init, take(archs, 0), x), jax.random.key(0)))
    draw = np.random.default_rng(2)
    variables = jax.tree.map(lambda s: np.float32(draw.uniform(0.1, 0.4, s.shape)), shapes)

    def active(arch, x):
        size = jnp.asarray(case.space["channels"].options)[arch["channels"]]
        return jnp.where(jnp.broadcast_to(jnp.arange(x.shape[-1]) < size, x.shape), x, 0)

    def hard(arch):
        def of(x, params):
            own = dict(variables, params=params)
            return bind(nn.apply, arch, active(arch, x), mutable=["batch_stats"])(own)

        y, vjp, new = jax.vjp(of, x, variables["params"], has_aux=True)
        return y, vjp(jnp.cos(y)), new

    @jax.jit
    def run(archs, logits):
        def soft(logits):
            return bind(nn.apply, jax.tree.map(jax.nn.softmax, logits), x, soft_space)(variables)

        def slope(logits):
            gradient = jax.grad(lambda logits: jnp.sum(soft(logits) ** 2))(logits)
            return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, gradient, logits)))

        def low(arch):
            return bind(nn.apply, arch, active(arch, x), dtype=jnp.bfloat16)(variables)

        ends = take(archs, jnp.array([0, -1]))
        return jax.lax.map(hard, archs), jax.lax.map(low, ends), soft(logits), jax.grad(slope)(logits)

    return archs, variables, logits, jax.tree.map(np.asarray, run(archs, logits))


@every_case
def test_outputs_and_gradients_are_those_of_pytorch(name):
    """At every size; zeros behind, exactly, in the output and in every gradient."""
    case, (archs, variables, _, (hard, *_)) = CASES[name], probe(name)
    leaf = lambda x: torch.tensor(np.asarray(x, np.float64), requires_grad=True)  # noqa: E731
    for i in range(len(archs["channels"])):
        x, given = leaf(normal(*case.shape) + 1), jax.tree.map(leaf, variables)
        params, statistics = given["params"], given.get("batch_stats", {})
        statistics = {key: value.detach() for key, value in statistics.items()}
        y = case.reference(case.layer, case.space.to_dict(take(archs, i)), x, params, statistics)
        y = F.pad(y, (0, hard[0].shape[-1] - y.shape[-1]))
        y.backward(torch.cos(y).detach())
        grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in (x, *params.values())]
        grads = [one.numpy() for one in grads]
        expected = y.detach().numpy(), (grads[0], dict(zip(params, grads[1:], strict=True)))
        found = take(hard[:2], i)
        tolerance = 1e-5
        if "key_bias" in params:  # 0, but for rounding
            tolerance = 2e-5
            of_key = [one[1][1].pop("key_bias") for one in (found, expected)]
            assert np.max(np.abs(of_key[0] - of_key[1])) < 1e-5
        assert difference(found, expected) <= tolerance
        promises.check_zero_tail(found, expected)


@pytest.mark.parametrize("name", [name for name in CASES if "statistics" in name])
def test_statistics_are_stored_of_what_is_active(name):
    """By momentum, with the biased variance; those of other channels stay, and those of a skipped layer."""
    archs, variables, _, ((_, _, new), *_) = probe(name)
    x, old = np.asarray(normal(*CASES[name].shape) + 1), variables["batch_stats"]
    for i, values in enumerate(CASES[name].space.to_dict(take(archs, i)) for i in range(6)):
        size = values["channels"] * values["gate"] if "batch" in name else 0
        for key, of in (("mean", np.mean), ("var", np.var)):
            expected = 0.7 * old[key][:size] + 0.3 * of(x[..., :size], axis=(0, 1, 2))
            stored = new["batch_stats"][key][i] if new else old[key]
            np.testing.assert_allclose(stored[:size], expected, rtol=1e-5)
            np.testing.assert_array_equal(stored[size:], old[key][size:])


@every_case
def test_a_soft_decision_gives_the_expected_output_and_bfloat16_nearly_the_same(name):
    """The sum over all architectures of their probability and their output; and differentiable twice."""
    archs, _, logits, ((hard, *_), rough, soft, second) = probe(name)
    chosen = np.ones(len(hard), bool)
    for key, size in CASES[name].soft.items():
        chosen &= np.asarray(CASES[name].space[key].options)[archs[key]] == size
    weights = {key: np.asarray(jax.nn.softmax(x)) for key, x in logits.items()}
    shares = [weight[archs[key][chosen]] for key, weight in weights.items() if len(weight) > 1]
    shares += [np.ones(chosen.sum(), np.float32)]
    expected = np.tensordot(np.prod(shares, axis=0), hard[chosen], 1)
    assert difference(soft, expected) <= 1e-5
    soft_leaves = [leaf for leaf in jax.tree.leaves(second) if len(leaf) > 1]
    assert all(np.all(np.isfinite(leaf)) and np.any(leaf) for leaf in soft_leaves)
    assert rough.dtype == jnp.bfloat16 and np.any(np.float32(rough[1]) != hard[-1])
    for low, exact in zip(np.float32(rough), (hard[0], hard[-1]), strict=True):
        assert difference(low, exact) <= 3e-2
        np.testing.assert_array_equal(low[exact == 0], 0)


class Network(Elastic):
    space: Space = Space(channels=Choice(4, 6), **GROUPS, size=Choice(3, 5))

    def body(self, x, decisions, train):
        channels, size = width(int, decisions["channels"]), width(int, decisions["size"])
        x = Conv(name="stem")(x, fixed(3), channels, fixed(3))
        mixed = attend(None, Attention(name="attention"), x.reshape(len(x), -1, x.shape[-1]), decisions)
        x = x + BatchNorm(name="first")(mixed.reshape(x.shape), channels, train=train)
        y = Conv(depthwise=True, name="conv")(x, channels, channels, size)
        x = x + BatchNorm(name="second")(y, channels, train=train)
        return Dense(name="head")(x.mean(axis=(1, 2)), channels, fixed(2), rows=1)


@pytest.mark.hlo
def test_a_network_is_extracted_with_exact_costs():
    net, pixels = Network(), normal(2, 5, 5, 3)
    arch = net.space.from_dict(dict(channels=4, kv=2, group=3, dim=2, size=3))
    promises.check_extracted(net, promises.positive_variables(net, pixels), arch, pixels)


class Transformed(Elastic):
    space: Space = Space(size=Choice(3, 5, 7))

    def body(self, x, decisions, train):
        conv = Conv(depthwise=True, transformed=(3, 5, 7), name="conv")
        return conv(x, fixed(4), fixed(4), width(int, decisions["size"]))


@pytest.mark.hlo
def test_transformed_kernels_are_extracted_with_what_they_are_computed_from():
    net, x, params = Transformed(), normal(2, 9, 8, 4), probe("transformed")[1]["params"]
    for index, (kernel, matrices) in enumerate([(5, 25**2 + 9**2), (5, 25**2), (7, 0)]):
        arch = {"size": np.int32(index)}
        _, cut = promises.check_extracted(net, {"params": {"conv": params}}, arch, x)
        assert sum(leaf.size for leaf in jax.tree.leaves(cut)) == 4 * kernel**2 + 4 + matrices
        np.testing.assert_array_equal(cut["params"]["conv"]["kernel"], center(params["kernel"], kernel))


def test_embeddings_are_rows_of_the_table():
    """With the gradient of the rows that are used; a token beyond the vocabulary is not taken for another."""
    table, tokens = normal(4, 3), jnp.asarray([[1, 3, 1]], jnp.int32)
    layer, size = Embedding(vocabulary=4), width(int, Decision(("embed", None), (2, 3), np.int32(0)))

    @jit
    def run(table):
        apply = lambda table, tokens: layer.apply({"params": {"embedding": table}}, tokens, size)  # noqa: E731
        y, vjp = jax.vjp(lambda table: apply(table, tokens), table)
        return y, vjp(jnp.ones_like(y))[0], apply(table, tokens + 1)

    y, gradient, beyond = run(table)
    np.testing.assert_array_equal(y, np.asarray(table)[np.asarray(tokens)] * np.array([1, 1, 0], np.float32))
    np.testing.assert_array_equal(gradient, [[0, 0, 0], [2, 2, 0], [0, 0, 0], [1, 1, 0]])
    assert np.isnan(np.asarray(beyond)[0, 1, :2]).all()


def test_a_convolution_by_the_parameters_of_jaxs_has_its_value_and_gradients():
    """In any layout, with strides, uneven padding and groups; None for what it does not compute."""
    nhwc, nchw = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
    x, kernel = normal(2, 7, 6, 4), normal(3, 2, 4, 8)
    cases = (
        (nhwc, {"padding": "SAME"}, 1),
        (nchw, {"padding": ((1, 0), (2, 1)), "window_strides": (2, 1)}, 1),
        (nchw, {"padding": "VALID"}, 2),
        (nhwc, {"padding": "SAME", "window_strides": (2, 2)}, 4),
        (("CHWN", "IHWO", "HWNC"), {"padding": "SAME"}, 1),
    )
    for layout, given, groups in cases:
        arrays = [
            jnp.transpose(one, [usual.index(axis) for axis in own])
            for one, usual, own in ((x, "NHWC", layout[0]), (kernel[:, :, : 4 // groups], "HWIO", layout[1]))
        ]
        given = {"window_strides": (1, 1), "dimension_numbers": layout, "feature_group_count": groups} | given

        def plain(*arrays, given=given):
            return lax.conv_general_dilated(*arrays, **given)

        (equation,) = jax.make_jaxpr(plain)(*arrays).eqns
        ours = functools.partial(convolve_as, equation.params)
        weights = normal(*jax.eval_shape(plain, *arrays).shape)
        found, expected = (
            jax.value_and_grad(lambda *xs, f=f, w=weights: jnp.sum(w * f(*xs)), (0, 1))(*arrays)
            for f in (ours, plain)
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, expected)
    assert convolve_as(equation.params | {"rhs_dilation": (2, 1)}, *arrays) is None

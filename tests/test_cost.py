"""Exact costs (P7): against extracted parameters, XLA's own counts, and published networks."""

import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import sparse
from small_nets import SHAPE, every_setting, sample, setting, take

import jaxnas
from jaxnas import products, spaces, supernets
from jaxnas.inputs import specification
from jaxnas.supernets.autoformer.vit import autoformer_flops

seeds = st.integers(0, 2**31 - 1)
IMAGE = (1, 224, 224, 3)


@functools.cache
def cost_of(name):
    return jaxnas.cost(setting(name).net, SHAPE)


@functools.cache
def autoformer(size, **changes):
    given = dict(image_size=224, patch_size=16, num_classes=1000)
    return supernets.ViT(spaces.autoformer(size), **given | changes)


def lower(net, variables, inputs):
    return jax.jit(net.apply).lower(variables, specification(inputs))


def xla_macs(text):
    """The multiply-accumulates of all products and convolutions in the text of an HLO module."""
    products, calls, shapes = {}, {}, {}
    for line in text.splitlines():
        if line.endswith(" {"):  # a computation; the entry is the last one
            current = line.removeprefix("ENTRY ").split()[0].lstrip("%")
            products[current], calls[current] = 0, []
        found = re.match(r"\s+(?:ROOT )?%?([\w.-]+) = \w+\[([\d,]*)\]\S* ([\w-]+)\((.*)", line)
        if not found:
            continue
        name, shape, operation, rest = found.groups()
        shapes[current, name] = result = [int(size) for size in shape.split(",") if size]
        assert operation not in ("while", "conditional", "custom-call")
        if operation == "call":
            calls[current].append(re.search(r"to_apply=%?([\w.-]+)", rest)[1])
        if operation == "dot":
            left = shapes[current, re.match(r"(?:\S+\[\S+ )?%?([\w.-]+)", rest)[1]]
            summed = re.search(r"lhs_contracting_dims={([\d,]+)}", rest)[1].split(",")
            products[current] += math.prod(result) * math.prod(left[int(axis)] for axis in summed)
        if operation == "convolution":
            right = shapes[current, rest.split(")")[0].split(", ")[1].split()[-1].lstrip("%")]
            outputs = re.search(r"dim_labels=\w+_(\w+)->", rest)[1].index("o")
            products[current] += math.prod(result) * math.prod(right) // right[outputs]

    def total(computation):
        return products[computation] + sum(map(total, calls[computation]))

    return total(current)


def test_ragged_sparse_and_transposed_products_are_counted_and_unknown_ones_are_named():
    dense = jnp.eye(6)[:, :4]  # with four numbers other than 0
    right = jnp.ones((4, 5))

    def total(function, *operands):
        return products.total(jax.make_jaxpr(function)(*operands).jaxpr)

    def transposed(padding, dilation, x, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (2, 1), padding, (3, 2), dilation, numbers)

    grouped = jnp.ones((10, 4)), jnp.ones((3, 4, 5)), jnp.array([3, 3, 4])
    assert total(jax.lax.ragged_dot, *grouped) == (10 * 4 * 5, 10 * 4 * 5)
    for kind in (sparse.BCOO, sparse.BCSR, sparse.CSR, sparse.COO):
        assert total(lambda x, y: x @ y, kind.fromdense(dense), right) == (4 * 5, 4 * 5)
    images, kernel = jnp.ones((1, 5, 6, 3)), jnp.ones((2, 3, 3, 4))
    for padding, dilation in (((0, 0), (1, 1)), ((2, 2), (1, 1)), ((1, 3), (2, 3))):  # also beyond a border
        function = functools.partial(transposed, (padding, padding), dilation)
        flops = jax.jit(function).lower(images, kernel).cost_analysis()["flops"]
        assert total(function, images, kernel) == (flops / 2, flops / 2)

    both = [sparse.BCOO.fromdense(jnp.eye(4))] * 2
    program = jax.make_jaxpr(lambda x, y: x @ y)(*both).jaxpr
    assert products.total(program) == (0, math.inf) and products.opaque(program) == {"bcoo_spdot_general"}


@pytest.mark.hlo
@every_setting
@settings(max_examples=4)
@given(seed=seeds)
def test_costs_are_those_of_the_extracted_network(name, seed):
    case = setting(name)
    arch = sample(case.space, seed)
    small, variables, _ = jaxnas.extract(case.net, case.variables, arch, inputs=SHAPE)
    costs = cost_of(name)(arch)
    assert costs["params"] == sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    counted = xla_macs(lower(small, variables, SHAPE).as_text("hlo"))
    assert costs["macs"] * SHAPE[0] == counted
    # The extracted network counts itself as its supernet does.
    assert jaxnas.cost(small, SHAPE)(small.space.smallest()) == costs


def test_published_autoformers():
    """Also without relative positions, where the products are those of any vision transformer."""
    for size, params, flops in (
        ("tiny", 5_867_944, 1_344_034_362),
        ("small", 22_891_432, 4_892_144_730),
        ("base", 53_691_688, 11_236_929_660),
    ):
        net, arch = autoformer(size), spaces.autoformer(size).from_dict(spaces.published_options(size))
        assert jaxnas.cost(net, IMAGE)(arch)["params"] == params
        assert autoformer_flops(net)(arch) == flops
    plain = autoformer("base", max_relative_position=0)
    assert jaxnas.cost(plain, IMAGE)(arch) == {"params": 53_584_168, "macs": 11_045_397_248}


@every_setting
def test_traced_costs_are_exact_and_one_hot_ones_too(name):
    space, cost = setting(name).space, cost_of(name)
    batch = sample(space, 0, 200)
    expected, mapped = cost(batch), jax.jit(jax.vmap(cost))(batch)
    one, soft = jax.jit(cost), jax.jit(cost)
    for key in ("params", "macs"):
        assert expected[key].dtype == np.int64 and mapped[key].dtype == jnp.int32
        np.testing.assert_array_equal(mapped[key], expected[key])
    for i in range(5):
        arch = take(batch, i)
        for key, value in one(arch).items():
            assert int(value) == cost(arch)[key] == expected[key][i]
        weights = {key: np.eye(space[key].width, dtype=np.float32)[x] for key, x in arch.items()}
        for key, value in soft(weights).items():
            assert value.dtype == jnp.float32
            np.testing.assert_allclose(value, expected[key][i], rtol=1e-6)


def test_beyond_int32_rounds_once():
    """AutoFormer-B has 11e9 multiply-accumulates; the traced figure is the nearest float32."""
    net = autoformer("base")
    cost, batch = jaxnas.cost(net, IMAGE), sample(net.space, 0, 500)
    exact, traced = cost(batch), jax.jit(jax.vmap(cost))(batch)
    assert np.min(exact["macs"]) > 2**31
    assert traced["macs"].dtype == jnp.float32
    np.testing.assert_array_equal(traced["macs"], exact["macs"].astype(np.float32))
    np.testing.assert_array_equal(traced["params"], exact["params"])


@pytest.mark.parametrize("name", ["wide", "narrow"])
def test_soft_cost_is_the_expected_cost(name):
    """Over independent decisions; its gradient is the difference that an option makes."""
    space, cost, rng = setting(name).space, cost_of(name), np.random.default_rng(0)
    soft = {key: jnp.float32(rng.dirichlet(np.ones(one.width), one.shape)) for key, one in space.decisions}
    codes = np.array(list(itertools.product(*(range(size) for size in space.sizes))), np.int32)
    rows = [row for key in soft for row in np.asarray(soft[key], np.float64).reshape(-1, space[key].width)]
    probability = np.prod([row[codes[:, i]] for i, row in enumerate(rows)], axis=0)
    assert abs(probability.sum() - 1) < 1e-5
    exact = cost(space.decode(codes))
    for key, value in jax.jit(cost)(soft).items():
        np.testing.assert_allclose(value, np.sum(probability * exact[key]), rtol=1e-5)
    gradient = jax.grad(lambda soft: cost(soft)["params"])(soft)
    assert all(np.all(np.asarray(leaf) >= 0) and np.any(leaf != 0) for leaf in gradient.values())

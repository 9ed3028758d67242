"""The promises P1, P2, P3 and P5 of the ViT supernet, over random architectures."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from small_nets import (
    CLASSES,
    SETTINGS,
    SHAPE,
    difference,
    every_setting,
    flatten,
    jit,
    masks_of,
    normal,
    sample,
    setting,
    specs_of,
    take,
)

import jaxnas
from jaxnas.elastic import stack_layers
from jaxnas.elastic.attention import Attention, skew, unskew
from jaxnas.training import make_mesh

seeds = st.integers(0, 2**31 - 1)


# ---- P1: one program.


def test_a_thousand_architectures_are_one_trace():
    """Forward and gradient; a new trace, for whatever reason, would append to `traces`."""
    case = setting.__wrapped__("wide")  # its own: programs of other modules were let go, and are traced anew
    batch = jax.tree.map(np.asarray, sample(case.space, 0, 1000))
    case(take(batch, 0))
    traced = len(case.traces)
    logits = [case(take(batch, i))[0] for i in range(1000)]
    assert len(case.traces) == traced == 1
    distinct = {tuple(row) for row in np.asarray(case.space.encode(batch)).tolist()}
    # Each network is another function: no two distinct architectures give the same logits.
    assert len({x.tobytes() for x in map(np.asarray, logits)}) == len(distinct) > 200


# ---- P2: zero tail.


# Modules that only declare weights: one operation each computes attention and MLP.
DECLARING = ("attention_norm", "projection", "mlp_norm", "in", "out")


def active_width(values, path):
    """The width of a module's output from the option values, by the module's name."""
    dim = values["embed_dim"]
    return CLASSES if path == ("head",) else dim


@every_setting
@settings(max_examples=4)
@given(seed=seeds)
def test_tail_of_activations_is_zero(name, seed):
    case = setting(name)
    arch = sample(case.space, seed)
    values = case.space.to_dict(arch)
    skipped = tuple(f"block_{layer}" for layer in range(values["depth"], 2))
    _, outputs, _ = case(arch)
    checked = 0
    for path, (output,) in flatten(outputs).items():
        path = path[:-1]  # ends in "__call__"
        inside = len(path) > 1 and path[0].startswith("block_")
        if path and not (inside and (path[0] in skipped or path[-1] in DECLARING)):
            width = active_width(values, path)
            assert np.any(output[..., :width] != 0), path
            assert not np.any(output[..., width:] != 0), path
            checked += 1
    # Outside of the blocks, the blocks, and what runs in them.
    assert checked == 5 + 2 + 2 * values["depth"]


def test_offsets_and_places_are_transposes():
    operation, n = Attention(7, (2, 3), np.dtype(np.float32)), 2
    by_offset, by_place = normal(n * 7, 3 + 5 + 1), normal(n * 7, 2 + 3 + 1)
    there, back = operation._to_places(by_offset), operation._to_offsets(by_place)
    assert there.shape == by_place.shape and back.shape == by_offset.shape
    np.testing.assert_allclose(np.vdot(there, by_place), np.vdot(by_offset, back), rtol=1e-5)
    # Every key is at one offset of each query, in rows and in columns, or the class token.
    keys = operation._by_key(operation._to_places(jnp.ones((n * 7, 9)).at[:, 3:8].set(0)))
    np.testing.assert_array_equal(keys, np.ones((n, 7, 7)))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_skew_moves_offsets_to_places_and_unskew_is_its_transpose(size):
    x = normal(2, size, 3, 2 * size - 1)
    y = skew(x)
    for a in range(size):
        for place in range(size):
            np.testing.assert_array_equal(y[:, a, :, place], x[:, a, :, size - 1 + place - a])
    (transposed,) = jax.linear_transpose(skew, x)(y)
    np.testing.assert_array_equal(unskew(y), transposed)


@every_setting
@settings(max_examples=4)
@given(seed=seeds)
def test_gradient_outside_the_active_weights_is_zero(name, seed):
    case = setting(name)
    arch = sample(case.space, seed)
    gradient, masks = flatten(case(arch)[2]), masks_of(name)(arch)
    assert gradient.keys() == masks.keys()
    for path, mask in masks.items():
        mask = np.broadcast_to(mask, gradient[path].shape)
        assert not np.any(np.where(mask, 0, gradient[path])), path
        assert np.any(gradient[path]) == np.any(mask), path


# ---- P3: the same function.


@every_setting
@settings(max_examples=2)
@given(seed=seeds)
def test_extracted_is_the_same_function(name, seed):
    """Outputs and gradients; the weights are prefixes, as weight entanglement defines them."""
    case = setting(name)
    arch = sample(case.space, seed)
    small, variables, _ = jaxnas.extract(case.net, case.variables, arch, inputs=SHAPE)
    params = variables["params"]
    logits, _, gradient = case(arch)

    @jit
    def run(params):
        def loss(params):
            logits = small.apply({"params": params}, case.images)
            return jnp.sum(logits * case.weights), logits

        return jax.grad(loss, has_aux=True)(params)

    small_gradient, small_logits = run(params)
    assert difference(small_logits, logits) <= case.tolerance
    large, specs = flatten(case.params), specs_of(name)
    expected = {path: specs[path].active(leaf, arch) for path, leaf in flatten(gradient).items()}
    # Relative to the largest gradient: that of a key's bias is nothing but rounding.
    scale = max(np.max(np.abs(leaf), initial=0) for leaf in expected.values())
    for path, leaf in flatten(small_gradient).items():
        assert np.max(np.abs(leaf - expected[path])) <= case.tolerance * scale, path
    for path, leaf in flatten(params).items():
        if leaf.ndim == large[path].ndim:  # classic sharing stores one more axis
            prefix = tuple(slice(size) for size in leaf.shape)
            np.testing.assert_array_equal(leaf, large[path][prefix])


def test_extract_verifies():
    case = setting("wide")
    arch = sample(case.space, 5)
    assert 0 <= jaxnas.extract(case.net, case.variables, arch, verify=case.images).error <= 1e-5


def test_verification_fails_where_the_networks_differ(monkeypatch):
    case = setting("wide")
    monkeypatch.setattr(jaxnas.subnet, "TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="differs from the supernet"):
        jaxnas.extract(case.net, case.variables, case.space.smallest(), verify=case.images)


def primitives(jaxpr):
    """Every equation of a program, with those inside of its calls."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from primitives(inner)


@pytest.mark.parametrize(
    "name", ["narrow", *tiers.more(*(x for x in (*SETTINGS, "scanned") if x != "narrow"))]
)
@settings(max_examples=4)
@given(seed=seeds)
def test_nothing_of_the_supernet_is_in_the_extracted_program(name, seed):
    case = setting(name)
    arch = sample(case.space, seed)
    small, variables, _ = jaxnas.extract(case.net, case.variables, arch, inputs=SHAPE)
    params = variables["params"]

    def loss(params):
        return jnp.sum(small.apply({"params": params}, case.images))

    forward = jax.make_jaxpr(loss)(params)
    assert {leaf.shape for leaf in forward.in_avals} == {x.shape for x in jax.tree.leaves(params)}
    for equation in primitives(forward.jaxpr):
        used = equation.primitive.name
        assert "switch" not in used and "custom_vmap" not in used
        assert used not in ("cond", "while", "scan", "iota") and "dynamic" not in used
        sizes = [v.aval for v in equation.outvars]
        if used == "select_n":  # of the table rows of relative positions
            assert all(aval.dtype == jnp.int32 for aval in sizes)
        if not case.net.max_relative_position:
            assert used not in ("select_n", "pad", "gather")
    # The largest network's program and this one differ in sizes only.
    backward = jax.make_jaxpr(jax.grad(loss))(params)
    assert "cond" not in {equation.primitive.name for equation in primitives(backward.jaxpr)}


# ---- P5: vmap = loop.


def check_vmapped(name, axes, images, archs):
    """Compares logits and gradients of a vmapped run with those of the loop over it."""
    case = setting(name)
    logits, _, gradients = jit(jax.vmap(case.run, axes))(case.params, images, archs)
    logits, gradients = np.asarray(logits), flatten(gradients)
    tolerance = 10 * case.tolerance
    for i in range(len(logits)):
        arch = archs if axes[2] is None else take(archs, i)
        one = case.compiled(case.params, images if axes[1] is None else images[i], arch)
        assert difference(logits[i], one[0]) <= tolerance
        expected, masks = flatten(one[2]), masks_of(name)(arch)
        scale = max(np.max(np.abs(leaf)) for leaf in expected.values())
        for path, leaf in expected.items():
            value, mask = gradients[path][i], np.broadcast_to(masks[path], leaf.shape)
            assert np.max(np.abs(value - leaf)) <= tolerance * scale, path
            assert not np.any(np.where(mask, 0, value)), path


@pytest.mark.parametrize("name", ["narrow", *tiers.more(*(name for name in ("classic", "scanned")))])
def test_vmap_over_architectures_is_the_loop(name):
    case = setting(name)
    check_vmapped(name, (None, None, 0), case.images, sample(case.space, 3, 5))


@pytest.mark.more
@pytest.mark.parametrize(
    "name, axes", [("wide", (None, 0, None)), ("wide", (None, 0, 0))], ids=["data", "both"]
)
def test_vmap_over_data_is_the_loop(name, axes):
    archs = sample(setting(name).space, 4, 4 if axes[2] == 0 else None)
    check_vmapped(name, axes, normal(4, *SHAPE), archs)


# ---- Several devices.


@pytest.mark.more
@pytest.mark.parametrize("name", ["narrow", "scanned"])
@pytest.mark.eight_devices
def test_a_population_over_devices_is_the_loop(name):
    """One architecture after the other on each device: real branches, which `vmap` has not."""
    case, mesh = setting(name), make_mesh(4)
    archs, along = sample(case.space, 5, 8), PartitionSpec("data")

    def logits(arch):
        return case.net.apply({"params": case.params}, case.images, arch)

    population = jax.shard_map(
        lambda archs: jax.lax.map(logits, archs), mesh=mesh, in_specs=along, out_specs=along, check_vma=False
    )
    for i, one in enumerate(jit(population)(archs)):
        assert difference(one, case(take(archs, i))[0]) <= 1e-5


@pytest.mark.more
@pytest.mark.hlo
@pytest.mark.parametrize("name", ["narrow", "scanned"])
@pytest.mark.eight_devices
def test_rows_on_several_devices_are_not_gathered(name):
    """Gradients are summed over the devices, and nothing else goes between them."""
    case, mesh = setting(name), make_mesh(2)
    params = stack_layers(case.params) if name == "scanned" else case.params

    def loss(params, images, arch):
        return jnp.mean(jnp.square(case.net.apply({"params": params}, images, arch)))

    everywhere, rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    gradient = jit(jax.grad(loss), in_shardings=(everywhere, rows, everywhere), out_shardings=everywhere)
    program = gradient.lower(params, normal(4, *SHAPE[1:]), case.space.largest()).compile().as_text()
    found = set(re.findall(r"(all-gather|all-reduce|all-to-all|collective-permute)\(", program))
    assert found == {"all-reduce"}


# ---- Depth.


def test_inactive_layers_change_nothing():
    """Neither their weights nor what an architecture chooses for them."""
    case = setting("wide")
    values = dict(embed_dim=24, depth=1, num_heads=[2], mlp_ratio=[2.0])
    arch = case.space.from_dict(values)
    first = case(arch)
    other = dict(case.params, block_1=jax.tree.map(lambda x: 5 - x, case.params["block_1"]))
    np.testing.assert_array_equal(case(arch, other)[0], first[0])
    same = {key: x if x.ndim == 0 else x.at[1].set(2) for key, x in arch.items()}
    logits, outputs, gradient = case(same)
    np.testing.assert_array_equal(logits, first[0])
    assert difference(gradient, first[2]) == 0
    after, before = outputs["block_1"]["__call__"][0], outputs["block_0"]["__call__"][0]
    np.testing.assert_array_equal(after, before)
    assert np.any(case(arch | {"depth": jnp.int32(1)}, other)[0] != first[0])

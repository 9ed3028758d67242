"""The promises P1, P2, P3 and P5 of the ViT and Swin supernets, over random architectures."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from jax.sharding import NamedSharding, PartitionSpec
from small_nets import (
    CLASSES,
    SHAPE,
    Setting,
    difference,
    flatten,
    jit,
    normal,
    random_params,
    sample,
    setting,
    take,
)
from test_cost import lower, xla_macs

import jaxnas
from jaxnas import spaces, supernets
from jaxnas.elastic import stack_layers
from jaxnas.elastic.attention import Attention, skew, unskew
from jaxnas.network import annotated
from jaxnas.training import make_mesh

# A shifted block, windows as large as the map, and widths of queries apart from those of the stage.
SWIN = dict(
    depth=((1, 2), (1,)),
    embed_dim=((4, 6), (6, 8)),
    window=((2, 4), (2,)),
    num_heads=((2,), (1, 2)),
    mlp_ratio=((1.0,), (1.0, 1.5)),
    qkv_dim=((8,), (4, 8)),
)
CASES = ("narrow", *tiers.more("classic", "swin"), *tiers.nightly("wide", "bfloat16"))


@functools.cache
def case_of(name):
    if name != "swin":
        return setting(name)
    net = supernets.Swin(spaces.swin(**SWIN), 8, 2, CLASSES, drop_path_rate=0.2)
    return Setting(net, random_params(net), normal(*SHAPE), normal(SHAPE[0], CLASSES), [])


def specs_of(name):
    """The annotations of each parameter."""
    return annotated(case_of(name).net, SHAPE).specs


@functools.cache
def masks_of(name):
    """A function from an architecture to which elements of each parameter are active."""
    return jit(lambda arch: {path: spec.mask(arch) for path, spec in specs_of(name).items()})


@functools.cache
def archs_of(name, n):
    """Random architectures on the host, one after the other."""
    batch = jax.tree.map(np.asarray, sample(case_of(name).space, 0, n))
    return [take(batch, i) for i in range(n)]


# ---- P1: one program.


@pytest.mark.parametrize("name", ["narrow", *tiers.more("swin"), *tiers.nightly("wide")])
def test_a_thousand_architectures_are_one_trace(name):
    """Forward and gradient; a new trace, for whatever reason, would append to `traces`."""
    case, archs = case_of(name), archs_of(name, 1000)
    case(archs[0])
    traced = len(case.traces)
    logits = {np.asarray(case(arch)[0]).tobytes() for arch in archs}
    assert len(case.traces) == traced
    # Each network is another function: no two distinct architectures give the same logits.
    codes = case.space.encode(jax.tree.map(lambda *x: np.stack(x), *archs))
    assert len(logits) == len(np.unique(np.asarray(codes), axis=0)) >= (60 if name == "narrow" else 150)


# ---- P2: zero tail.


# Modules that only declare weights: one operation each computes attention and MLP.
DECLARING = ("attention_norm", "projection", "mlp_norm", "in", "out")


def active_outputs(name, values, outputs):
    """The output of modules, and how many of its channels an architecture uses."""
    for path, (output,) in flatten(outputs).items():
        *inner, _ = path  # ends in "__call__"
        module = inner.pop(0) if inner else ""
        if name == "swin":
            if not inner and module.startswith(("stage", "merge")):
                output = output[..., 0, :] if module.startswith("merge") else output
                yield path, output, values[f"embed_dim_{module.split('_')[1]}"]
        elif inner and module.startswith("block_"):
            if int(module[6:]) < values["depth"] and inner[-1] not in DECLARING:
                yield path, output, values["embed_dim"]
        elif module:
            yield path, output, CLASSES if module == "head" else values["embed_dim"]


@pytest.mark.parametrize("name", CASES)
def test_what_an_architecture_does_not_use_is_zero_in_activations_and_gradients(name):
    case = case_of(name)
    for arch in archs_of(name, 8):
        values, (_, outputs, gradient) = case.space.to_dict(arch), case(arch)
        checked = 0
        for path, output, width in active_outputs(name, values, outputs):
            assert np.any(output[..., :width] != 0), path
            assert not np.any(output[..., width:] != 0), path
            checked += 1
        # Outside of the blocks, the blocks, and what runs in them.
        assert checked == (4 if name == "swin" else 5 + 2 + 2 * values["depth"])
        gradient, masks = flatten(gradient), masks_of(name)(arch)
        assert gradient.keys() == masks.keys()
        for path, mask in masks.items():
            mask = np.broadcast_to(mask, gradient[path].shape)
            assert not np.any(np.where(mask, 0, gradient[path])), path
            assert np.any(gradient[path]) == np.any(mask), path


def test_offsets_and_places_are_transposes():
    operation, n = Attention(7, (2, 3), np.dtype(np.float32)), 2
    by_offset, by_place = normal(n * 7, 3 + 5 + 1), normal(n * 7, 2 + 3 + 1)

    @jit
    def both(by_offset, by_place):
        # Every key is at one offset of each query, in rows and in columns, or the class token.
        keys = operation._by_key(operation._to_places(jnp.ones((n * 7, 9)).at[:, 3:8].set(0)))
        return operation._to_places(by_offset), operation._to_offsets(by_place), keys

    there, back, keys = both(by_offset, by_place)
    assert there.shape == by_place.shape and back.shape == by_offset.shape
    np.testing.assert_allclose(np.vdot(there, by_place), np.vdot(by_offset, back), rtol=1e-5)
    np.testing.assert_array_equal(keys, np.ones((n, 7, 7)))


def test_skew_moves_offsets_to_places_and_unskew_is_its_transpose():
    inputs = [np.asarray(normal(2, size, 3, 2 * size - 1)) for size in (1, 2, 5)]

    @jit
    def run(inputs):
        skewed = [skew(x) for x in inputs]
        transposed = [jax.linear_transpose(skew, x)(y)[0] for x, y in zip(inputs, skewed, strict=True)]
        return skewed, transposed, [unskew(y) for y in skewed]

    for x, y, transposed, back in zip(inputs, *jax.tree.map(np.asarray, run(inputs)), strict=True):
        size = x.shape[1]
        for a in range(size):
            for place in range(size):
                np.testing.assert_array_equal(y[:, a, :, place], x[:, a, :, size - 1 + place - a])
        np.testing.assert_array_equal(back, transposed)


# ---- P3: the same function.


def primitives(jaxpr):
    """Every equation of a program, with those inside of its calls."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from primitives(inner)


@pytest.mark.parametrize("name", [*CASES, *tiers.more("scanned")])
def test_extracted_is_the_same_function_without_anything_of_the_supernet(name):
    """Outputs, gradients and costs; the weights are prefixes, as weight entanglement defines them."""
    case, arch = case_of(name), archs_of(name, 8)[2 if name in ("wide", "swin") else 4]
    small, variables, _ = jaxnas.extract(case.net, case.variables, arch, inputs=SHAPE)
    params = variables["params"]
    cost = jaxnas.cost(case.net, SHAPE)(arch)
    assert cost["params"] == sum(leaf.size for leaf in jax.tree.leaves(params))
    assert cost["macs"] * SHAPE[0] == xla_macs(lower(small, variables, SHAPE).as_text("hlo"))

    def loss(params):
        logits = small.apply({"params": params}, case.images)
        return jnp.sum(logits * case.weights), logits

    small_gradient, small_logits = jit(jax.grad(loss, has_aux=True))(params)
    # A loop over layers is the same function as one after the other, of which there is a program.
    logits, _, gradient = case_of("narrow" if name == "scanned" else name)(arch)
    assert difference(small_logits, logits) <= case.tolerance
    large, specs = flatten(case.params), specs_of(name)
    expected = {path: specs[path].active(leaf, arch) for path, leaf in flatten(gradient).items()}
    # Relative to the largest gradient: that of a key's bias is nothing but rounding.
    scale = max(np.max(np.abs(leaf), initial=0) for leaf in expected.values())
    for path, leaf in flatten(small_gradient).items():
        assert np.max(np.abs(leaf - expected[path])) <= case.tolerance * scale, path
    for path, leaf in flatten(params).items():
        # Classic sharing stores one more axis, and a smaller window has the centre of a table.
        if leaf.ndim == large[path].ndim and path[-1] != "relative_bias":
            prefix = tuple(slice(size) for size in leaf.shape)
            np.testing.assert_array_equal(leaf, large[path][prefix])

    forward = jax.make_jaxpr(loss)(params)
    assert {leaf.shape for leaf in forward.in_avals} == {x.shape for x in jax.tree.leaves(params)}
    for equation in primitives(forward.jaxpr):
        used = equation.primitive.name
        assert "switch" not in used and "custom_vmap" not in used
        assert used not in ("cond", "while", "scan", "iota") and "dynamic" not in used
        if used == "select_n":  # of the table rows of relative positions
            assert all(out.aval.dtype == jnp.int32 for out in equation.outvars)
        if name == "swin":
            assert used not in ("gather", "scatter")
        elif not case.net.max_relative_position:
            assert used not in ("select_n", "pad", "gather")
    # The largest network's program and this one differ in sizes only.
    backward = jax.make_jaxpr(jax.grad(loss, has_aux=True))(params)
    assert "cond" not in {equation.primitive.name for equation in primitives(backward.jaxpr)}


@pytest.mark.parametrize("name", ["wide", *tiers.more("bfloat16")])
def test_extract_verifies_and_fails_where_the_networks_differ(name, monkeypatch):
    """Of one layer, which is less to compile."""
    case = case_of(name)
    net = case.net.clone(space=case.space.restrict(depth=1))
    variables = {"params": {name: tree for name, tree in case.params.items() if name != "block_1"}}
    arch = net.space.decode(np.asarray(net.space.sizes) // 2)
    assert 0 <= jaxnas.extract(net, variables, arch, verify=case.images).error <= case.tolerance
    monkeypatch.setattr(jaxnas.subnet, "TOLERANCE", -1.0)
    monkeypatch.setattr(jaxnas.subnet, "HALF_TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="differs from the supernet"):
        jaxnas.extract(net, variables, arch, verify=case.images)


# ---- P5: vmap = loop.


@pytest.mark.parametrize(
    "name, axes, fixed",
    [
        ("narrow", (None, None, 0), {}),
        *tiers.more(("swin", (None, None, 0), {"depth_1": 1}), ("classic", (None, 0, 0), {})),
        *tiers.more(("classic", (None, 0, None), {"depth": 1})),
        *tiers.nightly(("scanned", (None, None, 0), {})),
    ],
)
def test_vmap_over_architectures_or_data_or_both_is_the_loop(name, axes, fixed):
    """Logits and gradients; of a part of the space where there is less to compile."""
    case, n = case_of(name), 3
    part = dataclasses.replace(case, net=case.net.clone(space=case.space.restrict(**fixed)))
    images = case.images if axes[1] is None else normal(n, *SHAPE)
    archs = jax.tree.map(np.asarray, sample(part.space, 3, None if axes[2] is None else n))
    logits, _, gradients = jit(jax.vmap(part.run, axes))(case.params, images, archs)
    logits, gradients, tolerance = np.asarray(logits), flatten(gradients), 10 * case.tolerance
    for i in range(n):
        values = part.space.to_dict(archs if axes[2] is None else take(archs, i))
        arch = case.space.from_dict(values)
        one = case.compiled(case.params, images if axes[1] is None else images[i], arch)
        assert difference(logits[i], one[0]) <= tolerance
        expected, masks = flatten(one[2]), masks_of(name)(arch)
        scale = max(np.max(np.abs(leaf)) for leaf in expected.values())
        for path, leaf in expected.items():
            value, mask = gradients[path][i], np.broadcast_to(masks[path], leaf.shape)
            assert np.max(np.abs(value - leaf)) <= tolerance * scale, path
            assert not np.any(np.where(mask, 0, value)), path


# ---- Several devices.


@pytest.mark.eight_devices
@pytest.mark.parametrize("name", ["narrow", *tiers.nightly("scanned")])
def test_a_population_over_devices_is_the_loop(name):
    """One architecture after the other on each device: real branches, which `vmap` has not."""
    case, mesh = case_of(name), make_mesh(4)
    archs, along = sample(case.space, 5, 8), PartitionSpec("data")

    def logits(arch):
        return case.net.apply({"params": case.params}, case.images, arch)

    population = jax.shard_map(
        lambda archs: jax.lax.map(logits, archs), mesh=mesh, in_specs=along, out_specs=along, check_vma=False
    )
    for i, one in enumerate(np.asarray(jit(population)(archs))):
        assert difference(one, case(take(jax.tree.map(np.asarray, archs), i))[0]) <= 1e-5


@pytest.mark.hlo
@pytest.mark.eight_devices
@pytest.mark.parametrize("name", ["scanned", *tiers.nightly("narrow")])
def test_rows_on_several_devices_are_not_gathered(name):
    """Gradients are summed over the devices, and nothing else goes between them."""
    case, mesh = case_of(name), make_mesh(2)
    params = stack_layers(case.params) if name == "scanned" else case.params

    def loss(params, images, arch):
        return jnp.mean(jnp.square(case.net.apply({"params": params}, images, arch)))

    everywhere, rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    gradient = jit(jax.grad(loss), in_shardings=(everywhere, rows, everywhere), out_shardings=everywhere)
    program = gradient.lower(params, normal(4, *SHAPE[1:]), case.space.largest()).compile().as_text()
    found = set(re.findall(r"(all-gather|all-reduce|all-to-all|collective-permute)\(", program))
    assert found == {"all-reduce"}


# ---- Depth.


@pytest.mark.parametrize(
    "name, prefix, depth", [("narrow", "block", "depth"), *tiers.more(("swin", "stage_1_block", "depth_1"))]
)
def test_inactive_layers_change_nothing(name, prefix, depth):
    """Neither their weights nor what an architecture chooses for them."""
    case, arch = case_of(name), archs_of(name, 8)[1]
    assert case.space.to_dict(arch)[depth] == 1
    first, last = case(arch), f"{prefix}_1"
    assert last not in jaxnas.extract(case.net, case.variables, arch, inputs=SHAPE).variables["params"]
    other = dict(case.params, **{last: jax.tree.map(lambda x: 5 - x, case.params[last])})
    np.testing.assert_array_equal(case(arch, other)[0], first[0])
    most = {key: np.broadcast_to(choice.sizes, choice.shape) - 1 for key, choice in case.space.decisions}
    same = {key: x if x.shape != (2,) else np.int32([x[0], most[key][1]]) for key, x in arch.items()}
    assert any(np.any(same[key] != arch[key]) for key in arch)
    logits, outputs, gradient = case(same)
    np.testing.assert_array_equal(logits, first[0])
    assert difference(gradient, first[2]) == 0
    after, before = (outputs[f"{prefix}_{i}"]["__call__"][0] for i in (1, 0))
    np.testing.assert_array_equal(after, before)
    assert np.any(case(arch | {depth: np.int32(1)}, other)[0] != first[0])


# ---- Soft architectures.


@functools.cache
def soft(name):
    case = case_of(name)
    return jit(lambda arch: case.net.apply(case.variables, case.images, arch))


@pytest.mark.parametrize("name", ["narrow", *tiers.more("classic", "swin"), *tiers.nightly("wide")])
def test_one_hot_is_hard_and_nearly_one_hot_is_nearly_hard(name):
    """Nothing jumps where a weight becomes zero: what is annealed ends at the network that is hardened."""
    case, apply = case_of(name), soft(name)
    for arch in archs_of(name, 8)[:4]:
        expected, certain = case(arch)[0], jax.tree.map(np.asarray, case.space.soften(arch))
        assert difference(apply(certain), expected) <= 1e-5
    for decision, x in certain.items():
        near = certain | {decision: np.float32(0.99999 * x + 0.00001 / x.shape[-1])}
        assert difference(apply(near), expected) <= 1e-3, decision


def test_some_decisions_are_soft_and_some_positions_have_fewer_options():
    plain = spaces.vit((8,), (1, 2), (1, 2), (1.0, 2.0, 3.0)).to_json()
    plain["mlp_ratio"]["per_position"] = [[1.0, 2.0, 3.0], [1.0, 2.0]]
    space = jaxnas.Space.from_json(plain)
    net = supernets.ViT(space, image_size=4, patch_size=4, num_classes=CLASSES, head_dim=4)
    images = normal(2, 4, 4, 1)
    variables = jaxnas.init(net, jax.random.key(0), images)

    @jit
    def apply(hard, soft):
        mixed = hard | {name: soft[name] for name in ("num_heads", "depth")}
        return [net.apply(variables, images, arch) for arch in (hard, soft, mixed)]

    for seed in range(3):
        hard = sample(space, seed)
        expected, *others = apply(hard, space.soften(hard))
        for found in others:
            assert difference(found, expected) <= 1e-5


@pytest.mark.more
def test_soft_architectures_differentiate_twice():
    case = case_of("narrow")
    random = np.random.default_rng(0)
    arch = {
        name: np.float32(jax.nn.softmax(random.normal(size=(*choice.shape, choice.width))))
        for name, choice in case.space.decisions
    }
    step = {name: np.float32(1e-2 * random.normal(size=leaf.shape)) for name, leaf in arch.items()}

    def loss(arch):
        return jnp.sum(case.net.apply(case.variables, case.images, arch) * case.weights)

    def slope(arch):
        gradient = jax.grad(loss)(arch)
        return sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradient)), gradient

    curvature, gradient = jax.tree.map(np.asarray, jit(jax.grad(slope, has_aux=True))(arch))
    for tree in (gradient, curvature):
        for name, leaf in tree.items():
            assert leaf.shape == arch[name].shape
            assert np.all(np.isfinite(leaf)) and np.any(leaf != 0), name
    # The gradient is that of finite differences along a random direction.
    slope_along = sum(np.sum(gradient[name] * step[name]) for name in arch)
    both = [
        soft("narrow")({name: np.float32(x + sign * step[name]) for name, x in arch.items()})
        for sign in (1, -1)
    ]
    ends = [np.sum(logits * case.weights) for logits in both]
    assert abs((ends[0] - ends[1]) / 2 - slope_along) <= 2e-2 * abs(slope_along)

"""S3's supernet: the promises P1 to P7 over random architectures, published sizes, PyTorch, errors."""

import functools
import math
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import Setting, difference, flatten, jit, normal, random_params, sample, take
from small_tasks import task_of
from test_cost import lower, xla_macs

import jaxnas
from jaxnas import spaces, supernets
from jaxnas.annotations import annotations
from jaxnas.supernets.swin import relative_bias
from jaxnas.training import Fixed, Training, make_mesh
from jaxnas.training.prepare import prepare
from jaxnas.training.step import active_masks

pytestmark = pytest.mark.more  # a whole supernet

seeds = st.integers(0, 2**31 - 1)
SHAPE, CLASSES = (3, 8, 8, 1), 5
IMAGES = (1, 224, 224, 3)
TINY = (
    dict(  # a shifted block, windows as large as the map, and widths of queries apart from those of the stage
        depth=((1, 2), (1,)),
        embed_dim=((4, 6), (6, 8)),
        window=((2, 4), (2,)),
        num_heads=((1, 2), (2,)),
        mlp_ratio=((1.0, 2.0), (1.5,)),
        qkv_dim=((4, 8), (6,)),
    )
)


def swin(image_size=8, patch_size=2, num_classes=CLASSES, **changes):
    attributes = {name: changes.pop(name) for name in ("drop_path_rate", "dtype") if name in changes}
    space = changes.pop("space", None) or spaces.swin(**TINY | changes)
    return supernets.Swin(space, image_size, patch_size, num_classes, **attributes)


@functools.cache
def setting():
    net = swin(drop_path_rate=0.2)
    return Setting(net, random_params(net, SHAPE), normal(*SHAPE), normal(SHAPE[0], CLASSES), [])


@functools.cache
def specs():
    return annotations(setting().net, SHAPE).specs


# ---- The promises.


def test_a_thousand_architectures_are_one_trace():
    case = setting()
    batch = jax.tree.map(np.asarray, sample(case.space, 0, 1000))
    case(take(batch, 0))
    logits = [np.asarray(case(take(batch, i))[0]).tobytes() for i in range(1000)]
    assert len(case.traces) == 1
    # Each network is another function: no two distinct architectures give the same logits.
    distinct = np.unique(np.asarray(case.space.encode(batch)), axis=0)
    assert len(set(logits)) == len(distinct) > 200


@settings(max_examples=8)
@given(seed=seeds)
def test_zeros_behind_the_active_part(seed):
    """Of activations, block by block, and of gradients: whatever is not of the architecture."""
    case = setting()
    arch = sample(case.space, seed)
    values, (_, outputs, gradient) = case.space.to_dict(arch), case(arch)
    checked = 0
    for name, inner in outputs.items():
        if name.startswith(("stage", "merge")):
            active, output = values[f"embed_dim_{name.split('_')[1]}"], np.asarray(inner["__call__"][0])
            output = output[..., 0, :] if name.startswith("merge") else output
            assert np.any(output[..., :active]) and not np.any(output[..., active:]), name
            checked += 1
    assert checked == 4
    gradient = flatten(gradient)
    assert gradient.keys() == specs().keys()
    for path, leaf in gradient.items():
        mask = np.broadcast_to(specs()[path].mask(arch), leaf.shape)
        assert not np.any(np.where(mask, 0, leaf)), path
        assert np.any(leaf) == np.any(mask), path


@pytest.mark.hlo
@settings(max_examples=2)
@given(seed=seeds)
def test_extracted_is_the_same_function_at_its_exact_cost(seed):
    case = setting()
    arch = sample(case.space, seed)
    small, variables, _ = jaxnas.extract(case.net, case.variables, arch, inputs=SHAPE)
    params = variables["params"]
    cost = jaxnas.cost(case.net, SHAPE)(arch)
    assert cost["params"] == sum(leaf.size for leaf in jax.tree.leaves(params))
    lowered = lower(small, variables, SHAPE)
    assert xla_macs(lowered.as_text("hlo")) == SHAPE[0] * cost["macs"]
    # Nothing of the supernet is left in the program.
    assert not re.search(r"stablehlo\.(case|while|dynamic_slice|gather|scatter)", lowered.as_text())

    @jit
    def run(params):
        def loss(params):
            logits = small.apply({"params": params}, case.images)
            return jnp.sum(logits * case.weights), logits

        return jax.grad(loss, has_aux=True)(params)

    gradient, logits = run(params)
    expected_logits, _, expected = case(arch)
    assert difference(logits, expected_logits) <= 1e-5
    scale = max(np.max(np.abs(leaf)) for leaf in jax.tree.leaves(expected))
    expected = flatten(expected)
    for path, leaf in flatten(gradient).items():
        error = np.max(np.abs(leaf - specs()[path].active(expected[path], arch)), initial=0)
        assert error <= 1e-5 * scale, path


def test_a_step_changes_no_weight_that_its_architecture_does_not_use():
    """No decay and no momentum either, bit for bit; of parameters that are cut at their centre, too."""
    task, net = task_of("images"), swin(4, 1, 2)
    arch, mesh = sample(net.space, 1), make_mesh(1)
    variables = {"params": random_params(net, (1, 4, 4, 1))}
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam
        prepared = prepare(
            task, net, Training(steps=10, batch_size=8), Fixed(arch), mesh, variables=variables
        )
        state, step, batch = prepared
        for number in range(2):
            state, _ = step(state, batch(number))
    masks, before = flatten(active_masks(net, task.inputs)(arch)), flatten(variables["params"])
    assert not all(np.all(mask) for mask in masks.values())
    for path, leaf in flatten(state.params).items():
        mask = np.broadcast_to(masks[path], leaf.shape)
        np.testing.assert_array_equal(leaf[~mask], before[path][~mask])
        assert np.all(leaf[mask] != before[path][mask]) or path[-1] == "bias", path


def test_vmap_over_architectures_is_the_loop():
    case = setting()
    archs = sample(case.space, 3, 4)
    logits, _, gradients = jit(jax.vmap(case.run, (None, None, 0)))(case.params, case.images, archs)
    for i in range(4):
        expected = case(take(archs, i))
        assert difference(logits[i], expected[0]) <= 1e-4
        scale = max(np.max(np.abs(leaf)) for leaf in jax.tree.leaves(expected[2]))
        for found, leaf in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected[2]), strict=True):
            assert np.max(np.abs(found[i] - leaf)) <= 1e-4 * scale


def test_one_hot_is_hard_and_bfloat16_is_nearly_the_same():
    case = setting()
    rough = case.net.clone(dtype=jnp.bfloat16)
    apply = jit(lambda net, arch: net.apply(case.variables, case.images, arch), static_argnums=0)
    for seed in range(3):
        arch = sample(case.space, seed)
        expected = case(arch)[0]
        assert difference(apply(case.net, case.space.soften(arch)), expected) <= 1e-5
        assert 0 < difference(apply(rough, arch), expected) <= 5e-2


# ---- Published networks.


@functools.cache
def published(name):
    return supernets.Swin(spaces.s3("tiny" if name == "swin_tiny" else name), 224, 4, 1000)


@pytest.mark.parametrize(
    "name, params",
    [
        *(("tiny", 28_328_674), ("swin_tiny", 28_288_354)),
        *tiers.nightly(("small", 49_737_298), ("base", 71_125_762)),
    ],
)
def test_released_networks_are_members_of_their_exact_size(name, params):
    net = published(name)
    arch = net.space.from_dict(spaces.s3_options(name))
    assert jaxnas.cost(net, IMAGES)(arch)["params"] == params
    small = net.clone(space=net.space.fix(arch))
    images = jax.ShapeDtypeStruct(IMAGES, jnp.float32)
    variables = nn.meta.unbox(jax.eval_shape(small.init, jax.random.key(0), images))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(variables["params"])) == params


def test_small_images_and_names_that_there_are_not():
    for size, patch in ((28, 1), (32, 2)):
        space = spaces.s3_small_images(size)
        assert len(supernets.Swin(space, size, patch, 10).space) == 18
    with pytest.raises(ValueError, match="image_size is 30"):
        spaces.s3_small_images(30)
    with pytest.raises(ValueError, match="'tiny'"):
        spaces.s3("swin_tiny")
    with pytest.raises(ValueError, match="'window'"):
        spaces.swin(**TINY | {"window": ((2,),)})


# ---- Against PyTorch.


def test_forward_and_gradient_are_those_of_pytorch():
    """Three stages: shifted windows in the first two, and windows as large as the map in the third."""
    torch = pytest.importorskip("torch", reason="PyTorch, for comparison, comes with the extra `torch`")
    import torch_swin

    sizes = dict(depths=(2, 2, 2), windows=(4, 2, 2), heads=(2, 1, 3))
    space = spaces.swin(
        depth=((2,),) * 3,
        embed_dim=((6,), (8,), (10,)),
        window=((4,), (2,), (2,)),
        num_heads=((2,), (1,), (3,)),
        mlp_ratio=((2.0,), (1.5,), (1.0,)),
        qkv_dim=((8,), (8,), (6,)),
    )
    net, shape = swin(16, 2, space=space), (2, 16, 16, 3)
    params, images, weights = random_params(net, shape), normal(*shape), normal(2, CLASSES)

    @jit
    def run(params):
        def loss(params):
            logits = net.apply({"params": params}, images)
            return jnp.sum(logits * weights), logits

        return jax.grad(loss, has_aux=True)(params)

    gradient, logits = run(params)
    state = {
        name: torch.tensor(np.asarray(value, np.float64), requires_grad=True)
        for name, value in to_official(params, net).items()
    }
    pixels = torch.from_numpy(np.asarray(images, np.float64)).permute(0, 3, 1, 2)
    expected = torch_swin.forward(state, pixels, **sizes)
    (expected * torch.from_numpy(np.asarray(weights, np.float64))).sum().backward()
    assert difference(logits, expected.detach().numpy()) <= 1e-5
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


def test_the_bias_of_a_smaller_window_is_a_prefix_of_that_of_a_larger_one():
    """Made of the centre of the table, as each smaller window uses it."""
    table = normal(7, 7, 2)
    smaller = relative_bias(table[2:5, 2:5])
    np.testing.assert_array_equal(smaller, relative_bias(table)[:, :2, :2, :2, :2])
    np.testing.assert_array_equal(smaller[:, 0, 1, 1, 0], table[4, 2])  # a row down, a column to the left


# ---- Drop path.


def test_drop_path_rises_linearly_over_all_stored_blocks_and_is_for_training_only():
    net, rates = swin(depth=((1, 3), (2,)), drop_path_rate=0.4), []

    def note(call, args, kwargs, context):
        if "drop_path_rate" in kwargs:
            rates.append(kwargs["drop_path_rate"])
        return call(*args, **kwargs)

    images = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    for train in (True, False):
        with nn.intercept_methods(note):
            jax.eval_shape(functools.partial(net.init, train=train), keys, images)
    np.testing.assert_allclose(rates[:5], [0, 0.1, 0.2, 0.3, 0.4], atol=1e-12)
    assert rates[5:] == [None] * 5


# ---- Errors.


@pytest.mark.parametrize(
    "change, message",
    [
        ({"window": ((8,), (2,))}, "'window_1'"),
        ({"window": ((3,), (2,))}, "'window_1'"),
        ({"num_heads": ((1,), (2, 3)), "qkv_dim": ((4,), (6, 8))}, "'qkv_dim_2'"),
        ({"depth": ((0, 1), (1,))}, "'depth_1'"),
        ({"embed_dim": ((4,), (6.5,))}, "'embed_dim_2'"),
        ({"mlp_ratio": ((0.2, 1.0), (1.0,))}, "ratio 0"),
        ({"mlp_ratio": ((-1.0,), (1.0,))}, "'mlp_ratio_1'"),
        ({"image_size": 10}, "10 is not"),
        ({"patch_size": 0}, "patch_size is 0"),
        ({"drop_path_rate": 1.0}, "drop_path_rate is 1"),
        ({"space": spaces.digits()}, "'depth_1'"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        swin(**change)


def test_what_is_no_space_too_few_choices_and_other_images():
    with pytest.raises(TypeError, match="space is None"):
        supernets.Swin(None, 8, 2, 5)
    plain = swin().space.to_json()
    plain["window_1"].update(length=1, active=None)
    with pytest.raises(ValueError, match="'window_1'"):
        swin(space=jaxnas.Space.from_json({**plain, "window_1": {"options": [2, 4], "length": 1}}))
    case = setting()
    with pytest.raises(ValueError, match="B, 8, 8"):
        case.net.apply(case.variables, jnp.ones((3, 8, 9, 1)), case.space.largest())

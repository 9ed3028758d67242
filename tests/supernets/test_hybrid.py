"""The hybrid supernet: blocks against PyTorch, promises over random architectures, published counts."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from small_nets import difference, flatten, jit, normal, sample, take
from test_cost import lower, xla_macs

import jaxnas
from jaxnas import Choice, Space, data, runs, spaces, supernets, tasks, tensors, training
from jaxnas.annotations import annotations
from jaxnas.elastic import Decision, Mixture, fixed
from jaxnas.supernets import hybrid
from jaxnas.supernets.hybrid import Stage

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

pytestmark = pytest.mark.more  # a whole supernet

# ---- Blocks against PyTorch.

ATTENTIVE = Stage(2, squeeze_of="expanded", shortcut="pooled")
# Kind, stage, place in it, channels in and out, and what else is chosen.
BLOCKS = {
    "mbconv": ("mbconv", Stage(1), 0, 4, 4, {"squeeze": 0.5, "kernel": 5, "expansion": 3}),
    "mbconv, not expanded": ("mbconv", Stage(2), 1, 4, 4, {"expansion": 1}),
    "mbconv, other width": ("mbconv", Stage(2), 0, 4, 6, {"squeeze": 0.25}),
    "mbconv, pooled": ("mbconv", ATTENTIVE, 0, 4, 6, {"squeeze": 0.25, "expansion": 6}),
    "mbconv, pooled alone": ("mbconv", ATTENTIVE, 0, 4, 4, {}),
    "fused": ("fused_mbconv", Stage(2), 0, 4, 6, {"squeeze": 0.25, "kernel": 5}),
    "fused, not expanded": ("fused_mbconv", Stage(1), 0, 4, 4, {"expansion": 1}),
    "transformer": ("transformer", Stage(2), 1, 6, 6, {"heads": 3, "mlp_ratio": 2}),
    "transformer, downsampling": ("transformer", Stage(2, head_dim=2), 0, 4, 6, {}),
    "transformer, other width": ("transformer", Stage(1, head_dim=3), 0, 4, 6, {}),
    "nasvit": ("nasvit", Stage(1, head_dim=2, largest_map=9), 1, 6, 6, {"mlp_ratio": 1}),
    "nasvit, downsampling": ("nasvit", Stage(2, head_dim=3), 0, 4, 6, {"mlp_ratio": 2}),
}


def torch_conv_norm(p, x, stride=1, groups=1):
    """A convolution of x [B, C, H, W], normalised by the batch."""
    kernel = p["conv"]["kernel"].permute(3, 2, 0, 1)
    x = F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2, groups=groups)
    return F.batch_norm(x, None, None, p["norm"]["scale"], p["norm"]["bias"], training=True, eps=1e-5)


def torch_dense(p, x):
    return x @ p["kernel"] + p["bias"]


def torch_mbconv(p, x, kind, stage, stride):
    y = x
    if kind == "fused_mbconv":
        y = F.silu(torch_conv_norm(p["expand"], x, stride))
    else:
        if "expand" in p:
            y = F.silu(torch_conv_norm(p["expand"], x))
        y = F.silu(torch_conv_norm(p["depthwise"], y, stride, groups=y.shape[1]))
    if "squeeze" in p:
        squeezed = F.silu(torch_dense(p["squeeze"]["in"], y.mean(dim=(2, 3))))
        y = y * torch.sigmoid(torch_dense(p["squeeze"]["out"], squeezed))[:, :, None, None]
    if "project" in p:
        y = torch_conv_norm(p["project"], y)
    if stage.shortcut == "pooled":
        pooled = F.avg_pool2d(x, stride)
        if "shortcut" in p:
            pooled = F.conv2d(pooled, p["shortcut"]["kernel"].permute(3, 2, 0, 1))
        return y + pooled
    return y + x if stride == 1 and x.shape == y.shape else y


def torch_transformer(p, x, heads, stride):
    if "downsample" in p:
        x = torch_conv_norm(p["downsample"], x, stride)
    kernel = p["positions"]["kernel"].permute(3, 2, 0, 1)
    x = x + F.conv2d(x, kernel, p["positions"]["bias"], padding=1, groups=x.shape[1])
    batch, channels, rows, columns = x.shape
    x = x.flatten(2).transpose(1, 2)

    def norm(p):
        return F.layer_norm(x, (channels,), p["scale"], p["bias"])

    def split(name):  # [B, heads, T, channels of a head]
        attention, y = p["attention"], norm(p["attention_norm"])
        y = torch.einsum("bte,ehd->bhtd", y, attention[f"{name}_kernel"])
        return y + attention[f"{name}_bias"][None, :, None]

    assert p["attention"]["query_bias"].shape[0] == heads
    attended = F.scaled_dot_product_attention(*map(split, ("query", "key", "value")))
    projected = torch.einsum("bhtd,hde->bte", attended, p["attention"]["out_kernel"])
    x = x + projected + p["attention"]["out_bias"]
    x = x + torch_dense(p["mlp"]["out"], F.gelu(torch_dense(p["mlp"]["in"], norm(p["mlp_norm"]))))
    return x.transpose(1, 2).reshape(batch, channels, rows, columns)


def torch_nasvit(p, x, heads, stride):
    if "downsample" in p:
        x = torch_conv_norm(p["downsample"], x, stride)
    batch, channels, rows, columns = x.shape
    y = F.layer_norm(x.permute(0, 2, 3, 1), (channels,), *norm_of(p["attention_norm"]))
    attention = p["attention"]
    queries, keys, values = (
        torch.einsum("brce,ehd->bhdrc", y, attention[f"{name}_kernel"])
        + attention[f"{name}_bias"][None, :, :, None, None]
        for name in ("query", "key", "value")
    )
    convolution = attention["value_convolution"].permute(2, 3, 0, 1).flatten(0, 1)[:, None]
    values = F.conv2d(values.flatten(1, 2), convolution, padding=1, groups=len(convolution))
    values = values.reshape(batch, heads, -1, rows * columns)
    queries, keys = queries.flatten(3), keys.flatten(3)  # [B, heads, D, T]
    logits = torch.einsum("bhdq,bhdk->bqkh", queries, keys) / queries.shape[2] ** 0.5
    down, across = np.divmod(np.arange(rows * columns), columns)
    middle = len(attention["relative_bias"]) // 2
    offsets = [middle + place[None, :] - place[:, None] for place in (down, across)]
    logits = logits + attention["relative_bias"][offsets[0], offsets[1]]
    weights = (logits @ attention["before_kernel"] + attention["before_bias"]).softmax(dim=2)
    weights = weights @ attention["after_kernel"] + attention["after_bias"]
    attended = F.silu(torch.einsum("bqkh,bhdk->bqhd", weights, values))
    y = torch.einsum("bqhd,hde->bqe", attended, attention["out_kernel"]) + attention["out_bias"]
    x = x.flatten(2).transpose(1, 2) + y * p["attention_scale"]
    for name in ("mlp_1", "mlp_2"):
        y = F.layer_norm(x, (channels,), *norm_of(p[f"{name}_norm"]))
        y = torch_dense(p[name]["out"], F.silu(torch_dense(p[name]["in"], y)))
        x = x + y * p[f"{name}_scale"]
    return x.transpose(1, 2).reshape(batch, channels, rows, columns)


def norm_of(p):
    return p["scale"], p["bias"]


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_those_of_pytorch(name):
    """In training, output and gradients of one architecture."""
    kind, stage, place, before, after, given = BLOCKS[name]
    values = hybrid.DEFAULTS | {"before": before, "width": after, "depth": 2} | given
    chosen = {key: Decision((key, None), (value,), np.zeros((), np.int32)) for key, value in values.items()}
    if kind in hybrid.ATTENTION:
        block = hybrid.ATTENTION[kind](stage, place, train=True)
    else:
        block = hybrid.MBConv(stage, place, train=True, fused=kind == "fused_mbconv")
    x, key = normal(3, 8, 8, before), jax.random.key(0)
    variables = random_variables(jax.eval_shape(lambda x: block.init(key, x, chosen=chosen), x))
    state = {"batch_stats": variables.get("batch_stats", {})}

    def run(params, x):
        return block.apply({"params": params, **state}, x, chosen=chosen, mutable=["batch_stats"])[0]

    @jit
    def both(params, x):
        y, backward = jax.vjp(run, params, x)
        return y, *backward(jnp.cos(y))

    found = both(variables["params"], x)

    params = jax.tree.map(
        lambda leaf: torch.tensor(np.asarray(leaf), requires_grad=True), variables["params"]
    )
    images = torch.tensor(np.asarray(x), requires_grad=True)
    stride = stage.stride if place == 0 else 1
    inputs = images.permute(0, 3, 1, 2)
    if kind in hybrid.ATTENTION:
        heads = given.get("heads", after // stage.head_dim)
        reference = {"transformer": torch_transformer, "nasvit": torch_nasvit}[kind]
        expected = reference(params, inputs, heads, stride)
    else:
        expected = torch_mbconv(params, inputs, kind, stage, stride)
    expected = expected.permute(0, 2, 3, 1)
    expected.backward(torch.cos(expected).detach())
    gradients = jax.tree.map(lambda leaf: leaf.grad.numpy(), params)
    np.testing.assert_allclose(found[0], expected.detach().numpy(), atol=2e-5)
    np.testing.assert_allclose(found[2], images.grad.numpy(), atol=2e-4)

    # Gradients of NASViT's blocks are of some thousands here, and their rounding is that of a leaf's largest.
    relative = 1e-5 if kind == "nasvit" else 0.0

    def same(a, b):
        # Some gradients, as of a key's bias, are nothing but rounding.
        np.testing.assert_allclose(a, b, atol=1e-3 + relative * np.abs(b).max())

    jax.tree.map(same, found[1], gradients)


def test_the_stem_is_that_of_pytorch():
    stem = hybrid.ConvNorm(train=True, stride=2, activation=jax.nn.silu)
    x, widths = normal(3, 8, 8, 3), (fixed(3), fixed(5), fixed(3))
    variables = random_variables(jax.eval_shape(lambda: stem.init(jax.random.key(0), x, *widths)))
    found, _ = stem.apply(variables, x, *widths, mutable=["batch_stats"])
    params = jax.tree.map(lambda leaf: torch.tensor(np.asarray(leaf)), variables["params"])
    expected = F.silu(torch_conv_norm(params, torch.tensor(np.asarray(x)).permute(0, 3, 1, 2), 2))
    np.testing.assert_allclose(found, expected.permute(0, 2, 3, 1), atol=1e-5)


@pytest.mark.parametrize("size", [4, 7, 9, 14])
def test_images_are_resized_as_in_pytorch(size):
    x = normal(2, 9, 9, 3)
    expected = F.interpolate(torch.tensor(np.asarray(x)).permute(0, 3, 1, 2), size=size, mode="bilinear")
    np.testing.assert_allclose(hybrid.resize(x, size), expected.permute(0, 2, 3, 1), atol=1e-5)


@pytest.mark.parametrize("size, stride", [(6, 2), (7, 2), (7, 3), (5, 1)])
def test_maps_are_pooled_as_in_pytorch(size, stride):
    x = normal(2, size, size, 3)
    padding = -size % stride
    images = F.pad(torch.tensor(np.asarray(x)).permute(0, 3, 1, 2), (padding, 0, padding, 0))
    expected = F.avg_pool2d(images, stride).permute(0, 2, 3, 1)
    np.testing.assert_allclose(hybrid.pool(x, stride), expected, atol=1e-6)


def test_a_dropped_branch_leaves_the_input():
    """Of some examples, in training, and never in the first block of a stage."""
    values = hybrid.DEFAULTS | {"before": 4, "width": 4, "depth": 2}
    chosen = {key: Decision((key, None), (value,), np.zeros((), np.int32)) for key, value in values.items()}
    x, key, stored = normal(40, 6, 6, 4), jax.random.key(0), ["batch_stats"]

    def changed_examples(place):
        block = hybrid.MBConv(Stage(1), place, train=True, drop_path_rate=0.5)
        variables = random_variables(jax.eval_shape(lambda: block.init(key, x, chosen=chosen)))
        y, _ = block.apply(variables, x, chosen=chosen, mutable=stored, rngs={"dropout": key})
        return int(jnp.sum(jnp.any(y != x, axis=(1, 2, 3))))

    assert changed_examples(0) == 40 and 8 < changed_examples(1) < 32


# ---- The promises.

TINY = spaces.hybrid(
    [
        {
            "width": (4, 8),
            "depth": (1,),
            "block": ("mbconv", "fused_mbconv"),
            "kernel": (1, 3),
            "expansion": (1, 2),
        },
        {
            "width": (8, 12),
            "depth": (1, 2),
            "block": ("mbconv", "transformer"),
            "expansion": (1, 2),
            "squeeze": (0, 0.25),
            "heads": (1, 2),
            "mlp_ratio": (1, 2),
        },
    ],
    stem=(4,),
    head=(6, 8),
)
STAGES = {"strides": (1, 2), "stem_stride": 1, "shortcut": "pooled"}
NET = supernets.Hybrid(TINY, 5, **STAGES)
# Two blocks of NASViT's in the second stage, of 4 x 4 pixels.
TALKING = spaces.hybrid(
    [
        {"width": (4,), "depth": (1,), "block": ("mbconv",), "expansion": (2,)},
        {
            "width": (4, 8),
            "depth": (1, 2, 3),
            "first": ("mbconv",),
            "block": ("mbconv", "nasvit"),
            "expansion": (1, 2),
            "mlp_ratio": (1, 2),
        },
    ],
    stem=(4,),
    head=(6,),
)
NETS = {
    "transformer": NET,
    "nasvit": supernets.Hybrid(TALKING, 5, head_dim=2, largest_map=5, layer_scale=0.5, **STAGES),
}
BLOCKS_OF = {
    "transformer": ["stage_1_0", "stage_2_0", "stage_2_1"],
    "nasvit": ["stage_1_0", "stage_2_0", "stage_2_1", "stage_2_2"],
}
DISTINCT = {"transformer": 50, "nasvit": 25}  # at least, of 60; the second space has 84 networks
IMAGES = normal(4, 8, 8, 3)


def random_variables(shapes):
    """Random everywhere, also where the initial values are 0 or 1; variances are positive."""
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        low = 0.2 if path[-1].key == "var" else -0.4
        return rng.uniform(low, 0.8, leaf.shape).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, nn.meta.unbox(shapes))


@functools.cache
def variables_of(net=NET, shape=IMAGES.shape):
    return random_variables(
        jax.eval_shape(lambda key: jaxnas.init(net, key, jnp.zeros(shape)), jax.random.key(0))
    )


traces = []


def run(net, params, arch):
    """In training: logits, what every block returned, the gradient, and the new statistics."""
    traces.append(arch)

    def loss(params):
        variables = variables_of(net) | {"params": params}
        kept, of_blocks = ["batch_stats", "intermediates"], lambda module, _: isinstance(module, Mixture)
        y, new = net.apply(variables, IMAGES, arch, train=True, capture_intermediates=of_blocks, mutable=kept)
        return jnp.sum(jnp.sin(y)), (y, new["intermediates"], new["batch_stats"])

    gradient, (y, outputs, statistics) = jax.grad(loss, has_aux=True)(params)
    return y, outputs, gradient, statistics


trained = jit(run, static_argnums=0)


@pytest.mark.parametrize("name_of_net", NETS)
def test_one_program_in_which_only_what_an_architecture_uses_has_values_and_gradients(name_of_net):
    """P1, P2 and P6; new statistics too are only of what is used."""
    net = NETS[name_of_net]
    recorded, variables, space = annotations(net, IMAGES), variables_of(net), net.space
    batch = jax.tree.map(np.asarray, sample(space, 0, 60))
    logits = set()
    traces.clear()
    for i in range(60):
        arch = take(batch, i)
        y, outputs, gradient, statistics = trained(net, variables["params"], arch)
        logits.add(np.asarray(y).tobytes())
        if i >= 12:
            continue
        assert np.all(np.isfinite(y))
        arch = jax.tree.map(jnp.asarray, arch)
        for path, leaf in flatten(gradient).items():
            active = np.broadcast_to(recorded.specs[path].mask(arch), leaf.shape)
            assert not np.any(leaf[~active]), path
            assert np.any(leaf[active]) or not active.any() or path[-1].endswith("bias"), path
        for path, leaf in flatten(statistics).items():
            active = np.broadcast_to(recorded.state["batch_stats", *path].mask(arch), leaf.shape)
            old = flatten(variables["batch_stats"])[path]
            np.testing.assert_array_equal(leaf[~active], old[~active])
            assert not active.any() or not np.array_equal(leaf[active], old[active])
        values = space.to_dict({name: np.asarray(x) for name, x in arch.items()})
        assert list(outputs) == BLOCKS_OF[name_of_net]
        for name, out in outputs.items():
            channels = values[f"width_{name[6]}"]
            assert not np.any(out["__call__"][0][..., channels:]), name
            assert np.any(out["__call__"][0][..., :channels]), name
    distinct = {tuple(row) for row in np.asarray(space.encode(batch)).tolist()}
    assert len(traces) == 1 and len(logits) == len(distinct) > DISTINCT[name_of_net]


@pytest.mark.hlo
@pytest.mark.parametrize(
    "name, seed",
    [
        ("transformer", 0),
        ("nasvit", 0),
        *tiers.nightly(("transformer", 3), ("transformer", 5), ("nasvit", 1)),
    ],
)
def test_extracted_is_the_same_function_with_exact_costs(name, seed):
    """P3 and P7, with the statistics of the architecture."""
    net = NETS[name]
    arch = sample(net.space, seed)
    calibrated = jit(lambda arch: jaxnas.calibrate(net, variables_of(net), arch, IMAGES[None]))(arch)
    small, cut, error = jaxnas.extract(net, calibrated, arch, verify=IMAGES)
    assert error <= 1e-5
    cost = jaxnas.cost(net, IMAGES)(arch)
    assert cost["params"] == sum(leaf.size for leaf in jax.tree.leaves(cut["params"]))
    assert cost["macs"] == xla_macs(lower(small, cut, IMAGES[:1]).as_text("hlo"))


@pytest.mark.parametrize("name", ["transformer", *tiers.nightly("nasvit")])
def test_vmap_over_architectures_is_the_loop(name):
    """P5, of logits and gradient."""
    net = NETS[name]
    archs, params = sample(net.space, 1, 4), variables_of(net)["params"]
    many = jit(jax.vmap(lambda arch: run(net, params, arch)[::2]))(archs)
    for i in range(4):
        one = trained(net, params, take(archs, i))[::2]
        assert difference(take(many, i)[0], one[0]) <= 1e-4
        largest = max(np.max(np.abs(leaf)) for leaf in jax.tree.leaves(one[1]))
        for a, b in zip(jax.tree.leaves(take(many, i)[1]), jax.tree.leaves(one[1]), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4 * largest)


@pytest.mark.parametrize("name", NETS)
def test_soft_architectures_of_one_option_each_are_the_hard_ones(name):
    net = NETS[name]
    arch, variables = sample(net.space, 2), variables_of(net)
    apply = jit(lambda arch: net.apply(variables, IMAGES, arch))
    assert difference(apply(net.space.soften(arch)), apply(arch)) <= 1e-4


# ---- Kinds of blocks, and resolutions.


def test_the_small_space_has_networks_of_one_kind_of_block():
    """Restricted, it is part of the same supernet, without parameters of the other kind."""
    space = spaces.hybrid_small()
    kinds = {
        "transformer": dict.fromkeys(("block_1", "block_2", "block_3"), "transformer"),
        "mbconv": {"block_1": "fused_mbconv", "block_2": "mbconv", "block_3": "mbconv"},
    }
    whole = shapes_of(supernets.Hybrid(space, 10, **hybrid.SMALL), (1, 28, 28, 1))
    for kind, blocks in kinds.items():
        net = supernets.Hybrid(space.restrict(**blocks), 10, **hybrid.SMALL)
        part = shapes_of(net, (1, 28, 28, 1))
        assert part.items() < whole.items()
        attends = ["attention" in path for path in part]
        assert any(attends) == (kind == "transformer")
        assert any("depthwise" in path for path in part) == (kind == "mbconv")
        jaxnas.cost(net, (1, 28, 28, 1))(net.space.largest())


def shapes_of(net, shape):
    variables = jax.eval_shape(lambda: jaxnas.init(net, jax.random.key(0), jnp.zeros(shape)))
    return {path: leaf.shape for path, leaf in tensors.flatten(variables["params"]).items()}


@functools.cache
def at_resolutions():
    blocks = {"width_1": Choice(4), "depth_1": Choice(1), "block_1": Choice("fused_mbconv")}
    space = Space(resolution=Choice(8, 12), width_stem=Choice(4), width_head=Choice(4, 6), **blocks)
    return supernets.Hybrid(space, 5, (2,))


def test_a_resolution_is_chosen_within_one_program():
    net, images = at_resolutions(), normal(2, 12, 12, 3)
    variables = variables_of(net, images.shape)
    space = Space(**{name: net.space[name] for name in net.space if name != "resolution"})
    body, apply = net.clone(space=space), jit(net.apply)
    cost = jaxnas.cost(net, images)
    of_body = {name: tree["body"] for name, tree in variables.items()}
    only = {name: jnp.int32(0) for name in space} | {"width_head": jnp.int32(1)}
    for index, size in enumerate((8, 12)):
        arch = only | {"resolution": jnp.int32(index)}
        given = hybrid.resize(images, size)
        expected = body.apply(of_body, given, only)
        assert difference(apply(variables, images, arch), expected) <= 1e-5
        costs = jaxnas.cost(body, given)(only)
        assert cost(arch) == costs
        assert jaxnas.extract(net, variables, arch, verify=images).error <= 1e-5
    assert apply._cache_size() == 1
    assert apply(variables, normal(2, 16, 16, 3), arch).shape == (2, 5)  # brought to the resolution too


# ---- Batch statistics.


def noise():
    """A task of random images."""
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 255, (96, 8, 8, 3)).astype(np.uint8), np.arange(96) % 5
    return tasks.Images(data=data.from_arrays(images, labels, images, labels), evaluation_batch_size=48)


def test_evaluation_makes_batch_statistics_and_asks_for_none():
    """Whatever statistics are stored, a score is that of the architecture's own."""
    net, task = NET.clone(space=TINY.fix(sample(TINY, 0))), noise()
    variables = variables_of(net)
    other = variables | {"batch_stats": jax.tree.map(lambda x: 7 + x, variables["batch_stats"])}
    evaluate = training.make_evaluator(task, net, "test", limit=1)
    first, second = (evaluate(x, net.space.smallest()) for x in (variables, other))
    assert first.keys() == second.keys() and difference(first, second) <= 1e-4
    logits = [jit(net.apply)(x, IMAGES) for x in (variables, other)]
    assert difference(*logits) > 1e-2


def test_a_finished_network_is_saved_with_batch_statistics_of_its_own(tmp_path):
    """And loads again, with which it predicts what it was measured with."""
    net, task = NET.clone(space=TINY.fix(sample(TINY, 0))), noise()
    variables = variables_of(net)
    found = runs.Found(net.space.smallest())
    result = runs.finish(task, net, variables, found, tmp_path)
    again, loaded = jaxnas.load_subnet(tmp_path / "subnet")
    assert again == net
    expected = training.calibrated(task, net, variables)
    assert difference(loaded, jax.tree.map(np.asarray, expected)) <= 1e-5
    batch = {name: x[0] for name, x in task.evaluation("test", 96).items()}
    loss, _ = task.loss(again, loaded, None, batch, (), None, False)
    np.testing.assert_allclose(loss, result.found.metrics["test"]["loss"], rtol=1e-3)


# ---- Published networks.


def alone(net, arch):
    return net.clone(space=net.space.fix(arch))


EFFICIENTNETV2 = supernets.Hybrid(spaces.efficientnetv2(), 1000, **hybrid.EFFICIENTNETV2)
ALPHANET = supernets.Hybrid(spaces.alphanet(), 1000, **hybrid.ALPHANET)
# Trainable parameters, of torchvision and timm, and multiply-accumulates at 384 and 224 pixels.
PUBLISHED = {"s": (21_458_488, 384, 8.37), "b0": (7_139_704, 224, 0.72)}
# Multiply-accumulates in millions; 596 are published for "a5_base".
ALPHANETS = {
    "a0": 203,
    "a1": 279,
    "a2": 317,
    "a3": 357,
    "a4": 444,
    "a5_small": 491,
    "a5_base": 595,
    "a6": 709,
}

# Widths of the stem and of the stages, and depths.
EFFICIENTNETS = {
    "b0": ((32, 16, 32, 48, 96, 112, 192), (1, 2, 2, 3, 5, 8)),
    "s": ((24, 24, 48, 64, 128, 160, 256), (2, 4, 4, 6, 9, 15)),
}
# Resolution, width of the head, and of each stage width, depth, kernel size and expansion.
ALPHANETS_OF_STAGES = {
    "a0": (192, 1792, (16, 24, 32, 64, 112, 192, 216), (1, 3, 3, 3, 3, 3, 1), "3333333", "1444466"),
    "a1": (224, 1984, (16, 24, 32, 64, 112, 192, 216), (1, 3, 3, 3, 3, 3, 1), "3335353", "1444466"),
    "a2": (224, 1984, (16, 24, 32, 64, 112, 200, 224), (1, 3, 3, 3, 3, 4, 1), "3333353", "1454466"),
    "a3": (224, 1984, (16, 24, 32, 64, 112, 208, 224), (2, 3, 3, 4, 3, 5, 1), "3335333", "1444466"),
    "a4": (256, 1984, (16, 24, 32, 64, 112, 192, 216), (1, 3, 3, 4, 3, 5, 1), "3335353", "1445466"),
    "a5_small": (256, 1984, (16, 24, 32, 64, 112, 208, 216), (1, 3, 3, 4, 4, 5, 1), "3333353", "1445466"),
    "a5_base": (288, 1984, (16, 24, 32, 64, 112, 200, 216), (2, 3, 4, 3, 3, 5, 1), "3355333", "1444566"),
    "a6": (288, 1984, (16, 24, 32, 64, 112, 216, 224), (1, 3, 3, 4, 4, 6, 1), "3333353", "1465466"),
}


def efficientnetv2(name):
    """EfficientNetV2-B0 or -S as an architecture of `spaces.efficientnetv2()`."""
    widths, depths = EFFICIENTNETS[name]
    values = {"width_stem": widths[0], "width_head": 1280}
    for i, (channels, depth) in enumerate(zip(widths[1:], depths, strict=True), 1):
        expansion = (1, 4, 4, 4, 6, 6)[i - 1]
        of_blocks = {"block": "fused_mbconv" if i <= 3 else "mbconv", "kernel": 3, "expansion": expansion}
        of_blocks |= {"squeeze": 0.25} if i > 3 else {}
        values |= {f"width_{i}": channels, f"depth_{i}": depth}
        values |= {f"{key}_{i}": [value] * depth for key, value in of_blocks.items()}
    space = EFFICIENTNETV2.space
    return space.from_dict({name: value for name, value in values.items() if name in space})


def alphanet(name):
    """AlphaNet-A0 to -A6 as an architecture of `spaces.alphanet()`."""
    resolution, head, *stages = ALPHANETS_OF_STAGES[name]
    values, space = {"resolution": resolution, "width_stem": 16, "width_head": head}, ALPHANET.space
    for i, (channels, depth, kernel, expansion) in enumerate(zip(*stages, strict=True), 1):
        values |= {f"width_{i}": channels, f"depth_{i}": depth, f"block_{i}": "mbconv"}
        values |= {f"kernel_{i}": int(kernel), f"expansion_{i}": int(expansion)}
        values |= {f"squeeze_{i}": space[f"squeeze_{i}"].options[0]}
    return space.from_dict(values)


def slow_but(first, names):
    return tiers.cases(names, (first,))


@pytest.mark.parametrize("name", slow_but("b0", PUBLISHED))
def test_published_efficientnets_have_their_counts(name):
    params, size, macs = PUBLISHED[name]
    arch = efficientnetv2(name)
    net = alone(EFFICIENTNETV2, arch)
    shapes = shapes_of(net, (1, size, size, 3))
    assert sum(map(np.prod, shapes.values())) == params
    cost = jaxnas.cost(net, (1, size, size, 3))(net.space.smallest())
    assert cost["params"] == params and round(cost["macs"] / 1e9, 2) == macs


@pytest.mark.parametrize("name", ["a0", "a6", *tiers.nightly(*sorted(set(ALPHANETS) - {"a0", "a6"}))])
def test_published_alphanets_have_their_products(name):
    arch = alphanet(name)
    net = alone(ALPHANET, arch)
    cost = jaxnas.cost(net, (1, 288, 288, 3))(net.space.smallest())
    assert round(cost["macs"] / 1e6) == ALPHANETS[name]


def test_the_cost_of_a_member_is_that_of_the_network_alone():
    cost = jaxnas.cost(EFFICIENTNETV2, (1, 224, 224, 3))
    for name, (params, _, _) in PUBLISHED.items():
        assert cost(efficientnetv2(name))["params"] == params


def test_nasvit_spans_its_published_range():
    """From 208 to 757 million products, of A0 and A5; the smallest network has 190 million."""
    net = supernets.Hybrid(spaces.nasvit(), 1000, **hybrid.NASVIT)
    cost = jaxnas.cost(net, (1, 288, 288, 3))
    smallest, largest = (cost(arch)["macs"] for arch in (net.space.smallest(), net.space.largest()))
    assert 180e6 < smallest < 208e6 and largest > 757e6


# ---- What is refused.


def changed(drop=(), given=None, **choices):
    left = {name: TINY[name] for name in TINY if name not in drop}
    return supernets.Hybrid(Space(**left | choices), 5, **STAGES | (given or {}))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: changed(heads_2=Choice(1, 3).repeat(2)), "'width_2'"),
        (lambda: changed(["heads_2"], {"head_dim": 5}), "heads of 5"),
        (
            lambda: changed(
                ["expansion_2", "squeeze_2", "mlp_ratio_2"], block_2=Choice("transformer", "nasvit")
            ),
            "'heads_2'",
        ),
        (lambda: changed(given={"odd_maps": "cut"}), "'cut'"),
        (lambda: jaxnas.init(NETS["nasvit"].clone(largest_map=3), jax.random.key(0), IMAGES), "4 is larger"),
        (lambda: changed(depth_1=Choice(0, 1)), "A stage has at least one"),
        (lambda: changed(resolution=Choice(8, 9)), "9 is not"),
        (lambda: NET.apply({}, jnp.zeros((1, 7, 7, 3)), TINY.smallest()), "7 is not"),
        (lambda: NET.apply({}, jnp.zeros((1, 8, 6, 3)), TINY.smallest()), r"square .* \(1, 8, 6, 3\)"),
        (
            lambda: at_resolutions().apply({}, jnp.zeros((1, 12, 8, 3)), at_resolutions().space.smallest()),
            r"square .* \(1, 12, 8, 3\)",
        ),
        (lambda: changed(drop=["width_2"]), r"missing: \['width_2'\]"),
        (lambda: changed(kernal_1=Choice(3)), "'kernal_1'"),
        (lambda: changed(width_3=Choice(3)), "'width_3'"),
        (lambda: changed(block_1=Choice("mbconv", "conv"), drop=["kernel_1", "expansion_1"]), "{'conv'}"),
        (lambda: changed(kernel_2=Choice(3, 5).repeat(1)), "'kernel_2'"),
        (lambda: changed(expansion_1=Choice(0, 2)), "'expansion_1'"),
        (lambda: changed(given={"shortcut": "pool"}), "'pool'"),
        (lambda: changed(given={"strides": (1, 0)}), "the stride of stage 2 is 0"),
        (lambda: supernets.Hybrid(TINY, 0, **STAGES), "num_classes is 0"),
        (lambda: changed(given={"drop_path_rate": 1.0}), "drop_path_rate 1.0"),
        (
            lambda: spaces.hybrid(
                [{"width": (4,), "depth": (1,), "block": ("mbconv",), "heads": (2,)}], (4,), (4,)
            ),
            "'heads'",
        ),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_what_is_no_space_or_no_stage_is_refused():
    with pytest.raises(TypeError, match="hybrid_small"):
        supernets.Hybrid({"depth": 3}, 5, **STAGES)
    with pytest.raises(TypeError, match="strides is 2"):
        supernets.Hybrid(TINY, 5, 2)

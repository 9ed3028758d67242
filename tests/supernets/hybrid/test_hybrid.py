"""The hybrid supernet: blocks against PyTorch, resolutions, batch statistics, published counts."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from promises import positive_variables
from small_nets import difference, jit, normal

import jaxnas
from jaxnas import Choice, Space, data, runs, spaces, supernets, tasks, tensors, training
from jaxnas.elastic.width import Decision, fixed
from jaxnas.network import annotated
from jaxnas.runs.searching import Found
from jaxnas.supernets import hybrid
from jaxnas.supernets.hybrid import blocks
from jaxnas.supernets.hybrid.blocks import Stage
from jaxnas.supernets.hybrid.network import DEFAULTS, resize

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

torch.set_num_threads(1)  # threads that wait for small tensors cost more than they give
pytestmark = pytest.mark.more  # a whole supernet


def torch_norm(p, x):
    return F.layer_norm(x, x.shape[-1:], p["scale"], p["bias"])


ATTENTIVE = Stage(2, squeeze_of="expanded", shortcut="pooled")
# Kind, stage, place in it, channels in and out, and what else is chosen.
BLOCKS = {
    "mbconv": ("mbconv", Stage(1), 0, 4, 4, {"squeeze": 0.5, "kernel": 5, "expansion": 3}),
    "mbconv, pooled to another width": ("mbconv", ATTENTIVE, 0, 4, 6, {"squeeze": 0.25, "expansion": 6}),
    "mbconv, not expanded, pooled": ("mbconv", ATTENTIVE, 0, 4, 4, {"expansion": 1}),
    "fused, other width": ("fused_mbconv", Stage(2), 0, 4, 6, {"squeeze": 0.25, "kernel": 5}),
    "fused, not expanded": ("fused_mbconv", Stage(2), 1, 4, 4, {"expansion": 1}),
    "transformer, downsampling": ("transformer", Stage(2, head_dim=2), 0, 4, 6, {}),
    "transformer, other width": ("transformer", Stage(1), 0, 4, 6, {"heads": 3, "mlp_ratio": 2}),
    "nasvit": ("nasvit", Stage(1, head_dim=2, largest_map=9), 1, 6, 6, {"mlp_ratio": 1}),
    "nasvit, downsampling": ("nasvit", Stage(2, head_dim=3), 0, 4, 6, {"mlp_ratio": 2}),
}


def to_torch(tree, gradient=False):
    return jax.tree.map(lambda leaf: torch.tensor(np.asarray(leaf), requires_grad=gradient), tree)


def chosen_of(before, after, **given):
    values = DEFAULTS | {"before": before, "width": after, "depth": 2} | given
    return {key: Decision((key, None), (value,), np.zeros((), np.int32)) for key, value in values.items()}


def torch_conv_norm(p, x, stride=1, groups=1):
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


def torch_transformer(p, x, heads):
    kernel = p["positions"]["kernel"].permute(3, 2, 0, 1)
    x = x + F.conv2d(x, kernel, p["positions"]["bias"], padding=1, groups=x.shape[1])
    batch, channels, rows, columns = x.shape
    x = x.flatten(2).transpose(1, 2)

    def split(name):  # [B, heads, T, channels of a head]
        attention, y = p["attention"], torch_norm(p["attention_norm"], x)
        y = torch.einsum("bte,ehd->bhtd", y, attention[f"{name}_kernel"])
        return y + attention[f"{name}_bias"][None, :, None]

    assert p["attention"]["query_bias"].shape[0] == heads
    attended = F.scaled_dot_product_attention(*map(split, ("query", "key", "value")))
    projected = torch.einsum("bhtd,hde->bte", attended, p["attention"]["out_kernel"])
    x = x + projected + p["attention"]["out_bias"]
    x = x + torch_dense(p["mlp"]["out"], F.gelu(torch_dense(p["mlp"]["in"], torch_norm(p["mlp_norm"], x))))
    return x.transpose(1, 2).reshape(batch, channels, rows, columns)


def torch_nasvit(p, x, heads):
    batch, channels, rows, columns = x.shape
    y = torch_norm(p["attention_norm"], x.permute(0, 2, 3, 1))
    attention = p["attention"]

    def project(name):
        bias = attention[f"{name}_bias"][None, :, :, None, None]
        return torch.einsum("brce,ehd->bhdrc", y, attention[f"{name}_kernel"]) + bias

    queries, keys, values = map(project, ("query", "key", "value"))
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
        y = torch_norm(p[f"{name}_norm"], x)
        y = torch_dense(p[name]["out"], F.silu(torch_dense(p[name]["in"], y)))
        x = x + y * p[f"{name}_scale"]
    return x.transpose(1, 2).reshape(batch, channels, rows, columns)


@pytest.mark.parametrize("name", [*list(BLOCKS)[:-1], *tiers.nightly("nasvit, downsampling")])
def test_blocks_are_those_of_pytorch(name):
    """In training, output and gradients of one architecture."""
    kind, stage, place, before, after, given = BLOCKS[name]
    make = blocks.ATTENTION.get(kind) or functools.partial(blocks.MBConv, fused=kind == "fused_mbconv")
    block = make(stage, place, train=True)
    x, chosen = normal(3, 8, 8, before), chosen_of(before, after, **given)
    variables = positive_variables(block, x, chosen=chosen)

    @jit
    def both(params, x):
        def run(params, x):
            given = variables | {"params": params}
            return block.apply(given, x, chosen=chosen, mutable=["batch_stats"])[0]

        y, backward = jax.vjp(run, params, x)
        return y, *backward(jnp.cos(y))

    y, of_params, of_images = both(variables["params"], x)
    params, images = to_torch((variables["params"], x), gradient=True)
    stride, inputs = stage.stride if place == 0 else 1, images.permute(0, 3, 1, 2)
    if kind in blocks.ATTENTION:
        if "downsample" in params:
            inputs = torch_conv_norm(params["downsample"], inputs, stride)
        reference = {"transformer": torch_transformer, "nasvit": torch_nasvit}[kind]
        expected = reference(params, inputs, given.get("heads", after // stage.head_dim))
    else:
        expected = torch_mbconv(params, inputs, kind, stage, stride)
    expected = expected.permute(0, 2, 3, 1)
    expected.backward(torch.cos(expected).detach())
    np.testing.assert_allclose(y, expected.detach().numpy(), atol=2e-5)
    np.testing.assert_allclose(of_images, images.grad.numpy(), atol=2e-4)
    # Gradients of NASViT's blocks are of some thousands here, and their rounding is that of a leaf's largest.
    relative = 1e-5 if kind == "nasvit" else 0.0

    def same(a, b):
        # Some gradients, as of a key's bias, are nothing but rounding.
        np.testing.assert_allclose(a, b, atol=1e-3 + relative * np.abs(b).max())

    jax.tree.map(same, of_params, jax.tree.map(lambda leaf: leaf.grad.numpy(), params))


def test_the_stem_resizing_and_pooling_are_those_of_pytorch():
    stem = blocks.ConvNorm(train=True, stride=2, activation=jax.nn.silu)
    widths, sizes, pools = (fixed(3), fixed(5), fixed(3)), (4, 7, 9, 14), ((9, 2), (9, 3), (8, 2), (9, 1))
    x = normal(3, 9, 9, 3)
    even = x[:, :8, :8]
    variables = positive_variables(stem, even, *widths)

    @jit
    def run(x, even):
        y, _ = stem.apply(variables, even, *widths, mutable=["batch_stats"])
        resized = [resize(x, size) for size in sizes]
        return [y, *resized, *(blocks.pool(x[:, :size, :size], stride) for size, stride in pools)]

    images, params = to_torch(x).permute(0, 3, 1, 2), to_torch(variables["params"])
    expected = [F.silu(torch_conv_norm(params, images[..., :8, :8], 2))]
    expected += [F.interpolate(images, size=size, mode="bilinear") for size in sizes]
    for size, stride in pools:
        missing = -size % stride
        expected.append(F.avg_pool2d(F.pad(images[..., :size, :size], (missing, 0, missing, 0)), stride))
    for found, value in zip(run(x, even), expected, strict=True):
        np.testing.assert_allclose(found, value.permute(0, 2, 3, 1), atol=1e-5)


def test_a_dropped_branch_leaves_the_input():
    """Of some examples, in training, and never in the first block of a stage."""
    chosen, x = chosen_of(4, 4), normal(40, 6, 6, 4)
    pair = [blocks.MBConv(Stage(1), place, train=True, drop_path_rate=0.5) for place in (0, 1)]
    variables = positive_variables(pair[0], x, chosen=chosen)

    @jit
    def changed(x, key):
        given = dict(chosen=chosen, mutable=["batch_stats"], rngs={"dropout": key})
        outputs = [block.apply(variables, x, **given)[0] for block in pair]
        return [jnp.sum(jnp.any(y != x, axis=(1, 2, 3))) for y in outputs]

    first, second = changed(x, jax.random.key(0))
    assert first == 40 and 8 < second < 32


def shapes_of(net, shape):
    variables = nn.meta.unbox(annotated(net, shape).variables)
    return {path: leaf.shape for path, leaf in tensors.flatten(variables["params"]).items()}


def test_a_resolution_is_chosen_within_one_program():
    blocks = {"width_1": Choice(4), "depth_1": Choice(1), "block_1": Choice("fused_mbconv")}
    space = Space(resolution=Choice(8, 12), width_stem=Choice(4), width_head=Choice(4, 6), **blocks)
    net, images = supernets.Hybrid(space, 5, (2,)), normal(2, 12, 12, 3)
    variables = positive_variables(net, images)
    space = Space(**{name: net.space[name] for name in net.space if name != "resolution"})
    body, apply = net.clone(space=space), jit(net.apply)
    of_body = {name: tree["body"] for name, tree in variables.items()}
    only = {name: np.int32(0) for name in space} | {"width_head": np.int32(1)}
    run_body = jit(lambda given: [body.apply(of_body, x, only) for x in given])
    given = [resize(images, size) for size in (8, 12)]
    for index, expected in enumerate(run_body(given)):
        arch = only | {"resolution": np.int32(index)}
        assert difference(apply(variables, images, arch), expected) <= 1e-5
        assert jaxnas.cost(net, images)(arch) == jaxnas.cost(body, given[index])(only)
        small, cut, _ = jaxnas.extract(net, variables, arch, inputs=images)
        assert difference(jit(small.apply)(cut, images), expected) <= 1e-5
    assert apply._cache_size() == 1
    assert jax.eval_shape(net.apply, variables, normal(2, 16, 16, 3), arch).shape == (2, 5)  # resized, too


def test_batch_statistics_are_made_by_evaluation_and_saved_with_a_finished_network(tmp_path):
    """Whatever statistics are stored, a score is that of the network's own, and a loaded one predicts so."""
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 255, (96, 8, 8, 3)).astype(np.uint8), np.arange(96) % 5
    task = tasks.Images(data=data.from_arrays(images, labels, images, labels), evaluation_batch_size=48)
    widths = dict.fromkeys(("width_stem", "width_1", "width_head"), Choice(4))
    net = supernets.Hybrid(Space(depth_1=Choice(1), block_1=Choice("mbconv"), **widths), 5, (2,))
    arch, variables = net.space.smallest(), positive_variables(net, images[:1].astype(np.float32))
    other = variables | {"batch_stats": jax.tree.map(lambda x: 7 + x, variables["batch_stats"])}
    result = runs.finish(task, net, variables, Found(arch), runs.Lab(tmp_path))
    measured = result.found.metrics["test"]
    assert difference(training.make_evaluator(task, net, "test")(other, arch), measured) <= 1e-4
    again, loaded = jaxnas.load_subnet(tmp_path / "subnet")
    assert again == net
    batch = {name: x[0] for name, x in task.evaluation("test", 96).items()}
    loss = jit(lambda variables: task.loss(tasks.Call(again, variables, None, batch))[0])
    losses = [loss(x) for x in (loaded, variables, other)]
    np.testing.assert_allclose(losses[0], measured["loss"], rtol=1e-3)
    assert np.min(np.abs(np.diff(losses))) > 5e-3  # stored statistics are used where none are made


EFFICIENTNETV2 = supernets.Hybrid(spaces.efficientnetv2(), 1000, **hybrid.EFFICIENTNETV2)
ALPHANET = supernets.Hybrid(spaces.alphanet(), 1000, **hybrid.ALPHANET)
# Widths of the stem and of the stages, and depths; the trainable parameters, of torchvision and timm; and
# billions of multiply-accumulates at a number of pixels.
EFFICIENTNETS = {
    "b0": ((32, 16, 32, 48, 96, 112, 192), (1, 2, 2, 3, 5, 8), 7_139_704, 224, 0.72),
    "s": ((24, 24, 48, 64, 128, 160, 256), (2, 4, 4, 6, 9, 15), 21_458_488, 384, 8.37),
}
# Millions of multiply-accumulates, resolution, width of the head, and of
# each stage width, depth, kernel size and expansion.
ALPHANETS = {
    "a0": (203, 192, 1792, (16, 24, 32, 64, 112, 192, 216), "1333331", "3333333", "1444466"),
    "a6": (709, 288, 1984, (16, 24, 32, 64, 112, 216, 224), "1334461", "3333353", "1465466"),
}


def efficientnetv2(name):
    widths, depths, *_ = EFFICIENTNETS[name]
    values, space = {"width_stem": widths[0], "width_head": 1280}, EFFICIENTNETV2.space
    for i, stage in enumerate(zip(widths[1:], depths, (1, 4, 4, 4, 6, 6), strict=True), 1):
        channels, depth, expansion = stage
        of_blocks = {"block": "fused_mbconv" if i <= 3 else "mbconv", "kernel": 3, "expansion": expansion}
        of_blocks |= {"squeeze": 0.25} if i > 3 else {}
        values |= {f"width_{i}": channels, f"depth_{i}": depth}
        values |= {f"{key}_{i}": [value] * depth for key, value in of_blocks.items()}
    return space.from_dict({name: value for name, value in values.items() if name in space})


def alphanet(name):
    _, resolution, head, *stages = ALPHANETS[name]
    values, space = {"resolution": resolution, "width_stem": 16, "width_head": head}, ALPHANET.space
    for i, (width, *others) in enumerate(zip(*stages, strict=True), 1):
        stage = dict(zip(("depth", "kernel", "expansion"), map(int, others), strict=True))
        stage |= {"width": width, "block": "mbconv", "squeeze": space[f"squeeze_{i}"].options[0]}
        values |= {f"{key}_{i}": value for key, value in stage.items()}
    return space.from_dict(values)


def cost_alone(net, arch, size):
    small = net.clone(space=net.space.fix(arch))
    cost = jaxnas.cost(small, (1, size, size, 3))(small.space.smallest())
    assert cost["params"] == sum(map(np.prod, shapes_of(small, (1, size, size, 3)).values()))
    return cost


def test_published_efficientnets_have_their_counts():
    """Alone, and as members of the space, in which a network costs what it costs alone."""
    cost = jaxnas.cost(EFFICIENTNETV2, (1, 224, 224, 3))
    for name, (*_, params, size, macs) in EFFICIENTNETS.items():
        arch = efficientnetv2(name)
        alone = cost_alone(EFFICIENTNETV2, arch, size)
        assert alone["params"] == cost(arch)["params"] == params and round(alone["macs"] / 1e9, 2) == macs


def test_published_alphanets_have_their_products_and_nasvit_spans_its_range():
    """NASViT's from 208 to 757 million products, of A0 and A5; the smallest network has 190 million."""
    for name, (macs, *_) in ALPHANETS.items():
        assert round(cost_alone(ALPHANET, alphanet(name), 288)["macs"] / 1e6) == macs
    net = supernets.Hybrid(spaces.nasvit(), 1000, **hybrid.NASVIT)
    ends = (net.space.smallest(), net.space.largest())
    smallest, largest = (cost_alone(net, arch, 288)["macs"] for arch in ends)
    assert 180e6 < smallest < 208e6 and largest > 757e6

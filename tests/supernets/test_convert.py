"""Against PyTorch: the converter of AutoFormer checkpoints, and the network and its gradient."""

import pathlib
import re
import subprocess
import sys

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import tiers

from jaxnas import spaces
from jaxnas.annotations import annotations
from jaxnas.cost import cost
from jaxnas.elastic import stack_layers
from jaxnas.report import result
from jaxnas.subnet import extract
from jaxnas.supernets.convert import from_torch_autoformer, read_checkpoint
from jaxnas.supernets.vit import ViT
from jaxnas.testing import check_network

torch = pytest.importorskip("torch", reason="PyTorch, for comparison, comes with the extra `torch`")

import torch_reference  # noqa: E402

from experiments.benchmarks import torch_vit  # noqa: E402

SPACE = spaces.vit(embed_dim=(24, 40, 56), depth=(1, 2, 3), num_heads=(1, 2, 3), mlp_ratio=(1.5, 2.0))
ARCHS = {
    "middle": dict(embed_dim=40, depth=2, num_heads=[1, 2], mlp_ratio=[1.5, 2.0]),
    "largest": dict(embed_dim=56, depth=3, num_heads=[3, 3, 3], mlp_ratio=[2.0, 2.0, 2.0]),
    "smallest": dict(embed_dim=24, depth=1, num_heads=[1], mlp_ratio=[1.5]),
    "mixed": dict(embed_dim=40, depth=3, num_heads=[3, 1, 2], mlp_ratio=[2.0, 1.5, 1.5]),
}


def network(space=SPACE, **kwargs):
    default = dict(image_size=32, patch_size=8, num_classes=7, head_dim=16)
    return ViT(space, **default | kwargs)


def checkpoint(net, seed=0, **kwargs):
    """Stores more than the space can choose, as the official ones do: width 64, depth 4."""
    stored = dict(embed=64, heads=4, hidden=128, depth=4)
    same = ("head_dim", "image_size", "patch_size", "num_classes", "max_relative_position")
    stored |= {name: getattr(net, name) for name in same}
    return torch_reference.random_state_dict(seed, **stored | kwargs)


def random_images(net, seed=0, channels=3):
    shape = (3, net.image_size, net.image_size, channels)
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def random_params(net, shape):
    """Maximal parameters that are nowhere zero, so that everything counts."""
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda like: jnp.asarray(0.3 * random.normal(size=like.shape).astype(np.float32)),
        nn.meta.unbox(annotations(net, shape).variables["params"]),
    )


def to_torch(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2)


def relative_error(ours, expected):
    expected = np.asarray(expected, np.float64)
    return np.max(np.abs(np.asarray(ours, np.float64) - expected)) / np.max(np.abs(expected))


def plain_torch(net, small_params, values):
    """The plain PyTorch network of the same sizes and weights, in float64."""
    hidden = [int(values["embed_dim"] * ratio) for ratio in values["mlp_ratio"]]
    model = torch_vit.PlainViT(
        image_size=net.image_size,
        patch_size=net.patch_size,
        num_classes=net.num_classes,
        embed=values["embed_dim"],
        heads=values["num_heads"],
        hidden=hidden,
        head_dim=net.head_dim,
        max_relative_position=net.max_relative_position,
    ).double()
    torch_reference.copy_extracted(model, flax.traverse_util.flatten_dict(small_params, sep="/"))
    return model


@pytest.mark.parametrize("values", ARCHS.values(), ids=ARCHS)
def test_converted_network_is_the_official_one(values):
    """And the plain PyTorch network with its weights too: what the benchmark compares is equal."""
    net = network()
    state, images = checkpoint(net), random_images(net)
    small, variables = from_torch_autoformer(state, net, SPACE.from_dict(values))
    params = variables["params"]
    arguments = state, values, to_torch(images)
    expected = torch_reference.official_forward(*arguments, head_dim=net.head_dim)
    assert relative_error(jax.jit(small.apply)({"params": params}, images), expected) < 1e-5

    model = plain_torch(net, params, values)
    with torch.no_grad():
        assert relative_error(model(to_torch(images).double()), expected) < 1e-6
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    assert sum(p.numel() for p in model.parameters()) == sum(sizes)


@pytest.mark.parametrize(
    "seed, kwargs, channels",
    [
        (1, dict(max_relative_position=2), 3),  # patches are up to 3 apart: the clip counts
        (2, dict(max_relative_position=0), 3),
        (3, dict(image_size=15, patch_size=3), 1),
        (4, dict(head_dim=64), 3),
    ],
)
def test_converted_network_of_other_settings(seed, kwargs, channels):
    net, values = network(**kwargs), ARCHS["mixed"]
    state, images = checkpoint(net, seed, channels=channels), random_images(net, channels=channels)
    small, variables = from_torch_autoformer(state, net, SPACE.from_dict(values))
    params = variables["params"]
    arguments = state, values, to_torch(images)
    expected = torch_reference.official_forward(*arguments, head_dim=net.head_dim)
    assert relative_error(jax.jit(small.apply)({"params": params}, images), expected) < 1e-5


def test_converted_parameters_are_those_of_extraction():
    """Names, shapes and type, of arrays of its own; from NumPy or a whole checkpoint too."""
    net = network()
    arch = SPACE.from_dict(ARCHS["mixed"])
    state = checkpoint(net)
    shape = random_images(net).shape
    expected, like, _ = extract(net, {"params": random_params(net, shape)}, arch, inputs=shape)
    small, params = from_torch_autoformer(state, net, arch)
    assert small == expected
    assert jax.tree.map(lambda x: (x.shape, x.dtype), params) == jax.tree.map(
        lambda x: (x.shape, x.dtype), like
    )
    numpy = {name: value.numpy() for name, value in state.items()}
    double = {name: value.double().requires_grad_() for name, value in state.items()}
    for other in ({"model": state, "epoch": 500}, numpy, double):
        again = from_torch_autoformer(other, net, arch)[1]
        assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), params, again))
    for value in numpy.values():
        value[...] = 0
    assert all(bool(jnp.any(leaf != 0)) for leaf in jax.tree.leaves(params))


def test_bias_follows_the_number_of_heads():
    """The official bias of a stored channel is another entry for another number of heads."""
    net = network()
    state = checkpoint(net)
    flat = state["blocks.0.attn.qkv.bias"].numpy()
    for heads in (1, 2, 3):
        arch = SPACE.from_dict(dict(embed_dim=24, depth=1, num_heads=[heads], mlp_ratio=[1.5]))
        bias = from_torch_autoformer(state, net, arch)[1]["params"]["block_0"]["attention"]["qkv_bias"]
        assert bias.shape == (3, heads, 16)
        assert np.array_equal(bias.reshape(-1), flat[: 48 * heads])


def sampled_archs(seed, n):
    archs = SPACE.sample(jax.random.key(seed), n)
    return [jax.tree.map(lambda x, i=i: x[i], archs) for i in range(n)]


@pytest.mark.parametrize("scan_layers", [False, True], ids=["unrolled", "scanned"])
def test_converted_supernet_is_the_official_one(scan_layers):
    """At every architecture, from one conversion and one trace."""
    net = network(qkv_bias_by_heads=True, scan_layers=scan_layers)
    state, images = checkpoint(net), random_images(net)
    same, variables = from_torch_autoformer(state, net)
    assert same == net
    if scan_layers:
        variables = {"params": stack_layers(variables["params"])}
    apply = jax.jit(net.apply)
    archs = [*map(SPACE.from_dict, ARCHS.values()), *sampled_archs(0, 8)]
    for arch in archs:
        values = SPACE.to_dict(arch)
        expected = torch_reference.official_forward(state, values, to_torch(images), head_dim=net.head_dim)
        assert relative_error(apply(variables, images, arch), expected) < 1e-5, values
    assert apply._cache_size() == 1


@pytest.mark.parametrize(
    "net",
    [*tiers.more(network(qkv_bias_by_heads=True)), network(SPACE.restrict(num_heads=2))],
    ids=["heads", "one number of heads"],
)
def test_extraction_from_a_converted_supernet_is_the_converted_architecture(net):
    """It has the bias of its own numbers of heads alone, and counts say so."""
    state, shape = checkpoint(net), random_images(net).shape
    variables = from_torch_autoformer(state, net)[1]
    check_network(net, shape)
    cost_of = cost(net, shape)
    for seed in range(4):
        arch = net.space.sample(jax.random.key(seed))
        small, extracted, _ = extract(net, variables, arch, inputs=shape)
        expected_net, expected = from_torch_autoformer(state, net, arch)
        assert small == expected_net
        jax.tree.map(np.testing.assert_array_equal, extracted, expected)
        assert cost_of(arch)["params"] == sum(leaf.size for leaf in jax.tree.leaves(extracted))


@pytest.mark.parametrize(
    "kwargs, message",
    [
        (dict(), "qkv_bias_by_heads"),
        (dict(sharing="classic", qkv_bias_by_heads=True), "entangled weights, and this"),
    ],
)
def test_network_that_cannot_hold_the_supernet(kwargs, message):
    net = network(**kwargs)
    with pytest.raises(ValueError, match=re.escape(message)):
        from_torch_autoformer(checkpoint(net), net)


def without(name):
    return lambda state: {key: value for key, value in state.items() if key != name}


def with_zeros(name, *shape):
    return lambda state: {**state, name: torch.zeros(shape)}


@pytest.mark.parametrize(
    "change, message",
    [
        (without("blocks.2.fc1.weight"), "missing: blocks.2.fc1.weight."),
        (without("norm.weight"), "Not an official AutoFormer"),
        (lambda state: {}, "Its first names are (none)."),
        (with_zeros("head_dist.weight", 7, 64), "head_dist"),
        (with_zeros("head.weight", 9, 64), "head.weight (9"),
        (with_zeros("pos_embed", 1, 26, 64), "pos_embed"),
    ],
)
def test_wrong_tensors_are_named(change, message):
    net = network()
    with pytest.raises(ValueError, match=re.escape(message)):
        from_torch_autoformer(change(checkpoint(net)), net, SPACE.largest())


@pytest.mark.parametrize(
    "stored, message",
    [
        (dict(embed=48), "embedding width 56"),
        (dict(heads=2), "attention width 48"),
        (dict(hidden=100), "hidden width 112"),
        (dict(depth=2), "missing: blocks.2.attn.proj.bias"),
        (dict(max_relative_position=0), "rel_pos_embed_k"),
    ],
)
def test_architecture_beyond_the_checkpoint(stored, message):
    net = network(qkv_bias_by_heads=True)
    for arch in (SPACE.largest(), None):
        with pytest.raises(ValueError, match=re.escape(message)):
            from_torch_autoformer(checkpoint(net, **stored), net, arch)


def test_architecture_outside_the_space():
    net = network()
    arch = SPACE.largest() | {"embed_dim": jnp.int32(3)}
    with pytest.raises(ValueError, match="'embed_dim' is 3"):
        from_torch_autoformer(checkpoint(net), net, arch)


@pytest.mark.parametrize("positions", (2, 0))
def test_gradient_of_the_supernet_is_that_of_pytorch(positions):
    """The supernet's gradient at an architecture against autograd of the plain PyTorch network."""
    space = spaces.vit(embed_dim=(24, 40), depth=(2, 3), num_heads=(1, 3), mlp_ratio=(1.5, 2.0))
    net = network(space, max_relative_position=positions)
    values = dict(embed_dim=24, depth=2, num_heads=[1, 3], mlp_ratio=[2.0, 1.5])
    arch = space.from_dict(values)
    images, labels = random_images(net), np.array([0, 3, 6])
    params = random_params(net, images.shape)

    def loss(params):
        logits = net.apply({"params": params}, images, arch)
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(3), labels]), logits

    (_, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    small_params = extract(net, {"params": params}, arch, inputs=images.shape).variables["params"]
    model = plain_torch(net, small_params, values)
    output = model(to_torch(images).double())
    torch.nn.functional.cross_entropy(output, torch.from_numpy(labels)).backward()
    assert relative_error(logits, output.detach()) < 1e-5

    gradient = flax.traverse_util.flatten_dict(gradient, sep="/")
    specs = annotations(net, images.shape).specs
    expected = torch_reference.like_extracted(model, gradient=True)
    for path, spec in specs.items():
        name = "/".join(path)
        given = np.array(gradient[name])
        if name in expected:
            active = spec.active(given, arch)
            assert relative_error(active, expected[name].reshape(active.shape)) < 1e-4, name
            active[...] = 0  # a view: what is left must be zero
        assert not np.any(given), name
    assert len(expected) == len(specs) - sum(path[0] == "block_2" for path in specs)


def test_files_of_checkpoints_are_read_without_running_anything(tmp_path):
    net, images = network(qkv_bias_by_heads=True), random_images(network())
    tensors = {name: torch.as_tensor(x) for name, x in checkpoint(net).items()}
    torch.save({"model": tensors, "epoch": 3}, tmp_path / "supernet.pth")
    plain = {name: np.ascontiguousarray(x.numpy()) for name, x in tensors.items()}
    safetensors.numpy.save_file(plain, tmp_path / "supernet.safetensors")
    arch, found = SPACE.from_dict(ARCHS["mixed"]), []
    for name in ("supernet.pth", "supernet.safetensors"):
        whole, variables = from_torch_autoformer(read_checkpoint(tmp_path / name), net)
        found.append(whole.apply(variables, images, arch))
    np.testing.assert_array_equal(*found)
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    torch.save({"model": object()}, tmp_path / "code.pth")
    for name, message in (("bad.safetensors", "is no file of"), ("code.pth", "and plain values alone")):
        with pytest.raises(ValueError, match=message):
            read_checkpoint(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_checkpoint(tmp_path / "none.pth")


CONFIG = """
import numpy as np
from experiments.config import Config
from jaxnas import data, runs, search, spaces, supernets, tasks
from jaxnas.training import Training

SPACE = spaces.vit(embed_dim=(24, 40), depth=(1, 2), num_heads=(1, 2), mlp_ratio=(1.5, 2.0))
random = np.random.default_rng(0)
images = random.integers(0, 255, (60, 32, 32, 3), dtype=np.uint8)
labels = np.arange(60) % 7
CONFIG = Config(
    name="official",
    task=tasks.Images(data=data.from_arrays(images, labels, images[:20], labels[:20])),
    network=supernets.ViT(SPACE, image_size=32, patch_size=8, num_classes=7, head_dim=16),
    training=Training(steps=1),
    search=runs.Search(strategy=search.Evolution(SPACE, evaluations=6, population=3, parents=2,
        mutations=1, crossovers=1)),
)
"""


def test_an_official_supernet_is_searched_by_one_command(tmp_path):
    (tmp_path / "official.py").write_text(CONFIG)
    tensors = {name: torch.as_tensor(x) for name, x in checkpoint(network()).items()}
    torch.save({"model": tensors}, tmp_path / "supernet.pth")
    paths = [f"--config={tmp_path}/official.py", f"--workdir={tmp_path}/run"]
    call = [sys.executable, "-m", "experiments.search", *paths, f"--supernet={tmp_path}/supernet.pth"]
    done = subprocess.run(call, cwd=pathlib.Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = result.read(tmp_path / "run").found
    assert found.extraction_error < 1e-5 and (tmp_path / "run" / "report.html").is_file()

"""Against PyTorch: the converter of AutoFormer checkpoints, and the network and its gradient."""

import in_process
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
import safetensors.numpy
import tiers
from small_nets import difference, random_params

from jaxnas import spaces
from jaxnas.cost import cost
from jaxnas.report import result
from jaxnas.subnet import extract
from jaxnas.supernets.autoformer.convert import from_torch_autoformer, read_checkpoint
from jaxnas.supernets.autoformer.vit import ViT
from jaxnas.testing import check_network

torch = pytest.importorskip("torch", reason="PyTorch, for comparison, comes with the extra `torch`")

import torch_reference  # noqa: E402

from benchmarks import torch_vit  # noqa: E402

SPACE = spaces.vit(embed_dim=(24, 40, 56), depth=(1, 2, 3), num_heads=(1, 2, 3), mlp_ratio=(1.5, 2.0))
ARCHS = {
    "middle": dict(embed_dim=40, depth=2, num_heads=[1, 2], mlp_ratio=[1.5, 2.0]),
    "largest": dict(embed_dim=56, depth=3, num_heads=[3, 3, 3], mlp_ratio=[2.0, 2.0, 2.0]),
    "smallest": dict(embed_dim=24, depth=1, num_heads=[1], mlp_ratio=[1.5]),
    "mixed": dict(embed_dim=40, depth=3, num_heads=[3, 1, 2], mlp_ratio=[2.0, 1.5, 1.5]),
}


def network(space=SPACE, **kwargs):
    return ViT(space, **dict(image_size=32, patch_size=8, num_classes=7, head_dim=16) | kwargs)


def checkpoint(net, **kwargs):
    """Stores more than the space can choose, as the official ones do: width 64, depth 4."""
    stored = dict(embed=64, heads=4, hidden=128, depth=4)
    same = ("head_dim", "image_size", "patch_size", "num_classes", "max_relative_position")
    stored |= {name: getattr(net, name) for name in same}
    return torch_reference.random_state_dict(0, **stored | kwargs)


def random_images(net, channels=3):
    shape = (3, net.image_size, net.image_size, channels)
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def to_torch(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    "arch, kwargs, channels",
    [
        ("mixed", {}, 3),
        *tiers.more(
            ("smallest", dict(max_relative_position=0, head_dim=64), 3),
            # Patches are up to 4 apart: the clip counts.
            ("largest", dict(image_size=15, patch_size=3, max_relative_position=2), 1),
        ),
    ],
)
def test_converted_network_is_the_official_one(arch, kwargs, channels):
    """And the plain PyTorch network of the benchmark has as many parameters."""
    net, values = network(**kwargs), ARCHS[arch]
    state, images = checkpoint(net, channels=channels), random_images(net, channels=channels)
    small, variables = from_torch_autoformer(state, net, SPACE.from_dict(values))
    expected = torch_reference.official_forward(state, values, to_torch(images), head_dim=net.head_dim)
    assert difference(jax.jit(small.apply)(variables, images), expected) < 1e-5
    same = ("image_size", "patch_size", "num_classes", "head_dim", "max_relative_position")
    sizes = dict(embed=values["embed_dim"], heads=values["num_heads"], channels=channels)
    sizes["hidden"] = [int(values["embed_dim"] * ratio) for ratio in values["mlp_ratio"]]
    plain = torch_vit.PlainViT(**sizes, **{name: getattr(net, name) for name in same})
    assert sum(p.numel() for p in plain.parameters()) == sum(x.size for x in jax.tree.leaves(variables))


def test_converted_parameters_are_those_of_extraction_whatever_holds_them(tmp_path):
    """Names, shapes and type, of arrays of its own; files are read without running anything."""
    net = network()
    arch, state, shape = SPACE.from_dict(ARCHS["mixed"]), checkpoint(net), random_images(net).shape
    expected, like, _ = extract(net, {"params": random_params(net, shape)}, arch, inputs=shape)
    small, params = from_torch_autoformer(state, net, arch)
    assert small == expected
    describe = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)  # noqa: E731
    assert describe(params) == describe(like)
    numpy = {name: np.ascontiguousarray(value.numpy()) for name, value in state.items()}
    double = {name: value.double().requires_grad_() for name, value in state.items()}
    torch.save({"model": state, "epoch": 3}, tmp_path / "supernet.pth")
    safetensors.numpy.save_file(numpy, tmp_path / "supernet.safetensors")
    files = [read_checkpoint(tmp_path / f"supernet.{end}") for end in ("pth", "safetensors")]
    for other in ({"model": state, "epoch": 500}, numpy, double, *files):
        jax.tree.map(np.testing.assert_array_equal, params, from_torch_autoformer(other, net, arch)[1])
    for value in (*numpy.values(), *(value.numpy() for value in state.values())):
        value[...] = 0
    assert all(np.any(leaf) for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("restricted", [*tiers.more({}), {"num_heads": 2}])
def test_extraction_from_a_converted_supernet_is_the_converted_architecture(restricted):
    """It has the bias of its own numbers of heads alone, and counts say so."""
    net = network(SPACE.restrict(**restricted), qkv_bias_by_heads=not restricted)
    state, shape = checkpoint(net), random_images(net).shape
    variables, arch = from_torch_autoformer(state, net)[1], net.space.sample(jax.random.key(0))
    check_network(net, shape)
    small, extracted, _ = extract(net, variables, arch, inputs=shape)
    expected_net, expected = from_torch_autoformer(state, net, arch)
    assert small == expected_net
    jax.tree.map(np.testing.assert_array_equal, extracted, expected)
    assert cost(net, shape)(arch)["params"] == sum(leaf.size for leaf in jax.tree.leaves(extracted))


def test_an_official_supernet_is_searched_by_one_command(tmp_path):
    digits = network(image_size=8, patch_size=2, num_classes=10, max_relative_position=3)
    torch.save({"model": checkpoint(digits, channels=1)}, tmp_path / "supernet.pth")
    few = {"population": 2, "parents": 1, "mutations": 1, "crossovers": 0, "evaluations": 2}
    settings = {f"search.method.strategy.{name}": number for name, number in few.items()}
    settings |= {"network.space": "vit((24,), (1,), (1, 2), (2.0,))", "search.most_share": 1.0}
    sets = [f"--set={name}={value}" for name, value in settings.items()]
    given = "--config=autoformer_digits", f"--workdir={tmp_path}/run", f"--data_dir={tmp_path}"
    in_process.main("search", *given, *sets, f"--supernet={tmp_path}/supernet.pth")
    assert result.read(tmp_path / "run").found.extraction_error < 1e-5


def test_mistakes_are_refused(tmp_path):
    net, state, largest = network(qkv_bias_by_heads=True), checkpoint(network()), SPACE.largest()
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    torch.save({"model": object()}, tmp_path / "code.pth")

    def convert(changes, net=net, arch=largest):
        return from_torch_autoformer({k: v for k, v in (state | changes).items() if v is not None}, net, arch)

    def stored(arch=largest, **sizes):
        return from_torch_autoformer(checkpoint(net, **sizes), net, arch)

    refusals.check(
        (lambda: read_checkpoint(tmp_path / "bad.safetensors"), ValueError, "bad.safetensors"),
        (lambda: read_checkpoint(tmp_path / "code.pth"), ValueError, "code.pth"),
        (lambda: read_checkpoint(tmp_path / "none.pth"), FileNotFoundError, "none.pth"),
        (lambda: convert({}, network(), None), ValueError, "qkv_bias_by_heads"),
        (lambda: convert({"blocks.2.fc1.weight": None}), ValueError, "missing", "blocks.2.fc1.weight"),
        (lambda: convert({"norm.weight": None}), ValueError, "norm.weight"),
        (lambda: convert(dict.fromkeys(state)), ValueError, "(none)"),
        (lambda: convert({"head_dist.weight": torch.zeros(7, 64)}), ValueError, "head_dist"),
        (lambda: convert({"head.weight": torch.zeros(9, 64)}), ValueError, "head.weight", "9"),
        (lambda: convert({"pos_embed": torch.zeros(1, 26, 64)}), ValueError, "pos_embed"),
        (lambda: convert({}, arch=largest | {"embed_dim": jnp.int32(3)}), ValueError, "'embed_dim'", "3"),
        (lambda: stored(embed=48), ValueError, "embedding width", "56"),
        (lambda: stored(heads=2), ValueError, "attention width", "48"),
        (lambda: stored(hidden=100), ValueError, "hidden width", "112"),
        (lambda: stored(None, hidden=100), ValueError, "hidden width", "112"),
        (lambda: stored(depth=2), ValueError, "missing", "blocks.2.attn.proj.bias"),
        (lambda: stored(max_relative_position=0), ValueError, "rel_pos_embed_k"),
    )

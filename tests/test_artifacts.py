"""Saved and exported sub-networks: bit for bit, clear about damage, runnable without jaxnas."""

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import textwrap
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
import safetensors.numpy
from small_nets import SETTINGS, SHAPE, jit, normal, sample, setting

import jaxnas
from jaxnas import artifacts


def extracted(name, seed=0):
    case = setting(name)
    arch = sample(case.space, seed)
    net, variables, _ = jaxnas.extract(case.net, case.variables, arch, inputs=SHAPE)
    return net, variables


def save(folder, net, variables, **options):
    artifacts.save_subnet(folder, net, variables, SHAPE, **options)


@pytest.fixture
def saved(tmp_path):
    """The folder of a saved network."""
    folder = tmp_path / "runs" / "subnet"
    save(folder, *extracted("narrow"), extra={"mean": [0.5]})
    return folder


def describe(folder, change):
    """Changes the description of a saved network."""
    path = folder / artifacts.DESCRIPTION
    description = json.loads(path.read_text())
    change(description)
    path.write_text(json.dumps(description))


def store(folder, change):
    """Changes the tensors of a saved network, and their seal with them."""
    path = folder / artifacts.TENSORS
    tensors = safetensors.numpy.load_file(path)
    change(tensors)
    data = safetensors.numpy.save(tensors)
    path.write_bytes(data)
    seal = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    describe(folder, lambda description: description.update(tensors=seal))


# ---- Saving and loading.


def assert_same_bits(tree, expected):
    assert jax.tree.structure(tree) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("name", SETTINGS)
def test_round_trip_is_exact(name, tmp_path):
    for seed in range(3):
        net, variables = extracted(name, seed)
        save(tmp_path / "subnet", net, variables)  # replaces the one before
        loaded, loaded_variables = artifacts.load_subnet(tmp_path / "subnet")
        assert loaded == net
        assert_same_bits(loaded_variables, variables)
    assert os.listdir(tmp_path) == ["subnet"]


def test_loaded_network_runs(saved):
    net, variables = extracted("narrow")
    loaded, loaded_variables = artifacts.load_subnet(saved)
    images = normal(*SHAPE)
    np.testing.assert_array_equal(
        jit(loaded.apply)(loaded_variables, images), jit(net.apply)(variables, images)
    )


def test_files_can_be_read_without_jaxnas(saved):
    net, variables = extracted("narrow")
    tensors = safetensors.numpy.load_file(saved / "model.safetensors")
    np.testing.assert_array_equal(
        tensors["params/block_0/attention/qkv_kernel"],
        variables["params"]["block_0"]["attention"]["qkv_kernel"],
    )
    description = json.loads((saved / "subnet.json").read_text())
    assert description["module"] == "ViT" and description["extra"] == {"mean": [0.5]}
    assert description["architecture"] == net.space.to_dict(net.space.smallest())
    assert description["inputs"] == {"shape": list(SHAPE[1:]), "dtype": "float32"}
    assert description["fields"]["dtype"] == {"dtype": "float32"}


class Everything(nn.Module):
    """A network of a user's own, with every kind of field and input, and with batch statistics."""

    space: jaxnas.Space
    count: int = 3
    rate: float = 0.5
    on: bool = True
    what: str = "add"
    nothing: None = None
    sizes: tuple = (1, (2, 3))
    dtype: Any = jnp.bfloat16
    anything: Any = None

    @nn.compact
    def __call__(self, inputs, arch=None, *, train=False):
        x, (mask,) = inputs["x"], inputs["more"]
        rows = nn.BatchNorm(use_running_average=not train)(x)
        kernel = self.param("kernel", nn.initializers.normal(dtype=jnp.bfloat16), (x.shape[1], self.count))
        return {"y": rows.astype(self.dtype) @ kernel * mask[:, None].astype(self.dtype)}


EVERYTHING = Everything(jaxnas.Space(size=jaxnas.Choice(3)))
INPUTS = {"x": np.ones((2, 4), np.float32), "more": (np.ones(2, np.int32),)}


def calibrated():
    """Its variables, with other statistics than the initial ones."""
    variables = jaxnas.init(EVERYTHING, jax.random.key(0), INPUTS)
    return variables | {"batch_stats": jax.tree.map(lambda x: x + 1, variables["batch_stats"])}


def test_a_network_of_the_users_own(tmp_path):
    variables = calibrated()
    artifacts.save_subnet(tmp_path / "subnet", EVERYTHING, variables, INPUTS)
    loaded, same = artifacts.load_subnet(tmp_path / "subnet", module=Everything)
    assert loaded == EVERYTHING
    assert_same_bits(same, variables)
    platforms = (jax.export.default_export_platform(),)
    program = jax.export.deserialize(
        artifacts.export_subnet(tmp_path / "subnet", loaded, same, INPUTS, platforms).read_bytes()
    )
    np.testing.assert_array_equal(program.call(INPUTS)["y"], loaded.apply(same, INPUTS)["y"])
    refusals.check(
        (lambda: artifacts.load_subnet(tmp_path / "subnet"), ValueError, "'Everything'", "module="),
        (
            lambda: artifacts.load_subnet(tmp_path / "subnet", module=jaxnas.supernets.ViT),
            ValueError,
            "'ViT'",
        ),
    )


def test_what_cannot_be_saved_is_refused_and_leaves_nothing(tmp_path):
    class ViT(Everything):
        pass

    case, (net, variables) = setting("narrow"), extracted("narrow")
    own = calibrated()
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), variables)
    broken = jax.tree.map(lambda x: x * jnp.nan, variables)
    headless = {"params": {**variables["params"], "head": {}}}

    def saving(*arguments, **options):
        return lambda: artifacts.save_subnet(tmp_path / "subnet", *arguments, **options)

    def storing(value):
        return saving(EVERYTHING.clone(anything=value), own, INPUTS), ValueError, "'anything'"

    refusals.check(
        *map(storing, (nn.relu, [1], {"a": 1}, float("nan"), (1, object()), nn.Dense(3))),
        (saving(case.net, case.variables, SHAPE), ValueError, "60"),
        (saving(net, headless, SHAPE), ValueError, "params/head/bias"),
        (saving(net, variables["params"], SHAPE), ValueError, "'params'"),
        (saving(net, half, SHAPE), ValueError, "bfloat16", "float32"),
        (saving(net, broken, SHAPE), ValueError, "NaN", "params/block_0"),
        (saving(net, variables, (1, 9, 9, 1)), ValueError, "float32[1, 9, 9, 1]"),
        (saving(ViT(EVERYTHING.space), {}, INPUTS), ValueError, "ViT"),
        (saving(net, variables, SHAPE, extra={"mean": object()}), TypeError, "JSON"),
        (lambda: artifacts.export_subnet(tmp_path, case.net, case.variables, SHAPE), ValueError, "60"),
    )
    assert not os.listdir(tmp_path)


def test_saving_deletes_no_other_files(saved):
    (saved / "notes.txt").write_text("mine")
    refusals.check((lambda: save(saved, *extracted("narrow")), FileExistsError, "notes.txt"))
    assert (saved / "notes.txt").read_text() == "mine"


def test_what_a_killed_writer_leaves_stops_nothing(saved):
    """A search that was killed during the export goes on."""
    (saved / ".model.stablehlo.tmp").write_bytes(b"half a program")
    leftover = saved.parent / ".subnet.tmp-new"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half a save")
    save(saved, *extracted("narrow"))
    assert sorted(os.listdir(saved)) == ["model.safetensors", "subnet.json"]
    assert os.listdir(saved.parent) == ["subnet"]


# ---- Damage.


def truncate(folder):
    path = folder / artifacts.TENSORS
    path.write_bytes(path.read_bytes()[:-10])


def flip(folder):
    path = folder / artifacts.TENSORS
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def sealed(data):
    """A file that is sealed as it is."""

    def change(folder):
        (folder / artifacts.TENSORS).write_bytes(data)
        seal = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        describe(folder, lambda description: description.update(tensors=seal))

    return change


_HEADER = json.dumps({"a": {"dtype": "F32", "shape": [1] * 10_000, "data_offsets": [0, 4]}}).encode()
AXES = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(4)


BIAS = "params/head/bias"


def field(name, value):
    return lambda folder: describe(folder, lambda d: d["fields"].update({name: value}))


def entry(name, value):
    return lambda folder: describe(folder, lambda d: d.update({name: value}))


def several_architectures(folder):
    space = setting("narrow").space.to_json()
    describe(folder, lambda d: d["fields"].update(space={"space": space}))


def enormous(folder):
    describe(
        folder, lambda d: (d["fields"].update(image_size=10**9), d["inputs"].update(shape=[10**9] * 2 + [1]))
    )


def text(content):
    return lambda folder: (folder / artifacts.DESCRIPTION).write_text(content)


def tensors(change):
    return lambda folder: store(folder, change)


def without(name):
    return lambda folder: describe(folder, lambda d: d.pop(name))


DAMAGE = (
    # What is done to the folder, and what the message names.
    (truncate, "bytes"),
    (flip, artifacts.TENSORS),
    (sealed(b"\xff" * 100), "safetensors"),
    (sealed(AXES), "safetensors"),
    (tensors(lambda t: t.pop(BIAS)), BIAS),
    (tensors(lambda t: t.update(tail=t[BIAS])), "tail"),
    (tensors(lambda t: t.update({BIAS: t[BIAS][:3]})), f"{BIAS} (3,) instead of (5,)"),
    (tensors(lambda t: t.update({BIAS: t[BIAS].astype(np.float64)})), f"{BIAS} float64"),
    (tensors(lambda t: t.update({BIAS: t[BIAS] * np.nan})), "NaN", BIAS),
    (text('{"format": 1'), "JSON"),
    (text("[" * 100_000), "nested"),
    (text("3"), "int"),
    (text("[]"), "list"),
    (entry("module", "VIT"), "'VIT'", "'ViT'"),
    (entry("module", ["ViT"]), "'module'"),
    (entry("format", 3), "3", "2"),
    (entry("format", -1), "-1", "2"),
    (entry("format", "x"), "'x'", "2"),
    (without("format"), "'format'"),
    (lambda f: describe(f, lambda d: d["architecture"].update(depth=7)), "'architecture'", "7"),
    (without("architecture"), "'architecture'"),
    (lambda f: describe(f, lambda d: d["fields"].pop("space")), "'space'"),
    (field("space", {"space": {"a": 3}}), artifacts.DESCRIPTION),
    (several_architectures, "60"),
    (without("fields"), "'fields'"),
    (field("head_dims", 4), "'head_dims'", "'head_dim'"),
    (field("image_size", "8"), artifacts.DESCRIPTION),
    (field("head_dim", {"import": "os"}), "import"),
    (field("dtype", {"dtype": "float31"}), "'float31'", "'float32'"),
    (field("image_size", 9), "9"),
    (field("image_size", 16), "float32[1, 8, 8, 1]"),
    (enormous, "1000000000"),
    (entry("inputs", {"shape": [8, -8, 1], "dtype": "float32"}), "-8"),
    (entry("inputs", None), "None"),
    (entry("tensors", 3), "'tensors'", "3"),
    (entry("tensors", {"bytes": 3}), "'sha256'"),
    (entry("tensors", None), "'tensors'", "None"),
)


def test_damage_is_named(saved, tmp_path):
    def damaged(number, change, *names):
        folder = tmp_path / str(number)
        shutil.copytree(saved, folder)
        change(folder)
        return lambda: artifacts.load_subnet(folder), ValueError, *names

    refusals.check(*(damaged(number, *case) for number, case in enumerate(DAMAGE)))
    for name in (artifacts.DESCRIPTION, artifacts.TENSORS):
        (saved / name).unlink()
        refusals.check((lambda: artifacts.load_subnet(saved), FileNotFoundError, str(saved)))
    refusals.check((lambda: artifacts.load_subnet(tmp_path / "none"), FileNotFoundError, "none"))


# ---- Export.


RUN_ALONE = """
    import importlib.util, pathlib, sys
    assert importlib.util.find_spec("jaxnas") is None
    import jax, numpy
    program = jax.export.deserialize(pathlib.Path("model.stablehlo").read_bytes())
    assert set(program.platforms) == {"cpu", "cuda", "tpu"}
    for size in (1, 3):
        images = numpy.load(f"images_{size}.npy")
        numpy.save(f"logits_{size}.npy", program.call(images))
    assert not any(name.split(".")[0] in ("jaxnas", "flax") for name in sys.modules)
"""


def test_exported_program_runs_without_jaxnas(tmp_path):
    """In a process of its own that sees neither this project nor its installation."""
    net, variables = extracted("narrow", 1)
    path = artifacts.export_subnet(tmp_path, net, variables, SHAPE)
    assert path == tmp_path / "model.stablehlo"
    for size in (1, 3):
        np.save(tmp_path / f"images_{size}.npy", normal(size, *SHAPE[1:]))
    # An editable installation is found through the site packages: give those of jax only.
    packages = tmp_path / "packages"
    packages.mkdir()
    site = os.path.dirname(os.path.dirname(jax.__file__))
    for entry in os.listdir(site):
        if "jaxnas" not in entry and not entry.endswith(".pth"):
            (packages / entry).symlink_to(os.path.join(site, entry))
    script = f"import sys; sys.path.insert(0, {str(packages)!r})\n" + textwrap.dedent(RUN_ALONE)
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", script],
        cwd=tmp_path,
        check=True,
        timeout=300,
        env={"JAX_PLATFORMS": "cpu", "PATH": os.defpath},
    )
    run = jax.jit(lambda images: net.apply(variables, images))
    for size in (1, 3):
        logits = np.load(tmp_path / f"logits_{size}.npy")
        expected = run(normal(size, *SHAPE[1:]))
        assert logits.shape == (size, 5) and logits.dtype == np.float32
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


def test_export_goes_beside_the_saved_network(saved):
    net, variables = artifacts.load_subnet(saved)
    path = artifacts.export_subnet(saved, net, variables, SHAPE, platforms=("cpu",))
    assert artifacts.exported_batch(path) is None
    artifacts.load_subnet(saved)
    save(saved, net, variables)
    assert sorted(os.listdir(saved)) == ["model.safetensors", "subnet.json"]


class CountsRows(nn.Module):
    """It asks Python for the batch size."""

    space: jaxnas.Space = jaxnas.Space(size=jaxnas.Choice(3))

    @nn.compact
    def __call__(self, x, arch=None, *, train=False):
        return nn.Dense(2)(x) / len(x)


def test_a_network_without_a_symbolic_batch_size_is_exported_for_its_inputs(tmp_path, caplog):
    net, x = CountsRows(), normal(4, 3)
    variables = jaxnas.init(net, jax.random.key(0), x)
    with caplog.at_level(logging.WARNING):
        path = artifacts.export_subnet(tmp_path, net, variables, x, platforms=("cpu",))
    assert "CountsRows" in caplog.text and "float32[4, 3]" in caplog.text
    assert artifacts.exported_batch(path) == 4
    program = jax.export.deserialize(bytearray(path.read_bytes()))
    np.testing.assert_allclose(program.call(x), jax.jit(net.apply)(variables, x), rtol=1e-6)


class Several(nn.Module):
    """A complex weight, batch statistics and several outputs."""

    space: jaxnas.Space = jaxnas.Space(size=jaxnas.Choice(3))

    @nn.compact
    def __call__(self, x, arch=None, *, train=False):
        turned = self.param("turn", nn.initializers.ones, (2,), jnp.complex64)
        y = nn.BatchNorm(use_running_average=not train)(nn.Dense(2)(x))
        return y, {"turned": y.astype(jnp.complex64) * turned[None], "sums": [jnp.sum(y, axis=1)]}


def test_all_outputs_and_complex_weights_are_saved_and_exported_and_broken_weights_are_not(tmp_path):
    net, x = Several(), normal(4, 3)
    initial = jaxnas.init(net, jax.random.key(0), x)
    initial["params"]["turn"] = jnp.asarray([1j, 2 - 1j], jnp.complex64)
    variables = jaxnas.calibrate(net, initial, None, x[None])
    artifacts.save_subnet(tmp_path, net, variables, x)
    _, loaded = artifacts.load_subnet(tmp_path, Several)
    assert_same_bits(loaded, variables)
    path = artifacts.export_subnet(tmp_path, net, loaded, x, platforms="cpu")
    program = jax.export.deserialize(bytearray(path.read_bytes()))
    assert program.platforms == ("cpu",)
    found, expected = program.call(x[:2]), net.apply(variables, x[:2])
    jax.tree.map(lambda y, z: np.testing.assert_allclose(y, z, rtol=1e-5, atol=1e-6), found, expected)

    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, variables)
    others = (
        (initial, "calibrate"),
        (broken, "params/Dense_0/bias"),
        ({"params": initial["params"]}, "batch_stats"),
    )
    doors = (
        lambda given: artifacts.save_subnet(tmp_path, net, given, x),
        lambda given: artifacts.export_subnet(tmp_path, net, given, x),
    )
    refusals.check(
        *((lambda d=d, g=g: d(g), ValueError, name) for d in doors for g, name in others),
        (lambda: artifacts.export_subnet(tmp_path, net, variables, x, "cpus"), ValueError, "'cpus'", "'cpu'"),
    )

"""Saved and exported sub-networks: bit for bit, clear about damage, runnable without jaxnas."""

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
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


def test_a_network_of_the_users_own(tmp_path):
    variables = jaxnas.init(EVERYTHING, jax.random.key(0), INPUTS)
    artifacts.save_subnet(tmp_path / "subnet", EVERYTHING, variables, INPUTS)
    loaded, same = artifacts.load_subnet(tmp_path / "subnet", module=Everything)
    assert loaded == EVERYTHING
    assert_same_bits(same, variables)
    platforms = (jax.export.default_export_platform(),)
    program = jax.export.deserialize(
        artifacts.export_subnet(tmp_path / "subnet", loaded, same, INPUTS, platforms).read_bytes()
    )
    np.testing.assert_array_equal(program.call(INPUTS)["y"], loaded.apply(same, INPUTS)["y"])
    with pytest.raises(
        ValueError, match=r"unknown module 'Everything'.*load_subnet\(path, module=Everything"
    ):
        artifacts.load_subnet(tmp_path / "subnet")
    with pytest.raises(ValueError, match="it is of the module 'Everything', and not of 'ViT'"):
        artifacts.load_subnet(tmp_path / "subnet", module=jaxnas.supernets.ViT)


def repr_of_type(value):
    return type(value).__name__


@pytest.mark.parametrize(
    "value", [nn.relu, [1], {"a": 1}, float("nan"), (1, object()), nn.Dense(3)], ids=repr_of_type
)
def test_fields_that_cannot_be_stored(value, tmp_path):
    net = EVERYTHING.clone(anything=value)
    variables = jaxnas.init(EVERYTHING, jax.random.key(0), INPUTS)
    with pytest.raises(ValueError, match="The field 'anything' is .* cannot be stored"):
        artifacts.save_subnet(tmp_path / "subnet", net, variables, INPUTS)
    assert not os.listdir(tmp_path)


def test_saving_refuses_what_is_not_one_network(tmp_path):
    case = setting("narrow")
    net, variables = extracted("narrow")
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), variables)
    broken = jax.tree.map(lambda x: x * jnp.nan, variables)

    class ViT(Everything):
        pass

    cases = [
        ((case.net, case.variables, SHAPE), ValueError, "60; extract one of them first"),
        (
            (net, {"params": {**variables["params"], "head": {}}}, SHAPE),
            ValueError,
            "missing: params/head/bias",
        ),
        ((net, variables["params"], SHAPE), ValueError, "Parameters alone are given as"),
        ((net, half, SHAPE), ValueError, "bfloat16 instead of float32"),
        ((net, broken, SHAPE), ValueError, "NaN or infinite values in this network: params/block_0"),
        ((net, variables, (1, 9, 9, 1)), ValueError, r"cannot be made for the inputs float32\[1, 9, 9, 1\]"),
        ((ViT(EVERYTHING.space), {}, INPUTS), ValueError, "Rename the class ViT"),
    ]
    for arguments, error, message in cases:
        with pytest.raises(error, match=message):
            artifacts.save_subnet(tmp_path / "subnet", *arguments)
    with pytest.raises(TypeError, match="not JSON serializable"):
        save(tmp_path / "subnet", net, variables, extra={"mean": object()})
    assert not os.listdir(tmp_path)


def test_saving_deletes_no_other_files(saved):
    (saved / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="other files, which would be lost: notes.txt"):
        save(saved, *extracted("narrow"))
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


def garble(folder):
    """A file that is sealed as it is, and isn't safetensors."""
    store(folder, lambda tensors: None)
    data = b"\xff" * 100
    (folder / artifacts.TENSORS).write_bytes(data)
    seal = {"bytes": 100, "sha256": hashlib.sha256(data).hexdigest()}
    describe(folder, lambda description: description.update(tensors=seal))


BIAS = "params/head/bias"


def of_double(folder):
    store(folder, lambda t: t.update({BIAS: t[BIAS].astype(np.float64)}))


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


DAMAGE = {
    "no tensors": (lambda f: (f / artifacts.TENSORS).unlink(), "model.safetensors is missing"),
    "no description": (lambda f: (f / artifacts.DESCRIPTION).unlink(), "subnet.json is missing"),
    "truncated": (truncate, "is damaged: it has .* bytes instead of"),
    "a bit": (flip, "its content has changed"),
    "not safetensors": (garble, "is not a safetensors file"),
    "missing": (lambda f: store(f, lambda t: t.pop(BIAS)), "missing: params/head/bias"),
    "extra": (lambda f: store(f, lambda t: t.update(tail=t[BIAS])), "unexpected: tail"),
    "misshapen": (
        lambda f: store(f, lambda t: t.update({BIAS: t[BIAS][:3]})),
        r"misshapen: params/head/bias \(3,\) instead of \(5,\)",
    ),
    "type": (of_double, "params/head/bias float64 instead of float32"),
    "nan": (
        lambda f: store(f, lambda t: t.update({BIAS: t[BIAS] * np.nan})),
        "NaN or infinite .*params/head/bias",
    ),
    "not JSON": (lambda f: (f / artifacts.DESCRIPTION).write_text('{"format": 1'), "not valid JSON"),
    "deep JSON": (lambda f: (f / artifacts.DESCRIPTION).write_text("[" * 100_000), "nested too deeply"),
    "not a dict": (
        lambda f: (f / artifacts.DESCRIPTION).write_text("3"),
        "expected an object, found int",
    ),
    "a list": (lambda f: (f / artifacts.DESCRIPTION).write_text("[]"), "expected an object, found list"),
    "module": (entry("module", "VIT"), "did you mean 'ViT'"),
    "module of a wrong type": (entry("module", ["ViT"]), "'module' is no string"),
    "newer": (entry("format", 3), "format 3, .* reads format 2: a newer"),
    "negative": (entry("format", -1), "format -1, .* save the network again"),
    "no format": (lambda f: describe(f, lambda d: d.pop("format")), "'format' is missing"),
    "a format that is no number": (entry("format", "x"), "'format' is 'x', expected 2"),
    "another architecture": (
        lambda f: describe(f, lambda d: d["architecture"].update(depth=7)),
        "'architecture' is .*, and the space of its fields has",
    ),
    "no architecture": (lambda f: describe(f, lambda d: d.pop("architecture")), "'architecture' is missing"),
    "no space": (lambda f: describe(f, lambda d: d["fields"].pop("space")), "'space' is missing"),
    "a wrong space": (field("space", {"space": {"a": 3}}), "doesn't describe a subnet"),
    "several architectures": (several_architectures, "more than one architecture, 60"),
    "no fields": (lambda f: describe(f, lambda d: d.pop("fields")), "'fields' is missing"),
    "field": (field("head_dims", 4), "has no field 'head_dims'; did you mean 'head_dim'"),
    "a field's type": (field("image_size", "8"), "doesn't describe a subnet"),
    "a dict as a field": (field("head_dim", {"import": "os"}), "is no value of a field"),
    "dtype": (field("dtype", {"dtype": "float31"}), "unknown dtype 'float31'; did you mean 'float32'"),
    "size": (field("image_size", 9), "not a multiple"),
    "another size": (
        field("image_size", 16),
        r"cannot be made for the inputs float32\[1, 8, 8, 1\].*Expected images",
    ),
    "an enormous size": (enormous, "cannot have the shape"),
    "inputs": (entry("inputs", {"shape": [8, -8, 1], "dtype": "float32"}), "expected a list of ints"),
    "no inputs": (entry("inputs", None), "None does not describe inputs"),
    "tensors of a wrong type": (entry("tensors", 3), "'tensors' is 3, expected their 'bytes' and 'sha256'"),
    "no digest": (entry("tensors", {"bytes": 3}), "expected their 'bytes' and 'sha256'"),
    "null for tensors": (entry("tensors", None), "'tensors' is None, expected"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(saved, damage):
    change, message = DAMAGE[damage]
    change(saved)
    missing = damage in ("no tensors", "no description")
    with pytest.raises(FileNotFoundError if missing else ValueError, match=message):
        artifacts.load_subnet(saved)


def test_no_such_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        artifacts.load_subnet(tmp_path / "subnet")


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
    artifacts.export_subnet(saved, net, variables, SHAPE, platforms=("cpu",))
    artifacts.load_subnet(saved)
    save(saved, net, variables)
    assert sorted(os.listdir(saved)) == ["model.safetensors", "subnet.json"]


def test_exporting_a_supernet_is_refused(tmp_path):
    case = setting("narrow")
    with pytest.raises(ValueError, match="more than one architecture"):
        artifacts.export_subnet(tmp_path, case.net, case.variables, SHAPE)
    assert not os.listdir(tmp_path)

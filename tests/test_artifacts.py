"""Saved and exported sub-networks: bit for bit, clear about damage, runnable without jaxnas."""

import hashlib
import json
import os
import subprocess
import sys
import textwrap

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
    return jaxnas.extract(case.net, case.params, arch, input_shape=SHAPE)


@pytest.fixture
def saved(tmp_path):
    """The folder of a saved network."""
    net, params = extracted("narrow")
    folder = tmp_path / "runs" / "subnet"
    artifacts.save_subnet(folder, net, params, extra={"mean": [0.5]})
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


@pytest.mark.parametrize("name", SETTINGS)
def test_round_trip_is_exact(name, tmp_path):
    for seed in range(3):
        net, params = extracted(name, seed)
        artifacts.save_subnet(tmp_path / "subnet", net, params)  # replaces the one before
        loaded, loaded_params = artifacts.load_subnet(tmp_path / "subnet")
        assert loaded == net
        assert jax.tree.structure(loaded_params) == jax.tree.structure(params)
        for a, b in zip(jax.tree.leaves(loaded_params), jax.tree.leaves(params), strict=True):
            assert a.dtype == jnp.float32
            np.testing.assert_array_equal(np.asarray(a).view(np.int32), np.asarray(b).view(np.int32))
    assert os.listdir(tmp_path) == ["subnet"]


def test_loaded_network_runs(saved):
    net, params = extracted("narrow")
    loaded, loaded_params = artifacts.load_subnet(saved)
    run = jit(lambda params: net.apply({"params": params}, normal(*SHAPE)))
    run_loaded = jit(lambda params: loaded.apply({"params": params}, normal(*SHAPE)))
    np.testing.assert_array_equal(run_loaded(loaded_params), run(params))


def test_files_can_be_read_without_jaxnas(saved):
    net, params = extracted("narrow")
    tensors = safetensors.numpy.load_file(saved / "model.safetensors")
    np.testing.assert_array_equal(
        tensors["block_0/attention/qkv_kernel"], params["block_0"]["attention"]["qkv_kernel"]
    )
    description = json.loads((saved / "subnet.json").read_text())
    assert description["module"] == "ViT" and description["extra"] == {"mean": [0.5]}
    assert description["architecture"] == net.space.to_dict(net.space.smallest())
    assert description["input_shape"] == list(SHAPE[1:])
    assert description["fields"]["dtype"] == "float32"


def test_saving_refuses_what_is_not_one_network(tmp_path):
    case = setting("narrow")
    net, params = extracted("narrow")
    with pytest.raises(ValueError, match="60 architectures; extract one of them first"):
        artifacts.save_subnet(tmp_path / "subnet", case.net, case.params)
    with pytest.raises(ValueError, match="missing: head/bias"):
        artifacts.save_subnet(tmp_path / "subnet", net, {**params, "head": {}})
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    with pytest.raises(ValueError, match="are float32; given: .* bfloat16"):
        artifacts.save_subnet(tmp_path / "subnet", net, half)
    with pytest.raises(TypeError, match="not JSON serializable"):
        artifacts.save_subnet(tmp_path / "subnet", net, params, extra={"mean": object()})
    assert not os.listdir(tmp_path)


def test_saving_deletes_no_other_files(saved):
    net, params = extracted("narrow")
    (saved / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="other files, which would be lost: notes.txt"):
        artifacts.save_subnet(saved, net, params)
    assert (saved / "notes.txt").read_text() == "mine"


def test_failed_replacement_keeps_the_old_one(saved, monkeypatch):
    net, params = extracted("narrow")
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    rename = type(saved).rename

    def fail(path, target):
        if path.name == "new":
            raise OSError("no space left")
        return rename(path, target)

    monkeypatch.setattr(type(saved), "rename", fail)
    with pytest.raises(OSError, match="no space left"):
        artifacts.save_subnet(saved, net, params, extra={"new": 1})
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
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


def of_double(folder):
    store(folder, lambda t: t.update({"head/bias": t["head/bias"].astype(np.float64)}))


DAMAGE = {
    "no tensors": (lambda f: (f / artifacts.TENSORS).unlink(), "model.safetensors is missing"),
    "no description": (lambda f: (f / artifacts.DESCRIPTION).unlink(), "subnet.json is missing"),
    "truncated": (truncate, "is damaged: it has .* bytes instead of"),
    "a bit": (flip, "its content has changed"),
    "not safetensors": (garble, "is not a safetensors file"),
    "missing": (lambda f: store(f, lambda t: t.pop("head/bias")), "missing: head/bias"),
    "extra": (lambda f: store(f, lambda t: t.update(tail=t["head/bias"])), "unexpected: tail"),
    "misshapen": (
        lambda f: store(f, lambda t: t.update({"head/bias": t["head/bias"][:3]})),
        r"misshapen: head/bias \(3,\) instead of \(5,\)",
    ),
    "type": (of_double, "are float32; given: head/bias float64"),
    "not JSON": (lambda f: (f / artifacts.DESCRIPTION).write_text('{"format": 1'), "not JSON"),
    "not a dict": (lambda f: (f / artifacts.DESCRIPTION).write_text("3"), "'format' is missing"),
    "module": (lambda f: describe(f, lambda d: d.update(module="VIT")), "did you mean 'ViT'"),
    "newer": (lambda f: describe(f, lambda d: d.update(format=2)), "format 2, .* up to 1"),
    "no space": (lambda f: describe(f, lambda d: d["fields"].pop("space")), "space"),
    "no fields": (lambda f: describe(f, lambda d: d.pop("fields")), "'fields' is missing"),
    "field": (
        lambda f: describe(f, lambda d: d["fields"].update(head_dims=4)),
        "has no field 'head_dims'; did you mean 'head_dim'",
    ),
    "dtype": (
        lambda f: describe(f, lambda d: d["fields"].update(dtype="float31")),
        "unknown dtype 'float31'; did you mean 'float32'",
    ),
    "size": (lambda f: describe(f, lambda d: d["fields"].update(image_size=9)), "not a multiple"),
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
    net, params = extracted("narrow", 1)
    path = artifacts.export_subnet(tmp_path, net, params, SHAPE)
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
    run = jax.jit(lambda images: net.apply({"params": params}, images))
    for size in (1, 3):
        logits = np.load(tmp_path / f"logits_{size}.npy")
        expected = run(normal(size, *SHAPE[1:]))
        assert logits.shape == (size, 5) and logits.dtype == np.float32
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


def test_export_goes_beside_the_saved_network(saved):
    net, params = artifacts.load_subnet(saved)
    artifacts.export_subnet(saved, net, params, SHAPE, platforms=("cpu",))
    artifacts.load_subnet(saved)
    artifacts.save_subnet(saved, net, params)
    assert sorted(os.listdir(saved)) == ["model.safetensors", "subnet.json"]


def test_exporting_a_supernet_is_refused(tmp_path):
    case = setting("narrow")
    with pytest.raises(ValueError, match="more than one architecture"):
        artifacts.export_subnet(tmp_path, case.net, case.params, SHAPE)
    assert not os.listdir(tmp_path)

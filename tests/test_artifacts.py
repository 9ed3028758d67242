"""Saved and exported sub-networks: bit for bit, clear about damage, runnable without jaxnas."""

import functools
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
import safetensors.numpy
from small_nets import NARROW, SETTINGS, SHAPE, normal, sample, setting
from user_networks import Elastic

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
    folder = tmp_path / "runs" / "subnet"
    save(folder, *extracted("narrow"), extra={"mean": [0.5]})
    return folder


def bits(tree):
    return jax.tree.map(lambda x: (x.dtype, x.shape, np.asarray(x).tobytes()), tree)


@pytest.mark.parametrize("name", SETTINGS)
def test_round_trip_is_exact(name, tmp_path):
    for seed in range(2):
        net, variables = extracted(name, seed)
        save(tmp_path / "subnet", net, variables)  # replaces the one before
        loaded, loaded_variables = artifacts.load_subnet(tmp_path / "subnet")
        assert loaded == net and bits(loaded_variables) == bits(variables)
    assert os.listdir(tmp_path) == ["subnet"]


RUN_ALONE = """
import sys
sys.modules |= {"jaxnas": None, "flax": None}  # they cannot be imported
import pathlib, jax, numpy
program = jax.export.deserialize(pathlib.Path("subnet/model.stablehlo").read_bytes())
assert set(program.platforms) == {"cpu", "cuda", "tpu"}
for size in (1, 3):
    numpy.save(f"logits_{size}.npy", program.call(numpy.load(f"images_{size}.npy")))
"""


def test_files_are_read_and_an_exported_program_runs_without_jaxnas(saved):
    net, variables = extracted("narrow")
    tensors = safetensors.numpy.load_file(saved / "model.safetensors")
    kernel = variables["params"]["block_0"]["attention"]["qkv_kernel"]
    np.testing.assert_array_equal(tensors["params/block_0/attention/qkv_kernel"], kernel)
    description = json.loads((saved / "subnet.json").read_text())
    assert description["module"] == "ViT" and description["extra"] == {"mean": [0.5]}
    assert description["architecture"] == net.space.to_dict(net.space.smallest())
    assert description["inputs"] == {"shape": list(SHAPE[1:]), "dtype": "float32"}
    assert description["fields"]["dtype"] == {"dtype": "float32"}
    net, variables = artifacts.load_subnet(saved)
    path = artifacts.export_subnet(saved, net, variables, SHAPE)
    assert path == saved / "model.stablehlo" and artifacts.exported_batch(path) is None
    assert artifacts.load_subnet(saved)[0] == net
    images = {size: normal(size, *SHAPE[1:]) for size in (1, 3)}
    for size, batch in images.items():
        np.save(saved.parent / f"images_{size}.npy", batch)
    command, environment = [sys.executable, "-c", RUN_ALONE], os.environ | {"JAX_PLATFORMS": "cpu"}
    subprocess.run(command, cwd=saved.parent, check=True, timeout=300, env=environment)
    for size, batch in images.items():
        logits = np.load(saved.parent / f"logits_{size}.npy")
        assert logits.shape == (size, 5) and logits.dtype == np.float32
        np.testing.assert_allclose(logits, jax.jit(net.apply)(variables, batch), rtol=1e-5, atol=1e-5)
    save(saved, net, variables)
    assert sorted(os.listdir(saved)) == ["model.safetensors", "subnet.json"]


class Everything(nn.Module):
    """A network of a user's own, with every kind of field, input, weight and output, and batch statistics."""

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
        turn = self.param("turn", nn.initializers.normal(dtype=jnp.complex64), (4,))
        y = rows.astype(self.dtype) @ kernel * mask[:, None].astype(self.dtype)
        return y, {"more": [rows.astype(jnp.complex64) * turn[None], jnp.sum(rows, axis=1)]}


EVERYTHING = Everything(jaxnas.Space(size=jaxnas.Choice(3)))
INPUTS = {"x": normal(2, 4), "more": (np.ones(2, np.int32),)}


def calibrated():
    """Its initial variables, and those with other statistics."""
    initial = jaxnas.init(EVERYTHING, jax.random.key(0), INPUTS)
    return initial, initial | {"batch_stats": jax.tree.map(lambda x: x + 1, initial["batch_stats"])}


def test_a_network_of_the_users_own_is_saved_and_exported_and_broken_weights_are_not(tmp_path):
    initial, variables = calibrated()
    artifacts.save_subnet(tmp_path, EVERYTHING, variables, INPUTS)
    loaded, same = artifacts.load_subnet(tmp_path, module=Everything)
    assert loaded == EVERYTHING and bits(same) == bits(variables)
    platform = jax.export.default_export_platform()
    export = functools.partial(artifacts.export_subnet, tmp_path)
    path = export(loaded, same, INPUTS, platform)
    program = jax.export.deserialize(path.read_bytes())
    assert program.platforms == (platform,)
    np.testing.assert_array_equal(program.call(INPUTS)[0], loaded.apply(same, INPUTS)[0])
    one = jax.tree.map(lambda x: x[:1], INPUTS)
    found, expected = program.call(one), loaded.apply(same, one)
    jax.tree.map(lambda y, z: np.testing.assert_allclose(y, z, rtol=1e-5, atol=1e-6), found, expected)

    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, variables)
    without = {"params": initial["params"]}
    weights = ((initial, "calibrate"), (broken, "params/BatchNorm_0/bias"), (without, "batch_stats"))
    doors = [
        (lambda door=door, given=given: door(tmp_path, EVERYTHING, given, INPUTS), ValueError, name)
        for door in (artifacts.save_subnet, artifacts.export_subnet)
        for given, name in weights
    ]
    another = jaxnas.supernets.ViT
    refusals.check(
        *doors,
        (lambda: export(loaded, same, INPUTS, "cpus"), ValueError, "'cpus'", "'cpu'"),
        (lambda: artifacts.load_subnet(tmp_path), ValueError, "'Everything'", "module="),
        (lambda: artifacts.load_subnet(tmp_path, module=another), ValueError, "'ViT'"),
    )


def test_names_of_tensors_keep_slashes_within_parts(tmp_path):
    names = ("mlp/~/linear_0", "100%2F"), ("plain", "w")
    weights = {names[0][0]: {names[0][1]: jnp.ones((4, 8))}, "plain": {"w": jnp.ones((8, 2))}}

    def mlp(given, x):
        return jnp.tanh(x @ given[names[0][0]][names[0][1]]) @ given["plain"]["w"]

    rows = jnp.ones((2, 4))
    net = jaxnas.supernet(jaxnas.analyze(mlp, weights, rows), {"*": jaxnas.Choice(4, 8)}, form="masked")
    small, variables, _ = jaxnas.extract(net, {"params": weights}, net.space.smallest(), verify=rows)
    artifacts.save_subnet(tmp_path, small, variables, rows)
    for module in (net, None):
        loaded, same = artifacts.load_subnet(tmp_path, module=module)
        assert bits(same) == bits(variables)
        np.testing.assert_allclose(loaded.apply(same, rows), small.apply(variables, rows), rtol=1e-6)


def test_what_cannot_be_saved_is_refused_and_leaves_nothing(tmp_path):
    class ViT(Everything):
        pass

    case, (net, variables) = setting("narrow"), extracted("narrow")
    _, own = calibrated()
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


def test_what_a_killed_writer_leaves_stops_nothing_and_no_other_file_is_deleted(saved):
    """A search that was killed during the export goes on."""
    (saved / ".model.stablehlo.tmp").write_bytes(b"half a program")
    leftover = saved.parent / ".subnet.tmp-new"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half a save")
    save(saved, *extracted("narrow"))
    assert sorted(os.listdir(saved)) == ["model.safetensors", "subnet.json"]
    assert os.listdir(saved.parent) == ["subnet"]
    (saved / "notes.txt").write_text("mine")
    refusals.check((lambda: save(saved, *extracted("narrow")), FileExistsError, "notes.txt"))
    assert (saved / "notes.txt").read_text() == "mine"


def file(name, change):
    def damage(folder):
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return damage


def describing(change):
    def changed(data):
        description = json.loads(data)
        change(description)
        return json.dumps(description).encode()

    return file(artifacts.DESCRIPTION, changed)


def sealed(change):
    def damage(folder):
        file(artifacts.TENSORS, change)(folder)
        data = (folder / artifacts.TENSORS).read_bytes()
        entry(tensors={"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})(folder)

    return damage


def tensors(change):
    def changed(data):
        found = safetensors.numpy.load(data)
        change(found)
        return safetensors.numpy.save(found)

    return sealed(changed)


def field(**values):
    return describing(lambda d: d["fields"].update(values))


def entry(**values):
    return describing(lambda d: d.update(values))


def enormous(description):
    description["fields"].update(image_size=10**9)
    description["inputs"].update(shape=[10**9, 10**9, 1])


_HEADER = json.dumps({"a": {"dtype": "F32", "shape": [1] * 10_000, "data_offsets": [0, 4]}}).encode()
AXES = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(4)
BIAS = "params/head/bias"


DAMAGE = (
    # What is done to the folder, and what the message names.
    (file(artifacts.TENSORS, lambda data: data[:-10]), "bytes"),
    (file(artifacts.TENSORS, lambda data: data[:-1] + bytes([data[-1] ^ 1])), artifacts.TENSORS),
    (sealed(lambda data: b"\xff" * 100), "safetensors"),
    (sealed(lambda data: AXES), "safetensors"),
    (tensors(lambda t: t.pop(BIAS)), BIAS),
    (tensors(lambda t: t.update(tail=t[BIAS])), "tail"),
    (tensors(lambda t: t.update({BIAS: t[BIAS][:3]})), f"{BIAS} (3,) instead of (5,)"),
    (tensors(lambda t: t.update({BIAS: t[BIAS] * np.nan})), "NaN", BIAS),
    (file(artifacts.DESCRIPTION, lambda _: b'{"format": 1'), "JSON"),
    (file(artifacts.DESCRIPTION, lambda _: b"[" * 100_000), "nested"),
    (entry(module="VIT"), "'VIT'", "'ViT'"),
    (entry(format=3), "3", "2"),
    (describing(lambda d: d.pop("format")), "'format'"),
    (describing(lambda d: d["architecture"].update(depth=7)), "'architecture'", "7"),
    (field(space={"space": {"a": 3}}), artifacts.DESCRIPTION),
    (field(space={"space": NARROW.to_json()}), "60"),  # architectures
    (describing(lambda d: d.pop("fields")), "'fields'"),
    (field(head_dims=4), "'head_dims'", "'head_dim'"),
    (field(head_dim={"import": "os"}), "import"),
    (field(dtype={"dtype": "float31"}), "'float31'", "'float32'"),
    (field(image_size=9), "9"),
    (field(image_size=16), "float32[1, 8, 8, 1]"),
    (describing(enormous), "1000000000"),
    (entry(inputs={"shape": [8, -8, 1], "dtype": "float32"}), "-8"),
    (entry(tensors={"bytes": 3}), "'sha256'"),
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


class CountsRows(Elastic):
    """It asks Python for the batch size."""

    def body(self, x, decisions, train):
        return nn.Dense(2)(x) / len(x)


def test_a_network_without_a_symbolic_batch_size_is_exported_for_its_inputs(tmp_path, caplog):
    net, x = CountsRows(EVERYTHING.space), normal(4, 3)
    variables = jaxnas.init(net, jax.random.key(0), x)
    with caplog.at_level(logging.WARNING):
        path = artifacts.export_subnet(tmp_path, net, variables, x, platforms=("cpu",))
    assert "CountsRows" in caplog.text and "float32[4, 3]" in caplog.text
    assert artifacts.exported_batch(path) == 4
    program = jax.export.deserialize(bytearray(path.read_bytes()))
    np.testing.assert_allclose(program.call(x), jax.jit(net.apply)(variables, x), rtol=1e-6)

"""Checkpoints that cannot be read or written, and what their errors name. No PyTorch is needed."""

import json
import pathlib
import struct
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals

from jaxnas import hf
from jaxnas.hf import checkpoint, decoder_values, tensor_files

SIZES = dict(vocab_size=11, hidden_size=12, num_hidden_layers=2, intermediate_size=10, head_dim=4)
VALUES = dict(**SIZES, model_type="llama", architectures=["LlamaForCausalLM"], dtype="float32")
VALUES |= dict(num_attention_heads=4, num_key_value_heads=2)


def drawn(module):
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    random = np.random.default_rng(0)
    return jax.tree.map(lambda x: random.normal(size=x.shape).astype(np.float32), shapes)


def built(folder, **more):
    values = {**VALUES, **more}
    module = decoder_values.read(values)
    return module, drawn(module), checkpoint.Config(values, folder)


@pytest.fixture
def saved(tmp_path):
    def save(name, damage=lambda folder: None, **more):
        folder = tmp_path / name
        hf.save(folder, *built(tmp_path, **more))
        damage(folder)
        return lambda: hf.load(folder)

    return save


def with_tensors(change):
    def damage(folder):
        path = folder / "model.safetensors"
        with tensor_files.Tensors(folder) as tensors:
            arrays = {name: tensors.read(name) for name in tensors.shapes}
        arrays = change(arrays)
        given = {name: (x.shape, x.dtype, lambda x=x: x) for name, x in arrays.items()}
        tensor_files.write(path, given)

    return damage


def with_file(name, change):
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def with_bytes(change):
    return with_file("model.safetensors", change)


def with_values(**more):
    return with_file("config.json", lambda data: json.dumps({**json.loads(data), **more}).encode())


def with_index(places):
    def damage(folder):
        (folder / "model.safetensors").rename(folder / "a.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))

    return damage


NORM = "model.norm.weight"
BROKEN_HEADER = struct.pack("<Q", 2**60)


def test_what_cannot_be_read(saved, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "empty").mkdir()
    others = with_tensors(lambda x: {**x, "more": x[NORM], "lm_head.weight": x[NORM]})
    different = "unexpected: more", "lm_head.weight (12,) instead of (11, 12)"
    beyond = with_bytes(lambda data: data.replace(b"[0,", b"[9,", 1))
    sizes = dict(layers=[dict(kv_groups=3, group_heads=1, hidden=1)] * 2)
    gemma, vit = dict(model_type="gemma3_text"), dict(model_type="vit", architectures=["ViTModel"])
    both_ways = with_values(**gemma, use_bidirectional_attention=True)
    cases = [
        (with_values(model_type="bert"), "'bert'", "llama", "gemma3_text", "vit"),
        (with_values(model_type=None), "None", "qwen3"),
        (with_values(quantization_config={"bits": 4}), "quantization_config"),
        (with_values(per_layer_config={"0": {}}), "per_layer_config"),
        (with_values(rope_parameters={"rope_type": "yarn"}), "'yarn'", "llama3"),
        (with_values(partial_rotary_factor=0.5), "partial_rotary_factor", "0.5"),
        (with_values(rope_scaling="yarn"), "rope_scaling", "'yarn'"),
        (with_values(hidden_act="mish"), "'mish'", "silu"),
        (with_values(num_key_value_heads=3), "num_attention_heads", "4", "3"),
        (with_values(vocab_size="11"), "vocab_size", "'11'"),
        (with_values(jaxnas={"layers": [1]}), "jaxnas.layers", "2 layers"),
        (with_values(jaxnas=sizes), "jaxnas.layers"),
        (with_values(**gemma, layer_types=["full"]), "layer_types", "2 layers"),
        (both_ways, "use_bidirectional_attention"),
        (with_values(**vit), "ViTModel", "ViTForImageClassification"),
        (with_file("config.json", lambda _: b"{"), "config.json"),
        (with_file("config.json", lambda _: b"[]"), "config.json", "model_type"),
        (lambda folder: (folder / "config.json").unlink(), "config.json", "model.safetensors"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors.index.json"),
        (with_tensors(lambda x: {k: v for k, v in x.items() if k != NORM}), "missing: " + NORM),
        (others, *different),
        (with_values(num_hidden_layers=3), "model.layers.2.mlp.up_proj.weight"),
        (with_values(num_hidden_layers=10**12), "num_hidden_layers", "21 tensors"),
        (with_index({NORM: "b.safetensors", "x": "a.safetensors"}), "b.safetensors"),
        (with_index({NORM: "../0/model.safetensors"}), "../0/model.safetensors"),
        (with_index(None), "weight_map"),
        (with_bytes(lambda data: data[:-5]), "model.safetensors"),
        (with_bytes(lambda data: BROKEN_HEADER + data[8:]), "model.safetensors", "header"),
        (beyond, "model.safetensors"),
        (with_bytes(lambda data: b""), "model.safetensors"),
        (with_bytes(lambda data: data.replace(b'"F32"', b'"I32"')), "int32", "float32"),
    ]
    refusals.check(
        *((saved(str(i), damage), ValueError, *names) for i, (damage, *names) in enumerate(cases)),
        (lambda: hf.load(tmp_path / "model.gguf"), ValueError, "tools.convert_gguf", "model.gguf"),
        (lambda: hf.load(tmp_path / "empty"), ValueError, "config.json", "nothing", "convert_gguf"),
        (lambda: hf.load(tmp_path / "other"), ValueError, "other"),
        (lambda: hf.load("no_name_of_the_hub"), ValueError, "owner/name"),
    )


def test_importing_jaxnas_brings_none_of_their_packages():
    code = "import jaxnas.hf, sys; print({'torch', 'transformers', 'huggingface_hub'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_a_name_of_the_hub_is_a_folder_of_its_cache_and_needs_its_package(monkeypatch, tmp_path):
    hf.save(tmp_path / "snapshot", *built(tmp_path))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.chdir(tmp_path)
    refusals.check((lambda: hf.load("owner/name"), ImportError, "owner/name", "jaxnas[hf]"))
    asked = []

    def snapshot_download(name, *, allow_patterns):
        asked.append(name)
        if name != "owner/name":
            raise OSError("404")
        return str(tmp_path / "snapshot")

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(**locals()))
    assert hf.load("owner/name").config.folder == tmp_path / "snapshot"
    refusals.check((lambda: hf.load("owner/other"), ValueError, "owner/other", "404"))
    assert asked == ["owner/name", "owner/other"]


def test_what_cannot_be_written(tmp_path):
    module, variables, config = built(tmp_path / "in")
    gemma = built(tmp_path / "in", model_type="gemma3_text")
    wide = module.clone(width=13)
    prime = gemma[0].clone(width=13, kv_groups=(3, 3), group_heads=(1, 1))
    nothing = module.clone(kv_groups=(0, 0), group_heads=(0, 0), hidden=(0, 0))
    double = jax.tree.map(lambda x: np.asarray(x, np.float64), variables)

    def save(*given):
        return lambda: hf.save(tmp_path / "out", *given)

    refusals.check(
        (save(wide, variables, config), ValueError, "embed/embedding (11, 12) instead of (11, 13)"),
        (save(module, variables["params"], config), ValueError, "missing", "norm/scale"),
        (save(module, {"params": variables}, config), ValueError, "unexpected"),
        (save(prime, drawn(prime), gemma[2]), ValueError, "13", "3 heads"),
        (save(nothing, drawn(nothing), config), ValueError, "layer"),
        (save(module, double, config), ValueError, "float64", "bfloat16"),
        (save(len, variables, config), ValueError, "builtin_function_or_method"),
        (lambda: hf.save(tmp_path, module, variables, built(tmp_path)[2]), ValueError, str(tmp_path)),
    )
    assert not [path for path in pathlib.Path(tmp_path).rglob("*") if path.is_file()]


def test_heads_are_padded_where_a_family_needs_a_divisor(tmp_path):
    """A Gemma, and a Llama with biases, whose width is no multiple of its heads."""
    tokens = jnp.arange(10, dtype=jnp.int32).reshape(2, 5)
    gemma = dict(model_type="gemma3_text", layer_types=["full_attention"] * 2)
    for more in (gemma, dict(attention_bias=True)):
        module, _, config = built(tmp_path, **more)
        module = module.clone(width=10, kv_groups=(3, 0), group_heads=(1, 1))
        variables = drawn(module)
        (note, *_) = hf.save(tmp_path / "out", module, variables, config)
        assert "3 heads" in note and "to 5" in note
        again = hf.load(tmp_path / "out")
        assert again.config.values["num_attention_heads"] == 5 and again.module.kv_groups == (3, 0)
        found = jax.jit(again.module.apply)(again.variables, tokens)
        assert jnp.abs(found - jax.jit(module.apply)(variables, tokens)).max() < 1e-5

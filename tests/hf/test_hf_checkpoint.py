"""Checkpoints of transformers: the same function, and the same files when they are written again."""

import json

import hf_checkpoints
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_checkpoints import CASES, inputs_of, logits, make
from jax.sharding import PartitionSpec
from small_nets import difference

import jaxnas
from jaxnas import hf
from jaxnas.hf import decoder_values

torch = pytest.importorskip("torch", reason="PyTorch, for comparison, comes with the extra `torch`")
transformers = pytest.importorskip("transformers", reason="it comes with the extra `torch`")


def contents(folder):
    return (folder / "model.safetensors").read_bytes(), json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_is_the_same_function_and_is_written_back_to_the_bit(name, tmp_path):
    model = make(name, tmp_path / "in")
    module, variables, config = hf.load(tmp_path / "in")
    inputs = inputs_of(name)
    found = jax.jit(module.apply)(variables, inputs)
    assert found.dtype == jnp.float32 and difference(found, logits(model, inputs)) < 2e-5
    shapes = jax.eval_shape(module.init, jax.random.key(0), inputs)
    assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, shapes)
    (tmp_path / "in/tokenizer.json").write_text("{}")
    assert hf.save(tmp_path / "out", module, variables, config) == ()
    assert contents(tmp_path / "out") == contents(tmp_path / "in")
    assert (tmp_path / "out/tokenizer.json").read_text() == "{}"


def test_shards_and_other_dtypes(tmp_path):
    model = make("qwen3", tmp_path / "in", dtype=torch.bfloat16)
    make("qwen3", tmp_path / "shards", dtype=torch.bfloat16, max_shard_size="10KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 3
    loaded = hf.load(tmp_path / "shards", dtype=jnp.bfloat16)
    assert {x.dtype for x in jax.tree.leaves(loaded.variables)} == {jnp.dtype(jnp.bfloat16)}
    assert loaded.module.dtype == jnp.bfloat16
    hf.save(tmp_path / "out", *loaded)
    assert contents(tmp_path / "out") == contents(tmp_path / "in")
    wide = hf.load(tmp_path / "in")  # in float32
    hf.save(tmp_path / "wide", *wide)
    assert contents(tmp_path / "wide")[1]["dtype"] == "float32"
    same = jax.tree.map(lambda a, b: bool((a.astype(b.dtype) == b).all()), wide.variables, loaded.variables)
    assert all(jax.tree.leaves(same))
    half = jax.jit(loaded.module.apply)(loaded.variables, inputs_of("qwen3"))
    exact = jax.jit(wide.module.apply)(wide.variables, inputs_of("qwen3"))
    assert difference(half, exact) < 0.05 and difference(half, logits(model, inputs_of("qwen3"))) < 0.05
    groups = jaxnas.analyze(loaded.module, loaded.variables, inputs_of("qwen3"))
    net = jaxnas.supernet(groups, {"width": jaxnas.Choice(16, 24)}, form="masked", verify=False)
    _, variables, _ = jaxnas.extract(net, loaded.variables, net.space.smallest(), inputs=inputs_of("qwen3"))
    assert variables["params"]["embed"]["embedding"].shape == (61, 16)
    assert {x.dtype for x in jax.tree.leaves(variables)} == {jnp.dtype(jnp.bfloat16)}


OLD_LLAMA3 = {key: n for key, n in hf_checkpoints.LLAMA3.items() if key != "rope_theta"}
OLD = [  # keys of transformers 4
    ("llama", dict(rope_theta=500.0)),
    ("llama", dict(rope_theta=500.0, rope_scaling=OLD_LLAMA3)),
    ("llama", dict(rope_scaling={"type": "linear", "factor": 4.0})),
    ("mistral", dict(sliding_window=None)),
    ("qwen2", dict(use_sliding_window=True, sliding_window=7, max_window_layers=2)),
    ("qwen3", dict(use_sliding_window=False, sliding_window=7)),
    ("gemma3_text", dict(rope_theta=2e6, rope_local_base_freq=2e4, sliding_window_pattern=2)),
    ("gemma3_text", dict(rope_scaling={"rope_type": "linear", "factor": 8.0}, head_dim=16)),
]


@pytest.mark.parametrize(("family", "more"), OLD)
def test_keys_of_transformers_4_and_5_mean_the_same(family, more):
    old = {"model_type": family, **hf_checkpoints.DECODER, **more}
    new = transformers.AutoConfig.for_model(family, **hf_checkpoints.DECODER, **more).to_dict()
    assert decoder_values.read(old) == decoder_values.read(new)


@pytest.mark.eight_devices
def test_tensors_are_put_on_a_mesh_as_they_are_read(tmp_path):
    make("llama", tmp_path)
    mesh = jax.make_mesh((4, 2), ("data", "model"), devices=jax.devices()[:8])
    plain, spread = hf.load(tmp_path), hf.load(tmp_path, mesh=mesh)
    layer, params = spread.variables["params"]["layers_1"], spread.variables["params"]
    attention, mlp = layer["attention"], layer["mlp"]
    rows, columns = PartitionSpec("model"), PartitionSpec(None, "model")
    expected = [(attention[name], columns) for name in ("query", "key")] + [(attention["out"], rows)]
    expected += [(mlp["gate"], columns), (mlp["down"], rows)]
    for module, spec in (*expected, (params["embed"], PartitionSpec())):  # 61 tokens over two devices
        (x,) = module.values()
        assert x.sharding.spec == spec and x.sharding.mesh == mesh
    same = jax.tree.map(lambda a, b: np.array_equal(a, b), plain.variables, spread.variables)
    assert all(jax.tree.leaves(same))

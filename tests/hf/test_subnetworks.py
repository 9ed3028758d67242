"""Sub-networks of checkpoints: extracted, saved, loaded by transformers with the same outputs, cut again."""

import json

import jax
import numpy as np
import pytest
import tiers
from hf_checkpoints import CASES, inputs_of, logits, make, reloaded
from small_nets import difference

import jaxnas
from jaxnas import Choice, Skip, hf

pytest.importorskip("torch", reason="PyTorch, for comparison, comes with the extra `torch`")
pytest.importorskip("transformers", reason="it comes with the extra `torch`")

SKIPS = {"layers_*": Skip(), "layers_*/attention": Skip(), "layers_*/mlp": Skip()}
CHOICES = {"layers_*/mlp/hidden": Choice(10, 25, 40)}
HEADS = {"layers_*/attention/heads": Choice(1, 2, 3)}
GROUPS = {"layers_*/attention/kv_heads": Choice(1, 2), "layers_*/attention/queries": Choice(1, 2, 3)}
# A checkpoint, the choices of heads, the widths, and how many sub-networks are drawn.
SEARCHED = [
    ("llama", GROUPS, (17, 20, 24), 6),
    ("gemma3_one_group", {"layers_*/attention/query/hidden": Choice(1, 3, 4, 6)}, (16, 18, 24), 3),
    ("deit_teacher", HEADS, (16, 18, 24), 3),
    *tiers.nightly(
        ("vit", HEADS, (16, 18, 24), 4),
        ("qwen2_heads", {"layers_*/attention/heads": Choice(1, 4, 5, 6)}, (17, 24), 4),
    ),
]


@pytest.mark.parametrize(("name", "heads", "widths", "count"), SEARCHED)
def test_random_subnetworks(name, heads, widths, count, tmp_path):
    make(name, tmp_path / "in")
    module, variables, config = hf.load(tmp_path / "in")
    inputs = inputs_of(name)
    groups = jaxnas.analyze(module, variables, inputs)
    choices = {"width": Choice(*widths), **CHOICES, **heads, **SKIPS}
    net = jaxnas.supernet(groups, choices, form="masked", verify=False)
    variables = jaxnas.order(net, variables, [inputs])
    run = jax.jit(net.apply)
    text = isinstance(module, hf.Decoder)
    memory = hf.memory_cost(net, inputs, module, batch=3, length=9, dtype="float32") if text else None
    forms, random = set(), np.random.default_rng(0)
    for number, key in enumerate(jax.random.split(jax.random.key(0), count)):
        arch = net.space.sample(key)
        for skip in SKIPS:  # most run, and the first one always
            row = (random.random(len(module.hidden)) < 0.8).astype(np.int32)
            row[0] = 1
            arch[skip] = jax.numpy.asarray(row)
        expected = run(variables, inputs, arch)
        small, own, error = jaxnas.extract(net, variables, arch, verify=inputs, rebuild=hf.rebuild(module))
        assert type(small) is type(module) and error < 1e-5
        if memory is not None:
            weights = sum(x.size for x in jax.tree.leaves(own))
            tokens = [9 if window is None else min(9, window) for window in small.windows]
            pairs = zip(small.kv_groups, tokens, strict=True)
            cache = sum(2 * 4 * small.form.head_dim * groups * length for groups, length in pairs)
            costs = {name: int(x) for name, x in memory(arch).items()}
            assert (costs["params"], costs["kv_bytes"]) == (weights, cache)
            assert costs["memory"] == 4 * weights + 3 * cache
        out = tmp_path / str(number)
        notes = hf.save(out, small, own, config)
        values = json.loads((out / "config.json").read_text())
        assert values.get("jaxnas", {}).get("notes", []) == list(notes)
        forms.add(values["model_type"])
        model = reloaded(out, CASES[name][0])
        assert difference(logits(model, inputs), expected) < 2e-5
        again = hf.load(out)  # without the padding; layers that do nothing are gone
        assert difference(jax.jit(again.module.apply)(again.variables, inputs), expected) < 2e-5
        sizes = [sum(x.size for x in jax.tree.leaves(one)) for one in (again.variables, own)]
        assert sizes[0] == sizes[1]
    assert run._cache_size() == 1
    assert forms == ({"llama", "mistral"} if name == "llama" else {values["model_type"]})


def test_a_checkpoint_is_cut_twice(tmp_path):
    """Each layer has its own sizes to choose from; one without MLP and one with a single head have none."""
    make("llama3", tmp_path / "0")
    tokens = inputs_of("llama3")
    first = {
        "layers_*/mlp/hidden": [20, 40, 20],
        "layers_*/attention/kv_heads": [2, 2, 1],
        "layers_*/mlp": ["keep", "keep", "skip"],
    }
    second = {
        "layers_0/mlp/hidden": 10,
        "layers_1/mlp/hidden": 20,
        "layers_*/attention/kv_heads": [1, 2],
        "layers_*/attention": ["keep", "skip", "keep"],
    }
    for number, cut in enumerate((first, second)):
        module, variables, config = hf.load(tmp_path / str(number))
        prunable = hf.Prunable(checkpoint=config.folder, hidden=(0.5, 1.0), form="masked")
        net = prunable.network(module, variables, config, tokens)
        arch = net.space.from_dict(net.space.to_dict(net.space.largest()) | cut)
        small, own, _ = jaxnas.extract(net, variables, arch, verify=tokens)
        small.save(tmp_path / str(number + 1), own)
        expected = jax.jit(net.apply)(variables, tokens, arch)
        model = reloaded(tmp_path / str(number + 1), CASES["llama3"][0])
        assert difference(logits(model, tokens), expected) < 2e-5
    last = hf.load(tmp_path / "2").module
    assert (last.hidden, last.kv_groups) == ((10, 20, 0), (1, 0, 1))

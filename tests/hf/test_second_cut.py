"""A checkpoint that was cut to different sizes by layer is cut again."""

import jax
import pytest
from hf_checkpoints import CASES, difference, inputs_of, logits, make, reloaded

import jaxnas
from jaxnas import hf

pytest.importorskip("torch", reason="PyTorch, for comparison, comes with the extra `torch`")
pytest.importorskip("transformers", reason="it comes with the extra `torch`")


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

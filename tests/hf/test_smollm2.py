"""A real checkpoint, SmolLM2-135M-Instruct, as tools/convert_gguf.py makes it of the file of 4 bits."""

import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnas import hf
from jaxnas.data import source_files

FOLDER, TEXT = os.environ.get("JAXNAS_SMOLLM2"), os.environ.get("JAXNAS_TEXT")
without = pytest.mark.skipif(not FOLDER, reason="JAXNAS_SMOLLM2 names no folder with the checkpoint")
pytestmark = [pytest.mark.more, without]


@pytest.fixture(scope="module")
def loaded():
    return hf.load(FOLDER)


def test_it_is_written_back_to_the_bit(loaded, tmp_path):
    module, variables, config = loaded
    assert sum(x.size for x in jax.tree.leaves(variables)) == 134_515_008
    assert hf.save(tmp_path, module, variables, config) == ()
    source = pathlib.Path(FOLDER)
    for name in ("model.safetensors", "tokenizer.json", "generation_config.json"):
        assert (tmp_path / name).read_bytes() == (source / name).read_bytes()
    assert json.loads((tmp_path / "config.json").read_text()) == config.values


def test_its_perplexity_is_the_known_one(loaded):
    tokenizers = pytest.importorskip("tokenizers", reason="it comes with the extra `torch`")
    try:
        path = source_files.find_source(TEXT, "wikitext-2.test.txt", "wiki.test.tokens")
    except (FileNotFoundError, TypeError) as error:
        pytest.skip(f"JAXNAS_TEXT: {error}")
    tokenizer = tokenizers.Tokenizer.from_file(f"{FOLDER}/tokenizer.json")
    text = source_files.read_bytes(path).decode()
    tokens = np.array(tokenizer.encode(text[:40_000]).ids[: 8 * 512], np.int32).reshape(8, 512)

    @jax.jit
    def loss(variables, row):
        logits = loaded[0].apply(variables, row[None])[0, :-1]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), row[1:, None], -1).mean()

    losses = [float(loss(loaded[1], row)) for row in tokens]
    assert abs(np.exp(np.mean(losses)) - 27.61) < 0.05

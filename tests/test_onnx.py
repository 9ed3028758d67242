"""ONNX files of extracted networks give the networks' predictions in onnxruntime."""

import sys

import jax
import numpy as np
import pytest
import refusals
from small_nets import TABLE, TEXT, normal, setting

import jaxnas
from jaxnas import onnx

KEY = jax.random.key(0)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")  # by the converter
@pytest.mark.nightly  # jax2onnx cannot be in an extra: it asks for an older Orbax
@pytest.mark.parametrize("kind", ["images", "text"])
def test_a_file_gives_the_predictions_for_any_batch_size(kind, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("jax2onnx")
    if kind == "images":
        net, batches = setting("narrow").net, [normal(rows, 8, 8, 1) for rows in (2, 5)]
    else:
        tokens = np.random.default_rng(0).integers(1, 7, (5, 5), np.int32)
        net, batches = TEXT, [{"tokens": tokens[:n], "mask": tokens[:n] > 2} for n in (2, 5)]
    variables = jaxnas.init(net, KEY, batches[0])
    found = jaxnas.extract(net, variables, net.space.sample(KEY), verify=batches[0])
    file = onnx.export_subnet(tmp_path, found.net, found.variables, batches[0])
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1  # its threads would wait for each other in a loop
    session = runtime.InferenceSession(str(file), options)
    for inputs in batches:
        flat, _ = jax.tree.flatten_with_path(inputs)
        given = {
            jax.tree_util.keystr(k, simple=True, separator="/") or "inputs": np.asarray(x) for k, x in flat
        }
        (outputs,) = session.run(None, given)
        expected = found.net.apply(found.variables, inputs)
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)


def test_refusals(tmp_path, monkeypatch):
    rows = normal(2, 5)
    variables = jaxnas.init(TABLE, KEY, rows)
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    refusals.check(
        (lambda: onnx.export_subnet(tmp_path, TABLE, variables, rows), ImportError, "jaxnas[onnx]")
    )
    monkeypatch.setitem(sys.modules, "jax2onnx", sys)
    refusals.check((lambda: onnx.export_subnet(tmp_path, TABLE, variables, rows), ValueError, "extract"))

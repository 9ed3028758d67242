"""Networks of one architecture as ONNX files.

`jaxnas.onnx.export_subnet("subnet", net, variables, images)`, beside `jaxnas.export_subnet`.
"""

from __future__ import annotations

import importlib
import os
import pathlib
from typing import Any

import jax
import numpy as np

from jaxnas import network
from jaxnas.artifacts import single_architecture, write_program
from jaxnas.inputs import with_batch
from jaxnas.network import Variables

MODEL = "model.onnx"


def export_subnet(path: str | os.PathLike, net: Any, variables: Variables, inputs: Any) -> pathlib.Path:
    """Exports a network with its weights as one ONNX model, `model.onnx`, for any batch size.

    Its inputs are the leaves of the network's inputs, in the order of `jax.tree.leaves` and named by their
    paths ("inputs", or "tokens" and "mask" of a dict); its outputs are the leaves of the predictions.

    Args:
      path: of the folder to put it in, which is made if needed.
      net: the module that `jaxnas.extract` returned.
      variables: its variables, by collection.
      inputs: a pytree of arrays or `jax.ShapeDtypeStruct`, batch in front, or a tuple of ints for one float32
        array.

    Returns:
      The path of the file.

    Raises:
      ImportError: jax2onnx is not installed.
      ValueError: a network with more than one architecture, or variables that are not its own.
    """
    try:
        converter = importlib.import_module("jax2onnx")
    except ImportError as error:
        raise ImportError(
            "ONNX files need jax2onnx. Its version 0.17 asks for an older Orbax than jaxnas, so install it "
            f"without its dependencies: pip install 'jaxnas[onnx]'; pip install --no-deps jax2onnx ({error})"
        ) from error
    variables = single_architecture(net, variables, inputs)
    constants = jax.tree.map(np.asarray, variables)
    leaves, structure = jax.tree.flatten_with_path(with_batch(inputs, "batch"))

    def forward(*arrays: Any) -> Any:
        return network.predictions(net.apply(constants, jax.tree.unflatten(structure, arrays)))

    names = [jax.tree_util.keystr(key, simple=True, separator="/") or "inputs" for key, _ in leaves]
    with jax.numpy_dtype_promotion("standard"):  # the converter traces some sums in 64 bits
        model = converter.to_onnx(
            forward, [leaf for _, leaf in leaves], model_name=type(net).__name__, input_names=names
        )
    return write_program(path, MODEL, model.SerializeToString())

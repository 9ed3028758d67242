"""Sub-networks as files: save, load, and export to run where jaxnas isn't installed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import tempfile
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from jaxnas import supernets
from jaxnas.choice import nearest
from jaxnas.cost import input_dtype
from jaxnas.space import Space
from jaxnas.subnet import Params, check_tensors, predictions

FORMAT = 1
TENSORS = "model.safetensors"
DESCRIPTION = "subnet.json"
PROGRAM = "model.stablehlo"
_MODULES = {"ViT": supernets.ViT, "TransformerXL": supernets.TransformerXL}
_DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}


def save_subnet(
    path: str | os.PathLike, net: nn.Module, params: Params, *, extra: dict[str, Any] | None = None
) -> None:
    """Saves an extracted network as a folder with `model.safetensors` and `subnet.json`.

    The tensors are named by their path, as in "block_0/attention/qkv_kernel". An older subnet in
    the same place is replaced, with its exported program: a reader finds the old one, none, or the
    whole new one, never a mixture.

    Args:
      path: of the folder; the one that it lies in is made if needed.
      net: the module that `jaxnas.extract` returned.
      params: its parameters, float32.
      extra: anything that JSON holds, kept under "extra" in `subnet.json`: what a user of the
        network needs to know, as the mean and deviation of the images.

    Raises:
      ValueError: a network with more than one architecture, of a module that isn't known, or with
        other parameters than its own.
      TypeError: an `extra` that JSON cannot hold.
      FileExistsError: the folder holds other files too.
    """
    module = type(net).__name__
    if _MODULES.get(module) is not type(net):
        raise ValueError(f"save_subnet knows the modules {sorted(_MODULES)}, got {module!r}.")
    if net.space.cardinality > 1:
        raise ValueError(
            f"The network has {net.space.cardinality:,} architectures; extract one of them first: "
            "jaxnas.extract(net, params, arch, verify=batch)."
        )
    flat = flax.traverse_util.flatten_dict(nn.meta.unbox(params))
    shape = _input_shape(net, flat)
    _check(net, shape, flat, "this network")
    tensors = {"/".join(p): np.array(leaf, order="C") for p, leaf in sorted(flat.items())}
    data = safetensors.numpy.save(tensors)
    description = {
        "format": FORMAT,
        "module": module,
        "architecture": net.space.to_dict(net.space.smallest()),
        "input_shape": shape,
        "fields": {name: _encode(name, getattr(net, name)) for name in _fields(net)},
        "tensors": {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()},
        "extra": extra or {},
    }
    text = json.dumps(description, indent=2, allow_nan=False) + "\n"
    _replace_folder(pathlib.Path(path), {TENSORS: data, DESCRIPTION: text.encode()})


def load_subnet(path: str | os.PathLike) -> tuple[nn.Module, Params]:
    """Loads what `save_subnet` wrote.

    Args:
      path: of the folder.

    Returns:
      `(net, params)`: the module, called without an architecture, and its parameters, bit for bit.

    Raises:
      FileNotFoundError: the folder, or a file in it, is missing.
      ValueError: a damaged file, a newer format, an unknown module, or tensors that aren't those of
        the module; the message says which.
    """
    folder = pathlib.Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"No subnet at {folder}: there is no such folder.")
    for name in (DESCRIPTION, TENSORS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} is not a whole subnet: {name} is missing.")
    description = _read_description(folder / DESCRIPTION)
    try:
        net = _module(description)
        shape, sealed = description["input_shape"], description["tensors"]
        size, digest = int(sealed["bytes"]), sealed["sha256"]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{folder / DESCRIPTION} doesn't describe a subnet: {reason}") from error
    tensors = _read_tensors(folder / TENSORS, size, digest)
    flat = {tuple(name.split("/")): value for name, value in tensors.items()}
    _check(net, shape, flat, f"the network that {folder / DESCRIPTION} describes")
    return net, flax.traverse_util.unflatten_dict({p: jnp.asarray(x) for p, x in flat.items()})


def export_subnet(
    path: str | os.PathLike,
    net: nn.Module,
    params: Params,
    input_shape: tuple[int, ...],
    platforms: tuple[str, ...] = ("cpu", "cuda", "tpu"),
) -> pathlib.Path:
    """Exports a network with its weights as one StableHLO program, `model.stablehlo`.

    It maps float32 images [batch, ...], of any batch size, to float32 logits [batch, classes]; of a
    language model int32 tokens [batch, length] to log-probabilities [batch, length, vocabulary],
    without a memory. It needs only jax (with flatbuffers) to run:

        program = jax.export.deserialize(pathlib.Path("model.stablehlo").read_bytes())
        logits = program.call(images)

    Args:
      path: of the folder to put it in, which is made if needed; that of `save_subnet` will do.
      net: the module that `jaxnas.extract` returned.
      params: its parameters.
      input_shape: of the images, `(batch, height, width, channels)`, or tokens, `(batch, length)`;
        the batch doesn't matter.
      platforms: that the program is for.

    Returns:
      The path of the file.

    Raises:
      ValueError: a network with more than one architecture.
    """
    params = jax.tree.map(np.asarray, nn.meta.unbox(params))  # constants of the program
    (batch,) = jax.export.symbolic_shape("batch")
    inputs = jax.ShapeDtypeStruct((batch, *input_shape[1:]), input_dtype(net))

    def forward(inputs: jax.Array) -> jax.Array:
        return predictions(net.apply({"params": params}, inputs))

    data = jax.export.export(jax.jit(forward), platforms=platforms)(inputs).serialize()
    folder = pathlib.Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{PROGRAM}.tmp"
    _write(temporary, bytes(data))
    os.replace(temporary, folder / PROGRAM)
    return folder / PROGRAM


def _fields(module: Any) -> dict[str, Any]:
    """The fields of a module that its user sets, by name."""
    return {f.name: f for f in dataclasses.fields(module) if f.name not in ("parent", "name")}


def _encode(name: str, value: Any) -> Any:
    if name == "space":
        return value.to_json()
    return jnp.dtype(value).name if name == "dtype" else value


def _decode(name: str, value: Any) -> Any:
    if name == "space":
        return Space.from_json(value)
    if name == "dtype":
        if value not in _DTYPES:
            raise ValueError(f"unknown dtype {value!r}{nearest(value, _DTYPES) or '.'}")
        return _DTYPES[value]
    return tuple(value) if isinstance(value, list) else value  # JSON has no tuples


def _module(description: dict[str, Any]) -> nn.Module:
    """The module that a description is of; the errors' messages complete a sentence."""
    name, values = description["module"], description["fields"]
    if name not in _MODULES:
        raise ValueError(
            f"unknown module {name!r}{nearest(name, _MODULES) or '.'} Known: {sorted(_MODULES)}."
        )
    fields = _fields(_MODULES[name])
    if unknown := sorted(values.keys() - fields.keys()):
        raise ValueError(
            f"{name} has no field {unknown[0]!r}{nearest(unknown[0], fields) or '.'} "
            "A newer jaxnas may have it."
        )
    return _MODULES[name](**{key: _decode(key, value) for key, value in values.items()})


def _input_shape(net: Any, flat: dict[tuple[str, ...], Any]) -> list[int]:
    """The shape of one input: of an image, whose channels the patches tell, or of a short text."""
    if isinstance(net, supernets.TransformerXL):
        return [1]
    kernel = flat.get(("patch_embed", "projection", "kernel"))
    channels = 3 if kernel is None else max(kernel.shape[0] // net.patch_size**2, 1)
    return [net.image_size, net.image_size, channels]


def _check(net: Any, input_shape: list[int], flat: dict[tuple[str, ...], Any], what: str) -> None:
    inputs = jax.ShapeDtypeStruct((1, *input_shape), input_dtype(net))
    shapes = jax.eval_shape(net.init, jax.random.key(0), inputs)["params"]
    check_tensors(flat, flax.traverse_util.flatten_dict(nn.meta.unbox(shapes)), what)
    wrong = [f"{'/'.join(p)} {x.dtype}" for p, x in flat.items() if x.dtype != np.float32]
    if wrong:
        raise ValueError(f"The tensors of {what} are float32; given: {', '.join(wrong[:8])}.")


def _read_description(path: pathlib.Path) -> dict[str, Any]:
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged, it is not JSON: {error}.") from error
    version = description.get("format") if isinstance(description, dict) else None
    if not isinstance(version, int):
        raise ValueError(f"{path} doesn't describe a subnet: 'format' is missing.")
    if version > FORMAT:
        raise ValueError(
            f"{path} has format {version}, and this jaxnas reads formats up to {FORMAT}; "
            "a newer jaxnas wrote it and can read it."
        )
    return description


def _read_tensors(path: pathlib.Path, size: int, digest: str) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    if len(data) != size:
        raise ValueError(f"{path} is damaged: it has {len(data):,} bytes instead of {size:,}.")
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(f"{path} is damaged or of another save: its content has changed.")
    try:
        return safetensors.numpy.load(data)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}.") from error


def _replace_folder(folder: pathlib.Path, files: dict[str, bytes]) -> None:
    """Puts a folder of these files in place of an older one, complete or not at all."""
    folder = folder.absolute()
    if folder.exists():
        others = sorted({p.name for p in folder.iterdir()} - {TENSORS, DESCRIPTION, PROGRAM})
        if others:
            raise FileExistsError(
                f"{folder} holds other files, which would be lost: {', '.join(others[:8])}. "
                "Choose a folder of its own for the subnet."
            )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        new, old = pathlib.Path(temporary, "new"), pathlib.Path(temporary, "old")
        new.mkdir()
        for name, data in files.items():
            _write(new / name, data)
        if folder.exists():
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise


def _write(path: pathlib.Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())

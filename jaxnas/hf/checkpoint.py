"""Checkpoints of Hugging Face: a folder becomes a module with its variables, and becomes a folder again."""

from __future__ import annotations

import dataclasses
import functools
import logging
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxnas import files
from jaxnas.choice import nearest
from jaxnas.hf import decoder_values, image_values, names, tensor_files
from jaxnas.hf.decoder import Decoder
from jaxnas.hf.image_classifier import ImageClassifier
from jaxnas.hf.names import Module
from jaxnas.hf.values import size
from jaxnas.tensors import Path, check_tensors, flatten, unflatten

_log = logging.getLogger(__name__)
_AXIS = "model"
_GGUF = "In a clone, `python -m tools.convert_gguf --gguf=FILE --output=FOLDER` converts a GGUF file."
# Of a tokenizer, of generation and of the preparation of images: copied as they are.
_COPIED = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.jinja")
_COPIED += ("chat_template*", "generation_config.json", "preprocessor_config.json")
# What the modules compute themselves, or do not have: a head that is tied, a pooler behind a classifier.
_UNUSED = ("rotary_emb.inv_freq", ".pooler.dense.weight", ".pooler.dense.bias")
# What reads and writes a `model_type`: `read(values)` makes the module; `write(module, values)` gives the
# module as it is stored, its values, and notes on what is not as it came.
FAMILIES: dict[str, Any] = dict.fromkeys(decoder_values.FAMILIES, decoder_values)
FAMILIES |= dict.fromkeys(image_values.FAMILIES, image_values)


@dataclasses.dataclass(frozen=True)
class Config:
    """The description of a checkpoint.

    Attributes:
      values: of its config.json.
      folder: that it was read from, with the files of its tokenizer.
    """

    values: Mapping[str, Any]
    folder: pathlib.Path


class Pretrained(NamedTuple):
    """A checkpoint that was read.

    Attributes:
      module: a plain Flax module, `Decoder` or `ImageClassifier`.
      variables: of it, `{"params": ...}`.
      config: of the checkpoint, for `save`.
    """

    module: Any
    variables: dict[str, Any]
    config: Config


def load(name: str | pathlib.Path, dtype: Any = jnp.float32, mesh: Mesh | None = None) -> Pretrained:
    """Reads a checkpoint in the format of Hugging Face.

    Args:
      name: of a folder with config.json and safetensors files; or of a repository of the Hugging Face Hub, as
        "HuggingFaceTB/SmolLM2-135M", which needs the extra `hf`.
      dtype: of the parameters and the computation.
      mesh: where the parameters are put as they are read; those with an axis of heads, hidden units or tokens
        are divided over the mesh axis "model" where it divides them. None for the default device.

    Returns:
      The module, its variables and the config.

    Raises:
      ValueError: no such folder, a family that is not supported, or files that are missing, damaged, or not
        those of the config.
      ImportError: a name of the hub, without the extra `hf`.
    """
    config = config_of(name)
    folder, values = config.folder, config.values
    family = family_of(values, folder / "config.json")
    params = {}
    with tensor_files.Tensors(folder) as tensors:
        layers, count = size(values, "num_hidden_layers", 1), len(tensors.shapes)
        if layers > count:  # before a module of that many layers is made
            raise ValueError(f"{folder}: num_hidden_layers is {layers}, and the files have {count} tensors.")
        module = family.read(values).clone(dtype=dtype)
        entries = names.stored(family.read({**values, "jaxnas": None}), dict(values))  # with their padding
        _check(folder, entries, tensors.shapes)
        for path, x in names.parameters(module).items():
            value = entries[path].to_parameter(tensors.read(entries[path].name), x.shape)
            sharding = None if mesh is None else _sharding(mesh, x.shape, entries[path].split)
            params[path] = jax.device_put(np.ascontiguousarray(value.astype(dtype)), sharding)
    return Pretrained(module, {"params": unflatten(params)}, config)


def config_of(name: str | pathlib.Path) -> Config:
    """The description of a checkpoint; see `load`."""
    folder = _folder(name)
    values = files.read_json(folder / "config.json")
    if not isinstance(values, dict):
        raise ValueError(f"{folder / 'config.json'} is {values!r:.80}, expected an object with model_type.")
    return Config(values, folder)


def _folder(name: str | pathlib.Path) -> pathlib.Path:
    path = pathlib.Path(name).expanduser()
    if path.is_file():
        raise ValueError(f"{path} is a file, expected a folder with config.json and safetensors. {_GGUF}")
    if path.is_dir():
        if not (path / "config.json").exists():
            found = ", ".join(sorted(file.name for file in path.iterdir())[:8]) or "nothing"
            raise ValueError(
                f"{path} has no config.json; it has {found}. Expected a checkpoint of Hugging Face. {_GGUF}"
            )
        return path
    text = str(name)
    if path.is_absolute() or text.startswith(("~", ".")) or text.count("/") != 1:
        raise ValueError(f"{name} is no folder, and no name of the Hugging Face Hub (owner/name).")
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(
            f"{name} is no folder here. To get it from the Hugging Face Hub: pip install 'jaxnas[hf]'."
        ) from error
    patterns = ["*.json", "*.safetensors", *_COPIED]
    try:
        return pathlib.Path(huggingface_hub.snapshot_download(text, allow_patterns=patterns))
    except (OSError, ValueError) as error:  # what its errors inherit from
        raise ValueError(f"{name} is no folder here, and the Hugging Face Hub says: {error}") from error


def family_of(values: Mapping[str, Any], where: Any) -> Any:
    """The module that reads and writes the family of a config.json.

    Raises:
      ValueError: another one, which is named with those that are known.
    """
    name = values.get("model_type")
    if name not in FAMILIES:
        raise ValueError(
            f"{where}: the model_type {name!r} is not supported{nearest(str(name), FAMILIES)} Expected one "
            f"of {', '.join(FAMILIES)}. Other networks are searched as modules of your own, see "
            "docs/any_network.md."
        )
    for key in ("quantization_config", "per_layer_config"):
        if values.get(key):
            raise ValueError(
                f"{where}: {key} is not supported. Expected weights in float32, float16 or bfloat16, and one "
                "size for all layers; save the checkpoint without it."
            )
    return FAMILIES[name]


def _check(
    folder: pathlib.Path, entries: Mapping[Any, names.Stored], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Compares the tensors of files with those of the config; ValueError names all that differ."""
    shaped = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    expected: dict[Path, Any] = {(one.name,): shaped(one.stored_shape) for one in entries.values()}
    given: dict[Path, Any] = {(name,): shaped(shape) for name, shape in shapes.items()}
    for (name,) in [*given]:
        tied = name == "lm_head.weight" and (name,) not in expected
        if tied or name.endswith(_UNUSED):
            _log.info("%s: %s is not used.", folder, name)
            del given[name,]
    advice = "The files are not those of config.json, or not whole."
    check_tensors(given, expected, f"the config.json of {folder}", advice)


def _sharding(mesh: Mesh, shape: tuple[int, ...], split: tuple[int, ...]) -> NamedSharding:
    """Divides the first axis that the mesh divides."""
    count = dict(mesh.shape).get(_AXIS, 1)
    for axis in split:
        if count > 1 and shape[axis] % count == 0:
            return NamedSharding(mesh, PartitionSpec(*[None] * axis, _AXIS))
    return NamedSharding(mesh, PartitionSpec())


def save(folder: str | pathlib.Path, module: Module, variables: Any, config: Config) -> tuple[str, ...]:
    """Writes a checkpoint in the format of Hugging Face, which transformers loads.

    Where the family has one size for all layers, smaller layers are padded with zeros, which change nothing,
    and a layer with neither attention nor MLP is left out. The key `jaxnas` of config.json says what was done
    and the sizes of each layer; `load` reads it and cuts the padding.

    Args:
      folder: to write to; made if it is not there.
      module: that `load` returned, or that `jaxnas.extract(..., rebuild=rebuild(module))` made of it.
      variables: of the module; their dtype is that of the files.
      config: that `load` returned; its tokenizer and other files are copied.

    Returns:
      Sentences on what differs from the checkpoint; they are logged, too.

    Raises:
      ValueError: variables of another module, sizes that no family has, or the folder that the checkpoint
        came from.
    """
    folder = pathlib.Path(folder).expanduser()
    if folder.exists() and folder.resolve() == config.folder.resolve():
        raise ValueError(f"{folder} is where the checkpoint came from, expected another folder.")
    if not isinstance(module, Decoder | ImageClassifier):
        raise ValueError(f"save writes what jaxnas.hf.load returns, and {type(module).__name__} was given.")
    params = flatten(variables["params"] if isinstance(variables, Mapping) and "params" in variables else {})
    check_tensors(
        params, names.parameters(module), f"this {type(module).__name__}", "Give the module that they are of."
    )
    module, params, notes = _without_empty_layers(module, params)
    family = family_of(config.values, config.folder)
    written, values, more = family.write(_uniform(module), config.values)
    params = _with_scale(module, written, params)
    dtype = np.dtype(max(params.values(), key=lambda x: x.size).dtype)  # that of the largest one
    values |= {key: dtype.name for key in ("dtype", "torch_dtype") if values.get(key) is not None}
    notes = _recorded(module, written, [*notes, *more], values)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / tensor_files.INDEX).unlink(missing_ok=True)
    tensors = {}
    for path, entry in names.stored(written, values).items():
        value = params.get(path)
        own = dtype if value is None else np.dtype(value.dtype)
        tensors[entry.name] = entry.stored_shape, own, functools.partial(_tensor, entry, value, own)
    tensor_files.write(folder / tensor_files.WHOLE, tensors)
    for pattern in _COPIED:
        for path in config.folder.glob(pattern):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
    files.write_json(folder / "config.json", values)
    for note in notes:
        _log.info("%s: %s.", folder, note)
    return tuple(notes)


def _recorded(module: Module, written: Module, notes: list[str], values: dict[str, Any]) -> list[str]:
    """Puts into a config.json what was done, and the sizes of the layers if some were padded."""
    own = _sizes(module)
    if own != _sizes(_uniform(module)):
        notes = [*notes, "smaller layers are padded with zeros to the sizes of the largest one"]
    values.pop("jaxnas", None)
    if notes:
        values["jaxnas"] = {"notes": notes}
    if own != _sizes(written):
        rows = zip(*own.values(), strict=True)
        values["jaxnas"]["layers"] = [dict(zip(own, row, strict=True)) for row in rows]
    return notes


def _tensor(entry: names.Stored, value: Any, dtype: np.dtype) -> np.ndarray:
    """A tensor to be written; zeros for one that a layer does not have."""
    return np.zeros(entry.stored_shape, dtype) if value is None else entry.to_tensor(np.asarray(value))


def _sizes(module: Module) -> dict[str, Any]:
    """The per-layer sizes of a module."""
    fields = decoder_values.SIZES if isinstance(module, Decoder) else image_values.SIZES
    return {name: getattr(module, name) for name in fields}


def _uniform(module: Module) -> Module:
    """The module with all layers as large as the largest one."""
    fields: dict[str, Any] = {name: (max((1, *row)),) * len(row) for name, row in _sizes(module).items()}
    return module.clone(**fields)


def _without_empty_layers(module: Module, params: dict) -> tuple[Module, dict, list[str]]:
    """The module without the layers that have neither attention nor MLP; ValueError if no layer is left."""
    sizes = _sizes(module)
    first, hidden = next(iter(sizes.values())), sizes["hidden"]
    kept = [i for i, (a, f) in enumerate(zip(first, hidden, strict=True)) if a or f]
    if not kept:
        raise ValueError("No layer has an attention or an MLP, and a checkpoint has at least one layer.")
    if len(kept) == len(hidden):
        return module, params, []
    lost = ", ".join(str(i) for i in range(len(hidden)) if i not in kept)
    moved = {f"layers_{old}": f"layers_{new}" for new, old in enumerate(kept)}
    params = {(moved.get(path[0], path[0]), *path[1:]): x for path, x in params.items()}
    notes = [f"layers without attention and MLP are left out: {lost}"]
    return with_layers(module, kept), params, notes


def with_layers(module: Module, kept: list[int]) -> Module:
    """The module with some of its layers."""
    rows = [*_sizes(module), *(["windows"] if isinstance(module, Decoder) else [])]
    fields: dict[str, Any] = {name: tuple(getattr(module, name)[i] for i in kept) for name in rows}
    return module.clone(**fields)


def _with_scale(module: Module, written: Module, params: dict) -> dict:
    """Parameters for the embedding scale that is written; if tied, those of the final norm undo it."""
    if not (isinstance(module, Decoder) and isinstance(written, Decoder)):
        return params
    if module.form.embedding_scale == written.form.embedding_scale:
        return params
    ratio, offset = module.form.embedding_scale / written.form.embedding_scale, module.form.norm_offset
    table, norm = params["embed", "embedding"], params["norm", "scale"]
    made = {**params, ("embed", "embedding"): (table.astype(jnp.float32) * ratio).astype(table.dtype)}
    if module.form.tied:
        made["norm", "scale"] = ((norm.astype(jnp.float32) + offset) / ratio - offset).astype(norm.dtype)
    return made

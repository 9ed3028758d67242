"""Sub-networks as files: save, load, and export to run where jaxnas isn't installed.

Nothing in a file is imported or run: a file names a class, and gives values of its fields. The class is one
of ours with that name, or the one that the reader gives.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from jaxnas import files, network
from jaxnas.calibration import check_calibrated
from jaxnas.choice import nearest
from jaxnas.inputs import describe, one_example, specification, with_batch
from jaxnas.network import Variables
from jaxnas.space import Space
from jaxnas.tensors import check_finite, check_tensors, flatten, name_of, path_of, unflatten
from jaxnas.transform.declared import Declared

_log = logging.getLogger(__name__)
FORMAT = 2
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
TENSORS = "model.safetensors"
DESCRIPTION = "subnet.json"
PROGRAM = "model.stablehlo"
FUNCTION = "apply.stablehlo"  # of a network without a class: from variables and inputs to outputs
PREPROCESSING = "preprocessing.json"  # how inputs are made; a run writes it beside the others
_NAMED = "float32 bfloat16 float16 float64 int8 int16 int32 int64 uint8 uint16 uint32"
_DTYPES = {name: getattr(jnp, name) for name in _NAMED.split()}
_TENSOR_DTYPES = {
    "BOOL": np.bool_,
    "BF16": jnp.bfloat16,
    "C64": np.complex64,
    **{f"F{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    **{f"I{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
}
_LARGEST = 2**28  # most elements of an example, and positions of a space; a file with more is damaged


@functools.cache
def _ours() -> dict[str, Any]:
    """The networks of `jaxnas.supernets` by name, for `load_subnet`; imported late, since few need them."""
    from jaxnas import supernets

    return {
        name: value
        for name, value in vars(supernets).items()
        if isinstance(value, type) and issubclass(value, nn.Module | Declared)
    }


def save_subnet(
    path: str | os.PathLike,
    net: nn.Module,
    variables: Variables,
    inputs: Any,
    *,
    extra: dict[str, Any] | None = None,
) -> None:
    """Saves an extracted network as a folder with `model.safetensors` and `subnet.json`.

    The tensors are named by their collection and path, as in "params/block_0/attention/qkv_kernel". An older
    subnet in the same place is replaced, with its exported program: a reader finds the old one, none, or
    the whole new one, never a mixture.

    Args:
      path: of the folder; the one that it lies in is made if needed.
      net: the module that `jaxnas.extract` returned. Its fields hold ints, floats, bools, strings, None,
        tuples of these, a space, or dtypes.
      variables: its variables, by collection.
      inputs: what it takes: a pytree (dicts, lists and tuples) of arrays or `jax.ShapeDtypeStruct`, or a
        tuple of ints for one float32 array.
      extra: anything that JSON holds, kept under "extra" in `subnet.json`: what a user of the
        network needs to know, as the mean and deviation of the images.

    Raises:
      ValueError: a network with more than one architecture, a field that cannot be stored, a class with
        the name of one of ours, other variables than the network's own, values that are not finite, or
        batch statistics that nothing has made; see `jaxnas.calibrate`.
      TypeError: an `extra` that JSON cannot hold, or a network that does not keep the contract.
      FileExistsError: the folder holds other files too.

    Example:
      >>> import tempfile
      >>> net = supernets.TableMlp(spaces.mlp((8,), (1,), (8,)), num_outputs=1)  # of one architecture
      >>> variables = jaxnas.init(net, jax.random.key(0), (1, 4))
      >>> folder = tempfile.mkdtemp()
      >>> jaxnas.save_subnet(folder, net, variables, (1, 4))
      >>> loaded, weights = jaxnas.load_subnet(folder)
    """
    name = type(net).__name__
    if _ours().get(name, type(net)) is not type(net):
        raise ValueError(f"Rename the class {name}: it would be loaded as jaxnas.supernets.{name}.")
    variables = single_architecture(net, variables, inputs)
    flat = flatten(variables)
    tensors = {name_of(p): np.array(leaf, order="C") for p, leaf in sorted(flat.items())}
    data = safetensors.numpy.save(tensors)
    written, function = {TENSORS: data}, {}
    if not isinstance(net, nn.Module | Declared):
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), variables)
        written[FUNCTION] = bytes(_exported(net.apply, inputs, _PLATFORMS, name, shapes).serialize())
        function = {"function": {"sha256": files.sha256(written[FUNCTION])}}
    description = {
        "format": FORMAT,
        "module": name,
        "architecture": net.space.to_dict(net.space.smallest()),
        "inputs": _encode_inputs(one_example(inputs)),
        "fields": {key: _encode(key, getattr(net, key)) for key in _fields(net)},
        "tensors": {"bytes": len(data), "sha256": files.sha256(data)},
        **function,
        "extra": extra or {},
    }
    text = json.dumps(description, indent=2, allow_nan=False) + "\n"
    known = (PROGRAM, PREPROCESSING, FUNCTION)
    files.replace_folder(path, {**written, DESCRIPTION: text.encode()}, known=known)


def needs_module(net: nn.Module) -> bool:
    """Whether `load_subnet` must be given the class of a network, which is none of ours."""
    return isinstance(net, nn.Module | Declared) and type(net).__name__ not in _ours()


@dataclasses.dataclass(frozen=True, eq=False)
class Function:
    """A network as it was saved, which evaluates; see `load_subnet`.

    Attributes:
      space: of its one architecture.
      exported: from variables and inputs to outputs.
    """

    space: Space
    exported: jax.export.Exported

    def apply(
        self, variables: Variables, inputs: Any, arch: Any = None, *, train: bool = False, rngs: Any = None
    ) -> Any:
        """Calls the network; it has no dropout and updates no statistics.

        Raises:
          ValueError: `train` is true.
        """
        if train:
            raise ValueError(
                "A network that is loaded as a function only evaluates. To train it, load it by "
                "load_subnet(path, module=net) with the supernet of jaxnas.supernet that it was "
                "extracted from."
            )
        return self.exported.call(variables, inputs)


def load_subnet(path: str | os.PathLike, module: Any = None) -> tuple[Any, Variables]:
    """Loads what `save_subnet` wrote.

    Args:
      path: of the folder.
      module: the class of the network, where it is none of `jaxnas.supernets`; of a network of
        `jaxnas.supernet`, that supernet, or None for a `Function` that only evaluates.

    Returns:
      `(net, variables)`: the module, called without an architecture, and its variables, bit for bit.

    Raises:
      FileNotFoundError: the folder, or a file in it, is missing.
      ValueError: a damaged file, another format, an unknown module, or tensors that aren't those of
        the module, or not finite; the message says which.

    Example:
      >>> net, variables = jaxnas.load_subnet("runs/demo/subnet")  # doctest: +SKIP
      >>> logits = net.apply(variables, images)  # doctest: +SKIP
    """
    folder = files.as_path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"No subnet at {folder}: there is no such folder.")
    for name in (DESCRIPTION, TENSORS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} is not a whole subnet: {name} is missing.")
    description = _read_description(folder / DESCRIPTION)
    try:
        net = _network(folder, description, module)
        example = _decode_inputs(description["inputs"])
        _check_architecture(net, description["architecture"])
        size, digest = (description["tensors"][name] for name in ("bytes", "sha256"))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{folder / DESCRIPTION} doesn't describe a subnet: {reason}") from error
    tensors = _read_tensors(folder / TENSORS, size, digest)
    flat = {path_of(name): value for name, value in tensors.items()}
    if not isinstance(net, Function):
        _check(net, example, flat, f"the network that {folder / DESCRIPTION} describes")
    check_finite(flat, str(folder / TENSORS))
    variables = unflatten({p: jnp.asarray(x) for p, x in flat.items()})
    return net, {"params": {}, **variables}


def export_subnet(
    path: str | os.PathLike,
    net: nn.Module,
    variables: Variables,
    inputs: Any,
    platforms: str | tuple[str, ...] = ("cpu", "cuda", "tpu"),
) -> pathlib.Path:
    """Exports a network with its weights as one StableHLO program, `model.stablehlo`.

    It maps inputs of any batch size to the outputs: a ViT's float32 images [batch, ...] to float32 logits
    [batch, classes]; a language model's int32 tokens [batch, length] to log-probabilities
    [batch, length, vocabulary]. Outputs are arrays in tuples, lists and dicts; of others, such as a memory,
    the predictions are exported alone. A network that takes no symbolic batch size, such as one
    that calls `len(x)`, is exported for the shapes of `inputs`, with a warning in the log. The program needs
    only jax (with flatbuffers) to run:

        program = jax.export.deserialize(pathlib.Path("model.stablehlo").read_bytes())
        logits = program.call(images)

    Args:
      path: of the folder to put it in, which is made if needed; that of `save_subnet` will do.
      net: the module that `jaxnas.extract` returned.
      variables: its variables, by collection.
      inputs: see `save_subnet`.
      platforms: that the program is for, or only one.

    Returns:
      The path of the file.

    Raises:
      ValueError: a network with more than one architecture, an unknown platform, and variables that
        `save_subnet` refuses.
    """
    platforms = (platforms,) if isinstance(platforms, str) else tuple(platforms)
    if unknown := [name for name in platforms if name not in _PLATFORMS]:
        raise ValueError(
            f"export_subnet: unknown platform {unknown[0]!r}{nearest(unknown[0], _PLATFORMS)} "
            f"Known: {', '.join(_PLATFORMS)}."
        )
    variables = single_architecture(net, variables, inputs)
    constants = jax.tree.map(np.asarray, variables)
    exported = _exported(functools.partial(net.apply, constants), inputs, platforms, type(net).__name__)
    return write_program(path, PROGRAM, bytes(exported.serialize()))


def write_program(path: str | os.PathLike, name: str, data: bytes) -> pathlib.Path:
    """Writes an exported program into a folder, which is made if needed, and returns its path."""
    folder = files.as_path(path)
    if folder.is_file():
        raise FileExistsError(f"{folder} is a file; choose a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    files.write_bytes(folder / name, data)
    return folder / name


def _exported(
    function: Callable[..., Any], inputs: Any, platforms: tuple[str, ...], name: str, *given: Any
) -> jax.export.Exported:
    """Exports a function of `given` and inputs, for any number of examples if it takes them."""
    (batch,) = jax.export.symbolic_shape("batch")

    def forward(*arguments: Any) -> Any:
        outputs = function(*arguments)
        return outputs if _is_plain(outputs) else network.predictions(outputs)

    export = jax.export.export(jax.jit(forward), platforms=platforms)
    try:
        return export(*given, with_batch(inputs, batch))
    except Exception as error:  # whatever a network says that needs to know the batch size
        _log.warning(
            "%s takes no symbolic batch size, so its exported program takes inputs of %s alone. It fails "
            "with %s: %s",
            *(name, describe(specification(inputs)), type(error).__name__, error),
        )
        return export(*given, specification(inputs))


def exported_batch(path: pathlib.Path) -> int | None:
    """The batch size that an exported program takes; None if it takes any."""
    size = jax.export.deserialize(bytearray(path.read_bytes())).in_avals[0].shape[0]
    return size if isinstance(size, int) else None


def _is_plain(outputs: Any) -> bool:
    """Whether a program can return a pytree without the class of anything in it."""
    if type(outputs) in (tuple, list, dict):
        return all(map(_is_plain, outputs.values() if isinstance(outputs, dict) else outputs))
    return outputs is None or isinstance(outputs, jax.Array)


def _check_single(space: Space) -> None:
    if space.cardinality > 1:
        raise ValueError(
            f"The network has more than one architecture, {space.cardinality:,}; extract one of them first: "
            "jaxnas.extract(net, variables, arch, verify=batch)."
        )


def single_architecture(net: nn.Module, variables: Any, inputs: Any) -> Variables:
    """The variables, by collection, of a network of one architecture; ValueError for others."""
    network.check_contract(net)
    _check_single(net.space)
    flat = flatten(variables := network.collections(variables))
    _check(net, one_example(inputs), flat, "this network")
    check_finite(flat, "this network")
    check_calibrated(net, variables)
    return variables


def _check(net: nn.Module, example: Any, flat: dict[tuple[str, ...], Any], what: str) -> None:
    """Compares tensors with those of a network, by shape: nothing of its size is allocated."""
    name = type(net).__name__
    try:
        expected = flatten(network.variable_shapes(net, example))
    except Exception as error:  # whatever a network says about sizes that it cannot have
        raise ValueError(
            f"{name} cannot be made for the inputs {describe(example)}: {type(error).__name__}: {error}"
        ) from error
    check_tensors(flat, expected, what)
    pairs = [("/".join(p), x.dtype, expected[p].dtype) for p, x in sorted(flat.items())]
    if wrong := [f"{name} {own} instead of {other}" for name, own, other in pairs if own != other]:
        raise ValueError(f"The tensors of {what} have other types: {', '.join(wrong[:8])}.")


def _fields(module: Any) -> list[str]:
    """The fields of a module that its user sets; of a network that is a function its space is stored."""
    if not isinstance(module, nn.Module | Declared | type):
        return ["space"]
    return [f.name for f in dataclasses.fields(module) if f.init and f.name not in ("parent", "name")]


def _encode(field: str, value: Any) -> Any:
    """The value of a field as JSON; what JSON lacks is a dict of one key."""
    if isinstance(value, Space):
        return {"space": value.to_json()}
    if value is None or isinstance(value, (bool, int, str)) or _is_finite(value):
        return value
    if isinstance(value, tuple):
        return [_encode(field, item) for item in value]
    for name, dtype in _DTYPES.items():
        if isinstance(value, (type, type(jnp.float32), np.dtype)) and value in (dtype, np.dtype(dtype)):
            return {"dtype": name}
    raise ValueError(
        f"The field {field!r} is {str(value)[:80]!r} of type {type(value).__name__}, which cannot be stored. "
        "Fields of a saved network hold ints, finite floats, bools, strings, None, tuples of these, a space, "
        "or dtypes; give, say, the name of a function instead of the function."
    )


def _is_finite(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_decode, value))
    if not isinstance(value, dict):
        return value
    if set(value) == {"space"}:
        return Space.from_json(value["space"])
    if set(value) == {"dtype"} and isinstance(value["dtype"], str):
        if value["dtype"] not in _DTYPES:
            raise ValueError(f"unknown dtype {value['dtype']!r}{nearest(value['dtype'], _DTYPES)}")
        return _DTYPES[value["dtype"]]
    raise ValueError(f"{value!r} is no value of a field.")


def _encode_inputs(tree: Any) -> Any:
    if isinstance(tree, jax.ShapeDtypeStruct):
        return {"shape": list(tree.shape[1:]), "dtype": jnp.dtype(tree.dtype).name}
    if isinstance(tree, dict):
        return {"dict": {key: _encode_inputs(item) for key, item in tree.items()}}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [_encode_inputs(item) for item in tree]}
    raise ValueError(
        "The inputs of a saved network are arrays in dicts, lists and tuples; there is a "
        f"{type(tree).__name__}."
    )


def _decode_inputs(value: Any) -> Any:
    """One example of the inputs that `_encode_inputs` wrote."""
    if isinstance(value, dict) and set(value) == {"shape", "dtype"}:
        shape, dtype = value["shape"], value["dtype"]
        if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"the shape of an input is {shape!r}, expected a list of ints of at least 0.")
        if math.prod(shape) >= _LARGEST or not isinstance(dtype, str):
            raise ValueError(f"an input cannot have the shape {shape} and the dtype {dtype!r}.")
        return jax.ShapeDtypeStruct((1, *shape), jnp.dtype(dtype))
    if isinstance(value, dict) and len(value) == 1:
        ((kind, items),) = value.items()
        if kind == "dict" and isinstance(items, dict):
            return {key: _decode_inputs(item) for key, item in items.items()}
        if kind in ("list", "tuple") and isinstance(items, list):
            return (list if kind == "list" else tuple)(map(_decode_inputs, items))
    raise ValueError(f"{str(value)[:200]} does not describe inputs.")


def _network(folder: Any, description: dict[str, Any], module: Any) -> Any:
    """The network that a description is of: a module, a sub-network of a supernet, or a function."""
    if "function" not in description:
        return _module(description, module if module is None or isinstance(module, type) else type(module))
    space = _decode(description["fields"]["space"])
    if not isinstance(space, Space) or space.cardinality > 1:
        raise ValueError("'space' is no space of one architecture.")
    if module is not None:
        if not hasattr(module, "annotations"):
            raise ValueError(f"it is of a network of jaxnas.supernet, and not of {module!r}.")
        return module.clone(space=space)
    data = (folder / FUNCTION).read_bytes()
    if files.sha256(data) != description["function"]["sha256"]:
        raise ValueError(f"{FUNCTION} is damaged: it has another SHA-256 than when it was written.")
    return Function(space, jax.export.deserialize(bytearray(data)))


def _module(description: dict[str, Any], module: Any) -> Any:
    """The module that a description is of; the errors' messages complete a sentence."""
    name, values = description["module"], description["fields"]
    if not isinstance(name, str) or not isinstance(values, dict):
        raise ValueError("'module' is no string, or 'fields' no dict.")
    if module is None:
        if name not in (known := _ours()):
            raise ValueError(
                f"unknown module {name!r}{nearest(name, known)} Known: {sorted(known)}. A network of "
                f"your own is loaded by load_subnet(path, module={name})."
            )
        module = known[name]
    elif module.__name__ != name:
        raise ValueError(f"it is of the module {name!r}, and not of {module.__name__!r}.")
    fields = _fields(module)
    if unknown := sorted(values.keys() - set(fields)):
        raise ValueError(
            f"{name} has no field {unknown[0]!r}{nearest(unknown[0], fields)} A newer version may have it."
        )
    fields = {key: _decode(value) for key, value in values.items()}
    space = fields["space"]
    if not isinstance(space, Space) or space.length > _LARGEST >> 8:
        raise ValueError("'space' is no search space, or far too large.")
    net = module(**fields)
    _check_single(net.space)
    network.check_contract(net)
    return net


def _check_architecture(net: nn.Module, given: Any) -> None:
    """Refuses an architecture, which people read, that is not the one of the fields, which are loaded."""
    own = net.space.to_dict(net.space.smallest())
    if given != json.loads(json.dumps(own)):
        raise ValueError(f"'architecture' is {given!r}, and the space of its fields has {own}.")


def _read_description(path: pathlib.Path) -> dict[str, Any]:
    description = files.read_json(path)
    version = description.get("format", "missing") if isinstance(description, dict) else None
    if type(version) is not int:
        found = type(description).__name__ if version is None else f"the 'format' {version!r}"
        raise ValueError(
            f"{path} doesn't describe a subnet: expected an object of the 'format' {FORMAT}, found {found}."
        )
    if version != FORMAT:
        other = "a newer jaxnas wrote it and can read it" if version > FORMAT else "save the network again"
        raise ValueError(f"{path} has format {version}, and this jaxnas reads format {FORMAT}: {other}.")
    return description


def _read_tensors(path: pathlib.Path, size: Any, digest: Any) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    if len(data) != size:
        raise ValueError(f"{path} is damaged: it has {len(data):,} bytes instead of {size}.")
    if files.sha256(data) != digest:
        raise ValueError(f"{path} is damaged or of another save: its content has changed.")
    try:
        # Not `safetensors.numpy.load`, which has no bfloat16.
        return {
            name: np.frombuffer(tensor["data"], _TENSOR_DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
            for name, tensor in safetensors.deserialize(data)
        }
    except KeyError as error:
        raise ValueError(f"{path} has tensors of the unknown type {error}.") from error
    except (safetensors.SafetensorError, ValueError) as error:  # NumPy's, of too many axes
        raise ValueError(f"{path} is not a safetensors file: {error}.") from error

"""The tensors of a checkpoint: for each parameter its name, its axes, and the axis that a mesh divides.

PyTorch's kernels are [out, in], and heads and their channels are one axis there. So each axis of a tensor is
a product of axes of a parameter: the query kernel [d, K, G, D] is the tensor [K G D, d].
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.hf.decoder import Decoder
from jaxnas.hf.image_classifier import ImageClassifier
from jaxnas.tensors import Path, flatten

Module = Decoder | ImageClassifier
Axes = tuple[tuple[int, ...], ...]
_VECTOR: Axes = ((0,),)
_TABLE: Axes = ((0,), (1,))
_DENSE: Axes = ((1,), (0,))


@dataclasses.dataclass(frozen=True)
class Stored:
    """One tensor of a checkpoint.

    Attributes:
      name: in the file.
      axes: of each axis of the tensor, the axes of the parameter that it is the product of.
      shape: of the parameter as it is stored, with its padding.
      split: the axes of the parameter of which a mesh divides the first that it can.
    """

    name: str
    axes: Axes
    shape: tuple[int, ...]
    split: tuple[int, ...]

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return tuple(math.prod(self.shape[axis] for axis in axes) for axes in self.axes)

    def to_tensor(self, value: np.ndarray) -> np.ndarray:
        """The tensor of a parameter, padded with zeros behind its own sizes."""
        if value.shape != self.shape:
            value = np.pad(value, [(0, n - own) for n, own in zip(self.shape, value.shape, strict=True)])
        return value.transpose(self._order).reshape(self.stored_shape)

    def to_parameter(self, tensor: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The parameter of a tensor, cut to its own sizes."""
        whole = tensor.reshape([self.shape[axis] for axis in self._order]).transpose(np.argsort(self._order))
        return whole[tuple(slice(n) for n in shape)]

    @property
    def _order(self) -> list[int]:
        return list(itertools.chain.from_iterable(self.axes))


def parameters(module: Module) -> dict[Path, Any]:
    """The shapes of the parameters of a module, by path."""
    if isinstance(module, Decoder):
        example = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    else:
        example = jax.ShapeDtypeStruct((1, *module.form.image, module.form.channels), jnp.float32)
    return flatten(jax.eval_shape(module.init, jax.random.key(0), example)["params"])


def stored(module: Module, values: dict[str, Any]) -> dict[Path, Stored]:
    """The tensors of a checkpoint of a module whose layers have one size, by the paths of its parameters."""
    table = _decoder(module) if isinstance(module, Decoder) else _image_classifier(values)
    made = {}
    for path, x in parameters(module).items():
        if path[0].startswith("layers_"):
            name, axes, split = table["/".join(path[1:])]
            name = name.format(path[0].removeprefix("layers_"))
        else:
            name, axes, split = table["/".join(path)]
        made[path] = Stored(name, axes, x.shape, split)
    return made


Table = dict[str, tuple[str, Axes, tuple[int, ...]]]


def _linear(key: str, name: str, kernel: Axes, split: tuple[int, ...], bias: tuple[int, ...] = (0,)) -> Table:
    """The kernel and the bias of a layer, whose bias has the last `len(bias)` axes of the kernel."""
    inputs = sum(map(len, kernel)) - len(bias)
    divided = tuple(axis - inputs for axis in split if axis >= inputs)
    return {
        f"{key}/kernel": (f"{name}.weight", kernel, split),
        f"{key}/bias": (f"{name}.bias", (bias,), divided),
    }


def _decoder(module: Decoder) -> Table:
    layer = "model.layers.{}."
    before_mlp = "pre_feedforward_layernorm" if module.form.post_norms else "post_attention_layernorm"
    norms = {
        "attention/norm": layer + "input_layernorm",
        "attention/post_norm": layer + "post_attention_layernorm",
        "attention/query_norm": layer + "self_attn.q_norm",
        "attention/key_norm": layer + "self_attn.k_norm",
        "mlp/norm": layer + before_mlp,
        "mlp/post_norm": layer + "post_feedforward_layernorm",
        "norm": "model.norm",
    }
    return {
        "embed/embedding": ("model.embed_tokens.weight", _TABLE, (0,)),
        "head/kernel": ("lm_head.weight", _DENSE, (1,)),
        **{f"{key}/scale": (f"{name}.weight", _VECTOR, ()) for key, name in norms.items()},
        **_linear("attention/query", layer + "self_attn.q_proj", ((1, 2, 3), (0,)), (1, 2), (0, 1, 2)),
        **_linear("attention/key", layer + "self_attn.k_proj", ((1, 2), (0,)), (1,), (0, 1)),
        **_linear("attention/value", layer + "self_attn.v_proj", ((1, 2), (0,)), (1,), (0, 1)),
        **_linear("attention/out", layer + "self_attn.o_proj", ((3,), (0, 1, 2)), (0, 1)),
        **_linear("mlp/gate", layer + "mlp.gate_proj", _DENSE, (1,)),
        **_linear("mlp/up", layer + "mlp.up_proj", _DENSE, (1,)),
        **_linear("mlp/down", layer + "mlp.down_proj", _DENSE, (0,)),
    }


def _image_classifier(values: dict[str, Any]) -> Table:
    root = values["model_type"]
    teacher = values["architectures"][0].endswith("WithTeacher")
    layer, embeddings = root + ".encoder.layer.{}.", f"{root}.embeddings."
    norms = {
        "attention/norm": layer + "layernorm_before",
        "mlp/norm": layer + "layernorm_after",
        "norm": f"{root}.layernorm",
    }
    made: Table = {}
    for key, name in norms.items():
        made[f"{key}/scale"] = (f"{name}.weight", _VECTOR, ())
        made[f"{key}/bias"] = (f"{name}.bias", _VECTOR, ())
    for name in ("query", "key", "value"):
        made |= _linear(
            f"attention/{name}", f"{layer}attention.attention.{name}", ((1, 2), (0,)), (1,), (0, 1)
        )
    plain: Axes = ((0,), (1,), (2,))
    return made | {
        "class_token": (embeddings + "cls_token", plain, ()),
        "distillation_token": (embeddings + "distillation_token", plain, ()),
        "positions": (embeddings + "position_embeddings", plain, ()),
        **_linear("patches", embeddings + "patch_embeddings.projection", ((3,), (2,), (0,), (1,)), ()),
        **_linear("attention/out", layer + "attention.output.dense", ((2,), (0, 1)), (0,)),
        **_linear("mlp/up", layer + "intermediate.dense", _DENSE, (1,)),
        **_linear("mlp/down", layer + "output.dense", _DENSE, (0,)),
        **_linear("head", "cls_classifier" if teacher else "classifier", _DENSE, ()),
        **_linear("distillation_head", "distillation_classifier", _DENSE, ()),
    }

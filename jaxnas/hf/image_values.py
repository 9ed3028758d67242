"""The config.json of image classifiers: ViT and DeiT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxnas.hf.decoder import ACTIVATIONS
from jaxnas.hf.image_classifier import ImageClassifier, ImageForm
from jaxnas.hf.values import layer_sizes, mapping, number, one_of, size

FAMILIES = ("vit", "deit")
SIZES = ("heads", "hidden")
_TEACHER = "DeiTForImageClassificationWithTeacher"
_CLASSES = ("ViTForImageClassification", "DeiTForImageClassification", _TEACHER)


def read(values: Mapping[str, Any]) -> ImageClassifier:
    """The module of a config.json.

    Raises:
      ValueError: a value that is missing or not supported, or another task than classification.
    """
    named = values.get("architectures") or [None]
    if named[0] not in _CLASSES:
        raise ValueError(f"config.json: architectures is {named!r}, expected one of {', '.join(_CLASSES)}.")
    layers, width = size(values, "num_hidden_layers", 12), size(values, "hidden_size", 768)
    heads, hidden = size(values, "num_attention_heads", 12), size(values, "intermediate_size", 3072)
    labels = mapping(values, "id2label")
    form = ImageForm(
        image=_pair(values, "image_size", 224),
        patch=_pair(values, "patch_size", 16),
        channels=size(values, "num_channels", 3),
        head_dim=size(values, "head_dim", width // heads),
        classes=len(labels) if labels else size(values, "num_labels", 2),
        distilled=values["model_type"] == "deit",
        teacher=named[0] == _TEACHER,
        qkv_bias=bool(values.get("qkv_bias", True)),
        epsilon=number(values, "layer_norm_eps", 1e-12),
        activation=one_of(values, "hidden_act", "gelu", ACTIVATIONS),
    )
    row_heads, row_hidden = layer_sizes(values, layers, dict(zip(SIZES, (heads, hidden), strict=True)))
    return ImageClassifier(form, width, row_heads, row_hidden)


def _pair(values: Mapping[str, Any], key: str, default: int) -> tuple[int, int]:
    found = values.get(key, default)
    pair = found if isinstance(found, list | tuple) else [found, found]
    if len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):
        raise ValueError(f"config.json: {key} is {found!r}, expected a positive int, or two.")
    return pair[0], pair[1]


def write(
    module: ImageClassifier, values: Mapping[str, Any]
) -> tuple[ImageClassifier, dict[str, Any], list[str]]:
    """The config.json of a module whose layers have one size, and the module as it is stored."""
    (heads,), (hidden,) = ({*row} for row in (module.heads, module.hidden))
    sizes = {
        "hidden_size": module.width,
        "intermediate_size": hidden,
        "num_hidden_layers": len(module.heads),
        "num_attention_heads": heads,
    }
    notes = []
    if module.form.head_dim * heads != module.width:
        sizes["head_dim"] = module.form.head_dim
        notes.append("head_dim is a key of its own, which transformers 5 reads and transformers 4 does not")
    new = {**values, **sizes}
    if "head_dim" not in sizes:
        new.pop("head_dim", None)
    if new.get("pooler_output_size") not in (None, module.width):
        new["pooler_output_size"] = module.width
    return module, new, notes

"""The families of checkpoints: from the values of a config.json to a module, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxnas.choice import nearest
from jaxnas.hf import decoder_values, image_values
from jaxnas.hf.decoder import Decoder
from jaxnas.hf.image_classifier import ImageClassifier

Module = Decoder | ImageClassifier


# What reads and writes a `model_type`: `read(values)` makes the module; `write(module, values)` gives the
# module as it is stored, its values, and notes on what is not as it came.
FAMILIES: dict[str, Any] = dict.fromkeys(decoder_values.FAMILIES, decoder_values)
FAMILIES |= dict.fromkeys(image_values.FAMILIES, image_values)


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

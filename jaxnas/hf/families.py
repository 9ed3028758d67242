"""The families of checkpoints: from the values of a config.json to a module, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxnas.choice import nearest
from jaxnas.hf import decoder_values, image_values
from jaxnas.hf.decoder import Decoder
from jaxnas.hf.image_classifier import ImageClassifier

Module = Decoder | ImageClassifier


@dataclasses.dataclass(frozen=True)
class Family:
    """How checkpoints with one `model_type` are read and written.

    Attributes:
      read: from the values of a config.json to the module.
      write: from a module whose layers have one size, and the values of the checkpoint that it came from, to
        the module as it is stored, its values, and notes on what is not as it came.
    """

    read: Callable[[Mapping[str, Any]], Module]
    write: Callable[[Any, Mapping[str, Any]], tuple[Any, dict[str, Any], list[str]]]


FAMILIES = dict.fromkeys(decoder_values.FAMILIES, Family(decoder_values.read, decoder_values.write))
FAMILIES |= dict.fromkeys(image_values.FAMILIES, Family(image_values.read, image_values.write))


def family_of(values: Mapping[str, Any], where: Any) -> Family:
    """The family of a config.json.

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

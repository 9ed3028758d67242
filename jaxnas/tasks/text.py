"""Classification of texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxnas import data as data_lib
from jaxnas.tasks.classification import Classification
from jaxnas.tasks.task import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text(Classification):
    """Classification of texts as token sequences of one length.

    A network takes {"tokens": int32 [B, T], "mask": bool [B, T]}, of which the mask is False behind the end
    of a text, and gives logits [B, classes].

    Attributes:
      data: as `data.from_tsv` returns them.
      label_smoothing: probability that is spread over all classes.
      evaluation_batch_size: texts at a time where networks are evaluated.
    """

    data: data_lib.Sentences

    examples = "texts"
    kind = data_lib.Sentences
    makers = "data.from_tsv"
    names = False

    @property
    def inputs(self) -> dict[str, jax.ShapeDtypeStruct]:
        """One text, {"tokens": int32 [1, T], "mask": bool [1, T]}."""
        dtypes = {"tokens": jnp.int32, "mask": jnp.bool}
        return {k: jax.ShapeDtypeStruct((1, self.dataset.length), dtype) for k, dtype in dtypes.items()}

    def details(self) -> Mapping[str, Any]:
        """The number of classes, the length of a text, the vocabulary, and how many words it lacks."""
        dataset = self.dataset
        return {
            **super().details(),
            "length": dataset.length,
            "vocabulary": dataset.vocabulary.size,
            "unknown_words": dict(dataset.unknown),
            "cut_texts": dict(dataset.cut),
        }

    def preprocess(self, batch: Batch) -> dict[str, jax.Array]:
        """Tokens int32 [B, T] and their mask, bool [B, T]."""
        return {"tokens": batch["tokens"], "mask": batch["mask"]}

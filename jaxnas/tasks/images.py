"""Classification of images."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxnas import data as data_lib
from jaxnas.data import augment
from jaxnas.tasks.classification import Classification
from jaxnas.tasks.task import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images(Classification):
    """Classification of images of one size.

    A network takes standardised images, float32 [B, H, W, C], and gives logits [B, classes].

    Attributes:
      data: the name of a data set, see `jaxnas.data.load`, or the data themselves, as `data.from_arrays` and
        `data.from_folder` return them.
      search_fraction: part of the training images of a named data set that is held out for the search.
      seed: of what is held out.
      crop_padding: pixels of random shift; 0 for none.
      flip: whether images are mirrored at random.
      mixup: strength (alpha) of blending pairs of images; 0 for none.
      label_smoothing: probability that is spread over all classes.
      evaluation_batch_size: images at a time where networks are evaluated.
    """

    data: str | data_lib.Dataset
    search_fraction: float = 0.2
    seed: int = 0
    crop_padding: int = 0
    flip: bool = False
    mixup: float = 0.0

    examples = "images"
    kind = data_lib.Dataset
    makers = "data.from_arrays, data.from_folder or data.load"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_ranges(mixup=(0, 100), crop_padding=(0, 1000), search_fraction=(0, 1))

    def read(self, data_dir: Any, source_dir: Any) -> data_lib.Dataset:
        """The data set of the name."""
        return data_lib.load(
            self.name,
            data_dir=data_dir,
            source_dir=source_dir,
            search_fraction=self.search_fraction,
            seed=self.seed,
        )

    @property
    def inputs(self) -> jax.ShapeDtypeStruct:
        """One image, float32 [1, H, W, C]."""
        return jax.ShapeDtypeStruct((1, *self.dataset.image_shape), jnp.float32)

    def preparation(self) -> str:
        """The standardisation, with its numbers for each channel."""
        mean, std = (
            ", ".join(f"{x:.6g}" for x in values) for values in (self.dataset.mean, self.dataset.std)
        )
        return f"standardised by the training images: (images - [{mean}]) / [{std}]"

    def details(self) -> Mapping[str, Any]:
        """The size of an image, the number of classes, and what images are standardised by."""
        dataset = self.dataset
        return {
            "image_shape": list(dataset.image_shape),
            **super().details(),
            "mean": dataset.mean,
            "std": dataset.std,
        }

    def preprocess(self, batch: Batch) -> jax.Array:
        """Standardised images, float32 [B, H, W, C]."""
        return augment.normalize(batch["image"], self.dataset.mean, self.dataset.std)

    def augmented(self, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Augmented images, float32 [B, H, W, C], and targets [B, classes], of blended images blended."""
        crop_key, flip_key, mixup_key = jax.random.split(key, 3)
        images, targets = batch["image"], self.targets(batch)
        if self.crop_padding:
            images = augment.pad_and_crop(crop_key, images, self.crop_padding)
        if self.flip:
            images = augment.flip(flip_key, images)
        images = self.preprocess({"image": images})
        if self.mixup:
            classes = self.dataset.num_classes
            images, targets = augment.mixup(mixup_key, images, batch["label"], classes, self.mixup)
        return images, targets

"""Classification of images."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import data as data_lib
from jaxnas.checks import check_counts, check_numbers
from jaxnas.data import augment
from jaxnas.data.batches import Batches
from jaxnas.data.encoded import SourceImages
from jaxnas.data.images import Dataset, load
from jaxnas.files import as_path
from jaxnas.tasks import baseline
from jaxnas.tasks.shared import Classification
from jaxnas.tasks.task import Batch

_MEMORY = 16 * 2**30  # Bytes of decoded images that an evaluation may hold; ImageNet's 50,000 are 7 GiB.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images(Classification[Dataset]):
    """Classification of images of one size.

    A network takes standardized images, float32 [B, H, W, C], and gives logits [B, classes].

    Attributes:
      data: the name of a data set, see `data.images.load`, the path of a folder of images, or the data
        themselves, as `data.from_arrays` and `data.from_folder` return them.
      search_fraction: part of the training images of a named data set that is held out for the search.
      seed: of what is held out.
      image_size: height and width to which the images of a named data set are decoded, if they are of many
        sizes; see `data.images.load`.
      crop_padding: pixels of random shift; 0 for none.
      crop_scale: smallest share of an image that a random resized crop shows, 0.08 in most recipes; 0 for no
        such crop. Images that are decoded on demand are cropped as they are decoded, others on the device.
      flip: whether images are mirrored at random.
      randaugment: magnitude of RandAugment, 9 in most recipes; 0 for none. For values from 0 to 255.
      randaugment_operations: how many of its operations an image gets, one after another.
      erase: probability of erasing a random rectangle, 0.25 in most recipes.
      mixup: strength (alpha) of blending pairs of images; 0 for none.
      cutmix: strength (alpha) of pasting a box of another image; 0 for none. With both, half of the batches
        are mixed by the one and half by the other.
      repeats: how often an image comes in a batch, each time augmented anew; 3 in DeiT.
      label_smoothing: probability that is spread over all classes.
      evaluation_batch_size: images at a time where networks are evaluated.

    Example:
      >>> images = np.random.default_rng(0).integers(0, 256, (80, 8, 8, 3), np.uint8)
      >>> labels = np.arange(80) % 4
      >>> given = data.from_arrays(images[:60], labels[:60], images[60:], labels[60:])
      >>> tasks.Images(data=given, flip=True).sizes
      {'train': 48, 'search': 12, 'test': 20}
    """

    data: str | Dataset
    search_fraction: float = 0.2
    seed: int = 0
    image_size: int | None = None
    crop_padding: int = 0
    crop_scale: float = 0.0
    flip: bool = False
    randaugment: float = 0.0
    randaugment_operations: int = 2
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    repeats: int = 1

    examples = "images"
    kind = Dataset
    makers = "data.from_arrays or data.from_folder"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "seed", "crop_padding", least=0)
        check_counts(self, "repeats", "randaugment_operations")
        check_counts(self, "image_size", none=True)
        check_numbers(self, "search_fraction", "crop_scale", least=0, below=1)
        check_numbers(self, "randaugment", least=0, most=10)
        check_numbers(self, "erase", least=0, most=1)
        check_numbers(self, "mixup", "cutmix", least=0)
        if isinstance(self.data, Dataset):
            self._check_fits(self.data)

    def _check_fits(self, dataset: Dataset) -> None:
        """Refuses what the images are too small for, or their values do not fit."""
        height, width, channels = dataset.image_shape
        pixels, smallest = height * width, min(height, width)
        refused = {
            "image_size": (
                self.image_size is not None and (height, width) != (self.image_size, self.image_size),
                "it is for images of a named data set",
            ),
            "crop_padding": (self.crop_padding >= smallest, "so large a shift leaves nothing of an image"),
            "crop_scale": (0 < self.crop_scale * pixels < 1, "such a part is less than a pixel"),
            "erase": (self.erase > 0 and pixels < 50, "the smallest rectangle, 2 %, is less than a pixel"),
            "cutmix": (self.cutmix > 0 and smallest < 2, "there is no box to cut out of them"),
            "randaugment": (
                self.randaugment > 0 and (smallest < 3 or channels not in (1, 3) or not _full_range(dataset)),
                "its operations are for at least 3 x 3 pixels and 1 or 3 channels, uint8 from 0 to 255",
            ),
        }
        for name, (wrong, why) in refused.items():
            if wrong:
                raise ValueError(
                    f"Images: {name} is {getattr(self, name)}, and the images of {dataset.name} are "
                    f"{dataset.train.images.dtype}, {height} x {width} x {channels}: {why}."
                )

    def read(self, data_dir: Any) -> Dataset:
        """The data set of the name, or of the folder of that path."""
        if as_path(self.name).is_dir():
            held_out = data_lib.HeldOut(search=self.search_fraction, seed=self.seed)
            return data_lib.from_folder(self.name, self.image_size, held_out=held_out)
        return load(
            self.name,
            data_dir=data_dir,
            search_fraction=self.search_fraction,
            seed=self.seed,
            image_size=self.image_size,
        )

    def batches(self, role: str, batch_size: int, seed: int, shard: tuple[int, int] = (0, 1)) -> Batches:
        """Shuffled batches of images [B, H, W, C] and "label" int32 [B]; see `Task.batches`."""
        batches = super().batches(role, batch_size, seed, shard)
        on_demand = isinstance(batches.split.images, SourceImages)
        crop_scale = self.crop_scale if on_demand else 0.0  # others are cropped on the device
        return dataclasses.replace(batches, repeats=self.repeats, crop_scale=crop_scale)

    def evaluation(self, role: str, batch_size: int | None = None, limit: int | None = None) -> Batch:
        """All images in order, or a part drawn at random; see `Task.evaluation`."""
        split = self.dataset.splits.get(role)
        if split is not None and isinstance(split.images, SourceImages):
            size = self.evaluation_batch_size if batch_size is None else batch_size
            count = len(split) if limit is None else min(len(split), limit * size)
            if (memory := count * math.prod(self.dataset.image_shape)) > _MEMORY:
                raise ValueError(
                    f"{self.name}: an evaluation on {role!r} holds its {count:,} decoded images in memory, "
                    f"which are {memory / 2**30:.3g} GiB, and {_MEMORY / 2**30:.3g} are allowed. Hold fewer "
                    "images out (search_fraction=0.01, say), or evaluate fewer batches."
                )
        return super().evaluation(role, batch_size, limit)

    @property
    def inputs(self) -> jax.ShapeDtypeStruct:
        """One image, float32 [1, H, W, C]."""
        return jax.ShapeDtypeStruct((1, *self.dataset.image_shape), jnp.float32)

    def preparation(self) -> str:
        """The standardization, with its numbers for each channel."""
        mean, std = (
            ", ".join(f"{x:.6g}" for x in values) for values in (self.dataset.mean, self.dataset.std)
        )
        return f"standardized by the training images: (images - [{mean}]) / [{std}]"

    def details(self) -> Mapping[str, Any]:
        """The size of an image, the number of classes, and what images are standardized by."""
        dataset = self.dataset
        return {
            "image_shape": list(dataset.image_shape),
            **super().details(),
            "mean": dataset.mean,
            "std": dataset.std,
        }

    def linear_model(self, roles: tuple[str, ...]) -> Mapping[str, float]:
        """Accuracy of a logistic regression on the pixels, by role."""
        return baseline.linear_accuracy(self.dataset.splits, baseline.pixels, roles)

    def preprocess(self, batch: Batch) -> jax.Array:
        """Standardised images, float32 [B, H, W, C]."""
        return augment.normalize(batch["image"], self.dataset.mean, self.dataset.std)

    def augmented(self, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Augmented images, float32 [B, H, W, C], and targets [B, classes], of blended images blended."""
        shift, mirror, mix, box, operate, hole = jax.random.split(key, 6)
        images, targets, dataset = batch["image"], self.targets(batch), self.dataset
        if self.crop_scale and not isinstance(dataset.train.images, SourceImages):
            images = augment.random_resized_crop(box, images, (self.crop_scale, 1.0))
        if self.crop_padding:
            images = augment.pad_and_crop(shift, images, self.crop_padding)
        if self.flip:
            images = augment.flip(mirror, images)
        if self.randaugment:
            images = augment.randaugment(
                operate, images, self.randaugment, self.randaugment_operations, fill=dataset.mean
            )
        images = self.preprocess({"image": images})
        if self.erase:
            images = augment.erase(hole, images, self.erase, value=None)
        if self.mixup or self.cutmix:
            alphas = self.mixup, self.cutmix
            images, targets = augment.mixup_or_cutmix(
                mix, images, batch["label"], dataset.num_classes, alphas
            )
        return images, targets


def _full_range(dataset: Dataset) -> bool:
    """Whether the values of images go from 0 to about 255; those that are decoded on demand do."""
    images = dataset.train.images
    return images.dtype == np.uint8 and (not isinstance(images, np.ndarray) or int(images.max()) > 127)

"""Classification of images."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxnas import data as data_lib
from jaxnas.data import augment
from jaxnas.space import Arch
from jaxnas.tasks.task import Batch, Metric, Sums, Task, apply, check_role

METRICS = (
    Metric("accuracy", "%", "max", lambda sums: sums["correct"] / sums["examples"]),
    Metric("loss", "nats", "min", lambda sums: sums["nats"] / sums["examples"]),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images(Task):
    """Classification of images of one size.

    A network takes standardised images, float32 [B, H, W, C], and gives logits [B, classes].

    Attributes:
      data: the name of a data set, see `jaxnas.data.load`, or the data themselves.
      search_fraction: part of the training images that is held out for the search.
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
    label_smoothing: float = 0.1
    evaluation_batch_size: int = 512

    examples = "images"
    metrics = METRICS

    def __post_init__(self) -> None:
        for name, low, high in (
            ("label_smoothing", 0, 1),
            ("mixup", 0, 100),
            ("crop_padding", 0, 1000),
            ("search_fraction", 0, 1),
        ):
            if not low <= getattr(self, name) < high:
                raise ValueError(
                    f"Images: {name} is {getattr(self, name)}, expected at least {low} and below {high}."
                )
        if self.evaluation_batch_size < 1:
            raise ValueError(f"Images: evaluation_batch_size is {self.evaluation_batch_size}; at least 1.")

    @property
    def name(self) -> str:  # pyrefly: ignore[bad-override] # of the data, so it is not set
        """The name of the data set."""
        return self.data if isinstance(self.data, str) else self.data.name

    @property
    def dataset(self) -> data_lib.Dataset:
        """The data.

        Raises:
          ValueError: they are not loaded yet.
        """
        if isinstance(self.data, str):
            raise ValueError(f"The images of {self.data!r} are not loaded yet; call task.load() first.")
        return self.data

    def load(self, data_dir: Any = None, source_dir: Any = None) -> Images:
        """The task with its images loaded; see `jaxnas.data.load` for folders and errors."""
        if not isinstance(self.data, str):
            return self
        loaded = data_lib.load(
            self.data,
            data_dir=data_dir,
            source_dir=source_dir,
            search_fraction=self.search_fraction,
            seed=self.seed,
        )
        return dataclasses.replace(self, data=loaded)

    def whole(self) -> Images:
        """The task whose training images include those that were held out for the search."""
        dataset = self.dataset
        if dataset.search is None:
            return self
        images = np.concatenate([dataset.train.images[:], dataset.search.images[:]])
        labels = np.concatenate([dataset.train.labels, dataset.search.labels])
        train = data_lib.Split("train", images, labels)
        return dataclasses.replace(self, data=dataclasses.replace(dataset, train=train, search=None))

    @property
    def inputs(self) -> jax.ShapeDtypeStruct:
        """One image, float32 [1, H, W, C]."""
        return jax.ShapeDtypeStruct((1, *self.dataset.image_shape), jnp.float32)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of images in each role."""
        splits = {role: getattr(self.dataset, role, None) for role in ("train", "search", "test")}
        return {role: len(split) for role, split in splits.items() if split is not None}

    def details(self) -> Mapping[str, Any]:
        """The size of an image, the number of classes, and what images are standardised by."""
        dataset = self.dataset
        return {
            "image_shape": list(dataset.image_shape),
            "num_classes": dataset.num_classes,
            "mean": dataset.mean,
            "std": dataset.std,
        }

    def _split(self, role: str, allowed: tuple[str, ...], use: str) -> data_lib.Split:
        check_role(self.name, role, allowed, use)
        split = getattr(self.dataset, role, None)
        if split is None:
            raise ValueError(
                f"{self.name} has no images of the role {role!r}, only of {', '.join(self.sizes)}."
            )
        return split

    def batches(self, role: str, batch_size: int, seed: int) -> data_lib.Batches:
        """Shuffled batches {"image" uint8 [B, H, W, C], "label" int32 [B]}; see `Task.batches`."""
        return data_lib.Batches(self._split(role, ("train", "search"), "training"), batch_size, seed)

    def evaluation(self, role: str, batch_size: int | None = None, limit: int | None = None) -> Batch:
        """All images in order, with weights that are 0 for what fills the last batch."""
        split = self._split(role, ("search", "validation", "test"), "an evaluation")
        size = min(self.evaluation_batch_size if batch_size is None else batch_size, len(split))
        return jax.tree.map(lambda x: x[:limit], data_lib.evaluation_batches(split, size))

    def preprocess(self, batch: Batch) -> jax.Array:
        """Standardised images, float32 [B, H, W, C]."""
        return augment.normalize(batch["image"], self.dataset.mean, self.dataset.std)

    def loss(
        self,
        net: nn.Module,
        variables: Any,
        arch: Arch | None,
        batch: Batch,
        carry: Any,
        key: jax.Array | None,
        train: bool,
    ) -> tuple[jax.Array, tuple[Any, Sums]]:
        """Mean cross-entropy in nats; see `Task.loss`. The sums hold "correct", "nats", "examples"."""
        if train:
            augment_key, net_key = jax.random.split(key)
            images, targets = self._augmented(batch, augment_key)
            weight = jnp.ones(targets.shape[:1], jnp.float32)
        else:
            net_key, images = None, self.preprocess(batch)
            targets = jax.nn.one_hot(batch["label"], self.dataset.num_classes, dtype=jnp.float32)
            weight = batch["weight"]
        logits = apply(net, variables, images, arch, net_key, train).astype(jnp.float32)  # [B, classes]
        nats = optax.softmax_cross_entropy(logits, targets)  # [B]
        # Mixed images have no label of their own: their likeliest one counts.
        correct = (jnp.argmax(logits, axis=1) == jnp.argmax(targets, axis=1)).astype(jnp.float32)
        sums = {
            "nats": jnp.sum(nats * weight),
            "correct": jnp.sum(correct * weight),
            "examples": jnp.sum(weight),
        }
        return sums["nats"] / jnp.maximum(sums["examples"], 1), (carry, sums)

    def _augmented(self, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Augmented images, float32 [B, H, W, C], and smoothed targets [B, classes]."""
        classes = self.dataset.num_classes
        crop_key, flip_key, mixup_key = jax.random.split(key, 3)
        images, labels = batch["image"], batch["label"]
        if self.crop_padding:
            images = augment.pad_and_crop(crop_key, images, self.crop_padding)
        if self.flip:
            images = augment.flip(flip_key, images)
        images = augment.normalize(images, self.dataset.mean, self.dataset.std)
        targets = jax.nn.one_hot(labels, classes, dtype=jnp.float32)
        if self.mixup:
            images, targets = augment.mixup(mixup_key, images, labels, classes, self.mixup)
        return images, optax.smooth_labels(targets, self.label_smoothing)

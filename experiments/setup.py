"""What the binaries share: from a config to a data set, a supernet and its evaluators."""

from __future__ import annotations

import dataclasses
import platform
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags
from jax.sharding import Mesh

import jaxnas
from experiments.configs import Config, space_of
from jaxnas import data
from jaxnas.data import augment
from jaxnas.supernets import ViT, stack_layers
from jaxnas.training import optimizer as optimizer_lib
from jaxnas.training.step import Batch, TrainState, data_mesh, init_state, replicate

# The flags defined here belong to the binary that asks for them, and show in its --help.
flags.disclaim_key_flags()

# Each use of randomness has its own number, so that adding one changes none of the others.
STREAMS = {"init": 0, "training": 1, "monitor": 2, "evolution": 3, "random_search": 4}


def define_data_flags() -> None:
    """Defines where data sets are; paths are flags and not config, since they change no result."""
    flags.DEFINE_string("data_dir", None, "Where prepared data sets are; by default TFDS's own folder.")
    flags.DEFINE_string("source_dir", None, "Where the original files are, for a data set not yet prepared.")


@dataclasses.dataclass(frozen=True)
class Setup:
    """A config brought to life.

    Attributes:
      config: what it was made of.
      dataset: with the splits train, search and test.
      net: the supernet.
      mesh: of all devices in use.
      input_shape: of one batch of the network's input.
    """

    config: Config
    dataset: data.Dataset
    net: ViT
    mesh: Mesh
    input_shape: tuple[int, ...]

    def key(self, stream: str) -> jax.Array:
        """The key of one use of randomness in this run."""
        return jax.random.fold_in(jax.random.key(self.config.seed), STREAMS[stream])

    def standardize(self, images: jax.Array) -> jax.Array:
        """Stored images to the network's input: float32, zero mean and unit variance per channel."""
        return augment.normalize(images, self.dataset.mean, self.dataset.std)

    def augment(self, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A batch to augmented input, float32 [B, H, W, C], and smoothed targets [B, classes]."""
        settings, classes = self.config.data, self.dataset.num_classes
        crop_key, flip_key, mixup_key = jax.random.split(key, 3)
        images, labels = batch["image"], batch["label"]
        if settings.crop_padding:
            images = augment.pad_and_crop(crop_key, images, settings.crop_padding)
        if settings.flip:
            images = augment.flip(flip_key, images)
        images = self.standardize(images)
        targets = jax.nn.one_hot(labels, classes, dtype=jnp.float32)
        if settings.mixup:
            images, targets = augment.mixup(mixup_key, images, labels, classes, settings.mixup)
        return images, optax.smooth_labels(targets, self.config.training.label_smoothing)

    def optimizer(self) -> tuple[optax.GradientTransformation, optax.Schedule]:
        """AdamW and its learning-rate schedule."""
        settings = self.config.training
        schedule = optimizer_lib.warmup_cosine(settings.learning_rate, settings.steps, settings.warmup_steps)
        return optimizer_lib.adamw(schedule, weight_decay=settings.weight_decay), schedule

    def initial_state(self) -> TrainState:
        """The state at step 0, on every device of the mesh."""
        params = jaxnas.init(self.net, self.key("init"), self.input_shape)["params"]
        if self.net.scan_layers:
            params = stack_layers(params)
        state = init_state(params, self.optimizer()[0], self.key("training"))
        return replicate(state, self.mesh)


def build(config: Config, data_dir: str | None, source_dir: str | None) -> Setup:
    """Loads the data set and builds the supernet that a config describes.

    Raises:
      ValueError: images of another size than the config's, or settings that don't fit together.
    """
    dataset = data.load(
        config.data.name,
        data_dir=data_dir,
        source_dir=source_dir,
        search_fraction=config.data.search_fraction,
        seed=config.seed,
    )
    model = config.model
    if dataset.image_shape[:2] != (model.image_size, model.image_size):
        raise ValueError(
            f"The images of {config.data.name} are {dataset.image_shape}, but model.image_size is "
            f"{model.image_size}. Set model.image_size={dataset.image_shape[0]}."
        )
    net = ViT(
        space_of(model.space),
        image_size=model.image_size,
        patch_size=model.patch_size,
        num_classes=dataset.num_classes,
        head_dim=model.head_dim,
        max_relative_position=model.max_relative_position,
        drop_path_rate=model.drop_path_rate,
        sharing=model.sharing,
        dtype=jnp.dtype(model.dtype),
        init_std=model.init_std,
        scan_layers=model.scan_layers,
    )
    shape = (1, *dataset.image_shape)
    return Setup(config, dataset, net, data_mesh(config.training.devices), shape)


def versions() -> dict[str, str]:
    """Versions of what decides numbers, for result.json."""
    return {
        "jaxnas": jaxnas.__version__,
        "jax": jax.__version__,
        "flax": flax.__version__,
        "optax": optax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def describe_data(dataset: data.Dataset) -> dict[str, Any]:
    """The data section of result.json."""
    return {
        "name": dataset.name,
        "train": len(dataset.train),
        "search": len(dataset.search),
        "test": len(dataset.test),
        "image_shape": list(dataset.image_shape),
        "num_classes": dataset.num_classes,
    }

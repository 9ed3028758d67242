"""The configs of the binaries: frozen dataclasses, printed at the start and stored in the workdir."""

from __future__ import annotations

import dataclasses

from jaxnas import spaces
from jaxnas.space import Space


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """What to train on.

    Attributes:
      name: of the data set ("digits", "fashion_mnist", or a prepared TFDS set).
      search_fraction: part of the training images held out for the search.
      crop_padding: pixels of random shift; 0 for none.
      flip: whether images are mirrored at random.
      mixup: strength (alpha) of blending pairs of images; 0 for none.
    """

    name: str
    search_fraction: float = 0.2
    crop_padding: int = 0
    flip: bool = False
    mixup: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """The supernet; see `jaxnas.supernets.ViT`. `space` names a function of `jaxnas.spaces`."""

    space: str
    image_size: int
    patch_size: int
    head_dim: int = 64
    max_relative_position: int = 14
    drop_path_rate: float = 0.1
    sharing: str = "entangled"
    dtype: str = "float32"
    init_std: float = 0.02
    scan_layers: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """One-shot training; see `jaxnas.training`."""

    steps: int
    batch_size: int
    learning_rate: float
    warmup_steps: int
    weight_decay: float = 0.05
    label_smoothing: float = 0.1
    freeze_inactive: bool = True
    log_every: int = 50
    evaluate_every: int = 500
    checkpoint_every: int = 500
    steps_per_call: int = 1
    devices: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """Evolution under a budget of parameters; see `jaxnas.search.Evolution`.

    Attributes:
      max_params: upper bound; None for `max_params_fraction` of the largest network's.
      min_params: lower bound, or None.
      evaluations: of the evolution, and as many of the random search beside it.
    """

    max_params: int | None = None
    max_params_fraction: float = 1.0
    min_params: int | None = None
    evaluations: int = 1000
    population: int = 50
    parents: int = 10
    mutations: int = 25
    crossovers: int = 25
    network_probability: float = 0.2
    layer_probability: float = 0.4
    batch_size: int = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that decides the course of a run; paths are flags and stay out of it."""

    name: str
    seed: int = 0
    data: Data
    model: Model
    training: Training
    search: Search


CONFIGS = {
    config.name: config
    for config in (
        # About two minutes on two cores, all of it.
        Config(
            name="digits",
            data=Data(name="digits", mixup=0.4),
            model=Model(
                space="digits",
                image_size=8,
                patch_size=2,
                head_dim=16,
                max_relative_position=3,
                drop_path_rate=0.0,
                init_std=0.1,
            ),
            training=Training(
                steps=1200, batch_size=128, learning_rate=3e-3, warmup_steps=100, evaluate_every=200
            ),
            search=Search(max_params_fraction=0.6, evaluations=300),
        ),
        # About 40 minutes on two cores: kept short, the supernet is not converged after it.
        Config(
            name="fashion_mnist",
            data=Data(name="fashion_mnist", search_fraction=1 / 6, flip=True),
            model=Model(
                space="fashion_mnist",
                image_size=28,
                patch_size=4,
                head_dim=16,
                max_relative_position=6,
                drop_path_rate=0.0,
                init_std=0.1,
            ),
            training=Training(
                steps=2500,
                batch_size=128,
                learning_rate=2e-3,
                warmup_steps=200,
                evaluate_every=1000,
                checkpoint_every=250,
            ),
            search=Search(
                max_params_fraction=0.6,
                evaluations=60,
                population=20,
                parents=5,
                mutations=10,
                crossovers=10,
            ),
        ),
    )
}


def space_of(name: str) -> Space:
    """The space that a config names.

    Raises:
      ValueError: no such space.
    """
    known = {
        "digits": spaces.digits,
        "fashion_mnist": spaces.fashion_mnist,
        "autoformer_tiny": lambda: spaces.autoformer("tiny"),
        "autoformer_small": lambda: spaces.autoformer("small"),
        "autoformer_base": lambda: spaces.autoformer("base"),
    }
    if name not in known:
        raise ValueError(f"Unknown space {name!r}; known are {', '.join(known)}.")
    return known[name]()

"""Hybrids of convolutions and Transformers: which kind of block each stage has, and of what size."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from jaxnas import runs, search, spaces, supernets, tasks
from jaxnas.experiments import Config
from jaxnas.experiments.configs.autoformer import AUGMENTED_CIFAR10
from jaxnas.recipes import Distillation, Sandwich
from jaxnas.supernets import hybrid
from jaxnas.training import Training

# The sandwich rule with AlphaNet's divergence, and NASViT's projection in the last three quarters.
_RECIPE = Sandwich(distill=Distillation(divergence="adaptive_alpha"), project_after=0.25)
_SMALL = supernets.Hybrid(spaces.hybrid_small(), num_classes=10, **hybrid.SMALL)
# Kernels of 5 x 5 are larger than its last maps.
_DIGITS = _SMALL.clone(space=_SMALL.space.restrict(kernel_1=3, kernel_2=3, kernel_3=3), stem_stride=1)

DIGITS = Config(
    name="hybrid_digits",
    about="Convolutions and Transformers on 8 x 8 digits: about ten minutes on two cores.",
    task=tasks.Images(data="digits", mixup=0.4),
    network=_DIGITS,
    training=Training(
        steps=600,
        batch_size=64,
        learning_rate=2e-3,
        warmup_steps=50,
        clip=1.0,
        evaluate_every=200,
        checkpoint_every=200,
        steps_per_call=10,
    ),
    recipe=_RECIPE,
    search=runs.Search(
        runs.ByStrategy(search.Evolution(_DIGITS.space, evaluations=150)), budget="macs", most_share=0.5
    ),
)

# NASViT's factors of 1e-4 need a long training.
_NASVIT_DIGITS = _DIGITS.clone(space=spaces.nasvit_small(), head_dim=8, largest_map=4, layer_scale=0.1)

NASVIT_DIGITS = dataclasses.replace(
    DIGITS,
    name="hybrid_digits_nasvit",
    about="NASViT's blocks after convolutions, on 8 x 8 digits: about ten minutes on two cores.",
    network=_NASVIT_DIGITS,
    search=dataclasses.replace(
        DIGITS.search, method=runs.ByStrategy(search.Evolution(_NASVIT_DIGITS.space, evaluations=150))
    ),
)

CIFAR10 = dataclasses.replace(
    DIGITS,
    name="hybrid_cifar10",
    about="Convolutions and Transformers on CIFAR-10: for a GPU.",
    task=AUGMENTED_CIFAR10,
    network=_SMALL.clone(dtype=jnp.bfloat16),
    training=Training(
        steps=50_000, batch_size=256, learning_rate=1e-3, warmup_steps=2000, clip=1.0, steps_per_call=10
    ),
)

_NASVIT = spaces.nasvit()

IMAGENET = Config(
    name="hybrid_imagenet_nasvit",
    about="NASViT on ImageNet, without its two trained teachers: for a pod.",
    task=tasks.Images(
        data="imagenet2012",
        search_fraction=0.01,
        image_size=288,
        crop_scale=0.08,
        flip=True,
        randaugment=1,
        erase=0.01,
        mixup=0.01,
        cutmix=0.01,
    ),
    network=supernets.Hybrid(
        _NASVIT, num_classes=1000, drop_path_rate=0.01, dtype=jnp.bfloat16, **hybrid.NASVIT
    ),
    # 400 epochs of batches of 4,096, of which 5 are a warm-up.
    training=Training(
        steps=400 * 310,
        batch_size=4096,
        learning_rate=3e-4,
        warmup_steps=5 * 310,
        weight_decay=0.0,
        clip=1.0,
        average=0.99985,
        evaluate_every=3100,
        checkpoint_every=310,
        steps_per_call=10,
    ),
    recipe=_RECIPE,
    search=runs.Search(runs.ByStrategy(search.Evolution(_NASVIT, evaluations=1000)), budget="macs", most=3e8),
)

CONFIGS = (DIGITS, NASVIT_DIGITS, CIFAR10, IMAGENET)

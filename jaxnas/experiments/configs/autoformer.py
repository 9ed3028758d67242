"""AutoFormer: vision transformers of elastic width, depth, heads and MLP ratio."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from jaxnas import runs, search, spaces, supernets, tasks
from jaxnas.experiments import Config
from jaxnas.recipes import Relaxed, Sandwich, Uniform
from jaxnas.training import Training

_DIGITS = supernets.ViT(
    spaces.digits(),
    image_size=8,
    patch_size=2,
    num_classes=10,
    head_dim=16,
    max_relative_position=3,
    init_std=0.1,
)
_FASHION = _DIGITS.clone(space=spaces.fashion_mnist(), image_size=28, patch_size=4, max_relative_position=6)

DIGITS = Config(
    name="autoformer_digits",
    about="A vision transformer on 8 x 8 digits, by evolution: about two minutes on two cores.",
    task=tasks.Images(data="digits", mixup=0.4),
    network=_DIGITS,
    training=Training(
        steps=1200,
        batch_size=128,
        learning_rate=3e-3,
        warmup_steps=100,
        evaluate_every=200,
        checkpoint_every=500,
    ),
    search=runs.Search(runs.ByStrategy(search.Evolution(_DIGITS.space, evaluations=300)), most_share=0.6),
)

DIGITS_GUMBEL = dataclasses.replace(
    DIGITS,
    name="autoformer_digits_gumbel",
    about="The same space searched by Gumbel-softmax, with a penalty on parameters.",
    recipe=Relaxed(
        order="first", start=300, every=2, learning_rate=0.05, cost="params", cost_weight=0.5, target=0.5
    ),
    search=runs.Search(runs.Sampling(samples=32, slack=0.2), most_share=0.6),
)

_FEW = search.Evolution(_FASHION.space, evaluations=60, population=20, parents=5, mutations=10, crossovers=10)

# Kept short: the supernet is not converged after it.
FASHION_MNIST = Config(
    name="autoformer_fashion_mnist",
    about="A vision transformer on Fashion-MNIST, by evolution: about 40 minutes on two cores.",
    task=tasks.Images(data="fashion_mnist", search_fraction=1 / 6, flip=True),
    network=_FASHION,
    training=dataclasses.replace(
        DIGITS.training,
        steps=2500,
        learning_rate=2e-3,
        warmup_steps=200,
        evaluate_every=1000,
        checkpoint_every=250,
    ),
    search=runs.Search(runs.ByStrategy(_FEW), most_share=0.6),
)

_FASHION_SMALL = _FASHION.clone(space=spaces.fashion_mnist_small(), patch_size=7, max_relative_position=3)

FASHION_MNIST_SMALL = dataclasses.replace(
    FASHION_MNIST,
    name="autoformer_fashion_mnist_small",
    about="The same with patches of 7 and networks of very different sizes: about five minutes on one core.",
    network=_FASHION_SMALL,
    training=dataclasses.replace(
        FASHION_MNIST.training,
        steps=6000,
        batch_size=64,
        learning_rate=5e-3,
        evaluate_every=2000,
        checkpoint_every=2000,
        steps_per_call=10,
    ),
    search=runs.Search(
        runs.ByStrategy(search.Evolution(_FASHION_SMALL.space, evaluations=200)), most_share=0.5
    ),
)

# ---- CIFAR-10, with the augmentation of AutoFormer's and DeiT's recipe, in the size of its images.

_PLAIN = tasks.Images(data="cifar10", search_fraction=0.1, crop_padding=4, flip=True)
AUGMENTED_CIFAR10 = dataclasses.replace(_PLAIN, randaugment=9, erase=0.25, mixup=0.8, cutmix=1.0)

_CIFAR = supernets.ViT(
    spaces.vit(embed_dim=(192, 224, 256), depth=(7, 8, 9), num_heads=(3, 4), mlp_ratio=(2.0, 3.0, 4.0)),
    image_size=32,
    patch_size=4,
    num_classes=10,
    head_dim=64,
    max_relative_position=7,
    drop_path_rate=0.1,
    init_std=0.1,
)

CIFAR10 = Config(
    name="autoformer_cifar10",
    about="A vision transformer on CIFAR-10, by evolution: for a GPU.",
    task=AUGMENTED_CIFAR10,
    network=_CIFAR.clone(dtype=jnp.bfloat16),
    training=Training(
        steps=50_000,
        batch_size=256,
        learning_rate=1e-3,
        warmup_steps=2000,
        evaluate_every=2000,
        checkpoint_every=2000,
        steps_per_call=10,
    ),
    recipe=Sandwich(),
    search=runs.Search(runs.ByStrategy(search.Evolution(_CIFAR.space, evaluations=1000)), most_share=0.5),
)

_CIFAR_SMALL = _CIFAR.clone(
    space=spaces.vit(embed_dim=(48, 64, 80), depth=(3, 4, 5), num_heads=(2, 4), mlp_ratio=(1.0, 2.0, 3.0)),
    head_dim=16,
    drop_path_rate=0.0,
)

CIFAR10_SMALL = dataclasses.replace(
    CIFAR10,
    name="autoformer_cifar10_small",
    about="The same with a small network and few steps: under 20 minutes on two cores.",
    task=_PLAIN,
    network=_CIFAR_SMALL,
    training=dataclasses.replace(
        FASHION_MNIST.training, steps=1500, batch_size=64, steps_per_call=10, evaluate_every=500
    ),
    recipe=Uniform(),
    search=runs.Search(runs.ByStrategy(dataclasses.replace(_FEW, space=_CIFAR_SMALL.space)), most_share=0.6),
)

# ---- ImageNet, as published: 500 epochs of batches of 1,024, of which 20 are a warm-up (the released code).

_EPOCH = 1_281_167 * 99 // 100 // 1024  # steps; a hundredth of the images is held out for the search


def _imagenet(size: str, most: float) -> Config:
    space = spaces.autoformer(size)
    network = supernets.ViT(
        space,
        image_size=224,
        patch_size=16,
        num_classes=1000,
        drop_path_rate=0.1,
        init_std=0.02,
        dtype=jnp.bfloat16,
    )
    evolution = search.Evolution(
        space, evaluations=1000, population=50, parents=10, mutations=25, crossovers=25
    )
    return Config(
        name=f"autoformer_imagenet_{size}",
        about=f"AutoFormer's {size} supernet on ImageNet, as published: for a pod.",
        task=tasks.Images(
            data="imagenet2012",
            search_fraction=0.01,
            image_size=224,
            crop_scale=0.08,
            flip=True,
            randaugment=9,
            erase=0.25,
            mixup=0.8,
            cutmix=1.0,
            repeats=3,
        ),
        network=network,
        training=Training(
            steps=500 * _EPOCH,
            batch_size=1024,
            learning_rate=1e-3,
            warmup_steps=20 * _EPOCH,
            evaluate_every=10 * _EPOCH,
            checkpoint_every=_EPOCH,
            steps_per_call=10,
        ),
        search=runs.Search(runs.ByStrategy(evolution), most=most),
        retraining=Training(steps=40 * _EPOCH, batch_size=1024, learning_rate=5e-4),
        architectures={"published": spaces.published_options(size)},
    )


CONFIGS = (
    DIGITS,
    DIGITS_GUMBEL,
    FASHION_MNIST,
    FASHION_MNIST_SMALL,
    CIFAR10,
    CIFAR10_SMALL,
    *(_imagenet(size, most) for size, most in (("tiny", 6e6), ("small", 23e6), ("base", 54e6))),
)

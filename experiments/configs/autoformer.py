"""AutoFormer: vision transformers of elastic width, depth, heads and MLP ratio."""

from __future__ import annotations

import dataclasses

from experiments.config import Config
from jaxnas import runs, search, spaces, supernets, tasks
from jaxnas.training import Relaxed, Training

_DIGITS = supernets.ViT(
    spaces.digits(),
    image_size=8,
    patch_size=2,
    num_classes=10,
    head_dim=16,
    max_relative_position=3,
    init_std=0.1,
)
_FASHION = supernets.ViT(
    spaces.fashion_mnist(),
    image_size=28,
    patch_size=4,
    num_classes=10,
    head_dim=16,
    max_relative_position=6,
    init_std=0.1,
)

DIGITS = Config(
    name="digits",
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
    search=runs.Search(strategy=search.Evolution(_DIGITS.space, evaluations=300), most_share=0.6),
)

DIGITS_GUMBEL = dataclasses.replace(
    DIGITS,
    name="digits_gumbel",
    about="The same space searched by Gumbel-softmax, with a penalty on parameters.",
    recipe=Relaxed(
        order="first",
        start=300,
        every=2,
        learning_rate=0.05,
        cost="params",
        cost_weight=0.5,
        target=0.5,
    ),
    search=runs.Search(method="sampling", samples=32, slack=0.2, most_share=0.6),
)

# Kept short: the supernet is not converged after it.
FASHION_MNIST = Config(
    name="fashion_mnist",
    about="A vision transformer on Fashion-MNIST, by evolution: about 40 minutes on two cores.",
    task=tasks.Images(data="fashion_mnist", search_fraction=1 / 6, flip=True),
    network=_FASHION,
    training=Training(
        steps=2500,
        batch_size=128,
        learning_rate=2e-3,
        warmup_steps=200,
        evaluate_every=1000,
        checkpoint_every=250,
    ),
    search=runs.Search(
        strategy=search.Evolution(
            _FASHION.space, evaluations=60, population=20, parents=5, mutations=10, crossovers=10
        ),
        most_share=0.6,
    ),
)

CONFIGS = (DIGITS, DIGITS_GUMBEL, FASHION_MNIST)

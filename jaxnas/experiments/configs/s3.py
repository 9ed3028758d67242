"""S3: windowed vision transformers whose search space moves before its last supernet is trained."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxnas import runs, search, spaces, supernets, tasks
from jaxnas.experiments import Config
from jaxnas.experiments.configs.autoformer import AUGMENTED_CIFAR10
from jaxnas.search import ShiftRule
from jaxnas.training import Training


def rules(maps: tuple[int, ...], heads: tuple[int, ...], multiple: int, deepest: int) -> dict[str, Any]:
    """How the choices of each stage may move.

    `maps` are height and width of each stage's map, which its windows divide; `heads` are legal numbers,
    which divide `multiple`, as widths are multiples of it; `deepest` is the most blocks of a stage.
    """
    found = {}
    for stage, size in enumerate(maps, 1):
        windows = tuple(window for window in range(2, size + 1) if size % window == 0)
        found |= {
            f"depth_{stage}": ShiftRule(most=deepest),
            f"embed_dim_{stage}": ShiftRule(step=multiple, multiple=multiple),
            f"qkv_dim_{stage}": ShiftRule(step=multiple, multiple=multiple),
            f"num_heads_{stage}": ShiftRule(values=heads),
            f"window_{stage}": ShiftRule(values=windows),
            f"mlp_ratio_{stage}": ShiftRule(step=0.5, least=0.5),
        }
    return found


_SPACE = spaces.swin(
    depth=((1, 2), (1, 2, 3), (1, 2)),
    embed_dim=((16, 24), (32, 40), (48, 64)),
    window=((2, 4), (2, 4), (2,)),
    num_heads=((1, 2), (2, 4), (2, 4)),
    mlp_ratio=((1.0, 1.5, 2.0),) * 3,
    qkv_dim=((16, 24), (32, 40), (48, 64)),
)
_DIGITS = supernets.Swin(_SPACE, image_size=8, patch_size=1, num_classes=10, init_std=0.1)
_RULES = rules((8, 4, 2), (1, 2, 4, 8), 8, 4)

_EVOLUTION = runs.SpaceEvolution(turns=2, sample=300, top=30, rules=_RULES, steps=800)

DIGITS = Config(
    name="s3_digits",
    about="A windowed transformer on 8 x 8 digits, whose space moves twice: about 20 minutes on two cores.",
    task=tasks.Images(data="digits", mixup=0.4),
    network=_DIGITS,
    training=Training(
        steps=1200,
        batch_size=64,
        learning_rate=2e-3,
        warmup_steps=100,
        evaluate_every=400,
        checkpoint_every=400,
        steps_per_call=10,
    ),
    evolution=_EVOLUTION,
    search=runs.Search(runs.ByStrategy(search.Evolution(_SPACE, evaluations=200)), most_share=0.6),
)

_CIFAR = dataclasses.replace(
    DIGITS,
    name="s3_cifar10_small",
    about="The same on CIFAR-10 with patches of 4: an hour or two on two cores.",
    task=tasks.Images(data="cifar10", search_fraction=0.1, crop_padding=4, flip=True),
    network=_DIGITS.clone(image_size=32, patch_size=4),
    training=dataclasses.replace(DIGITS.training, steps=6000, warmup_steps=300, evaluate_every=2000),
    evolution=dataclasses.replace(_EVOLUTION, sample=1000, top=50, steps=3000, limit=4),
)

_WIDE = spaces.swin(
    depth=((2, 3), (3, 4, 5), (2, 3)),
    embed_dim=((64, 80, 96), (128, 160, 192), (256, 320, 384)),
    window=((4, 8), (4, 8), (2, 4)),
    num_heads=((2, 4), (4, 8), (4, 8)),
    mlp_ratio=((2.0, 3.0, 4.0),) * 3,
    qkv_dim=((64, 96), (128, 192), (256, 384)),
)

CIFAR10 = dataclasses.replace(
    _CIFAR,
    name="s3_cifar10",
    about="The same with patches of 2 and wide layers: for a GPU.",
    task=AUGMENTED_CIFAR10,
    network=supernets.Swin(
        _WIDE,
        image_size=32,
        patch_size=2,
        num_classes=10,
        drop_path_rate=0.1,
        init_std=0.02,
        dtype=jnp.bfloat16,
    ),
    training=Training(steps=50_000, batch_size=256, learning_rate=1e-3, warmup_steps=2000, steps_per_call=10),
    evolution=runs.SpaceEvolution(steps=20_000, rules=rules((16, 8, 4), (1, 2, 4, 8, 16), 16, 8)),
    search=runs.Search(runs.ByStrategy(search.Evolution(_WIDE, evaluations=1000)), most_share=0.5),
)

CONFIGS = (DIGITS, _CIFAR, CIFAR10)

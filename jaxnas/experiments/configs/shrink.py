"""Hugging Face checkpoints that are shrunk: cut by single replacements, and distilled."""

from __future__ import annotations

import dataclasses

from jaxnas import hf, runs, tasks
from jaxnas.experiments import Config
from jaxnas.recipes import Distillation, Sandwich
from jaxnas.training import Training

_KL = Distillation(divergence="kl")
_DISTILLING = Training(
    steps=300, batch_size=1, learning_rate=1e-4, warmup_steps=20, evaluate_limit=2, checkpoint_every=100
)

DECODER = Config(
    name="shrink_decoder",
    about="A decoder of Hugging Face, layer by layer: SmolLM2-135M takes under an hour on two cores.",
    task=tasks.Language(data="wikitext2", length=256, evaluation_rows=1, evaluation_tokens=4097),
    network=hf.Prunable(checkpoint=""),
    training=dataclasses.replace(_DISTILLING, steps=1000),
    recipe=Sandwich(random=1, distill=_KL),
    search=runs.Search(runs.Replacements(), limit=2, most_share=0.7),
    distill=_KL,
    retraining=_DISTILLING,
)

# MatFormer (Devvrit et al., arXiv 2310.07707): nested MLPs that are trained together, then mixed by layer.
MATFORMER = dataclasses.replace(
    DECODER,
    name="matformer_decoder",
    about="A decoder of Hugging Face with nested MLPs, which are distilled together first: for a GPU.",
    network=hf.Prunable(checkpoint="", hidden=(0.125, 0.25, 0.5, 1.0), heads=False, skip=()),
    search=runs.Search(most_share=0.7, limit=2),
)

VIT = dataclasses.replace(
    DECODER,
    name="shrink_vit",
    about="A ViT or DeiT of Hugging Face, on a folder of images of its classes.",
    task=tasks.Images(data="images", image_size=224, flip=True),
    search=runs.Search(runs.Replacements(), limit=1, most_share=0.7),
    retraining=dataclasses.replace(_DISTILLING, batch_size=32),
)

CONFIGS = (DECODER, MATFORMER, VIT)

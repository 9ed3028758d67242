"""Hugging Face checkpoints in and out: load one, search it, save what was found; transformers loads it."""

from jaxnas.hf.checkpoint import Config, Pretrained, load, save
from jaxnas.hf.decoder import Decoder, Form, Rope
from jaxnas.hf.image_classifier import ImageClassifier, ImageForm
from jaxnas.hf.inputs import adapted
from jaxnas.hf.memory import memory_cost
from jaxnas.hf.prunable import Prunable, PrunableNetwork, whole
from jaxnas.hf.rebuild import rebuild

__all__ = [
    "Config",
    "Decoder",
    "Form",
    "ImageClassifier",
    "ImageForm",
    "Pretrained",
    "Prunable",
    "PrunableNetwork",
    "Rope",
    "adapted",
    "load",
    "memory_cost",
    "rebuild",
    "save",
    "whole",
]

"""Hugging Face checkpoints in and out: load one, search it, save what was found; transformers loads it."""

from jaxnas.hf.checkpoint import load, save
from jaxnas.hf.decoder import Decoder
from jaxnas.hf.image_classifier import ImageClassifier
from jaxnas.hf.prunable import Prunable, memory_cost, rebuild

__all__ = ["Decoder", "ImageClassifier", "Prunable", "load", "memory_cost", "rebuild", "save"]

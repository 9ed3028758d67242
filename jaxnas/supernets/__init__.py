"""Supernets: one file for each searched system."""

from jaxnas.supernets.stacking import stack_layers, unstack_layers
from jaxnas.supernets.transformer_xl import TransformerXL
from jaxnas.supernets.vit import ViT

__all__ = ["TransformerXL", "ViT", "stack_layers", "unstack_layers"]

"""Supernets: one file for each searched system."""

from jaxnas.supernets.vit import ViT, stack_layers, unstack_layers

__all__ = ["ViT", "stack_layers", "unstack_layers"]

"""Supernets: one file for each searched system, with what only it needs beside it."""

from jaxnas.supernets.autoformer_counter import autoformer_flops
from jaxnas.supernets.stacking import stack_layers, unstack_layers
from jaxnas.supernets.transformer_xl import TransformerXL
from jaxnas.supernets.vit import ViT

__all__ = ["TransformerXL", "ViT", "autoformer_flops", "stack_layers", "unstack_layers"]

"""Supernets: one file for each searched system."""

from jaxnas.supernets.vit import ViT

__all__ = ["ViT"]

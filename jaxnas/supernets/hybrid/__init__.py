"""Hybrids of convolutions and Transformers: EfficientNetV2's, AlphaNet's and NASViT's spaces."""

from jaxnas.supernets.hybrid.network import ALPHANET, EFFICIENTNETV2, NASVIT, SMALL, Hybrid

__all__ = ["ALPHANET", "EFFICIENTNETV2", "NASVIT", "SMALL", "Hybrid"]

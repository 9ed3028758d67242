"""AutoFormer: vision transformers of elastic width, depth, heads and MLP (Chen et al., ICCV 2021)."""

from jaxnas.supernets.autoformer.vit import ViT

__all__ = ["ViT"]

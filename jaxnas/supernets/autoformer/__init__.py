"""AutoFormer: vision transformers of elastic width, depth, heads and MLP (Chen et al., ICCV 2021)."""

from jaxnas.supernets.autoformer.vit import ViT, autoformer_flops

__all__ = ["ViT", "autoformer_flops"]

"""DARTFormer: which attention mechanism a Transformer should have (Brown et al., arXiv 2210.00641)."""

from jaxnas.supernets.dartformer import attention
from jaxnas.supernets.dartformer.network import DARTFormer

__all__ = ["DARTFormer", "attention"]

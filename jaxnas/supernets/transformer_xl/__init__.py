"""PAR Transformer: Transformer-XL whose blocks choose what they are (Mandava et al., arXiv 2009.04534)."""

from jaxnas.supernets.transformer_xl.adaptive_softmax import AdaptiveVocabulary, choose_cutoffs
from jaxnas.supernets.transformer_xl.network import Memory, TransformerXL

__all__ = ["AdaptiveVocabulary", "Memory", "TransformerXL", "choose_cutoffs"]

"""Supernets: one file for each searched system, with what only it needs beside it.

`graph_operations` has what networks on graphs are built from.
"""

from jaxnas.supernets import graph_operations
from jaxnas.supernets.autoformer_counter import autoformer_flops
from jaxnas.supernets.graph_baselines import GAT, GCN
from jaxnas.supernets.transformer_xl import TransformerXL
from jaxnas.supernets.vit import ViT

__all__ = ["GAT", "GCN", "TransformerXL", "ViT", "autoformer_flops", "graph_operations"]

"""Supernets: one file for each searched system, with what only it needs beside it."""

from jaxnas.supernets import attention, graph_operations
from jaxnas.supernets.autoattend_nodes import AutoAttendNodes
from jaxnas.supernets.autoattend_text import AutoAttendText
from jaxnas.supernets.autoformer_counter import autoformer_flops
from jaxnas.supernets.dartformer import DARTFormer
from jaxnas.supernets.graph_baselines import GAT, GCN
from jaxnas.supernets.hybrid import Hybrid
from jaxnas.supernets.mlp import Mlp
from jaxnas.supernets.swin import Swin
from jaxnas.supernets.transformer_xl import TransformerXL
from jaxnas.supernets.vit import ViT

__all__ = [
    "AutoAttendNodes",
    "AutoAttendText",
    "DARTFormer",
    "GAT",
    "GCN",
    "Hybrid",
    "Mlp",
    "Swin",
    "TransformerXL",
    "ViT",
    "attention",
    "autoformer_flops",
    "graph_operations",
]

"""Supernets: a package, or a file, for each searched system; what several share is `layers` and `schema`."""

from jaxnas.supernets.autoattend import AutoAttendNodes, AutoAttendText, graph_operations
from jaxnas.supernets.autoformer import ViT
from jaxnas.supernets.dartformer import DARTFormer, attention
from jaxnas.supernets.hybrid import Hybrid
from jaxnas.supernets.plain import ConvNet, TableMlp, TextTransformer
from jaxnas.supernets.swin import Swin
from jaxnas.supernets.transformer_xl import TransformerXL

__all__ = [
    "AutoAttendNodes",
    "AutoAttendText",
    "ConvNet",
    "DARTFormer",
    "Hybrid",
    "Swin",
    "TableMlp",
    "TextTransformer",
    "TransformerXL",
    "ViT",
    "attention",
    "graph_operations",
]

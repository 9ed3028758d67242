"""Supernets: one file for each searched system, with what only it needs beside it."""

from jaxnas.supernets import attention, graph_operations
from jaxnas.supernets.autoattend_nodes import AutoAttendNodes
from jaxnas.supernets.autoattend_text import AutoAttendText
from jaxnas.supernets.autoformer_counter import autoformer_flops
from jaxnas.supernets.convnet import ConvNet
from jaxnas.supernets.dartformer import DARTFormer
from jaxnas.supernets.hybrid import Hybrid
from jaxnas.supernets.swin import Swin
from jaxnas.supernets.table_mlp import TableMlp
from jaxnas.supernets.text_transformer import TextTransformer
from jaxnas.supernets.transformer_xl import TransformerXL
from jaxnas.supernets.vit import ViT

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
    "autoformer_flops",
    "graph_operations",
]

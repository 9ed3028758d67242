"""Neural architecture search in JAX: one compiled supernet for every architecture of a space."""

from jaxnas import search, spaces, supernets
from jaxnas.artifacts import export_subnet, load_subnet, save_subnet
from jaxnas.choice import Choice
from jaxnas.cost import autoformer_flops, cost
from jaxnas.space import Space
from jaxnas.subnet import extract, init

__version__ = "0.1.0"

__all__ = [
    "Choice",
    "Space",
    "autoformer_flops",
    "cost",
    "export_subnet",
    "extract",
    "init",
    "load_subnet",
    "save_subnet",
    "search",
    "spaces",
    "supernets",
]

"""Neural architecture search in JAX: one compiled supernet for every architecture of a space."""

from jaxnas import elastic, hf, latency, search, spaces, supernets, testing
from jaxnas.artifacts import export_subnet, load_subnet, save_subnet
from jaxnas.calibration import calibrate
from jaxnas.choice import Choice
from jaxnas.cost import cost
from jaxnas.space import Space
from jaxnas.subnet import Subnet, extract, init
from jaxnas.transform import Depth, Size, Skip, analyze, order, rank_modules, supernet
from jaxnas.weights import carry_weights

__version__ = "0.1.0"

__all__ = [
    "Choice",
    "Depth",
    "Size",
    "Skip",
    "Space",
    "Subnet",
    "analyze",
    "calibrate",
    "carry_weights",
    "cost",
    "elastic",
    "export_subnet",
    "extract",
    "hf",
    "init",
    "latency",
    "load_subnet",
    "order",
    "rank_modules",
    "save_subnet",
    "search",
    "spaces",
    "supernet",
    "supernets",
    "testing",
]

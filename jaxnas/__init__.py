"""Neural architecture search in JAX: one compiled supernet for every architecture of a space."""

import importlib
from typing import TYPE_CHECKING, Any

from jaxnas import elastic, latency, search, spaces, testing
from jaxnas.artifacts import export_subnet, load_subnet, save_subnet
from jaxnas.axes.groups import analyze
from jaxnas.calibration import calibrate
from jaxnas.choice import Choice
from jaxnas.cost import cost
from jaxnas.space import Space
from jaxnas.subnet import Subnet, extract, init
from jaxnas.transform.order import order, rank_modules
from jaxnas.transform.places import Depth, Size, Skip
from jaxnas.transform.supernet import supernet
from jaxnas.weights import carry_weights

if TYPE_CHECKING:
    from jaxnas import (
        data,
        evosax,
        hf,
        nnx,
        onnx,
        optuna,
        predictors,
        proxies,
        recipes,
        report,
        runs,
        supernets,
        tabular,
        tasks,
        trackers,
        training,
    )

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
    "data",
    "elastic",
    "evosax",
    "experiments",
    "export_subnet",
    "extract",
    "hf",
    "init",
    "latency",
    "load_subnet",
    "nnx",
    "onnx",
    "optuna",
    "order",
    "predictors",
    "proxies",
    "rank_modules",
    "recipes",
    "report",
    "runs",
    "save_subnet",
    "search",
    "spaces",
    "supernet",
    "supernets",
    "tabular",
    "tasks",
    "testing",
    "trackers",
    "training",
]

# Imported when they are first used: `import jaxnas` loads the library and not the laboratory.
_LATER = (
    *("data", "evosax", "experiments", "hf", "nnx", "onnx", "optuna", "predictors", "proxies", "recipes"),
    *("report", "runs", "supernets", "tabular", "tasks", "trackers", "training"),
)


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return importlib.import_module(f"jaxnas.{name}")
    raise AttributeError(f"module 'jaxnas' has no attribute {name!r}")

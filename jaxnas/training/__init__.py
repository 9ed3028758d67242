"""Training: one state, one step, and one loop with exact resume, for every task and recipe."""

from jaxnas.training.alone import EarlyStopping, train_seeds
from jaxnas.training.evaluate import make_evaluator
from jaxnas.training.fit import fit, restore
from jaxnas.training.preemption import Stopped
from jaxnas.training.settings import Training
from jaxnas.training.step import Options

__all__ = [
    "EarlyStopping",
    "Options",
    "Stopped",
    "Training",
    "fit",
    "make_evaluator",
    "restore",
    "train_seeds",
]

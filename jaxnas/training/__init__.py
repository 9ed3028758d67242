"""Training: one state, one step, and one loop with exact resume, for every task and recipe."""

from jaxnas.training.alone import EarlyStopping, train_seeds
from jaxnas.training.checkpoint import CheckpointError, ConfigMismatch
from jaxnas.training.evaluate import make_evaluator
from jaxnas.training.fit import fit, restore
from jaxnas.training.mesh import make_mesh
from jaxnas.training.preemption import Stopped
from jaxnas.training.settings import Training
from jaxnas.training.step import Options
from jaxnas.training.store import DivergedError
from jaxnas.training.workdir import WorkdirError, open_workdir

__all__ = [
    "CheckpointError",
    "ConfigMismatch",
    "DivergedError",
    "EarlyStopping",
    "Options",
    "Stopped",
    "Training",
    "WorkdirError",
    "fit",
    "make_evaluator",
    "make_mesh",
    "open_workdir",
    "restore",
    "train_seeds",
]

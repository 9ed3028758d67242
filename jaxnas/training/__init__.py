"""Training: one state, one step, recipes, and one loop with exact resume, for every task."""

from jaxnas.training.checkpoint import Checkpointer, CheckpointError, ConfigMismatch
from jaxnas.training.evaluate import Evaluator, calibrated, make_evaluator
from jaxnas.training.fit import DivergedError, Trained, fit, restore
from jaxnas.training.mesh import make_mesh
from jaxnas.training.recipes import Fixed, Recipe, Relaxed, Uniform
from jaxnas.training.replay import Replay, replay
from jaxnas.training.seeds import Seeds, train_seeds
from jaxnas.training.settings import Training
from jaxnas.training.state import TrainState
from jaxnas.training.step import make_step
from jaxnas.training.workdir import WorkdirError, open_workdir

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "ConfigMismatch",
    "DivergedError",
    "Evaluator",
    "Fixed",
    "Recipe",
    "Relaxed",
    "Replay",
    "Seeds",
    "TrainState",
    "Trained",
    "Training",
    "Uniform",
    "WorkdirError",
    "calibrated",
    "fit",
    "make_evaluator",
    "make_mesh",
    "make_step",
    "open_workdir",
    "replay",
    "restore",
    "train_seeds",
]

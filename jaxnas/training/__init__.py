"""Training: one state, one step, recipes, and one loop with exact resume, for every task."""

from jaxnas.training.alone import EarlyStopping, Seeds, train_seeds
from jaxnas.training.checkpoint import Checkpointer, CheckpointError, ConfigMismatch
from jaxnas.training.distillation import Distillation, Teacher
from jaxnas.training.divergence import DivergedError
from jaxnas.training.evaluate import Evaluator, calibrated, make_evaluator
from jaxnas.training.fit import Trained, fit, restore
from jaxnas.training.mesh import make_mesh
from jaxnas.training.preemption import Stopped
from jaxnas.training.recipe import Gradients, Problem, Recipe, TrainState
from jaxnas.training.recipes import Fair, Fixed, Progressive, Sandwich, Uniform
from jaxnas.training.relaxed import Relaxed
from jaxnas.training.samplers import Attentive, Random, Stratified
from jaxnas.training.settings import Training
from jaxnas.training.setup import Options
from jaxnas.training.workdir import WorkdirError, open_workdir

__all__ = [
    "Attentive",
    "CheckpointError",
    "Checkpointer",
    "ConfigMismatch",
    "Distillation",
    "DivergedError",
    "EarlyStopping",
    "Evaluator",
    "Fair",
    "Fixed",
    "Gradients",
    "Options",
    "Problem",
    "Progressive",
    "Random",
    "Recipe",
    "Relaxed",
    "Sandwich",
    "Seeds",
    "Stopped",
    "Stratified",
    "Teacher",
    "TrainState",
    "Trained",
    "Training",
    "Uniform",
    "WorkdirError",
    "calibrated",
    "fit",
    "make_evaluator",
    "make_mesh",
    "open_workdir",
    "restore",
    "train_seeds",
]

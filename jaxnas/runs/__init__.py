"""The road from a trained supernet to a result: search, extract, verify, test, save, retrain, report.

The binaries call these functions, and so may anyone with a task and a network of their own:

    trained = training.fit(task, net, 500, workdir=workdir)
    result = runs.search_and_finish(task, net, trained.variables, settings, runs.Lab("runs/mine"))
"""

from jaxnas.runs.finishing import finish, retrain, search_and_finish
from jaxnas.runs.lab import Lab
from jaxnas.runs.methods import (
    Argmax,
    ByStrategy,
    Perturbation,
    Pruning,
    Replacements,
    Sampling,
    Search,
    Trials,
)
from jaxnas.runs.publishing import publish
from jaxnas.runs.ranking import rank
from jaxnas.runs.searching import search_space
from jaxnas.runs.selecting import select
from jaxnas.runs.space_evolution import SpaceEvolution, evolve

__all__ = [
    "Argmax",
    "ByStrategy",
    "Lab",
    "Perturbation",
    "Pruning",
    "Replacements",
    "Sampling",
    "Search",
    "SpaceEvolution",
    "Trials",
    "evolve",
    "finish",
    "publish",
    "rank",
    "retrain",
    "search_and_finish",
    "search_space",
    "select",
]

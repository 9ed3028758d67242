"""The road from a trained supernet to a result: search, extract, verify, test, save, retrain, report.

The binaries call these functions, and so may anyone with a task and a network of their own:

    trained = training.fit(task, net, 500, workdir=workdir)
    result = runs.search_and_finish(task, net, trained.variables, workdir=workdir)
"""

from jaxnas.runs.describe import describe_run, describe_space, describe_task, versions
from jaxnas.runs.finishing import enter_ranking, finish, measure, retrain, search_and_finish, timed_calls
from jaxnas.runs.live_page import LivePage
from jaxnas.runs.methods import (
    BY_BUDGET,
    METHODS,
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
from jaxnas.runs.ranking import Alone, rank
from jaxnas.runs.searching import Found, search_space
from jaxnas.runs.selecting import select
from jaxnas.runs.space_evolution import SpaceEvolution, Spaces, evolve, measure_last, read_spaces
from jaxnas.runs.timing import costs_with_latency

__all__ = [
    "BY_BUDGET",
    "METHODS",
    "Alone",
    "Argmax",
    "ByStrategy",
    "Found",
    "LivePage",
    "Perturbation",
    "Pruning",
    "Replacements",
    "Sampling",
    "Search",
    "SpaceEvolution",
    "Spaces",
    "Trials",
    "costs_with_latency",
    "describe_run",
    "describe_space",
    "describe_task",
    "enter_ranking",
    "evolve",
    "finish",
    "measure",
    "measure_last",
    "publish",
    "rank",
    "read_spaces",
    "retrain",
    "search_and_finish",
    "search_space",
    "select",
    "timed_calls",
    "versions",
]

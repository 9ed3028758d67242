"""Search strategies: a strategy sees a space and a function from architectures to scores."""

from jaxnas.search.bounds import check_bounds, reachable
from jaxnas.search.evolution import Evolution
from jaxnas.search.local_search import LocalSearch
from jaxnas.search.random_search import RandomSearch
from jaxnas.search.regularized_evolution import RegularizedEvolution
from jaxnas.search.runner import Result, run, scan
from jaxnas.search.state import State

__all__ = [
    "Evolution",
    "LocalSearch",
    "RandomSearch",
    "RegularizedEvolution",
    "Result",
    "State",
    "check_bounds",
    "reachable",
    "run",
    "scan",
]

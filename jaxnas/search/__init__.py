"""Search strategies: a strategy sees a space and a function from architectures to scores."""

from jaxnas.search.bounds import check_bounds, reachable
from jaxnas.search.evolution import Evolution
from jaxnas.search.random_search import RandomSearch
from jaxnas.search.runner import Result, run
from jaxnas.search.state import State

__all__ = ["Evolution", "RandomSearch", "Result", "State", "check_bounds", "reachable", "run"]

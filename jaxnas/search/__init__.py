"""Search strategies: a strategy sees a space and a function from architectures to scores."""

from jaxnas.search.bounds import reachable
from jaxnas.search.evolution import Evolution, LocalSearch, RegularizedEvolution
from jaxnas.search.knapsack import knapsack, replacements
from jaxnas.search.parallel import run_parallel
from jaxnas.search.pareto import NSGA2
from jaxnas.search.predictor_guided import PredictorGuided
from jaxnas.search.proposals import propose
from jaxnas.search.random_search import RandomSearch
from jaxnas.search.reinforce import PPO, Reinforce, TransformerPolicy
from jaxnas.search.runner import run, scan
from jaxnas.search.space_evolution import ShiftRule, evolve_space
from jaxnas.search.strategy import Pool, Strategy
from jaxnas.search.successive_halving import Hyperband, SuccessiveHalving

__all__ = [
    "NSGA2",
    "PPO",
    "Evolution",
    "Hyperband",
    "LocalSearch",
    "Pool",
    "PredictorGuided",
    "RandomSearch",
    "RegularizedEvolution",
    "Reinforce",
    "ShiftRule",
    "Strategy",
    "SuccessiveHalving",
    "TransformerPolicy",
    "evolve_space",
    "knapsack",
    "propose",
    "reachable",
    "replacements",
    "run",
    "run_parallel",
    "scan",
]

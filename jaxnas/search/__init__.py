"""Search strategies: a strategy sees a space and a function from architectures to scores."""

from jaxnas.search.bounds import check_bounds, reachable
from jaxnas.search.evolution import Evolution
from jaxnas.search.knapsack import Replacements, knapsack, replacements
from jaxnas.search.listed import Listed
from jaxnas.search.local_search import LocalSearch
from jaxnas.search.nsga2 import NSGA2
from jaxnas.search.parallel import run_parallel
from jaxnas.search.perturbation import perturbation
from jaxnas.search.policies import SoftmaxPolicy, TransformerPolicy
from jaxnas.search.predictor_guided import PredictorGuided
from jaxnas.search.proposals import propose
from jaxnas.search.pruning import pruning
from jaxnas.search.random_search import RandomSearch
from jaxnas.search.regularized_evolution import RegularizedEvolution
from jaxnas.search.reinforce import PPO, Reinforce
from jaxnas.search.runner import Result, Standing, check_strategy, run, scan
from jaxnas.search.selections import Candidates, argmax, candidates, similar_cost
from jaxnas.search.space_evolution import (
    LEAST_SAMPLE,
    EvolvedSpace,
    Shift,
    ShiftRule,
    et_error,
    evolve_space,
    shift_options,
)
from jaxnas.search.strategy import Pool, State, Strategy, begin_evaluation, end_evaluation, ranking
from jaxnas.search.successive_halving import Hyperband, SuccessiveHalving

__all__ = [
    "LEAST_SAMPLE",
    "NSGA2",
    "PPO",
    "Candidates",
    "Evolution",
    "EvolvedSpace",
    "Hyperband",
    "Listed",
    "LocalSearch",
    "Pool",
    "PredictorGuided",
    "RandomSearch",
    "RegularizedEvolution",
    "Reinforce",
    "Replacements",
    "Result",
    "Shift",
    "ShiftRule",
    "SoftmaxPolicy",
    "Standing",
    "State",
    "Strategy",
    "SuccessiveHalving",
    "TransformerPolicy",
    "argmax",
    "begin_evaluation",
    "candidates",
    "check_bounds",
    "check_strategy",
    "end_evaluation",
    "et_error",
    "evolve_space",
    "knapsack",
    "perturbation",
    "pruning",
    "propose",
    "ranking",
    "reachable",
    "replacements",
    "run",
    "run_parallel",
    "scan",
    "shift_options",
    "similar_cost",
]

"""Predictors of an architecture's score from its features, refitted as results arrive.

A predictor is a frozen dataclass with `fit(key, inputs, targets, mask) -> fitted` and
`predict(fitted, inputs) -> (mean, std)`, pure and of fixed shapes: inside a compiled search loop the
mask grows as results arrive. `features` has what a predictor reads of the paths of cells.
"""

from jaxnas.predictors.features import one_hot, tokens
from jaxnas.predictors.gp import GaussianProcess
from jaxnas.predictors.mlp import MlpEnsemble
from jaxnas.predictors.transformer import TransformerPredictor

__all__ = ["GaussianProcess", "MlpEnsemble", "TransformerPredictor", "one_hot", "tokens"]

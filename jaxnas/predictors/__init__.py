"""Predictors of an architecture's score from its features, refitted as results arrive.

A predictor is a frozen dataclass with `fit(key, inputs, targets, mask) -> fitted` and
`predict(fitted, inputs) -> (mean, std)`, pure and of fixed shapes: inside a compiled search loop the
mask grows as results arrive.
"""

from jaxnas.predictors.features import ChainCell, EdgeCell, one_hot, path_features, path_tokens, tokens
from jaxnas.predictors.gp import GaussianProcess
from jaxnas.predictors.mlp import MlpEnsemble
from jaxnas.predictors.transformer import SupervisedTransformer, TransformerPredictor

__all__ = [
    "ChainCell",
    "EdgeCell",
    "GaussianProcess",
    "MlpEnsemble",
    "SupervisedTransformer",
    "TransformerPredictor",
    "one_hot",
    "path_features",
    "path_tokens",
    "tokens",
]

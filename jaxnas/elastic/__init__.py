"""Elastic layers: weight-entangled operations whose active size is an array passed at call time."""

from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.layers import Dense, LayerNorm
from jaxnas.elastic.mixture import Mixture
from jaxnas.elastic.parameter import annotate, parameter, record_macs
from jaxnas.elastic.width import Decision, Width, fixed, width

__all__ = [
    "Decision",
    "Decisions",
    "Dense",
    "LayerNorm",
    "Mixture",
    "Width",
    "annotate",
    "fixed",
    "parameter",
    "record_macs",
    "width",
]

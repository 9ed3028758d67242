"""Layers whose sizes are chosen by an array at call time, and what one builds such layers from.

A network reads the decisions of its space, makes a `Width` of them for each axis whose size is a choice, and
gives these widths to layers:

    class Network(nn.Module):
        space: jaxnas.Space  # with the choice "width"

        @nn.compact
        def __call__(self, x, arch=None, *, train=False):
            decisions = elastic.Decisions(self.space, arch, initializing=self.is_initializing())
            hidden = elastic.width(int, decisions["width"])
            x = elastic.Dense(name="in")(x, elastic.fixed(x.shape[-1]), hidden)
            x = elastic.LayerNorm(name="norm")(jax.nn.relu(x), hidden)
            return elastic.Dense(name="out")(x, hidden, elastic.fixed(10))

Weights are stored once, at the largest sizes, and a smaller layer uses their first channels. Activations have
zeros behind their active channels. `Conv`, `BatchNorm` and `SqueezeExcite` are for images, `Attention` and
`Embedding` for tokens; each docstring shows how the layer is called. A layer of one's own is a function that
`run` calls at its active sizes, with weights that `parameter` declares and products that `record_macs`
counts.
"""

from jaxnas.elastic.attention import Attention
from jaxnas.elastic.bank import bank
from jaxnas.elastic.convolution import Conv
from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.layers import Dense, Embedding, LayerNorm, Mlp, SqueezeExcite
from jaxnas.elastic.loop import run_layers
from jaxnas.elastic.mixture import Mixture
from jaxnas.elastic.normalization import BatchNorm
from jaxnas.elastic.parameter import annotate, parameter, record_choice, record_macs
from jaxnas.elastic.switch import run
from jaxnas.elastic.width import Width, combine, fixed, width

__all__ = [
    "Attention",
    "BatchNorm",
    "Conv",
    "Decisions",
    "Dense",
    "Embedding",
    "LayerNorm",
    "Mixture",
    "Mlp",
    "SqueezeExcite",
    "Width",
    "annotate",
    "bank",
    "combine",
    "fixed",
    "parameter",
    "record_choice",
    "record_macs",
    "run",
    "run_layers",
    "width",
]

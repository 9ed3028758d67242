"""Small networks that search attention, DARTFormer's and AutoAttend's, with their inputs."""

import functools

import jax.numpy as jnp
import numpy as np
import promises

from jaxnas import spaces
from jaxnas.supernets import AutoAttendNodes, AutoAttendText, DARTFormer

WORDS, LENGTH, CLASSES = 11, 10, 3
SOME = ("zero", "identity", "convolution_3", "max_pool", "gru")
MECHANISMS = ("local", "linear", "linformer", "synthesizer")
RNG = np.random.default_rng(0)
TEXTS = {
    "tokens": jnp.asarray(RNG.integers(0, WORDS, (3, LENGTH)), jnp.int32),
    "mask": jnp.arange(LENGTH)[None] < jnp.asarray([LENGTH, 1, 4])[:, None],
}
EDGES = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]
NODES = {
    "features": jnp.asarray(RNG.normal(size=(1, 5, 4)), jnp.float32),
    "edges": jnp.asarray([[*EDGES, *((b, a) for a, b in EDGES)]], jnp.int32),
    "edge_mask": jnp.ones((1, 10), bool),
    "node_mask": jnp.ones((1, 5), bool),
}


@functools.cache
def autoattend(kind, context="full"):
    sizes = {"num_classes": CLASSES, "width": 8, "num_heads": 2, "context": context, "dropout": 0.2}
    if kind == "nodes":
        return AutoAttendNodes(spaces.autoattend(2, ("zero", "identity", "gcn", "gat_2")), **sizes)
    if kind == "unframed":
        return AutoAttendNodes(spaces.autoattend(3, ("zero", "gcn", "gat_2")), framed=False, **sizes)
    return AutoAttendText(spaces.autoattend(2, SOME), vocabulary=WORDS, embedding=5, **sizes)


def inputs_of(kind):
    return TEXTS if kind == "text" else NODES


@functools.cache
def variables_of(kind, context="full"):
    return promises.positive_variables(autoattend(kind, context), inputs_of(kind))


@functools.cache
def dartformer(heads=None, **changes):
    given = dict(width=8, num_heads=2, hidden=12, block=4, num_projected=3, dropout=0.0, max_length=LENGTH)
    given["space"] = spaces.dartformer(MECHANISMS, heads)
    return DARTFormer(num_classes=CLASSES, vocabulary=WORDS, **given | changes)

"""Attention mechanisms with one interface, so that a search can choose among them.

    block = attention.Longformer(num_heads=4, head_dim=16, window=32)
    y = block.apply(variables, x, mask, train=False)  # x [B, T, E], mask bool [B, T] -> y [B, T, E]

Each is a Flax module with its own projections, and, in lower case, a pure function without parameters of
queries, keys and values [B, H, T, d] and the mask, which returns outputs [B, H, T, d]. `MECHANISMS` has the
modules by name. Sequences may have any length up to a module's `max_length`. The mask is True at tokens: what
stands elsewhere changes nothing (a function needs it to be finite), and outputs there are 0. With
`causal=True` a query sees only its own position and those before. Random patterns, features and hashes are
constants, which a module's `seed` fixes. Attention weights have no dropout.

What the mechanisms are is the mathematics of the papers. Where a port of them, such as that of Long Range
Arena, differs, the papers hold.
"""

import types
from collections.abc import Mapping

from jaxnas.supernets.attention.linear_time import (
    Linear,
    Linformer,
    Performer,
    linear,
    linformer,
    orthogonal_features,
    performer,
)
from jaxnas.supernets.attention.module import Attention
from jaxnas.supernets.attention.quadratic import Softmax, Synthesizer, softmax, synthesizer
from jaxnas.supernets.attention.sorting import (
    Reformer,
    Sinkhorn,
    hash_rotations,
    reformer,
    sinkhorn,
    sorting_matrix,
)
from jaxnas.supernets.attention.sparse import (
    BigBird,
    Local,
    Longformer,
    SparseTransformer,
    bigbird,
    local,
    longformer,
    random_blocks,
    sparse_transformer,
)

MECHANISMS: Mapping[str, type[Attention]] = types.MappingProxyType(
    {
        "softmax": Softmax,
        "local": Local,
        "longformer": Longformer,
        "sparse_transformer": SparseTransformer,
        "bigbird": BigBird,
        "linformer": Linformer,
        "linear": Linear,
        "performer": Performer,
        "reformer": Reformer,
        "sinkhorn": Sinkhorn,
        "synthesizer": Synthesizer,
    }
)

__all__ = [
    "MECHANISMS",
    "Attention",
    "BigBird",
    "Linear",
    "Linformer",
    "Local",
    "Longformer",
    "Performer",
    "Reformer",
    "Sinkhorn",
    "Softmax",
    "SparseTransformer",
    "Synthesizer",
    "bigbird",
    "hash_rotations",
    "linear",
    "linformer",
    "local",
    "longformer",
    "orthogonal_features",
    "performer",
    "random_blocks",
    "reformer",
    "sinkhorn",
    "softmax",
    "sorting_matrix",
    "sparse_transformer",
    "synthesizer",
]

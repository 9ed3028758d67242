"""Attention mechanisms with one interface, so that a search can choose among them.

    block = attention.Longformer(num_heads=4, head_dim=16, window=32)
    y = block.apply(variables, x, mask, train=False)  # x [B, T, E], mask bool [B, T] -> y [B, T, E]

Each is a Flax module with its own projections, and, in lower case in its file, a pure function without
parameters of queries, keys and values [B, H, T, d] and the mask, which returns outputs [B, H, T, d].
`MECHANISMS` has the modules by name. Sequences may have any length up to a module's `max_length`. The mask
is True at tokens: what stands elsewhere changes nothing (a function needs it to be finite), and outputs there
are 0. Random patterns, features and hashes are constants, which a module's `seed` fixes. Attention weights
have no dropout.

What the mechanisms are is the mathematics of the papers. Where a port of them, such as that of Long Range
Arena, differs, the papers hold.
"""

from jaxnas.supernets.dartformer.attention.core import Attention
from jaxnas.supernets.dartformer.attention.dense import Linear, Linformer, Performer, Softmax, Synthesizer
from jaxnas.supernets.dartformer.attention.sorting import Reformer, Sinkhorn
from jaxnas.supernets.dartformer.attention.sparse import BigBird, Local, Longformer, SparseTransformer

MECHANISMS: dict[str, type[Attention]] = {
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
]

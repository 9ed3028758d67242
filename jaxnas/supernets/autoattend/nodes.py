"""AutoAttend for graphs: the network that classifies nodes by its last layer.

AutoAttend (Guan et al., ICML 2021, section 5.2). Operations are those of `graph_operations`, and attention is
computed between nodes that an edge joins. In a frame, a dense layer for the features and one for the classes
stand around the layers, so that every operation of the pool can be anywhere. Without it, as in the authors'
code, the first layers take the features and the last one gives the classes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas.checks import check_counts, check_numbers
from jaxnas.elastic.decisions import Decisions
from jaxnas.space import Arch, Space
from jaxnas.supernets.autoattend import graph_operations as ops
from jaxnas.supernets.autoattend.attention_graph import LayerKind, run_graph
from jaxnas.supernets.autoattend.attention_weights import ROLES, Context, check_graph
from jaxnas.supernets.autoattend.graph_operations import Dropout, Features, Graph
from jaxnas.supernets.schema import check_multiple, check_values

POOLS = {"cora": ops.cora_pool, "citeseer": ops.citeseer_pool}


class Operation(nn.Module):
    """An operation with dropout before it and a tanh behind.

    Attributes:
      operation: of `graph_operations`.
      dropout: of its input.
    """

    operation: nn.Module
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: Features, graph: Graph, *, train: bool = False) -> jax.Array:
        """Maps x [N, D] to [N, D]."""
        return jnp.tanh(self.operation(Dropout(self.dropout)(x, train=train), graph, train=train))


def attention(
    query: jax.Array, key: jax.Array, value: jax.Array, graph: Graph, drop: Any, *, num_heads: int
) -> jax.Array:
    """Multi-head attention of each node to the nodes that edges lead from, [N, D] each."""
    query, key, value = (x.reshape(x.shape[0], num_heads, -1) for x in (query, key, value))  # [N, H, d]
    edges = graph.edges
    scores = jnp.sum(query[edges.targets] * key[edges.sources], axis=2) * query.shape[2] ** -0.5  # [E, H]
    weights = drop(ops.edge_softmax(edges, scores, query.shape[0]))
    return ops.propagate(edges, value, weights[:, :, None]).reshape(query.shape[0], -1)


class AutoAttendNodes(nn.Module):
    """AutoAttend's supernet for the nodes of graphs; see `spaces.autoattend`.

    With the space of one architecture it is that plain network.

    Attributes:
      space: the search space.
      num_classes: of nodes.
      pool: "cora" with 13 operations, or "citeseer" with 8 that pass messages in several heads.
      width: of all layers.
      num_heads: of attentions.
      context: which contexts of an operation have weights of their own; "full" is the paper's.
      dropout: of features, of the input of operations and of the head, and of attention weights.
      framed: whether the two dense layers are there. Without them operations on the features, and those of
        the last layer, whose attention has one head, have weights of their own shapes.
    """

    space: Space
    num_classes: int
    pool: Literal["cora", "citeseer"] = "cora"
    width: int = 64
    num_heads: int = 8
    context: Context = "full"
    dropout: float = 0.6
    framed: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_values(self, pool=tuple(POOLS))
        check_graph(self, tuple(self.operations()))
        check_counts(self, "num_classes", "width", "num_heads")
        check_numbers(self, "dropout", least=0, below=1)
        check_multiple("AutoAttendNodes: width, of the heads,", self.width, self.num_heads)
        roles = set(ROLES) & set(self.space)
        if not self.framed and any("identity" in self.space[role].options for role in roles):
            raise ValueError(
                "AutoAttendNodes: 'identity' is an option, which needs as many features as the layer gives. "
                "Leave it out of the space, or set framed=True."
            )

    def operations(self, *, last: bool = False) -> dict[str, nn.Module]:
        """The operations by the names that a space gives them.

        Args:
          last: those of the last layer where there is no frame. They give the classes, and average heads.
        """
        merge: dict[str, Any] = {"merge": "mean"} if last else {}
        pool = POOLS[self.pool](self.num_classes if last else self.width, dropout=self.dropout, **merge)
        return {
            name: one if name in ("zero", "identity") else Operation(one, self.dropout, parent=None)
            for name, one in pool.items()
        }

    def _kind(self, num_heads: int, *, last: bool = False) -> LayerKind:
        """Without dropout of results, since the next operation, or the head, drops its input.

        Nor are attentions counted: sums over edges are no products of matrices.
        """
        attend = functools.partial(attention, num_heads=num_heads)
        width = self.num_classes if last else self.width
        return LayerKind(self.operations(last=last), attend, width, attention_dropout=self.dropout)

    @nn.compact
    def __call__(
        self, inputs: Mapping[str, jax.Array], arch: Arch | None = None, *, train: bool = False
    ) -> jax.Array:
        """Classifies the nodes of graphs.

        Args:
          inputs: as `tasks.Graphs` gives them: "features" float32 [G, N, F], or the three arrays of sparse
            ones, "edges" int32 [G, E, 2], "edge_mask" bool [G, E] and "node_mask" bool [G, N].
          arch: a hard architecture of the space; not needed if the space has only one.
          train: whether dropout is on (needs the "dropout" random stream).

        Returns:
          Logits, float32 [G, N, num_classes].
        """
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        x, graph = ops.union(inputs)
        layer = self._kind(self.num_heads)
        if self.framed:
            stem = ops.Product(self.width, bias=True, kernel_init=nn.linear.default_kernel_init, name="stem")
            x = stem(Dropout(self.dropout)(x, train=train))
            # Normalized: features that sum to one would leave next to nothing for the layers at the start.
            x = jnp.tanh(nn.LayerNorm(name="norm_in")(x))
        run = functools.partial(run_graph, self, layer, x, (graph,), decisions, train=train)
        if self.framed:
            head = nn.Dense(self.num_classes, name="head")
            logits = head(Dropout(self.dropout)(run(), train=train))
        else:
            logits = run(last=self._kind(1, last=True))
        return logits.reshape(*inputs["node_mask"].shape, self.num_classes)

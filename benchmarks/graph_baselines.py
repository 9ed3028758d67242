"""Two known networks on graphs, by which searched ones are judged: GCN and GAT. Nothing in them is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax

from jaxnas.choice import Choice
from jaxnas.space import Space
from jaxnas.supernets.autoattend.graph_operations import Dropout, GCNConv, GeoLayer, union


class GCN(nn.Module):
    """Two graph convolutions (Kipf and Welling, ICLR 2017, sections 3.1 and 5.2).

    Attributes:
      num_classes: of nodes.
      hidden: features between the two.
      dropout: of what each convolution gets.
      space: of one architecture.
    """

    num_classes: int
    hidden: int = 16
    dropout: float = 0.5
    space: Space = Space(network=Choice("gcn"))

    @nn.compact
    def __call__(
        self, inputs: Mapping[str, jax.Array], arch: Any = None, *, train: bool = False
    ) -> jax.Array:
        """Takes graphs as of `tasks.Graphs`, gives logits [G, N, classes]."""
        x, graph = union(inputs)
        x = Dropout(self.dropout)(x, train=train)
        x = nn.relu(GCNConv(self.hidden, name="first")(x, graph))  # [G * N, hidden]
        x = Dropout(self.dropout)(x, train=train)
        x = GCNConv(self.num_classes, name="last")(x, graph)
        return x.reshape(*inputs["node_mask"].shape, self.num_classes)


class GAT(nn.Module):
    """Two layers of graph attention (Velickovic et al., ICLR 2018, section 3.3, and the authors' code).

    Attributes:
      num_classes: of nodes.
      features: of each head of the first layer, whose heads are concatenated.
      num_heads: of the first layer.
      last_heads: of the last layer, over which logits are averaged.
      dropout: of what each layer gets, of the weights of attention and, as in the authors' code, of the
        projected features that are summed.
      space: of one architecture.
    """

    num_classes: int
    features: int = 8
    num_heads: int = 8
    last_heads: int = 1
    dropout: float = 0.6
    space: Space = Space(network=Choice("gat"))

    @nn.compact
    def __call__(
        self, inputs: Mapping[str, jax.Array], arch: Any = None, *, train: bool = False
    ) -> jax.Array:
        """Takes graphs as of `tasks.Graphs`, gives logits [G, N, classes]."""
        x, graph = union(inputs)
        x = Dropout(self.dropout)(x, train=train)
        drops = {"dropout": self.dropout, "sum_dropout": self.dropout}
        first = GeoLayer(self.num_heads * self.features, "gat", self.num_heads, name="first", **drops)
        x = nn.elu(first(x, graph, train=train))  # [G * N, heads * features]
        x = Dropout(self.dropout)(x, train=train)
        last = GeoLayer(self.num_classes, "gat", self.last_heads, merge="mean", name="last", **drops)
        return last(x, graph, train=train).reshape(*inputs["node_mask"].shape, self.num_classes)

"""Operations of networks on graphs: what each node gets from the nodes that edges lead from.

An operation is a small Flax module, called as `operation(x, graph, train=train)` with the nodes of a graph,
x [N, in], and gives [N, features]. `union` makes one graph of a batch of them. Sums go over the list of
edges, so memory grows with nodes and edges and never with their square. The features of a graph may be a
sparse matrix (`jax.experimental.sparse.BCOO`): dropout gives another one, and operations with weights dense
arrays.

`cora_pool` and `citeseer_pool` are the operations that AutoAttend searches (Guan et al., ICML 2021,
section 5.2.1). Costs count the products with matrices; the sums over edges have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.experimental.sparse import BCOO

from jaxnas.supernets.schema import check_multiple, check_values

Features = jax.Array | BCOO
Merge = Literal["concatenate", "mean"]
Coefficient = Literal["const", "gcn", "gat", "sym_gat", "cos", "linear", "gene_linear"]

_glorot = nn.initializers.glorot_uniform()


@flax.struct.dataclass
class Edges:
    """Directed edges of a graph.

    Attributes:
      sources, targets: the nodes that each edge joins, int32 [E].
      mask: 1, and 0 for what fills a graph up, float32 [E].
      coefficients: 1 / sqrt(edges into the source * edges into the target), and 0 behind the mask,
        float32 [E]. For a graph without directions this is the symmetric normalization of its adjacency.
    """

    sources: jax.Array
    targets: jax.Array
    mask: jax.Array
    coefficients: jax.Array


@flax.struct.dataclass
class Graph:
    """One graph, with what operations need of it.

    Attributes:
      edges: as they are.
      looped: the same, and an edge from each node to itself.
      degrees: how many edges lead to each node, float32 [N].
    """

    edges: Edges
    looped: Edges
    degrees: jax.Array


def make_graph(edges: jax.Array, edge_mask: jax.Array, node_mask: jax.Array) -> Graph:
    """Makes a graph of its edges, none of which leads from a node to itself.

    Args:
      edges: (source, target), int32 [E, 2].
      edge_mask, node_mask: bool [E] and [N], False for what fills the graph up.
    """
    count = node_mask.shape[0]
    nodes = jnp.arange(count, dtype=jnp.int32)
    sources, targets, mask = edges[:, 0], edges[:, 1], edge_mask.astype(jnp.float32)
    degrees = jax.ops.segment_sum(mask, targets, count)  # [N]
    ends = jnp.concatenate([sources, nodes]), jnp.concatenate([targets, nodes])
    with_nodes = jnp.concatenate([mask, node_mask.astype(jnp.float32)])
    looped = _normalized(ends[0], ends[1], with_nodes, degrees + 1)
    return Graph(_normalized(sources, targets, mask, degrees), looped, degrees)


def union(inputs: Mapping[str, jax.Array]) -> tuple[Features, Graph]:
    """One graph of a batch of graphs, between which there is no edge.

    Args:
      inputs: as `tasks.Graphs` gives them to a network: "features" [G, N, F], or the three arrays of sparse
        ones, "edges" int32 [G, E, 2], "edge_mask" bool [G, E] and "node_mask" bool [G, N].

    Returns:
      The features of all nodes, [G * N, F], and the graph. What a network makes of them, [G * N, classes],
      is reshaped to [G, N, classes] at its end.
    """
    graphs, nodes = inputs["node_mask"].shape
    first = jnp.arange(graphs, dtype=jnp.int32) * nodes  # node of each graph
    edges = inputs["edges"] + first[:, None, None]
    graph = make_graph(edges.reshape(-1, 2), inputs["edge_mask"].reshape(-1), inputs["node_mask"].reshape(-1))
    if "features" in inputs:
        return inputs["features"].reshape(graphs * nodes, -1), graph
    values, starts = inputs["feature_values"], inputs["feature_starts"]  # [G, S], [G, F + 1]
    count, width = values.shape[1], starts.shape[1] - 1

    def columns(starts: jax.Array) -> jax.Array:
        return jnp.repeat(jnp.arange(width), jnp.diff(starts), total_repeat_length=count)

    rows = inputs["feature_nodes"] + first[:, None]
    places = jnp.stack([rows, jax.vmap(columns)(starts)], axis=2)  # [G, S, 2]
    return BCOO((values.reshape(-1), places.reshape(-1, 2)), shape=(graphs * nodes, width)), graph


def propagate(edges: Edges, values: jax.Array, weights: jax.Array) -> jax.Array:
    """For each node the sum, over the edges that lead to it, of weights times the values of the sources.

    Args:
      edges: of the graph.
      values: of the nodes, [N, ...].
      weights: of the edges, [E, ...], which broadcast to the values; 0 behind the mask.
    """
    messages = weights * values[edges.sources]  # [E, ...]
    return jax.ops.segment_sum(messages, edges.targets, values.shape[0])


def edge_softmax(edges: Edges, scores: jax.Array, count: int) -> jax.Array:
    """The softmax of scores over the edges that lead to the same of `count` nodes.

    Scores and weights are [E, heads]; the weights are 0 behind the mask.
    """
    there = edges.mask[:, None] > 0
    largest = jax.ops.segment_max(jnp.where(there, scores, -jnp.inf), edges.targets, count)  # [N, heads]
    largest = jax.lax.stop_gradient(jnp.where(jnp.isfinite(largest), largest, 0))
    # Masked twice: the gradient of an exponential that overflows is no number, even where it is not taken.
    shifted = jnp.where(there, scores - largest[edges.targets], 0)
    exponentials = jnp.where(there, jnp.exp(shifted), 0)
    sums = jax.ops.segment_sum(exponentials, edges.targets, count)  # [N, heads]
    return exponentials / jnp.where(sums > 0, sums, 1)[edges.targets]


class Dropout(nn.Module):
    """Dropout of the features of nodes, with a random byte for each.

    Random numbers for all features of a graph of words take the largest part of a training step on a CPU.
    `nn.Dropout` draws four bytes for each, and the gradient of `GCN` on Cora then took 70 ms in place of 34.

    Attributes:
      rate: probability that a feature is dropped, which is rounded to 1 / 256.
    """

    rate: float

    @nn.compact
    def __call__(self, x: Features, *, train: bool = False) -> Features:
        """Takes and gives x [N, features]; in training what is kept is scaled by 256 / (kept bytes)."""
        kept = round(256 * (1 - self.rate))
        if not 0 < kept <= 256:
            raise ValueError(f"Dropout: rate is {self.rate}, expected at least 0 and below 1.")
        if not train or kept == 256:
            return x
        if isinstance(x, BCOO):  # of what is stored; the rest is zero
            return BCOO((self._drop(x.data, kept), x.indices), shape=x.shape)
        return self._drop(x, kept)

    def _drop(self, x: jax.Array, kept: int) -> jax.Array:
        shape = (*x.shape[:-1], -(-x.shape[-1] // 4))
        words = jax.random.bits(self.make_rng("dropout"), shape, jnp.uint32)
        drawn = jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]
        return jnp.where(drawn < jnp.uint8(kept), x * (256 / kept), 0)


class Product(nn.Module):
    """The features of nodes times a matrix: x W, or x W + b."""

    features: int
    bias: bool = False
    kernel_init: nn.initializers.Initializer = _glorot

    @nn.compact
    def __call__(self, x: Features) -> jax.Array:
        y = x @ self.param("kernel", self.kernel_init, (x.shape[1], self.features))
        return _bias(self, y) if self.bias else y


class Zero(nn.Module):
    """Nothing: zeros [..., features]."""

    features: int

    def __call__(self, x: jax.Array, *inputs: Any, train: bool = False) -> jax.Array:
        return jnp.zeros((*x.shape[:-1], self.features), x.dtype)


class Identity(nn.Module):
    """Its input as it is, [..., features]."""

    features: int

    def __call__(self, x: jax.Array, *inputs: Any, train: bool = False) -> jax.Array:
        """Takes x [..., features]; another width raises ValueError."""
        if x.shape[-1] != self.features:
            raise ValueError(
                f"Identity: nodes have {x.shape[-1]} features, and {self.features} are asked for; the "
                "identity cannot change their number. Leave it out of the pool of this layer."
            )
        return x


class Linear(nn.Module):
    """Each node alone: x W + b, [N, features]."""

    features: int

    @nn.compact
    def __call__(self, x: Features, graph: Graph, *, train: bool = False) -> jax.Array:
        return Product(self.features, bias=True, name="linear")(x)


class GCNConv(nn.Module):
    """Graph convolution: nodes averaged by D^-1/2 (A + I) D^-1/2 (Kipf and Welling, ICLR 2017, eq. 2).

    Without `self_loops`, where a node does not count among its neighbors, A stands for A + I.
    """

    features: int
    self_loops: bool = True

    @nn.compact
    def __call__(self, x: Features, graph: Graph, *, train: bool = False) -> jax.Array:
        edges = graph.looped if self.self_loops else graph.edges
        x = Product(self.features, name="linear")(x)
        return _bias(self, propagate(edges, x, edges.coefficients[:, None]))


class SAGEConv(nn.Module):
    """The mean of the neighbors and the node itself, each by a matrix (Hamilton et al., NeurIPS 2017)."""

    features: int

    @nn.compact
    def __call__(self, x: Features, graph: Graph, *, train: bool = False) -> jax.Array:
        # The mean of products is the product of the mean, and mostly narrower.
        neighbors = Product(self.features, name="neighbors")(x)
        total = propagate(graph.edges, neighbors, graph.edges.mask[:, None])
        mean = total / jnp.maximum(graph.degrees, 1)[:, None]
        return _bias(self, mean + Product(self.features, name="root")(x))


class ARMAConv(nn.Module):
    """relu(D^-1/2 A D^-1/2 X W + X V + b): one stack and one layer of Bianchi et al. (TPAMI 2021, eq. 15)."""

    features: int

    @nn.compact
    def __call__(self, x: Features, graph: Graph, *, train: bool = False) -> jax.Array:
        neighbors = Product(self.features, name="neighbors")(x)
        y = propagate(graph.edges, neighbors, graph.edges.coefficients[:, None])
        return nn.relu(_bias(self, y + Product(self.features, name="root")(x)))


class ChebConv(nn.Module):
    """The Chebyshev polynomials of the Laplacian of degree 0 and 1 (Defferrard et al., NeurIPS 2016, eq. 4).

    The Laplacian is scaled by a largest eigenvalue of 2, which leaves -D^-1/2 A D^-1/2. It is meant for
    graphs without directions; D has the edges into each node.
    """

    features: int

    @nn.compact
    def __call__(self, x: Features, graph: Graph, *, train: bool = False) -> jax.Array:
        # The Laplacian of products is the product of the Laplacian, and mostly narrower.
        neighbors = Product(self.features, name="linear_1")(x)
        y = propagate(graph.edges, neighbors, graph.edges.coefficients[:, None])
        return _bias(self, Product(self.features, name="linear_0")(x) - y)


class GeoLayer(nn.Module):
    """Message passing with one of several coefficients of an edge (GraphNAS, IJCAI 2020, table 1).

    An edge from u to v has the following coefficient in each head, where h = X W and a, b and c are vectors:
    "const" 1; "gcn" 1 / sqrt(d_u d_v); "gat" leaky_relu(<a, h_v> + <b, h_u>), which is graph attention
    (Velickovic et al., ICLR 2018, section 2.1); "sym_gat" that of both directions added; "cos"
    <a * h_v, b * h_u>; "linear" tanh(<b, h_u>); "gene_linear" <c, tanh(a * h_v + b * h_u)>. All but the first
    two become weights by a softmax over the edges that lead to v. A node counts among its neighbors.

    Attributes:
      features: out.
      coefficient: its name.
      heads: of attention.
      merge: how heads become one: "concatenate", where each has features / heads, or their "mean".
      dropout: probability that the weight of an edge is dropped in training.
      sum_dropout: probability that a projected feature is dropped in training, where neighbors are summed.
    """

    features: int
    coefficient: Coefficient
    heads: int = 4
    merge: Merge = "concatenate"
    dropout: float = 0.0
    sum_dropout: float = 0.0

    @nn.compact
    def __call__(self, x: Features, graph: Graph, *, train: bool = False) -> jax.Array:
        check_values(self, merge=get_args(Merge), coefficient=get_args(Coefficient))
        count, concatenates = x.shape[0], self.merge == "concatenate"
        if concatenates:
            check_multiple(f"GeoLayer: features, of {self.heads} heads,", self.features, self.heads)
        width = self.features // self.heads if concatenates else self.features
        x = Product(self.heads * width, name="linear")(x).reshape(count, self.heads, width)  # [N, heads, C]
        weights = self._weights(x, graph.looped)  # [E, heads]
        weights = nn.Dropout(self.dropout, deterministic=not train)(weights)
        x = nn.Dropout(self.sum_dropout, deterministic=not train)(x)
        y = propagate(graph.looped, x, weights[:, :, None])  # [N, heads, C]
        return _bias(self, y.reshape(count, self.features) if concatenates else jnp.mean(y, axis=1))

    def _weights(self, x: jax.Array, edges: Edges) -> jax.Array:
        """The weights of edges by head, float32 [E, heads], of nodes [N, heads, C]."""
        sources, targets = edges.sources, edges.targets
        if self.coefficient in ("const", "gcn"):
            plain = edges.mask if self.coefficient == "const" else edges.coefficients
            return jnp.broadcast_to(plain[:, None], (plain.shape[0], x.shape[1]))

        def vector(name: str) -> jax.Array:
            return self.param(name, _glorot, x.shape[1:])  # pyrefly: ignore[bad-return] # not boxed

        def scores_of(name: str) -> jax.Array:
            return jnp.einsum("nhc,hc->nh", x, vector(name))

        if self.coefficient in ("gat", "sym_gat"):
            of_target, of_source = scores_of("target"), scores_of("source")  # [N, heads]
            scores = nn.leaky_relu(of_target[targets] + of_source[sources], 0.2)
            if self.coefficient == "sym_gat":
                scores = scores + nn.leaky_relu(of_target[sources] + of_source[targets], 0.2)
        elif self.coefficient == "linear":
            scores = jnp.tanh(scores_of("source"))[sources]
        else:
            of_target, of_source = x * vector("target")[None], x * vector("source")[None]  # [N, heads, C]
            if self.coefficient == "cos":
                scores = jnp.einsum("ehc,ehc->eh", of_target[targets], of_source[sources])
            else:
                activated = jnp.tanh(of_target[targets] + of_source[sources])  # [E, heads, C]
                joined = self.param("joined", _glorot, (x.shape[2], 1))
                scores = (activated @ joined)[..., 0]
        return edge_softmax(edges, scores, x.shape[0])


def cora_pool(features: int, *, dropout: float = 0.0, merge: Merge = "concatenate") -> dict[str, nn.Module]:
    """The 13 operations of AutoAttend on Cora, by name; modules without a parent.

    Args:
      features: out.
      dropout, merge: of the heads of attention; see `GeoLayer`.
    """
    attends: dict[str, Any] = {"dropout": dropout, "merge": merge, "parent": None}
    return {
        "zero": Zero(features, parent=None),
        "identity": Identity(features, parent=None),
        # As in the released code; with self-loops it would be the same function as "sgc", which is one hop of
        # the simple graph convolution (Wu et al., ICML 2019).
        "gcn": GCNConv(features, self_loops=False, parent=None),
        "sage": SAGEConv(features, parent=None),
        **{f"gat_{heads}": GeoLayer(features, "gat", heads, **attends) for heads in (1, 2, 4, 8, 16)},
        "linear": Linear(features, parent=None),
        "arma": ARMAConv(features, parent=None),
        "cheb": ChebConv(features, parent=None),
        "sgc": GCNConv(features, parent=None),
    }


def citeseer_pool(features: int, **attends: Any) -> dict[str, nn.Module]:
    """The 8 operations of AutoAttend on CiteSeer and PubMed, by name; see `cora_pool`."""
    layers = {name: GeoLayer(features, name, **attends, parent=None) for name in get_args(Coefficient)}
    return {"zero": Zero(features, parent=None), **layers}


def _normalized(sources: jax.Array, targets: jax.Array, mask: jax.Array, degrees: jax.Array) -> Edges:
    """Edges with their coefficients; the degrees are edges that lead to each node, [N]."""
    # An edge from a node that no edge leads to, as there is in graphs with directions, counts nothing.
    scale = jnp.where(degrees > 0, jax.lax.rsqrt(jnp.maximum(degrees, 1)), 0)
    return Edges(sources, targets, mask, mask * scale[sources] * scale[targets])


def _bias(module: nn.Module, x: jax.Array) -> jax.Array:
    """The nodes [N, features] with a bias that the module declares."""
    return x + module.param("bias", nn.initializers.zeros, (x.shape[1],))[None]

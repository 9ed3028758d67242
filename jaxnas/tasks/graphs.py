"""Classification of the nodes of graphs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.sparse

from jaxnas.checks import check_counts
from jaxnas.data import graphs
from jaxnas.data.batches import Batches, evaluation_rows
from jaxnas.data.splits import Split
from jaxnas.tasks.shared import METRICS, Named, loss_and_sums
from jaxnas.tasks.task import Batch, Call, Predictions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Graphs(Named[graphs.Graphs]):
    """Classification of the nodes of one graph (transductive) or of several (inductive).

    A network takes {"features": float32 [G, N, F], "edges": int32 [G, E, 2], "edge_mask": bool [G, E],
    "node_mask": bool [G, N]} and gives logits [G, N, classes]. An edge leads from a source to a target;
    `supernets.graph_operations` has operations on such graphs. Rows of a batch are graphs. Loss and metrics
    are means over the nodes of a role, so of one graph each role has the same batch with other weights.

    With `sparse=True` three arrays take the place of "features", as compressed sparse columns:
    "feature_values" float32 [G, S], "feature_nodes" int32 [G, S] and "feature_starts" int32 [G, F + 1].
    `supernets.graph_operations.union` makes a sparse matrix of them.

    One graph is one row, which devices cannot share: a training on it takes `devices=1`.

    Attributes:
      data: the name of a citation network, see `data.graphs.load_graph`, or what `data.from_graph` and
        `data.from_graphs` return.
      normalize: divide the features of each node by their sum, as is usual for counts of words.
      sparse: pass only non-zero features, which is less work where they are few, as of Cora (1.3 %) and
        CiteSeer (.9 %), and more for PubMed (10 %).
      evaluation_graphs: graphs at a time where networks are evaluated.
    """

    data: str | graphs.Graphs
    normalize: bool = False
    sparse: bool = False
    evaluation_graphs: int = 16

    examples = "nodes"
    metrics = METRICS
    kind = graphs.Graphs
    makers = "data.from_graph or data.from_graphs"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "evaluation_graphs")
        if self.normalize and not isinstance(self.data, str) and self.data.features.min() < 0:
            raise ValueError(
                "Graphs: normalize divides features by their sum, which is for counts, and some are "
                "negative. Give normalize=False, and features of a usual size."
            )

    def read(self, data_dir: Any) -> graphs.Graphs:
        """The graph of the name."""
        return graphs.load_graph(self.name, data_dir=data_dir)

    @property
    def inputs(self) -> dict[str, jax.ShapeDtypeStruct]:
        """One graph, as a network takes it."""
        return {name: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype) for name, x in self._arrays.items()}

    @property
    def sizes(self) -> dict[str, int]:
        """The number of nodes in each role."""
        return {role: int(nodes.sum()) for role, nodes in self.dataset.roles.items()}

    def rows(self, role: str) -> int:
        """The number of graphs that have nodes of a role."""
        return len(self.dataset.rows(role)) if role in self.dataset.roles else 0

    def details(self) -> Mapping[str, Any]:
        """The numbers of classes, graphs, nodes, directed edges and features."""
        graphs = self.dataset
        return {
            "num_classes": graphs.num_classes,
            "graphs": len(graphs.features),
            "nodes": int(graphs.node_mask.sum()),
            "edges": int(graphs.edge_mask.sum()),
            "features": graphs.features.shape[2],
        }

    def preparation(self) -> str:
        """Whether features are divided by their sum, and in which form they are given."""
        form = ", as compressed sparse columns" if self.sparse else ""
        return (
            f"the features of each node {'divided by their sum' if self.normalize else 'as they are'}{form}"
        )

    @functools.cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        """The network's inputs, of all graphs."""
        arrays = {name: getattr(self.dataset, name) for name in ("edges", "edge_mask", "node_mask")}
        features = self.dataset.features
        if self.normalize:
            sums = features.sum(axis=2, keepdims=True)
            features = features / np.where(sums > 0, sums, 1)
        return arrays | (_compressed(features) if self.sparse else {"features": features})

    def _batch(self, role: str, rows: np.ndarray | None) -> Batch:
        """Graphs with labels and weights, which are 1 for the nodes of the role; None for all graphs."""
        weight = self.dataset.roles[role].astype(np.float32)
        batch = {**self._arrays, "label": self.dataset.labels, "weight": weight}
        return batch if rows is None else {name: x[rows] for name, x in batch.items()}

    def batches(self, role: str, batch_size: int, seed: int, shard: tuple[int, int] = (0, 1)) -> GraphBatches:
        """Batches of shuffled graphs: inputs by name, "label" int32 [G, N], "weight" float32 [G, N]."""
        self.part(self.dataset.roles, role, train=True)
        rows = self.dataset.rows(role)
        if batch_size > len(rows):
            raise ValueError(
                f"{self.name}: a batch of {batch_size} graphs to {role}, and there "
                + ("is 1" if len(rows) == 1 else f"are {len(rows)}")
                + "; a row of a batch is a whole graph. Set training.batch_size to at most that, and "
                "training.devices to 1 for one graph, which devices cannot share."
            )
        if len(rows) == batch_size and shard == (0, 1):
            every = len(rows) == len(self.dataset.features)
            return GraphBatches(self, role, None, self._batch(role, None if every else rows))
        split = Split(role, {"graph": rows}, np.zeros(len(rows), np.int32))
        return GraphBatches(self, role, Batches(split, batch_size, seed, shard), None)

    def evaluation(self, role: str, batch_size: int | None = None, limit: int | None = None) -> Batch:
        """All graphs of the role in order, or a random part; weights are 0 for padding."""
        self.part(self.dataset.roles, role)
        rows = self.dataset.rows(role)
        size = min(self.evaluation_graphs, len(rows)) if batch_size is None else batch_size
        taken, counts = evaluation_rows(len(rows), size, limit)  # [batches, size]
        # All graphs in their order need not be copied.
        every = taken.size == counts.sum() == len(self.dataset.features)
        batch = self._batch(role, None if every else rows[taken.reshape(-1)])
        batch["weight"] = batch["weight"] * counts.reshape(-1, 1)
        return {name: x.reshape(*taken.shape, *x.shape[1:]) for name, x in batch.items()}

    def preprocess(self, batch: Batch) -> dict[str, jax.Array]:
        """The network's inputs by name."""
        return {name: batch[name] for name in self._arrays}

    def predict(self, call: Call) -> tuple[Predictions, Any]:
        """Logits [G, N, classes], mean cross-entropy over nodes, and sums "correct", "nats", "examples"."""
        batch = call.batch
        logits = call.apply(self.preprocess(batch)).astype(jnp.float32)
        expected = (*batch["label"].shape, self.dataset.num_classes)
        if logits.shape != expected:
            raise ValueError(
                f"the network gives logits {list(logits.shape)} for graphs of {expected[1]} nodes and "
                f"{expected[2]} classes; expected {list(expected)}"
            )
        weight, label = batch["weight"], jnp.maximum(batch["label"], 0)  # nodes without a label weigh nothing
        nats = optax.softmax_cross_entropy_with_integer_labels(logits, label)  # [G, N]
        loss, sums = loss_and_sums(nats, jnp.argmax(logits, axis=2) == label, weight)
        return Predictions(logits, weight, loss, sums), call.carry


def _compressed(features: np.ndarray) -> dict[str, np.ndarray]:
    """Features [G, N, F] as sparse columns, padded with zeros of the last feature; see `Graphs`."""
    graphs, _, width = features.shape
    found = [scipy.sparse.csc_array(one) for one in features]
    count = max(1, *(one.nnz for one in found))
    arrays = {
        "feature_values": np.zeros((graphs, count), np.float32),
        "feature_nodes": np.zeros((graphs, count), np.int32),
        "feature_starts": np.full((graphs, width + 1), count, np.int32),
    }
    for row, one in enumerate(found):
        arrays["feature_values"][row, : one.nnz] = one.data
        arrays["feature_nodes"][row, : one.nnz] = one.indices
        arrays["feature_starts"][row, :width] = one.indptr[:width]
    return arrays


@dataclasses.dataclass(frozen=True, eq=False)
class GraphBatches:
    """Batches of graphs by their number.

    A batch of all graphs of a role is always the same arrays, which a training moves to its devices once.
    """

    task: Graphs
    role: str
    drawn: Batches | None  # the numbers of the graphs, in batches; None where each batch has all graphs
    constant: Batch | None  # the batch of all graphs

    def at(self, step: int) -> Batch:
        """Returns the batch of a step, from 0."""
        return (
            self.constant if self.drawn is None else self.task._batch(self.role, self.drawn.at(step)["graph"])
        )

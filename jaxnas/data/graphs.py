"""Graphs whose nodes have labels: citation networks by name, and graphs of a user."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse

from jaxnas import files
from jaxnas.checks import check_flags
from jaxnas.data.source_files import data_root
from jaxnas.data.splits import ROLES, as_labels, check_classes, check_role, number_labels, read_only

NAMES = ("cora", "citeseer", "pubmed")
_SPLIT = {"train": "idx_train", "search": "idx_val", "test": "idx_test"}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Graphs:
    """G graphs, padded to N nodes and E directed edges each.

    An undirected edge is two. No edge is there twice, and none leads from a node to itself: operations add
    those. Roles are of nodes of one graph (transductive), or of whole graphs (inductive).

    Args:
      name: of the data.
      classes: the name of each label.
      features: float32 [G, N, F].
      edges: int32 [G, E, 2], (source, target), in the order of the targets.
      edge_mask: bool [G, E], False for padding.
      node_mask: bool [G, N], likewise.
      labels: int32 [G, N], -1 for a node without a label.
      roles: bool [G, N] by role; no node has two, and nodes without a label have none.

    Raises:
      ValueError: roles that overlap, are empty or have unlabeled nodes; a class without a training node.
    """

    name: str
    classes: tuple[str, ...]
    features: np.ndarray
    edges: np.ndarray
    edge_mask: np.ndarray
    node_mask: np.ndarray
    labels: np.ndarray
    roles: Mapping[str, np.ndarray]

    def __post_init__(self):
        for name in ("features", "edges", "edge_mask", "node_mask", "labels"):
            object.__setattr__(self, name, read_only(getattr(self, name)))
        taken = np.zeros(self.labels.shape, bool)
        for role, nodes in self.roles.items():
            check_role(role)
            wrong = {"no label": nodes & (self.labels < 0), "two roles": nodes & taken}
            for what, found in wrong.items():
                if found.any():
                    raise ValueError(
                        f"{self.name}: {int(found.sum()):,} nodes of the role {role!r} have {what}."
                    )
            taken |= nodes
        for role in ("train", "test", *self.roles):
            if not np.any(self.roles.get(role, False)):
                raise ValueError(f"{self.name}: no node has the role {role!r}.")
        check_classes(self.name, self.classes)
        count = np.bincount(self.labels[self.roles["train"]], minlength=len(self.classes))
        if not count.all():
            raise ValueError(
                f"{self.name}: the class {self.classes[int(np.argmin(count))]!r} has no node to train on."
            )

    @property
    def num_classes(self) -> int:
        """Labels are in [0, num_classes)."""
        return len(self.classes)

    def rows(self, role: str) -> np.ndarray:
        """Which graphs have nodes of a role, int64 in increasing order."""
        return np.flatnonzero(self.roles[role].any(axis=1))

    def whole(self) -> Self:
        """The graphs without the role "search", for a retraining.

        Its nodes become "validation" if there is none, and are trained on otherwise.
        """
        if "search" not in self.roles:
            return self
        roles = dict(self.roles)
        search = roles.pop("search")
        if "validation" in roles:
            roles["train"] = roles["train"] | search
        else:
            roles["validation"] = search
        return dataclasses.replace(self, roles={role: roles[role] for role in ROLES if role in roles})


def from_graph(
    features: Any,
    edges: Any,
    labels: Any,
    *,
    train: Any,
    test: Any,
    search: Any = None,
    validation: Any = None,
    undirected: bool = True,
    name: str = "graph",
    classes: Sequence[str] | None = None,
) -> Graphs:
    """Makes the data of one graph whose nodes have roles (transductive).

        given = data.from_graph(features, edges, labels, train=range(60), search=range(60, 90), test=rest)

    Args:
      features: of the nodes, numbers [N, F].
      edges: integers [E, 2]; each row is the number of a node from which an edge leads, and of the one to
        which it leads, from 0 to N - 1.
      labels: of the nodes, [N]: integers from 0, with -1 for a node without a label, or strings, with "".
      train, search, validation, test: nodes of the roles, as their numbers or as bool [N]; None for none.
      undirected: whether each edge leads both ways.
      name: of the data.
      classes: names of the labels in the order of their numbers; by default the strings that occur, in
        alphabetical order, or the numbers themselves.

    Raises:
      ValueError: shapes or dtypes that do not fit each other, non-finite features, edges out of the graph, or
        as `Graphs`.
    """
    given = {"train": train, "search": search, "validation": validation, "test": test}
    graph = _Graph.make("from_graph", features, edges, labels, undirected)
    count = len(graph.features)
    roles = {role: _nodes(role, nodes, count)[None] for role, nodes in given.items() if nodes is not None}
    return _joined(name, [graph], roles, classes)


def from_graphs(
    *,
    train: Sequence[tuple[Any, Any, Any]],
    test: Sequence[tuple[Any, Any, Any]],
    search: Sequence[tuple[Any, Any, Any]] = (),
    validation: Sequence[tuple[Any, Any, Any]] = (),
    undirected: bool = True,
    name: str = "graphs",
    classes: Sequence[str] | None = None,
) -> Graphs:
    """Makes the data of several graphs, each of one role (inductive).

    Args:
      train, search, validation, test: graphs of the roles, each (features, edges, labels) as of `from_graph`.
        Nodes without a label have no role.
      undirected, name, classes: as of `from_graph`.

    Raises:
      ValueError: as `from_graph`, or graphs with different numbers of features.
    """
    given = {"train": train, "search": search, "validation": validation, "test": test}
    owners = [role for role, items in given.items() for _ in items]
    graphs = [
        _Graph.make(f"from_graphs: graph {number} to {role}", *item, undirected)
        for role, items in given.items()
        for number, item in enumerate(items)
    ]
    widths = sorted({graph.features.shape[1] for graph in graphs})
    if len(widths) != 1:
        raise ValueError(f"from_graphs: the graphs have {widths} features of a node; expected one number.")
    most = max(len(graph.features) for graph in graphs)
    roles = {role: np.zeros((len(graphs), most), bool) for role in ROLES if role in owners}
    for row, (graph, role) in enumerate(zip(graphs, owners, strict=True)):
        roles[role][row, : len(graph.labels)] = graph.labeled
    return _joined(name, graphs, roles, classes)


def load_graph(name: str, *, data_dir: str | os.PathLike | None = None) -> Graphs:
    """Reads a citation network with its public split (Yang et al., ICML 2016, section 4.1).

    The 500 nodes that are usually for validation have the role "search".

    Args:
      name: "cora", "citeseer" or "pubmed".
      data_dir: folder, ~/tensorflow_datasets by default, with `<name>.npz` or `planetoid/<name>.npz`. The
        file has the features as a CSR matrix (`feat_indptr`, `feat_indices`, `feat_data`, which is one number
        where all are equal, and `feat_shape`), `edges` int [E, 2], `labels` int [N] with -1 for none, and the
        nodes of the split, `idx_train`, `idx_val` and `idx_test`.
    """
    if name not in NAMES:
        raise ValueError(
            f"unknown graph {name!r}, expected one of {', '.join(NAMES)}, or data.from_graph(...)."
        )
    folder = data_root(data_dir)
    paths = [folder / f"{name}.npz", folder / "planetoid" / f"{name}.npz"]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"{name} needs a file of arrays; looked for {paths[0]} and {paths[1]}. Give its folder as "
            "data_dir."
        )
    arrays = files.read_arrays(path)
    try:
        indptr, indices, values, shape = (
            arrays[f"feat_{key}"] for key in ("indptr", "indices", "data", "shape")
        )
        values = np.broadcast_to(values, indices.shape)
        features = scipy.sparse.csr_array((values, indices, indptr), shape=shape.tolist()).toarray()
        split: dict[str, Any] = {role: arrays[key] for role, key in _SPLIT.items()}
        edges, labels = arrays["edges"], arrays["labels"]
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise ValueError(f"{path} lacks an array of a graph, or has another shape ({error}).") from error
    return from_graph(features, edges, labels, **split, name=name)


class _Graph(NamedTuple):
    """One graph of its own size."""

    features: np.ndarray  # [N, F]
    edges: np.ndarray  # [E, 2]
    labels: np.ndarray  # [N], as they were given
    labeled: np.ndarray  # bool [N]

    @classmethod
    def make(cls, what: str, features: Any, edges: Any, labels: Any, undirected: bool) -> _Graph:
        """Checks the arrays of a user, and makes the edges directed and unique."""
        check_flags(what, undirected=undirected)
        features, edges, labels = np.asarray(features), np.asarray(edges), as_labels(labels)
        if features.ndim != 2 or features.dtype.kind not in "biuf" or not features.size:
            raise ValueError(
                f"{what}: features are {features.dtype}{list(features.shape)}; expected numbers [nodes, "
                "features], and of a sparse matrix those of its toarray()."
            )
        features = features.astype(np.float32)
        if bad := int(np.sum(~np.isfinite(features).all(axis=1))):
            raise ValueError(f"{what}: the features of {bad:,} nodes are not finite numbers of float32.")
        count = len(features)
        if labels.shape != (count,):
            raise ValueError(
                f"{what}: labels are {list(labels.shape)}; expected one for each of {count:,} nodes."
            )
        if not edges.size:  # A graph without edges, as an empty list is one.
            edges = np.zeros((0, 2), np.int64)
        if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
            raise ValueError(
                f"{what}: edges are {edges.dtype}{list(edges.shape)}; expected integers [edges, 2], a row "
                "for each edge."
            )
        if ((edges < 0) | (edges >= count)).any():
            raise ValueError(
                f"{what}: edges lead from {edges.min()} to {edges.max()}; nodes are numbered from 0 to "
                f"{count - 1}."
            )
        edges = edges[edges[:, 0] != edges[:, 1]].astype(np.int64)
        if undirected:
            edges = np.concatenate([edges, edges[:, ::-1]])
        numbers = np.unique(edges[:, 1] * count + edges[:, 0])  # by target, then by source
        directed = np.stack([numbers % count, numbers // count], axis=1).astype(np.int32)
        return cls(features, directed, labels, labels != ("" if labels.dtype.kind in "UTO" else -1))


def _joined(
    name: str, graphs: Sequence[_Graph], roles: Mapping[str, np.ndarray], classes: Sequence[str] | None
) -> Graphs:
    """Graphs padded to one size, with numbers for their labels."""
    nodes = max(len(graph.labels) for graph in graphs)
    edges = max(1, *(len(graph.edges) for graph in graphs))  # arrays without elements are a case of their own
    given = np.concatenate([graph.labels[graph.labeled] for graph in graphs])
    numbers, classes = number_labels(given, classes, f"{name}: labels")
    labels = np.full((len(graphs), nodes), -1, np.int32)
    labels[_stacked([graph.labeled for graph in graphs], nodes)] = numbers
    return Graphs(
        name=name,
        classes=tuple(classes),
        features=_stacked([graph.features for graph in graphs], nodes),
        edges=_stacked([graph.edges for graph in graphs], edges),
        edge_mask=_stacked([np.ones(len(graph.edges), bool) for graph in graphs], edges),
        node_mask=_stacked([np.ones(len(graph.labels), bool) for graph in graphs], nodes),
        labels=labels,
        roles=roles,
    )


def _stacked(arrays: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Arrays [n, ...] padded with zeros to [size, ...] each and stacked; one that fits is not copied."""
    if len(arrays) == 1 and len(arrays[0]) == size:
        return arrays[0][None]
    stacked = np.zeros((len(arrays), size, *arrays[0].shape[1:]), arrays[0].dtype)
    for row, array in zip(stacked, arrays, strict=True):
        row[: len(array)] = array
    return stacked


def _nodes(role: str, nodes: Any, count: int) -> np.ndarray:
    """The nodes of a role as bool [count]."""
    nodes = np.asarray(nodes)
    if nodes.dtype == bool and nodes.shape == (count,):
        return nodes
    mask, numbered = np.zeros(count, bool), nodes.ndim == 1 and nodes.dtype.kind in "iu"
    if numbered and nodes.size and 0 <= nodes.min() <= nodes.max() < count:
        mask[nodes] = True
    if not nodes.size or mask.sum() < len(nodes):  # A number twice: a 0 or a 1 for each node, it seems.
        raise ValueError(
            f"from_graph: {role} is {nodes.dtype}{list(nodes.shape)}; expected different numbers of nodes "
            f"from 0 to {count - 1}, or bool [{count}]."
        )
    return mask

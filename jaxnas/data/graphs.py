"""Graphs whose nodes have labels: citation networks by name, and graphs of one's own."""

from __future__ import annotations

import dataclasses
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from absl import logging

from jaxnas import files
from jaxnas.checks import check_flags
from jaxnas.choice import nearest
from jaxnas.data.labeled import as_labels, check_classes, number_labels
from jaxnas.data.roles import ROLES, check_role, read_only

NAMES = ("cora", "citeseer", "pubmed")
_ARRAYS = ("feat_indptr", "feat_indices", "feat_data", "feat_shape", "edges", "labels")
_SPLIT = {"train": "idx_train", "search": "idx_val", "test": "idx_test"}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Graphs:
    """G graphs of N nodes and E directed edges each; smaller ones are filled up.

    An edge leads from a source to a target, and an edge without a direction is two. No edge is there twice,
    and none leads from a node to itself: an operation that looks at the node itself adds those. The roles are
    of nodes: within one graph (transductive), or each of whole graphs (inductive).

    Args:
      name: of the data.
      classes: the name of each label.
      features: float32 [G, N, F].
      edges: int32 [G, E, 2], (source, target), in the order of the targets.
      edge_mask: bool [G, E], False for what fills a graph up.
      node_mask: bool [G, N], likewise.
      labels: int32 [G, N], -1 for a node without a label.
      roles: bool [G, N] by role; no node has two, and nodes without a label have none.

    Raises:
      ValueError: roles that overlap or have nodes without a label, a single class, or a class that no node
        to train on has.
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
        taken: dict[str, np.ndarray] = {}
        for role, nodes in self.roles.items():
            check_role(role)
            if unlabeled := int(np.sum(nodes & (self.labels < 0))):
                raise ValueError(
                    f"{self.name}: {unlabeled:,} nodes of the role {role!r} have no label; leave them out "
                    "of all roles."
                )
            if not nodes.any():
                raise ValueError(f"{self.name}: no node has the role {role!r}; leave the role out.")
            for other, others in taken.items():
                if count := int(np.sum(nodes & others)):
                    raise ValueError(
                        f"{self.name}: {count:,} nodes have both the roles {other!r} and {role!r}; expected "
                        "that no node has two."
                    )
            taken[role] = nodes
        if missing := sorted({"train", "test"} - set(self.roles)):
            raise ValueError(f"{self.name}: no node has the role {' and none the role '.join(missing)}.")
        check_classes(self.name, self.classes)
        count = np.bincount(self.labels[self.roles["train"]], minlength=len(self.classes))
        if not count.all():
            raise ValueError(
                f"{self.name}: the class {self.classes[int(np.argmin(count))]!r} has no node to train on; "
                "each class needs at least one."
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

        Its nodes become "validation" if there is none, as the public splits of citation networks have it.
        Otherwise they are trained on.
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
    """Makes the data of one graph, some nodes of which are trained on and others tested on (transductive).

        given = data.from_graph(features, edges, labels, train=range(60), search=range(60, 90), test=rest)
        task = tasks.Graphs(data=given)

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
      ValueError: shapes or dtypes that do not fit each other, features that are not finite, edges that lead
        out of the graph, or what `Graphs` refuses.
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
    """Makes the data of several graphs, some of which are trained on and others tested on (inductive).

        given = data.from_graphs(train=[(features, edges, labels), ...], search=[...], test=[...])

    Args:
      train, search, validation, test: graphs of the roles, each as the first arguments of `from_graph`. Nodes
        without a label have no role.
      undirected, name, classes: as of `from_graph`.

    Raises:
      ValueError: as `from_graph`, or graphs with different numbers of features.
    """
    given = {"train": train, "search": search, "validation": validation, "test": test}
    graphs, owners = [], []
    for role, items in given.items():
        for number, item in enumerate(items):
            if len(item) != 3:
                raise ValueError(
                    f"from_graphs: graph {number} to {role} has {len(item)} parts; expected (features, "
                    "edges, labels)."
                )
            graphs.append(_Graph.make(f"from_graphs: graph {number} to {role}", *item, undirected))
            owners.append(role)
    widths = sorted({graph.features.shape[1] for graph in graphs})
    if len(widths) > 1:
        raise ValueError(f"from_graphs: the graphs have {widths} features of a node; expected one number.")
    most = max((len(graph.features) for graph in graphs), default=0)
    roles = {role: np.zeros((len(graphs), most), bool) for role in ROLES if role in owners}
    for row, (graph, role) in enumerate(zip(graphs, owners, strict=True)):
        roles[role][row, : len(graph.labels)] = graph.labeled
    return _joined(name, graphs, roles, classes)


def load_graph(
    name: str, *, data_dir: str | os.PathLike | None = None, source_dir: str | os.PathLike | None = None
) -> Graphs:
    """Reads a citation network with its public split (Yang et al., ICML 2016, section 4.1).

    Nodes are papers, and features their words. 20 nodes of each class are trained on; the 500 nodes
    that are usually for validation have the role "search"; 1,000 are for the test.

    Args:
      name: "cora", "citeseer" or "pubmed".
      data_dir, source_dir: folders to look in for `<name>.npz` and `planetoid/<name>.npz`. The file has the
        features as a CSR matrix (`feat_indptr`, `feat_indices`, `feat_data`, which has one number where
        all are equal, and `feat_shape`), `edges` int [E, 2], `labels` int [N] with -1 for none, and the
        nodes of the split, `idx_train`, `idx_val` and `idx_test`.

    Raises:
      ValueError: another name, or a file that does not hold this.
      FileNotFoundError: no such file; the message says where it was looked for.
    """
    if name not in NAMES:
        raise ValueError(
            f"unknown graph {name!r}{nearest(name, NAMES)} There are {', '.join(NAMES)}; make one of "
            "your own with data.from_graph."
        )
    folders = [files.as_path(folder) for folder in (source_dir, data_dir) if folder is not None]
    paths = [
        path for folder in folders for path in (folder / f"{name}.npz", folder / f"planetoid/{name}.npz")
    ]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        looked = "; looked for " + ", ".join(map(str, paths)) if paths else ""
        raise FileNotFoundError(
            f"{name} needs the file {name}.npz, with the arrays {', '.join(_ARRAYS)} and those of the split. "
            f"Give the folder that has it as source_dir{looked}."
        )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in (*_ARRAYS, *_SPLIT.values())}
        features = _dense(*(arrays[key] for key in _ARRAYS[:4]))
    except (KeyError, ValueError, IndexError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path}: not a graph of arrays ({error}); copy it again. Files of pickled objects are not read."
        ) from error
    split = {role: arrays[key] for role, key in _SPLIT.items()}
    return from_graph(features, arrays["edges"], arrays["labels"], **split, name=name)


@dataclasses.dataclass(frozen=True, eq=False)
class _Graph:
    """One graph of its own size: features [N, F], edges [E, 2], labels as they were given [N]."""

    features: np.ndarray
    edges: np.ndarray
    labels: np.ndarray
    labeled: np.ndarray  # bool [N]
    duplicates: int
    self_loops: int

    @classmethod
    def make(cls, what: str, features: Any, edges: Any, labels: Any, undirected: bool) -> _Graph:
        """Checks what a user gives, and makes the edges directed and unique."""
        check_flags(what, undirected=undirected)
        features, edges, labels = np.asarray(features), np.asarray(edges), as_labels(labels)
        if features.ndim != 2 or features.dtype.kind not in "biuf" or not features.size:
            raise ValueError(
                f"{what}: features are {features.dtype}{list(features.shape)}; expected numbers [nodes, "
                "features], and of a sparse matrix those of its toarray()."
            )
        features = features.astype(np.float32)
        if bad := int(np.sum(~np.isfinite(features).all(axis=1))):
            raise ValueError(
                f"{what}: the features of {bad:,} nodes hold a NaN or an infinity, or a number beyond the "
                "range of float32."
            )
        count = len(features)
        if labels.shape != (count,):
            raise ValueError(
                f"{what}: labels are {list(labels.shape)}; expected one for each of {count:,} nodes."
            )
        if not edges.size:  # A graph without edges, as an empty list is one.
            edges = np.zeros((0, 2), np.int64)
        if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
            turned = " Give edges.T." if edges.ndim == 2 and edges.shape[0] == 2 else ""
            turned += " Write edges.astype(int)." if edges.dtype.kind == "f" else ""
            raise ValueError(
                f"{what}: edges are {edges.dtype}{list(edges.shape)}; expected integers [edges, 2], a row "
                f"for each edge.{turned}"
            )
        outside = ((edges < 0) | (edges >= count)).any(axis=1)
        if outside.any():
            raise ValueError(
                f"{what}: {int(outside.sum()):,} edges lead out of the graph, the first is "
                f"{edges[outside][0].tolist()}; nodes are numbered from 0 to {count - 1}."
            )
        loops = edges[:, 0] == edges[:, 1]
        edges = edges[~loops].astype(np.int64)
        distinct = len(np.unique(edges[:, 0] * count + edges[:, 1]))
        if undirected:
            edges = np.concatenate([edges, edges[:, ::-1]])
        numbers = np.unique(edges[:, 1] * count + edges[:, 0])  # by target, then by source
        directed = np.stack([numbers % count, numbers // count], axis=1).astype(np.int32)
        labeled = labels != ("" if labels.dtype.kind in "UTO" else -1)
        return cls(features, directed, labels, labeled, int((~loops).sum()) - distinct, int(loops.sum()))


def _joined(
    name: str, graphs: Sequence[_Graph], roles: Mapping[str, np.ndarray], classes: Sequence[str] | None
) -> Graphs:
    """Graphs filled up to one size, with numbers for their labels."""
    if not graphs:
        raise ValueError(f"{name}: there is no graph; give some to train on and some for the test.")
    nodes = max(len(graph.labels) for graph in graphs)
    edges = max(1, *(len(graph.edges) for graph in graphs))  # arrays without elements are a case of their own
    given = np.concatenate([graph.labels[graph.labeled] for graph in graphs])
    numbers, classes = number_labels(given, classes, f"{name}: labels")
    labels = np.full((len(graphs), nodes), -1, np.int32)
    labeled = _stacked([graph.labeled for graph in graphs], nodes)
    labels[labeled] = numbers
    duplicates, self_loops = (sum(getattr(g, kind) for g in graphs) for kind in ("duplicates", "self_loops"))
    if duplicates or self_loops:
        logging.info(
            "%s: %d edges were given more than once, %d lead from a node to itself; both are left out",
            name,
            duplicates,
            self_loops,
        )
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
    """Arrays [n, ...] filled up with zeros to [size, ...] each and stacked; one that fits is not copied."""
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
    if not nodes.size:
        raise ValueError(f"from_graph: {role} has no node; leave it out, or give some.")
    if nodes.ndim != 1 or nodes.dtype.kind not in "iu":
        raise ValueError(
            f"from_graph: {role} is {nodes.dtype}{list(nodes.shape)}; expected numbers of nodes, or bool "
            f"[{count}]."
        )
    if not 0 <= nodes.min() <= nodes.max() < count:
        raise ValueError(
            f"from_graph: {role} has nodes from {nodes.min()} to {nodes.max()}; they are numbered from 0 to "
            f"{count - 1}."
        )
    mask = np.zeros(count, bool)
    mask[nodes] = True
    if mask.sum() < len(nodes):
        raise ValueError(
            f"from_graph: {role} names some nodes more than once. If it has a 0 or a 1 for each node, make "
            "it bool: write mask.astype(bool)."
        )
    return mask


def _dense(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """A CSR matrix as float32 [N, F]; one number stands for all."""
    count, width = shape.tolist()
    if len(indptr) != count + 1:
        raise ValueError(f"feat_indptr has {len(indptr)} numbers for {count} nodes")
    features = np.zeros((count, width), np.float32)
    features[np.repeat(np.arange(count), np.diff(indptr)), indices] = data if len(data) > 1 else data[0]
    return features

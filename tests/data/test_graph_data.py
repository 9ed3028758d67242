"""Graphs of a user's own and citation networks: what comes in, and what is refused."""

import numpy as np
import pytest
import refusals

from jaxnas import data
from jaxnas.data.graphs import load_graph

FEATURES, LABELS = np.eye(5, 3), [0, 1, 0, 1, -1]
EDGES = [[0, 1], [1, 0], [1, 2], [1, 2], [3, 3]]
ROLES = {"train": [0, 1], "test": [2, 3]}


def graph(features=FEATURES, edges=EDGES, labels=LABELS, **options):
    return data.from_graph(features, edges, labels, **{**ROLES, **options})


def test_edges_lead_both_ways_once_and_never_to_the_same_node():
    given = graph()
    assert given.edges[0].tolist() == [[1, 0], [0, 1], [2, 1], [1, 2]] and given.edge_mask.all()
    assert graph(undirected=False).edges[0].tolist() == [[1, 0], [0, 1], [1, 2]]
    assert graph(edges=[]).edge_mask.sum() == 0
    dtypes = dict(features=np.float32, edges=np.int32, labels=np.int32, edge_mask=bool, node_mask=bool)
    assert {name: getattr(given, name).dtype for name in dtypes} == dtypes
    assert all(len(getattr(given, name)) == 1 for name in dtypes)
    assert given.labels[0].tolist() == LABELS and given.node_mask.all()
    with pytest.raises(ValueError, match="read-only"):
        given.features[0, 0, 0] = 1
    # Labels may be strings, or a column of pandas that holds whole numbers, and roles masks.
    named = graph(labels=["b", "a", "b", "a", ""], train=np.arange(5) < 2)
    assert named.classes == ("a", "b") and named.labels[0].tolist() == [1, 0, 1, 0, -1]
    assert named.roles["train"].tolist() == given.roles["train"].tolist()
    np.testing.assert_array_equal(graph(labels=np.array(LABELS, object)).labels, given.labels)


def test_several_graphs_are_filled_up_to_one_size():
    one, other = (FEATURES, EDGES, LABELS), (np.ones((2, 3)), [[0, 1]], [1, 1])
    given = data.from_graphs(train=[one, other], test=[other], search=[one])
    assert given.features.shape == (4, 5, 3) and given.edges.shape == (4, 4, 2)
    assert given.node_mask.sum(axis=1).tolist() == [5, 2, 5, 2]
    assert given.edge_mask.sum(axis=1).tolist() == [4, 2, 4, 2]
    rows = {role: given.rows(role).tolist() for role in given.roles}
    assert rows == {"train": [0, 1], "search": [2], "test": [3]}
    assert given.roles["train"].sum() == 6  # of seven nodes one has no label
    assert not (given.labels[~given.node_mask] >= 0).any() and not given.edges[~given.edge_mask].any()


def test_what_cannot_be_right_is_refused():
    def case(*names, **changes):
        return lambda: graph(**changes), ValueError, *names

    whole, wide = (FEATURES, EDGES, LABELS), (np.ones((2, 4)), [[0, 1]], [1, 1])
    refusals.check(
        case("from -1", edges=[[-1, 0]]),
        case("[edges, 2]", edges=np.zeros((2, 7), int)),
        case("are int64[2]", features=[1, 2]),
        case("features of 5", features=np.full((5, 3), np.nan)),
        case("labels are [2]", labels=[0, 1]),
        case("first is -2", labels=[0, 1, 0, 1, -2]),
        case("integers up to 3", labels=[0, 1, 3, 3, -1]),
        case("first is 2", labels=[0, 1, 2, 0, -1], classes=("a", "b")),
        case("'0'", labels=[0] * 5),
        case("labels", labels=[-1] * 5),
        case("'1'", train=[0]),
        case("two roles", "'search'", search=[1]),
        case("'search'", search=[4]),
        case("'search'", search=np.zeros(5, bool)),
        case("search is", search=[]),
        case("train is int64[5]", train=[1, 1, 0, 0, 0]),
        case("test is int64[1]", test=[9]),
        case("test is float64", test=[0.5]),
        (lambda: data.from_graphs(train=[whole], test=[]), ValueError, "'test'"),
        (lambda: data.from_graphs(train=[whole], test=[wide]), ValueError, "graphs have [3"),
        (lambda: load_graph("Cora"), ValueError, "'Cora'"),
    )


def planetoid(folder, **changed):
    """A file as those of the citation networks, of six nodes."""
    arrays = {
        "feat_indptr": np.array([0, 1, 3, 3, 4, 5, 6], np.int32),
        "feat_indices": np.array([0, 1, 2, 0, 1, 2], np.int16),
        "feat_data": np.ones(1, np.float32),
        "feat_shape": np.array([6, 3]),
        "edges": np.array([[0, 1], [1, 2], [3, 4]], np.int32),
        "labels": np.array([0, 1, 0, 1, 0, -1], np.int8),
        "idx_train": np.array([0, 1]),
        "idx_val": np.array([2, 3]),
        "idx_test": np.array([4]),
        **changed,
    }
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "cora.npz", **arrays)
    return arrays


@pytest.mark.parametrize("inside", ["", "planetoid"])
def test_a_citation_network_is_read_from_its_file(tmp_path, inside):
    planetoid(tmp_path / inside)
    given = load_graph("cora", data_dir=tmp_path)
    expected = [[1, 0, 0], [0, 1, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert given.features[0].tolist() == expected and given.name == "cora"
    nodes = {role: np.flatnonzero(mask[0]).tolist() for role, mask in given.roles.items()}
    assert nodes == {"train": [0, 1], "search": [2, 3], "test": [4]}
    planetoid(tmp_path / inside, feat_data=np.arange(6, dtype=np.float32))
    assert load_graph("cora", data_dir=tmp_path).features[0, 1].tolist() == [0, 1, 2]


def test_a_file_that_is_missing_or_damaged_is_named(tmp_path):
    refusals.check((lambda: load_graph("cora", data_dir=tmp_path), FileNotFoundError, "planetoid/cora"))
    arrays, path = planetoid(tmp_path), tmp_path / "cora.npz"
    whole = path.read_bytes()
    for damage in (
        lambda: path.write_bytes(whole[: len(whole) // 2]),
        lambda: path.write_bytes(b""),
        lambda: path.write_bytes(b"x" * 100),
        lambda: np.savez(path, **{name: x for name, x in arrays.items() if name != "edges"}),
        lambda: np.savez(path, **arrays | {"labels": np.array([{}], object)}),
        lambda: planetoid(tmp_path, feat_indptr=np.array([0, 1])),
    ):
        damage()
        refusals.check((lambda: load_graph("cora", data_dir=tmp_path), ValueError, "cora.npz"))

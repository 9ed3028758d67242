"""Classification of nodes: exact metrics in both settings, and a graph that is moved once."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
import tiers
from sklearn.metrics import accuracy_score, log_loss
from small_nets import difference
from small_tasks import net_of, random_graph, task_of

import jaxnas
from benchmarks.graph_baselines import GAT, GCN
from jaxnas import data, spaces, tasks
from jaxnas.recipes import Relaxed
from jaxnas.supernets import AutoAttendNodes, graph_operations
from jaxnas.training import Training, fit, make_evaluator
from jaxnas.training.mesh import make_mesh
from jaxnas.training.step import prepare

NET = net_of("graphs")
NODES = 90


def one_graph(**options):
    """A graph of two classes, one node of which has no label, in the roles of the public splits."""
    features, edges, labels = random_graph(np.random.default_rng(0), NODES)
    labels[-1] = -1
    roles = {"train": range(20), "search": range(20, 50), "test": range(50, NODES - 1)}
    given = data.from_graph(features, edges, labels, **roles, name="one")
    return tasks.Graphs(data=given, **options)


ONE = one_graph()
FIXED = GCN(2, hidden=4, dropout=0.0)


@pytest.fixture(scope="module")
def variables():
    return jaxnas.init(FIXED, jax.random.key(0), ONE.inputs)


@pytest.mark.eight_devices
@pytest.mark.parametrize(("kind", "devices"), [("one", 1), ("one", 8), ("several", 8)])
def test_metrics_are_scikit_learns_over_the_nodes_of_the_role(variables, kind, devices):
    task = ONE if kind == "one" else task_of("graphs")
    graphs = task.dataset
    inputs = {name: jnp.asarray(getattr(graphs, name)) for name in task.inputs}
    logits = np.asarray(FIXED.apply(variables, inputs), np.float64)[graphs.roles["test"]]
    labels = graphs.labels[graphs.roles["test"]]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = make_evaluator(task, FIXED, "test", mesh=make_mesh(devices))(variables)
    assert len(labels) == task.sizes["test"]
    assert float(found["accuracy"]) == pytest.approx(accuracy_score(labels, logits.argmax(1)))
    assert float(found["loss"]) == pytest.approx(log_loss(labels, probabilities), rel=1e-5)


def test_training_sees_the_labels_of_training_nodes_alone(variables):
    batch, key = ONE.batches("train", 1, 0).at(0), jax.random.key(0)

    def loss(label):
        return float(ONE.loss(tasks.Call(FIXED, variables, None, {**batch, "label": label}, key=key))[0])

    label = batch["label"]
    held_out, own = label.copy(), label.copy()
    held_out[0, 20:-1], own[0, :5] = 1 - label[0, 20:-1], 1 - label[0, :5]
    assert loss(held_out) == loss(label) != loss(own)
    assert batch["weight"].sum() == 20 == ONE.sizes["train"]


def test_the_roles_of_a_retraining_and_features_divided_by_their_sum():
    assert ONE.whole().sizes == {"train": 20, "validation": 30, "test": NODES - 51}
    assert ONE.whole().whole().sizes == ONE.whole().sizes
    features, edges, labels = random_graph(np.random.default_rng(0), 40)
    features = np.abs(features)
    features[3] = 0
    roles = {"train": range(10), "search": range(10, 20), "validation": range(20, 30), "test": range(30, 40)}
    given = data.from_graph(features, edges, labels, **roles)
    plain, divided = (tasks.Graphs(data=given, normalize=one) for one in (False, True))
    assert plain.whole().sizes == {"train": 20, "validation": 10, "test": 10}
    sums = divided.batches("train", 1, 0).at(0)["features"].sum(2)[0]
    np.testing.assert_allclose(sums, np.arange(40) != 3, atol=1e-6)
    np.testing.assert_array_equal(plain.batches("train", 1, 0).at(0)["features"][0], given.features[0])


def test_a_graph_is_moved_to_the_devices_once_and_steps_in_a_call_are_as_single_ones():
    """The graph is in every batch of the call, and goes into the program once; see `fit.several`."""
    settings = Training(steps=4, learning_rate=1e-2, warmup_steps=1, log_every=4, devices=1)
    recipe = Relaxed(every=2, relaxation="softmax")
    state, step, batch = prepare(ONE, NET, settings, recipe)
    first, second = batch(0), batch(1)
    shared = {"features", "edges", "edge_mask", "node_mask", "label"}
    assert all(second["train"][name] is first["train"][name] for name in (*shared, "weight"))
    assert all(first["search"][name] is first["train"][name] for name in shared)
    assert first["search"]["weight"] is not first["train"]["weight"]
    assert np.shares_memory(ONE.batches("train", 1, 0).at(0)["features"], ONE.dataset.features)
    assert np.shares_memory(ONE.evaluation("test")["features"], ONE.dataset.features)

    start = jax.device_get(state.params)
    for number in range(4):
        state, _ = step(state, batch(number))
    assert difference(state.params, start) > 1e-2
    two = fit(ONE, NET, dataclasses.replace(settings, steps_per_call=2), recipe=recipe)
    assert difference((two.variables, two.state.logits), (state.variables, state.logits)) < 1e-5


def test_batches_of_several_graphs_take_each_once_in_an_epoch():
    task = task_of("graphs")
    drawn = task.batches("train", 4, 0)
    features = [graph.tobytes() for step in range(4) for graph in drawn.at(step)["features"]]
    assert set(features) == {graph.tobytes() for graph in task.dataset.features[:16]} and len(features) == 16
    halves = [task.batches("train", 4, 0, (index, 2)).at(1)["features"] for index in range(2)]
    np.testing.assert_array_equal(np.concatenate(halves), drawn.at(1)["features"])
    assert task.batches("train", 16, 0).at(0) is not None
    filled = task.evaluation("test", 4)  # 9 graphs in 12 rows
    assert filled["weight"].shape[:2] == (3, 4) and filled["weight"].sum() == task.sizes["test"]


def test_a_limited_evaluation_is_a_fixed_draw_of_the_graphs_of_the_role():
    task = task_of("graphs")  # 16 graphs to train on, then 8 for the search and 9 for the test
    limited, whole = task.evaluation("test", 2, limit=3), task.evaluation("test", 2)
    assert limited["weight"].shape[:2] == (3, 2) and whole["weight"].shape[:2] == (5, 2)
    place = {graph.tobytes(): i for i, graph in enumerate(task.dataset.features)}
    drawn = [place[graph.tobytes()] for graph in np.concatenate(limited["features"])]
    assert drawn == sorted(set(drawn)) and set(drawn) < set(range(24, 33)) and drawn != [*range(24, 30)]
    np.testing.assert_array_equal(limited["weight"].reshape(6, -1), task.dataset.roles["test"][drawn])
    for name, again in task.evaluation("test", 2, limit=3).items():
        np.testing.assert_array_equal(again, limited[name])
    for name, every in task.evaluation("test", 2, limit=5).items():
        np.testing.assert_array_equal(every, whole[name])
    assert task.evaluation("test", 8, limit=1)["weight"].any(axis=2).all()  # a whole batch of 8 of the 9


def test_what_cannot_be_is_refused():
    refusals.check(
        (lambda: ONE.batches("train", 8, 0), ValueError, "there is 1"),
        (lambda: tasks.Graphs(data="corra").load(), ValueError, "'corra'"),
        (lambda: tasks.Graphs(data="cora").sizes, ValueError, "'cora'"),
        (lambda: tasks.Graphs(data=3), ValueError, "data is a"),
        (lambda: one_graph(normalize=True), ValueError, "negative"),
        (lambda: one_graph(evaluation_graphs=0), ValueError, "evaluation_graphs is 0"),
    )


@pytest.mark.eight_devices
def test_devices_cannot_share_one_graph():
    training = Training(steps=1, devices=8)
    refusals.check((lambda: fit(ONE, NET, training), ValueError, "batch_size is 1", "8 devices"))


def words_of(nodes, seed):
    """A graph with bags of words, of which one node has none; one word is in no bag."""
    random = np.random.default_rng(seed)
    _, edges, labels = random_graph(random, nodes)
    words = random.poisson(0.3, (nodes, 8)).astype(np.float32)
    words[1], words[:, 3] = 0, 0
    return words, edges, labels


def losses_of(task, net, params, arch):
    """The loss of a training batch with its gradients, and the loss of an evaluation."""

    def loss(params, batch, key=None):
        return task.loss(tasks.Call(net, {"params": params}, arch, batch, key=key))[0]

    @jax.jit
    def both(params, train, test):
        return jax.value_and_grad(loss)(params, train, jax.random.key(1)), loss(params, test)

    train = task.batches("train", task.rows("train"), 0).at(0)
    return both(params, train, jax.tree.map(lambda x: x[0], task.evaluation("test")))


@pytest.mark.more
@pytest.mark.parametrize(("kind", "normalize"), [("one", True), *tiers.nightly(("several", False))])
def test_sparse_features_are_the_same_ones(kind, normalize):
    if kind == "one":
        roles = {"train": range(20), "search": range(20, 30), "test": range(30, 40)}
        given = data.from_graph(*words_of(40, 0), **roles)
    else:
        roles = {"train": (20, 31), "search": (17,), "test": (25, 40)}
        given = data.from_graphs(**{role: [words_of(n, n) for n in sizes] for role, sizes in roles.items()})
    dense, sparse = (tasks.Graphs(data=given, normalize=normalize, sparse=one) for one in (False, True))
    assert "features" not in {**sparse.inputs, **sparse.evaluation("test")}
    assert sparse.preparation() == f"{dense.preparation()}, as compressed sparse columns"
    space = spaces.autoattend(1, ("zero", "gcn", "sage", "gat_2"))
    nodes = AutoAttendNodes(space, num_classes=2, width=8, num_heads=2, framed=False, dropout=0.0)
    for net in (nodes, GAT(2, dropout=0.0)):
        variables, own = (jaxnas.init(net, jax.random.key(0), task.inputs) for task in (dense, sparse))
        jax.tree.map(np.testing.assert_array_equal, variables, own)
        arch = net.space.sample(jax.random.key(2))
        expected, found = (losses_of(task, net, own["params"], arch) for task in (dense, sparse))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), found, expected)


def test_a_sparse_product_costs_what_is_stored_and_dropout_drops_of_that():
    features, edges, labels = words_of(40, 0)
    given = data.from_graph(features, edges, labels, train=range(20), test=range(20, 40))
    task = tasks.Graphs(data=given, sparse=True)
    cost = jaxnas.cost(GCN(2, hidden=5), task.inputs)({"network": jnp.int32(0)})
    assert int(cost["macs"]) == np.count_nonzero(features) * 5 + 40 * 5 * 2
    x, _ = graph_operations.union(task.batches("train", 1, 0).at(0))
    np.testing.assert_array_equal(x.todense(), features)
    dropped = graph_operations.Dropout(0.5).apply({}, x, train=True, rngs={"dropout": jax.random.key(0)})
    kept = np.asarray(dropped.todense())
    np.testing.assert_allclose(kept[kept > 0], 2 * features[kept > 0])
    assert 0.3 < np.count_nonzero(kept) / np.count_nonzero(features) < 0.7


def test_a_graph_of_a_million_edges_trains():
    """A user's arrays, 100,000 nodes of four groups: most edges are within a group."""
    random, nodes = np.random.default_rng(0), 100_000
    labels = np.arange(nodes) % 4
    edges = random.integers(0, nodes, (500_000, 2))
    edges[:, 1] += (edges[:, 0] - edges[:, 1]) % 4 * (random.random(len(edges)) < 0.7)
    features = random.normal(size=(nodes, 8))
    features[np.arange(nodes), labels] += 1
    roles = {"train": range(1000), "search": range(1000, 20_000), "test": range(20_000, nodes)}
    task = tasks.Graphs(data=data.from_graph(features, edges % nodes, labels, **roles, name="groups"))
    assert 990_000 < task.details()["edges"] <= 1_000_000
    net, mesh = GCN(4), make_mesh(1)
    training = Training(steps=10, learning_rate=3e-2, warmup_steps=0, evaluate_every=10, devices=1)
    trained = fit(task, net, training)
    measured = make_evaluator(task, net, "test", mesh=mesh)(trained.variables)
    without_edges = np.mean(np.argmax(features[20_000:, :4], axis=1) == labels[20_000:])
    assert measured["accuracy"] > without_edges + 0.1

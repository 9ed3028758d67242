"""Operations on graphs: the layers of PyTorch Geometric, and what holds of each of them."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import promises
import pytest
import refusals
from user_networks import Elastic

import jaxnas
from jaxnas import Choice, Space, elastic
from jaxnas.supernets import graph_operations as ops
from jaxnas.tensors import flatten

NODES, WIDTH, OUT = 12, 6, 16
POOLS = {
    **{f"cora/{name}": op for name, op in ops.cora_pool(OUT).items() if name != "identity"},
    **{f"citeseer/{name}": op for name, op in ops.citeseer_pool(OUT).items()},
    "identity": ops.Identity(WIDTH),
    "gat_mean": ops.GeoLayer(OUT, "gat", 3, merge="mean"),
    "cos_mean": ops.GeoLayer(OUT, "cos", 3, merge="mean"),
}


def random_graph(seed=0, nodes=NODES, edges=20):
    """Features [N, F] and edges [E, 2] both ways, in any order; the last node has none."""
    random = np.random.default_rng(seed)
    pairs = random.integers(0, nodes - 1, (edges, 2))
    pairs = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)
    both = random.permutation(np.concatenate([pairs, pairs[:, ::-1]])).astype(np.int32)
    return random.normal(size=(nodes, WIDTH)).astype(np.float32), both


def graph_of(edges, nodes=NODES):
    return ops.make_graph(jnp.asarray(edges), jnp.ones(len(edges), bool), jnp.ones(nodes, bool))


def initialized(op, x, graph):
    random = np.random.default_rng(0)
    shapes = jax.eval_shape(op.init, jax.random.key(0), x, graph)
    return jax.tree.map(lambda leaf: random.normal(0, 0.5, leaf.shape).astype(np.float32), shapes)


@functools.partial(jax.jit, static_argnums=(0, 4))
def run(op, variables, x, graph, train=False):
    return op.apply(variables, x, graph, train=train, rngs={"dropout": jax.random.key(1)} if train else None)


@pytest.fixture(scope="module")
def geometric():
    pytest.importorskip("torch", reason="PyTorch, for comparison, comes with the extra `torch`")
    with warnings.catch_warnings():  # of its own imports
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch_geometric.nn", reason="it comes with the extra `torch`")


def converted(params, names):
    """The parameters of a layer of theirs, transposed and with the axes that they have in front there."""
    flat = {"/".join(path): np.asarray(leaf) for path, leaf in flatten(params).items()}
    flat |= {f"{path}.T": leaf.T for path, leaf in flat.items()}
    places = [one.split("=") for one in names.split()]
    return {name: flat[path.strip("[]")][(None,) * path.count("[")] for name, path in places}


# Where each parameter of theirs is in ours, in brackets with one more axis in front.
ATTENTION = "lin.weight=linear/kernel.T att_src=[source] att_dst=[target] bias=bias"
GCN = "lin.weight=linear/kernel.T bias=bias"
SGC = "lin.weight=linear/kernel.T lin.bias=bias"
LINEAR = "weight=linear/kernel.T bias=linear/bias"
CHEB = "lins.0.weight=linear_0/kernel.T lins.1.weight=linear_1/kernel.T bias=bias"
SAGE = "lin_l.weight=neighbors/kernel.T lin_r.weight=root/kernel.T lin_l.bias=bias"
ARMA = "init_weight=[neighbors/kernel] root_weight=[[root/kernel]] bias=[[[bias]]]"
LAYERS = {  # ours: theirs, and their parameters of ours
    "cora/gcn": (lambda g: g.GCNConv(WIDTH, OUT, add_self_loops=False), GCN),
    "cora/sage": (lambda g: g.SAGEConv(WIDTH, OUT), SAGE),
    "cora/gat_1": (lambda g: g.GATConv(WIDTH, OUT), ATTENTION),
    "cora/gat_16": (lambda g: g.GATConv(WIDTH, OUT // 16, heads=16), ATTENTION),
    "gat_mean": (lambda g: g.GATConv(WIDTH, OUT, heads=3, concat=False), ATTENTION),
    "cora/linear": (lambda g: g.Linear(WIDTH, OUT), LINEAR),
    "cora/arma": (lambda g: g.ARMAConv(WIDTH, OUT), ARMA),
    "cora/cheb": (lambda g: g.ChebConv(WIDTH, OUT, K=2), CHEB),
    "cora/sgc": (lambda g: g.SGConv(WIDTH, OUT), SGC),
}


@pytest.mark.parametrize("name", LAYERS)
def test_an_operation_is_the_layer_of_pytorch_geometric(geometric, name):
    import torch

    x, edges = random_graph()
    op, (layer, names) = POOLS[name], LAYERS[name]
    variables = initialized(op, x, graph_of(edges))
    theirs = layer(geometric)
    state = {name: torch.tensor(value) for name, value in converted(variables["params"], names).items()}
    found = theirs.load_state_dict(state, strict=False)
    assert not found.unexpected_keys and set(found.missing_keys) <= {"weight"}  # of ARMA's further layers
    one_way = [] if "cheb" in name else [edges[edges[:, 0] < edges[:, 1]]]
    for given in (edges, *one_way):
        inputs = [torch.tensor(x), torch.tensor(given.T).long()][: 1 if name == "cora/linear" else 2]
        expected = theirs.eval()(*inputs).detach().numpy()
        np.testing.assert_allclose(run(op, variables, x, graph_of(given)), expected, atol=1e-5)


def by_hand(coefficient, p, x, edges, heads):
    """Message passing node by node, in float64, by coefficients that PyTorch Geometric has not."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), p)
    h = (x.astype(np.float64) @ p["linear"]["kernel"]).reshape(len(x), heads, -1)
    into = {v: [u for u, w in edges.tolist() if w == v] + [v] for v in range(len(x))}

    def leaky(y):
        return np.where(y > 0, y, 0.2 * y)

    def score(k, u, v):
        if coefficient == "const":
            return 1.0
        b = p["source"][k]
        if coefficient == "linear":
            return np.tanh(b @ h[u, k])
        a = p["target"][k]
        forward, backward = leaky(a @ h[v, k] + b @ h[u, k]), leaky(a @ h[u, k] + b @ h[v, k])
        if coefficient == "sym_gat":
            return forward + backward
        if coefficient == "cos":
            return (a * h[v, k]) @ (b * h[u, k])
        return np.tanh(a * h[v, k] + b * h[u, k]) @ p["joined"][:, 0]

    out = np.zeros_like(h)
    for v, neighbors in into.items():
        for k in range(heads):
            weights = np.array([score(k, u, v) for u in neighbors])
            if coefficient != "const":
                weights = np.exp(weights) / np.exp(weights).sum()
            out[v, k] = sum(w * h[u, k] for w, u in zip(weights, neighbors, strict=True))
    return out


@pytest.mark.parametrize("coefficient", sorted(set(ops.citeseer_pool(OUT)) - {"zero", "gcn", "gat"}))
def test_message_passing_is_that_by_hand(coefficient):
    x, edges = random_graph(1)
    op = ops.GeoLayer(OUT, coefficient, 4, merge="mean" if coefficient == "cos" else "concatenate")
    variables = initialized(op, x, graph_of(edges))
    out = by_hand(coefficient, variables["params"], x, edges, 4)
    out = out.mean(1) if op.merge == "mean" else out.reshape(NODES, -1)
    found = run(op, variables, x, graph_of(edges))
    np.testing.assert_allclose(found, out + variables["params"]["bias"][None], atol=1e-5)


@pytest.mark.more
@pytest.mark.parametrize(
    "name", sorted(POOLS.keys() - {"cora/gat_2", "cora/gat_4", "cora/gat_8", "cora/gat_16"})
)
def test_what_fills_a_graph_up_changes_nothing_and_gradients_are_finite(name):
    x, edges = random_graph(2)
    op, graph = POOLS[name], graph_of(edges)
    variables = initialized(op, x, graph)
    filled = ops.make_graph(
        jnp.concatenate([edges, jnp.full((5, 2), 3, jnp.int32)]),
        jnp.arange(len(edges) + 5) < len(edges),
        jnp.arange(NODES + 4) < NODES,
    )

    def loss(variables, x, graph):
        y = op.apply(variables, x, graph)[:NODES]
        return jnp.sum(y**2), y

    differentiate = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
    grads, y = differentiate(variables, x * 100, graph)  # scores beyond what an exponential can hold
    wide = jnp.concatenate([x, jnp.full((4, WIDTH), 7.0)])
    assert y.shape == (NODES, op.features) and y.dtype == jnp.float32
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((grads, y)))
    grads, y = differentiate(variables, x, graph)
    others, z = differentiate(variables, wide, filled)
    np.testing.assert_allclose(z, y, atol=1e-5)
    for one, other in zip(jax.tree.leaves(grads[0]), jax.tree.leaves(others[0]), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(others[1][NODES:], 0)


@pytest.mark.parametrize("name", ["cora/gat_4", "cora/cheb", "citeseer/gcn"])
def test_a_union_of_graphs_is_each_graph_alone(name):
    graphs, op = [random_graph(seed, edges=6 * (seed + 1)) for seed in range(3)], POOLS[name]
    most = max(len(edges) for _, edges in graphs)
    inputs = {
        "features": np.stack([x for x, _ in graphs]),
        "edges": np.stack([np.pad(e, ((0, most - len(e)), (0, 0))) for _, e in graphs]),
        "edge_mask": np.stack([np.arange(most) < len(e) for _, e in graphs]),
        "node_mask": np.ones((3, NODES), bool),
    }
    x, graph = ops.union(jax.tree.map(jnp.asarray, inputs))
    variables = initialized(op, x, graph)
    together = run(op, variables, x, graph).reshape(3, NODES, OUT)
    for y, (x, edges) in zip(together, graphs, strict=True):
        np.testing.assert_allclose(y, run(op, variables, x, graph_of(edges)), atol=1e-5)


def test_attention_drops_edges_or_features_in_training_alone():
    x, edges = random_graph()
    for op in (
        ops.GeoLayer(OUT, "gat", 4, dropout=0.5),
        ops.GeoLayer(OUT, "gat", 4, sum_dropout=0.5),
        ops.GeoLayer(OUT, "const", 4, dropout=0.5),
    ):
        variables = initialized(op, x, graph_of(edges))
        variables["params"]["bias"] *= 0
        still, dropped = (run(op, variables, x, graph_of(edges), train) for train in (False, True))
        np.testing.assert_array_equal(still, run(op, variables, x, graph_of(edges)))
        assert not np.allclose(dropped, still)
        # A node of one edge, that to itself, has twice its value or none in each head.
        ratio = np.asarray(dropped[-1] / still[-1]).reshape(4, 4)
        assert (np.isclose(ratio, 0, atol=1e-5) | np.isclose(ratio, 2, atol=1e-5)).all()


def test_dropout_keeps_the_mean_and_drops_at_its_rate():
    x = jnp.full((300, 401), 2.0)
    for rate in (0.0, 0.25, 0.6):
        drop, rngs = ops.Dropout(rate), {"dropout": jax.random.key(0)}
        y = np.asarray(drop.apply({}, x, train=True, rngs=rngs))
        kept = 1 - round(256 * rate) / 256
        assert np.unique(y).tolist() == pytest.approx([0, 2 / kept] if rate else [2.0])
        assert y.mean() == pytest.approx(2, rel=0.02) and (y == 0).mean() == pytest.approx(rate, abs=0.01)
        assert np.abs(np.corrcoef(y[:, :4].T) - np.eye(4)).max() < 0.3 if rate else True
        np.testing.assert_array_equal(drop.apply({}, x), x)


class Layer(Elastic):
    def body(self, inputs, decisions, train):
        x, graph = ops.union(inputs)
        pool = {name: POOLS[name] for name in self.space["op"].options}
        y = elastic.Mixture(pool, name="layer")(decisions["op"], x, graph, train=train)
        return y.reshape(*inputs["features"].shape[:2], OUT)


def test_costs_are_those_of_the_dense_products_and_edges_cost_nothing():
    net = Layer(Space(op=Choice(*(name for name in POOLS if "/" in name))))
    shapes = {"features": ((1, 50, 8), jnp.float32), "edges": ((1, 200, 2), jnp.int32)}
    shapes |= {"edge_mask": ((1, 200), bool), "node_mask": ((1, 50), bool)}
    cost = jaxnas.cost(net, {k: jax.ShapeDtypeStruct(*v) for k, v in shapes.items()})

    def of(name):
        return tuple(int(cost(net.space.from_dict({"op": name}))[k]) for k in ("params", "macs"))

    dense, weights = 50 * 8 * OUT, 8 * OUT
    assert of("cora/zero") == (0, 0)
    matrices = {"cora/linear": 1, "cora/sgc": 1, "cora/sage": 2, "cora/arma": 2, "cora/cheb": 2}
    for name, count in {**matrices, "citeseer/const": 1}.items():
        assert of(name) == (count * weights + OUT, count * dense), name
    # Two vectors of attention, each of which meets every node once, whatever the heads.
    for name in ("cora/gat_1", "cora/gat_16", "citeseer/gat", "citeseer/sym_gat"):
        assert of(name) == (weights + 3 * OUT, dense + 2 * 50 * OUT), name


def test_what_cannot_be_is_refused():
    x, edges = random_graph()

    def init(op):
        return lambda: op.init(jax.random.key(0), x, graph_of(edges))

    drop = functools.partial(ops.Dropout(1.0).apply, {}, x, train=True, rngs={"dropout": jax.random.key(0)})
    refusals.check(
        (init(ops.Identity(OUT)), ValueError, "6"),
        (init(ops.GeoLayer(7, "gat", 2)), ValueError, "2 heads", "7"),
        (init(ops.GeoLayer(8, "gta")), ValueError, "'gta'"),
        (init(ops.GeoLayer(8, "gat", merge="max")), ValueError, "'max'"),
        (lambda: drop(), ValueError, "rate is 1"),
    )


@pytest.mark.parametrize("name", POOLS)
def test_nothing_is_as_large_as_the_square_of_the_nodes(name):
    op, nodes, edges = POOLS[name], 100_000, 1_000_000
    shapes = [((edges, 2), jnp.int32), ((edges,), bool), ((nodes,), bool)]
    graph = jax.eval_shape(ops.make_graph, *(jax.ShapeDtypeStruct(*x) for x in shapes))
    x = jax.ShapeDtypeStruct((nodes, WIDTH), jnp.float32)
    variables = jax.eval_shape(op.init, jax.random.key(0), x, graph)
    gradient = jax.grad(lambda variables, x, graph: jnp.sum(op.apply(variables, x, graph) ** 2))
    assert promises.largest_array(gradient, variables, x, graph) <= 3 * (nodes + edges) * OUT  # three heads

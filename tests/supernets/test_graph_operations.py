"""Operations on graphs: the layers of PyTorch Geometric, and what holds of each of them."""

import functools
import warnings

import flax.linen as nn
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax.extend.core import jaxprs_in_params

import jaxnas
from jaxnas import Choice, Space, elastic
from jaxnas.supernets import graph_operations as ops

NODES, WIDTH, OUT = 12, 6, 16
POOLS = {
    **{f"cora/{name}": op for name, op in ops.cora_pool(OUT).items() if name != "identity"},
    **{f"citeseer/{name}": op for name, op in ops.citeseer_pool(OUT).items()},
    "identity": ops.Identity(WIDTH),
    "gat_mean": ops.GATConv(OUT, 3, merge="mean"),
    "cos_mean": ops.GeoLayer(OUT, "cos", 3, merge="mean"),
}


def random_graph(seed=0, nodes=NODES, edges=20):
    """Features [N, F] and edges [E, 2] both ways; the last node has none."""
    random = np.random.default_rng(seed)
    pairs = random.integers(0, nodes - 1, (edges, 2))
    pairs = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)
    both = np.concatenate([pairs, pairs[:, ::-1]]).astype(np.int32)
    return random.normal(size=(nodes, WIDTH)).astype(np.float32), both


def graph_of(edges, nodes=NODES):
    return ops.make_graph(jnp.asarray(edges), jnp.ones(len(edges), bool), jnp.ones(nodes, bool))


def initialized(op, x, graph):
    """Variables in which no bias is zero."""
    random = np.random.default_rng(0)
    shapes = jax.eval_shape(op.init, jax.random.key(0), x, graph)
    return jax.tree.map(lambda leaf: random.normal(0, 0.5, leaf.shape).astype(np.float32), shapes)


@functools.partial(jax.jit, static_argnums=0)
def run(op, variables, x, graph):
    return op.apply(variables, x, graph)


@pytest.fixture(scope="module")
def geometric():
    pytest.importorskip("torch", reason="PyTorch, for comparison, comes with the extra `torch`")
    with warnings.catch_warnings():  # of its own imports
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch_geometric.nn", reason="it comes with the extra `torch`")


def kernel(name):
    return lambda p: p[name]["kernel"].T


def plain(name):
    return lambda p: p[name]


ATTENTION = {
    "lin.weight": kernel("linear"),
    "att_src": lambda p: p["source"][None],
    "att_dst": lambda p: p["target"][None],
    "bias": plain("bias"),
}
GCN = {"lin.weight": kernel("linear"), "bias": plain("bias")}
SGC = {"lin.weight": kernel("linear"), "lin.bias": plain("bias")}
CHEB = {"lins.0.weight": kernel("linear_0"), "lins.1.weight": kernel("linear_1"), "bias": plain("bias")}
SAGE = {"lin_l.weight": kernel("neighbours"), "lin_r.weight": kernel("root"), "lin_l.bias": plain("bias")}
ARMA = {
    "init_weight": lambda p: p["neighbours"]["kernel"][None],
    "root_weight": lambda p: p["root"]["kernel"][None, None],
    "bias": lambda p: p["bias"][None, None, None],
}
LAYERS = {  # ours: theirs, and their parameters of ours
    "cora/gcn": (lambda g: g.GCNConv(WIDTH, OUT, add_self_loops=False), GCN),
    "cora/sage": (lambda g: g.SAGEConv(WIDTH, OUT), SAGE),
    **{
        f"cora/gat_{h}": (lambda g, h=h: g.GATConv(WIDTH, OUT // h, heads=h), ATTENTION)
        for h in (1, 2, 4, 8, 16)
    },
    "gat_mean": (lambda g: g.GATConv(WIDTH, OUT, heads=3, concat=False), ATTENTION),
    "cora/linear": (
        lambda g: g.Linear(WIDTH, OUT),
        {"weight": kernel("linear"), "bias": lambda p: p["linear"]["bias"]},
    ),
    "cora/arma": (lambda g: g.ARMAConv(WIDTH, OUT), ARMA),
    "cora/cheb": (lambda g: g.ChebConv(WIDTH, OUT, K=2), CHEB),
    "cora/sgc": (lambda g: g.SGConv(WIDTH, OUT), SGC),
    "citeseer/gcn": (lambda g: g.GCNConv(WIDTH, OUT), GCN),
    "citeseer/gat": (lambda g: g.GATConv(WIDTH, OUT // 4, heads=4), ATTENTION),
}


@pytest.mark.parametrize("name", LAYERS)
def test_an_operation_is_the_layer_of_pytorch_geometric(geometric, name):
    import torch

    x, edges = random_graph()
    op, (layer, names) = POOLS[name], LAYERS[name]
    variables = initialized(op, x, graph_of(edges))
    theirs = layer(geometric)
    state = {k: torch.tensor(np.asarray(of(variables["params"]))) for k, of in names.items()}
    found = theirs.load_state_dict(state, strict=False)
    assert not found.unexpected_keys and set(found.missing_keys) <= {"weight"}  # of ARMA's further layers
    one_way = [] if "cheb" in name else [edges[edges[:, 0] < edges[:, 1]]]
    for given in (edges, *one_way):
        inputs = (
            (torch.tensor(x),) if name == "cora/linear" else (torch.tensor(x), torch.tensor(given.T).long())
        )
        expected = theirs.eval()(*inputs).detach().numpy()
        np.testing.assert_allclose(run(op, variables, x, graph_of(given)), expected, atol=1e-5)


def by_hand(coefficient, p, x, edges, heads):
    """Message passing node by node, in float64; the parameters as of `GeoLayer`."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), p)
    h = (x.astype(np.float64) @ p["linear"]["kernel"]).reshape(len(x), heads, -1)
    into = {v: [u for u, w in edges.tolist() if w == v] + [v] for v in range(len(x))}

    def leaky(y):
        return np.where(y > 0, y, 0.2 * y)

    def score(k, u, v):
        if coefficient == "const":
            return 1.0
        if coefficient == "gcn":
            return 1 / np.sqrt(len(into[u]) * len(into[v]))
        b = p["source"][k]
        if coefficient == "linear":
            return np.tanh(b @ h[u, k])
        a = p["target"][k]
        forward, backward = leaky(a @ h[v, k] + b @ h[u, k]), leaky(a @ h[u, k] + b @ h[v, k])
        if coefficient in ("gat", "sym_gat"):
            return forward + backward * (coefficient == "sym_gat")
        if coefficient == "cos":
            return (a * h[v, k]) @ (b * h[u, k])
        return np.tanh(a * h[v, k] + b * h[u, k]) @ p["joined"][:, 0]

    out = np.zeros_like(h)
    for v, neighbours in into.items():
        for k in range(heads):
            weights = np.array([score(k, u, v) for u in neighbours])
            if coefficient not in ("const", "gcn"):
                weights = np.exp(weights) / np.exp(weights).sum()
            out[v, k] = sum(w * h[u, k] for w, u in zip(weights, neighbours, strict=True))
    return out


@pytest.mark.parametrize("merge", ["concatenate", "mean"])
@pytest.mark.parametrize("coefficient", [name for name in ops.citeseer_pool(OUT) if name != "zero"])
def test_message_passing_is_that_by_hand(coefficient, merge):
    x, edges = random_graph(1)
    op = ops.GeoLayer(OUT, coefficient, 4, merge=merge)
    variables = initialized(op, x, graph_of(edges))
    out = by_hand(coefficient, variables["params"], x, edges, 4)
    out = {"concatenate": out.reshape(NODES, -1), "mean": out.mean(1)}[merge]
    found = run(op, variables, x, graph_of(edges))
    np.testing.assert_allclose(found, out + variables["params"]["bias"][None], atol=1e-5)


@pytest.mark.more
@pytest.mark.parametrize("name", POOLS)
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


@pytest.mark.parametrize("name", ["cora/sage", "cora/arma", "citeseer/gene_linear"])
@hypothesis.settings(max_examples=5)
@hypothesis.given(seed=st.integers(0, 10**6))
def test_the_numbers_of_nodes_and_the_order_of_edges_do_not_matter(name, seed):
    x, edges = random_graph(seed)
    op = POOLS[name]
    variables = initialized(op, x, graph_of(edges))
    random = np.random.default_rng(seed)
    nodes = random.permutation(NODES)  # the new node k was nodes[k]
    moved = np.argsort(nodes).astype(np.int32)[random.permutation(edges)]
    y = run(op, variables, x, graph_of(edges))
    np.testing.assert_allclose(run(op, variables, x[nodes], graph_of(moved)), y[nodes], atol=1e-5)


@pytest.mark.parametrize("name", ["cora/gat_4", "cora/cheb", "citeseer/gcn"])
def test_a_union_of_graphs_is_each_graph_alone(name):
    graphs = [random_graph(seed, edges=6 * (seed + 1)) for seed in range(3)]
    most, op = max(len(edges) for _, edges in graphs), POOLS[name]
    inputs = {
        "features": jnp.stack([x for x, _ in graphs]),
        "edges": jnp.stack([jnp.zeros((most, 2), jnp.int32).at[: len(e)].set(e) for _, e in graphs]),
        "edge_mask": jnp.stack([jnp.arange(most) < len(e) for _, e in graphs]),
        "node_mask": jnp.ones((3, NODES), bool),
    }
    x, graph = ops.union(inputs)
    variables = initialized(op, x, graph)
    together = run(op, variables, x, graph).reshape(3, NODES, OUT)
    for y, (x, edges) in zip(together, graphs, strict=True):
        np.testing.assert_allclose(y, run(op, variables, x, graph_of(edges)), atol=1e-5)


def test_attention_drops_edges_or_features_in_training_alone():
    x, edges = random_graph()
    for op in (
        ops.GATConv(OUT, 4, dropout=0.5),
        ops.GATConv(OUT, 4, sum_dropout=0.5),
        ops.GeoLayer(OUT, "const", 4, dropout=0.5),
    ):
        variables = op.init(jax.random.key(0), x, graph_of(edges))
        rngs = {"dropout": jax.random.key(1)}
        still = op.apply(variables, x, graph_of(edges), rngs=rngs)
        dropped = op.apply(variables, x, graph_of(edges), train=True, rngs=rngs)
        np.testing.assert_allclose(still, run(op, variables, x, graph_of(edges)), rtol=1e-5, atol=1e-6)
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
    with pytest.raises(ValueError, match="rate is 1"):
        ops.Dropout(1.0).apply({}, x, train=True, rngs={"dropout": jax.random.key(0)})


class Layer(nn.Module):
    """One of the operations, chosen by an architecture."""

    space: Space

    @nn.compact
    def __call__(self, inputs, arch=None, *, train=False):
        decisions = elastic.Decisions(self.space, arch, initializing=self.is_initializing())
        x, graph = ops.union(inputs)
        pool = {**ops.cora_pool(OUT), **{f"geo_{name}": op for name, op in ops.citeseer_pool(OUT).items()}}
        y = elastic.Mixture(pool, name="layer")(decisions["op"], x, graph, train=train)
        return y.reshape(*inputs["features"].shape[:2], OUT)


def test_costs_are_those_of_the_dense_products_and_edges_cost_nothing():
    names = [name for name in ops.cora_pool(OUT) if name != "identity"]
    names += [f"geo_{name}" for name in ops.citeseer_pool(OUT)]
    net = Layer(Space(op=Choice(*names)))
    shapes = {"features": ((1, 50, 8), jnp.float32), "edges": ((1, 200, 2), jnp.int32)}
    shapes |= {"edge_mask": ((1, 200), bool), "node_mask": ((1, 50), bool)}
    cost = jaxnas.cost(net, {k: jax.ShapeDtypeStruct(*v) for k, v in shapes.items()})

    def of(name):
        return tuple(int(cost(net.space.from_dict({"op": name}))[k]) for k in ("params", "macs"))

    dense, weights = 50 * 8 * OUT, 8 * OUT
    assert of("zero") == (0, 0)
    for name, matrices in (
        ("linear", 1),
        ("sgc", 1),
        ("sage", 2),
        ("arma", 2),
        ("cheb", 2),
        ("geo_const", 1),
    ):
        assert of(name) == (matrices * weights + OUT, matrices * dense), name
    # Two vectors of attention, each of which meets every node once, whatever the heads.
    for name in ("gat_1", "gat_16", "geo_gat", "geo_sym_gat"):
        assert of(name) == (weights + 3 * OUT, dense + 2 * 50 * OUT), name


def test_what_cannot_be_is_refused():
    x, edges = random_graph()
    for op, message in (
        (ops.Identity(OUT), "nodes have 6"),
        (ops.GATConv(7, 2), "GATConv: 2"),
        (ops.GeoLayer(8, "gta"), "'gta'"),
        (ops.GATConv(8, merge="max"), "'max'"),
    ):
        with pytest.raises(ValueError) as error:
            op.init(jax.random.key(0), x, graph_of(edges))
        assert message in str(error.value)


def sizes(jaxpr):
    """The numbers of elements of all arrays of a program."""
    for equation in jaxpr.eqns:
        yield from (v.aval.size for v in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from sizes(inner)


@pytest.mark.parametrize("name", POOLS)
def test_nothing_is_as_large_as_the_square_of_the_nodes(name):
    op, nodes, edges = POOLS[name], 100_000, 1_000_000
    shapes = [((edges, 2), jnp.int32), ((edges,), bool), ((nodes,), bool)]
    graph = jax.eval_shape(ops.make_graph, *(jax.ShapeDtypeStruct(*x) for x in shapes))
    x = jax.ShapeDtypeStruct((nodes, WIDTH), jnp.float32)
    variables = jax.eval_shape(op.init, jax.random.key(0), x, graph)
    gradient = jax.grad(lambda variables, x, graph: jnp.sum(op.apply(variables, x, graph) ** 2))
    assert (
        max(sizes(jax.make_jaxpr(gradient)(variables, x, graph).jaxpr), default=0)
        <= 3 * (nodes + edges) * OUT
    )  # of three heads

"""Zero-cost proxies: those of a supernet, of its extracted networks, of PyTorch and of float64."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import plain_networks
import pytest
import refusals
import small_nets

import jaxnas
from benchmarks.nasbench201_network import NasBench201
from jaxnas import Choice, Skip, Space, elastic, predictors, proxies, search
from jaxnas.subnet import alone
from jaxnas.tensors import flatten

KEY = jax.random.key(0)
NAMES = tuple(proxies.PROXIES)
LABELS = np.asarray([0, 1, 2, 0, 1, 2], np.int32)


class Blocks(nn.Module):
    """A mixture and batch normalization; `last` begins the head at zero."""

    space: Space = Space(op=Choice("dense", "relu", "norm"), hidden=Choice(3, 8))
    last: nn.initializers.Initializer = nn.initializers.lecun_normal()
    read: str = "logits"

    @nn.compact
    def __call__(self, x, arch=None, *, train=False):
        decisions = elastic.Decisions(self.space, arch, initializing=self.is_initializing())
        hidden = elastic.width(int, decisions["hidden"])
        x = elastic.Dense(name="in")(x, elastic.fixed(x.shape[-1]), hidden)
        x = elastic.BatchNorm(activation=nn.relu, name="norm")(x, hidden, train=train)
        x = elastic.Dense(name="out")(x, hidden, elastic.fixed(4))
        blocks = {"dense": nn.Dense(4), "relu": nn.relu, "norm": nn.LayerNorm()}
        blocks["relu"] = nn.Sequential([nn.relu, nn.Dense(4, use_bias=False)])
        x = elastic.Mixture(blocks, name="op")(decisions["op"], x)
        x = nn.Dense(3, kernel_init=self.last, name="head")(x)
        return x if self.read == "logits" else x.argmax(-1)


class Plain(nn.Module):
    """No parameters."""

    space: Space

    def __call__(self, x, arch=None, *, train=False):
        return x


def rows(shape=(6, 5)):
    return jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)


def squares(predictions, _):
    return jnp.mean(jnp.square(predictions - 1.0))


def of_turns(form):
    inputs = rows((6, 5))
    draw = np.random.default_rng(0)
    shapes = {"in": (8, 3, 12), "gate": (12, 3), "out": (8, 3, 12)}
    stacks = {name: jnp.asarray(draw.normal(0, 0.3, shape), jnp.float32) for name, shape in shapes.items()}
    params = {"first": rows((5, 8)), "layers": stacks}
    groups = jaxnas.analyze(plain_networks.by_turn, params, inputs)
    choices = {"layers/hidden": Choice(4, 8, 12).repeat(3), "layer": Skip()}
    net = jaxnas.supernet(groups, choices, form=form, verify=False)
    return net, groups.model.variables, proxies.Batch(inputs, loss=squares)


def elastic_layers():
    batch = proxies.Batch(rows(), LABELS)
    return small_nets.TABLE, {"params": small_nets.random_params(small_nets.TABLE, (6, 5))}, batch


def mixture():
    batch = proxies.Batch(rows(), LABELS)
    return Blocks(), jaxnas.init(Blocks(), KEY, batch.inputs), batch


MADE = {
    "elastic": elastic_layers,
    "mixture": mixture,
    "masked": functools.partial(of_turns, "masked"),
    "switch": functools.partial(of_turns, "switch"),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_an_architecture_has_the_scores_of_its_extracted_network(made):
    net, variables, batch = made()
    archs = net.space.sample(jax.random.key(2), 3)
    found = proxies.score(net, variables, archs, batch, NAMES)
    for i in range(3):
        arch = jax.tree.map(lambda x, i=i: x[i], archs)
        _, small, cut = alone(net, variables, arch, batch.inputs)
        expected = jax.jit(
            lambda cut, small=small: {name: getattr(proxies, name)(small, cut, None, batch) for name in NAMES}
        )(cut)
        for name in NAMES:
            np.testing.assert_allclose(found[name][i], expected[name], rtol=2e-4, err_msg=name)


def torch_scores(params, ops, images, labels):
    """All five by autograd of a network of NAS-Bench-201 in PyTorch, in float64."""
    import torch
    import torch.nn.functional as F

    weights = {
        path: torch.tensor(np.asarray(x), dtype=torch.float64).permute(
            *((3, 2, 0, 1) if x.ndim == 4 else (1, 0))
        )
        for path, x in params.items()
        if path[-1] == "kernel"
    }

    def forward(x, weights, bias, norm):
        def conv(x, *path, stride=1):
            kernel = weights[*path, "kernel"]
            return F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)

        def block(x, *path, stride=1):
            return norm(conv(torch.relu(x), *path, "conv", stride=stride))

        def edge(x, op, *path):
            run = {
                "none": lambda: x * 0,
                "skip_connect": lambda: x,
                "avg_pool_3x3": lambda: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
            }
            return run[op]() if op in run else block(x, path[0], f"{path[1]}_{op}")

        x = norm(conv(x, "stem"))
        for stage in range(3):
            if stage:
                at = f"reduction_{stage}"
                y = block(block(x, at, "first", stride=2), at, "second")
                x = y + conv(F.avg_pool2d(x, 2), at, "shortcut")
            at = f"stage_{stage}_cell_0"
            one = edge(x, ops[0], at, "edge_0")
            two = edge(x, ops[1], at, "edge_1") + edge(one, ops[2], at, "edge_2")
            x = (
                edge(x, ops[3], at, "edge_3")
                + edge(one, ops[4], at, "edge_4")
                + edge(two, ops[5], at, "edge_5")
            )
        return F.linear(torch.relu(norm(x)).mean((2, 3)), weights["head", "kernel"], bias)

    def normalized(x):
        mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5)

    bias = torch.tensor(np.asarray(params["head", "bias"]), dtype=torch.float64)
    images = torch.tensor(np.asarray(images), dtype=torch.float64).permute(0, 3, 1, 2).requires_grad_()
    for one in weights.values():
        one.requires_grad_()
    every = list(weights.values())
    logits = forward(images, weights, bias, normalized)
    loss = F.cross_entropy(logits, torch.tensor(labels, dtype=torch.long))
    grads = torch.autograd.grad(loss, every, create_graph=True, allow_unused=True)
    used = [(w, g) for w, g in zip(every, grads, strict=True) if g is not None]
    along = sum((g.detach() * g).sum() for _, g in used)
    products = torch.autograd.grad(along, [w for w, _ in used], retain_graph=True)
    jacobian = torch.autograd.grad(logits.sum(), images)[0].reshape(len(images), -1).numpy()
    values = np.linalg.eigvalsh(np.corrcoef(jacobian)) + 1e-5
    positive = {path: w.detach().abs().requires_grad_() for path, w in weights.items()}
    flow = forward(torch.ones_like(images[:1]), positive, bias.abs(), lambda x: x).sum()
    flows = torch.autograd.grad(flow, list(positive.values()), allow_unused=True)
    through = sum((w * g).abs().sum() for w, g in zip(positive.values(), flows, strict=True) if g is not None)
    parts = [-w * h for (w, _), h in zip(used, products, strict=True)]
    return {
        "grad_norm": sum(g.norm() for _, g in used).item(),
        "snip": sum((w * g).abs().sum() for w, g in used).item(),
        "grasp": sum(part.sum() for part in parts).item(),
        "synflow": through.log().item(),
        "jacob_cov": -np.sum(np.log(values) + 1 / values),
    }, sum(part.abs().sum() for part in parts).item()


def test_scores_are_those_of_pytorch():
    ops = ("nor_conv_3x3", "avg_pool_3x3", "none", "nor_conv_1x1", "nor_conv_3x3", "skip_connect")
    full = NasBench201(cells=1, channels=4, num_classes=3)
    net = full.clone(space=full.space.fix(full.space.from_dict({"op": list(ops)})))
    images = rows((6, 8, 8, 3))
    variables = jaxnas.init(net, KEY, images)
    batch = proxies.Batch(images, LABELS)
    found = jax.jit(lambda v: {name: getattr(proxies, name)(net, v, None, batch) for name in NAMES})(
        variables
    )
    expected, size = torch_scores(flatten(variables["params"]), ops, images, LABELS)
    for name in NAMES:
        atol = 1e-4 * size if name == "grasp" else 0  # terms of both signs, which nearly cancel
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=atol, err_msg=name)


def test_networks_of_nasbench201_have_the_published_sizes():
    cost = jaxnas.cost(NasBench201(), (1, 32, 32, 3))
    cells = [[0] * 6, [3] * 6, [4, 2, 1, 2, 1, 1], [3, 3, 4, 1, 3, 1], [2, 0, 2, 0, 2, 2]]
    found = cost({"op": jnp.asarray(cells, jnp.int32)})
    np.testing.assert_array_equal(found["params"], [73_306, 1_531_546, 129_306, 802_426, 185_306])
    np.testing.assert_allclose(
        found["macs"] / 1e6, [7.78305, 220.11969, 15.64737, 113.95137, 23.511692], atol=2e-5
    )


class Deep(nn.Module):
    """Layers without a normalization, whose flow exceeds float32."""

    space: Space
    depth: int = 40

    @nn.compact
    def __call__(self, x, arch=None, *, train=False):
        for _ in range(self.depth):
            x = nn.relu(
                nn.Dense(16, kernel_init=nn.initializers.normal(1.0), bias_init=nn.initializers.ones)(x)
            )
        return x


def test_a_flow_beyond_float32_is_that_of_float64():
    net = Deep(Space(unused=Choice(1)))
    batch = proxies.Batch(rows())
    variables = jaxnas.init(net, KEY, batch.inputs)
    found = jax.jit(lambda v: proxies.synflow(net, v, None, batch))(variables)
    layers = [
        {name: np.abs(np.asarray(x, np.float64)) for name, x in variables["params"][f"Dense_{i}"].items()}
        for i in range(net.depth)
    ]
    inputs, total = [np.ones((1, 5))], 0.0
    for one in layers:
        inputs.append(inputs[-1] @ one["kernel"] + one["bias"])
    back = np.ones((1, 16))
    for one, x in zip(layers[::-1], inputs[-2::-1], strict=True):
        total += np.sum(one["kernel"] * (x.T @ back))
        back = back @ one["kernel"].T
    assert total > 1e39
    np.testing.assert_allclose(found, np.log(total), rtol=1e-5)


def test_a_space_is_one_program_and_a_search_takes_its_scores():
    net, variables, batch = mixture()
    space, every = net.space, net.space.enumerate()
    one = jax.jit(
        lambda arch: proxies.score(net, variables, jax.tree.map(lambda x: x[None], arch), batch)["synflow"][0]
    )
    found = proxies.score(net, variables, every, batch, ("synflow", "snip"))
    together = proxies.score(net, variables, every, batch, ("synflow", "snip"), batch_size=4)
    for name in ("synflow", "snip"):
        np.testing.assert_allclose(found[name], together[name], rtol=1e-5)
    np.testing.assert_allclose(found["synflow"], jax.lax.map(one, every), rtol=1e-5)
    assert len(set(np.asarray(found["snip"]).tolist())) == 6

    best = search.Pool(np.asarray(space.encode(every))[np.argsort(-found["snip"])])
    for strategy in (
        search.Evolution(space, evaluations=4, population=2, mutations=1, crossovers=1, first=best),
        search.RegularizedEvolution(space, evaluations=4, population=2, sample=1, batch=2, first=best),
    ):
        asked, state = [], strategy.init(KEY)
        for _ in range(2):
            archs, state = strategy.ask(state)
            state = strategy.tell(state, archs, archs["hidden"].astype(jnp.float32))
            asked.append(space.encode(archs))
        np.testing.assert_array_equal(np.concatenate(asked), best.codes[:4])

    def features(arch):
        return {"decisions": predictors.one_hot(space)(arch), "synflow": one(arch)[None]}

    predictor = predictors.GaussianProcess(steps=1)
    guided = search.PredictorGuided(space, evaluations=3, predictor=predictor, features=features)
    archs, _ = guided.ask(guided.init(KEY))
    assert archs["op"].shape == (1,)

    def objective(archs):
        return proxies.score(net, variables, archs, batch, ("synflow", "snip"))["synflow"]

    strategy = search.RandomSearch(space, evaluations=6, batch=6)
    result = search.run(strategy, objective, KEY, batched=True)
    assert result.score == np.max(found["synflow"])


def test_what_cannot_be_scored_is_refused():
    net, variables, batch = mixture()
    archs, arch = net.space.sample(KEY, 2), net.space.smallest()
    numbers, zero = Blocks(read="numbers"), Blocks(last=nn.initializers.zeros)
    empty = Plain(Space(unused=Choice(1)))
    stopped = proxies.Batch(batch.inputs, LABELS, lambda predictions, labels: jnp.float32(1))
    refusals.check(
        (lambda: search.Evolution(net.space, first=[arch]), TypeError, "first", "list"),
        (lambda: proxies.score(net, variables, archs, batch, ("synflw",)), ValueError, "synflw", "synflow"),
        (lambda: proxies.snip(net, variables, arch, proxies.Batch(batch.inputs)), ValueError, "labels"),
        (lambda: proxies.snip(net, variables, arch, (batch.inputs, LABELS)), TypeError, "Batch", "tuple"),
        (lambda: proxies.snip(numbers, variables, arch, batch), ValueError, "int32", "Blocks"),
        (lambda: proxies.snip(empty, {"params": {}}, None, batch), ValueError, "Plain", "weights"),
        (lambda: proxies.score(net, variables, archs, stopped, ("snip",)), ValueError, "snip", "zero"),
        (
            lambda: proxies.score(zero, jaxnas.init(zero, KEY, batch.inputs), archs, batch),
            ValueError,
            "synflow",
            "-inf",
        ),
        (
            lambda: proxies.jacob_cov(net, variables, arch, proxies.Batch(batch.inputs[:1])),
            ValueError,
            "jacob_cov",
        ),
    )

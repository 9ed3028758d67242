"""Modules with a space of their own, as of a `Mixture`, whose widths become elastic: one program for both."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals

import jaxnas
from jaxnas import Choice, Size, Space, elastic, network, testing
from jaxnas.tensors import flatten, unflatten

KEY = jax.random.key(0)
OPS = Choice("narrow", "wide", "skip")


class Identity(nn.Module):
    def __call__(self, x, train=False):
        return x


class Hidden(nn.Module):
    """A residual block of plain layers."""

    size: int

    @nn.compact
    def __call__(self, x, train=False):
        y = nn.relu(nn.Dense(self.size, name="up")(nn.LayerNorm()(x)))
        y = nn.Dropout(0.5, deterministic=not train)(y)
        return x + nn.Dense(x.shape[-1], name="down")(y)


class Mlp(nn.Module):
    """Plain layers, and in the middle a choice among operations in each of two places."""

    space: Space
    width: int = 8
    hidden: tuple = (6, 12, 6, 12)
    last: int = 10

    @nn.compact
    def __call__(self, x, arch=None, *, train=False):
        decisions = elastic.Decisions(self.space, arch)
        x = nn.Dense(self.width, name="stem")(x)
        for i in range(2):
            narrow, wide = (Hidden(size) for size in self.hidden[2 * i : 2 * i + 2])
            blocks = {"narrow": narrow, "wide": wide, "skip": Identity()}
            x = elastic.Mixture(blocks, name=f"op_{i}")(decisions["op", i], x, train=train)
        return nn.Dense(3, name="head")(nn.relu(nn.Dense(self.last, name="last")(x)))


class Cnn(nn.Module):
    """Convolutions with batch norm; one choice of a convolution."""

    space: Space

    @nn.compact
    def __call__(self, x, arch=None, *, train=False):
        decisions = elastic.Decisions(self.space, arch)
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Conv(8, (3, 3), name="stem")(x)))
        blocks = {"3": nn.Conv(8, (3, 3)), "1": nn.Conv(8, (1, 1))}
        x = nn.relu(elastic.Mixture(blocks, name="conv")(decisions["conv"], x))
        return nn.Dense(3, name="head")(nn.Dense(6, name="last")(x).mean((1, 2)))


CASES = {
    "mlp": (
        Mlp(Space(op=OPS.repeat(2))),
        jax.random.normal(KEY, (4, 5)),
        {
            "width": Choice(4, 8),
            "Hidden_[02]/hidden": Choice(3, 6),
            "Hidden_[13]/hidden": Choice(5, 12),
            "last/hidden": Choice(4, 10),
        },
    ),
    "cnn": (
        Cnn(Space(conv=Choice("3", "1"))),
        jax.random.normal(KEY, (2, 6, 6, 2)),
        {"stem/channels": Choice(4, 8), "last/hidden": Choice(2, 6)},
    ),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    module, inputs, choices = CASES[request.param]
    variables = jaxnas.init(module, KEY, inputs)
    groups = jaxnas.analyze(module, variables, inputs)
    net = jaxnas.supernet(groups, choices, form="switch")
    return net, variables, inputs


def test_a_supernet_is_its_extracted_networks(case):
    net, variables, inputs = case
    traces = []

    def loss(variables, arch, net):
        traces.append(net)
        outputs, updates = net.apply(variables, inputs, arch, train=True, mutable=True, rngs=KEY)
        return jnp.mean(outputs**2), (outputs, updates)

    run = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=2)
    recorded = network.annotated(net, inputs)
    for seed in range(8):
        arch = net.space.sample(jax.random.key(seed))
        (_, (outputs, updates)), gradients = run(variables, arch, net)
        small = net.clone(space=net.space.fix(arch))
        part = unflatten(testing.cut(flatten(variables), recorded, arch))
        if seed < 3:
            (_, (expected, kept)), own = jax.value_and_grad(loss, has_aux=True)(part, None, small)
            np.testing.assert_allclose(outputs, expected, atol=1e-5)
            cut = testing.cut(flatten(gradients), recorded, arch)
            for path, value in flatten(own).items():
                np.testing.assert_allclose(cut[path], value, atol=1e-5, err_msg=str(path))
            new = testing.cut(flatten({**variables, **updates}), recorded, arch)
            for path, value in flatten(kept).items():
                np.testing.assert_allclose(new[path], value, atol=1e-5)
    assert traces.count(net) == 1


def test_costs_are_exact(case):
    net, _, inputs = case
    testing.check_network(net, inputs)


def test_extraction_spares_the_other_branches(case):
    net, variables, inputs = case
    names = {"mlp": "op", "cnn": "conv"}[type(net.groups.model.load({})).__name__.lower()]
    batches = jnp.stack([inputs, 2 * inputs]) if "batch_stats" in variables else None
    for arch in (net.space.smallest(), net.space.sample(jax.random.key(5))):
        small, part, error = jaxnas.extract(net, variables, arch, verify=inputs, batches=batches)
        assert error <= 1e-5
        assert sum(x.size for x in jax.tree.leaves(part["params"])) == int(
            jaxnas.cost(net, inputs)(arch)["params"]
        )
        traced = jax.make_jaxpr(lambda v, small=small: small.apply(v, inputs))(part)
        assert "cond" not in str(traced) and len(small.space.choices[names].options) == 1


def test_hard_soft_and_batched_decisions_agree(case):
    """One-hot weights are hard decisions, in both forms; between them outputs are mixed."""
    net, variables, inputs = case
    archs = net.space.sample(KEY, 3)
    many = jax.jit(jax.vmap(net.apply, (None, None, 0)))(variables, inputs, archs)
    masked = jax.jit(dataclasses.replace(net, form="masked").apply)
    for i in range(3):
        arch = jax.tree.map(lambda x, i=i: x[i], archs)
        np.testing.assert_allclose(masked(variables, inputs, arch), many[i], atol=1e-5)
        np.testing.assert_allclose(masked(variables, inputs, net.space.soften(arch)), many[i], atol=1e-5)
    logits = net.space.logits()

    def loss(logits):
        weights = jax.tree.map(jax.nn.softmax, logits)
        return jnp.sum(masked(variables, inputs, weights) ** 2)

    assert all(np.any(np.asarray(x)) for x in jax.tree.leaves(jax.grad(loss)(logits)))


def test_a_narrower_space_numbers_options_anew():
    module, inputs, choices = CASES["mlp"]
    variables = jaxnas.init(module, KEY, inputs)
    groups = jaxnas.analyze(module, variables, inputs)
    net = jaxnas.supernet(groups, choices, form="masked", verify=False)
    narrow = net.clone(space=net.space.restrict(op=("wide", "skip")))
    values = net.space.to_dict(net.space.largest()) | {"op": ["skip", "wide"]}
    one, other = (x.space.from_dict(values) for x in (net, narrow))
    assert one["op"].tolist() != other["op"].tolist()
    expected = net.apply(variables, inputs, one)
    np.testing.assert_allclose(narrow.apply(variables, inputs, other), expected, atol=1e-6)
    np.testing.assert_allclose(
        narrow.apply(variables, inputs, narrow.space.soften(other)), expected, atol=1e-6
    )
    costs = (jaxnas.cost(x, inputs)(arch) for x, arch in ((net, one), (narrow, other)))
    assert len({tuple(sorted((name, int(x)) for name, x in cost.items())) for cost in costs}) == 1


class Both(nn.Module):
    """A branch that two decisions choose together, which no table of one is of."""

    space: Space

    @nn.compact
    def __call__(self, x, arch=None, *, train=False):
        x, back = nn.Dense(4, name="up")(x), nn.Dense(4, name="back")
        back(x)
        return jax.lax.cond((arch["a"] == 1) & (arch["b"] == 1), jnp.sin, jnp.cos, x).sum(-1)


def test_mistakes_are_refused():
    module, inputs, choices = CASES["cnn"]
    groups = jaxnas.analyze(module, jaxnas.init(module, KEY, inputs), inputs)
    both = Both(Space(a=Choice(0, 1), b=Choice(0, 1)))
    arch = both.space.smallest()
    rows = jnp.ones((2, 3))
    joint = jaxnas.analyze(both, both.init(KEY, rows, arch), rows)
    refusals.check(
        (
            lambda: jaxnas.supernet(groups, {"last/hidden": Choice(2, 6)}, decisions={"conv": Choice(1, 2)}),
            ValueError,
            "conv",
            "Cnn",
        ),
        (
            lambda: network.annotated(
                jaxnas.supernet(joint, {"up/hidden": Choice(2, 4)}, form="masked"), rows
            ),
            ValueError,
            "branch",
        ),
    )


@pytest.fixture(scope="module")
def mixed():
    module, inputs, choices = CASES["mlp"]
    variables = jaxnas.init(module, KEY, inputs)
    return (
        jaxnas.supernet(jaxnas.analyze(module, variables, inputs), choices, verify=False),
        variables,
        inputs,
    )


@pytest.mark.parametrize("by", ["activations", "weights", "contributions", "taylor"])
def test_groups_within_branches_are_ordered(mixed, by):
    net, variables, inputs = mixed
    more = {"loss": lambda outputs, _: jnp.sum(outputs**2)} if by == "taylor" else {}
    ordered = jaxnas.order(net, variables, [(inputs, None)] if by == "taylor" else [inputs], by=by, **more)
    run = jax.jit(net.apply)
    largest = net.space.to_dict(net.space.largest())
    for op in (["narrow", "wide"], ["wide", "narrow"], ["skip", "skip"]):
        arch = net.space.from_dict(largest | {"op": op})
        np.testing.assert_allclose(run(ordered, inputs, arch), run(variables, inputs, arch), atol=1e-5)
    kernels = [v["params"]["Hidden_1"]["down"]["kernel"] for v in (variables, ordered)]
    read = [np.abs(x).sum(1) for x in kernels]
    assert not np.array_equal(*read)
    if by == "weights":
        np.testing.assert_allclose(read[1], np.sort(read[0])[::-1], rtol=1e-6)


def test_modules_around_and_within_branches_have_a_rank(mixed):
    net, variables, inputs = mixed
    quiet = jax.tree.map(lambda x: x, variables)
    for name in ("Hidden_2", "Hidden_3"):
        quiet["params"][name]["down"] = jax.tree.map(lambda x: x / 1e3, variables["params"][name]["down"])
    assert jaxnas.rank_modules(net, quiet, [inputs], "op_*") == ("op_0", "op_1")


def test_the_modules_own_class_is_rebuilt(mixed):
    net, variables, inputs = mixed
    module = net.groups.model.load(variables)

    def rebuild(sizes):
        space = module.space.fix(module.space.from_dict({"op": sizes["op"]}))
        hidden = tuple(sizes[f"Hidden_{i}/hidden"] for i in range(4))
        return module.clone(space=space, width=sizes["width"], hidden=hidden, last=sizes["last/hidden"])

    sizes = {"width": 4, "Hidden_[02]/hidden": [3, 6], "Hidden_[13]/hidden": [12, 5], "last/hidden": 10}
    arch = net.space.from_dict(sizes | {"op": ["narrow", "wide"]})
    own = jaxnas.extract(net, variables, arch, verify=inputs, rebuild=rebuild)
    assert (type(own.net), own.net.width, own.net.hidden[0], own.net.hidden[3]) == (Mlp, 4, 3, 5)
    expected = net.apply(variables, inputs, arch)
    np.testing.assert_allclose(own.net.apply(own.variables, inputs), expected, atol=1e-5)


def test_places_are_recorded_in_the_order_of_calls():
    """Also of blocks that Linen stores outside of the mixture that calls them."""
    module, inputs, choices = CASES["mlp"]
    groups = jaxnas.analyze(module, jaxnas.init(module, KEY, inputs), inputs)
    places = jaxnas.supernet(groups, choices, form="masked", verify=False).described()["places"]
    assert list(places) == ["width", *(f"Hidden_{i}/hidden" for i in range(4)), "last/hidden"]


def test_sizes_may_follow_the_modules_own_decisions():
    module, inputs, _ = CASES["cnn"]
    groups = jaxnas.analyze(module, jaxnas.init(module, KEY, inputs), inputs)
    net = jaxnas.supernet(groups, {"last/hidden": Size(lambda conv: {"3": 6, "1": 2}[conv])}, form="masked")
    assert list(net.space) == ["conv"]
    testing.check_network(net, inputs)

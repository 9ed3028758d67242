"""Modules with a space of their own, as of a `Mixture`, whose widths become elastic: one program for both."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import promises
import pytest
import refusals
from user_networks import Identity

import jaxnas
from jaxnas import Choice, Size, Space, elastic, network, testing

KEY = jax.random.key(0)
OPS = Choice("narrow", "wide", "skip")


class Hidden(nn.Module):
    size: int

    @nn.compact
    def __call__(self, x, train=False):
        y = nn.relu(nn.Dense(self.size, name="up")(nn.LayerNorm()(x)))
        y = nn.Dropout(0.5, deterministic=not train)(y)
        return x + nn.Dense(x.shape[-1], name="down")(y)


class Mlp(nn.Module):
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
    space: Space

    @nn.compact
    def __call__(self, x, arch=None, *, train=False):
        decisions = elastic.Decisions(self.space, arch)
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Conv(8, (3, 3), name="stem")(x)))
        blocks = {"3": nn.Conv(8, (3, 3)), "1": nn.Conv(8, (1, 1))}
        x = nn.relu(elastic.Mixture(blocks, name="conv")(decisions["conv"], x))
        return nn.Dense(3, name="head")(nn.Dense(6, name="last")(x).mean((1, 2)))


OF_MLP = {"width": Choice(4, 8), "Hidden_[02]/hidden": Choice(3, 6), "Hidden_[13]/hidden": Choice(5, 12)}
OF_MLP |= {"last/hidden": Choice(4, 10)}
OF_CNN = {"stem/channels": Choice(4, 8), "last/hidden": Choice(2, 6)}
CASES = {
    "mlp": (Mlp(Space(op=OPS.repeat(2))), jax.random.normal(KEY, (4, 5)), OF_MLP),
    "cnn": (Cnn(Space(conv=Choice("3", "1"))), jax.random.normal(KEY, (2, 6, 6, 2)), OF_CNN),
}


@functools.cache
def analyzed(name):
    module, inputs, _ = CASES[name]
    return jaxnas.analyze(module, jaxnas.init(module, KEY, inputs), inputs)


@functools.cache
def made(name, form):
    net = jaxnas.supernet(analyzed(name), CASES[name][2], form=form, verify=False)
    return net, analyzed(name).model.variables, CASES[name][1]


@pytest.mark.parametrize("name", CASES)
def test_a_supernet_is_its_extracted_networks(name):
    """P1, P2, P3, P5 and P7, as the functions say; and all decisions have gradients."""
    net, variables, inputs = made(name, "switch")
    promises.check_transformed(net, variables, inputs)
    promises.check_forms(net, variables, inputs)

    def loss(logits):
        return jnp.sum(net.apply(variables, inputs, jax.tree.map(jax.nn.softmax, logits)) ** 2)

    assert all(np.any(x) for x in jax.tree.leaves(jax.jit(jax.grad(loss))(net.space.logits())))


@pytest.mark.parametrize("name, decision", [("mlp", "op"), ("cnn", "conv")])
def test_extraction_spares_the_other_branches(name, decision):
    net, variables, inputs = made(name, "switch")
    batches = jnp.stack([inputs, 2 * inputs]) if "batch_stats" in variables else None
    arch = net.space.sample(jax.random.key(5))
    small, part, error = jaxnas.extract(net, variables, arch, verify=inputs, batches=batches)
    assert error <= 1e-5
    assert jaxnas.cost(net, inputs)(arch)["params"] == sum(x.size for x in jax.tree.leaves(part["params"]))
    traced = jax.make_jaxpr(lambda v: small.apply(v, inputs))(part)
    assert "cond" not in str(traced) and len(small.space.choices[decision].options) == 1


def test_a_narrower_space_numbers_options_anew():
    net, variables, inputs = made("mlp", "masked")
    narrow = net.clone(space=net.space.restrict(op=("wide", "skip")))
    values = net.space.to_dict(net.space.largest()) | {"op": ["skip", "wide"]}
    one, other = (x.space.from_dict(values) for x in (net, narrow))
    assert one["op"].tolist() != other["op"].tolist()
    expected = net.apply(variables, inputs, one)
    for arch in (other, narrow.space.soften(other)):
        np.testing.assert_allclose(narrow.apply(variables, inputs, arch), expected, atol=1e-6)
    assert jaxnas.cost(net, inputs)(one) == jaxnas.cost(narrow, inputs)(other)


class Both(nn.Module):
    """A branch that two decisions choose together, which no table of one is of."""

    space: Space

    @nn.compact
    def __call__(self, x, arch=None, *, train=False):
        x, back = nn.Dense(4, name="up")(x), nn.Dense(4, name="back")
        back(x)
        return jax.lax.cond((arch["a"] == 1) & (arch["b"] == 1), jnp.sin, jnp.cos, x).sum(-1)


def test_mistakes_are_refused():
    both, rows = Both(Space(a=Choice(0, 1), b=Choice(0, 1))), jnp.ones((2, 3))
    joint = jaxnas.analyze(both, both.init(KEY, rows, both.space.smallest()), rows)
    decisions = {"conv": Choice(1, 2)}

    def annotated():
        return network.annotated(jaxnas.supernet(joint, {"up/hidden": Choice(2, 4)}, form="masked"), rows)

    def twice():
        return jaxnas.supernet(analyzed("cnn"), {"last/hidden": Choice(2, 6)}, decisions=decisions)

    refusals.check((twice, ValueError, "conv", "Cnn"), (annotated, ValueError, "branch"))


def test_groups_within_branches_are_ordered_and_modules_have_a_rank():
    net, variables, inputs = made("mlp", "masked")
    largest, before = net.space.to_dict(net.space.largest()), variables["params"]
    pairs = ["narrow", "wide"], ["wide", "narrow"], ["skip", "skip"]
    archs = [net.space.from_dict(largest | {"op": op}) for op in pairs]
    run = jax.jit(lambda variables: [net.apply(variables, inputs, arch) for arch in archs])
    read = np.abs(before["Hidden_1"]["down"]["kernel"]).sum(1)
    of_loss = {"batches": [(inputs, None)], "loss": lambda outputs, _: jnp.sum(outputs**2)}
    for by in ("activations", "weights", "contributions", "taylor"):
        given = of_loss if by == "taylor" else {"batches": [inputs]}
        ordered = jaxnas.order(net, variables, by=by, **given)
        for found, expected in zip(run(ordered), run(variables), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-5)
        after = np.abs(ordered["params"]["Hidden_1"]["down"]["kernel"]).sum(1)
        assert not np.array_equal(after, read)
        if by == "weights":
            np.testing.assert_allclose(after, np.sort(read)[::-1], rtol=1e-6)
    down = {name: jax.tree.map(lambda x: x / 1e3, before[name]["down"]) for name in ("Hidden_2", "Hidden_3")}
    quiet = {name: before[name] | {"down": tree} for name, tree in down.items()}
    assert jaxnas.rank_modules(net, {"params": before | quiet}, [inputs], "op_*") == ("op_0", "op_1")


def test_the_modules_own_class_is_rebuilt():
    net, variables, inputs = made("mlp", "masked")
    module = net.groups.model.load(variables)

    def rebuild(sizes):
        space = module.space.fix(module.space.from_dict({"op": sizes["op"]}))
        hidden = tuple(sizes[f"Hidden_{i}/hidden"] for i in range(4))
        return module.clone(space=space, width=sizes["width"], hidden=hidden, last=sizes["last/hidden"])

    sizes = {"width": 4, "Hidden_[02]/hidden": [3, 6], "Hidden_[13]/hidden": [12, 5], "last/hidden": 10}
    arch = net.space.from_dict(sizes | {"op": ["narrow", "wide"]})
    own = jaxnas.extract(net, variables, arch, verify=inputs, rebuild=rebuild)
    assert (type(own.net), own.net.width, own.net.hidden[0], own.net.hidden[3]) == (Mlp, 4, 3, 5)
    assert own.error <= 1e-5


def test_places_are_in_the_order_of_calls_and_sizes_may_follow_the_modules_own_decisions():
    """Also places of blocks that Linen stores outside of the mixture that calls them."""
    places = made("mlp", "masked")[0].described()["places"]
    assert list(places) == ["width", *(f"Hidden_{i}/hidden" for i in range(4)), "last/hidden"]
    sizes = {"last/hidden": Size(lambda conv: {"3": 6, "1": 2}[conv])}
    net = jaxnas.supernet(analyzed("cnn"), sizes, form="masked")
    assert list(net.space) == ["conv"]
    testing.check_network(net, CASES["cnn"][1])

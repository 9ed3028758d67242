"""An ordered network is the same function, its prefixes are the best parts, and modules have a rank."""

import itertools
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import promises
import pytest
import refusals
from jax import lax

from jaxnas import Choice, Depth, analyze, order, rank_modules, supernet

IMAGES = jax.random.normal(jax.random.key(0), (8, 6, 6, 2))
LABELS = jnp.arange(8) % 3


class _Convolutional(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Conv(6, (3, 3))(x)))
        x = nn.max_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)
        x = nn.relu(nn.Dense(8)(x))
        return nn.Dense(3)(x)


class _Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        tokens = nn.Dense(9, name="over_tokens")(nn.LayerNorm()(x).swapaxes(1, 2)).swapaxes(1, 2)
        x = x + nn.MultiHeadDotProductAttention(2, name="attention")(tokens)
        return x + nn.Dense(8, name="down")(nn.gelu(nn.Dense(12, name="up")(nn.LayerNorm()(x))))


class _Mixer(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(8, (2, 2), strides=(2, 2), name="patches")(x).reshape(len(x), 9, 8)
        for i in range(2):
            x = _Block(name=f"blocks_{i}")(x)
        return nn.Dense(3, name="head")(nn.LayerNorm()(x).mean(1))


def _loss(outputs, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(outputs), labels[:, None], 1).mean()


def test_turns_of_a_scan_have_an_order_each():
    """The best positions of each turn are first, the network is the same, and its layers have a rank."""

    def scanned(variables, inputs):
        def layer(x, row):
            with jax.named_scope("layer"):
                return x + jax.checkpoint(jnp.tanh)(x @ row["in"]) @ row["out"], None

        return lax.scan(layer, inputs, variables)[0]

    keys = jax.random.split(jax.random.key(0), 3)
    important = np.array([[1, 1e-3, 1e-3, 1, 1e-3, 1]] * 3, np.float32)
    variables = {
        "in": jax.random.normal(keys[0], (3, 5, 6)) * important[:, None],
        "out": jax.random.normal(keys[1], (3, 6, 5)) / 3 * important[:, :, None],
    }
    inputs = jax.random.normal(keys[2], (4, 5))
    groups = analyze(scanned, variables, inputs)
    (hidden,) = (group.name for group in groups)
    by_turn = supernet(groups, {hidden: Choice(3, 6).repeat(3)}, verify=False)
    shared = supernet(groups, {hidden: Choice(3, 6)}, verify=False)
    before = groups.model.variables
    scores = "activations", "weights", "contributions", lambda group, v: jnp.abs(v["params"]["out"]).sum(2)
    for by in scores:
        for net in (by_turn, shared) if isinstance(by, str) else (by_turn,):
            after = order(net, before, [inputs], by=by)["params"]
            np.testing.assert_allclose(scanned(after, inputs), scanned(variables, inputs), rtol=1e-5)
            assert jnp.abs(after["in"][..., 3:]).max() < 0.1 < jnp.abs(after["in"][..., :3]).max()
    read = np.abs(np.asarray(order(by_turn, before, [inputs], by=scores[-1])["params"]["out"])).sum(2)
    assert (np.diff(read) <= 0).all()
    alike = order(shared, before, [inputs], by="weights")["params"]
    ranks = [np.argsort(np.asarray(v["out"][..., 0]), axis=1) for v in (variables, alike)]
    orders = [old[np.argsort(new)] for old, new in zip(*ranks, strict=True)]
    assert len(set(map(tuple, orders))) == 1 and sorted(orders[0]) != list(orders[0])
    ranked = rank_modules(groups, before, [inputs], "layer")
    assert sorted(ranked) == ["layer[0]", "layer[1]", "layer[2]"]
    assert supernet(groups, {"layer": Depth(1, 3, order=ranked)}, verify=False).sizes()["layer"] == (1, 1, 1)


def _halves(groups):
    choices = {g.name: Choice(g.size // 2, g.size) for g in groups if g.kind != "kernel"}
    return supernet(groups, choices, verify=False)


def _made(model):
    rng = np.random.default_rng(0)
    variables = jax.jit(model.init)(jax.random.key(1), IMAGES)
    variables = jax.tree.map(lambda x: np.array(x + 0.1 * rng.random(x.shape, np.float32)), variables)
    return analyze(model, variables, IMAGES), variables


def _scaled(tree, path, index, by=1e-3):
    found = tree
    for name in path[:-1]:
        found = found[name]
    found[path[-1]][index] *= by


def _random(group, variables):
    return np.random.default_rng(group.size).random(group.size)


@pytest.fixture(scope="module")
def convolutional():
    """The first half of the channels, and of what is hidden, does almost nothing."""
    groups, variables = _made(_Convolutional())
    for name in ("scale", "bias"):
        _scaled(variables, ("params", "BatchNorm_0", name), np.s_[:3])
    _scaled(variables, ("params", "Dense_0", "kernel"), np.s_[np.arange(54) % 6 < 3])
    for path, index in ((("Dense_0", "kernel"), np.s_[:, :4]), (("Dense_0", "bias"), np.s_[:4])):
        _scaled(variables, ("params", *path), index)
    _scaled(variables, ("params", "Dense_1", "kernel"), np.s_[:4])
    return _halves(groups), variables


@pytest.fixture(scope="module")
def mixer():
    """The first block does almost nothing."""
    groups, variables = _made(_Mixer())
    for path, name in itertools.product((("attention", "out"), ("down",)), ("kernel", "bias")):
        _scaled(variables, ("params", "blocks_0", *path, name), np.s_[:])
    return _halves(groups), variables


@pytest.mark.parametrize("by", ["activations", "weights", "contributions", "taylor", _random])
def test_an_ordered_network_is_the_same_and_its_prefixes_are_its_best_parts(by, convolutional, mixer):
    given = {"by": by, "batches": [IMAGES]}
    given |= {"batches": [(IMAGES, LABELS)], "loss": _loss} if by == "taylor" else {}
    for net, variables in (convolutional, mixer) if by in ("activations", "taylor") else (convolutional,):
        ordered = order(net, variables, **given)
        assert jax.tree.structure(ordered) == jax.tree.structure(variables)
        moved = jax.tree.map(lambda x, y: not np.array_equal(x, y), variables, ordered)
        assert np.mean(jax.tree.leaves(moved)) > 0.8
        call = jax.jit(lambda v, arch, net=net: net.apply(v, IMAGES, arch))
        largest, smallest = net.space.largest(), net.space.smallest()
        whole = call(variables, largest)
        promises.close(call(ordered, largest), whole)
        if net is convolutional[0] and by is not _random:
            less = [np.abs(call(v, smallest) - whole) for v in (variables, ordered)]
            error = [x.max() / jnp.abs(whole).max() for x in less]
            assert error[1] < 1e-2 < 0.3 < error[0]
            # Batch statistics go with their channels.
            stored = [np.sort(v["batch_stats"]["BatchNorm_0"]["mean"][:3]) for v in (variables, ordered)]
            assert not np.array_equal(*stored)


def test_the_rank_of_modules_finds_the_one_that_changes_least(mixer):
    halves, variables = mixer
    groups = halves.groups
    # A batch of another size is one more program.
    ranked = rank_modules(groups, variables, [IMAGES, IMAGES[:4]], "blocks_*")
    assert ranked == ("blocks_1", "blocks_0")
    assert rank_modules(halves, variables, [IMAGES], ranked) == ranked
    net = supernet(groups, {"blocks_*": Depth(1, 2, order=ranked)}, verify=False)
    run = jax.jit(lambda arch: net.apply(variables, IMAGES, arch))
    whole, less = run(net.space.largest()), run(net.space.smallest())
    assert jnp.abs(whole - less).max() < 0.02 * jnp.abs(whole).max()


def _positional(variables, x):
    """Hidden positions that are enumerated, accumulated, sorted and asked for, and some that are not."""
    angles, counted, added, sorted_, asked, free, equal = (x @ w for w in variables["first"])
    asked = asked + jnp.argmax(asked, -1, keepdims=True).astype(x.dtype)
    parts = [angles * np.linspace(0.1, 1, 6, dtype=np.float32), counted * jnp.arange(6, dtype=x.dtype)]
    parts += [jnp.cumsum(added, -1), jnp.sort(sorted_, -1), asked]
    parts += [jnp.tanh(free), equal * np.full(6, 2, np.float32)]
    return sum(part @ w for part, w in zip(parts, variables["second"], strict=True))


def test_groups_in_which_positions_matter_stay_as_they_are():
    keys = jax.random.split(jax.random.key(0), 14)
    first = [jax.random.normal(key, (3, 6)) for key in keys[:7]]
    variables = {"first": first, "second": [jax.random.normal(key, (6, 2)) for key in keys[7:]]}
    x = jax.random.normal(jax.random.key(3), (4, 3))
    with jax.numpy_rank_promotion("allow"):
        net = _halves(analyze(_positional, variables, x))
        assert len(net.places) == 7
        ordered = order(net, {"params": variables}, by="weights")["params"]
    same = list(map(np.array_equal, first, ordered["first"]))
    assert same == [True] * 5 + [False] * 2


def test_what_cannot_be_ordered_is_refused(convolutional, mixer):
    net, variables = convolutional
    halves, stored = mixer

    def case(*names, **change):
        given = {"variables": variables, "batches": [IMAGES], **change}
        return lambda: order(net, **given), ValueError, *names

    def rank(*names, batches=(IMAGES,), modules="blocks_*"):
        return lambda: rank_modules(halves, stored, batches, modules), ValueError, *names

    refusals.check(
        case("activations", "data", "inputs", batches=None),
        case("data", "(inputs, targets)", by="taylor", loss=_loss, batches=[]),
        case("'taylor'", "loss", by="taylor"),
        case("loss", "activations", loss=_loss),
        case("(inputs, targets)", by="taylor", loss=_loss),
        case("'norms'", "activations, weights, contributions", by="norms"),
        case("inputs", "float32", batches=[(IMAGES, LABELS)]),
        case("float32[6, 6, 2]", batches=[IMAGES[0]]),
        case("(2,)", by=lambda group, variables: np.ones(2)),
        case("finite", by=lambda group, variables: np.full(group.size, np.nan)),
        case("float32", variables={"params": {}}),
        rank("blocks_9", modules="blocks_9"),
        rank("head", modules="head"),
        rank("data", batches=()),
    )


def test_another_function_is_refused_by_the_name_of_its_group(convolutional, monkeypatch):
    net, variables = convolutional
    monkeypatch.setattr(sys.modules[order.__module__], "_bound", lambda groups: set())
    kernels = {g.name: Choice(1, 3) for g in net.groups if g.kind == "kernel"}
    (name,) = kernels
    with pytest.raises(ValueError, match=f"another function .*{name} alone differs"):
        net = supernet(net.groups, kernels, verify=False)
        order(net, variables, by=lambda group, variables: np.arange(group.size))

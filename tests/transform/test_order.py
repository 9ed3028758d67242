"""An ordered network is the same function, its prefixes are the best parts, and modules have a rank."""

import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxnas import Choice
from jaxnas.transform import Depth, analyze, order, rank_modules, supernet

IMAGES = jax.random.normal(jax.random.key(0), (8, 6, 6, 2))
LABELS = jnp.arange(8) % 3


class _Convolutional(nn.Module):
    """The rows of the first dense kernel are positions x channels."""

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
    """The best positions of each turn are first, and the network is the same."""

    def scanned(variables, inputs):
        def layer(x, row):
            with jax.named_scope("layer"):
                return x + jnp.tanh(x @ row["in"]) @ row["out"], None

        return lax.scan(layer, inputs, variables)[0]

    keys = jax.random.split(jax.random.key(0), 3)
    variables = {"in": jax.random.normal(keys[0], (3, 5, 6)), "out": jax.random.normal(keys[1], (3, 6, 5))}
    inputs = jax.random.normal(keys[2], (4, 5))
    groups = analyze(scanned, variables, inputs)
    (hidden,) = (group.name for group in groups)
    net = supernet(groups, {hidden: Choice(3, 6).repeat(3)}, verify=False)
    before = groups.model.variables
    for by in (
        "activations",
        "weights",
        "contributions",
        lambda group, v: jnp.abs(v["params"]["out"]).sum(2),
    ):
        after = order(net, before, [inputs], by=by)
        np.testing.assert_allclose(scanned(after["params"], inputs), scanned(variables, inputs), rtol=1e-5)
    read = np.abs(np.asarray(after["params"]["out"])).sum(2)
    assert (np.diff(read) <= 0).all()
    alike = supernet(groups, {hidden: Choice(3, 6)}, verify=False)
    shared = order(alike, before, [inputs], by="weights")
    ranks = [np.argsort(np.asarray(v["out"][..., 0]), axis=1) for v in (variables, shared["params"])]
    orders = [before[np.argsort(after)] for before, after in zip(*ranks, strict=True)]
    assert len(set(map(tuple, orders))) == 1 and sorted(orders[0]) != list(orders[0])
    ranked = rank_modules(groups, before, [inputs], "layer")
    assert sorted(ranked) == ["layer[0]", "layer[1]", "layer[2]"]
    assert supernet(groups, {"layer": Depth(1, 3, order=ranked)}, verify=False).sizes()["layer"] == (1, 1, 1)


def _halves(groups):
    """Each group as it is or at half its size."""
    choices = {g.name: Choice(g.size // 2, g.size) for g in groups if g.kind != "kernel"}
    return supernet(groups, choices, verify=False)


def _made(model):
    """The groups of a module, and variables that have no equal entries."""
    rng = np.random.default_rng(0)
    variables = jax.jit(model.init)(jax.random.key(1), IMAGES)
    variables = jax.tree.map(lambda x: np.array(x + 0.1 * rng.random(x.shape, np.float32)), variables)
    return analyze(model, variables, IMAGES), variables


def _scaled(tree, path, index, by=1e-3):
    """Variables with some entries of one array scaled."""
    found = tree
    for name in path[:-1]:
        found = found[name]
    found[path[-1]][index] *= by


def _by(by):
    return {"by": by, "batches": [IMAGES]} | (
        {"batches": [(IMAGES, LABELS)], "loss": _loss} if by == "taylor" else {}
    )


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
    for path in (("attention", "out"), ("down",)):
        for name in ("kernel", "bias"):
            _scaled(variables, ("params", "blocks_0", *path, name), np.s_[:])
    return groups, variables


@pytest.mark.parametrize("by", ["activations", "weights", "contributions", "taylor", _random])
def test_the_full_network_stays_the_same_function(by, convolutional, mixer):
    more = [(_halves(mixer[0]), mixer[1])] if by in ("activations", "taylor") else []
    for net, variables in [convolutional, *more]:
        ordered = order(net, variables, **_by(by))
        assert jax.tree.structure(ordered) == jax.tree.structure(variables)
        call = jax.jit(lambda v, net=net: net.apply(v, IMAGES, net.space.largest()))
        np.testing.assert_allclose(call(ordered), call(variables), atol=1e-5 * jnp.abs(call(variables)).max())
        moved = jax.tree.map(lambda x, y: not np.array_equal(x, y), variables, ordered)
        assert np.mean(jax.tree.leaves(moved)) > 0.8


@pytest.mark.parametrize("by", ["activations", "weights", "contributions", "taylor"])
def test_prefixes_of_an_ordered_network_are_its_best_parts(by, convolutional):
    net, variables = convolutional
    ordered = order(net, variables, **_by(by))
    call = jax.jit(lambda v, arch: net.apply(v, IMAGES, arch))
    whole, smallest = call(variables, net.space.largest()), net.space.smallest()
    error = [jnp.abs(call(v, smallest) - whole).max() / jnp.abs(whole).max() for v in (variables, ordered)]
    assert error[1] < 1e-2 < 0.3 < error[0]
    # Batch statistics go with their channels.
    stored = [np.sort(v["batch_stats"]["BatchNorm_0"]["mean"][:3]) for v in (variables, ordered)]
    assert not np.array_equal(*stored)


def test_the_rank_of_modules_finds_the_one_that_changes_least(mixer):
    groups, variables = mixer
    # A batch of another size is one more program.
    ranked = rank_modules(groups, variables, [IMAGES, IMAGES[:4]], "blocks_*")
    assert ranked == ("blocks_1", "blocks_0")
    assert rank_modules(_halves(groups), variables, [IMAGES], ranked) == ranked
    net = supernet(groups, {"blocks_*": Depth(1, 2, order=ranked)}, verify=False)
    whole = net.apply(variables, IMAGES, net.space.largest())
    less = net.apply(variables, IMAGES, net.space.smallest())
    assert jnp.abs(whole - less).max() < 0.02 * jnp.abs(whole).max()


def _positional(variables, x):
    """Hidden positions that are enumerated, accumulated, sorted and asked for, and some that are not."""
    angles, counted, added, sorted_, asked, free, equal = (x @ w for w in variables["first"])
    asked = asked + jnp.argmax(asked, -1, keepdims=True).astype(x.dtype)
    parts = [
        angles * np.linspace(0.1, 1, 6, dtype=np.float32),
        counted * jnp.arange(6, dtype=x.dtype),
        jnp.cumsum(added, -1),
        jnp.sort(sorted_, -1),
        asked,
        jnp.tanh(free),
        equal * np.full(6, 2, np.float32),
    ]
    return sum(part @ w for part, w in zip(parts, variables["second"], strict=True))


def test_groups_in_which_positions_matter_stay_as_they_are():
    keys = jax.random.split(jax.random.key(0), 14)
    variables = {
        "first": [jax.random.normal(key, (3, 6)) for key in keys[:7]],
        "second": [jax.random.normal(key, (6, 2)) for key in keys[7:]],
    }
    x = jax.random.normal(jax.random.key(3), (4, 3))
    with jax.numpy_rank_promotion("allow"):
        net = _halves(analyze(_positional, variables, x))
        assert len(net.places) == 7
        ordered = order(net, {"params": variables}, by="weights")["params"]
    same = [np.array_equal(a, b) for a, b in zip(variables["first"], ordered["first"], strict=True)]
    assert same == [True] * 5 + [False] * 2


def test_scanned_layers_are_read_in_each_turn():
    keys = jax.random.split(jax.random.key(0), 2)
    kernels = [jax.random.normal(keys[0], (3, 4, 6)), jax.random.normal(keys[1], (3, 6, 4)) / 3]
    unimportant = np.array([1, 1e-3, 1e-3, 1, 1e-3, 1], np.float32)
    variables = {"up": kernels[0] * unimportant[None, None], "down": kernels[1] * unimportant[None, :, None]}

    def call(variables, x):
        def layer(x, w):
            return x + jax.checkpoint(jnp.tanh)(x @ w["up"]) @ w["down"], None

        return lax.scan(layer, x, variables)[0]

    x = jax.random.normal(jax.random.key(3), (4, 4))
    net = _halves(analyze(call, variables, x))
    for by in ("activations", "weights", "contributions"):
        ordered = order(net, {"params": variables}, [x], by=by)["params"]
        assert jnp.abs(ordered["up"][..., 3:]).max() < 0.1 < jnp.abs(ordered["up"][..., :3]).max()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batches": None}, "An order by activations needs data: batches of inputs"),
        ({"batches": [], "by": "taylor", "loss": _loss}, r"needs data: batches of \(inputs, targets\)"),
        ({"by": "taylor"}, "by='taylor' needs loss="),
        ({"loss": _loss}, "no other score does"),
        ({"by": "taylor", "loss": _loss}, r"takes batches of \(inputs, targets\)"),
        ({"by": "norms"}, "by='norms' is no score: expected one of activations, weights, contributions"),
        ({"batches": [(IMAGES, LABELS)]}, "A batch has the inputs .*was analyzed with float32"),
        ({"batches": [IMAGES[0]]}, r"A batch has the inputs float32\[6, 6, 2\]"),
        ({"by": lambda group, variables: np.ones(2)}, r"have the shape \(2,\): expected"),
        ({"by": lambda group, variables: np.full(group.size, np.nan)}, "not finite"),
        ({"variables": {"params": {}}}, "is expected whole, as float32"),
    ],
)
def test_what_cannot_be_ordered_is_refused(change, message, convolutional):
    net, variables = convolutional
    with pytest.raises(ValueError, match=message):
        order(net, **{"variables": variables, "batches": [IMAGES], **change})


def test_another_function_is_refused_by_the_name_of_its_group(convolutional, monkeypatch):
    net, variables = convolutional
    monkeypatch.setattr(sys.modules[order.__module__], "_bound", lambda groups: set())
    kernels = {g.name: Choice(1, 3) for g in net.groups if g.kind == "kernel"}
    (name,) = kernels
    with pytest.raises(ValueError, match=f"another function .*{name} alone differs"):
        net = supernet(net.groups, kernels, verify=False)
        order(net, variables, by=lambda group, variables: np.arange(group.size))


def test_modules_without_a_stream_have_no_rank(mixer):
    groups, variables = mixer
    for modules, message in (("blocks_9", "matches no module"), ("head", "head cannot be skipped")):
        with pytest.raises(ValueError, match=message):
            rank_modules(groups, variables, [IMAGES], modules)
    with pytest.raises(ValueError, match="needs data"):
        rank_modules(groups, variables, [], "blocks_*")

"""Networks that know nothing of jaxnas as supernets: extraction, gradients, costs, files, mistakes."""

import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import promises
import pytest
import refusals
import tiers
from plain_networks import Attending, Convolutional, Language, Unusual, by_turn, every, pictures, weights

import jaxnas
from jaxnas import Choice, Depth, Size, Skip, testing
from jaxnas.tensors import flatten

KEY = jax.random.key(0)
IMAGES = jax.random.normal(KEY, (2, 8, 8, 2))
TOKENS = jax.random.randint(KEY, (2, 6), 0, 11)
ROWS = jax.random.normal(KEY, (3, 5))
SHAPES = {"in": (8, 3, 12), "out": (8, 3, 12), "gate": (12, 3)}
LAYERS = {name: jax.random.normal(KEY, shape) for name, shape in SHAPES.items()}
STACKS = {"first": jax.random.normal(KEY, (5, 8)), "layers": LAYERS}
TAPS = {"taps": jax.random.normal(KEY, (3, 5, 5, 2, 2)), "out": jax.random.normal(KEY, (2, 3))}
HIDDEN = {"layers/hidden": Choice(4, 8).repeat(3)}
HEADS = {"layers/attention/heads": Choice(2, 4).repeat(3), "layers/attention": Skip()}
# A network, its inputs, choices beside those of every group, and some groups with their sizes.
OF_IMAGES = {"Conv_0/channels": 8, "Conv_0/kernel": 5, "Dense_0/hidden": 24, "Conv_1/kernel": 3}
OF_TOKENS = {"width": 16, "Block_0/heads": 4, "Block_1/Dense_0/head_dim": 4, "Block_1/hidden": 32}
KERNELS = {"taps/kernel": Choice(1, 3, 5).repeat(3), "layer": Skip()}
CASES = {
    "convolutional": (Convolutional(), IMAGES, {}, OF_IMAGES),
    "attending": (Attending(), TOKENS, {"Block_*": Skip()}, OF_TOKENS),
    "by turn": (by_turn, ROWS, HIDDEN | {"layer": Skip()}, {"layers/hidden": 12, "first/hidden": 8}),
    "language": (Language(), TOKENS, HIDDEN | HEADS, {"layers/hidden": 16, "layers/attention/heads": 4}),
    "kernels": (pictures, IMAGES, KERNELS, {"taps/kernel": 5}),
}


def analyzed(model, inputs):
    stored = {by_turn: STACKS, pictures: TAPS}
    return jaxnas.analyze(model, stored[model] if model in stored else weights(model, inputs), inputs)


@pytest.fixture(scope="module", params=tiers.cases(CASES, ("attending",)))
def case(request):
    model, inputs, own, names = CASES[request.param]
    groups = analyzed(model, inputs)
    assert names.items() <= {group.name: group.size for group in groups}.items(), str(groups)
    assert str(groups).startswith("group") and "\nfixed, " in str(groups)
    net = jaxnas.supernet(groups, every(groups, own), verify=False)
    return net, net.init(KEY, inputs), inputs


def test_a_supernet_is_its_extracted_networks_in_both_forms(case):
    """P1, P2, P3, P5 and P7, as the functions say."""
    promises.check_transformed(*case, samples=20)
    promises.check_forms(*case)


def test_unusual_operations_are_exact_in_both_forms():
    groups = analyzed(Unusual(), IMAGES)
    for form in ("masked", "switch"):
        testing.check_network(jaxnas.supernet(groups, every(groups, {}), form=form), IMAGES)


@pytest.fixture(scope="module")
def attending():
    return analyzed(Attending(), TOKENS)


def test_sizes_of_two_decisions_and_depth(attending):
    size = Size(lambda ratio, width: int(ratio * width))
    decisions = {"ratio": Choice(1.0, 2.0).repeat(2)}
    choices = {"width": Choice(8, 16), "Block_*/hidden": size, "Block_*": Depth(1, 2)}
    net = jaxnas.supernet(attending, choices, decisions=decisions)
    testing.check_network(net, TOKENS)
    assert net.space.choices["ratio"].active == "Block_*"
    arch = net.space.from_dict({"width": 8, "ratio": [2.0], "Block_*": 1})
    small = net.clone(space=net.space.fix(arch))
    assert (small.sizes()["Block_0/hidden"], small.sizes()["Block_1"]) == (16, 0)


def check_stored(folder, net, small, part, expected):
    """The network is the same after it was saved and loaded, or exported; here for another number of rows."""
    jaxnas.save_subnet(folder, small, part, ROWS)
    for loaded, stored in (jaxnas.load_subnet(folder), jaxnas.load_subnet(folder, module=net)):
        promises.close(jax.jit(loaded.apply)(stored, ROWS[:1]), expected)
    program = jaxnas.export_subnet(folder, small, part, ROWS)
    exported = jax.export.deserialize(bytearray(program.read_bytes()))
    promises.close(exported.call(ROWS[:1]), expected)


def test_an_extracted_network_is_saved_loaded_exported_and_rebuilt(tmp_path):
    class Mlp(nn.Module):
        hidden: tuple = (8, 8)

        @nn.compact
        def __call__(self, x):
            x = nn.Dense(6)(x)
            for i, size in enumerate(self.hidden):
                x = x + nn.Dense(6, name=f"out_{i}")(nn.relu(nn.Dense(size, name=f"in_{i}")(x)))
            return nn.Dense(2)(x)

    variables = Mlp().init(KEY, ROWS)
    groups = jaxnas.analyze(Mlp(), variables, ROWS)
    net = jaxnas.supernet(groups, {"in_*/hidden": Choice(2, 4, 8)}, verify=False)
    arch = {"in_*/hidden": jnp.array([0, 1], jnp.int32)}

    def rebuild(sizes):
        return Mlp((sizes["in_0/hidden"], sizes["in_1/hidden"]))

    small, part, error = jaxnas.extract(net, variables, arch, verify=ROWS)
    assert error < 1e-6
    own = jaxnas.extract(net, variables, arch, verify=ROWS, rebuild=rebuild)
    assert own.net == Mlp((2, 4))
    expected = own.net.apply(own.variables, ROWS[:1])
    check_stored(tmp_path, net, small, part, expected)

    def rebuilt(module):
        return lambda: jaxnas.extract(net, variables, arch, verify=ROWS, rebuild=lambda sizes: module)

    negative = type("Mlp", (Mlp,), {"__call__": lambda self, x: -Mlp.__call__(self, x)})
    refusals.check(
        (rebuilt(Mlp((2, 2))), ValueError, "rebuild"),
        (rebuilt(by_turn), ValueError, "a module"),
        (rebuilt(negative((2, 4))), ValueError, "differs"),
    )


@pytest.fixture(scope="module")
def turned():
    return analyzed(by_turn, ROWS)


def test_turns_of_other_sizes_are_saved_loaded_and_exported(turned, tmp_path):
    """Those that are alike stay a scan, over the rows that are left."""
    variables = turned.model.variables
    sizes = Size(lambda ratio, base: int(ratio * base))  # of a decision by turn and one of all turns
    decisions = {"ratio": Choice(0.5, 1.0).repeat(3), "base": Choice(4, 12)}
    net = jaxnas.supernet(turned, {"layers/hidden": sizes, "layer": Depth(1, 2, 3)}, decisions=decisions)
    assert net.space.choices["ratio"].active == "layer"
    shapes = {}
    for ratios in ([1.0, 1.0], [0.5, 1.0]):
        arch = net.space.from_dict({"ratio": ratios, "base": 12, "layer": 2})
        small, part, _ = jaxnas.extract(net, variables, arch, inputs=ROWS)
        shapes[ratios[0]] = {path: x.shape for path, x in flatten(part["params"]["layers"]).items()}
        scans = [e for e in jax.make_jaxpr(small.apply)(part, ROWS).eqns if e.primitive.name == "scan"]
        assert [e.params["length"] for e in scans] == ([2] if ratios[0] == 1 else [])
        expected = jax.jit(net.apply)(variables, ROWS[:1], arch)
        promises.close(jax.jit(small.apply)(part, ROWS[:1]), expected)
        assert small.sizes()["layers/hidden"] == (*(int(12 * ratio) for ratio in ratios), 0)
    check_stored(tmp_path, net, small, part, expected)  # the one that is no scan
    assert set(shapes[1.0].values()) == {(8, 2, 12), (12, 2)}
    assert shapes[0.5]["gate", "turn_0"] == (6,) and not any("turn_2" in path for path in shapes[0.5])


def test_turns_that_are_alike_are_rebuilt_as_a_shorter_scan():
    class One(nn.Module):
        hidden: int

        @nn.compact
        def __call__(self, x, _):
            return x + nn.Dense(5, name="down")(nn.tanh(nn.Dense(self.hidden, name="up")(x))), None

    class Stack(nn.Module):
        hidden: int = 8
        length: int = 3

        @nn.compact
        def __call__(self, x):
            axes, keys = {"params": 0}, {"params": True}
            layers = nn.scan(One, variable_axes=axes, split_rngs=keys, length=self.length)
            return layers(self.hidden, name="layers")(x, None)[0]

    def rebuild(sizes):
        kept = [size for size, runs in zip(sizes["layers/hidden"], sizes["layers"], strict=True) if runs]
        return Stack(kept[0], len(kept))

    variables = Stack().init(KEY, ROWS)
    choices = {"layers/hidden": Choice(2, 4, 8).repeat(3), "layers": Skip()}
    net = jaxnas.supernet(jaxnas.analyze(Stack(), variables, ROWS), choices, verify=False)
    arch = net.space.from_dict({"layers/hidden": [4, None, 4], "layers": ["keep", "skip", "keep"]})
    own = jaxnas.extract(net, variables, arch, verify=ROWS, rebuild=rebuild)
    assert own.net == Stack(4, 2) and own.error < 1e-6
    assert own.variables["params"]["layers"]["up"]["kernel"].shape == (2, 5, 4)


def test_the_largest_option_may_be_smaller_than_the_group():
    sizes = {"Conv_0/channels": Choice(2, 4), "Conv_1/channels": Choice(2), "Dense_0/hidden": Choice(3, 9)}
    groups = analyzed(Convolutional(), IMAGES)
    for form in ("masked", "switch"):
        net = jaxnas.supernet(groups, sizes, form=form, verify=False)
        arch, variables = net.space.largest(), groups.model.variables
        assert jaxnas.extract(net, variables, arch, verify=IMAGES).error < 1e-5
        run = jax.jit(net.apply)
        promises.close(*(run(variables, IMAGES, one) for one in (net.space.soften(arch), arch)))


def test_a_group_that_differs_is_named(monkeypatch):
    def two(variables, x):
        hidden, taken = jnp.tanh(x @ variables["hidden"]), x @ variables["largest"]
        return hidden @ variables["out"] - jnp.max(-jnp.square(taken), axis=-1, keepdims=True)

    shapes = {"hidden": (5, 8), "largest": (5, 8), "out": (8, 3)}
    groups = jaxnas.analyze(two, {name: jnp.ones(shape) for name, shape in shapes.items()}, ROWS)
    choices = {"*": Choice(2, 8)}
    jaxnas.supernet(groups, choices, form="masked")
    evaluate = sys.modules["jaxnas.transform.evaluate"]
    monkeypatch.setattr(evaluate, "_with_neutral", lambda op, values, state, sizes: values)
    with pytest.raises(ValueError, match="; largest/hidden differs by itself"):
        jaxnas.supernet(groups, choices, form="masked")
    assert jaxnas.supernet(groups, choices, form="masked", verify=False).space.cardinality == 4


def test_mistakes_are_named(attending, turned):
    def make(groups, choices):
        return lambda: jaxnas.supernet(groups, choices)

    def mean(variables, inputs):  # uses all turns at once
        x, _ = jax.lax.scan(lambda x, row: (x + jnp.tanh(x @ row) @ row.T, None), inputs, variables)
        return x + jnp.mean(variables, 2).sum()

    def twice(variables, inputs):  # each turn has a further result
        def layer(x, row):
            with jax.named_scope("layer"):
                return x + jnp.tanh(x @ row) @ row.T, jnp.cos(x)

        return jax.lax.scan(layer, inputs, variables)

    rows = jax.random.normal(KEY, (3, 5, 8))
    averaged, doubled = (jaxnas.analyze(one, rows, ROWS) for one in (mean, twice))
    (name,) = (group.name for group in averaged)
    net = jaxnas.supernet(attending, {"width": Choice(8, 16)}, verify=False)
    other = {"params": {**net.init(KEY, TOKENS)["params"], "positions": jnp.ones((3, 16))}}
    refusals.check(
        (make(attending, {"Block_*/hiden": Choice(8, 16)}), ValueError, "hidden"),
        (make(attending, {"Blok_*": Skip()}), ValueError, "Block_"),
        (make(attending, {"width": Choice(8, 32)}), ValueError, "32"),
        (make(attending, {"width": Choice(0, 16)}), ValueError, "0"),
        (make(attending, {"Embed_0/embedding": Choice(8)}), ValueError, "looked up"),
        (make(attending, {"Block_*/Dense_1": Skip()}), ValueError, "shape"),
        (make(attending, {"Block_*": Depth(1, 3)}), ValueError, "3"),
        (make(attending, {"width": Size(lambda wdth: wdth)}), ValueError, "wdth"),
        (make(attending, {"width": Choice(8), "wid*": Choice(16)}), ValueError, "width"),
        (make(turned, {"layers/hidden": Choice(4, 8).repeat(2)}), ValueError, "3 times"),
        (make(turned, {"first/hidden": Choice(4, 8).repeat(3)}), ValueError, "carried"),
        (make(turned, {"layer": Depth(1, 4)}), ValueError, "4"),
        (make(turned, {"layers/hidden": Choice(4, 16).repeat(3)}), ValueError, "16"),
        (make(turned, HIDDEN | {"*ers/hidden": Choice(4)}), ValueError, "more than one"),
        (make(averaged, {name: Choice(4, 8).repeat(3)}), ValueError, "reduce_sum"),
        (make(doubled, {"layer": Skip()}), ValueError, "results"),
        (lambda: net.apply(other, TOKENS, net.space.smallest()), ValueError, "positions"),
    )


def test_what_is_given_in_a_wrong_form_is_named(attending):
    net = jaxnas.supernet(attending, {"width": Choice(8, 16)}, verify=False)
    variables, arch = net.init(KEY, TOKENS), net.space.smallest()
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), variables)
    product = jaxnas.analyze(lambda kernel, x: jnp.tanh(x @ kernel) @ kernel.T, jnp.ones((5, 8)), ROWS)

    def make(choices, **options):
        return lambda: jaxnas.supernet(attending, choices, verify=False, **options)

    def called(variables, inputs):
        return lambda: net.apply(variables, inputs, arch)

    width = {"width": Choice(8, 16)}
    refusals.check(
        (make({"width": (8, 16)}), TypeError, "(8, 16)", "Choice"),
        (make({"Block_*": Skip}), TypeError, "Block_*", "Skip()"),
        (make(width, decisions={"ratio": 4}), TypeError, "'ratio'", "Choice"),
        (make(width, shared=["wdth"]), ValueError, "'wdth'", "'width'"),
        (make(width, form="swich"), ValueError, "'swich'", "'switch'"),
        (called(variables, TOKENS[None]), ValueError, "int32[2, 6]", "int32[1, 2, 6]"),
        (called(variables["params"], TOKENS), ValueError, "{'params': params}"),
        (called(half, TOKENS), ValueError, "float32", "bfloat16"),
        (lambda: jaxnas.cost(net, TOKENS)({"width": 8}), ValueError, "'width'", "from_dict"),
        (lambda: jaxnas.extract(net, variables, arch, verify=TOKENS[0]), ValueError, "int32[2, 6]"),
        (lambda: jaxnas.analyze(Attending, variables, TOKENS), TypeError, "Attending"),
        (lambda: jaxnas.analyze(Attending(), variables, ROWS), ValueError, "float32[3, 5]"),
        (lambda: jaxnas.supernet(product, {"*": Choice(4, 8)}), ValueError, "{'kernel': array}"),
    )
    assert len(repr(net)) < 200


def test_parameters_of_a_function_may_be_a_list():
    groups = jaxnas.analyze(
        lambda w, x: jnp.tanh(x @ w[0]) @ w[1], [jnp.ones((5, 8)), jnp.ones((8, 2))], ROWS
    )
    net = jaxnas.supernet(groups, {"*": Choice(4, 8)})
    variables, arch = {"params": [jnp.full((5, 8), 0.1), jnp.ones((8, 2))]}, net.space.smallest()
    assert jaxnas.extract(net, variables, arch, verify=ROWS).error < 1e-5
    promises.close(
        net.apply(variables, ROWS, arch, rngs={}), jnp.tanh(ROWS @ jnp.full((5, 4), 0.1)) @ jnp.ones((4, 2))
    )


class Averaged(nn.Module):
    """Statistics of a module that takes the argument of `nn.BatchNorm`."""

    @nn.compact
    def __call__(self, x, use_running_average=True):
        x = nn.BatchNorm(use_running_average=use_running_average)(nn.Dense(4)(x))
        return nn.Dense(2)(jnp.tanh(x))


def test_statistics_are_made_from_stacked_batches():
    net = jaxnas.supernet(
        jaxnas.analyze(Averaged(), Averaged().init(KEY, ROWS), ROWS), {"Dense_0/hidden": Choice(2, 4)}
    )
    batches, variables = 1 + jnp.stack([ROWS, -ROWS]), net.groups.model.variables
    made = jaxnas.extract(net, variables, net.space.largest(), inputs=ROWS, batches=batches).variables[
        "batch_stats"
    ]
    mean = batches.reshape(-1, 5).mean(0) @ variables["params"]["Dense_0"]["kernel"]
    promises.close(made["BatchNorm_0"]["mean"], mean)
    for wrong in (ROWS, [ROWS, -ROWS]):
        with pytest.raises(ValueError, match="stack"):
            jaxnas.extract(net, variables, net.space.largest(), inputs=ROWS, batches=wrong)

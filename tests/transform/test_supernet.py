"""Networks that know nothing of jaxnas as supernets: extraction, gradients, costs, files, mistakes."""

import dataclasses
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import promises
import pytest
import tiers

import jaxnas
from jaxnas import Choice, Depth, Size, Skip, network, testing
from jaxnas.tensors import flatten, unflatten

KEY = jax.random.key(0)


class Convolutional(nn.Module):
    """Convolutions with a shortcut, joined channels, batch norm, flattened."""

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Conv(8, (5, 5))(x)))
        x = nn.max_pool(x, (2, 2), (2, 2))
        y = nn.Conv(12, (3, 3), strides=(2, 2))(x)
        y = nn.relu(nn.BatchNorm(use_running_average=not train)(y)) + nn.Conv(12, (1, 1), strides=(2, 2))(x)
        y = jnp.concatenate([y, nn.Conv(4, (1, 1))(y)], axis=-1)
        y = nn.GroupNorm(num_groups=4)(nn.Conv(16, (3, 3), feature_group_count=4)(y))
        y = nn.Dropout(0.5, deterministic=not train)(nn.relu(nn.Dense(24)(y.reshape(y.shape[0], -1))))
        return nn.Dense(3)(y)


class Block(nn.Module):
    """Attention with one product for queries, keys and values, and a gated MLP."""

    @nn.compact
    def __call__(self, x, train=False):
        y = nn.RMSNorm()(x)
        q, k, v = jnp.split(nn.Dense(3 * 16)(y), 3, axis=-1)
        q, k, v = (one.reshape(*one.shape[:2], 4, 4) for one in (q, k, v))
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2.0, axis=-1)
        y = jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(*x.shape[:2], -1)
        x = x + nn.Dropout(0.1, deterministic=not train)(nn.Dense(x.shape[-1])(y))
        y = nn.LayerNorm()(x)
        return x + nn.Dense(x.shape[-1])(nn.silu(nn.Dense(32)(y)) * nn.Dense(32)(y))


class Attending(nn.Module):
    """Embedded tokens, blocks, the embedding once more as the output."""

    @nn.compact
    def __call__(self, tokens, train=False):
        embed = nn.Embed(11, 16)
        x = embed(tokens) + self.param("positions", nn.initializers.normal(0.1), (6, 16))[None]
        for _ in range(2):
            x = Block()(x, train)
        return embed.attend(nn.LayerNorm()(x))


def scanned(variables, inputs):
    """A plain function with a loop over layers and a condition."""

    def layer(x, row):
        hidden = jnp.tanh(x @ row["in"])
        return x + jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, hidden) @ row["out"], None

    x, _ = jax.lax.scan(layer, inputs @ variables["first"], variables["layers"])
    return jnp.cumsum(x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6), -1).mean(-1)


def by_turn(variables, inputs):
    """A loop over checkpointed layers, each with a number; weights are scaled and transposed before it."""

    @jax.checkpoint
    def layer(x, row):
        params, scale = row
        with jax.named_scope("layer"):
            hidden = jax.nn.gelu(x @ params["in"]) * params["gate"][None]
            hidden = hidden / jnp.sqrt(jnp.mean(hidden**2, -1, keepdims=True) + 1e-3)
            return x + scale * (hidden @ params["out"].T), None

    layers = jax.tree.map(lambda x: jnp.swapaxes(x * 2.0, 0, 1), variables["layers"])
    rows = {"in": layers["in"], "out": layers["out"], "gate": layers["gate"]}
    x, _ = jax.lax.scan(layer, inputs @ variables["first"], (rows, jnp.arange(1.0, 4.0)), reverse=True)
    return x.mean(-1)


class Layer(nn.Module):
    """A block as `nn.scan` takes it."""

    train: bool = False

    @nn.compact
    def __call__(self, x, _):
        y = nn.RMSNorm()(x)
        y = nn.MultiHeadDotProductAttention(4, name="attention")(y, y)
        x = x + nn.Dropout(0.1, deterministic=not self.train)(y)
        y = nn.LayerNorm()(nn.gelu(nn.Dense(16, name="up")(x)))
        return x + nn.Dense(x.shape[-1], name="down")(y), None


class Language(nn.Module):
    """Layers in a scan."""

    @nn.compact
    def __call__(self, tokens, train=False):
        x = nn.Embed(11, 8)(tokens)
        axes, keys = {"params": 0}, {"params": True, "dropout": True}
        layers = nn.scan(Layer, variable_axes=axes, split_rngs=keys, length=3)(train, name="layers")
        return nn.Dense(11)(nn.LayerNorm()(layers(x, None)[0]))


class Normalized(nn.Module):
    """Layers in a scan whose batch statistics are by turn; parameters are stacked along their second axis."""

    @nn.compact
    def __call__(self, x, train=False):
        class One(nn.Module):
            @nn.compact
            def __call__(self, x, _):
                y = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Dense(8, name="up")(x)))
                return x + nn.Dense(x.shape[-1], name="down")(y), None

        axes = {"params": 1, "batch_stats": 0}
        layers = nn.scan(One, variable_axes=axes, split_rngs={"params": True}, length=3)(name="layers")
        return nn.Dense(3)(layers(nn.Dense(6)(x), None)[0])


def pictures(variables, images):
    """A loop over convolutions."""

    def layer(x, kernel):
        with jax.named_scope("layer"):
            y = jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            return x + jnp.tanh(y), None

    x, _ = jax.lax.scan(layer, images, variables["taps"])
    return x.mean((1, 2)) @ variables["out"]


class Unusual(nn.Module):
    """A transposed convolution, a quantized product, experts, and a scan within a scan."""

    @nn.compact
    def __call__(self, x):
        class Quantized(nn.Module):
            @nn.compact
            def __call__(self, x):
                kernel = self.param("kernel", nn.initializers.normal(), (x.shape[-1], 12))
                scale = jnp.max(jnp.abs(kernel), axis=0)[None] / 127
                rounded = jnp.round(kernel / scale).astype(jnp.int8)
                y = jnp.matmul((8 * x).astype(jnp.int8), rounded, preferred_element_type=jnp.int32)
                return y.astype(jnp.float32) * scale

        class Experts(nn.Module):
            @nn.compact
            def __call__(self, x):
                shapes = {"up": (4, x.shape[-1], 10), "down": (4, 10, x.shape[-1])}
                init = nn.initializers.normal()
                up, down = (self.param(name, init, shape) for name, shape in shapes.items())
                gates = jax.nn.softmax(nn.Dense(4, name="gate")(x))
                hidden = nn.relu(jnp.einsum("bd,edf->bef", x, up))
                return x + jnp.einsum("be,bef,efd->bd", gates, hidden, down)

        class Inner(nn.Module):
            @nn.compact
            def __call__(self, x, _):
                return x + nn.Dense(x.shape[-1], name="out")(jnp.tanh(nn.Dense(14, name="in")(x))), None

        class Outer(nn.Module):
            @nn.compact
            def __call__(self, x, _):
                return scan(Inner, 2)(name="inner")(x, None)[0], None

        def scan(module, length):
            return nn.scan(module, variable_axes={"params": 0}, split_rngs={"params": True}, length=length)

        x = nn.relu(nn.Conv(8, (3, 3), name="down")(x))
        x = nn.relu(nn.ConvTranspose(6, (4, 4), strides=(2, 2), name="up")(x)).mean((1, 2))
        x = Experts(name="experts")(Quantized(name="quantized")(x))
        return nn.Dense(3, name="head")(scan(Outer, 3)(name="outer")(x, None)[0])


def weights(model, inputs):
    """Variables that matter: nowhere zero."""
    draw = np.random.default_rng(0)
    made = {}
    for path, x in flatten(jax.eval_shape(model.init, KEY, inputs)).items():
        positive = x.ndim < 2 or path[0] == "batch_stats"
        values = draw.uniform(0.3, 1, x.shape) if positive else draw.normal(0, 0.3, x.shape)
        made[path] = jnp.asarray(values, x.dtype)
    return unflatten(made)


def every(groups, own):
    """A choice of sizes for every group, and others."""
    sizes = {
        group.name: range(group.size % 2 or 2, group.size + 1, 2)
        if group.kind == "kernel"
        else sorted({max(1, group.size // 4), max(1, group.size // 2), group.size})
        for group in groups
    }
    return {name: Choice(*one) for name, one in sizes.items()} | own


IMAGES = jax.random.normal(KEY, (2, 8, 8, 2))
TOKENS = jax.random.randint(KEY, (2, 6), 0, 11)
ROWS = jax.random.normal(KEY, (3, 5))
LAYERS = {
    "first": jax.random.normal(KEY, (5, 8)),
    "layers": {"in": jax.random.normal(KEY, (3, 8, 12)), "out": jax.random.normal(KEY, (3, 12, 8))},
}
STACKS = {
    "first": jax.random.normal(KEY, (5, 8)),
    "layers": {name: jax.random.normal(KEY, (8, 3, 12)) for name in ("in", "out")}
    | {"gate": jax.random.normal(KEY, (12, 3))},
}
TAPS = {"taps": jax.random.normal(KEY, (3, 5, 5, 2, 2)), "out": jax.random.normal(KEY, (2, 3))}
HIDDEN = {"layers/hidden": Choice(4, 8).repeat(3)}
CASES = {
    "convolutional": (Convolutional(), weights(Convolutional(), IMAGES), IMAGES, {}),
    "attending": (Attending(), weights(Attending(), TOKENS), TOKENS, {"Block_*": Skip()}),
    "scanned": (scanned, LAYERS, ROWS, {}),
    "by turn": (by_turn, STACKS, ROWS, HIDDEN | {"layer": Skip()}),
    "language": (
        Language(),
        weights(Language(), TOKENS),
        TOKENS,
        HIDDEN | {"layers/attention/heads": Choice(2, 4).repeat(3), "layers/attention": Skip()},
    ),
    "normalized": (Normalized(), weights(Normalized(), ROWS), ROWS, HIDDEN | {"layers": Skip()}),
    "kernels": (pictures, TAPS, IMAGES, {"taps/kernel": Choice(1, 3, 5).repeat(3), "layer": Skip()}),
}


@pytest.fixture(scope="module", params=tiers.cases(CASES, ("attending",)))
def case(request):
    model, variables, inputs, own = CASES[request.param]
    groups = jaxnas.analyze(model, variables, inputs)
    net = jaxnas.supernet(groups, every(groups, own))
    return groups, net, net.init(KEY, inputs) if callable(model) else variables, inputs


def test_a_supernet_is_its_extracted_networks(case):
    """P1, P2, P3: outputs, updated statistics and gradients, in one program over architectures.

    What an architecture does not use changes nothing: NaN in outputs, and numbers in gradients.
    """
    _, net, variables, inputs = case
    traces = []

    def loss(variables, arch, net, train):
        traces.append(train)
        outputs, updates = net.apply(variables, inputs, arch, train=train, mutable=True, rngs=KEY)
        return jnp.mean(outputs.astype(jnp.float32) ** 2), (outputs, updates)

    run = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=(2, 3))
    recorded = network.annotated(net, inputs)
    archs = [net.space.smallest(), *(net.space.sample(jax.random.key(i)) for i in range(20))]
    found = [run(variables, arch, net, True) for arch in archs]
    assert len(traces) == 1
    for arch, ((_, (outputs, updates)), gradients) in list(zip(archs, found, strict=True))[:2]:
        host = net.space.canonical(arch)
        small = net.clone(space=net.space.fix(arch))
        part = unflatten(testing.cut(flatten(variables), recorded, host))
        (_, (expected, kept)), own = run(part, None, small, True)
        close(outputs, expected)
        cut = testing.cut(flatten(gradients), recorded, host)
        scale = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(own))
        for path, value in flatten(own).items():
            np.testing.assert_allclose(cut[path], value, rtol=1e-4, atol=2e-5 * scale, err_msg=str(path))
        for path, value in flatten(gradients).items():
            if path[0] == "params":
                mask = np.broadcast_to(recorded.specs[path[1:]].mask(host), value.shape)
                assert not np.any(np.asarray(value)[~mask])
        new = testing.cut(flatten({**variables, **updates}), recorded, host)
        for path, value in flatten(kept).items():
            np.testing.assert_allclose(new[path], value, rtol=1e-4, atol=1e-5)
        specs = {("params", *path): spec for path, spec in recorded.specs.items()} | recorded.state
        masks = {path: spec.mask(host) for path, spec in specs.items()}
        for value in (jnp.nan, 1e3):
            (_, (again, _)), same = run(promises.poisoned(variables, masks, value), arch, net, True)
            assert np.array_equal(again, outputs)
            if net.form == "masked" or value == 1e3:
                jax.tree.map(np.testing.assert_array_equal, same, gradients)
    close(
        net.apply(variables, inputs, archs[0]),
        net.clone(space=net.space.fix(archs[0])).apply(
            unflatten(testing.cut(flatten(variables), recorded, archs[0])), inputs
        ),
    )


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * float(jnp.abs(other).max()))


def test_costs_are_those_of_the_extracted_network(case):
    """P7, by parameters and by the products of the extracted program."""
    _, net, _, inputs = case
    testing.check_network(net, inputs)
    cost = jaxnas.cost(net, inputs)
    archs = net.space.sample(KEY, 10_000)
    counted = cost(archs)
    one = jax.tree.map(lambda x: x[7], archs)
    shapes = jax.eval_shape(net.clone(space=net.space.fix(one)).init, KEY, inputs)
    assert counted["params"][7] == sum(x.size for x in jax.tree.leaves(shapes["params"]))


def test_both_forms_vmap_and_soft_decisions_agree(case):
    """P5."""
    _, net, variables, inputs = case
    archs = net.space.sample(KEY, 3)
    many = jax.jit(jax.vmap(net.apply, (None, None, 0)))(variables, inputs, archs)
    one = jax.jit(net.apply)
    form = "masked" if net.form == "switch" else "switch"
    other = jax.jit(dataclasses.replace(net, form=form).apply)
    for i in range(3):
        arch = jax.tree.map(lambda x, i=i: x[i], archs)
        scale = float(jnp.abs(many[i]).max())
        np.testing.assert_allclose(many[i], one(variables, inputs, arch), rtol=1e-5, atol=1e-5 * scale)
        np.testing.assert_allclose(many[i], other(variables, inputs, arch), rtol=1e-5, atol=1e-5 * scale)
        soft = one(variables, inputs, net.space.soften(arch))
        np.testing.assert_allclose(many[i], soft, rtol=1e-5, atol=1e-5 * scale)


def test_groups_are_named_after_modules(case):
    groups = case[0]
    names = {
        "Convolutional": {"Conv_0/channels": 8, "Conv_0/kernel": 5, "Dense_0/hidden": 24, "Conv_1/kernel": 3},
        "Attending": {"width": 16, "Block_0/heads": 4, "Block_1/Dense_0/head_dim": 4, "Block_1/hidden": 32},
        "scanned": {"layers/hidden": 12},
        "by_turn": {"layers/hidden": 12, "first/hidden": 8},
        "Language": {"layers/hidden": 16, "layers/attention/heads": 4},
        "Normalized": {"layers/hidden": 8},
        "pictures": {"taps/kernel": 5},
    }[groups.model.name]
    assert names.items() <= {group.name: group.size for group in groups}.items(), str(groups)
    assert str(groups).startswith("group") and "\nfixed, " in str(groups)


def test_unusual_operations_are_exact_in_both_forms():
    groups = jaxnas.analyze(Unusual(), weights(Unusual(), IMAGES), IMAGES)
    sizes = {"down/channels": 8, "up/channels": 6, "up/kernel": 4, "experts/experts": 4, "experts/hidden": 10}
    assert (
        sizes.items() | {("outer/inner/hidden", 14)} <= {group.name: group.size for group in groups}.items()
    )
    for form in ("masked", "switch"):
        testing.check_network(jaxnas.supernet(groups, every(groups, {}), form=form), IMAGES)


@pytest.fixture(scope="module")
def attending():
    model, variables, inputs, _ = CASES["attending"]
    return jaxnas.analyze(model, variables, inputs), variables, inputs


def test_sizes_of_two_decisions_and_depth(attending):
    groups, _, inputs = attending
    size = Size(lambda ratio, width: int(ratio * width))
    decisions = {"ratio": Choice(1.0, 2.0).repeat(2)}
    net = jaxnas.supernet(
        groups, {"width": Choice(8, 16), "Block_*/hidden": size, "Block_*": Depth(1, 2)}, decisions=decisions
    )
    testing.check_network(net, inputs)
    assert net.space.choices["ratio"].active == "Block_*"
    arch = net.space.from_dict({"width": 8, "ratio": [2.0], "Block_*": 1})
    small = net.clone(space=net.space.fix(arch))
    assert (small.sizes()["Block_0/hidden"], small.sizes()["Block_1"]) == (16, 0)


def test_an_extracted_network_is_saved_loaded_exported_and_rebuilt(tmp_path):
    class Mlp(nn.Module):
        hidden: tuple = (8, 8)

        @nn.compact
        def __call__(self, x):
            x = nn.Dense(6)(x)
            for i, size in enumerate(self.hidden):
                x = x + nn.Dense(6, name=f"out_{i}")(nn.relu(nn.Dense(size, name=f"in_{i}")(x)))
            return nn.Dense(2)(x)

    model = Mlp()
    variables = model.init(KEY, ROWS)
    net = jaxnas.supernet(jaxnas.analyze(model, variables, ROWS), {"in_*/hidden": Choice(2, 4, 8)})
    arch = {"in_*/hidden": jnp.array([0, 1], jnp.int32)}

    def rebuild(sizes):
        return Mlp((sizes["in_0/hidden"], sizes["in_1/hidden"]))

    small, part, error = jaxnas.extract(net, variables, arch, verify=ROWS)
    assert error < 1e-6
    own = jaxnas.extract(net, variables, arch, verify=ROWS, rebuild=rebuild)
    assert own.net == Mlp((2, 4))
    expected = own.net.apply(own.variables, ROWS[:1])
    jaxnas.save_subnet(tmp_path / "subnet", small, part, ROWS)
    for loaded, stored in (
        jaxnas.load_subnet(tmp_path / "subnet"),
        jaxnas.load_subnet(tmp_path / "subnet", module=net),
    ):
        np.testing.assert_allclose(loaded.apply(stored, ROWS[:1]), expected, rtol=1e-6)
    program = jaxnas.export_subnet(tmp_path / "subnet", small, part, ROWS)
    exported = jax.export.deserialize(bytearray(program.read_bytes()))
    np.testing.assert_allclose(exported.call(ROWS[:1]), expected, rtol=1e-5)  # another number of rows
    with pytest.raises(ValueError, match="rebuild"):
        jaxnas.extract(net, variables, arch, verify=ROWS, rebuild=lambda sizes: Mlp((2, 2)))
    with pytest.raises(ValueError, match="expected a module"):
        jaxnas.extract(net, variables, arch, verify=ROWS, rebuild=lambda sizes: scanned)
    with pytest.raises(ValueError, match="differs"):  # of the same variables, and another function
        swapped = type("Mlp", (Mlp,), {"__call__": lambda self, x: -Mlp.__call__(self, x)})
        jaxnas.extract(net, variables, arch, verify=ROWS, rebuild=lambda sizes: swapped((2, 4)))


@pytest.fixture(scope="module")
def turned():
    groups = jaxnas.analyze(by_turn, STACKS, ROWS)
    return groups, groups.model.variables


def test_turns_of_other_sizes_are_saved_loaded_and_exported(turned, tmp_path):
    """Those that are alike stay a scan, over the rows that are left."""
    groups, variables = turned
    sizes = Size(lambda ratio, base: int(ratio * base))  # of a decision by turn and one of all turns
    decisions = {"ratio": Choice(0.5, 1.0).repeat(3), "base": Choice(4, 12)}
    net = jaxnas.supernet(groups, {"layers/hidden": sizes, "layer": Depth(1, 2, 3)}, decisions=decisions)
    assert net.space.choices["ratio"].active == "layer"
    shapes = {}
    for ratios in ([1.0, 1.0], [0.5, 1.0]):
        arch = net.space.from_dict({"ratio": ratios, "base": 12, "layer": 2})
        small, part, error = jaxnas.extract(net, variables, arch, verify=ROWS)
        assert error < 1e-5
        shapes[ratios[0]] = {path: x.shape for path, x in flatten(part["params"]["layers"]).items()}
        scans = [e for e in jax.make_jaxpr(small.apply)(part, ROWS).eqns if e.primitive.name == "scan"]
        assert [e.params["length"] for e in scans] == ([2] if ratios[0] == 1 else [])
        expected = net.apply(variables, ROWS[:1], arch)
        folder = tmp_path / str(ratios[0])
        jaxnas.save_subnet(folder, small, part, ROWS)
        for loaded, stored in (jaxnas.load_subnet(folder), jaxnas.load_subnet(folder, module=net)):
            np.testing.assert_allclose(loaded.apply(stored, ROWS[:1]), expected, rtol=1e-5)
        program = jaxnas.export_subnet(folder, small, part, ROWS)
        exported = jax.export.deserialize(bytearray(program.read_bytes()))
        np.testing.assert_allclose(exported.call(ROWS[:1]), expected, rtol=1e-5)
        assert small.sizes()["layers/hidden"] == (*(int(12 * ratio) for ratio in ratios), 0)
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
    net = jaxnas.supernet(jaxnas.analyze(Stack(), variables, ROWS), choices)
    arch = net.space.from_dict({"layers/hidden": [4, None, 4], "layers": ["keep", "skip", "keep"]})
    own = jaxnas.extract(net, variables, arch, verify=ROWS, rebuild=rebuild)
    assert own.net == Stack(4, 2) and own.error < 1e-6
    assert own.variables["params"]["layers"]["up"]["kernel"].shape == (2, 5, 4)


TURNS = {
    "another number of turns": ({"layers/hidden": Choice(4, 8).repeat(2)}, "3 times"),
    "carried": ({"first/hidden": Choice(4, 8).repeat(3)}, "carried"),
    "too deep": ({"layer": Depth(1, 4)}, "4"),
    "too large": ({"layers/hidden": Choice(4, 16).repeat(3)}, "16"),
    "twice": ({"layers/hidden": Choice(4, 8).repeat(3), "*ers/hidden": Choice(4)}, "more than one"),
}


@pytest.mark.parametrize("mistake", TURNS)
def test_mistakes_about_turns_are_named(turned, mistake):
    choices, named = TURNS[mistake]
    with pytest.raises(ValueError, match=named):
        jaxnas.supernet(turned[0], choices)


def test_what_uses_turns_from_outside_is_named():
    def mean(variables, inputs):
        x, _ = jax.lax.scan(lambda x, row: (x + jnp.tanh(x @ row) @ row.T, None), inputs, variables["rows"])
        return x + jnp.mean(variables["rows"], 2).sum()

    groups = jaxnas.analyze(mean, {"rows": jax.random.normal(KEY, (3, 5, 8))}, ROWS)
    with pytest.raises(ValueError, match="reduce_sum"):
        jaxnas.supernet(groups, {"rows/hidden": Choice(4, 8).repeat(3)})

    def twice(variables, inputs):  # each turn has a further result
        def layer(x, row):
            with jax.named_scope("layer"):
                return x + jnp.tanh(x @ row) @ row.T, jnp.cos(x)

        return jax.lax.scan(layer, inputs, variables["rows"])

    with pytest.raises(ValueError, match="results"):
        jaxnas.supernet(jaxnas.analyze(twice, groups.model.variables["params"], ROWS), {"layer": Skip()})


@pytest.mark.parametrize("form", ["masked", "switch"])
def test_the_largest_option_may_be_smaller_than_the_group(form):
    model = Convolutional()
    variables = weights(model, IMAGES)
    sizes = {"Conv_0/channels": Choice(2, 4), "Conv_1/channels": Choice(2), "Dense_0/hidden": Choice(3, 9)}
    net = jaxnas.supernet(jaxnas.analyze(model, variables, IMAGES), sizes, form=form)
    arch = net.space.largest()
    assert jaxnas.extract(net, variables, arch, verify=IMAGES).error < 1e-5
    close(net.apply(variables, IMAGES, net.space.soften(arch)), net.apply(variables, IMAGES, arch))


def test_a_group_that_differs_is_named(monkeypatch):
    def two(variables, x):
        hidden, taken = jnp.tanh(x @ variables["hidden"]), x @ variables["largest"]
        return hidden @ variables["out"] - jnp.max(-jnp.square(taken), axis=-1, keepdims=True)

    shapes = {"hidden": (5, 8), "largest": (5, 8), "out": (8, 3)}
    variables = {name: jnp.ones(shape) for name, shape in shapes.items()}
    groups = jaxnas.analyze(two, variables, ROWS)
    assert len(groups) == 2
    choices = {"*": Choice(2, 8)}
    jaxnas.supernet(groups, choices, form="masked")
    evaluate = sys.modules["jaxnas.transform.evaluate"]
    monkeypatch.setattr(evaluate, "_with_neutral", lambda op, values, state, sizes: values)
    with pytest.raises(ValueError, match="; largest/hidden differs by itself"):
        jaxnas.supernet(groups, choices, form="masked")
    assert jaxnas.supernet(groups, choices, form="masked", verify=False).space.cardinality == 4


MISTAKES = {
    "no such group": ({"Block_*/hiden": Choice(8, 16)}, "hidden"),
    "no such module": ({"Blok_*": Skip()}, "Block_"),
    "larger than the group": ({"width": Choice(8, 32)}, "32"),
    "no size": ({"width": Choice(0, 16)}, "0"),
    "fixed": ({"Embed_0/embedding": Choice(8)}, "looked up"),
    "cannot be skipped": ({"Block_*/Dense_1": Skip()}, "shape"),
    "too deep": ({"Block_*": Depth(1, 3)}, "3"),
    "another decision": ({"width": Size(lambda wdth: wdth)}, "wdth"),
    "twice": ({"width": Choice(8), "wid*": Choice(16)}, "width"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(attending, mistake):
    choices, named = MISTAKES[mistake]
    with pytest.raises(ValueError, match=named):
        jaxnas.supernet(attending[0], choices)


def test_what_cannot_be_analyzed_is_refused(attending):
    groups, variables, inputs = attending
    with pytest.raises(TypeError, match="inputs"):
        jaxnas.analyze(Attending(), variables)
    with pytest.raises(ValueError, match="depends on values"):
        jaxnas.analyze(lambda v, x: x * v if x.sum() > 0 else x, jnp.ones(3), jnp.ones((2, 3)))
    net = jaxnas.supernet(groups, {"width": Choice(8, 16)})
    with pytest.raises(ValueError, match="positions"):
        net.apply(
            {"params": {**variables["params"], "positions": jnp.ones((3, 16))}}, inputs, net.space.smallest()
        )

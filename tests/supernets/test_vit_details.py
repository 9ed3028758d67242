"""The ViT supernet: soft architectures, drop path, initial values, errors."""

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_nets import CLASSES, NARROW, SHAPE, difference, jit, normal, sample, setting

import jaxnas
from jaxnas import spaces, supernets
from jaxnas.elastic.layers import drop_path


def one_hot(space, arch, names=None):
    """The soft architecture that is certain of `arch`, or mixed: soft for `names` only."""
    return {
        name: jax.nn.one_hot(x, space[name].width) if names is None or name in names else x
        for name, x in arch.items()
    }


def random_soft(space, seed):
    """Softmax weights for every decision."""
    keys = jax.random.split(jax.random.key(seed), len(space))
    return {
        name: jax.nn.softmax(jax.random.normal(key, (*choice.shape, choice.width)))
        for key, (name, choice) in zip(keys, space.decisions, strict=True)
    }


# ---- Soft architectures.


@pytest.mark.more
@pytest.mark.parametrize("name", ["narrow", "wide", "classic"])
def test_one_hot_is_hard(name):
    case = setting(name)
    soft = jit(lambda arch: case.net.apply({"params": case.params}, case.images, arch))
    for seed in range(4):
        arch = sample(case.space, seed)
        assert difference(soft(one_hot(case.space, arch)), case(arch)[0]) <= 1e-5


@pytest.mark.parametrize("name", ["narrow", "wide", "classic"])
def test_nearly_one_hot_is_nearly_hard(name):
    """Nothing jumps where a weight becomes zero: what is annealed ends at the network that is hardened."""
    case = setting(name)
    apply = jit(lambda arch: case.net.apply({"params": case.params}, case.images, arch))
    arch = one_hot(case.space, sample(case.space, 0))
    expected, even = apply(arch), {name: jnp.full_like(x, 1 / x.shape[-1]) for name, x in arch.items()}
    for decision in case.space:
        near = arch | {decision: 0.99999 * arch[decision] + 0.00001 * even[decision]}
        assert difference(apply(near), expected) <= 1e-3, decision


def test_soft_positions_with_fewer_options_are_the_hard_ones():
    plain = spaces.vit((8,), (2,), (1, 2), (1.0, 2.0, 3.0)).to_json()
    plain["mlp_ratio"]["per_position"] = [[1.0, 2.0, 3.0], [1.0, 2.0]]
    space = jaxnas.Space.from_json(plain)
    net = vit(space=space, head_dim=4)
    params = jaxnas.init(net, jax.random.key(0), SHAPE)["params"]
    apply = jit(lambda arch: net.apply({"params": params}, normal(*SHAPE), arch))
    for seed in range(2):
        arch = sample(space, seed)
        assert difference(apply(space.soften(arch)), apply(arch)) <= 1e-5


def test_some_decisions_soft_and_some_hard():
    case = setting("wide")
    apply = jit(lambda arch: case.net.apply({"params": case.params}, case.images, arch))
    for seed in range(3):
        arch = sample(case.space, seed)
        mixed = one_hot(case.space, arch, names=("num_heads", "depth"))
        assert difference(apply(mixed), case(arch)[0]) <= 1e-5


@pytest.mark.more
def test_soft_architectures_differentiate_twice():
    case = setting("narrow")

    def loss(arch):
        logits = case.net.apply({"params": case.params}, case.images, arch)
        return jnp.sum(logits * case.weights)

    def slope(arch):
        gradient = jax.grad(loss)(arch)
        return sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradient)), gradient

    arch = random_soft(case.space, 0)
    curvature, gradient = jit(jax.grad(slope, has_aux=True))(arch)
    for tree in (gradient, curvature):
        for key, leaf in tree.items():
            assert leaf.shape == arch[key].shape
            assert np.all(np.isfinite(leaf)) and np.any(np.asarray(leaf) != 0), key
    # The gradient is that of finite differences along a random direction.
    step = {key: 1e-2 * normal(*leaf.shape) for key, leaf in arch.items()}
    run = jit(loss)
    ends = [run(jax.tree.map(lambda x, d, s=sign: x + s * d, arch, step)) for sign in (1.0, -1.0)]
    slope_along = sum(jnp.sum(gradient[key] * step[key]) for key in arch)
    assert abs((ends[0] - ends[1]) / 2 - slope_along) <= 2e-2 * abs(slope_along)


# ---- Drop path.


def test_drop_path_drops_whole_examples_at_its_rate():
    count, rate = 20_000, 0.3
    scale = drop_path(jax.random.key(0), rate, count)
    factors = np.asarray(scale)
    assert set(np.unique(factors)) == {0, np.float32(1 / (1 - rate))}
    assert abs(np.mean(factors == 0) - rate) < 4 * (rate * (1 - rate) / count) ** 0.5


def test_drop_path_is_for_training_only():
    case = setting("wide")
    net = case.net.clone(space=case.space.fix(case.space.largest()))

    def apply(train, key):
        rngs = {"dropout": key}
        return net.apply({"params": case.params}, case.images, train=train, rngs=rngs)

    assert "random" not in str(jax.make_jaxpr(lambda key: apply(False, key))(jax.random.key(0)))
    train = jit(lambda key: apply(True, key))
    # Of two branches in the last layer, three examples: most keys drop something.
    outputs = [np.asarray(train(jax.random.key(seed))) for seed in range(8)]
    assert len({x.tobytes() for x in outputs}) > 2
    np.testing.assert_array_equal(train(jax.random.key(3)), outputs[3])
    with pytest.raises(Exception, match="dropout"):
        net.apply({"params": case.params}, case.images, train=True)


def test_drop_path_rises_linearly_to_the_last_stored_layer():
    net = supernets.ViT(spaces.vit((8,), (2, 5), (1,), (1.0,)), 8, 4, CLASSES, drop_path_rate=0.4)
    rates = {}

    def note(call, args, kwargs, context):
        if "drop_path_rate" in kwargs:
            rates[context.module.name] = kwargs["drop_path_rate"]
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        keys = {"params": jax.random.key(0), "drop_path": jax.random.key(1)}
        images = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
        jax.eval_shape(lambda keys, images: net.init(keys, images, train=True), keys, images)
    ramp = [rates[f"block_{layer}"] for layer in range(5)]
    np.testing.assert_allclose(ramp, [0, 0.1, 0.2, 0.3, 0.4], rtol=1e-6, atol=1e-12)


# ---- Initial values.


def test_initial_values():
    """Normal of deviation 0.02, as in AutoFormer; patches uniform, as PyTorch's convolution."""
    net = supernets.ViT(spaces.vit((32, 64), (1,), (2,), (2.0,)), 16, 4, 10)
    params = jaxnas.init(net, jax.random.key(0), (1, 16, 16, 3))["params"]
    flat = flax.traverse_util.flatten_dict(params)
    assert not any(isinstance(leaf, nn.meta.AxisMetadata) for leaf in flat.values())
    for path, leaf in flat.items():
        assert leaf.dtype == jnp.float32
        leaf = np.asarray(leaf)
        if path[0] == "patch_embed":
            bound = (3 * 4 * 4) ** -0.5
            assert 0.8 * bound < np.max(np.abs(leaf)) <= bound
        elif path[-1] == "scale":
            assert np.all(leaf == 1)
        elif path[-1].endswith("bias"):
            assert np.all(leaf == 0)
        else:
            error = 5 / leaf.size**0.5
            assert abs(np.std(leaf) / 0.02 - 1) < error and abs(np.mean(leaf)) < 0.02 * error
    assert flat["tokens", "positions"].shape == (17, 64)


# ---- Errors.


def vit(**changes):
    given = dict(space=NARROW, image_size=8, patch_size=4, num_classes=CLASSES)
    return supernets.ViT(**given | changes)


def test_image_size_not_a_multiple_of_the_patch():
    with pytest.raises(ValueError, match="10 is not"):
        vit(image_size=10)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"sharing": "Classic"}, "'Classic'"),
        ({"drop_path_rate": 1.0}, "drop_path_rate"),
        ({"max_relative_position": -1}, "max_relative_position -1"),
        ({"patch_size": 0}, "patch_size is 0"),
        ({"image_size": 0}, "image_size is 0"),
        ({"num_classes": 0}, "num_classes is 0"),
        ({"head_dim": -1}, "head_dim is -1"),
    ],
)
def test_attributes_out_of_range(change, message):
    with pytest.raises(ValueError, match=message):
        vit(**change)


def test_what_is_no_space_and_images_of_other_channels():
    with pytest.raises(TypeError, match="space is None"):
        vit(space=None)
    net = vit()
    variables = jaxnas.init(net, jax.random.key(0), (1, 8, 8, 1))
    with pytest.raises(ValueError, match="images have 3"):
        net.apply(variables, jnp.zeros((2, 8, 8, 3)), net.space.smallest())


def test_space_without_the_decisions():
    with pytest.raises(ValueError, match="'mlp_ratio'"):
        vit(space=jaxnas.Space(embed_dim=jaxnas.Choice(8), depth=jaxnas.Choice(1)))


@pytest.mark.parametrize(("repeat", "given"), [(2, "2"), (0, "one for all")])
def test_space_with_too_few_decisions(repeat, given):
    heads, depth = jaxnas.Choice(1, 2), jaxnas.Choice(1, 3)
    heads, ratio = heads.repeat(repeat) if repeat else heads, jaxnas.Choice(1.0).repeat(3)
    space = jaxnas.Space(embed_dim=jaxnas.Choice(8), depth=depth, num_heads=heads, mlp_ratio=ratio)
    with pytest.raises(ValueError, match=f"'num_heads' once for each of 3 layers, .* got {given}"):
        vit(space=space)


@pytest.mark.parametrize(
    "sizes, message",
    [
        (((8,), (1,), (0, 2), (1.0,)), "'num_heads'"),
        (((0, 8), (1,), (2,), (1.0,)), r"'embed_dim' .*, not \[0\]"),
        (((8.5,), (1,), (2,), (1.0,)), "'embed_dim'"),
        (((8,), (1,), ("two",), (1.0,)), "'num_heads'"),
        (((8,), (1,), (2,), (-1.0, 2.0)), "'mlp_ratio'"),
        (((8, 16), (1,), (2,), (0.1, 1.0)), "ratio 0"),
    ],
)
def test_options_that_are_no_sizes(sizes, message):
    with pytest.raises(ValueError, match=message):
        vit(space=spaces.vit(*sizes))


def test_an_architecture_out_of_range_is_refused_and_while_it_is_traced_the_nearest_one():
    """No program can refuse the value of an array; it must not run another mixture of options either."""
    net = vit()
    variables, images = jaxnas.init(net, jax.random.key(0), (1, 8, 8, 1)), jnp.ones((2, 8, 8, 1))
    costs, largest = (
        jaxnas.cost(net, (1, 8, 8, 1)),
        {
            name: jnp.asarray(np.broadcast_to(choice.sizes - 1, choice.shape), jnp.int32)
            for name, choice in net.space.choices.items()
        },
    )
    beyond = jax.tree.map(lambda x: x + 7, largest)
    for call in (lambda arch: net.apply(variables, images, arch), costs):
        with pytest.raises(ValueError, match="'embed_dim'"):
            call(beyond)
        for given, nearest in ((beyond, largest), (jax.tree.map(lambda x: x * 0 - 1, largest), None)):
            nearest = jax.tree.map(jnp.zeros_like, largest) if nearest is None else nearest
            jax.tree.map(np.testing.assert_array_equal, jax.jit(call)(given), jax.jit(call)(nearest))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda a: None, "needs `arch`"),
        (lambda a: a | {"width": a["depth"]}, "'width'"),
        (lambda a: {k: x for k, x in a.items() if k != "depth"}, "no value for 'depth'"),
        (lambda a: a | {"num_heads": jnp.zeros(3, jnp.int32)}, "'num_heads'"),
        (lambda a: a | {"embed_dim": jnp.ones(2)}, "'embed_dim'"),
        (lambda a: a | {"embed_dim": 8}, "'embed_dim'"),
    ],
    ids=["none", "unknown key", "missing key", "length", "soft length", "value"],
)
def test_architectures_of_another_space(change, message):
    case = setting("narrow")
    with pytest.raises(ValueError, match=message):
        case.net.apply({"params": case.params}, case.images, change(case.space.largest()))


def test_indices_that_are_traced_are_the_nearest_that_there_are():
    """As everywhere in JAX: a program cannot refuse them. Layer by layer, or in a loop."""
    case, scanned = setting("narrow"), setting("scanned")
    largest, smallest = case.space.largest(), case.space.smallest()
    for known, shift in ((largest, 5), (smallest, -5)):
        arch = {name: x + shift for name, x in known.items()}
        for one in (case, scanned):
            assert difference(one(arch)[0], one(known)[0]) <= 1e-6


def test_images_of_another_size():
    case = setting("narrow")
    with pytest.raises(ValueError, match="B, 8, 8"):
        case.net.apply({"params": case.params}, jnp.ones((3, 8, 9, 1)), case.space.largest())


@pytest.mark.parametrize(
    "change, options, message",
    [
        (lambda a, p: (a, p), {}, "either verify=batch, or"),
        (lambda a, p: (a | {"depth": jnp.int32(2)}, p), {"inputs": SHAPE}, "'depth' is 2"),
        (
            lambda a, p: (jax.tree.map(lambda x: x[None], a), p),
            {"inputs": SHAPE},
            r"shape \(1,\), expected \(\) \(vmap over a batch\)",
        ),
        (lambda a, p: (a, p | {"head": {}}), {"inputs": SHAPE}, "params/head"),
        (lambda a, p: (a, p | {"tail": p["head"]}), {"inputs": SHAPE}, "params/tail"),
        (lambda a, p: (a, p), {"inputs": (1, 8, 8, 3)}, "params/patch_embed"),
    ],
    ids=["no shape", "index", "batch", "missing", "unexpected", "misshapen"],
)
def test_extract_refuses(change, options, message):
    case = setting("narrow")
    arch, params = change(case.space.largest(), case.params)
    with pytest.raises(ValueError, match=message):
        jaxnas.extract(case.net, {"params": params}, arch, **options)

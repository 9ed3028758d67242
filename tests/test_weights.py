"""Weights of one supernet in another: what both store is the same, and nothing else is touched."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import refusals
from plain_networks import Pictures
from small_nets import normal
from user_networks import Elastic

import jaxnas
from jaxnas import Choice, Space, elastic, spaces, supernets
from jaxnas.tensors import flatten

SHAPE = (2, 8, 8, 1)
OLD = spaces.vit((8, 12), (1, 2), (1, 2), (1.0, 2.0))
NEW = spaces.vit((12, 16), (2, 3), (2, 3), (0.5, 1.0))  # wider, deeper, with narrower MLPs


def vit(space, **settings):
    settings = dict(image_size=8, patch_size=4, num_classes=5, head_dim=4, max_relative_position=1) | settings
    return supernets.ViT(space, **settings)


def random(net, seed, inputs=SHAPE):
    """Variables that are nowhere 0 or 1, so that each number tells where it comes from."""
    shapes = jax.eval_shape(lambda key: jaxnas.init(net, key, inputs), jax.random.key(0))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.uniform(2, 3, x.shape), x.dtype), shapes)


def test_the_common_part_of_each_array_is_carried_and_the_rest_is_new():
    old, new = vit(OLD), vit(NEW, num_classes=7, max_relative_position=2)
    given, fresh = random(old, 0), random(new, 1)
    kept = jax.tree.map(np.array, fresh)
    found = jaxnas.carry_weights(old, given, new, fresh, SHAPE)
    jax.tree.map(np.testing.assert_array_equal, fresh, kept)
    before, start, after = map(flatten, (given, fresh, found.variables))
    carried, untouched = 0, set()
    assert after.keys() == start.keys()
    for path, value in after.items():
        if "block_2" in path or "head" in path or path[-1].endswith(("_rows", "_columns")):
            untouched.add("/".join(path))  # not there before, or with entries that mean something else
            np.testing.assert_array_equal(value, start[path])
            continue
        part = tuple(slice(min(pair)) for pair in zip(before[path].shape, value.shape, strict=True))
        expected = np.array(start[path])
        expected[part] = before[path][part]
        np.testing.assert_array_equal(value, expected)
        carried += expected[part].size
    assert set(found.new) == untouched and any("head" in path for path in untouched)
    assert found.carried == carried > 0 and found.total == sum(x.size for x in after.values())
    same = jaxnas.carry_weights(old, given, old, random(old, 1), SHAPE)
    assert same.new == () and same.carried == same.total
    jax.tree.map(np.testing.assert_array_equal, same.variables, given)


class Base(Elastic):
    def body(self, x, decisions, train):
        return self.layers(x, *(elastic.width(int, decisions[name]) for name in self.space))


class Separate(Base):
    def layers(self, x, first, second):
        sizes, init = (elastic.fixed(4),), nn.initializers.ones
        scale = elastic.parameter(self, "scale", init, sizes, options=(first,))
        return x * scale[None] + second.mask()[0]


def test_weights_of_their_own_are_carried_where_the_options_are_the_same():
    first, moved, shape = Choice(2, 4), Choice(4, 6), (2, 4)
    net, another = Separate(Space(first=first, second=first)), Separate(Space(first=first, second=moved))
    given = random(net, 0, shape)

    def carry(new):
        return jaxnas.carry_weights(net, given, new, random(new, 1, shape), shape).variables

    jax.tree.map(np.testing.assert_array_equal, carry(another), given)
    other = Separate(Space(first=moved, second=first))  # although its shape is the same
    refusals.check((lambda: carry(other), ValueError, "nothing can be carried over"))


class Convolution(Base):
    def layers(self, x, size, width):
        x = elastic.Conv(name="conv")(x, elastic.fixed(1), width, size)
        return elastic.Dense(name="out")(x.mean((1, 2)), width, elastic.fixed(3))


SMALL = Convolution(Space(size=Choice(1, 3), width=Choice(2, 4)))
LARGE = Convolution(Space(size=Choice(3, 5), width=Choice(4, 6)))


def test_a_kernel_is_carried_at_its_center():
    given, fresh = random(SMALL, 0), random(LARGE, 1)
    grown = jaxnas.carry_weights(SMALL, given, LARGE, fresh, SHAPE).variables
    cut = jaxnas.carry_weights(LARGE, fresh, SMALL, given, SHAPE).variables
    for large, small in ((grown, given), (fresh, cut)):
        large, small = (x["params"]["conv"]["kernel"] for x in (large, small))
        np.testing.assert_array_equal(large[1:4, 1:4, :, :4], small)
    even = Convolution(Space(size=Choice(2, 4), width=Choice(2, 4)))
    found = jaxnas.carry_weights(SMALL, given, even, random(even, 1), SHAPE)
    assert found.new == ("params/conv/kernel",)


def test_a_kernel_of_a_transformed_network_is_carried_at_its_center():
    def made(seed, sizes, widths):
        module, images = Pictures(sizes[-1], widths[-1]), jnp.ones(SHAPE)
        groups = jaxnas.analyze(module, module.init(jax.random.key(seed), images), images)
        choices = {"conv/kernel": Choice(*sizes), "conv/channels": Choice(*widths)}
        net = jaxnas.supernet(groups, choices, form="masked", verify=False)
        return net, groups.model.variables

    small, large = made(0, (1, 3), (2, 4)), made(1, (3, 5), (4, 6))
    grown = jaxnas.carry_weights(*small, *large, SHAPE).variables
    kernels = [x["params"]["conv"]["kernel"] for x in (small[1], grown, large[1])]
    np.testing.assert_array_equal(kernels[1][1:4, 1:4, :, :4], kernels[0])
    assert not np.array_equal(*kernels[1:])


class Gated(nn.Module):
    hidden: int

    @nn.compact
    def __call__(self, x):
        value, gate = jnp.split(nn.Dense(2 * self.hidden, name="joined")(x.reshape(len(x), -1)), 2, axis=-1)
        return nn.Dense(3, name="out")(value * nn.sigmoid(gate))


def test_an_axis_that_is_joined_of_pieces_stays_new():
    def made(seed, hidden):
        module, images = Gated(hidden), jnp.ones(SHAPE)
        groups = jaxnas.analyze(module, module.init(jax.random.key(seed), images), images)
        net = jaxnas.supernet(groups, {"*/hidden": Choice(2, hidden)}, form="masked", verify=False)
        return net, groups.model.variables

    carried = jaxnas.carry_weights(*made(0, 4), *made(1, 8), SHAPE)
    assert carried.new == ("params/joined/bias", "params/joined/kernel")


class Other(Base):
    def layers(self, x, size, width):
        return elastic.Dense(name="dense")(x.mean((1, 2)), elastic.fixed(1), width)


def test_weights_that_cannot_be_carried_are_refused():
    def carry(old, new, given=None, fresh=None):
        given, fresh = (random(net, 0) if x is None else x for net, x in ((old, given), (new, fresh)))
        return lambda: jaxnas.carry_weights(old, given, new, fresh, SHAPE), ValueError

    small = random(SMALL, 0)
    refusals.check(
        (*carry(SMALL, LARGE, fresh=small), "conv/bias (4,) instead of (6,)"),
        (*carry(SMALL, LARGE, given=small["params"]), "collections"),
        (*carry(SMALL, Other(SMALL.space)), "Convolution", "Other", "params/conv/bias"),
    )


def test_sorted_channels_leave_the_largest_network_and_put_what_counts_first():
    space = spaces.vit((8,), (2,), (2,), (0.5, 1.0, 2.0))
    net = vit(space)
    variables = jaxnas.init(net, jax.random.key(0), SHAPE)
    params = variables["params"]
    moments = jax.tree.map(jnp.square, params)
    found, moved = jax.jit(jaxnas.weights.channel_sorter(net, SHAPE))(params, moments)
    apply, images = jax.jit(net.apply), normal(*SHAPE)
    before, after = (apply({"params": p}, images, space.largest()) for p in (params, found))
    np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, moved, jax.tree.map(jnp.square, found))
    flat, old = (flatten(p) for p in (found, params))
    for i in range(2):
        reads = np.abs(flat[f"block_{i}", "mlp", "out", "kernel"]).sum(axis=1)
        assert np.all(np.diff(reads) <= 0) and len(reads) == 16
    assert any(np.any(flat[path] != old[path]) for path in flat)
    others = [path for path in flat if "mlp" not in path]
    assert all(np.array_equal(flat[path], old[path]) for path in others)


def test_blocks_that_expand_nothing_keep_their_channels():
    """Their inner channels are those of the residual stream, which no layer may sort alone."""
    block = {"kernel": (3,), "squeeze": (0,), "block": ("mbconv",), "depth": (1,)}
    stages = [block | {"width": (8, 16), "expansion": (1,)}, block | {"width": (16,), "expansion": (2, 4)}]
    space = spaces.hybrid(stages, (8, 16), (16,))
    net = supernets.Hybrid(space, num_classes=3, strides=(1, 1), stem_stride=1)
    variables = random(net, 0)
    (params,) = jaxnas.weights.channel_sorter(net, SHAPE)(variables["params"])
    arch, apply, images = net.space.largest(), jax.jit(net.apply), normal(*SHAPE)
    fresh = {"batch_stats": jaxnas.init(net, jax.random.key(0), SHAPE)["batch_stats"]}
    before, after = (apply({"params": p} | fresh, images, arch) for p in (variables["params"], params))
    np.testing.assert_allclose(before, after, rtol=1e-4)
    changed = jax.tree.map(lambda a, b: np.any(a != b), variables["params"], params)
    assert any(jax.tree.leaves(changed))

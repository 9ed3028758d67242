"""ViT and Swin: drop path, initial values, indices out of range."""

import functools

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_nets import CLASSES, SHAPE, difference, jit, setting

import jaxnas
from jaxnas import spaces, supernets
from jaxnas.elastic.layers import drop_path

# ---- Drop path.


def test_drop_path_drops_whole_examples_at_its_rate():
    count, rate = 20_000, 0.3
    factors = np.asarray(drop_path(jax.random.key(0), rate, count))
    assert set(np.unique(factors)) == {0, np.float32(1 / (1 - rate))}
    assert abs(np.mean(factors == 0) - rate) < 4 * (rate * (1 - rate) / count) ** 0.5


def test_drop_path_is_for_training_only():
    case = setting("wide")
    net = case.net.clone(space=case.space.fix(case.space.largest()))

    def apply(train, key):
        return net.apply(case.variables, case.images, train=train, rngs={"dropout": key})

    assert "random" not in str(jax.make_jaxpr(functools.partial(apply, False))(jax.random.key(0)))
    train = jit(functools.partial(apply, True))
    # Of two branches in the last layer, three examples: most keys drop something.
    outputs = [np.asarray(train(jax.random.key(seed))) for seed in range(8)]
    assert len({x.tobytes() for x in outputs}) > 2
    np.testing.assert_array_equal(train(jax.random.key(3)), outputs[3])
    with pytest.raises(Exception, match="dropout"):
        jax.eval_shape(lambda: net.apply(case.variables, case.images, train=True))


def test_drop_path_rises_linearly_to_the_last_stored_block():
    stages = dict(embed_dim=((4,), (8,)), window=((2,), (2,)), num_heads=((1,), (1,)), mlp_ratio=((1,), (1,)))
    stages = spaces.swin(depth=((1, 3), (2,)), qkv_dim=((4,), (4,)), **stages)
    ramp = [0, 0.1, 0.2, 0.3, 0.4]
    nets = (
        (
            supernets.ViT(spaces.vit((8,), (2, 5), (1,), (1.0,)), 8, 4, CLASSES, drop_path_rate=0.4),
            True,
            ramp,
        ),
        (supernets.Swin(stages, 8, 2, CLASSES, drop_path_rate=0.4), True, ramp),
        (supernets.Swin(stages, 8, 2, CLASSES, drop_path_rate=0.4), False, [None] * 5),
    )
    for net, train, expected in nets:
        rates = {}

        def note(call, args, kwargs, context, rates=rates):
            if "drop_path_rate" in kwargs:
                rates[context.module.name] = kwargs["drop_path_rate"]
            return call(*args, **kwargs)

        images = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
        with nn.intercept_methods(note):
            jax.eval_shape(functools.partial(net.init, train=train), jax.random.key(0), images)
        assert list(rates.values()) == (pytest.approx(expected) if train else expected)


# ---- Initial values.


@pytest.mark.parametrize("init_std", [0.02, None])
def test_initial_values(init_std):
    """Kernels of a given deviation, or scaled by their inputs as Flax's; patches as PyTorch's convolution."""
    net = supernets.ViT(spaces.vit((32, 64), (1,), (2,), (2.0,)), 16, 4, 10, init_std=init_std)
    params = jaxnas.init(net, jax.random.key(0), (1, 16, 16, 3))["params"]
    flat = flax.traverse_util.flatten_dict(params)
    assert not any(isinstance(leaf, nn.meta.AxisMetadata) for leaf in flat.values())
    assert flat["tokens", "positions"].shape == (17, 64)
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
            scaled = init_std is None and path[0] == "block_0" and path[-1].endswith("kernel")
            expected = leaf.shape[0] ** -0.5 if scaled else 0.02
            error = 5 / leaf.size**0.5
            assert abs(np.std(leaf) / expected - 1) < error and abs(np.mean(leaf)) < expected * error


# ---- Indices out of range.


def test_traced_indices_out_of_range_are_the_nearest_ones():
    """A program cannot refuse the value of an array; it must not run another mixture of options either.

    Layer by layer, in a loop, and of costs; whoever gives the values themselves is told.
    """
    case, scanned = setting("narrow"), setting("scanned")
    costs = jaxnas.cost(case.net, SHAPE)
    traced, run = (
        jit(costs),
        jit(lambda one, arch: one.net.apply(one.variables, one.images, arch), static_argnums=0),
    )
    sizes = {name: np.broadcast_to(choice.sizes, choice.shape) for name, choice in case.space.decisions}
    for shift in (5, -5):
        known = {name: np.int32(size - 1 if shift > 0 else 0 * size) for name, size in sizes.items()}
        beyond = {name: np.int32(x + shift) for name, x in known.items()}
        for one in (case, scanned):
            assert difference(run(one, beyond), run(one, known)) <= 1e-6
        assert traced(beyond) == traced(known)
        for call in (costs, functools.partial(case.net.apply, case.variables, case.images)):
            with pytest.raises(ValueError, match="'embed_dim'"):
                call(beyond)

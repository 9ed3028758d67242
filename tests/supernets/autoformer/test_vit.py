"""ViT and Swin: devices, drop path, initial values, indices out of range."""

import functools

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import promises
import pytest
import tiers
from jax.sharding import NamedSharding, PartitionSpec
from small_nets import CLASSES, SHAPE, difference, jit, normal, setting

import jaxnas
from jaxnas import spaces, supernets
from jaxnas.elastic.layers import drop_path
from jaxnas.training.mesh import make_mesh


@pytest.mark.hlo
@pytest.mark.eight_devices
@pytest.mark.parametrize("name", ["switch", *tiers.nightly("narrow")])
def test_rows_on_several_devices_are_not_gathered(name):
    case, mesh = setting(name), make_mesh(2)

    def loss(params, images, arch):
        return jnp.mean(jnp.square(case.net.apply({"params": params}, images, arch)))

    everywhere, rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    gradient = jit(jax.grad(loss), in_shardings=(everywhere, rows, everywhere), out_shardings=everywhere)
    promises.check_only_sums(gradient.lower(case.params, normal(4, *SHAPE[1:]), case.space.largest()))


def test_drop_path_drops_whole_examples_at_its_rate():
    count, rate = 20_000, 0.3
    factors = np.asarray(drop_path(jax.random.key(0), rate, count))
    assert set(np.unique(factors)) == {0, np.float32(1 / (1 - rate))}
    assert abs(np.mean(factors == 0) - rate) < 4 * (rate * (1 - rate) / count) ** 0.5


def test_drop_path_rises_linearly_to_the_last_stored_block():
    stages = dict(embed_dim=((4,), (8,)), window=((2,), (2,)), num_heads=((1,), (1,)), mlp_ratio=((1,), (1,)))
    stages = spaces.swin(depth=((1, 3), (2,)), qkv_dim=((4,), (4,)), **stages)
    ramp, images = [0, 0.1, 0.2, 0.3, 0.4], jax.ShapeDtypeStruct(SHAPE, jnp.float32)
    vit = supernets.ViT(spaces.vit((8,), (2, 5), (1,), (1.0,)), 8, 4, CLASSES, drop_path_rate=0.4)
    swin = supernets.Swin(stages, 8, 2, CLASSES, drop_path_rate=0.4)
    for net, train, expected in ((vit, True, ramp), (swin, True, ramp), (swin, False, [None] * 5)):
        rates = {}

        def note(call, args, kwargs, context, rates=rates):
            if isinstance(context.module, nn.Dropout) and not context.module.deterministic:
                rates[context.module.path[0]] = context.module.rate
            if "drop_path_rate" in kwargs:
                rates[context.module.name] = kwargs["drop_path_rate"]
            return call(*args, **kwargs)

        variables = jax.eval_shape(net.init, jax.random.key(0), images)
        with nn.intercept_methods(note):
            apply = functools.partial(net.apply, train=train, rngs=jax.random.key(0))
            jax.eval_shape(apply, variables, images, net.space.largest())
        assert list(rates.values()) == (pytest.approx(expected) if train else expected)


@pytest.mark.parametrize("init_std", [0.02, *tiers.more(None)])
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


@pytest.mark.parametrize("form", ["masked", *tiers.more("switch")])
def test_traced_indices_out_of_range_are_the_nearest_ones(form):
    """A program cannot refuse the value of an array; it must not run another mixture of options either.

    Nor may costs; whoever gives the values themselves is told.
    """
    case = setting("narrow")
    net = case.net.clone(form=form)
    costs = jaxnas.cost(case.net, SHAPE)
    traced = jit(costs)
    run = jit(lambda arch: net.apply(case.variables, case.images, arch))
    sizes = {name: np.broadcast_to(choice.sizes, choice.shape) for name, choice in case.space.decisions}
    for shift in (1, -1):
        known = {name: np.int32(size - 1 if shift > 0 else 0 * size) for name, size in sizes.items()}
        beyond = {name: np.int32(x + shift) for name, x in known.items()}
        assert difference(run(beyond), run(known)) <= 1e-6
        assert traced(beyond) == traced(known)
        for call in (costs, functools.partial(case.net.apply, case.variables, case.images)):
            with pytest.raises(ValueError, match="'embed_dim'"):
                call(beyond)

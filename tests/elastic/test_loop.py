"""Layers in a loop: the same function as layers one after another, in place, in memory that nobody fills."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from small_nets import SHAPE, difference, flatten, jit, masks_of, normal, sample, setting

import jaxnas
from jaxnas import spaces
from jaxnas.elastic import loop, switch
from jaxnas.elastic.attention import AttentionOperation
from jaxnas.elastic.empty import empty
from jaxnas.elastic.layers import LayerNormOperation, MlpOperation, PreNorm
from jaxnas.elastic.loop import run_layer, run_layers
from jaxnas.elastic.switch import Sublayer
from jaxnas.elastic.width import Decision, fixed, width
from jaxnas.supernets import stack_layers, unstack_layers
from jaxnas.training.step import data_mesh

seeds = st.integers(0, 2**31 - 1)
FLOAT = np.dtype(np.float32)
MLP = (MlpOperation(FLOAT), [(6, 8), (8,), (8, 6), (6,)])
ATTENTION = (AttentionOperation(5, (2, 2), FLOAT), [(6, 3, 4, 3), (3, 4, 3), (12, 6), (6,), (7, 3), (7, 3)])


@settings(max_examples=4)
@given(seed=seeds)
def test_scanned_layers_are_the_unrolled_ones(seed):
    arch = sample(setting("scanned").space, seed)
    logits, _, gradient = setting("scanned")(arch)
    expected, _, expected_gradient = setting("narrow")(arch)
    assert difference(logits, expected) <= 1e-5
    scale = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(expected_gradient))
    masks, gradient = masks_of("scanned")(arch), flatten(gradient)
    for path, leaf in flatten(expected_gradient).items():
        assert np.max(np.abs(gradient[path] - leaf)) <= 1e-5 * scale, path
        assert not np.any(np.where(masks[path], 0, gradient[path])), path


def test_stacked_parameters_are_the_same_network():
    case = setting("scanned")
    stacked = stack_layers(case.params)
    assert "block_0" not in stacked and stack_layers(stacked) is stacked
    back = unstack_layers(stacked)
    jax.tree.map(np.testing.assert_array_equal, back, case.params)
    arch = sample(case.space, 0)
    (logits, _, gradient), (expected, _, expected_gradient) = case(arch, stacked), case(arch)
    np.testing.assert_array_equal(logits, expected)
    assert difference(unstack_layers(gradient), expected_gradient) <= 1e-6
    with pytest.raises(ValueError, match="unstack_layers"):
        setting("narrow")(arch, stacked)
    small = jaxnas.extract(case.net, {"params": stacked}, arch, verify=case.images).variables
    jax.tree.map(
        np.testing.assert_array_equal,
        small,
        jaxnas.extract(case.net, case.variables, arch, inputs=SHAPE).variables,
    )
    other = case.params | {"block_1": {"bias": jnp.zeros(3)}}
    with pytest.raises(ValueError, match="block_1 and block_0 differ in size"):
        stack_layers(other)


def test_layers_in_a_loop_with_64_bits():
    case = setting("scanned")
    arch = sample(case.space, 0)
    expected = case(arch)[0]
    with jax.enable_x64(True):
        apply = jit(lambda arch: case.net.apply({"params": case.params}, case.images, arch))
        assert difference(apply(arch), expected) <= 1e-5


@pytest.mark.parametrize("small", [0, 8192], ids=["large", "small"])
@pytest.mark.parametrize("normalised", [False, True], ids=["plain", "normalised"])
@pytest.mark.parametrize(
    "kind, options",
    [(MLP, (8,)), (MLP, (3, 8)), (ATTENTION, (4,)), (ATTENTION, (1, 4)), (ATTENTION, (2, 4))],
    ids=["mlp", "elastic mlp", "attention", "elastic attention", "pairs of heads"],
)
def test_layers_in_a_loop_are_one_after_another(kind, options, normalised, small, monkeypatch):
    """Also with factors of examples, where no size is chosen, and heads block by block."""
    monkeypatch.setattr(loop, "SMALL", small)
    operation, shapes = kind
    if normalised:
        operation, shapes = PreNorm(operation, LayerNormOperation(1e-5, FLOAT)), [(6,), (6,), *shapes]
    chosen = jnp.asarray([0, len(options) - 1, 0], jnp.int32)
    weights = [0.3 * normal(3, *shape) for shape in shapes]  # sharper attention magnifies rounding
    x, scales = normal(2, 5, 6), jnp.asarray([[1, 0], [2, 1], [0, 1]], jnp.float32)

    def sublayer(weights, size):
        size = width(lambda size: size, Decision(("size", None), options, size))
        return Sublayer(operation, (fixed(6), size), tuple(weights))

    def looped(x, weights):
        stacked = jax.vmap(sublayer)(weights, chosen)
        return run_layers(x, (stacked,), (scales,))

    def unrolled(x, weights):
        for layer in range(3):
            one = sublayer([w[layer] for w in weights], chosen[layer])
            x = run_layer(x, (one,), (scales[layer],))
        return x

    @functools.partial(jit, static_argnums=0)
    def value_and_gradients(fn, x, weights):
        value, vjp = jax.vjp(fn, x, weights)
        return value, vjp(jnp.cos(value))

    looped, unrolled = (value_and_gradients(fn, x, weights) for fn in (looped, unrolled))
    assert difference(looped, unrolled) <= 1e-6


def test_heads_are_turns_and_not_branches():
    """The gradient's program does not grow with the options for the number of heads."""

    def products(heads):
        space = spaces.vit((8, 12), (1, 2), heads, (1.0, 2.0))
        net = jaxnas.supernets.ViT(space, 8, 4, 3, 4, scan_layers=True)
        params = stack_layers(jaxnas.init(net, jax.random.key(0), (2, 8, 8, 3))["params"])
        gradient = jax.grad(lambda params, arch: jnp.sum(net.apply({"params": params}, images, arch)))
        return str(jax.make_jaxpr(gradient)(params, space.largest())).count("dot_general")

    images = normal(2, 8, 8, 3)
    assert products((2, 8)) == products((2, 4, 6, 8))


def test_layers_in_a_loop_are_read_and_written_in_place(monkeypatch):
    """Neither weights nor what layers keep is copied as a whole, in a step or in a loop over steps."""
    monkeypatch.setattr(loop, "SMALL", 0)
    case = setting("scanned")
    params, arch = stack_layers(case.params), case.space.largest()
    gradient = jax.grad(lambda params, arch: jnp.sum(case.net.apply({"params": params}, case.images, arch)))

    def steps(params, arch):
        def step(_, params):
            return jax.tree.map(jnp.subtract, params, gradient(params, arch))

        return jax.lax.fori_loop(0, 2, step, params)

    def made(program, name):
        """Shapes that instructions of this name have, in the loops of a program and outside."""
        shapes = {"loops": set(), "entry": set()}
        for computation in re.split(r"\n(?=%|ENTRY)", program):
            if not computation.startswith(("%fused", "%wrapped")):
                where = "entry" if computation.startswith("ENTRY") else "loops"
                shapes[where] |= set(re.findall(rf"= \w+\[({layers},\d+,[\d,]+)\]\S* {name}\(", computation))
        return shapes

    layers = max(case.space.choices["depth"].options)
    program, of_steps = (jax.jit(fn).lower(params, arch).compile().as_text() for fn in (gradient, steps))
    stores, copies = made(program, "custom-call"), made(program, "copy")
    assert stores["entry"] and not stores["loops"] and not copies["loops"]
    assert not copies["entry"] & stores["entry"]  # one array for two stores of one shape
    # A store that XLA moved out of the loop over steps would be copied in each.
    in_steps, copies = made(of_steps, "custom-call"), made(of_steps, "copy")
    assert in_steps == {"loops": stores["entry"], "entry": set()}
    assert not (copies["loops"] | copies["entry"]) & stores["entry"]


@pytest.mark.parametrize("batched", [False, True], ids=["one", "several"])
@pytest.mark.parametrize(("name", "module"), [("scanned", loop), ("wide", switch)])
def test_what_layers_keep_is_written_before_it_is_read(name, module, batched, monkeypatch):
    """Memory that nobody has written may hold anything: here it holds no numbers."""
    case = setting(name)
    archs = sample(case.space, 3, 2) if batched else case.space.smallest()  # with a layer that does not run

    def gradient(params, archs):
        # A new function for each trace.
        one = jax.grad(lambda params, arch: jnp.sum(case.net.apply({"params": params}, case.images, arch)))
        return jax.vmap(one, (None, 0))(params, archs) if batched else one(params, archs)

    expected = jit(gradient)(case.params, archs)
    jax.clear_caches()  # what was traced has the memory as it is
    made = []

    def no_numbers(like, after):
        made.append(like)
        return jax.tree.map(lambda one: jnp.full(one.shape, jnp.nan, one.dtype), like)

    monkeypatch.setattr(module, "empty", no_numbers)
    found = jit(functools.partial(gradient))(case.params, archs)
    jax.clear_caches()
    assert made
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_an_empty_array_can_be_written():
    """In a program for one device, for several, and for several architectures."""

    def squares(x):
        def write(i, store):
            return jax.lax.dynamic_update_slice(store, jnp.square(x)[None] * i, (i, 0, 0))

        return jax.lax.fori_loop(0, 3, write, empty(jax.ShapeDtypeStruct((3, *x.shape), x.dtype), x))

    x = normal(4, 5)
    expected = jnp.stack([i * jnp.square(x) for i in range(3)])
    each = jit(jax.vmap(squares))(x[:, None])[:, :, 0]  # [4, 3, 5]
    rows = NamedSharding(data_mesh(4), PartitionSpec("data"))
    for found in (jit(squares)(x), each.swapaxes(0, 1), jit(squares, in_shardings=rows)(x)):
        assert difference(found, expected) <= 1e-6

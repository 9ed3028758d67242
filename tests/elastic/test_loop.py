"""The loop over layers: a scan is the same function as layers one after another, in any network."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import SHAPE, difference, flatten, jit, masks_of, normal, sample, setting

import jaxnas
from jaxnas import Choice, Space, elastic
from jaxnas.elastic import Decisions, stack_layers, unstack_layers
from jaxnas.elastic.layers import drop_branch
from jaxnas.elastic.loop import run_layer

seeds = st.integers(0, 2**31 - 1)


@pytest.mark.more
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


@pytest.mark.more
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
        jaxnas.extract(case.net, {"params": case.params}, arch, inputs=SHAPE).variables,
    )
    other = case.params | {"block_1": {"bias": jnp.zeros(3)}}
    with pytest.raises(ValueError, match="block_1"):
        stack_layers(other)


def test_layers_in_a_scan_with_64_bits():
    case = setting("scanned")
    arch = sample(case.space, 0)
    expected = case(arch)[0]
    with jax.enable_x64(True):
        apply = jit(lambda arch: case.net.apply({"params": case.params}, case.images, arch))
        assert difference(apply(arch), expected) <= 1e-5


# ---- A network of a user's own.


class Mlps(nn.Module):
    """Residual MLPs with dropout, whose hidden widths and depth are choices; returns what enters each."""

    space: Any
    scan_layers: bool = False
    remat: bool = False

    @nn.compact
    def __call__(self, x, arch=None, *, train=False):
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        embed = elastic.fixed(x.shape[-1])
        inputs = [
            {
                "hidden": elastic.width(int, decisions["hidden", i]),
                "gate": elastic.width(lambda depth, i=i: int(i < depth), decisions["depth"]),
                "shift": 0.1 * i,
            }
            for i in range(3)
        ]

        def call(layer, x, inputs):
            y = layer(x + inputs["shift"], embed, inputs["hidden"], gate=inputs["gate"])
            if train:
                y = jnp.where(jax.random.bernoulli(layer.make_rng("dropout"), 0.5, y.shape), y, 0)
            return x + y, x

        make = functools.partial(elastic.Mlp, kernel_init=nn.initializers.normal(0.5))
        options = {"scan": self.scan_layers, "remat": self.remat}
        return elastic.run_layers(self, make, call, x, inputs, **options)


def own_space(*hidden):
    choices = Choice(*hidden).repeat(3, active="depth")
    return Space(depth=Choice(1, 2, 3), hidden=choices)


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_a_network_of_ones_own_is_scanned_and_unrolled(soft):
    space, x = own_space(2, 4, 8), normal(2, 4, 6)
    net = Mlps(space)
    params = jaxnas.init(net, jax.random.key(0), x.shape)["params"]
    assert set(params) == {"block_0", "block_1", "block_2"}
    of = {
        scan: functools.partial(net.clone(scan_layers=scan).apply, {"params": params}, x)
        for scan in (False, True)
    }
    run = {scan: jit(apply) for scan, apply in of.items()}
    for seed in range(4):
        arch = sample(space, seed)
        arch = space.soften(arch) if soft else arch
        (y, inputs), expected = run[True](arch), run[False](arch)
        assert inputs.shape == (3, *x.shape)
        assert difference((y, inputs), expected) <= 1e-5
    scans = {scan: "scan[" in str(jax.make_jaxpr(apply)(arch)) for scan, apply in of.items()}
    assert scans == {False: False, True: True}


class Gated(nn.Module):
    """Residual MLPs of which those beyond the depth are skipped, by their gate alone or as a whole."""

    space: Any
    whole: bool = True

    @nn.compact
    def __call__(self, x, arch=None, *, train=False):
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        embed = elastic.fixed(x.shape[-1])
        for i in range(3):
            gate = elastic.width(lambda depth, i=i: int(i < depth), decisions["depth"])
            hidden = elastic.width(int, decisions["hidden", i])

            def call(layer, x, hidden=hidden, gate=gate):
                y = layer(x, embed, hidden, gate=gate)
                return x + drop_branch(layer, y, 0.5 if train else None)

            layer = elastic.Mlp(name=f"block_{i}", kernel_init=nn.initializers.normal(0.5))
            x = run_layer(call, layer, x, gate=gate if self.whole else None)
        return x


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_a_layer_that_is_skipped_as_a_whole_gives_what_its_gate_gives(soft):
    space, x, key = own_space(2, 4, 8), normal(2, 4, 6), jax.random.key(3)
    net = Gated(space)
    variables = jaxnas.init(net, jax.random.key(0), x.shape)
    arch = {**sample(space, 1), "depth": jnp.int32(0)}
    arch = space.soften(arch) if soft else arch

    def gradient(whole, variables, arch):
        def loss(variables):
            y = net.clone(whole=whole).apply(variables, x, arch, train=True, rngs={"dropout": key})
            return jnp.sum(jnp.sin(y)), y

        return jax.grad(loss, has_aux=True)(variables)

    of = {whole: jit(functools.partial(gradient, whole)) for whole in (False, True)}
    for depth in range(3):
        value = jnp.int32(depth)
        arch["depth"] = jax.nn.one_hot(value, 3) if soft else value
        assert difference(of[True](variables, arch), of[False](variables, arch)) <= 1e-6
    archs = jax.tree.map(lambda *x: jnp.stack(x), *(sample(space, seed) for seed in range(3)))
    many = [jax.vmap(functools.partial(net.clone(whole=w).apply, variables, x))(archs) for w in (False, True)]
    assert difference(*many) <= 1e-6


def test_nothing_of_a_skipped_layer_runs():
    """Each layer that may be skipped is behind a condition, of which one side has nothing in it."""

    def skipped(depths):
        net = Gated(Space(depth=Choice(*depths), hidden=Choice(4).repeat(3)))
        variables = jaxnas.init(net, jax.random.key(0), (2, 4, 6))
        program = jax.make_jaxpr(net.apply)(variables, normal(2, 4, 6), sample(net.space, 0))
        sides = [one.params["branches"] for one in program.eqns if one.primitive.name == "cond"]
        return sum(any(not side.jaxpr.eqns for side in both) for both in sides)

    assert [skipped(depths) for depths in ((1, 2, 3), (2, 3), (3,))] == [2, 1, 0]


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_layers_that_are_computed_again_take_less_memory_and_give_the_same_gradient(scan):
    space, x = own_space(128, 256), normal(8, 64, 16)
    params = jaxnas.init(Mlps(space), jax.random.key(0), x.shape)["params"]
    params = stack_layers(params) if scan else params

    def program(remat):
        net = Mlps(space, scan_layers=scan, remat=remat)

        def loss(params, arch):
            y, _ = net.apply({"params": params}, x, arch, train=True, rngs={"dropout": jax.random.key(1)})
            return jnp.sum(y**2)

        return jax.jit(jax.grad(loss)).lower(params, space.largest()).compile()

    plain, again = program(False), program(True)
    for arch in (space.largest(), sample(space, 1)):
        assert difference(again(params, arch), plain(params, arch)) <= 1e-5
    memory = [one.memory_analysis().temp_size_in_bytes for one in (again, plain)]
    # XLA for CPUs computes unrolled layers again early, all of them before the backward pass.
    assert memory[0] < (0.7 if scan else 1.01) * memory[1]


def test_random_streams_differ_from_layer_to_layer():
    space, x = own_space(4, 8), jnp.ones((1, 50, 6))
    net = Mlps(space, scan_layers=True)
    params = jaxnas.init(net, jax.random.key(0), x.shape)["params"]
    params = jax.tree.map(lambda leaf: jnp.ones_like(leaf) * 0.1, params)
    apply = jit(
        lambda key: net.apply({"params": params}, x, space.largest(), train=True, rngs={"dropout": key})
    )
    y, inputs = apply(jax.random.key(0))
    enters = jnp.concatenate([inputs, y[None]])
    dropped = np.asarray(enters[1:] == enters[:-1])  # [layers, 1, rows, channels]
    assert 0.3 < dropped.mean() < 0.7 and np.any(dropped[0] != dropped[1])
    assert np.any(apply(jax.random.key(1))[0] != y)


def test_layers_with_different_options_are_unrolled():
    space, x = own_space(4, 8), normal(2, 4, 6)
    plain = space.to_json()
    plain["hidden"]["per_position"] = [[4, 8], [4], [8]]
    other = Space.from_json(plain)
    net = Mlps(other, scan_layers=True)
    params = jaxnas.init(net, jax.random.key(0), x.shape)["params"]
    text = str(jax.make_jaxpr(lambda arch: net.apply({"params": params}, x, arch))(other.smallest()))
    assert "scan[" not in text
    params = stack_layers(jaxnas.init(Mlps(space), jax.random.key(0), x.shape)["params"])
    with pytest.raises(ValueError, match="unstack_layers"):
        Mlps(space).apply({"params": params}, x, space.smallest())

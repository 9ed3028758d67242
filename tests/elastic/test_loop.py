"""The loop over layers: a scan is the same function as layers one after another, in any network."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from small_nets import difference, jit, normal, random_weights, sample, setting, take
from user_networks import Elastic

from jaxnas import Choice, Space, elastic
from jaxnas.elastic.layers import drop_branch
from jaxnas.elastic.loop import run_layer


def sizes(decisions, i):
    gate = elastic.width(lambda depth, i=i: int(i < depth), decisions["depth"])
    return {"hidden": elastic.width(int, decisions["hidden", i]), "gate": gate}


class Mlps(Elastic):
    """Residual MLPs with dropout, whose hidden widths and depth are choices; returns what enters each."""

    scan_layers: bool = False
    remat: bool = False

    def body(self, x, decisions, train):
        embed = elastic.fixed(x.shape[-1])
        own = [{"hidden": decisions["hidden", i], "shift": 0.1 * i} for i in range(3)]
        inputs = [sizes(decisions, i) | more for i, more in enumerate(own)]

        def call(layer, x, inputs):
            hidden = elastic.width(int, inputs["hidden"])
            y = layer(x + inputs["shift"], embed, hidden, gate=inputs["gate"])
            if train:
                y = jnp.where(jax.random.bernoulli(layer.make_rng("dropout"), 0.5, y.shape), y, 0)
            return x + y, x

        return elastic.run_layers(self, elastic.Mlp, call, x, inputs, scan=self.scan_layers, remat=self.remat)


def own_space(*hidden):
    return Space(depth=Choice(1, 2, 3), hidden=Choice(*hidden).repeat(3, active="depth"))


def test_a_network_of_ones_own_is_scanned_and_unrolled():
    """With one layout of parameters, for hard and for soft architectures, computed again or with 64 bits."""
    space, x = own_space(2, 4, 8), normal(2, 4, 6)
    archs, params, soft = sample(space, 0, 4), random_weights(Mlps(space), x), space.soften(sample(space, 3))
    assert set(params) == {"block_0", "block_1", "block_2"}
    nets = Mlps(space), Mlps(space, scan_layers=True), Mlps(space, scan_layers=True, remat=True)

    def apply(net, params, arch):
        return net.apply({"params": params}, x, arch)

    def gradient(net, params, arch):
        return jax.grad(lambda params: jnp.sum(jnp.sin(apply(net, params, arch)[0])))(params)

    @functools.partial(jit, static_argnums=0)
    def run(net, params, archs, soft):
        call, differentiate = (functools.partial(one, net, params) for one in (apply, gradient))
        return jax.lax.map(call, archs), jax.lax.map(differentiate, archs), call(soft)

    unrolled, scanned, again = (jax.tree.map(np.asarray, run(net, params, archs, soft)) for net in nets)
    assert scanned[0][1].shape == (4, 3, *x.shape)
    assert difference(scanned, unrolled) <= 1e-5 and difference(again, scanned) <= 1e-5
    programs = [str(jax.make_jaxpr(gradient, 0)(net, params, soft)) for net in nets]
    assert ["scan[" in one for one in programs] == [False, True, True]
    assert ["prevent_cse" in one for one in programs] == [False, False, True]
    vit, arch = setting("narrow"), sample(setting("narrow").space, 0)
    with jax.enable_x64(True):
        wide = jit(functools.partial(apply, nets[1]))(params, take(archs, 0))
        assert difference(wide[0], scanned[0][0][0]) <= 1e-5
        jax.eval_shape(vit.net.apply, vit.variables, vit.images, arch)


class Gated(Elastic):
    """Residual MLPs of which those beyond the depth are skipped, by their gate alone or as a whole."""

    whole: bool = True

    def body(self, x, decisions, train):
        embed = elastic.fixed(x.shape[-1])
        for i in range(3):
            own = sizes(decisions, i)

            def call(layer, x, own=own):
                y = layer(x, embed, own["hidden"], gate=own["gate"])
                return x + drop_branch(layer, y, 0.5 if train else None)

            x = run_layer(call, elastic.Mlp(name=f"block_{i}"), x, gate=own["gate"] if self.whole else None)
        return x


def test_a_layer_that_is_skipped_as_a_whole_gives_what_its_gate_gives():
    """With its gradient and dropout; for hard and for soft architectures, and under vmap."""
    space, x = own_space(4, 8), normal(2, 4, 6)
    net = Gated(space)
    variables = {"params": random_weights(net, x)}

    @functools.partial(jit, static_argnums=0)
    def run(whole, variables, archs, soft):
        apply = net.clone(whole=whole).apply

        def gradient(arch):
            def loss(variables):
                y = apply(variables, x, arch, train=True, rngs={"dropout": jax.random.key(3)})
                return jnp.sum(jnp.sin(y)), y

            return jax.grad(loss, has_aux=True)(variables)

        evaluate = functools.partial(apply, variables, x)
        return jax.lax.map(gradient, archs), evaluate(soft), jax.vmap(evaluate)(archs)

    archs = sample(space, 0, 3) | {"depth": jnp.arange(3, dtype=jnp.int32)}
    given = variables, archs, space.soften(sample(space, 1))
    assert difference(run(True, *given), run(False, *given)) <= 1e-6


def test_nothing_of_a_skipped_layer_runs():
    def skipped(depths):
        net, x = Gated(Space(depth=Choice(*depths), hidden=Choice(4).repeat(3))), normal(2, 4, 6)
        program = jax.make_jaxpr(net.apply)({"params": random_weights(net, x)}, x, sample(net.space, 0))
        sides = [one.params["branches"] for one in program.eqns if one.primitive.name == "cond"]
        return sum(any(not side.jaxpr.eqns for side in both) for both in sides)

    assert [skipped(depths) for depths in ((1, 2, 3), (2, 3), (3,))] == [2, 1, 0]


def test_random_streams_differ_from_layer_to_layer():
    space, x = own_space(4, 8), jnp.ones((1, 50, 6))
    net = Mlps(space, scan_layers=True)
    params = jax.tree.map(lambda leaf: np.full_like(leaf, 0.1), random_weights(net, x))
    bound = functools.partial(net.apply, {"params": params}, x, space.largest(), train=True)
    apply = jit(lambda key: bound(rngs={"dropout": key}))
    y, inputs = map(np.asarray, apply(jax.random.key(0)))
    enters = np.concatenate([inputs, y[None]])
    dropped = enters[1:] == enters[:-1]  # [layers, 1, rows, channels]
    assert 0.3 < dropped.mean() < 0.7 and np.any(dropped[0] != dropped[1])
    assert np.any(np.asarray(apply(jax.random.key(1))[0]) != y)


def test_layers_with_different_options_are_unrolled():
    space, x = own_space(4, 8), normal(2, 4, 6)
    plain = space.to_json()
    plain["hidden"]["per_position"] = [[4, 8], [4], [8]]
    other = Space.from_json(plain)
    net, hard = Mlps(other, scan_layers=True), sample(other, 0)
    apply = functools.partial(net.apply, {"params": random_weights(net, x)}, x)
    assert "scan[" not in str(jax.make_jaxpr(apply)(other.smallest()))
    soft = other.soften(hard)  # of positions with fewer options, and of some decisions alone
    for arch in (soft, hard | {"depth": soft["depth"]}):
        assert difference(jit(apply)(arch), jit(apply)(hard)) <= 1e-5

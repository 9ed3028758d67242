"""Networks as Flax NNX modules compute, differentiate and train as Flax Linen does."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from plain_networks import Pictures
from small_nets import TABLE, normal, sample, take

import jaxnas
from jaxnas import Choice

KEY = jax.random.key(0)


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_outputs_and_gradients_are_those_of_the_network_in_one_program():
    rows, targets, traces = normal(8, 5), normal(8, 3), []
    variables, archs = jaxnas.init(TABLE, KEY, rows), sample(TABLE.space, 0, 1000)
    graph, state = nnx.split(jaxnas.nnx.from_linen(TABLE, variables))

    def loss(outputs):
        return jnp.mean((outputs - targets) ** 2)

    @jax.jit
    def by_module(state, arch):
        traces.append(0)
        return jax.value_and_grad(lambda state: loss(nnx.merge(graph, state)(rows, arch)))(state)

    by_variables = jax.jit(jax.value_and_grad(lambda v, arch: loss(TABLE.apply(v, rows, arch))))
    for i in range(1000):
        found, gradient = by_module(state, take(archs, i))
        if i % 50 == 0:
            expected, of_variables = by_variables(variables, take(archs, i))
            assert found == expected
            equal(nnx.to_pure_dict(gradient)["variables"], of_variables)
    assert len(traces) == 1
    many = nnx.vmap(lambda module, arch: module(rows, arch), in_axes=(None, 0))
    assert many(nnx.merge(graph, state), archs).shape == (1000, 8, 3)


def test_a_found_network_trains_on_in_an_optimizer_of_nnx_and_comes_back():
    images, labels = normal(6, 8, 8, 1), jnp.arange(6) % 2
    model = Pictures(3, 6)
    groups = jaxnas.analyze(model, model.init(KEY, images), images)
    net = jaxnas.supernet(groups, {"conv/channels": Choice(2, 4, 6)})
    before, arch, key = groups.model.variables, net.space.smallest(), jax.random.key(3)
    module = jaxnas.nnx.from_linen(net, before)
    equal(jaxnas.nnx.to_linen(module), before)

    def loss(outputs):
        return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()

    apply, optimizer = jax.jit(net.apply, static_argnames=("train", "mutable")), optax.sgd(0.1, momentum=0.9)
    training = dict(train=True, rngs={"dropout": key}, mutable=("batch_stats",))
    outputs, changed = apply(before, images, arch, **training)
    close = functools.partial(np.testing.assert_allclose, atol=1e-6)
    close(module(images, arch, train=True, key=key), outputs)
    jax.tree.map(close, jaxnas.nnx.to_linen(module)["batch_stats"], changed["batch_stats"])
    steps = nnx.Optimizer(module, optimizer, wrt=nnx.Param)

    @nnx.jit
    def step(module, steps):
        value, gradient = nnx.value_and_grad(lambda module: loss(module(images, arch)))(module)
        steps.update(module, gradient)
        return value

    losses = [float(step(module, steps)) for _ in range(4)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]
    small = jaxnas.extract(net, jaxnas.nnx.to_linen(module), arch, verify=images)
    close(small.net.apply(small.variables, images), module(images, arch), rtol=1e-5, atol=1e-5)

"""`switch_branches` against `lax.switch` with JAX's own gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxnas.elastic.branches import switch_branches

SIZE = 256
X, W, KEY = jnp.linspace(-1, 1, SIZE), jnp.linspace(1, 2, SIZE), jax.random.key(0)
PLACES = jnp.arange(SIZE)[::-1]


def dropped(x, weights, places, key):
    return {"y": jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x * weights["scale"], 0)}


def gathered(x, weights, places, key):
    return {"y": jnp.sin(x[places]) + weights["shift"]}


def nothing(x, weights, places, key):
    return {"y": jnp.zeros_like(x)}


def objective(switch, index, x, weights):
    y = switch(index, [dropped, gathered, nothing], x, weights, PLACES, KEY)["y"]
    return jnp.sum(y**2 * jnp.cos(jnp.arange(SIZE)))


def test_values_and_gradients_are_those_of_lax_switch():
    weights = {"scale": W, "shift": 2 * W}
    grads = {
        switch: jax.jit(jax.value_and_grad(functools.partial(objective, switch), argnums=(1, 2)))
        for switch in (switch_branches, lax.switch)
    }
    for index in range(3):
        own, reference = (grad(jnp.int32(index), X, weights) for grad in grads.values())
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), own, reference)
    # Batches of indices and operands, or of operands alone.
    batch = jnp.stack([X, X + 1, X + 2])
    for axes, index in (((0, 0, None), jnp.arange(3, dtype=jnp.int32)), ((None, 0, None), jnp.int32(1))):
        own, reference = (jax.vmap(grad, axes)(index, batch, weights) for grad in grads.values())
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), own, reference)


def test_memory_of_the_backward_pass_does_not_grow_with_the_branches():
    def memory(switch, count):
        def power(n, x):
            for _ in range(4):
                x = jnp.sin(x) * (n + 2.0)
            return x

        def loss(index, x):
            def turn(x, index):
                return switch(index, [functools.partial(power, n) for n in range(count)], x), None

            return jnp.sum(lax.scan(turn, x, jnp.full(8, index))[0])

        compiled = jax.jit(jax.grad(loss, argnums=1)).lower(jnp.int32(0), jnp.zeros(2**14)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(switch_branches, 16) == pytest.approx(memory(switch_branches, 2), rel=0.1)
    assert memory(lax.switch, 16) > 3 * memory(switch_branches, 16)  # so that the test can fail

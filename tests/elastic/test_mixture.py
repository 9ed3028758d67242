"""Mixtures of blocks: one block by index, all by weights, and what passes through them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnas.elastic.mixture import Mixture
from jaxnas.elastic.width import Decision

OPTIONS = ("keep", "scale", "dense")


class Scale(nn.Module):
    @nn.compact
    def __call__(self, x, state):
        scale = self.param("scale", nn.initializers.constant(3.0), (x.shape[-1],))
        return x * scale[None, :], state + 1


class Noisy(nn.Module):
    """A dense layer with dropout."""

    features: int = 4

    @nn.compact
    def __call__(self, x, state):
        keep = jax.random.bernoulli(self.make_rng("dropout"), 0.5, x.shape)
        return nn.Dense(self.features)(jnp.where(keep, x, 0.0)), state + jnp.sum(x)


class Keep(nn.Module):
    def __call__(self, x, state):
        return x, state


MIXTURE = Mixture({"keep": Keep(), "scale": Scale(), "dense": Noisy()})
X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), jnp.float32)
STATE = jnp.float32(2)
RNGS = {"dropout": jax.random.key(5)}


def decision(value):
    return Decision(("op", 0), OPTIONS, value)


def call(params, value, x=X):
    return MIXTURE.apply(params, decision(value), x, STATE, rngs=RNGS)


@pytest.fixture(scope="module")
def params():
    keys = {"params": jax.random.key(1), "dropout": jax.random.key(2)}
    return MIXTURE.init(keys, decision(jnp.int32(0)), X, STATE)


@pytest.fixture(scope="module")
def by_index(params):
    """What each block gives, by a traced index in one program."""
    traces = []

    def traced(index):
        traces.append(index)
        return call(params, index)

    compiled = jax.jit(traced)
    found = [compiled(jnp.int32(i)) for i in range(3)]
    assert len(traces) == 1
    return found


def test_an_index_is_the_block_alone(params, by_index):
    leaves = params["params"]
    expected = (X, STATE), (X * leaves["blocks_scale"]["scale"][None, :], STATE + 1)
    for (y, state), (want, after) in zip(by_index, expected, strict=False):
        np.testing.assert_array_equal(y, want)
        assert state == after
    # Dropout is on: the rows of the dense block are those of some kept inputs.
    dense = leaves["blocks_dense"]["Dense_0"]
    whole = X @ dense["kernel"] + dense["bias"][None, :]
    assert by_index[2][0].shape == whole.shape and not np.allclose(by_index[2][0], whole)


def test_weights_give_the_weighted_sum_of_outputs_and_of_states(params, by_index):
    weights = jnp.array([0.2, 0.5, 0.3])
    y, state = jax.jit(call)(params, weights)
    expected = sum(w * np.asarray(one) for w, (one, _) in zip(weights, by_index, strict=True))
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    states = sum(float(w) * float(s) for w, (_, s) in zip(weights, by_index, strict=True))
    np.testing.assert_allclose(state, states, rtol=1e-6)


def test_one_hot_weights_are_the_index_with_a_gradient_for_all(params, by_index):
    for i in range(3):
        y, _ = call(params, jax.nn.one_hot(i, 3))
        np.testing.assert_allclose(y, by_index[i][0], rtol=1e-6)
    gradient = jax.grad(lambda w: jnp.sum(call(params, w)[0]))(jax.nn.one_hot(1, 3))
    # By the options' outputs, also of those that have no weight.
    np.testing.assert_allclose(gradient, [float(jnp.sum(y)) for y, _ in by_index], rtol=1e-5)


def test_gradients_by_index_reach_the_chosen_block_alone(params):
    def loss(params, index):
        return jnp.sum(call(params, index)[0] ** 2)

    gradient = jax.jit(jax.grad(loss))
    for i, name in enumerate(OPTIONS):
        norms = {
            key: sum(float(jnp.sum(jnp.abs(x))) for x in jax.tree.leaves(tree))
            for key, tree in gradient(params, jnp.int32(i))["params"].items()
        }
        assert {key for key, norm in norms.items() if norm > 0} <= {f"blocks_{name}"}, norms
        assert name == "keep" or norms[f"blocks_{name}"] > 0


def test_a_chosen_block_is_all_that_runs():
    """XLA's count of the program's operations is no guide here: a branch that never ends would hang."""

    class Endless(nn.Module):
        @nn.compact
        def __call__(self, x, state):
            return jax.lax.while_loop(lambda _: True, lambda x: x * 1.5, x), state

    endless = Mixture({"keep": Keep(), "endless": Endless()})
    choice = Decision(("op", 0), ("keep", "endless"), jnp.int32(0))
    y, _ = jax.jit(lambda index: endless.apply({}, choice._replace(value=index), X, STATE))(jnp.int32(0))
    np.testing.assert_array_equal(y, X)


def test_vmap_over_indices_is_the_loop_over_them(params, by_index):
    many, states = jax.vmap(lambda i: call(params, i))(jnp.arange(3, dtype=jnp.int32))
    for i, (one, state) in enumerate(by_index):
        np.testing.assert_allclose(many[i], one, rtol=1e-6)
        np.testing.assert_allclose(states[i], state, rtol=1e-6)


def test_second_derivatives_in_the_weights(params):
    def loss(w):
        return jnp.sum(call(params, w)[0] ** 2)

    w, v = jnp.array([0.2, 0.5, 0.3]), jnp.array([1.0, -2.0, 0.5])
    exact = jax.jvp(jax.grad(loss), (w,), (v,))[1]
    # The loss is quadratic in the weights, so a difference is exact but for rounding.
    difference = (jax.grad(loss)(w + v) - jax.grad(loss)(w - v)) / 2
    np.testing.assert_allclose(exact, difference, rtol=1e-4)


def test_gradients_of_weights_are_those_of_float32_in_bfloat16():
    """They are sums over a whole activation, which bfloat16 could not hold."""

    class Times(nn.Module):
        factor: float

        def __call__(self, x):
            return x * jnp.asarray(self.factor, x.dtype)

    mixture = Mixture({"a": Times(1.0), "b": Times(0.37)})
    x = jnp.full((4096, 8), 0.1)

    def gradient(dtype):
        choice = lambda w: Decision(("op", 0), ("a", "b"), w)  # noqa: E731
        return jax.grad(
            lambda w: jnp.mean(mixture.apply({}, choice(w), x.astype(dtype)).astype(jnp.float32))
        )(jnp.array([0.5, 0.5]))

    np.testing.assert_allclose(gradient(jnp.bfloat16), gradient(jnp.float32), rtol=0.01)


def test_positions_with_fewer_options_and_all_collections_mutable(params, by_index):
    short = Mixture({"keep": Keep(), "scale": Scale()})
    some = {"params": {"blocks_scale": params["params"]["blocks_scale"]}}
    # The weights of a space have the width of its longest position.
    choice = Decision(("op", 0), ("keep", "scale"), jnp.array([0.25, 0.75, 0.0]))
    y, _ = short.apply(some, choice, X, STATE)
    np.testing.assert_allclose(y, 0.25 * X + 0.75 * by_index[1][0], rtol=1e-6)
    for i in range(2):
        (y, _), _ = MIXTURE.apply(params, decision(jnp.int32(i)), X, STATE, rngs=RNGS, mutable=True)
        np.testing.assert_array_equal(y, by_index[i][0])


def test_clear_errors():
    def init(blocks, options=("a", "b")):
        keys = {"params": jax.random.key(0), "dropout": jax.random.key(0)}
        Mixture(blocks).init(keys, Decision(("op", 0), options, jnp.int32(0)), X, STATE)

    with pytest.raises(ValueError, match="'c'"):
        init({"a": Keep()}, ("a", "c"))
    with pytest.raises(ValueError, match="'a'"):
        init({"a": Keep(), "b": Noisy(features=5)})


class Waves(nn.Module):
    """Sines of a table with so many rows: what its gradient needs is large, and has a shape of its own."""

    rows: int

    @nn.compact
    def __call__(self, x):
        y = x.reshape(self.rows, -1)
        for i in range(4):
            y = jnp.sin(y * self.param(f"frequency_{i}", nn.initializers.ones, (self.rows, 1)))
        return y.reshape(x.shape)


def test_memory_of_the_gradient_of_a_hard_choice_does_not_grow_with_the_blocks():
    def memory(count):
        names = tuple(f"waves_{n}" for n in range(count))
        net = Mixture({name: Waves(2**n) for n, name in enumerate(names)})
        x = jnp.ones(2**16)
        variables = net.init(jax.random.key(0), Decision(("op", 0), names, jnp.int32(0)), x)

        def loss(variables, x, index):
            return jnp.sum(net.apply(variables, Decision(("op", 0), names, index), x) ** 2)

        program = jax.jit(jax.grad(loss)).lower(variables, x, jnp.int32(0)).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert memory(8) == pytest.approx(memory(2), rel=0.1)

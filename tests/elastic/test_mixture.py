"""Mixtures of blocks: one by index, all by weights, what passes through them; mistakes with all layers."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals

from jaxnas.elastic import Attention, Conv, Mixture, fixed, run, width
from jaxnas.elastic.width import Decision

OPTIONS = ("keep", "scale", "dense")


class Keep(nn.Module):
    def __call__(self, x, state):
        return x, state


class Scale(nn.Module):
    @nn.compact
    def __call__(self, x, state):
        scale = self.param("scale", nn.initializers.constant(3.0), (x.shape[-1],))
        return x * scale[None, :], state + 1


class Noisy(nn.Module):
    features: int = 4

    @nn.compact
    def __call__(self, x, state):
        keep = jax.random.bernoulli(self.make_rng("dropout"), 0.5, x.shape)
        return nn.Dense(self.features)(jnp.where(keep, x, 0.0)), state + jnp.sum(x)


MIXTURE = Mixture({"keep": Keep(), "scale": Scale(), "dense": Noisy()})
X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
STATE = jnp.float32(2)
WEIGHTS, DIRECTION = jnp.array([0.2, 0.5, 0.3]), jnp.array([1.0, -2.0, 0.5])


def decision(value, options=OPTIONS):
    return Decision(("op", 0), options, value)


@functools.cache
def probe():
    def call(params, value, **options):
        rngs = {"dropout": jax.random.key(5)}
        return MIXTURE.apply(params, decision(value), X, STATE, rngs=rngs, **options)

    def square(params, value):
        return jnp.sum(call(params, value)[0] ** 2)

    @jax.jit
    def run():
        keys = {"params": jax.random.key(1), "dropout": jax.random.key(2)}
        params = MIXTURE.init(keys, decision(jnp.int32(0)), X, STATE)
        indices, one_hot = jnp.arange(3, dtype=jnp.int32), jnp.eye(3)
        call_it, gradient = functools.partial(call, params), jax.grad(square, 1)
        # The weights of a space have the width of its longest position.
        short = Mixture({"keep": Keep(), "scale": Scale()})
        some = {"params": {"blocks_scale": params["params"]["blocks_scale"]}}
        choice = decision(jnp.array([0.25, 0.75, 0.0]), OPTIONS[:2])
        return params["params"], {
            "index": jax.lax.map(call_it, indices),
            "vmap": jax.vmap(call_it)(indices),
            "mutable": jax.lax.map(lambda i: call(params, i, mutable=True)[0], indices[:2]),
            "weights": call_it(WEIGHTS),
            "one hot": jax.vmap(call_it)(one_hot),
            "of one hot": jax.grad(lambda w: jnp.sum(call_it(w)[0]))(one_hot[1]),
            "of params": jax.lax.map(lambda i: jax.grad(square)(params, i)["params"], indices),
            "second": jax.jvp(functools.partial(gradient, params), (WEIGHTS,), (DIRECTION,))[1],
            "around": [gradient(params, WEIGHTS + sign * DIRECTION) for sign in (1, -1)],
            "short": short.apply(some, choice, X, STATE)[0],
        }

    return jax.tree.map(np.asarray, run())


def test_an_index_is_the_block_alone_also_under_vmap():
    params, found = probe()
    (outputs, states), (many, many_states) = found["index"], found["vmap"]
    np.testing.assert_array_equal(outputs[:2], [X, X * params["blocks_scale"]["scale"]])
    np.testing.assert_array_equal(states[:2], [STATE, STATE + 1])
    # Dropout is on: the rows of the dense block are those of some kept inputs.
    dense = params["blocks_dense"]["Dense_0"]
    assert not np.allclose(outputs[2], X @ dense["kernel"] + dense["bias"])
    np.testing.assert_allclose(many, outputs, rtol=1e-6)
    np.testing.assert_allclose(many_states, states, rtol=1e-6)
    np.testing.assert_array_equal(found["mutable"][0], outputs[:2])


def test_weights_give_the_weighted_sum_of_outputs_and_of_states():
    """With gradients by the outputs of all options, also of those without weight, and second derivatives."""
    _, found = probe()
    (outputs, states), (y, state) = found["index"], found["weights"]
    np.testing.assert_allclose(y, np.tensordot(np.float64(WEIGHTS), outputs, 1), rtol=1e-6)
    np.testing.assert_allclose(state, np.asarray(WEIGHTS) @ states, rtol=1e-6)
    np.testing.assert_allclose(found["one hot"][0], outputs, rtol=1e-6)
    # At a position with fewer options.
    np.testing.assert_allclose(found["short"], 0.25 * outputs[0] + 0.75 * outputs[1], rtol=1e-6)
    np.testing.assert_allclose(found["of one hot"], outputs.sum(axis=(1, 2)), rtol=1e-5)
    # The loss is quadratic in the weights, so a difference is exact but for rounding.
    np.testing.assert_allclose(found["second"], np.subtract(*found["around"]) / 2, rtol=1e-4)

    # Gradients by index reach the chosen block alone.
    for key, tree in found["of params"].items():
        reached = [any(np.any(leaf[i]) for leaf in jax.tree.leaves(tree)) for i in range(3)]
        assert [f"blocks_{name}" for name, one in zip(OPTIONS, reached, strict=True) if one] == [key]


def test_a_chosen_block_is_all_that_runs():
    """XLA's count of the program's operations is no guide here: a branch that never ends would hang."""

    class Endless(nn.Module):
        @nn.compact
        def __call__(self, x, state):
            return jax.lax.while_loop(lambda _: True, lambda x: x * 1.5, x), state

    endless = Mixture({"keep": Keep(), "endless": Endless()})
    choice = decision(jnp.int32(0), ("keep", "endless"))
    y, _ = jax.jit(lambda index: endless.apply({}, choice.replace(value=index), X, STATE))(jnp.int32(0))
    np.testing.assert_array_equal(y, X)


def test_gradients_of_weights_are_those_of_float32_in_bfloat16():
    class Times(nn.Module):
        factor: float

        def __call__(self, x):
            return x * jnp.asarray(self.factor, x.dtype)

    mixture = Mixture({"a": Times(1.0), "b": Times(0.37)})

    def gradient(dtype):
        x = jnp.full((4096, 8), 0.1, dtype)
        loss = lambda w: jnp.mean(mixture.apply({}, decision(w, ("a", "b")), x).astype(jnp.float32))  # noqa: E731
        return jax.grad(loss)(jnp.array([0.5, 0.5]))

    both = jax.jit(lambda: [gradient(dtype) for dtype in (jnp.bfloat16, jnp.float32)])
    np.testing.assert_allclose(*both(), rtol=0.01)


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
        x = jax.ShapeDtypeStruct((2**14,), jnp.float32)
        choice = functools.partial(decision, options=names)
        variables = jax.eval_shape(lambda x: net.init(jax.random.key(0), choice(jnp.int32(0)), x), x)

        def loss(variables, x, index):
            return jnp.sum(net.apply(variables, choice(index), x) ** 2)

        program = jax.jit(jax.grad(loss)).lower(variables, x, jnp.int32(0)).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert memory(5) == pytest.approx(memory(2), rel=0.1)


KEY = jax.random.key(0)


def choose(*options):
    return width(int, Decision(("size", None), options, jnp.int32(0)))


def test_mistakes_in_the_use_of_layers_are_refused():
    def attend(heads, kv_heads):
        sizes = fixed(6), choose(*heads), width(int, Decision(("kv", None), kv_heads, jnp.int32(0))), fixed(4)
        return jax.eval_shape(
            Attention(name="attention").init, jax.random.key(0), jnp.zeros((2, 5, 6)), *sizes
        )

    def convolve(conv, *sizes, out=2):
        return jax.eval_shape(
            conv.init, jax.random.key(0), jnp.zeros((1, 4, 9, 2)), fixed(2), fixed(out), choose(*sizes)
        )

    refusals.check(
        (lambda: attend((2, 4), (1, 4)), ValueError, "attention", "2 query heads", "4 key-value heads"),
        (lambda: convolve(Conv(), 2, 3), ValueError, "[2, 3]"),
        (lambda: convolve(Conv(depthwise=True), 3, out=4), ValueError, "depthwise"),
        (lambda: convolve(Conv(transformed=(5, 7)), 3), ValueError, "[3]", "transformed", "(5, 7)"),
    )


def test_mistakes_with_mixtures_and_functions_are_refused():
    def mix(options, **blocks):
        choice = decision(jnp.int32(0), options)
        return jax.eval_shape(lambda x: Mixture(blocks).init(jax.random.key(0), choice, x), jnp.ones((3, 4)))

    def call(axes, **options):
        sizes, operands = {"in": fixed(5), "out": choose(1, 6)}, map(jnp.ones, ((4, 5), 4, (5, 6), 6))
        return run(lambda x, mask, kernel, bias: x @ kernel, axes, sizes, *operands, **options)

    whole = "rows in, rows, in out, out -> rows out"
    refusals.check(
        (lambda: mix(("a", "c"), a=nn.Dense(4)), ValueError, "'c'"),
        (lambda: mix(("a", "b"), a=nn.Dense(4), b=nn.Dense(5)), ValueError, "'a'"),
        (lambda: call("rows in, in out"), ValueError, "axes", "2"),
        (lambda: call("rows in, rows, in out, in"), ValueError, "'in'"),
        (lambda: call("rows in, rows, in out, out", maskable=("out",)), ValueError, "out"),
        (lambda: call(whole, maskable=("output",)), ValueError, "'output'"),
    )

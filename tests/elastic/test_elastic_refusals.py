"""Mistakes in the use of layers are refused, by the names of what is wrong."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import refusals

from jaxnas.elastic import Attention, Conv, Mixture, fixed, run, width
from jaxnas.elastic.width import Decision

KEY = jax.random.key(0)


def choose(*options):
    return width(int, Decision(("size", None), options, jnp.int32(0)))


def test_layers():
    def attend(heads, kv_heads):
        sizes = fixed(6), choose(*heads), width(int, Decision(("kv", None), kv_heads, jnp.int32(0))), fixed(4)
        return jax.eval_shape(Attention(name="attention").init, KEY, jnp.zeros((2, 5, 6)), *sizes)

    def convolve(conv, *sizes, out=2):
        return jax.eval_shape(conv.init, KEY, jnp.zeros((1, 4, 9, 2)), fixed(2), fixed(out), choose(*sizes))

    refusals.check(
        (lambda: attend((2, 4), (1, 4)), ValueError, "attention", "2 query heads", "4 key-value heads"),
        (lambda: convolve(Conv(), 2, 3), ValueError, "[2, 3]"),
        (lambda: convolve(Conv(depthwise=True), 3, out=4), ValueError, "depthwise"),
        (lambda: convolve(Conv(transformed=(5, 7)), 3), ValueError, "[3]", "transformed", "(5, 7)"),
    )


def test_mixtures_and_functions():
    def mix(options, **blocks):
        choice = Decision(("op", 0), options, jnp.int32(0))
        return jax.eval_shape(lambda x: Mixture(blocks).init(KEY, choice, x), jnp.ones((3, 4)))

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

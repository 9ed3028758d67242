"""Mistakes in the use of layers are refused, by the names of what is wrong."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import refusals

from jaxnas.elastic import Attention, Conv, Decision, Embedding, Mixture, fixed, run, width
from jaxnas.elastic.adaptive_softmax import AdaptiveVocabulary, choose_cutoffs

KEY = jax.random.key(0)


def choose(*options):
    return width(int, Decision(("size", None), options, jnp.int32(0)))


def test_vocabularies():
    make = functools.partial(AdaptiveVocabulary, 40, 16)
    refusals.check(
        (lambda: make((20, 7)), ValueError, "cutoffs", "(20, 7)"),
        (lambda: make((0, 7)), ValueError, "cutoff 0"),
        (lambda: make((7, 40)), ValueError, "cutoff 40"),
        (lambda: make((7, 20), 5), ValueError, "cluster 2"),
        (lambda: make(chunk=0), ValueError, "chunk", "0"),
        (lambda: make().expected_macs(np.ones(39)), ValueError, "frequencies", "39"),
        (lambda: make().expected_macs(np.zeros(40)), ValueError, "frequencies", "0.0"),
        (lambda: make().expected_macs(np.arange(-1, 39)), ValueError, "frequencies", "-1.0"),
    )


def test_choices_of_cutoffs():
    def cutoffs(counts, clusters=1, **settings):
        return choose_cutoffs(np.asarray(counts), clusters, **dict(width=16) | settings)

    refusals.check(
        (lambda: cutoffs([3, 1, 2]), ValueError, "counts", "word 1"),
        (lambda: cutoffs([], 0), ValueError, "counts", "(0,)"),
        (lambda: cutoffs([[3, 1]], 0), ValueError, "counts", "(1, 2)"),
        (lambda: cutoffs([0, 0]), ValueError, "counts", "0"),
        (lambda: cutoffs([1, -1]), ValueError, "counts", "-1"),
        (lambda: cutoffs([3, 2], 2), ValueError, "clusters", "2"),
        (lambda: cutoffs([3, 2], -1), ValueError, "clusters", "-1"),
        (lambda: cutoffs([3, 2, 1], 2, div_value=5), ValueError, "16 // 5**2"),
        (lambda: cutoffs([3, 2, 1], width=0), ValueError, "width", "0"),
        (lambda: cutoffs([3, 2, 1], logit_cost=-1), ValueError, "logit_cost", "-1"),
    )


def test_layers():
    def attend(heads, kv_heads, mask=None):
        sizes = fixed(6), choose(*heads), width(int, Decision(("kv", None), kv_heads, jnp.int32(0))), fixed(4)
        return jax.eval_shape(Attention(name="attention").init, KEY, jnp.zeros((2, 5, 6)), *sizes, mask)

    def convolve(conv, *sizes, shape=(1, 4, 9, 2), out=2):
        return jax.eval_shape(conv.init, KEY, jnp.zeros(shape), fixed(2), fixed(out), choose(*sizes))

    refusals.check(
        (lambda: attend((2, 4), (1, 4)), ValueError, "attention", "2 query heads", "4 key-value heads"),
        (lambda: attend((2,), (2,), jnp.ones((2, 5))), TypeError, "mask", "float32"),
        (lambda: attend((2,), (2,), jnp.ones((5, 5), bool)), ValueError, "mask", "[5, 5]"),
        (lambda: Embedding(4).init(KEY, jnp.zeros((2, 5)), fixed(3)), TypeError, "Embedding", "float32"),
        (lambda: convolve(Conv(), 3, 5), ValueError, "kernel", "5"),
        (lambda: convolve(Conv(), 2, 3), ValueError, "[2, 3]"),
        (lambda: convolve(Conv(), 3, shape=(4, 9, 2)), ValueError, "(4, 9, 2)"),
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

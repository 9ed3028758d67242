"""Running plain functions at their active sizes: against the function of the active parts alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import promises
import pytest
import tiers
from small_nets import difference, jit, normal, take

from jaxnas.elastic import run
from jaxnas.elastic.width import Decision, width

IN, OUT, TAPS = (2, 3, 5), (1, 2, 4, 6), (1, 3)


def dense(x, visible, kernel, bias):
    return jnp.where(visible[:, None], x @ kernel + bias[None, :], 0)


def centered(x, taps, scale, *, size, keep):
    """A sum over the center of the largest window, with a size that is no axis; something is kept."""
    start = (taps.shape[0] - size) // 2
    hidden = keep(jnp.tanh(x) * scale[None, :])
    window = taps[start : start + size]  # [size, channels]
    return hidden * jnp.sum(window, axis=0)[None, :], keep(jnp.max(x) > 0)


AXES = {
    "dense": "rows in, rows, in out, out -> rows out",
    "centered": "rows channels, window channels, channels -> rows channels, ...",
}
FUNCTIONS = {"dense": dense, "centered": centered}
OPTIONS = {"dense": (IN, OUT), "centered": (IN, TAPS)}
OPERANDS = {
    "dense": (normal(4, 5), jnp.asarray([True, False, True, True]), normal(5, 6), normal(6)),
    "centered": (normal(4, 5), normal(3, 5), normal(5)),
}


def choose(name, options, index):
    return width(int, Decision((name, None), options, index))


def elastic(name, max_branches, arch, *values):
    names = ("in", "out") if name == "dense" else ("channels", "size")
    sizes = {one: choose(one, *pair) for one, *pair in zip(names, OPTIONS[name], arch[:2], strict=True)}
    # As a layer's input is: with zeros behind.
    values = (values[0] * sizes[names[0]].mask()[None, :], *values[1:])
    options = dict(gate=choose("gate", (0, 1), arch[2]), maskable=names if name == "dense" else names[:1])
    outputs = run(FUNCTIONS[name], AXES[name], sizes, *values, **options, max_branches=max_branches)
    return outputs if name == "dense" else outputs[0]


def reference(name, arch, x, *values):
    """The function of the active parts alone, by masks in place of cuts."""
    first, second = (jnp.asarray(options)[i] for options, i in zip(OPTIONS[name], arch[:2], strict=True))
    active = (jnp.arange(5) < first).astype(jnp.float32)[None, :]
    if name == "dense":
        visible, kernel, bias = values
        y = dense(x * active, visible, kernel, bias) * (jnp.arange(6) < second).astype(jnp.float32)[None, :]
    else:
        taps, scale = values
        near = (2 * abs(jnp.arange(3) - 1) < second).astype(jnp.float32)[:, None]
        y = jnp.tanh(x) * (scale * jnp.sum(taps * near, axis=0))[None, :] * active
    return y * arch[2].astype(jnp.float32)


def value_and_gradients(function, values):
    def of(*some):
        rest = iter(some)
        return function(*(next(rest) if x.dtype == jnp.float32 else x for x in values))

    y, vjp = jax.vjp(of, *(x for x in values if x.dtype == jnp.float32))
    return y, vjp(jnp.cos(y))


# The sizes share all branches, some, or none.
@pytest.mark.parametrize("name, max_branches", tiers.pairs(OPTIONS, (3, 1, 100), [("centered", 100)]))
def test_outputs_and_gradients_are_those_of_the_active_part_also_under_vmap(name, max_branches):
    """With an operand that is a mask, something kept that is no number, and where all is skipped."""
    grid = np.int32([*np.ndindex(3, len(OPTIONS[name][1]), 2)])
    archs, values = tuple(grid.T), OPERANDS[name]

    def ours(arch):
        return value_and_gradients(functools.partial(elastic, name, max_branches, arch), values)

    def theirs(arch):
        return value_and_gradients(functools.partial(reference, name, arch), values)

    run = jit(lambda archs: (jax.lax.map(ours, archs), jax.vmap(ours)(archs), jax.vmap(theirs)(archs)))
    found = jax.tree.map(np.asarray, run(archs))
    for i in range(len(grid)):
        one, many, want = (take(tree, i) for tree in found)
        assert difference(one, want) <= 1e-5 and difference(many, want) <= 1e-5
        # Zeros behind, exactly: in the output and in every gradient.
        promises.check_zero_tail(one, want)


def test_branches_grow_with_the_sum_of_the_options_and_not_with_their_product():
    def branches(limit):
        arch = (jnp.int32(0), jnp.int32(0), jnp.int32(1))
        text = str(jax.make_jaxpr(lambda *a: elastic("dense", limit, arch, *a))(*OPERANDS["dense"]))
        return text.count("dot_general")

    assert branches(100) - branches(1) == 11 and 1 < branches(5) - branches(1) < 5


@pytest.mark.hlo
def test_what_is_kept_is_not_computed_again():
    def scaled(x, kernel, scale, *, keep):
        return keep(x @ kernel) * scale[None, :]

    def loss(x, kernel, scale, index):
        sizes = {"in": choose("in", IN, index)}
        return jnp.sum(run(scaled, "rows in, in out, out -> rows out", sizes, x, kernel, scale) ** 2)

    gradient = jit(jax.grad(loss, (0, 1, 2)))
    program = gradient.lower(normal(4, 5), normal(5, 6), normal(6), jnp.int32(1)).compile().as_text()
    # For each size the product, which the gradient of the scale needs too, and those of the other two.
    assert program.count(" dot(") == 3 * len(IN)

"""Running plain functions at their active sizes: against the function of the active parts alone."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import difference, jit, normal

from jaxnas.elastic import Decision, fixed, run, width
from jaxnas.elastic.parameter import ELASTIC_SCOPE
from jaxnas.elastic.switch import _round_up

IN, OUT, TAPS = (2, 3, 5), (1, 2, 4, 6), (1, 3)
TRACES = []


def dense(x, visible, kernel, bias):
    """With a mask of rows, which has no gradient."""
    return jnp.where(visible[:, None], x @ kernel + bias[None, :], 0)


def centred(x, taps, scale, *, size, keep):
    """A sum over the centre of the largest window, with a size that is no axis; something is kept."""
    TRACES.append(size)
    start = (taps.shape[0] - size) // 2
    hidden = keep(jnp.tanh(x) * scale[None, :])
    window = taps[start : start + size]  # [size, channels]
    return hidden * jnp.sum(window, axis=0)[None, :], keep(jnp.max(x) > 0)


def choose(name, options, index):
    return width(int, Decision((name, None), options, index))


def operands(name):
    if name == "dense":
        visible = jnp.asarray([True, False, True, True])
        return normal(4, 5), visible, normal(5, 6), normal(6)
    return normal(4, 5), normal(3, 5), normal(5)


def widths(name, arch):
    if name == "dense":
        return {"in": choose("in", IN, arch[0]), "out": choose("out", OUT, arch[1])}
    return {"channels": choose("in", IN, arch[0]), "size": choose("taps", TAPS, arch[1])}


AXES = {
    "dense": "rows in, rows, in out, out -> rows out",
    "centred": "rows channels, window channels, channels -> rows channels, ...",
}
FUNCTIONS = {"dense": dense, "centred": centred}
OPTIONS = {"dense": (IN, OUT), "centred": (IN, TAPS)}


def elastic(name, max_branches, arch, *values):
    maskable = ("in", "out") if name == "dense" else ("channels",)
    gate = choose("gate", (0, 1), arch[2])
    # As a layer's input is: with zeros behind.
    sizes = widths(name, arch)
    active = sizes["in" if name == "dense" else "channels"].mask()
    values = (values[0] * active[None, :], *values[1:])
    outputs = run(
        FUNCTIONS[name], AXES[name], sizes, *values, gate=gate, maskable=maskable, max_branches=max_branches
    )
    return outputs if name == "dense" else outputs[0]


def alone(name, sizes, x, *values):
    """The same of the active parts, by hand."""
    first, second = sizes
    if name == "dense":
        visible, kernel, bias = values
        y = dense(x[:, :first], visible, kernel[:first, :second], bias[:second])
    else:
        taps, scale = values
        keep = lambda x: x  # noqa: E731
        y, _ = centred(x[:, :first], taps[:, :first], scale[:first], size=second, keep=keep)
    full = 6 if name == "dense" else 5
    return jnp.pad(y, [(0, 0), (0, full - y.shape[1])])


def value_and_gradients(function, values):
    """The output and the gradients of all floating-point operands."""
    floating = [x for x in values if x.dtype == jnp.float32]

    def of(*some):
        rest = iter(some)
        return function(*(next(rest) if x.dtype == jnp.float32 else x for x in values))

    y, vjp = jax.vjp(of, *floating)
    return y, vjp(jnp.cos(y))


def both(name, max_branches, arch, values):
    return value_and_gradients(lambda *values: elastic(name, max_branches, arch, *values), values)


@functools.cache
def compiled(name, max_branches):
    return jit(functools.partial(both, name, max_branches))


every = pytest.mark.parametrize("max_branches", [1, 3, 100])
named = pytest.mark.parametrize("name", FUNCTIONS)


@named
@every
@settings(max_examples=12)
@given(first=st.integers(0, 2), second=st.integers(0, 3), gate=st.integers(0, 1))
def test_outputs_and_gradients_are_those_of_the_active_part(name, max_branches, first, second, gate):
    """Also with an operand that is a mask, something kept that is no number, and where all is skipped."""
    second = second % len(OPTIONS[name][1])
    arch = tuple(map(jnp.int32, (first, second, gate)))
    values = operands(name)
    found = compiled(name, max_branches)(arch, values)
    sizes = OPTIONS[name][0][first], OPTIONS[name][1][second]
    expected = value_and_gradients(lambda *values: gate * alone(name, sizes, *values), values)
    assert difference(found, expected) <= 1e-5
    # Zeros behind, exactly: in the output and in every gradient.
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[b == 0], 0), *map(host, (found, expected)))


def host(tree):
    return jax.tree.map(np.asarray, tree)


@named
@every
def test_vmap_over_architectures_is_the_loop(name, max_branches):
    grid = np.stack(np.meshgrid(range(3), range(len(OPTIONS[name][1])), range(2)), -1).reshape(-1, 3)
    archs = tuple(jnp.asarray(grid.T, jnp.int32))
    values = operands(name)
    one = compiled(name, max_branches)
    many = jit(jax.vmap(functools.partial(both, name, max_branches), (0, None)))(archs, values)
    for i in range(len(grid)):
        expected = one(tuple(x[i] for x in archs), values)
        assert difference(jax.tree.map(lambda x, i=i: x[i], many), expected) <= 1e-5


@named
def test_a_soft_choice_is_the_expectation(name):
    """Of all sizes: in the weights of the outputs' sizes, and with certainty in everything."""
    values = operands(name)
    unrolled = functools.partial(elastic, name, 8)
    apply = jit(unrolled)
    second = len(OPTIONS[name][1])
    certain = tuple(jax.nn.one_hot(i, n) for i, n in ((1, 3), (0, second), (1, 2)))
    hard = tuple(map(jnp.int32, (1, 0, 1)))
    assert difference(apply(certain, *values), apply(hard, *values)) <= 1e-6
    weights = jax.nn.softmax(normal(second))
    mixed = apply((hard[0], weights, jnp.asarray([0.25, 0.75])), *values)
    expected = sum(
        0.75 * weights[i] * apply((hard[0], jnp.int32(i), hard[2]), *values) for i in range(second)
    )
    assert difference(mixed, expected) <= 1e-5

    def loss(weights):
        return jnp.sum(jnp.square(unrolled((hard[0], weights, certain[2]), *values)))

    # The square of a sum that is linear in the weights.
    assert np.all(np.diag(jit(jax.hessian(loss))(weights)) > 0)


def test_every_architecture_is_one_trace_for_each_branch():
    values, traced = operands("centred"), jit(functools.partial(elastic, "centred", 100))
    TRACES.clear()
    for first in range(3):
        for second in range(2):
            traced(tuple(map(jnp.int32, (first, second, 1))), *values)
            if not first and not second:
                count = len(TRACES)
    assert len(TRACES) == count


@dataclasses.dataclass(frozen=True)
class Scaled:
    """An operation as the layers have them: an object for each layer, with a masked method."""

    factor: float

    def __call__(self, x, kernel):
        TRACES.append(kernel.shape)
        return self.factor * x @ kernel

    def masked(self, masks, x, kernel):
        return self.factor * x @ kernel * masks["out"][None, :]


@pytest.mark.parametrize("others, times", [((2.0,) * 5, 1), ((3.0, 4.0), 3)])
def test_equal_operations_of_many_layers_are_traced_once(others, times):
    def traces(factors):
        def network(kernels, index):
            x, sizes = normal(4, 6), {"in": choose("in", OUT, index), "out": choose("out", OUT, index)}
            for factor, kernel in zip(factors, kernels, strict=True):
                layer = Scaled(factor)
                x = run(layer, "rows in, in out -> rows out", sizes, x, kernel, masked=layer.masked)
            return jnp.sum(x)

        jax.clear_caches()
        TRACES.clear()
        jax.jit(jax.grad(network)).trace([normal(6, 6)] * len(factors), jnp.int32(1))
        return len(TRACES)

    assert traces((2.0, *others)) == times * traces((2.0,))


def test_branches_grow_with_the_sum_of_the_options_and_not_with_their_product():
    rows = tuple((taps, channels) for taps in (3, 5, 7) for channels in range(10, 100, 10))
    rounded = _round_up(rows, (False, True), 8)
    assert len(set(rows)) == 27 and len(set(rounded)) <= 8
    for row, up in zip(rows, rounded, strict=True):
        assert up[0] == row[0] and up[1] >= row[1]
    assert _round_up(rows, (False, True), 27) == rows
    assert len(set(_round_up(rows, (False, True), 1))) == 3  # of those that no mask can make smaller
    assert _round_up((None, *rows), (True, True), 1)[0] is None

    def branches(limit):
        arch = (jnp.int32(0), jnp.int32(0), jnp.int32(1))
        text = str(jax.make_jaxpr(lambda *a: elastic("dense", limit, arch, *a))(*operands("dense")))
        return text.count("dot_general")

    assert branches(100) - branches(1) == 11 and 1 < branches(5) - branches(1) < 5


@pytest.mark.hlo
@pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="the GPU's compiler writes a cheap tanh several times"
)
def test_what_is_kept_is_not_computed_again():
    arch = tuple(map(jnp.int32, (1, 1, 1)))
    program = jit(lambda *values: both("centred", 100, arch, values))
    text = program.lower(*operands("centred")).compile().as_text()
    forward = jit(lambda *values: elastic("centred", 100, arch, *values))
    once = forward.lower(*operands("centred")).compile().as_text()
    backward_needs = 6  # the slope of tanh, in the branch of each size
    assert text.count(" tanh(") <= once.count(" tanh(") + backward_needs


@pytest.mark.hlo
def test_operations_have_a_scope_of_their_own():
    arch = tuple(map(jnp.int32, (1, 1, 1)))
    for limit in (1, 100):
        lowered = jax.jit(lambda *values: elastic("dense", limit, arch, *values)).lower(*operands("dense"))  # noqa: B023
        products = [
            line for line in lowered.compile().as_text().splitlines() if " dot(" in line and "op_name" in line
        ]
        assert all(ELASTIC_SCOPE in line for line in products)


@pytest.mark.parametrize(
    "axes, options, message",
    [
        ("rows in, in out", {}, "axes of 2"),
        ("rows in, rows, in out, in", {}, "'in'"),
        ("rows in, rows, in out, out", {"maskable": ("out",)}, "name the axes of the"),
        (AXES["dense"], {"maskable": ("output",)}, "'output'"),
    ],
)
def test_refuses(axes, options, message):
    sizes = {"in": fixed(5), "out": choose("out", OUT, jnp.int32(0))}
    with pytest.raises(ValueError, match=message):
        run(dense, axes, sizes, *operands("dense"), **options)

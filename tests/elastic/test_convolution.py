"""Elastic convolutions: against PyTorch at each size, and in a network of a user's own."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_nets import difference, jit, normal

import jaxnas
from jaxnas import Choice, Space
from jaxnas.annotations import annotations
from jaxnas.elastic import Conv, Decision, fixed, width

torch = pytest.importorskip("torch")

SIZES, IN, OUT = (3, 5, 7), (2, 4), (3, 5)
IMAGES = (2, 9, 8, 4)
FORMS = {
    "dense": Conv(symmetric=True),
    "strided": Conv((2, 2), symmetric=True, use_bias=False),
    "same": Conv((2, 3), use_bias=False),
    "depthwise": Conv(depthwise=True, symmetric=True),
    "strided depthwise": Conv((2, 1), depthwise=True),
    "transformed": Conv(transformed=SIZES, symmetric=True, depthwise=True),
}
every_form = pytest.mark.parametrize("name", FORMS)


def choose(name, options, index):
    return width(int, Decision((name, None), options, index))


def widths(name, arch):
    first = choose("in", IN, arch[0])
    return (
        first,
        first if FORMS[name].depthwise else choose("out", OUT, arch[1]),
        choose("size", SIZES, arch[2]),
    )


@functools.cache
def operands(name):
    x = normal(*IMAGES)
    arch = tuple(map(jnp.int32, (0, 0, 0)))
    shapes = nn.meta.unbox(jax.eval_shape(FORMS[name].init, jax.random.key(0), x, *widths(name, arch)))
    rng = np.random.default_rng(1)
    return x, jax.tree.map(lambda s: jnp.asarray(0.2 * rng.normal(size=s.shape), s.dtype), shapes["params"])


def value_and_gradients(name, max_branches, arch, x, params):
    first, out, size = widths(name, arch)

    def layer(x, params):
        x = x * first.mask()[None, None, None]
        return FORMS[name].apply({"params": params}, x, first, out, size, max_branches=max_branches)

    y, vjp = jax.vjp(layer, x, params)
    return y, vjp(jnp.cos(y))


@functools.cache
def compiled(name, max_branches):
    return jit(functools.partial(value_and_gradients, name, max_branches))


def same_padding(size, stride, kernel):
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def alone(name, arch, x, params):
    """The same by PyTorch, of the active part alone, with gradients."""
    form = FORMS[name]
    channels, size = IN[arch[0]], SIZES[arch[2]]
    out = channels if form.depthwise else OUT[arch[1]]
    leaves = {key: torch.tensor(np.asarray(value), requires_grad=True) for key, value in params.items()}
    images = torch.tensor(np.asarray(x), requires_grad=True)
    kernel = leaves["kernel"][..., : 1 if form.depthwise else channels, :out]
    for smaller in (5, 3, 1):
        if kernel.shape[0] > size:
            kernel = kernel[1:-1, 1:-1]
            if form.transformed:
                matrix = leaves[f"from_{smaller + 2}_to_{smaller}"]
                kernel = torch.nn.functional.linear(kernel.reshape(smaller**2, -1).T, matrix).T.reshape(
                    kernel.shape
                )
    active = images[..., :channels].permute(0, 3, 1, 2)
    sides = [
        (size // 2, size // 2) if form.symmetric else same_padding(n, stride, size)
        for n, stride in zip(x.shape[1:3], form.strides, strict=True)
    ]
    y = torch.nn.functional.conv2d(
        torch.nn.functional.pad(active, (*sides[1], *sides[0])),
        kernel.permute(3, 2, 0, 1),
        leaves["bias"][:out] if form.use_bias else None,
        form.strides,
        groups=channels if form.depthwise else 1,
    ).permute(0, 2, 3, 1)
    y.backward(torch.cos(y).detach())
    full = max(IN) if form.depthwise else max(OUT)
    y = torch.nn.functional.pad(y, (0, full - out)).detach().numpy()
    zeros = lambda leaf: np.zeros(leaf.shape, np.float32) if leaf.grad is None else leaf.grad.numpy()  # noqa: E731
    return y, (zeros(images), {key: zeros(leaf) for key, leaf in leaves.items()})


@every_form
@pytest.mark.parametrize("max_branches", [1, 100])
def test_outputs_and_gradients_are_those_of_pytorch(name, max_branches):
    """At every size; zeros behind, exactly, in the output and in every gradient."""
    x, params = operands(name)
    for arch in np.ndindex(2, 1 if FORMS[name].depthwise else 2, 3):
        found = compiled(name, max_branches)(tuple(map(jnp.int32, arch)), x, params)
        expected = alone(name, arch, x, params)
        assert difference(found, expected) <= 1e-5
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a)[b == 0], 0), found, expected)

"""Elastic convolutions: against PyTorch at each size, and in a network of a user's own."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
import user_networks
from small_nets import difference, jit, normal
from test_cost import lower, xla_macs

import jaxnas
from jaxnas import Choice, Space
from jaxnas.annotations import annotations
from jaxnas.elastic import Conv, Decision, Decisions, fixed, width
from jaxnas.elastic.convolution import centre
from jaxnas.tensors import flatten

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
@pytest.mark.parametrize("max_branches", [1, *tiers.more(100)])
def test_outputs_and_gradients_are_those_of_pytorch(name, max_branches):
    """At every size; zeros behind, exactly, in the output and in every gradient."""
    x, params = operands(name)
    for arch in np.ndindex(2, 1 if FORMS[name].depthwise else 2, 3):
        found = compiled(name, max_branches)(tuple(map(jnp.int32, arch)), x, params)
        expected = alone(name, arch, x, params)
        assert difference(found, expected) <= 1e-5
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a)[b == 0], 0), found, expected)


# ---- A network of a user's own.

NET = user_networks.MBConvNet(user_networks.MBCONV)
PIXELS = normal(2, 16, 14, 3)


@functools.cache
def variables_of():
    shapes = jax.eval_shape(lambda key: jaxnas.init(NET, key, PIXELS), jax.random.key(0))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: rng.uniform(-0.2, 0.8, x.shape).astype(x.dtype), shapes)


def run_network(arch):
    """Logits, what every module returned, the gradient, and the new statistics."""
    variables = jax.tree.map(jnp.asarray, variables_of())

    def loss(params):
        y, new = NET.apply(
            variables | {"params": params},
            PIXELS,
            arch,
            train=True,
            capture_intermediates=True,
            mutable=["batch_stats", "intermediates"],
        )
        return jnp.sum(jnp.square(y)), (y, new["intermediates"], new["batch_stats"])

    gradient, (y, outputs, statistics) = jax.grad(loss, has_aux=True)(variables["params"])
    return y, outputs, gradient, statistics


calibrated = jit(lambda arch: jaxnas.calibrate(NET, variables_of(), arch, PIXELS[None]))
trained = jit(run_network)


@pytest.mark.more
@pytest.mark.hlo
def test_a_network_of_a_user_is_calibrated_and_extracted_with_exact_costs():
    """P3 and P7, with batch statistics of the architecture."""
    cost, space = jaxnas.cost(NET, PIXELS), NET.space
    for seed in range(1):
        arch = space.sample(jax.random.key(seed))
        small, cut, error = jaxnas.extract(NET, calibrated(arch), arch, verify=PIXELS)
        assert error <= 1e-5
        assert cost(arch)["params"] == sum(leaf.size for leaf in jax.tree.leaves(cut["params"]))
        assert cost(arch)["macs"] == xla_macs(lower(small, cut, PIXELS[:1]).as_text("hlo"))


@pytest.mark.more
def test_only_what_an_architecture_uses_has_values_gradients_and_new_statistics():
    """P2 and P6."""
    recorded, variables = annotations(NET, PIXELS), variables_of()
    for seed in range(4):
        arch = NET.space.canonical(NET.space.sample(jax.random.key(seed)))
        y, outputs, gradient, statistics = trained(arch)
        assert np.all(np.isfinite(y))
        unused = {path: ~np.asarray(spec.mask(arch)) for path, spec in recorded.specs.items()}
        for path, leaf in flatten(gradient).items():
            off = np.broadcast_to(unused[path], leaf.shape)
            np.testing.assert_array_equal(np.asarray(leaf)[off], 0, err_msg=str(path))
            assert np.any(np.asarray(leaf)[~off]) or off.all() or path[-1] == "bias"
        for path, leaf in flatten(statistics).items():
            off = ~np.broadcast_to(recorded.state["batch_stats", *path].mask(arch), leaf.shape)
            old = flatten(variables["batch_stats"])[path]
            np.testing.assert_array_equal(leaf[off], old[off])
            assert off.all() or not np.array_equal(leaf[~off], old[~off])
        active = (4, 6, 8)[int(arch["width"])]
        for i in range(4):
            block = outputs[f"block_{i}"]["project_norm"]["__call__"][0]
            np.testing.assert_array_equal(block[..., active:], 0)


class Transformed(nn.Module):
    """A depthwise convolution whose smaller kernels are transformed."""

    space: Space = Space(size=Choice(3, 5, 7))

    @nn.compact
    def __call__(self, x, arch=None, *, train=False):
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        conv = Conv(depthwise=True, transformed=(3, 5, 7), name="conv")
        return conv(x, fixed(4), fixed(4), width(int, decisions["size"]))


@pytest.mark.hlo
def test_transformed_kernels_are_extracted_with_what_they_are_computed_from():
    net, (x, params) = Transformed(), operands("transformed")
    for index, (kernel, matrices) in enumerate([(5, 25**2 + 9**2), (5, 25**2), (7, 0)]):
        arch = {"size": jnp.int32(index)}
        small, cut, error = jaxnas.extract(net, {"params": {"conv": params}}, arch, verify=x)
        assert error <= 1e-5
        count = sum(leaf.size for leaf in jax.tree.leaves(cut))
        assert jaxnas.cost(net, x)(arch)["params"] == count == 4 * kernel**2 + 4 + matrices
        np.testing.assert_array_equal(cut["params"]["conv"]["kernel"], centre(params["kernel"], kernel))
        macs = jaxnas.cost(net, x)(arch)["macs"]
        assert macs == xla_macs(lower(small, cut, x[:1]).as_text("hlo"))


@pytest.mark.more
def test_vmap_over_architectures_is_the_loop():
    """P5, in evaluation and of the gradient."""
    archs = NET.space.sample(jax.random.key(0), 3)
    many = jit(jax.vmap(run_network))(archs)
    for i in range(3):
        take = functools.partial(jax.tree.map, lambda x, i=i: x[i])
        y, _, gradient, statistics = take(many)
        one = trained(take(archs))
        assert difference((y, statistics), (one[0], one[3])) <= 1e-4
        largest = max(np.max(np.abs(leaf)) for leaf in jax.tree.leaves(one[2]))
        jax.tree.map(
            lambda a, b, most=largest: np.testing.assert_allclose(a, b, atol=1e-4 * most), gradient, one[2]
        )


def made(module, size, shape=(1, 4, 9, 2), out=2):
    size = width(int, Decision(("size", None), size, jnp.int32(0)))
    return jax.eval_shape(module.init, jax.random.key(0), jnp.zeros(shape), fixed(2), fixed(out), size)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: made(Conv(), (3, 5)), "kernel of 5"),
        (lambda: made(Conv(), (2, 3)), "give only odd sizes or only"),
        (lambda: made(Conv(), (3,), (4, 9, 2)), "4, 9"),
        (lambda: made(Conv(depthwise=True), (3,), out=4), "give the same width twice"),
        (lambda: made(Conv(transformed=(5, 7)), (3,)), r"sizes \[3\], but transformed=\(5, 7\)"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

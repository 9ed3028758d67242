"""Elastic convolutions: against PyTorch at each size, and in a network of a user's own."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
import user_networks
from small_nets import difference, jit, normal, take
from test_cost import lower, xla_macs

import jaxnas
from jaxnas import Choice, Space
from jaxnas.annotations import annotations
from jaxnas.elastic import Conv, Decision, Decisions, fixed, width
from jaxnas.elastic.convolution import centre as center
from jaxnas.tensors import flatten

torch = pytest.importorskip("torch")

SIZES, IN, OUT = (3, 5, 7), (2, 4), (3, 5)
IMAGES = (2, 9, 8, 4)
FORMS = {
    "dense": Conv((2, 3)),
    "symmetric": Conv((2, 1), symmetric=True, use_bias=False),
    "depthwise": Conv((2, 1), depthwise=True),
    "transformed": Conv(transformed=SIZES, symmetric=True, depthwise=True),
}


def choose(name, options, index):
    return width(int, Decision((name, None), options, index))


def widths(name, arch):
    first, size = choose("in", IN, arch[0]), choose("size", SIZES, arch[2])
    return first, first if FORMS[name].depthwise else choose("out", OUT, arch[1]), size


def operands(name):
    x, arch = np.asarray(normal(*IMAGES)), np.int32([0, 0, 0])
    shapes = nn.meta.unbox(jax.eval_shape(FORMS[name].init, jax.random.key(0), x, *widths(name, arch)))
    rng = np.random.default_rng(1)
    return x, jax.tree.map(lambda s: np.float32(0.2 * rng.normal(size=s.shape)), shapes["params"])


def value_and_gradients(name, max_branches, arch, x, params):
    first, out, size = widths(name, arch)

    def layer(x, params):
        x = x * first.mask()[None, None, None]
        return FORMS[name].apply({"params": params}, x, first, out, size, max_branches=max_branches)

    y, vjp = jax.vjp(layer, x, params)
    return y, vjp(jnp.cos(y))


def same_padding(size, stride, kernel):
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def alone(name, arch, x, params):
    """The same by PyTorch, of the active part alone, with gradients."""
    form = FORMS[name]
    channels, size = IN[arch[0]], SIZES[arch[2]]
    out = channels if form.depthwise else OUT[arch[1]]
    leaves = {key: torch.tensor(value, requires_grad=True) for key, value in params.items()}
    images = torch.tensor(x, requires_grad=True)
    kernel = leaves["kernel"][..., : 1 if form.depthwise else channels, :out]
    for smaller in (5, 3, 1):
        if kernel.shape[0] > size:
            kernel = kernel[1:-1, 1:-1]
            if form.transformed:
                matrix = leaves[f"from_{smaller + 2}_to_{smaller}"]
                shape, flat = kernel.shape, kernel.reshape(smaller**2, -1)
                kernel = torch.nn.functional.linear(flat.T, matrix).T.reshape(shape)
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


@pytest.mark.parametrize("name, max_branches", tiers.pairs(FORMS, (1, 100), [("depthwise", 100)]))
def test_outputs_and_gradients_are_those_of_pytorch(name, max_branches):
    """At every size; zeros behind, exactly, in the output and in every gradient."""
    x, params = operands(name)
    run = jit(functools.partial(value_and_gradients, name, max_branches))
    for arch in np.ndindex(2, 1 if FORMS[name].depthwise else 2, 3):
        found = jax.tree.map(np.asarray, run(tuple(map(np.int32, arch)), x, params))
        expected = alone(name, arch, x, params)
        assert difference(found, expected) <= 1e-5
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[b == 0], 0), found, expected)


SPACE = Space(
    width=Choice(4, 6),
    depth=Choice(1, 2),
    kernel=Choice(3, 5).repeat(2, active="depth"),
    expansion=Choice(2, 3).repeat(2, active="depth"),
)
NET = user_networks.MBConvNet(SPACE)
PIXELS = np.asarray(normal(2, 12, 10, 3))
ARCHS = [
    SPACE.from_dict(dict(width=6, depth=1, kernel=[5], expansion=[3])),
    SPACE.from_dict(dict(width=4, depth=2, kernel=[5, 3], expansion=[3, 2])),
]


def run_network(variables, arch):
    """The gradient, and logits, what every module returned, and the new statistics."""

    def loss(params):
        mutable = ["batch_stats", "intermediates"]
        y, new = NET.apply(
            variables | {"params": params},
            PIXELS,
            arch,
            train=True,
            capture_intermediates=True,
            mutable=mutable,
        )
        return jnp.sum(jnp.square(y)), (y, new["intermediates"], new["batch_stats"])

    return jax.grad(loss, has_aux=True)(variables["params"])


@functools.cache
def probe():
    """The variables, and what two architectures give one by one and under vmap, from one program."""
    shapes = jax.eval_shape(lambda key: jaxnas.init(NET, key, PIXELS), jax.random.key(0))
    rng = np.random.default_rng(0)
    draw = lambda low, tree: jax.tree.map(lambda x: np.float32(rng.uniform(low, 0.8, x.shape)), tree)  # noqa: E731
    variables = {"params": draw(-0.2, shapes["params"]), "batch_stats": draw(0.2, shapes["batch_stats"])}
    archs = jax.tree.map(lambda *x: np.stack(x), *ARCHS)
    one = functools.partial(run_network, variables)
    forward = lambda arch: NET.apply(variables, PIXELS, arch, train=True, mutable="batch_stats")  # noqa: E731
    both = jax.tree.map(
        np.asarray, jit(lambda archs: (jax.lax.map(one, archs), jax.vmap(forward)(archs)))(archs)
    )
    return variables, *([take(tree, i) for i in range(2)] for tree in both)


@pytest.mark.more
def test_a_network_of_a_user_trains_only_what_an_architecture_uses_also_under_vmap():
    """P2, P5 and P6, with batch statistics."""
    (variables, found, many), recorded = probe(), annotations(NET, PIXELS)
    old = flatten(variables["batch_stats"])
    for arch, size, one, other in zip(ARCHS, (6, 4), found, many, strict=True):
        gradient, (y, outputs, statistics) = one
        assert np.all(np.isfinite(y))
        assert difference((other[0], other[1]["batch_stats"]), (y, statistics)) <= 1e-4
        for path, leaf in flatten(gradient).items():
            off = np.broadcast_to(~np.asarray(recorded.specs[path].mask(arch)), leaf.shape)
            np.testing.assert_array_equal(leaf[off], 0, err_msg=str(path))
            assert np.any(leaf[~off]) or off.all() or path[-1] == "bias"
        for path, leaf in flatten(statistics).items():
            off = ~np.broadcast_to(recorded.state["batch_stats", *path].mask(arch), leaf.shape)
            np.testing.assert_array_equal(leaf[off], old[path][off])
            assert off.all() or not np.array_equal(leaf[~off], old[path][~off])
        for i in range(2):
            assert not np.any(outputs[f"block_{i}"]["project_norm"]["__call__"][0][..., size:])


@pytest.mark.more
@pytest.mark.hlo
def test_a_network_of_a_user_is_extracted_with_exact_costs():
    """P3 and P7, with batch statistics of the architecture."""
    (variables, found, _), arch = probe(), ARCHS[1]
    trained = variables | {"batch_stats": found[1][1][2]}
    small, cut, error = jaxnas.extract(NET, trained, arch, verify=PIXELS)
    assert error <= 1e-5
    cost = jaxnas.cost(NET, PIXELS)(arch)
    assert cost["params"] == sum(leaf.size for leaf in jax.tree.leaves(cut["params"]))
    assert cost["macs"] == xla_macs(lower(small, cut, PIXELS[:1]).as_text("hlo"))


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
        arch = {"size": np.int32(index)}
        small, cut, error = jaxnas.extract(net, {"params": {"conv": params}}, arch, verify=x)
        assert error <= 1e-5
        cost, count = jaxnas.cost(net, x)(arch), sum(leaf.size for leaf in jax.tree.leaves(cut))
        assert cost["params"] == count == 4 * kernel**2 + 4 + matrices
        np.testing.assert_array_equal(cut["params"]["conv"]["kernel"], center(params["kernel"], kernel))
        assert cost["macs"] == xla_macs(lower(small, cut, x[:1]).as_text("hlo"))

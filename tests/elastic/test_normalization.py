"""Elastic batch normalisation: against PyTorch at each width, calibrated, extracted."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_nets import difference, jit, normal

import jaxnas
from jaxnas import Choice, Space
from jaxnas.elastic import BatchNorm, Decision, Decisions, Dense, fixed, width

CHANNELS = (2, 3, 5)
IMAGES = (4, 3, 2, 5)


def choose(options, index, name="channels"):
    return width(int, Decision((name, None), options, index))


def variables_of(seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda: jnp.asarray(rng.uniform(0.3, 2, 5), jnp.float32)  # noqa: E731
    return {"params": {"scale": draw(), "bias": draw()}, "batch_stats": {"mean": draw(), "var": draw()}}


@functools.cache
def compiled(train, max_branches):
    def both(index, gate, x, variables):
        channels, gate = choose(CHANNELS, index), choose((0, 1), gate, "gate")

        def layer(x, params):
            return BatchNorm(momentum=0.7).apply(
                {**variables, "params": params},
                x * channels.mask()[None, None, None],
                channels,
                train=train,
                gate=gate,
                max_branches=max_branches,
                mutable=["batch_stats"],
            )

        y, vjp, new = jax.vjp(layer, x, variables["params"], has_aux=True)
        return y, vjp(jnp.cos(y)), new["batch_stats"]

    return jit(both)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("max_branches", [1, 8])
def test_outputs_gradients_and_statistics_are_those_of_pytorch(train, max_branches):
    """At every width; zeros behind, exactly; what is stored of other channels stays."""
    torch = pytest.importorskip("torch")
    x, variables = normal(*IMAGES) + 1, variables_of()
    for index, size in enumerate(CHANNELS):
        y, (of_x, of_params), stored = compiled(train, max_branches)(
            jnp.int32(index), jnp.int32(1), x, variables
        )
        given = {name: np.array(leaf)[:size] for part in variables.values() for name, leaf in part.items()}
        norm = torch.nn.BatchNorm2d(size, momentum=0.3).train(train)
        names = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "var"}
        norm.load_state_dict({key: torch.tensor(given[name]) for key, name in names.items()}, strict=False)
        images = torch.tensor(np.array(x)[..., :size]).permute(0, 3, 1, 2).requires_grad_()
        reference = norm(images)
        reference.backward(torch.cos(reference).detach())
        found = [one[..., :size] for one in (y, of_x, of_params["scale"], of_params["bias"])]
        expected = [
            reference.detach().permute(0, 2, 3, 1),
            images.grad.permute(0, 2, 3, 1),
            norm.weight.grad,
            norm.bias.grad,
        ]
        assert difference(found, [one.numpy() for one in expected]) <= 1e-5
        for one in (y, of_x, *of_params.values()):
            np.testing.assert_array_equal(one[..., size:], 0)
        # PyTorch stores the unbiased variance: n / (n - 1) of Flax's.
        rows = np.asarray(x)[..., :size].reshape(-1, size)
        variance = 0.7 * given["var"] + 0.3 * rows.var(axis=0) if train else given["var"]
        np.testing.assert_allclose(stored["mean"][:size], norm.running_mean.numpy(), rtol=1e-5)
        np.testing.assert_allclose(stored["var"][:size], variance, rtol=1e-5)
        for name in ("mean", "var"):
            np.testing.assert_array_equal(stored[name][size:], variables["batch_stats"][name][size:])


@pytest.mark.parametrize("train", [False, True])
def test_a_layer_that_is_skipped_gives_zeros_and_stores_nothing(train):
    variables = variables_of()
    y, gradients, stored = compiled(train, 8)(jnp.int32(1), jnp.int32(0), normal(*IMAGES), variables)
    for leaf in jax.tree.leaves((y, gradients)):
        np.testing.assert_array_equal(leaf, 0)
    jax.tree.map(np.testing.assert_array_equal, stored, variables["batch_stats"])


class Network(nn.Module):
    """Two dense layers with batch normalisation at an elastic width."""

    space: Space = Space(hidden=Choice(4, 6, 8))

    @nn.compact
    def __call__(self, x, arch=None, *, train=False):
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        hidden = width(int, decisions["hidden"])
        x = Dense(name="in")(x, fixed(3), hidden)
        x = nn.relu(BatchNorm(name="norm")(x, hidden, train=train))
        return Dense(name="out")(x, hidden, fixed(2))


def test_calibrated_statistics_are_extracted_with_the_network():
    """Against NumPy, and the extracted network calibrated alone; nothing is written that is not mutable."""
    net, batches = Network(), 2 * normal(3, 8, 3) + 1
    variables = jaxnas.init(net, jax.random.key(0), batches[0])
    calibrate = jit(lambda arch: jaxnas.calibrate(net, variables, arch, batches))
    for index, size in enumerate((4, 6, 8)):
        arch = {"hidden": jnp.int32(index)}
        calibrated = calibrate(arch)
        kernel = np.asarray(variables["params"]["in"]["kernel"])[:, :size]
        hidden = np.asarray(batches).reshape(-1, 3) @ kernel
        statistics = calibrated["batch_stats"]["norm"]
        np.testing.assert_allclose(statistics["mean"][:size], hidden.mean(axis=0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(statistics["var"][:size], hidden.var(axis=0), rtol=1e-4)
        np.testing.assert_array_equal(statistics["var"][size:], 1)
        small, cut, error = jaxnas.extract(net, calibrated, arch, verify=batches[0])
        assert error <= 1e-5
        again = jaxnas.calibrate(small, cut, None, batches)
        assert difference(again["batch_stats"], cut["batch_stats"]) <= 1e-5
    y = net.apply(variables, batches[0], arch, train=True)  # "batch_stats" is not mutable
    assert y.shape == (8, 2)

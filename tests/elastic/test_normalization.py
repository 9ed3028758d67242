"""Elastic batch normalization: against PyTorch at each width, calibrated, extracted."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_nets import difference, jit, normal, take

import jaxnas
from jaxnas import Choice, Space
from jaxnas.elastic import BatchNorm, Decision, Decisions, Dense, fixed, width

CHANNELS = (2, 3, 5)
IMAGES = (4, 3, 2, 5)


def choose(options, index, name="channels"):
    return width(int, Decision((name, None), options, index))


DRAW = np.random.default_rng(0)
VARIABLES = {
    "params": {name: np.float32(DRAW.uniform(0.3, 2, 5)) for name in ("scale", "bias")},
    "batch_stats": {name: np.float32(DRAW.uniform(0.3, 2, 5)) for name in ("mean", "var")},
}


@functools.cache
def probe(train, max_branches):
    """The output, gradients and stored statistics: skipped, and at each width."""

    def both(index, gate):
        channels, gate = choose(CHANNELS, index), choose((0, 1), gate, "gate")

        def layer(x, params):
            variables, x = {**VARIABLES, "params": params}, x * channels.mask()[None, None, None]
            options = dict(train=train, gate=gate, max_branches=max_branches, mutable=["batch_stats"])
            return BatchNorm(momentum=0.7).apply(variables, x, channels, **options)

        y, vjp, new = jax.vjp(layer, normal(*IMAGES) + 1, VARIABLES["params"], has_aux=True)
        return y, vjp(jnp.cos(y)), new["batch_stats"]

    run = jit(lambda *archs: jax.lax.map(lambda arch: both(*arch), archs))
    found = jax.tree.map(np.asarray, run(np.int32([1, 0, 1, 2]), np.int32([0, 1, 1, 1])))
    return [take(found, i) for i in range(4)]


# With a branch for each width, or one for all.
every_mode = pytest.mark.parametrize("train, max_branches", [(True, 8), (True, 1), (False, 8)])


@every_mode
def test_outputs_gradients_and_statistics_are_those_of_pytorch(train, max_branches):
    """At every width; zeros behind, exactly; what is stored of other channels stays."""
    torch = pytest.importorskip("torch")
    x = np.asarray(normal(*IMAGES) + 1)
    for size, (y, (of_x, of_params), stored) in zip(CHANNELS, probe(train, max_branches)[1:], strict=True):
        given = {name: leaf[:size] for part in VARIABLES.values() for name, leaf in part.items()}
        norm = torch.nn.BatchNorm2d(size, momentum=0.3).train(train)
        names = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "var"}
        norm.load_state_dict({key: torch.tensor(given[name]) for key, name in names.items()}, strict=False)
        images = torch.tensor(x[..., :size]).permute(0, 3, 1, 2).requires_grad_()
        reference = norm(images)
        reference.backward(torch.cos(reference).detach())
        found = [one[..., :size] for one in (y, of_x, of_params["scale"], of_params["bias"])]
        expected = [one.permute(0, 2, 3, 1) for one in (reference.detach(), images.grad)]
        expected = [one.numpy() for one in (*expected, norm.weight.grad, norm.bias.grad)]
        assert difference(found, expected) <= 1e-5
        for one in (y, of_x, *of_params.values()):
            np.testing.assert_array_equal(one[..., size:], 0)
        # PyTorch stores the unbiased variance: n / (n - 1) of Flax's.
        variance = 0.7 * given["var"] + 0.3 * x[..., :size].var(axis=(0, 1, 2)) if train else given["var"]
        np.testing.assert_allclose(stored["mean"][:size], norm.running_mean.numpy(), rtol=1e-5)
        np.testing.assert_allclose(stored["var"][:size], variance, rtol=1e-5)
        for name in ("mean", "var"):
            np.testing.assert_array_equal(stored[name][size:], VARIABLES["batch_stats"][name][size:])


@every_mode
def test_a_layer_that_is_skipped_gives_zeros_and_stores_nothing(train, max_branches):
    y, gradients, stored = probe(train, max_branches)[0]
    for leaf in jax.tree.leaves((y, gradients)):
        np.testing.assert_array_equal(leaf, 0)
    jax.tree.map(np.testing.assert_array_equal, stored, VARIABLES["batch_stats"])


class Network(nn.Module):
    """Two dense layers with batch normalization at an elastic width."""

    space: Space = Space(hidden=Choice(4, 6, 8))

    @nn.compact
    def __call__(self, x, arch=None, *, train=False):
        hidden = width(int, Decisions(self.space, arch, initializing=self.is_initializing())["hidden"])
        x = Dense(name="in")(x, fixed(3), hidden)
        x = nn.relu(BatchNorm(name="norm")(x, hidden, train=train))
        return Dense(name="out")(x, hidden, fixed(2))


def test_calibrated_statistics_are_extracted_with_the_network():
    """Against NumPy; those of channels that the architecture has not stay."""
    net, batches, arch, size = Network(), np.asarray(2 * normal(3, 8, 3) + 1), {"hidden": np.int32(1)}, 6
    shapes = jax.eval_shape(lambda: jaxnas.init(net, jax.random.key(0), batches[0]))
    variables = jax.tree.map(lambda x: np.float32(DRAW.uniform(0.3, 2, x.shape)), shapes)
    calibrated = jit(lambda arch: jaxnas.calibrate(net, variables, arch, batches))(arch)
    dense, before = variables["params"]["in"], variables["batch_stats"]["norm"]
    hidden = batches.reshape(-1, 3) @ dense["kernel"][:, :size] + dense["bias"][:size]
    statistics = jax.tree.map(np.asarray, calibrated["batch_stats"]["norm"])
    np.testing.assert_allclose(statistics["mean"][:size], hidden.mean(axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(statistics["var"][:size], hidden.var(axis=0), rtol=1e-4)
    for name in ("mean", "var"):
        np.testing.assert_array_equal(statistics[name][size:], before[name][size:])
    assert jaxnas.extract(net, calibrated, arch, verify=batches[0]).error <= 1e-5
    # Nothing is written that is not mutable.
    assert jax.eval_shape(lambda: net.apply(variables, batches[0], arch, train=True)).shape == (8, 2)

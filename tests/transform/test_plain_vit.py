"""AutoFormer's ViT as a plain module, made elastic, against the supernet of elastic layers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiers
from small_nets import CLASSES, PAIR, SHAPE, difference, jit, normal, random_params
from small_tasks import task_of

import jaxnas
from experiments.benchmarks.plain_vit import supernet
from jaxnas import spaces
from jaxnas.supernets import ViT
from jaxnas.training import Training, Uniform, make_mesh
from jaxnas.training.prepare import prepare

FIELDS = dict(patch_size=4, head_dim=4, num_classes=CLASSES, max_relative_position=1)


@pytest.mark.parametrize("form", [*tiers.more("masked"), "switch"])
def test_a_plain_vit_is_the_supernet_of_elastic_layers(form):
    """P1, P2, P7: outputs, gradients and costs by one program each, with the same parameters."""
    images = normal(*SHAPE)
    elastic = ViT(PAIR, image_size=8, **FIELDS)
    plain, _ = supernet(PAIR, form, images, **FIELDS)
    variables = {"params": random_params(elastic)}

    @jit
    def both(variables, arch):
        named = {"block_*" if name == "depth" else name: value for name, value in arch.items()}
        loss = lambda variables, net, arch: jnp.sum(jnp.sin(net.apply(variables, images, arch)))  # noqa: E731
        nets = ((elastic, arch), (plain, named))
        outputs = [net.apply(variables, images, own) for net, own in nets]
        return outputs, [jax.grad(loss)(variables, net, own) for net, own in nets]

    costs = [jaxnas.cost(net, images) for net in (elastic, plain)]
    for arch in [PAIR.largest(), PAIR.smallest(), *(PAIR.sample(jax.random.key(i)) for i in range(3))]:
        (expected, found), (gradients, own) = both(variables, arch)
        scale = float(jnp.abs(expected).max())
        np.testing.assert_allclose(found, expected, atol=1e-5 * scale)
        largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(gradients))
        jax.tree.map(lambda x, y, n=largest: np.testing.assert_allclose(x, y, atol=1e-5 * n), own, gradients)
        named = {"block_*" if name == "depth" else name: value for name, value in arch.items()}
        assert {k: int(x) for k, x in costs[0](arch).items()} == {
            k: int(x) for k, x in costs[1](named).items()
        }
    assert both._cache_size() == 1


@pytest.mark.eight_devices
def test_eight_devices_train_a_transformed_network_as_one_does():
    """In the form of segments, with rows over all devices."""
    task = task_of("images")
    fields = FIELDS | dict(patch_size=2, num_classes=2)
    space = spaces.vit((8, 16), (1,), (1, 2), (1.0,))
    net, _ = supernet(space, "switch", jnp.zeros(task.inputs.shape, jnp.float32), **fields)
    settings, optimizer = Training(steps=2, batch_size=8, warmup_steps=0), (optax.sgd(0.1), lambda step: 0.1)
    states = []
    for mesh in (make_mesh(1), make_mesh(8)):
        state, step, batch = prepare(task, net, settings, Uniform(), mesh, optimizer=optimizer)
        for number in range(2):
            state, _ = step(state, batch(number))
        states.append(state)
    assert difference(states[1].params, states[0].params) <= 1e-5

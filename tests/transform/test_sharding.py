"""Transformed networks on meshes: axes are named by the kinds of their groups; devices share parameters."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from plain_networks import Pictures
from small_tasks import task_of

import jaxnas
from jaxnas import Choice
from jaxnas.recipes import Uniform
from jaxnas.tensors import flatten
from jaxnas.training import Options, Training
from jaxnas.training.step import prepare

SGD = optax.sgd(0.1, momentum=0.9), lambda step: 0.1


class Patches(nn.Module):
    @nn.compact
    def __call__(self, images):
        x = nn.Dense(8, name="stem")(images.reshape(images.shape[0], 4, -1))
        x = x + nn.Embed(6, 8, name="embed")((images[:, :, 0, 0] > 0).astype(jnp.int32))
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(2, qkv_features=6, name="attention")(y, y)
        y = nn.gelu(nn.Dense(16, name="up")(x))
        x = x + nn.Dense(8, name="down")(y)
        x = x + nn.Dense(8, name="back")(nn.gelu(nn.Dense(7, name="odd")(x)))
        return nn.Dense(2, name="head")(x.mean(axis=1))


def supernet_of(model, choices, form):
    inputs = task_of("images").inputs
    variables = model.init(jax.random.key(0), jnp.zeros(inputs.shape, inputs.dtype))
    return jaxnas.supernet(jaxnas.analyze(model, variables, inputs), choices, form=form, verify=False)


NETS = {
    "attention": lambda: supernet_of(Patches(), CHOICES, "switch"),
    "convolutions": lambda: supernet_of(Pictures(3, 8), {"conv/channels": Choice(2, 8)}, "masked"),
}
CHOICES = {"width": Choice(4, 8), "up/hidden": Choice(4, 16), "attention/heads": Choice(1, 2)}


@pytest.mark.eight_devices
@pytest.mark.parametrize("name", NETS)
def test_eight_devices_that_share_parameters_train_as_one_does(name):
    task, net = task_of("images"), NETS[name]()
    states = []
    for devices, model in ((1, 1), (8, 2)):  # rows over four, parameters over two
        where = dict(devices=devices, model_devices=model)
        settings = Training(steps=3, batch_size=8, warmup_steps=0, **where)
        state, step, batch = prepare(task, net, settings, Uniform(), options=Options(optimizer=SGD))
        for number in range(3):
            state, metrics = step(state, batch(number))
        states.append((state, float(metrics["loss"])))
    (alone, loss), (shared, other) = states
    assert other == pytest.approx(loss, abs=1e-5)
    # Biases in front of norms and softmaxes have gradients that are nothing but rounding.
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), shared.params, alone.params)
    if name == "convolutions":
        return
    where = {"/".join(path): x.sharding.spec for path, x in flatten(shared.params).items()}
    model = "model"
    assert where["up/kernel"] == P(None, model) and where["down/kernel"] == P(model)
    assert where["attention/query/kernel"] == P(None, model) and where["attention/out/kernel"] == P(model)
    assert where["embed/embedding"] == P(model) and where["stem/kernel"] == P(None, model)
    assert where["odd/kernel"] == P(model) and where["up/bias"] == P()  # seven do not divide: the other axis
    for tree in (shared.params, shared.opt_state):  # and the momentum
        leaves = [x for x in jax.tree.leaves(tree) if x.ndim > 1]
        assert leaves and all(2 * x.addressable_shards[0].data.size == x.size for x in leaves)

"""Every network of the package refuses sizes, rates, spaces and dtypes that cannot be, and says which."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
import refusals
import user_networks
from small_tasks import task_of

import jaxnas
from jaxnas import Choice, Space, spaces, supernets, training
from jaxnas.supernets import hybrid

CORA = spaces.autoattend(2, spaces.AUTOATTEND_CORA)
TEXTS = dict(num_classes=2, vocabulary=7)
NETWORKS = {
    supernets.ViT: dict(space=spaces.digits(), image_size=8, patch_size=2, num_classes=10),
    supernets.Swin: dict(space=spaces.s3_small_images(), image_size=28, patch_size=1, num_classes=10),
    supernets.Hybrid: dict(space=spaces.hybrid_small(), num_classes=10, **hybrid.SMALL),
    supernets.TableMlp: dict(space=spaces.mlp(), num_outputs=1),
    supernets.ConvNet: dict(space=spaces.convnet(), num_classes=10),
    supernets.TextTransformer: dict(space=spaces.digits(), max_length=8, **TEXTS),
    supernets.TransformerXL: dict(space=spaces.par(4), vocabulary=7),
    supernets.DARTFormer: dict(space=spaces.dartformer(), max_length=8, **TEXTS),
    supernets.AutoAttendText: dict(space=spaces.autoattend(2), **TEXTS),
    supernets.AutoAttendNodes: dict(space=CORA, num_classes=2),
}
MAY_BE_ZERO = {"max_relative_position", "head_expansion", "memory_length", "num_random"}


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_sizes_shares_and_spaces_that_cannot_be_are_refused(network):
    """Of all fields that are whole numbers or rates of dropout."""

    def case(error, name, value, *said):
        return lambda: network(**NETWORKS[network] | {name: value}), error, network.__name__, *said

    network(**NETWORKS[network])
    fields = {one.name: one.type for one in dataclasses.fields(network)}
    sizes = {name for name, kind in fields.items() if kind == "int"} - MAY_BE_ZERO
    rates = {name for name in fields if "drop" in name}
    refusals.check(
        *(case(ValueError, name, 0, f"{name} is 0") for name in sorted(sizes)),
        *(
            case(ValueError, name, rate, f"{name} is {rate}")
            for name in sorted(rates)
            for rate in (1.0, -0.1)
        ),
        case(TypeError, "space", None, "None"),
        case(ValueError, "space", Space(other=Choice(1, 2)), "'other'"),
    )
    assert sizes


def test_networks_compute_in_floating_point():
    """Where users enter: nothing is initialized, counted or trained in whole numbers."""
    task, inputs = task_of("images"), task_of("images").inputs

    doors = (
        lambda net: jaxnas.init(net, jax.random.key(0), inputs),
        lambda net: jaxnas.cost(net, inputs),
        lambda net: training.fit(task, net, 1),
        lambda net: training.make_evaluator(task, net, "search"),
    )
    nets = [network(**given) for network, given in NETWORKS.items() if hasattr(network, "dtype")]
    for net in (*nets, user_networks.Mixer(user_networks.MIXER)):
        for dtype, name in ((jnp.int8, "int8"), ("float33", "float33"), (jnp.complex64, "complex64")):
            wrong, said = net.clone(dtype=dtype), (TypeError, type(net).__name__, f"'{name}'", "jnp.float32")
            refusals.check(*((lambda door=door, wrong=wrong: door(wrong), *said) for door in doors))

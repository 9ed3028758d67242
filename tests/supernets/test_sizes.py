"""Every network of the package refuses sizes below 1 and dtypes that are no floating type, and says which."""

import dataclasses

import jax
import jax.numpy as jnp
import refusals
import user_networks
from small_tasks import task_of

import jaxnas
from jaxnas import spaces, supernets, training
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


def test_sizes_below_1_are_refused():
    """Of all fields that are whole numbers."""

    def case(network, given, name):
        return lambda: network(**given | {name: 0}), ValueError, network.__name__, f"{name} is 0"

    for network, given in NETWORKS.items():
        network(**given)
        sizes = {one.name for one in dataclasses.fields(network) if one.type == "int"} - MAY_BE_ZERO
        refusals.check(*(case(network, given, name) for name in sorted(sizes)))
        assert sizes


def test_networks_compute_in_floating_point():
    """Where users enter: nothing is initialized, counted or trained in whole numbers."""
    task, inputs = task_of("images"), task_of("images").inputs

    def cases(net, dtype, name):
        wrong, said = net.clone(dtype=dtype), (TypeError, type(net).__name__, f"'{name}'", "jnp.float32")
        yield lambda: jaxnas.init(wrong, jax.random.key(0), inputs), *said
        yield lambda: jaxnas.cost(wrong, inputs), *said
        yield lambda: training.fit(task, wrong, 1), *said
        yield lambda: training.make_evaluator(task, wrong, "search"), *said

    nets = [network(**given) for network, given in NETWORKS.items() if hasattr(network, "dtype")]
    for net in (*nets, user_networks.Mixer(user_networks.MIXER)):
        for dtype, name in ((jnp.int8, "int8"), ("float33", "float33"), (jnp.complex64, "complex64")):
            refusals.check(*cases(net, dtype, name))

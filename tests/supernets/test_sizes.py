"""Every network of the package refuses sizes below 1 and dtypes that are no floating type, and says which."""

import jax
import jax.numpy as jnp
import pytest
import user_networks
from small_tasks import task_of

import jaxnas
from jaxnas import spaces, supernets, training
from jaxnas.supernets import hybrid

NETWORKS = {
    supernets.ViT: (
        dict(space=spaces.digits(), image_size=8, patch_size=2, num_classes=10),
        ("image_size", "patch_size", "num_classes", "head_dim"),
    ),
    supernets.Swin: (
        dict(space=spaces.s3_small_images(), image_size=28, patch_size=1, num_classes=10),
        ("image_size", "patch_size", "num_classes"),
    ),
    supernets.Hybrid: (
        dict(space=spaces.hybrid_small(), num_classes=10, **hybrid.SMALL),
        ("num_classes", "stem_stride", "head_dim"),
    ),
    supernets.TransformerXL: (
        dict(space=spaces.par(4), vocabulary=7),
        ("vocabulary", "width", "num_heads", "head_dim", "hidden"),
    ),
    supernets.DARTFormer: (
        dict(space=spaces.dartformer(), num_classes=2, vocabulary=7, max_length=8),
        ("num_classes", "vocabulary", "max_length", "width", "num_heads", "hidden", "layers"),
    ),
    supernets.AutoAttendText: (
        dict(space=spaces.autoattend(2), num_classes=2, vocabulary=7),
        ("num_classes", "width", "num_heads", "embedding", "stride"),
    ),
    supernets.AutoAttendNodes: (
        dict(space=spaces.autoattend(2, spaces.AUTOATTEND_CORA), num_classes=2),
        ("num_classes", "width", "num_heads"),
    ),
}


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_sizes_below_1_are_refused(network):
    settings, names = NETWORKS[network]
    network(**settings)
    for name in names:
        with pytest.raises(ValueError) as error:
            network(**settings | {name: 0})
        assert str(error.value) == f"{network.__name__}: {name} is 0, expected a whole number of at least 1."


WITH_DTYPE = [network for network in (*NETWORKS, user_networks.Mixer) if hasattr(network, "dtype")]


@pytest.mark.parametrize("network", WITH_DTYPE, ids=lambda network: network.__name__)
def test_networks_compute_in_floating_point(network):
    """Where users enter: nothing is initialised, counted or trained in whole numbers."""
    settings = NETWORKS[network][0] if network in NETWORKS else dict(space=user_networks.MIXER)
    net = network(**settings)
    task, inputs = task_of("images"), task_of("images").inputs
    for dtype, name in ((jnp.int8, "int8"), ("float33", "float33"), (jnp.complex64, "complex64")):
        wrong = net.clone(dtype=dtype)
        for enter in (
            lambda wrong: jaxnas.init(wrong, jax.random.key(0), inputs),
            lambda wrong: jaxnas.cost(wrong, inputs),
            lambda wrong: training.fit(task, wrong, 1),
            lambda wrong: training.make_evaluator(task, wrong, "search"),
        ):
            with pytest.raises(TypeError) as error:
                enter(wrong)
            assert f"{network.__name__}: dtype is '{name}', expected jnp.float32 or" in str(error.value)

"""Every network of the package refuses sizes below 1, and says which one it is."""

import pytest

from jaxnas import spaces, supernets

NETWORKS = {
    supernets.ViT: (
        dict(space=spaces.digits(), image_size=8, patch_size=2, num_classes=10),
        ("image_size", "patch_size", "num_classes", "head_dim"),
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
        assert str(error.value) == f"{network.__name__}: {name} is 0, expected at least 1."

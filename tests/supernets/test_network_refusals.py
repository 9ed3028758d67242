"""Every network refuses sizes, rates, spaces, dtypes and images that cannot be, and says which."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
import user_networks
from small_nets import NARROW, SHAPE, setting
from small_tasks import task_of
from test_promises import SWIN

import jaxnas
from jaxnas import Choice, Space, spaces, supernets, training
from jaxnas.supernets.hybrid import SMALL

CORA = spaces.autoattend(2, spaces.AUTOATTEND_CORA)
TEXTS = dict(num_classes=2, vocabulary=7)
NETWORKS = {
    supernets.ViT: dict(space=spaces.digits(), image_size=8, patch_size=2, num_classes=10),
    supernets.Swin: dict(space=spaces.s3_small_images(), image_size=28, patch_size=1, num_classes=10),
    supernets.Hybrid: dict(space=spaces.hybrid_small(), num_classes=10, **SMALL),
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
    def case(error, name, value, *said):
        return lambda: network(**NETWORKS[network] | {name: value}), error, network.__name__, *said

    network(**NETWORKS[network])
    fields = {one.name: one.type for one in dataclasses.fields(network)}
    sizes = [(name, 0) for name, kind in fields.items() if kind == "int" and name not in MAY_BE_ZERO]
    rates = [(name, rate) for name in fields if "drop" in name for rate in (1.0, -0.1)]
    refusals.check(
        *(case(ValueError, name, value, f"{name} is {value}") for name, value in (*sizes, *rates)),
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


def vit(space=NARROW, **changes):
    given = dict(image_size=8, patch_size=4, num_classes=5)
    return supernets.ViT(space, **given | changes)


def with_space(**changes):
    ratio, heads = (Choice(option).repeat(3) for option in (1.0, 2))
    given = dict(embed_dim=Choice(8), depth=Choice(1, 3), num_heads=heads, mlp_ratio=ratio)
    return vit(Space(**given | changes))


def test_vits_and_mlps_that_cannot_be():
    table = spaces.mlp((4, 8), (1, 2))
    once = Space(**{**table.choices, "hidden": Choice(2, 4)})
    refusals.check(
        (lambda: supernets.TableMlp(once, 3), ValueError, "'hidden'", "repeat(2"),
        (lambda: supernets.TableMlp(spaces.mlp((0, 4)), 3), ValueError, "'width'", "(0, 4)"),
        (lambda: with_space(dept=Choice(1)), ValueError, "'dept'", "'depth'"),
        (lambda: with_space(num_heads=Choice(1, 2).repeat(2)), ValueError, "'num_heads'", "3", "got 2"),
        (lambda: with_space(num_heads=Choice(1, 2)), ValueError, "'num_heads'", "one for all"),
        (lambda: vit(image_size=10), ValueError, "image_size", "10"),
        (lambda: vit(form="mask"), ValueError, "form", "'mask'"),
        (lambda: vit(max_relative_position=-1), ValueError, "max_relative_position", "-1"),
        (lambda: with_space(embed_dim=Choice(0, 8)), ValueError, "'embed_dim'", "[0]"),
        (lambda: with_space(embed_dim=Choice(8.5)), ValueError, "'embed_dim'", "8.5"),
        (lambda: with_space(num_heads=Choice("two").repeat(3)), ValueError, "'num_heads'", "'two'"),
        (lambda: with_space(mlp_ratio=Choice(-1.0, 2.0).repeat(3)), ValueError, "'mlp_ratio'", "-1.0"),
        (lambda: with_space(mlp_ratio=Choice(0.1, 1.0).repeat(3)), ValueError, "ratio", "0.1", "8"),
    )


def test_architectures_and_images_of_another_network():
    case = setting("narrow")
    arch = case.space.largest()

    def run(arch=arch, images=case.images):
        return case.net.apply(case.variables, images, arch)

    def without(name):
        return {key: x for key, x in arch.items() if key != name}

    def extract(arch=arch, inputs=SHAPE, **changes):
        return jaxnas.extract(case.net, {"params": case.params | changes}, arch, inputs=inputs)

    refusals.check(
        (lambda: run(images=jnp.zeros((2, 8, 8, 3))), ValueError, "patch_embed/projection/kernel", "48"),
        (lambda: run(None), ValueError, "arch"),
        (lambda: run(arch | {"width": arch["depth"]}), ValueError, "'width'"),
        (lambda: run(without("depth")), ValueError, "'depth'"),
        (lambda: run(arch | {"num_heads": np.zeros(3, np.int32)}), ValueError, "'num_heads'"),
        (lambda: run(arch | {"embed_dim": np.ones(2, np.float32)}), ValueError, "'embed_dim'"),
        (lambda: run(arch | {"embed_dim": 8}), ValueError, "'embed_dim'"),
        (lambda: extract(inputs=None), ValueError, "verify", "inputs"),
        (lambda: extract(arch | {"depth": np.int32(2)}), ValueError, "'depth'", "2"),
        (lambda: extract({name: x[None] for name, x in arch.items()}), ValueError, "(1,)", "()"),
        (lambda: extract(head={}), ValueError, "params/head"),
        (lambda: extract(tail=case.params["head"]), ValueError, "params/tail"),
        (lambda: extract(inputs=(1, 8, 8, 3)), ValueError, "params/patch_embed"),
    )


def swin(image_size=8, **options):
    return supernets.Swin(spaces.swin(**SWIN | options), image_size, 2, 5)


def test_swins_that_cannot_be():
    refusals.check(
        (lambda: swin(image_size=10), ValueError, "image_size", "10"),
        (lambda: swin(window=((8,), (2,))), ValueError, "'window_1'", "8"),
        (lambda: swin(window=((3,), (2,))), ValueError, "'window_1'", "3"),
        (lambda: swin(num_heads=((1,), (2, 3)), qkv_dim=((4,), (6, 8))), ValueError, "'qkv_dim_2'", "8"),
        (lambda: swin(depth=((0, 1), (1,))), ValueError, "'depth_1'", "0"),
        (lambda: swin(mlp_ratio=((0.2, 1.0), (1.0,))), ValueError, "ratio", "0.2"),
        (lambda: spaces.swin(**SWIN | {"window": ((2,),)}), ValueError, "'window'"),
        (lambda: spaces.s3_small_images(30), ValueError, "[28, 32]", "30"),
        (lambda: spaces.s3("swin_tiny"), ValueError, "'tiny'", "swin_tiny"),
    )


def hybrid(drop=(), attributes=(), space=None, **choices):
    space = spaces.hybrid_small() if space is None else space
    left = {name: space[name] for name in space if name not in drop} | choices
    return supernets.Hybrid(Space(**left), **dict(num_classes=5, strides=(1, 2, 1)) | dict(attributes))


def test_hybrids_that_cannot_be():
    misplaced = dict(width=(4,), depth=(1,), block=("mbconv",), heads=(2,))
    of_blocks = ("kernel", "expansion", "squeeze", "mlp_ratio", "heads")
    first, second = ([f"{name}_{i}" for name in of_blocks] for i in (1, 2))
    other, both = Choice("mbconv", "conv"), Choice("transformer", "nasvit")
    refusals.check(
        (lambda: hybrid(attributes=dict(strides=2)), TypeError, "strides", "2"),
        (lambda: hybrid(["width_2"]), ValueError, "'width_2'"),
        (lambda: hybrid(kernal_1=Choice(3)), ValueError, "'kernal_1'", "'kernel_1'"),
        (lambda: hybrid(first, block_1=other), ValueError, "'block_1'", "['conv']"),
        (lambda: hybrid(kernel_2=Choice(3, 5).repeat(1)), ValueError, "'kernel_2'", "1"),
        (lambda: hybrid(depth_1=Choice(0, 1)), ValueError, "'depth_1'", "0"),
        (lambda: hybrid(expansion_1=Choice(0, 2)), ValueError, "'expansion_1'", "0"),
        (lambda: hybrid(heads_2=Choice(1, 5).repeat(2)), ValueError, "'width_2'", "'heads_2'", "5"),
        (lambda: hybrid(["heads_2"], attributes=dict(head_dim=5)), ValueError, "head_dim", "5"),
        (lambda: hybrid(second[:-1], block_2=both), ValueError, "'heads_2'"),
        (lambda: hybrid(resolution=Choice(8, 9)), ValueError, "resolution", "9"),
        (lambda: hybrid(attributes=dict(odd_maps="cut")), ValueError, "odd_maps", "'cut'"),
        (lambda: hybrid(attributes=dict(strides=(1, 0, 1))), ValueError, "strides", "0"),
        (lambda: spaces.hybrid([misplaced], (4,), (4,)), ValueError, "'heads'"),
    )


def test_images_that_a_network_does_not_take():
    stage = dict(width=(4,), depth=(1,), block=("nasvit",))
    nasvit = supernets.Hybrid(spaces.hybrid([stage], (4,), (6,)), 5, (1,), head_dim=2, largest_map=3)

    def run(net, *shape):
        """Without parameters: images are looked at first."""
        return jax.eval_shape(lambda: net.apply({}, jnp.zeros(shape), net.space.smallest()))

    refusals.check(
        (lambda: run(setting("narrow").net, 3, 8, 9, 1), ValueError, "B, 8, 8", "9"),
        (lambda: run(swin(), 3, 8, 9, 1), ValueError, "B, 8, 8", "9"),
        (lambda: run(hybrid(), 1, 7, 7, 3), ValueError, "resolution", "7"),
        (lambda: run(hybrid(), 1, 8, 6, 3), ValueError, "square", "(1, 8, 6, 3)"),
        (lambda: run(hybrid(resolution=Choice(8, 12)), 1, 12, 8, 3), ValueError, "square", "(1, 12, 8, 3)"),
        (lambda: jaxnas.init(nasvit, jax.random.key(0), (1, 8, 8, 1)), ValueError, "largest_map", "3", "4"),
    )

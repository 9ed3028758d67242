"""Networks whose layers may be computed again in the backward pass give the same gradients either way."""

import jax
import jax.numpy as jnp
import pytest
import tiers
from small_nets import difference, jit, normal, sample

import jaxnas
from jaxnas import Choice, Space, spaces, supernets

pytestmark = pytest.mark.more  # a whole supernet

TEXTS = {"tokens": jnp.asarray([[1, 2, 3, 0], [3, 2, 1, 1]], jnp.int32), "mask": jnp.ones((2, 4), bool)}
HYBRID = Space(
    width_stem=Choice(4),
    width_1=Choice(4),
    depth_1=Choice(1, 2),
    block_1=Choice("mbconv", "transformer").repeat(2, active="depth_1"),
    width_head=Choice(8),
)
SWIN = spaces.swin(
    depth=((1, 2),),
    embed_dim=((4, 6),),
    window=((2,),),
    num_heads=((1, 2),),
    mlp_ratio=((1.0,),),
    qkv_dim=((4,),),
)
MECHANISMS = spaces.dartformer(("linear", "synthesizer"))
NETWORKS = {
    "Swin": (
        supernets.Swin(SWIN, image_size=8, patch_size=2, num_classes=3, drop_path_rate=0.3),
        normal(2, 8, 8, 1),
    ),
    "Hybrid": (
        supernets.Hybrid(HYBRID, num_classes=3, strides=(1,), head_dim=2, drop_path_rate=0.3),
        normal(2, 8, 8, 1),
    ),
    "DARTFormer": (
        supernets.DARTFormer(MECHANISMS, num_classes=3, vocabulary=5, max_length=4, width=8, num_heads=2),
        TEXTS,
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        "DARTFormer",
        *tiers.nightly("Swin", "Hybrid"),
    ],
)
def test_computed_again_gives_the_gradients_of_computed_once(name):
    """Of weights and of a soft architecture, with random streams and batch statistics."""
    net, inputs = NETWORKS[name]
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), inputs)
    variables = jaxnas.init(net, jax.random.key(0), shapes)
    arch = sample(net.space, 0)
    # Soft only where that is little to compile.
    given = net.space.soften(arch) if name == "DARTFormer" else arch

    def gradients(remat):
        again = net.clone(remat=remat)

        def loss(params, arch):
            rngs = {"dropout": jax.random.key(1)}
            y = again.apply({**variables, "params": params}, inputs, arch, train=True, rngs=rngs)
            return jnp.sum(y**2)

        derivative = jax.grad(loss, argnums=(0, 1), allow_int=True)
        text = str(jax.make_jaxpr(derivative)(variables["params"], given))
        found = jit(derivative)(variables["params"], given)
        return (found[0], found[1] if given is not arch else ()), text.count("prevent_cse=True")

    (once, plain), (expected, remat) = gradients(False), gradients(True)
    assert difference(expected, once) <= 1e-6
    assert plain == 0 and remat > 0
    # What a network declares of itself does not change.
    costs = [jaxnas.cost(net.clone(remat=remat), shapes)(arch) for remat in (False, True)]
    assert int(costs[0]["macs"]) == int(costs[1]["macs"])

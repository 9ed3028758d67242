"""Networks whose layers may be computed again in the backward pass give the same gradients either way."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from small_nets import difference, jit, normal, sample
from test_vit import case_of

import jaxnas
from jaxnas import Choice, Space, spaces, supernets

pytestmark = pytest.mark.more  # a whole supernet

TEXTS = {"tokens": np.array([[1, 2, 3, 0], [3, 2, 1, 1]], np.int32), "mask": np.ones((2, 4), bool)}
MECHANISMS = spaces.dartformer(("linear", "synthesizer"))
BLOCKS = dict(depth_1=Choice(1, 2), block_1=Choice("mbconv", "transformer").repeat(2, active="depth_1"))
WIDTHS = dict(width_stem=Choice(4), width_1=Choice(4), width_head=Choice(8))
SWIN = case_of("swin").net
NETWORKS = {
    "DARTFormer": supernets.DARTFormer(MECHANISMS, 3, vocabulary=5, max_length=4, width=8, num_heads=2),
    "Swin": SWIN.clone(space=SWIN.space.restrict(depth_1=1)),
    "Hybrid": supernets.Hybrid(Space(**BLOCKS, **WIDTHS), 3, strides=(1,), head_dim=2, drop_path_rate=0.3),
}


def derivatives(name):
    """The gradients of weights and of an architecture without and with computing again, and their inputs."""
    net, inputs = NETWORKS[name], TEXTS if name == "DARTFormer" else normal(2, 8, 8, 1)
    shapes, random = (
        jax.eval_shape(lambda: jaxnas.init(net, jax.random.key(0), inputs)),
        np.random.default_rng(0),
    )
    variables = jax.tree.map(lambda leaf: np.float32(random.uniform(0.1, 0.5, leaf.shape)), shapes)
    arch = sample(net.space, 0)

    def loss(remat, params, arch):
        given, rngs = {**variables, "params": params}, {"dropout": jax.random.key(1)}
        return jnp.sum(net.clone(remat=remat).apply(given, inputs, arch, train=True, rngs=rngs) ** 2)

    # Soft only where that is little to compile.
    given = net.space.soften(arch) if name == "DARTFormer" else arch
    both = [jax.grad(functools.partial(loss, remat), (0, 1), allow_int=True) for remat in (False, True)]
    return both, (variables["params"], given), inputs


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_are_computed_again_where_that_is_asked(name):
    """And what a network declares of itself does not change."""
    both, given, inputs = derivatives(name)
    plain, again = (str(jax.make_jaxpr(one)(*given)).count("prevent_cse=True") for one in both)
    assert plain == 0 and again > 0
    costs = [jaxnas.cost(NETWORKS[name].clone(remat=remat), inputs) for remat in (False, True)]
    arch = NETWORKS[name].space.largest()
    assert costs[0](arch) == costs[1](arch)


@pytest.mark.parametrize("name", ["DARTFormer", *tiers.nightly("Swin", "Hybrid")])
def test_computed_again_gives_the_gradients_of_computed_once(name):
    """Of weights and of a soft architecture, with random streams and batch statistics."""
    both, given, _ = derivatives(name)
    once, again = ([x for x in jax.tree.leaves(jit(one)(*given)) if x.dtype == jnp.float32] for one in both)
    assert difference(again, once) <= 1e-6

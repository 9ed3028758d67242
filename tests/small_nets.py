"""Small supernets in every setting, with compiled functions that the tests share."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers

from jaxnas import spaces, supernets

NARROW = spaces.vit((8, 10, 12), (1, 2), (2, 4), (1.0, 2.0))  # heads two by two, where they are in a loop
WIDE = spaces.vit((6, 12, 24), (1, 2), (1, 2, 4), (1.0, 2.0, 4.0))
PAIR = spaces.vit((8, 16), (1, 2), (1, 2), (1.0, 2.0))
SETTINGS = {
    "narrow": dict(space=NARROW, max_relative_position=1, qkv_bias_by_heads=True, form="masked"),
    "wide": dict(space=WIDE, max_relative_position=0, drop_path_rate=0.2, form="masked"),
    "switch": dict(space=PAIR, max_relative_position=1, form="switch"),
    "bfloat16": dict(space=PAIR, max_relative_position=2, absolute_positions=False, dtype=jnp.bfloat16)
    | dict(form="masked"),
}
every_setting = pytest.mark.parametrize("name", tiers.cases(SETTINGS, ("narrow",)))
SHAPE = (3, 8, 8, 1)
CLASSES = 5
TABLE = supernets.TableMlp(spaces.mlp((4, 8), (1, 2), (2, 4, 8)), num_outputs=3)
CONV = supernets.ConvNet(spaces.convnet(((2, 4), (3, 5)), ((1, 2), (0, 1)), ((3, 5), (3,))), num_classes=3)
TEXT = supernets.TextTransformer(spaces.vit((4, 6), (1, 2), (1, 2), (1.0, 2.0)), 7, 3, 5, head_dim=4)

# Compiling is most of the time of these tests, and this halves it.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """A supernet with random weights, also where the initial ones are 0 or 1, and a batch."""

    net: supernets.ViT
    params: Any
    images: jax.Array  # SHAPE

    @property
    def variables(self):
        return {"params": self.params}

    @property
    def space(self):
        return self.net.space

    @property
    def tolerance(self) -> float:
        return 1e-5 if self.net.dtype == jnp.float32 else 3e-2


@functools.cache
def setting(name: str) -> Setting:
    net = supernets.ViT(image_size=8, patch_size=4, num_classes=CLASSES, head_dim=4, **SETTINGS[name])
    return Setting(net, random_params(net), normal(*SHAPE))


def random_params(net, shape=SHAPE):
    return random_weights(net, jax.ShapeDtypeStruct(shape, jnp.float32))


def random_weights(net, inputs):
    shapes = nn.meta.unbox(jax.eval_shape(net.init, jax.random.key(0), inputs)["params"])
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: np.float32(0.3 * rng.normal(size=leaf.shape)), shapes)


def normal(*shape):
    return jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)


def difference(a, b) -> float:
    """The largest difference of two trees of arrays, relative to the largest value of a leaf."""

    def leaf(x, y):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        assert x.shape == y.shape
        return np.max(np.abs(x - y), initial=0) / max(np.max(np.abs(y), initial=0), 1e-30)

    return max(jax.tree.leaves(jax.tree.map(leaf, a, b)))


def sample(space, seed, n=None):
    return space.sample(jax.random.key(seed), n)


def take(batch, index):
    return jax.tree.map(lambda x: x[index], batch)


def flatten(tree):
    return flax.traverse_util.flatten_dict(jax.tree.map(np.asarray, tree))

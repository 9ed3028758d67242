"""The groups of axes of networks that know nothing of jaxnas; their supernets are in `tests/transform`."""

import jax
import jax.numpy as jnp
import refusals
from plain_networks import Attending, Unusual, weights

import jaxnas

KEY = jax.random.key(0)
IMAGES = jax.random.normal(KEY, (2, 8, 8, 2))
TOKENS = jax.random.randint(KEY, (2, 6), 0, 11)


def test_unusual_operations_have_groups():
    groups = jaxnas.analyze(Unusual(), weights(Unusual(), IMAGES), IMAGES)
    sizes = {"down/channels": 8, "up/channels": 6, "up/kernel": 4, "experts/experts": 4, "experts/hidden": 10}
    sizes["outer/inner/hidden"] = 14
    assert sizes.items() <= {group.name: group.size for group in groups}.items()


def test_mistakes_are_named():
    def depends(weight, x):
        return x * weight if x.sum() > 0 else x

    refusals.check(
        (lambda: jaxnas.analyze(Attending(), weights(Attending(), TOKENS)), TypeError, "inputs"),
        (lambda: jaxnas.analyze(depends, jnp.ones(3), jnp.ones((2, 3))), ValueError, "depends on values"),
    )

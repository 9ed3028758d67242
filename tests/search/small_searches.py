"""Spaces, scores and costs that the tests of searches share."""

import jax
import jax.numpy as jnp

from jaxnas.space import Choice, Space

SPACE = Space(width=Choice(1, 2, 4, 8), depth=Choice(3, 4, 5), op=Choice(0, 1, 2).repeat(5, active="depth"))
SMALL = Space(op=Choice("a", "b", "c").repeat(3))
OPS = Space(op=Choice("a", "b", "c", "d").repeat(5))  # 1,024 architectures


def score(arch):
    """Each position of SPACE prefers its own operation; wider is a little better."""
    match = SPACE.active(arch)["op"] & (arch["op"] == jnp.asarray([0, 2, 1, 1, 0]))
    return jnp.sum(match).astype(jnp.float32) + 0.1 * arch["width"].astype(jnp.float32)


@jax.jit
def evaluate(archs):
    return jax.vmap(score)(archs)


def cost(arch):
    width = jnp.asarray(SPACE["width"].table)[arch["width"]]
    ops = jnp.where(SPACE.active(arch)["op"], arch["op"] + 1, 0)
    return {"params": width * (1 + jnp.sum(ops)), "macs": width.astype(jnp.float32) * 1.5}


def params(archs):
    return jax.vmap(cost)(archs)["params"]


def pairs(archs):
    """Distance to one architecture of OPS, with pairs that matter together."""
    match = (archs["op"] == 2).astype(jnp.float32)
    return jnp.sum(match, axis=1) + match[:, 0] * match[:, 1]


def never(archs):
    raise AssertionError("evaluated")

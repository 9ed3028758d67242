"""Small steps in a space: one decision changed, at random or all of them."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.search.bits import below
from jaxnas.space import Space


def mutate_one(space: Space, words: jax.Array, code: jax.Array) -> jax.Array:
    """Returns a copy with one decision that counts changed to another option, int32 [L].

    Args:
      space: the search space.
      words: two random ones of 16 bits, int32 [2].
      code: a canonical architecture, int32 [L].

    Decisions with one option are never picked; one that becomes active starts at its first option.
    """
    sizes = jnp.asarray(space.sizes, jnp.int32)
    free = sizes > 1
    always_active = all(c.active is None and c.condition is None for c in space.choices.values())
    if not always_active:
        free &= space._active_code(space.decode(code))
    pick, step = words
    # Of `count` free elements the one at a random place among them.
    place = below(pick, jnp.maximum(jnp.sum(free, dtype=jnp.int32), 1))
    chosen = free & (jnp.cumsum(free, dtype=jnp.int32) - 1 == place)
    moved = code + 1 + below(step, jnp.maximum(sizes - 1, 1))
    code = jnp.where(chosen, jnp.where(moved >= sizes, moved - sizes, moved), code)
    return code if always_active else space.encode(space.canonical(space.decode(code)))


def neighbours(space: Space, code: jax.Array) -> jax.Array:
    """Returns the canonical codes that differ from one in one element, by any of its options.

    int32 [sum of the numbers of options, L]; the code itself is among them.
    """
    places = [(e, k) for e, size in enumerate(space.sizes) for k in range(size)]
    elements, values = np.asarray(places, np.int32).reshape(-1, 2).T
    changed = jnp.arange(space.length)[None, :] == jnp.asarray(elements)[:, None]
    codes = jnp.where(changed, jnp.asarray(values)[:, None], code[None, :])
    return space.encode(space.canonical(space.decode(codes)))

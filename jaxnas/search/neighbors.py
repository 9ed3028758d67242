"""Small steps in a space: one decision changed, at random or all of them."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.space import Space


def mutate_one(space: Space, key: jax.Array, code: jax.Array) -> jax.Array:
    """A copy with one decision that counts changed to another option.

    Every such decision is equally probable, and so is each of its other options. Decisions with one
    option are never picked; one that becomes active starts at its first option.

    Args:
      space: the search space.
      key: a typed key.
      code: a canonical architecture, int32 [L].

    Returns:
      The canonical code of the mutant, int32 [L].
    """
    place_key, step_key = jax.random.split(key)
    sizes = jnp.asarray(space.sizes, jnp.int32)
    free = space.active_code(space.decode(code)) & (sizes > 1)
    place = jax.random.categorical(place_key, jnp.where(free, 0.0, -jnp.inf))
    step = jax.random.randint(step_key, (), 1, jnp.maximum(sizes[place], 2))
    mutant = code.at[place].set((code[place] + step) % sizes[place])
    return space.encode(space.canonical(space.decode(mutant)))


def neighbors(space: Space, code: jax.Array) -> jax.Array:
    """The canonical codes that differ from one in one element, by any of its options.

    Args:
      space: the search space.
      code: an architecture, int32 [L].

    Returns:
      int32 [sum of the numbers of options, L]; the code itself is among them.
    """
    places = [(e, k) for e, size in enumerate(space.sizes) for k in range(size)]
    elements, values = np.asarray(places, np.int32).reshape(-1, 2).T
    changed = jnp.arange(space.length)[None, :] == jnp.asarray(elements)[:, None]
    codes = jnp.where(changed, jnp.asarray(values)[:, None], code[None, :])
    return space.encode(space.canonical(space.decode(codes)))

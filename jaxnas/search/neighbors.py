"""Steps in a space, on codes: mutants, one decision changed at random, and all changes of one decision."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.space import Space


def canonical_codes(space: Space, codes: jax.Array | np.ndarray) -> jax.Array:
    """Returns codes, int [..., L], with 0 for each decision that does not count; int32 [..., L]."""
    return space.encode(space.canonical(space.decode(codes)))


def mutants(space: Space, key: jax.Array, codes: jax.Array, rate: Any) -> jax.Array:
    """Returns a canonical mutant of each code, int32 [n, L]; see `Space.mutate` for the rate."""
    keys = jax.random.split(key, len(codes))
    # -1, of a row without an architecture, counts as the first option.
    archs = space.decode(jnp.maximum(codes, 0))
    return space.encode(jax.vmap(lambda key, arch: space.mutate(key, arch, rate))(keys, archs))


def mutate_one(space: Space, key: jax.Array, code: jax.Array) -> jax.Array:
    """Returns a copy with one decision that counts changed to another option.

    Every such decision is equally probable, and so is each of its other options. Decisions with one
    option are never picked; one that becomes active starts at its first option. Takes and returns a canonical
    code, int32 [L].
    """
    place_key, step_key = jax.random.split(key)
    sizes = jnp.asarray(space.sizes, jnp.int32)
    free = space.active_code(space.decode(code)) & (sizes > 1)
    place = jax.random.categorical(place_key, jnp.where(free, 0.0, -jnp.inf))
    step = jax.random.randint(step_key, (), 1, jnp.maximum(sizes[place], 2))
    mutant = code.at[place].set((code[place] + step) % sizes[place])
    return canonical_codes(space, mutant)


def neighbors(space: Space, code: jax.Array) -> jax.Array:
    """Returns the canonical codes that differ from one, int32 [L], in one element, by any of its options.

    There are as many as the options of all elements together; the code itself is among them.
    """
    places = [(e, k) for e, size in enumerate(space.sizes) for k in range(size)]
    elements, values = np.asarray(places, np.int32).reshape(-1, 2).T
    changed = jnp.arange(space.length)[None, :] == jnp.asarray(elements)[:, None]
    return canonical_codes(space, jnp.where(changed, jnp.asarray(values)[:, None], code[None, :]))

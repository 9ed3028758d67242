"""The part of a space that a training step draws architectures from, as arrays.

A schedule of spaces picks its region by the number of the step. The compiled step therefore stays the same.
"""

from __future__ import annotations

import functools
import math

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.space import Arch, Space

Array = np.ndarray | jax.Array


@flax.struct.dataclass
class Region:
    """Some options of each element of an encoded architecture.

    Attributes:
      sizes: how many options an element has, int32 [length].
      options: their numbers in the space, the first `sizes` of a row, int32 [length, widest].
      smallest: code of the architecture of least values, int32 [length].
      largest: of greatest values.
    """

    sizes: Array
    options: Array
    smallest: Array
    largest: Array

    def sample(self, space: Space, key: jax.Array) -> Arch:
        """A canonical architecture whose elements are uniform over the options of the region."""
        # One draw for all elements, as `Space.sample` makes it.
        drawn = jax.random.randint(key, self.sizes.shape, 0, self.sizes, jnp.int32)
        return space.canonical(space.decode(self.at(drawn)))

    def at(self, numbers: jax.Array) -> jax.Array:
        """The code of an architecture, int32 [length], from numbers of the region's own options."""
        return jnp.take_along_axis(jnp.asarray(self.options), numbers[:, None], axis=1)[:, 0]


@functools.cache
def region_of(space: Space, part: Space | None = None) -> Region:
    """The region of a whole space, or of another space with fewer options, as NumPy arrays.

    Args:
      space: of the network.
      part: with the same choices and some of the options of each, as `Space.restrict` makes it; None for all.

    Raises:
      ValueError: a choice or an option that the space does not have.
    """
    part = space if part is None else part
    if set(part) != set(space):
        raise ValueError(
            f"a part of the space with the choices {list(space)} has the same choices; got {list(part)}."
        )
    rows = []
    for name, choice in space.decisions:
        own = part[name]
        for position in range(math.prod(choice.shape)):
            known = choice.options_at(position)
            # Positions beyond the depth of the part are never active.
            there = own.length is None or position < own.length
            options = own.options_at(position) if there else known[:1]
            if strange := [option for option in options if option not in known]:
                raise ValueError(
                    f"a part of the space has {strange[0]!r} as an option of {name!r}, where the space has "
                    f"{known}."
                )
            rows.append([known.index(option) for option in options])
    with jax.ensure_compile_time_eval():  # also within a compiled step
        ends = [space.from_dict(part.to_dict(arch)) for arch in (part.smallest(), part.largest())]
        smallest, largest = (np.asarray(space.encode(arch)) for arch in ends)
    widest = int(space.sizes.max())
    options = np.array([row + [0] * (widest - len(row)) for row in rows], np.int32)
    sizes = np.array([len(row) for row in rows], np.int32)
    return Region(sizes, options, smallest, largest)

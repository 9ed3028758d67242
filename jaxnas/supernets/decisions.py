"""The decisions of a space with the values of one architecture, as a network reads them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.elastic.width import Decision
from jaxnas.space import Space


class Decisions:
    """The decisions of a space with the values of an architecture, by name and position."""

    def __init__(
        self, space: Space, arch: dict[str, jax.Array] | None, *, initializing: bool = False
    ) -> None:
        if arch is None:
            if space.cardinality > 1 and not initializing:
                raise ValueError(
                    "The space has more than one architecture, so the network needs `arch`: for "
                    "example space.sample(key), or space.largest()."
                )
            # On the host, so that nothing of it enters the traced program.
            with jax.ensure_compile_time_eval():
                self._arch = {name: np.asarray(x) for name, x in space.smallest().items()}
        else:
            space.check_static(arch)
            self._arch = {name: jnp.asarray(value) for name, value in arch.items()}
            if any(isinstance(value, jax.core.Tracer) for value in self._arch.values()):
                self._arch = {
                    name: _within(value, space.choices[name].sizes) for name, value in self._arch.items()
                }
            else:
                space.check(self._arch)
        self._space = space

    def __getitem__(self, key: str | tuple[str, int]) -> Decision:
        name, position = (key, None) if isinstance(key, str) else key
        choice = self._space.choices[name]
        value = self._arch[name] if position is None else self._arch[name][position]
        options = choice.options if position is None else choice.options_at(position)
        return Decision((name, position), options, value)

    def stacked(self, name: str, count: int) -> jax.Array:
        """The values of a repeated decision at its first `count` positions."""
        return self._arch[name][:count]


def _within(value: jax.Array, sizes: np.ndarray) -> jax.Array:
    """Indices, which cannot be refused while they are traced, as the nearest ones that there are."""
    if not jnp.issubdtype(value.dtype, jnp.integer):
        return value
    return jnp.clip(value, 0, jnp.asarray(sizes - 1, value.dtype))

"""The decisions of a space with the values of one architecture, as a network reads them."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.choice import nearest
from jaxnas.elastic.width import Decision
from jaxnas.space import Space


class Decisions:
    """The decisions of a space with the values of an architecture, by name and position.

    A network makes it once in its `__call__` and gives the decisions to its layers:

        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        hidden = width(lambda hidden: hidden, decisions["hidden", layer], axis="mlp")
        y = Mixture(blocks)(decisions["op"], x)

    Args:
      space: of the network.
      arch: an architecture of it, hard or soft; None if there is only one. Traced indices that are out of
        range count as the nearest option; see `jaxnas.space`. One of NumPy arrays is static: what it does
        not use is not traced.
      initializing: whether parameters are being made, for which any architecture will do: a static one
        unless it is soft.

    Raises:
      ValueError: None for a space with more than one architecture, or an architecture that is not of
        the space.
      TypeError: an architecture of a wrong type.
    """

    def __init__(
        self, space: Space, arch: Mapping[str, jax.Array] | None, *, initializing: bool = False
    ) -> None:
        if arch is None and space.cardinality > 1 and not initializing:
            raise ValueError(
                "The space has more than one architecture, so the network needs `arch`: for "
                "example space.sample(key), or space.largest()."
            )
        if arch is not None:
            space.check_static(dict(arch))
            traced = any(isinstance(value, jax.core.Tracer) for value in arch.values())
            if not traced:
                space.check(dict(arch))
            self._arch = {
                name: value
                if isinstance(value, np.ndarray)
                else within(jnp.asarray(value), space.choices[name].sizes)
                if traced
                else jnp.asarray(value)
                for name, value in arch.items()
            }
        soft = arch is not None and any(
            jnp.issubdtype(jnp.result_type(x), jnp.floating) for x in arch.values()
        )
        if arch is None or space.cardinality == 1 or (initializing and not soft):
            self._arch = static(space)
        self._space = space

    def __getitem__(self, key: str | tuple[str, int]) -> Decision:
        """The decision of a name, or of a name and a position if it is repeated.

        Raises:
          KeyError: a name that the space does not have; the message names the nearest one. A repeated
            decision without its position, or a position that there is not.
        """
        name, position = (key, None) if isinstance(key, str) else key
        if name not in self._space:
            near = nearest(name, list(self._space))
            raise KeyError(f"{name!r} is no decision of the space{near} It has {list(self._space)}.")
        choice = self._space.choices[name]
        if choice.length is None and position is not None:
            raise KeyError(f"The decision {name!r} is not repeated: ask for decisions[{name!r}].")
        if choice.length is not None and (position is None or not 0 <= position < choice.length):
            raise KeyError(
                f"The decision {name!r} is repeated {choice.length} times: ask for decisions[{name!r}, i] "
                f"with i from 0 to {choice.length - 1}, not {position}."
            )
        value = self._arch[name]
        if position is not None:  # an array of NumPy stays one, and so static; [position] makes it a number
            value = value[position, ...]
        return Decision((name, position), choice.options_at(position or 0), value)

    @property
    def arch(self) -> dict[str, jax.Array | np.ndarray]:
        """The architecture: arrays of NumPy, on the host, if there is only one, or none was given."""
        return dict(self._arch)

    def stacked(self, name: str, count: int) -> jax.Array | np.ndarray:
        """The values of a repeated decision at its first `count` positions."""
        return self._arch[name][:count]


def static(space: Space, *, largest: bool = False) -> dict[str, np.ndarray]:
    """The smallest or the largest architecture as NumPy arrays, also while a program is traced."""
    with jax.ensure_compile_time_eval():
        arch = space.largest() if largest else space.smallest()
        return {name: np.asarray(x) for name, x in arch.items()}


def within(value: jax.Array, sizes: np.ndarray) -> jax.Array:
    """Indices, which cannot be refused while they are traced, as the nearest ones; weights as they are."""
    if not jnp.issubdtype(value.dtype, jnp.integer):
        return value
    return jnp.clip(value, 0, jnp.asarray(sizes - 1, value.dtype))

"""Checks of settings: a message names the field, what it is, and what is expected."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def check_counts(
    owner: Any,
    *names: str,
    least: int = 1,
    most: int | None = None,
    none: bool = False,
    group: str | None = None,
) -> None:
    """Checks that fields are whole numbers, and makes plain ints of NumPy's.

    Args:
      owner: a dataclass or a Flax module, in its `__post_init__`.
      names: of the fields.
      least, most: between which the numbers are; None for no bound.
      none: whether a field may be None.
      group: what a config calls the owner, as "training"; None for the name of its class.

    Raises:
      ValueError: one of them is something else; so of the other checks.
    """
    for name in names:
        if (value := getattr(owner, name)) is None and none:
            continue
        if not _is_whole(value) or value < least or (most is not None and value > most):
            wanted = _expected("a whole number", {"of at least": least, "of at most": most}, none)
            raise ValueError(f"{_called(owner, name, group)} is {value!r}, expected {wanted}.")
        if type(value) is not int:
            object.__setattr__(owner, name, operator.index(value))


def check_increasing(owner: Any, name: str, *, group: str | None = None) -> None:
    """Checks that a field is a tuple of counts, each larger than the one before; see `check_counts`."""
    value = getattr(owner, name)
    whole = isinstance(value, tuple | list) and len(value) > 0 and all(map(_is_whole, value))
    if not whole or value[0] < 1 or any(b <= a for a, b in itertools.pairwise(value)):
        wanted = "whole numbers of at least 1 that increase, such as 16, 32"
        raise ValueError(f"{_called(owner, name, group)} is {value!r}, expected {wanted}.")
    object.__setattr__(owner, name, tuple(map(operator.index, value)))


def check_numbers(
    owner: Any,
    *names: str,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    none: bool = False,
    group: str | None = None,
) -> None:
    """Checks that fields are finite numbers; `least` and `most` are allowed, `above` and `below` not."""
    for name in names:
        if (value := getattr(owner, name)) is None and none:
            continue
        number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        limits = ((least, operator.ge), (above, operator.gt), (most, operator.le), (below, operator.lt))
        if not (
            number
            and math.isfinite(value)
            and all(bound is None or holds(value, bound) for bound, holds in limits)
        ):
            bounds = {"of at least": least, "above": above, "of at most": most, "below": below}
            infinite = number and math.isinf(value)
            wanted = _expected("a finite number" if infinite else "a number", bounds, none)
            raise ValueError(f"{_called(owner, name, group)} is {value!r}, expected {wanted}.")


def check_flags(owner: str, **flags: Any) -> None:
    """Checks that the arguments of `owner` are True or False; a string such as "no" would count as True."""
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{owner}: {name} is {value!r}, expected True or False.")


def check_methods(owner: Any, name: str, methods: tuple[str, ...], example: str) -> None:
    """Raises TypeError for a field that is no object with these methods, with an example of one."""
    value = getattr(owner, name)
    if isinstance(value, type) or not all(callable(getattr(value, one, None)) for one in methods):
        raise TypeError(
            f"{_called(owner, name, None)} is {value!r}, expected an object with the methods "
            f"{', '.join(methods)}, such as {example}."
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _called(owner: Any, name: str, group: str | None) -> str:
    return f"{type(owner).__name__}: {name}" if group is None else f"{group}.{name}"


def _expected(kind: str, bounds: dict[str, float | None], none: bool) -> str:
    """As "a number of at least 0 and below 1, or None"."""
    words = " and ".join(f"{word} {bound}" for word, bound in bounds.items() if bound is not None)
    return f"{kind} {words}".replace(" and of ", " and ").strip() + (", or None" if none else "")


def check_key(what: str, key: Any) -> None:
    """Checks that a key is one typed key; raises TypeError."""
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not typed or key.shape:
        given = jax.typeof(key) if isinstance(key, jax.Array) else repr(key)
        raise TypeError(f"{what}: key is {given}, expected one typed key, such as jax.random.key(0).")

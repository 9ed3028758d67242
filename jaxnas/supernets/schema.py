"""The decisions that a network needs of its space, and their check."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxnas.choice import nearest
from jaxnas.space import Space, check_space


@dataclasses.dataclass(frozen=True)
class Needs:
    """The needs of a network for one decision.

    Attributes:
      names: all options that there are; None for numbers.
      least: the smallest number.
      whole: whether numbers are ints.
      times: how often the decision is repeated at least, or the decision that says so, such as "depth".
      shared: whether the decision may be made once in place of `times`.
      optional: whether a space may leave the decision out.
    """

    names: Sequence[str] | None = None
    least: float = 1
    whole: bool = True
    times: str | int | None = None
    shared: bool = False
    optional: bool = False


RATIO = Needs(least=1e-6, whole=False)


def check_decisions(network: str, space: Any, needs: Mapping[str, Needs], example: str) -> None:
    """Checks that a space has the decisions that a network of this name needs, and no others.

    The example, of a space that fits, is for messages. Raises TypeError for no space, and ValueError for a
    decision that is missing or unknown, an option that is none, or too few positions.
    """
    check_space(space, network)
    if missing := [name for name, one in needs.items() if name not in space and not one.optional]:
        raise ValueError(f"{network}: the space has no {missing}, only {list(space)}; take one as {example}.")
    if unknown := [name for name in space if name not in needs]:
        raise ValueError(
            f"{network}: the space has {unknown[0]!r}, which the network does not read"
            f"{nearest(unknown[0], needs)} It reads {list(needs)}."
        )
    for name, one in needs.items():
        if name in space:
            _check_decision(network, space, name, one)


def _check_decision(network: str, space: Space, name: str, needs: Needs) -> None:
    options, length = space[name].options, space[name].length
    if wrong := [option for option in options if not _fits(option, needs)]:
        whole = f"{'whole numbers' if needs.whole else 'numbers'} of at least {needs.least}"
        expected = whole if needs.names is None else f"some of {tuple(needs.names)}"
        raise ValueError(f"{network}: {name!r} has the options {options}; expected {expected}, not {wrong}.")
    depth = needs.times if isinstance(needs.times, str) else None
    times = int(space[depth].table.max()) if depth else needs.times
    if times is not None and not (length is None and needs.shared) and (length or 0) < int(times):
        active = f", active={depth!r}" if depth else ""
        raise ValueError(
            f"{network}: {name!r} is needed {times} times, as Choice(...).repeat({times}{active}) makes it; "
            f"got {'one for all' if length is None else length}."
        )


def _fits(option: Any, needs: Needs) -> bool:
    if needs.names is not None:
        return option in needs.names
    kind = int if needs.whole else (int, float)
    return isinstance(option, kind) and not isinstance(option, bool) and option >= needs.least


def check_fit(
    network: str, space: Space, names: Sequence[str], fits: Callable[..., bool], expected: str
) -> None:
    """Checks that all options that decisions of these names can have at one position fit each other.

    Raises ValueError with the values that do not, and what was expected.
    """
    lengths = [space[name].length for name in names]
    for i in range(min([length for length in lengths if length is not None], default=1)):
        places = [0 if length is None else i for length in lengths]
        of_position = [space[name].options_at(place) for name, place in zip(names, places, strict=True)]
        for options in itertools.product(*of_position):
            if not fits(*options):
                given = " and ".join(f"{n!r} with {x!r}" for n, x in zip(names, options, strict=True))
                raise ValueError(f"{network}: the space has {given}; expected {expected}.")


def check_always_active(network: str, space: Space, name: str) -> None:
    """Checks that no other decision says whether a decision counts."""
    if space[name].condition or space[name].active:
        raise ValueError(f"{network}: {name!r} is always active, which it is not in {space}.")


def check_values(owner: Any, **allowed: Sequence[str]) -> None:
    """Checks that fields of a network have one of the values that there are, by name of the field."""
    for name, values in allowed.items():
        if (value := getattr(owner, name)) not in values:
            raise ValueError(
                f"{type(owner).__name__}: {name} is {value!r}, expected one of {tuple(values)}"
                f"{nearest(value, values)}"
            )


def check_multiple(what: str, value: int, of: int) -> None:
    """Checks that a size, which `what` names, is a multiple of another."""
    if value % of or not value:
        lower = value // of * of
        near = f"{lower} and {lower + of}" if lower else str(of)
        raise ValueError(f"{what} is {value}, which is not a multiple of {of}; the nearest are {near}.")


def check_images(network: str, images: Any, size: int | None = None, *, multiple: int = 1) -> None:
    """Checks that images are [B, R, R, C], R of a size, or a multiple of what all strides make."""
    shape, side = jax.tree.map(np.shape, images), size or "R"
    if not isinstance(shape, tuple) or len(shape) != 4 or not shape[1] == shape[2] == (size or shape[2]):
        raise ValueError(f"{network}: expected square images [B, {side}, {side}, channels], got {shape}.")
    check_multiple(f"{network}: the resolution", shape[1], multiple)

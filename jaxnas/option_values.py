"""Checks of architectures, and option values in place of indices: what people read and write in files."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.choice import Choice, nearest


def to_dict(
    choices: Mapping[str, Choice], arch: Mapping[str, Any], active: Mapping[str, Any]
) -> dict[str, Any]:
    """The option values of an architecture; see `Space.to_dict`."""
    values: dict[str, Any] = {}
    for name, choice in choices.items():
        mask, index = np.asarray(active[name]), np.asarray(arch[name])
        if choice.length is None and mask:
            values[name] = choice.options[int(index)]
        elif mask.any():
            values[name] = [
                choice.options_at(p)[int(index[p])] if mask[p] else None
                for p in range(int(np.flatnonzero(mask)[-1]) + 1)
            ]
    return values


def indices(
    choices: Mapping[str, Choice], values: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The index of each element, 0 where no value is given; and where one is given, bool."""
    if not isinstance(values, Mapping):
        raise TypeError(
            f"architecture: expected a dict of option values with the names {list(choices)}, got {values!r}."
        )
    for name in values:
        if name not in choices:
            near = nearest(name, choices)
            raise ValueError(
                f"architecture: {name!r} is not a choice of the space{near} Its choices are {list(choices)}."
            )
    index, given = {}, {}
    for name, choice in choices.items():
        row = _row(name, choice, values)
        index[name] = np.zeros(choice.shape, np.int32)
        given[name] = np.zeros(choice.shape, bool)
        for p, option in enumerate(row):
            if option is None:
                continue
            at = () if choice.length is None else (p,)
            try:
                index[name][at] = choice.index(option, p)
            except ValueError as error:
                raise ValueError(f"architecture: {name!r}{list(at) or ''}: {error}") from None
            given[name][at] = True
    return index, given


def _row(name: str, choice: Choice, values: Mapping[str, Any]) -> list:
    if choice.length is None:
        return [values.get(name)]
    row = values.get(name, ())
    if isinstance(row, str) or not hasattr(row, "__len__"):
        raise ValueError(
            f"architecture: {name!r} is {row!r}, expected a list with a value for each position."
        )
    if len(row) > choice.length:
        raise ValueError(f"architecture: {name!r} has {len(row)} values, expected at most {choice.length}.")
    return list(row)


def check_complete(
    choices: Mapping[str, Choice],
    values: Mapping[str, Any],
    given: Mapping[str, np.ndarray],
    active: Mapping[str, Any],
) -> None:
    """Raises ValueError for an active element without a value, or a list that is neither cut nor full."""
    for name, choice in choices.items():
        mask = np.asarray(active[name])
        missing = np.argwhere(mask & ~given[name])
        if len(missing):
            at = "" if choice.length is None else f" at position {missing[0][0]}"
            raise ValueError(
                f"architecture: no value for {name!r}{at}, which is active there; it needs {int(mask.sum())} "
                "value(s)."
            )
        if choice.active is not None:
            length, depth = len(values.get(name, ())), values.get(choice.active, 0)
            # Longer than the depth is a mistake, unless padded to the full length.
            if depth < length < math.prod(choice.shape):
                raise ValueError(
                    f"architecture: {name!r} has {length} values, but {choice.active!r} is {depth}: give "
                    f"{depth}, or all {choice.length}."
                )


def check_shapes(
    choices: Mapping[str, Choice], arch: Mapping[str, Any], *, batched: bool = False, hard: bool = False
) -> None:
    """Checks names, shapes and dtypes of an architecture, which may be traced; TypeError or ValueError.

    `batched` allows leading axes, and `hard` refuses weights.
    """
    if not isinstance(arch, Mapping):
        raise TypeError(
            f"architecture: expected a dict of arrays with the names {list(choices)}, got "
            f"{type(arch).__name__}."
        )
    for name in (*arch, *choices):
        if name not in choices or name not in arch:
            wrong = "has no value." if name in choices else f"is not a choice{nearest(name, choices)}"
            raise ValueError(f"architecture: {name!r} {wrong} The choices are {list(choices)}.")
    leads = {}
    for name, choice in choices.items():
        x = arch[name] if hasattr(arch[name], "dtype") else np.asarray(arch[name])
        soft = jnp.issubdtype(x.dtype, jnp.floating)
        if (hard and soft) or not (soft or jnp.issubdtype(x.dtype, jnp.integer)):
            raise TypeError(
                f"architecture: {name!r} has dtype {x.dtype}{' and is soft' if soft else ''}; expected int32 "
                f"indices of options{'' if hard else ', or float weights over the options'}. Option values "
                "go through space.from_dict."
            )
        shape = choice.shape + ((choice.width,) if soft else ())
        leads[name], tail = x.shape[: x.ndim - len(shape)], x.shape[x.ndim - len(shape) :]
        if x.ndim < len(shape) or tail != shape or (leads[name] and not batched):
            raise ValueError(
                f"architecture: {name!r} has shape {tuple(x.shape)}, expected {shape}"
                f"{' after any batch axes' if batched else ' (vmap over a batch)'}. Inactive positions are "
                "there too: space.from_dict fills them."
            )
    if len(set(leads.values())) > 1:
        raise ValueError(f"architecture: the names have different batch axes: {leads}.")


def check_indices(choices: Mapping[str, Choice], arch: Mapping[str, Any]) -> None:
    """Checks indices and weights of an architecture, but for those that are traced; raises ValueError."""
    for name, choice in choices.items():
        if isinstance(arch[name], jax.core.Tracer):
            continue
        x, sizes = np.asarray(arch[name]), choice.sizes
        soft = jnp.issubdtype(x.dtype, jnp.floating)
        if soft:
            bad = ~np.isfinite(x) | ((np.arange(choice.width) >= sizes[..., None]) & (x != 0))
            expected = "finite weights, zero beyond the options of a position"
        else:
            bad = (x < 0) | (x >= sizes)
            expected = "an index from 0 to the number of options less 1"
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            place = at[-2:-1] if soft else at[x.ndim - len(choice.shape) :]
            options = choice.options_at(*(place if choice.length is not None else ()))
            raise ValueError(
                f"architecture: {name!r}{list(at) if at else ''} is {x[at]}, expected {expected}; the "
                f"{len(options)} options are {options}. Option values go through space.from_dict."
            )

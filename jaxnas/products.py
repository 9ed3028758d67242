"""The multiply-accumulates of a traced program: its matrix products and convolutions.

Only products count, M * N * K each, as everywhere in this package. The count comes from the program's
equations, so it holds for any layer, of Flax or written by hand. How often a `lax.while_loop` runs, and
which branch of a `lax.cond` is taken, the program does not say: there the count is a range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Range(NamedTuple):
    """The least and the greatest number of multiply-accumulates; the latter may be infinite."""

    least: int
    most: float


PRODUCTS = {"dot_general", "bcoo_dot_general", "conv_general_dilated"}
OPAQUE = {"pallas_call", "ffi_call", "pure_callback", "io_callback"}  # programs that cannot be looked into
NOTHING = Range(0, 0)


def count(
    jaxpr: Any, group: Callable[[str], Hashable | None] = lambda scope: True, scope: str = ""
) -> dict[Any, Range]:
    """Counts the products of a program.

    Args:
      jaxpr: of the program, as `jax.make_jaxpr(...)(...).jaxpr`.
      group: from the named scopes around an equation, joined by "/", to a key that its products are
        summed under; None leaves them out.
      scope: the named scopes around the whole program.

    Returns:
      The number of multiply-accumulates by key.
    """
    totals: dict[Any, Range] = {}
    for equation in jaxpr.eqns:
        for key, found in _of_equation(equation, group, scope).items():
            least, most = totals.get(key, NOTHING)
            totals[key] = Range(least + found.least, most + found.most)
    return totals


def total(jaxpr: Any) -> Range:
    """The multiply-accumulates of a whole program."""
    return count(jaxpr).get(True, NOTHING)


def computes_in_half_precision(jaxpr: Any) -> bool:
    """Whether anything in a program is of a floating type with less than 32 bits."""
    for equation in jaxpr.eqns:
        dtypes = [getattr(variable.aval, "dtype", None) for variable in equation.outvars]
        if any(d is not None and jnp.issubdtype(d, jnp.floating) and d.itemsize < 4 for d in dtypes):
            return True
        if any(computes_in_half_precision(inner) for inner in _inner(equation)):
            return True
    return False


def _of_equation(equation: Any, group: Callable, scope: str) -> dict[Any, Range]:
    name, parameters = equation.primitive.name, equation.params
    scope = f"{scope}/{equation.source_info.name_stack}"
    if name in PRODUCTS or name in OPAQUE:
        key = group(scope)
        return {} if key is None else {key: _size(equation)}
    inner = [count(one, group, scope) for one in _inner(equation)]
    keys = {key for one in inner for key in one}
    ranges = {key: [one.get(key, NOTHING) for one in inner] for key in keys}
    if name == "cond":
        return {k: Range(min(r.least for r in all_), max(r.most for r in all_)) for k, all_ in ranges.items()}
    summed = {k: Range(sum(r.least for r in all_), sum(r.most for r in all_)) for k, all_ in ranges.items()}
    if name == "while":
        return {key: Range(0, math.inf) for key in summed}
    times = parameters["length"] if name == "scan" else 1
    return {key: Range(times * least, times * most) for key, (least, most) in summed.items()}


def _size(equation: Any) -> Range:
    if equation.primitive.name in OPAQUE:
        return Range(0, math.inf)
    left, right = (variable.aval.shape for variable in equation.invars[:2])
    outputs, numbers = math.prod(equation.outvars[0].aval.shape), equation.params["dimension_numbers"]
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = numbers
        macs = outputs * math.prod(left[axis] for axis in contracted)
    elif equation.primitive.name == "bcoo_dot_general":  # each stored number of a sparse matrix meets a row
        (_, contracted), (_, batch) = numbers
        right = equation.invars[2].aval.shape
        macs = math.prod(left) * math.prod(
            n for axis, n in enumerate(right) if axis not in (*contracted, *batch)
        )
    else:  # each output sums over the kernel's window and over its input channels, those of one group
        macs = outputs * math.prod(right) // max(right[numbers.rhs_spec[0]], 1)
    return Range(macs, macs)


def _inner(equation: Any) -> Iterator[Any]:
    """The programs within an equation: bodies, branches, called functions."""
    for value in jax.tree.leaves(equation.params, is_leaf=_is_program):
        if _is_program(value):
            yield getattr(value, "jaxpr", value)


def _is_program(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns")

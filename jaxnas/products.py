"""The multiply-accumulates of a traced program: its matrix products and convolutions.

Only products count, M * N * K each, as everywhere in this package. A convolution counts its whole window at
the border, as published figures do and XLA does not. A transposed one counts what XLA does: the inputs that
its windows meet, and neither the zeros between them nor those at the border. The count comes from the
program's equations, so it holds for any layer, of Flax or written by hand. How often a `lax.while_loop` runs,
and which branch of a `lax.cond` is taken, the program does not say: there the count is a range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp


class Range(NamedTuple):
    """The least and the greatest number of multiply-accumulates; the latter may be infinite."""

    least: int
    most: float


PRODUCTS = {"dot_general", "ragged_dot_general", "conv_general_dilated"}
# Of a sparse matrix: each stored number, of the first operand, meets a row of the operand at this place.
SPARSE = {"bcoo_dot_general": 2, "bcsr_dot_general": 3}
SPARSE |= dict.fromkeys(("coo_matvec", "coo_matmat", "csr_matvec", "csr_matmat"), 3)
OPAQUE = {"pallas_call", "ffi_call", "pure_callback", "io_callback"}  # programs that cannot be looked into
_UNKNOWN = ("dot_general", "matmul", "matmat", "matvec")  # parts of the names of other products
NOTHING = Range(0, 0)


def count(
    jaxpr: Any, group: Callable[[str], Hashable | None] = lambda scope: True, scope: str = ""
) -> dict[Any, Range]:
    """Counts the products of a program, as `jax.make_jaxpr(...)(...).jaxpr`, in the named scopes `scope`.

    Returns:
      The multiply-accumulates by key: what `group` makes of the named scopes around an equation, joined by
      "/"; None leaves its products out.
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


def opaque(jaxpr: Any) -> set[str]:
    """The names of primitives in a program whose products cannot be counted."""
    found = {equation.primitive.name for equation in jaxpr.eqns if _is_opaque(equation.primitive.name)}
    return found.union(*(opaque(inner) for equation in jaxpr.eqns for inner in _inner(equation)))


def _is_opaque(name: str) -> bool:
    known = name in PRODUCTS or name in SPARSE
    return name in OPAQUE or (not known and any(part in name for part in _UNKNOWN))


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
    if name in PRODUCTS or name in SPARSE or _is_opaque(name):
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
    name, parameters = equation.primitive.name, equation.params
    if _is_opaque(name):
        return Range(0, math.inf)
    left, right = (variable.aval.shape for variable in equation.invars[:2])
    outputs = equation.outvars[0].aval.shape
    if name in SPARSE:
        right = equation.invars[SPARSE[name]].aval.shape
        (_, contracted), (_, batch) = parameters.get("dimension_numbers", (((), (0,)), ((), ())))
        macs = math.prod(left) * math.prod(
            n for axis, n in enumerate(right) if axis not in (*contracted, *batch)
        )
    elif name == "conv_general_dilated":
        # Each output sums over the kernel's window and over its input channels, those of one group.
        numbers = parameters["dimension_numbers"]
        others = [outputs[axis] for axis in numbers.out_spec[:2]]
        spatial = range(len(outputs) - 2)
        window = math.prod(taps(equation, axis) for axis in spatial)
        macs = math.prod(others) * right[numbers.rhs_spec[1]] * window
    elif name == "ragged_dot_general":  # each row meets the matrix of its group
        ragged = parameters["ragged_dot_dimension_numbers"]
        (contracted, _), _ = ragged.dot_dimension_numbers
        macs = math.prod(outputs) * math.prod(left[axis] for axis in contracted)
        if set(contracted) & set(ragged.lhs_ragged_dimensions):  # of which a group has a part
            macs //= max(equation.invars[2].aval.shape[-1], 1)
    else:
        (contracted, _), _ = parameters["dimension_numbers"]
        macs = math.prod(outputs) * math.prod(left[axis] for axis in contracted)
    return Range(macs, macs)


def taps(equation: Any, axis: int, size: int | None = None) -> int:
    """How often the taps of a convolution's kernel, or of a center of it, count along a spatial axis."""
    numbers, of = equation.params["dimension_numbers"], equation.params
    inputs, window = (x.aval.shape for x in equation.invars[:2])
    known, whole = inputs[numbers.lhs_spec[2 + axis]], window[numbers.rhs_spec[2 + axis]]
    outputs = equation.outvars[0].aval.shape[numbers.out_spec[2 + axis]]
    size = whole if size is None else size
    if all(one == 1 for one in of["lhs_dilation"]):
        return outputs * size
    stride, between, dilation = (of[x][axis] for x in ("window_strides", "lhs_dilation", "rhs_dilation"))
    first, before = (whole - size) // 2, of["padding"][axis][0]
    places = (stride * i + dilation * (first + tap) - before for i in range(outputs) for tap in range(size))
    return sum(place % between == 0 and 0 <= place < known * between for place in places)


def _inner(equation: Any) -> Iterator[Any]:
    """The programs within an equation: bodies, branches, called functions."""
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            program = getattr(one, "jaxpr", one)
            if hasattr(program, "eqns"):
                yield program

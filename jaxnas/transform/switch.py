"""The form `switch`: products run at their active sizes, each in a switch over static slices.

An axis may be a product of elastic factors, such as heads and their size. `elastic.run` cuts prefixes, so
operands are given to it with one axis for each factor, and joined again within a branch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.elastic.switch import run
from jaxnas.elastic.width import Width
from jaxnas.transform.program import Operation
from jaxnas.transform.ties import Layout, Leaf

CONTRACTIONS = ("dot_general", "conv_general_dilated")


@dataclasses.dataclass(frozen=True)
class _Product:
    """A product or convolution of operands with one axis for each factor.

    Attributes:
      primitive, parameters: of JAX.
      factors: for each operand the number of factors of each axis.
      sources: for each axis of the result the operand and axis that it is; None for positions.
    """

    primitive: Any
    parameters: tuple[tuple[str, Any], ...]
    factors: tuple[tuple[int, ...], ...]
    sources: tuple[tuple[int, int] | None, ...]

    def __call__(self, *operands: jax.Array) -> jax.Array:
        parts, joined = [], []
        for x, factors in zip(operands, self.factors, strict=True):
            ends = np.cumsum(factors).tolist()
            parts.append([x.shape[end - n : end] for n, end in zip(factors, ends, strict=True)])
            joined.append(x.reshape([math.prod(part) for part in parts[-1]]))
        parameters = dict(self.parameters)
        if parameters.get("feature_group_count", 1) > 1:
            numbers = parameters["dimension_numbers"]
            channels, each = joined[0].shape[numbers.lhs_spec[1]], joined[1].shape[numbers.rhs_spec[1]]
            parameters["feature_group_count"] = channels // each
        made = self.primitive.bind(*joined, **parameters)
        shape = [
            (made.shape[axis],) if source is None else parts[source[0]][source[1]]
            for axis, source in enumerate(self.sources)
        ]
        return made.reshape([size for part in shape for size in part])


def contract(op: Operation, values: list[Any], layouts: list[Any], widths: Mapping[int, Width]) -> Any:
    """Runs a product at its active sizes.

    Args:
      op: a product.
      values: of its operands, of any value behind their active part.
      layouts: of its operands and of its result.
      widths: of elastic atoms.

    Returns:
      The result with zeros behind its active part; None where an axis is joined of elastic pieces.
    """
    if any(not isinstance(factor, Leaf) for array in layouts for layout in array for factor in layout):
        return None
    *operands, result = layouts
    product = _Product(
        op.eqn.primitive,
        tuple(sorted(op.eqn.params.items())),
        tuple(tuple(len(layout) for layout in array) for array in operands),
        _sources(op),
    )
    names = [_named(array, number, widths) for number, array in enumerate(layouts)]
    axes = f"{', '.join(names[:-1])} -> {names[-1]}"
    used = {leaf.atom for array in operands for layout in array for leaf in layout} & widths.keys()
    given = {f"a{atom}": widths[atom] for atom in sorted(used)}
    split = []
    for x, array in zip(values, operands, strict=True):
        leaves = [leaf for layout in array for leaf in layout]
        largest = [widths[leaf.atom].maximum if leaf.atom in widths else leaf.size for leaf in leaves]
        split.append(x.reshape([leaf.size for leaf in leaves])[tuple(map(slice, largest))])
    made = run(product, axes, given, *split, maskable=tuple(given))
    full = [leaf.size for layout in result for leaf in layout]
    made = jnp.pad(made, [(0, size - now) for size, now in zip(full, made.shape, strict=True)])
    return made.reshape(op.eqn.outvars[0].aval.shape)


def _named(array: tuple[Layout, ...], number: int, widths: Mapping[int, Width]) -> str:
    leaves = [leaf for layout in array for leaf in layout if isinstance(leaf, Leaf)]
    return " ".join(
        f"a{leaf.atom}" if leaf.atom in widths else f"w{number}_{place}" for place, leaf in enumerate(leaves)
    )


def _sources(op: Operation) -> tuple[tuple[int, int] | None, ...]:
    numbers = op.eqn.params["dimension_numbers"]
    if op.name == "dot_general":
        (left, right), (left_batch, right_batch) = numbers
        ranks = [len(v.aval.shape) for v in op.eqn.invars]
        free = [(0, i) for i in range(ranks[0]) if i not in (*left, *left_batch)]
        free += [(1, j) for j in range(ranks[1]) if j not in (*right, *right_batch)]
        return (*((0, i) for i in left_batch), *free)
    sources: list[tuple[int, int] | None] = [None] * len(numbers.out_spec)
    sources[numbers.out_spec[0]] = (0, numbers.lhs_spec[0])
    sources[numbers.out_spec[1]] = (1, numbers.rhs_spec[0])
    return tuple(sources)

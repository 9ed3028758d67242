"""Tracks which arrays are zero behind their active part, so that nothing is masked again."""

from __future__ import annotations

from collections.abc import Sequence

from jaxnas.transform.program import Operation, Program
from jaxnas.transform.sizes import NONE, Atoms, Sizes, State

# Elementwise functions of which 0 is a fixed point.
_ODD = frozenset(
    "abs asin asinh atan atanh ceil conj convert_element_type copy copy_p erf erf_inv expm1 "
    "floor imag log1p neg optimization_barrier real reduce_precision round sign sin sinh square "
    "stop_gradient tan tanh".split()
)
_ALL = frozenset("add add_any sub max min or xor".split())  # 0 of zeros
_ANY = frozenset("mul and".split())  # 0 if one operand is
_KEPT = frozenset(  # moves numbers, or adds some: zeros stay zeros
    "reshape transpose squeeze tile expand_dims broadcast_in_dim slice rev reduce_sum reduce_max reduce_min "
    "reduce_window_max reduce_window_min reduce_window_sum dynamic_slice".split()
)


def zeros_of(op: Operation, state: State, sizes: Sizes) -> Atoms:
    """The atoms behind whose active part the results are known to be zero."""
    given = [state.zeros(one, sizes) for one in op.ins]
    if not any(given):
        return NONE
    has = [sizes.atoms(one) for one in op.ins]
    found = NONE
    if op.name in _ANY or op.name == "dot_general":
        found = NONE.union(*(zero & own for zero, own in zip(given, has, strict=True)))
    elif op.name in _ALL or op.name in ("concatenate", "stack"):
        found = given[0].intersection(*given[1:])
    elif op.name == "select_n":
        found = given[1].intersection(*given[2:])
    elif op.name in ("div", "rem") or op.name in _KEPT or op.name in _ODD:
        found = given[0]
    elif op.name == "gather":
        found = given[0] - has[1]
    elif op.name == "integer_pow" and op.eqn.params["y"] > 0:
        found = given[0]
    elif op.name == "cumsum":
        found = given[0] - sizes.elastic(sizes.layouts[op.array(0)][op.eqn.params["axis"]])
    elif op.name == "conv_general_dilated":
        kernels = sizes.layouts[op.array(1)][op.eqn.params["dimension_numbers"].rhs_spec[0]]
        found = (given[1] & sizes.elastic(kernels)) | (given[0] - has[1])
    found &= sizes.atoms(op.outs[0])  # a sum along an atom no longer has it
    if not found:
        return NONE
    # An atom in two axes of a result, as of x x^T: both operands must have zeros.
    axes = [sizes.elastic(layout) for layout in sizes.layouts[op.outs[0]]]
    twice = {atom for atom in found if sum(atom in axis for axis in axes) > 1}
    return frozenset(
        atom
        for atom in found
        if atom not in twice or all(atom in zero for zero, own in zip(given, has, strict=True) if atom in own)
    )


def zeros_of_body(body: Program, zero: Sequence[Atoms], sizes: Sizes) -> list[Atoms]:
    """`zeros_of` the results of a program of such operations."""
    state = State({}, dict(zip(body.inputs, zero, strict=True)), {}, {})
    for op in body.operations:
        zeros = zeros_of(op, state, sizes)
        state.zero.update(dict.fromkeys(op.outs, zeros))
    return [state.zeros(one, sizes) for one in body.outputs]

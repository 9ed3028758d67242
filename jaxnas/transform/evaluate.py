"""Runs an analyzed program at other sizes: with masks, or at small shapes.

* `masked`: arrays keep their full shapes, and sizes may be traced, so that one compiled program serves all.
  Variables come with zeros behind their active part. What reduces along an elastic axis gets the neutral
  value of the reduction there, unless zeros are known to be there, and `sum / N` divides by the active size.
* small: variables come at their active sizes, which are ints, and the same operations run at small shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxnas.elastic.width import Width
from jaxnas.transform.program import Constant, Operation, Program, Value
from jaxnas.transform.rules import CREATED, CUMULATIVE, ELEMENTWISE, REDUCTIONS
from jaxnas.transform.segments import Segment, run_segment, segments
from jaxnas.transform.sizes import NONE, Atoms, Region, Sizes, State, Turns, place_of, zeros_of, zeros_of_body
from jaxnas.transform.ties import Layout, atoms_of, size_of

# Operands whose zeros make infinities, in the result or its derivative: they are 1 behind the active part.
_SINGULAR = {"div": 1, "rem": 1, "log": 0, "sqrt": 0, "rsqrt": 0, "cbrt": 0, "pow": 0, "integer_pow": 0}
_PASSING = frozenset(  # of a sum that is still to be divided
    "convert_element_type reshape broadcast_in_dim squeeze expand_dims transpose neg copy "
    "stop_gradient".split()
)
_SCALARS = frozenset("convert_element_type sqrt rsqrt div mul sub add neg integer_pow max min pow".split())


def run(program: Program, arguments: Sequence[Any], zero: Sequence[Atoms], sizes: Sizes) -> list[Any]:
    """Runs a program.

    Args:
      program: analyzed.
      arguments: of it, at their full shapes with zeros behind the active part (masked), or small.
      zero: for each argument the atoms along which zeros are known to be behind its active part.
      sizes: see `Sizes`.

    Returns:
      The results.
    """
    return _run(program, arguments, zero, sizes)[0]


def _run(
    program: Program, arguments: Sequence[Any], zero: Sequence[Atoms], sizes: Sizes
) -> tuple[list[Any], list[Atoms]]:
    values = {**sizes.active_constants, **dict(zip(program.inputs, arguments, strict=True))}
    state = State(values, dict(zip(program.inputs, zero, strict=True)), {}, {})
    _operations(program, 0, len(program.operations), sizes.gates.get(id(program), []), state, sizes)
    outputs = [state.value(one) for one in program.outputs]
    return outputs, [state.zeros(one, sizes) for one in program.outputs]


def _operations(
    program: Program, start: int, stop: int, gates: list[tuple[Region, Any]], state: State, sizes: Sizes
) -> None:
    place = start
    while place < stop:
        here = next((one for one in gates if one[0].start == place and one[0].stop <= stop), None)
        if here is None:
            end = min([one.start for one, _ in gates if place < one.start < stop], default=stop)
            _in_order(_parts(program, place, end, sizes), None, state, sizes)
            place = end
            continue
        region, gate = here
        inner = [one for one in gates if one is not here]
        _region(program, region, gate, inner, state, sizes)
        place = region.stop


def _parts(program: Program, start: int, stop: int, sizes: Sizes) -> Sequence[Operation | Segment]:
    """Operations, in the form `switch` grouped to segments."""
    operations = program.operations[start:stop]
    if sizes.widths is None:
        return operations
    behind = [one for op in program.operations[stop:] for one in op.ins]
    masked = frozenset(sizes.sizes) - sizes.widths.keys() - sizes.kernels  # which come with zeros
    return segments(operations, [*behind, *program.outputs], sizes.layouts, sizes.widths, masked)


def _in_order(parts: Sequence[Operation | Segment], gate: Width | None, state: State, sizes: Sizes) -> None:
    """Runs operations, and segments at their active sizes where the gate is 1."""
    for part in parts:
        if isinstance(part, Operation):
            _operation(part, state, sizes)
            continue
        run_segment(part, gate, state, sizes, _operation)
        for op in part.operations:
            _fold(op, state)
            _count(op, state, sizes)


def _gated(parts: Sequence[Operation | Segment]) -> bool:
    """Whether segments are all that a region runs, but for what does not depend on them."""
    made = {out for part in parts if isinstance(part, Segment) for out in part.outs}
    return not any(one in made for part in parts if isinstance(part, Operation) for one in part.ins)


def _region(
    program: Program, region: Region, gate: Any, inner: list[Any], state: State, sizes: Sizes
) -> None:
    """Runs a region, or hands its input on."""
    known: list[Atoms] = []

    def kept() -> tuple[Any, ...]:
        within = state.copy()
        _operations(program, region.start, region.stop, inner, within, sizes)
        known[:] = [within.zeros(out, sizes) for out, _ in region.outs]
        return tuple(within.values[out] for out, _ in region.outs)

    def skipped() -> tuple[Any, ...]:
        return tuple(state.value(source) for _, source in region.outs)

    def switched(parts: Sequence[Operation | Segment]) -> tuple[Any, ...]:
        within = state.copy()
        _in_order(parts, sizes.switched_gates[region], within, sizes)
        known[:] = [within.zeros(out, sizes) for out, _ in region.outs]
        return tuple(
            jnp.where(gate, within.values[out], x) for (out, _), x in zip(region.outs, skipped(), strict=True)
        )

    if isinstance(gate, bool | np.bool_):
        made = kept() if gate else skipped()
        known = known if gate else [state.zeros(source, sizes) for _, source in region.outs]
    elif jnp.issubdtype(gate.dtype, jnp.floating):
        made = tuple(
            gate.astype(x.dtype) * x + (1 - gate).astype(x.dtype) * y
            for x, y in zip(kept(), skipped(), strict=True)
        )
    elif (
        not inner
        and region in sizes.switched_gates
        and _gated(parts := _parts(program, region.start, region.stop, sizes))
    ):
        made = switched(parts)
    else:
        made = lax.cond(gate, kept, skipped)
    for (out, source), value, zeros in zip(region.outs, made, known, strict=True):
        state.values[out] = value
        state.zero[out] = zeros & state.zeros(source, sizes)


def _operation(op: Operation, state: State, sizes: Sizes) -> None:
    values = [state.value(one) for one in op.ins]
    if sizes.small and not op.bodies and any(x is None for x in values):  # of a scan without turns
        state.values.update(dict.fromkeys(op.outs))
        return
    if turns := _turned(op, values, sizes):
        state.values[op.outs[0]] = _each_turn(op, values, sizes, turns)
        return
    if op.bodies:
        results, known = _nested(op, values, state, sizes)
        for out, value, zeros in zip(op.outs, results, known, strict=True):
            state.values[out], state.zero[out] = value, zeros
        return
    _fold(op, state)
    values = _divided(op, values, state, sizes)
    if not sizes.small:
        values = _with_neutral(op, values, state, sizes)
    if op.name in (*CREATED, "random_split"):
        (made,) = op.bind(values)
        results = [sizes.cut(made, op.outs[0]) if sizes.small else made]
    else:
        results = op.bind(values, _resized(op, values, sizes) if sizes.small else None)
    _count(op, state, sizes)
    zeros = NONE if sizes.small else zeros_of(op, state, sizes)
    for out, value in zip(op.outs, results, strict=True):
        state.values[out], state.zero[out] = value, zeros


def _turned(op: Operation, values: list[Any], sizes: Sizes) -> Turns | None:
    """The scan for which an operation prepares arrays that are not alike by turn, at small shapes."""
    if op.bodies or not sizes.small:
        return None
    apart = any(isinstance(x, tuple) for x in values) or any(
        atoms_of(layout).keys() & sizes.axis_of.keys() for out in op.outs for layout in sizes.layouts[out]
    )
    found = [x for x in sizes.turns.values() if x.rows and place_of(x.axis, sizes.layouts[op.outs[0]]) >= 0]
    return found[0] if apart else None


def _each_turn(op: Operation, values: list[Any], sizes: Sizes, turns: Turns) -> tuple[Any, ...]:
    """Runs an operation for each turn of a scan, whose axis then has the size 1; None where unused."""
    made = []
    for turn, row in enumerate(turns.rows):
        at = sizes.at(turns, row)
        at.sizes = {**at.sizes, turns.axis: 1}
        given = [_of_turn(x, one, turn, turns, at) for x, one in zip(values, op.ins, strict=True)]
        gone = any(x is None for x in given)
        made.append(None if gone else op.bind(given, _resized(op, given, at))[0])
    return tuple(made)


def _of_turn(value: Any, one: Value, turn: int, turns: Turns, sizes: Sizes) -> Any:
    """The part of an array for one iteration, with its axis of iterations; other arrays are unchanged."""
    if isinstance(value, tuple):
        return value[turn]
    place = place_of(turns.axis, sizes.layouts[one]) if isinstance(one, int) else -1
    if place < 0:
        return value
    assert isinstance(one, int)
    row = lax.slice_in_dim(value, turn, turn + 1, axis=place)
    # A constant, since variables by turn are tuples: it has its full shape.
    return sizes.cut(row, one) if sizes.atoms(one) & turns.rows[turn].sizes.keys() else row


def _fold(op: Operation, state: State) -> None:
    """Computes scalars that depend on no array, as the number of terms of a mean."""
    known = [one.value if isinstance(one, Constant) else state.scalars.get(one) for one in op.ins]
    scalar = len(op.outs) == 1 and not op.eqn.outvars[0].aval.shape and op.name in _SCALARS
    if scalar and all(one is not None for one in known):
        with jax.ensure_compile_time_eval():
            given = [jnp.asarray(one, v.aval.dtype) for one, v in zip(known, op.eqn.invars, strict=True)]
            state.scalars[op.outs[0]] = np.asarray(op.eqn.primitive.bind(*given, **op.eqn.params))


def _divided(op: Operation, values: list[Any], state: State, sizes: Sizes) -> list[Any]:
    """The operands of an operation, with the active number of terms where a mean divides by the full one."""
    if op.name not in ("div", "mul"):
        return values
    for place, other in ((0, 1), (1, 0))[: 2 if op.name == "mul" else 1]:
        one, by = op.ins[place], op.ins[other]
        if not isinstance(one, int) or one not in state.pending:
            continue
        scalar = by.value if isinstance(by, Constant) else state.scalars.get(by)
        if scalar is None or np.ndim(scalar):
            continue
        full, now = size_of(state.pending[one], {}), sizes.size(state.pending[one])
        given = float(scalar) if op.name == "div" else 1 / float(scalar) if float(scalar) else math.inf
        for less in (0, 1):
            if full > less and math.isclose(given, full - less, rel_tol=1e-6):
                count = jnp.asarray(now - less, values[place].dtype)
                values = list(values)
                values[other] = count if op.name == "div" else 1 / count
                return values
    return values


def _count(op: Operation, state: State, sizes: Sizes) -> None:
    """Notes the axes of sums along elastic axes."""
    if op.name == "reduce_sum" and isinstance(op.ins[0], int):
        layout = sum((sizes.layouts[op.array(0)][place] for place in op.eqn.params["axes"]), ())
        if op.ins[0] in state.pending or sizes.elastic(layout):
            state.pending[op.outs[0]] = state.pending.get(op.ins[0], ()) + layout
    elif op.name in _PASSING and isinstance(op.ins[0], int) and op.ins[0] in state.pending:
        state.pending[op.outs[0]] = state.pending[op.ins[0]]


def _with_neutral(op: Operation, values: list[Any], state: State, sizes: Sizes) -> list[Any]:
    """The operands of a reduction along elastic axes, with its neutral value behind their active part."""
    neutral: Any = 0
    if (place := _SINGULAR.get(op.name)) is not None:
        one, values = op.ins[place], list(values)
        if isinstance(one, int) and op.eqn.params.get("y", -1) < 0:
            values[place] = sizes.mask(values[place], sizes.layouts[one], 1)
        return values
    if op.name in REDUCTIONS:
        axes, neutral = op.eqn.params["axes"], REDUCTIONS[op.name]
    elif op.name in CUMULATIVE:
        axes, neutral = (op.eqn.params["axis"],), CUMULATIVE[op.name]
    elif op.name == "sort":
        axes, neutral = (op.eqn.params["dimension"],), math.inf
    elif op.name == "dot_general":
        axes = op.eqn.params["dimension_numbers"][0][0]
    elif op.name == "conv_general_dilated":
        axes = (op.eqn.params["dimension_numbers"].lhs_spec[1],)
    else:
        return values
    if not isinstance(op.ins[0], int):
        return values
    layouts = sizes.layouts[op.array(0)]
    chosen = [layouts[place] if place in axes else None for place in range(len(layouts))]
    needed = frozenset().union(*(sizes.elastic(one) for one in chosen if one is not None))
    if neutral == 0 and not isinstance(neutral, bool):
        needed -= state.zeros(op.ins[0], sizes)
    return [sizes.mask(values[0], chosen, neutral), *values[1:]] if needed else values


def _resized(op: Operation, values: list[Any], sizes: Sizes) -> dict[str, Any]:
    """The parameters of an operation at small shapes."""
    parameters = dict(op.eqn.params)
    if op.name == "reshape":
        parameters["new_sizes"] = sizes.shape(op.outs[0])
    elif op.name == "broadcast_in_dim":
        parameters["shape"] = sizes.shape(op.outs[0])
    elif op.name == "dynamic_slice":
        parameters["slice_sizes"] = sizes.shape(op.outs[0])
    elif op.name == "split":
        axis = parameters["axis"]
        parameters["sizes"] = tuple(sizes.shape(out)[axis] for out in op.outs)
    elif op.name == "slice":
        starts, limits = [], []
        for layout, start, limit in zip(
            sizes.layouts[op.array(0)], parameters["start_indices"], parameters["limit_indices"], strict=True
        ):
            if (start, limit) == (0, math.prod(factor.size for factor in layout)):
                starts.append(0)
                limits.append(sizes.size(layout))
                continue
            mask = sizes.host_mask(layout)
            starts.append(int(mask[:start].sum()))
            limits.append(int(mask[:limit].sum()))
        parameters |= {"start_indices": tuple(starts), "limit_indices": tuple(limits)}
    elif op.name == "gather":
        full = op.eqn.invars[0].aval.shape
        parameters["slice_sizes"] = tuple(
            now if size == before else size
            for size, before, now in zip(parameters["slice_sizes"], full, values[0].shape, strict=True)
        )
    elif op.name == "conv_general_dilated":
        numbers = parameters["dimension_numbers"]
        if parameters["feature_group_count"] > 1:
            channels = values[0].shape[numbers.lhs_spec[1]]
            parameters["feature_group_count"] = channels // values[1].shape[numbers.rhs_spec[1]]
        kernel = sizes.layouts[op.array(1)]
        borders = [(size_of(kernel[i], {}) - sizes.size(kernel[i])) // 2 for i in numbers.rhs_spec[2:]]
        parameters["padding"] = tuple(
            (low - less * dilation, high - less * dilation)
            for (low, high), less, dilation in zip(
                parameters["padding"], borders, parameters["rhs_dilation"], strict=True
            )
        )
    return parameters


def _nested(op: Operation, values: list[Any], state: State, sizes: Sizes) -> tuple[list[Any], list[Atoms]]:
    zero, parameters = [state.zeros(one, sizes) for one in op.ins], op.eqn.params
    nothing = [NONE] * len(op.outs)
    if op.name == "scan":
        return _scan(op, values, zero, sizes), nothing
    if op.name == "while":
        first, second = parameters["cond_nconsts"], parameters["body_nconsts"]
        tests, given, carry = values[:first], values[first : first + second], tuple(values[first + second :])
        unknown = [NONE] * len(carry)
        made = lax.while_loop(
            lambda carry: run(op.bodies[0], [*tests, *carry], [*zero[:first], *unknown], sizes)[0],
            lambda carry: tuple(
                run(op.bodies[1], [*given, *carry], [*zero[first : first + second], *unknown], sizes)
            ),
            carry,
        )
        return list(made), nothing
    if op.name == "cond":
        branches = [_tupled(body, zero[1:], sizes) for body in op.bodies]
        return list(lax.switch(values[0], branches, *values[1:])), nothing
    if op.name in ("custom_jvp_call", "custom_vjp_call"):
        return _custom(op, values, zero, sizes)
    known: list[Atoms] = []

    def body(*arguments: Any) -> tuple[Any, ...]:
        results, known[:] = _run(op.bodies[0], arguments, zero, sizes)
        return tuple(results)

    kept = {key: parameters[key] for key in ("prevent_cse", "policy") if key in parameters}
    results = jax.checkpoint(body, **kept)(*values)
    return list(results), known


def _tupled(body: Program, zero: Sequence[Atoms], sizes: Sizes) -> Callable[..., tuple[Any, ...]]:
    return lambda *arguments: tuple(run(body, arguments, zero, sizes))


def _scan(op: Operation, values: list[Any], zero: list[Atoms], sizes: Sizes) -> list[Any]:
    parameters, turns = op.eqn.params, sizes.turns.get(id(op))
    carries, (start, stop) = parameters["num_carry"], (op.carried.start, op.carried.stop)
    given, carry = values[:start], tuple(values[start:stop])
    known = [*zero[:start], *[NONE] * carries, *zero[stop:]]
    length, by_turn = parameters["length"], None
    if turns is not None and sizes.small:
        if turns.rows:
            return _unrolled(op, values, sizes, turns)
        length = len(turns.kept)
        if not length:
            return list(carry)
    elif turns is not None:
        by_turn = turns.rows

    def turn(carry: tuple[Any, ...], rows: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        own, row = rows
        at = sizes if turns is None or row is None else sizes.at(turns, row)
        made = run(op.bodies[0], [*given, *carry, *own], known, at)
        return tuple(made[:carries]), tuple(made[carries:])

    carry, made = lax.scan(
        turn,
        carry,
        (tuple(values[stop:]), by_turn),
        length=length,
        reverse=parameters["reverse"],
        unroll=parameters["unroll"],
    )
    return [*carry, *made]


def _unrolled(op: Operation, values: list[Any], sizes: Sizes, turns: Turns) -> list[Any]:
    """Runs the turns of a scan one after another, at small shapes that differ by turn."""
    body, carries, (start, stop) = (
        op.bodies[0],
        op.eqn.params["num_carry"],
        (op.carried.start, op.carried.stop),
    )
    carry, made = values[start:stop], {}
    for turn in reversed(turns.kept) if op.eqn.params["reverse"] else turns.kept:
        at = sizes.at(turns, turns.rows[turn])
        own = at.sizes.keys() - sizes.sizes.keys()
        given = [
            at.cut(x, one) if at.atoms(one) & own else x
            for x, one in zip(values[:start], body.inputs, strict=False)
        ]
        rows = [
            _of_turn(x, one, turn, turns, at) for x, one in zip(values[stop:], op.ins[stop:], strict=True)
        ]
        rows = [None if x is None else jnp.squeeze(x, 0) for x in rows]
        results = run(body, [*given, *carry, *rows], [NONE] * len(values), at)
        carry, made[turn] = results[:carries], [None if x is None else x[None] for x in results[carries:]]
    for place, out in enumerate(op.outs[carries:]):
        rows = tuple(made[turn][place] if turn in made else None for turn in range(len(turns.rows)))
        apart = _atoms(sizes.layouts[out]) & sizes.axis_of.keys()
        carry.append(rows if apart else jnp.concatenate([x for x in rows if x is not None]))
    return carry


def _atoms(layouts: tuple[Layout, ...]) -> Atoms:
    return NONE.union(*map(atoms_of, layouts))


def _custom(
    op: Operation, values: list[Any], zero: list[Atoms], sizes: Sizes
) -> tuple[list[Any], list[Atoms]]:
    """A function with a derivative of its own, which is kept where its body runs as it is."""
    body = op.bodies[0]
    if sizes.small and (relu := _relu(body)):
        return [relu(values[0])], [NONE]
    changed = any(sizes.elastic(layout) for number in body.arrays() for layout in sizes.layouts[number])
    if not changed or (not sizes.small and _is_elementwise(body)):
        made = op.bind(values)
        return made, [NONE] * len(op.outs) if sizes.small else zeros_of_body(body, zero, sizes)
    return _run(body, values, zero, sizes)


def _relu(body: Program) -> Callable[..., Any] | None:
    """`jax.nn.relu`, whose derivative at 0 is 0, if a body is that of it."""
    match body.operations:
        case [op] if op.name == "max" and op.ins[0] == body.inputs[0] and isinstance(op.ins[1], Constant):
            return jax.nn.relu if float(op.ins[1].value) == 0 else None
    return None


def _is_elementwise(body: Program) -> bool:
    return all(not op.bodies and op.name in ELEMENTWISE for op in body.operations)

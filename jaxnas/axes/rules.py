"""The rule of each primitive for the axes of its operands and results: one table, one short function each.

A rule ties axes that must have one size and returns the axes of the results. A primitive that is not in the
table fixes all axes that it touches, so that nothing is resized that nobody understands.
"""

# ruff: noqa: D103 - the rules are named after their primitives

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jaxnas.axes.ties import Axes, Axis, Ties

Rule = Callable[[Ties, Any, list[Axes]], list[Axes]]

ELEMENTWISE = frozenset(
    "abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e "
    "bitcast_convert_type cbrt ceil clamp conj convert_element_type copy copy_p cos cosh digamma div eq erf "
    "erf_inv erfc exp exp2 expm1 floor ge gt igamma igammac imag integer_pow is_finite le lgamma log log1p "
    "logistic lt max min mul ne neg nextafter not optimization_barrier or polygamma population_count pow "
    "real reduce_precision regularized_incomplete_beta rem round rsqrt select_n "
    "shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan "
    "tanh xor zeta clz random_wrap random_unwrap complex".split()
)
REDUCTIONS = {  # the neutral value of a reduction, by its name
    "reduce_sum": 0,
    "reduce_prod": 1,
    "reduce_max": -math.inf,
    "reduce_min": math.inf,
    "reduce_and": True,
    "reduce_or": False,
    "reduce_xor": False,
    "argmax": -math.inf,
    "argmin": math.inf,
}
CUMULATIVE = {"cumsum": 0, "cumprod": 1, "cummax": -math.inf, "cummin": math.inf, "cumlogsumexp": -math.inf}
SORTED = {"sort": math.inf}
CREATED = ("iota", "random_bits")  # made at their full shape, of which the active part is taken


def contracted(eqn: Any) -> list[tuple[int, int]]:
    """The axes along which a product contracts, of both operands."""
    numbers = eqn.params.get("dimension_numbers")
    if eqn.primitive.name == "dot_general":
        return list(zip(*numbers[0], strict=True))
    return (
        [(numbers.lhs_spec[1], numbers.rhs_spec[1])] if eqn.primitive.name == "conv_general_dilated" else []
    )


def reduced(eqn: Any) -> tuple[int, ...]:
    """The axes of its first operand that an operation reduces, accumulates, sorts or contracts."""
    name, parameters = eqn.primitive.name, eqn.params
    if name in REDUCTIONS:
        return parameters["axes"]
    if name in CUMULATIVE or name in SORTED:
        return (parameters["axis" if name in CUMULATIVE else "dimension"],)
    return tuple(place for place, _ in contracted(eqn))


def _shape(variable: Any) -> tuple[int, ...]:
    return tuple(variable.aval.shape)


def _new(ties: Ties, variable: Any, like: Axes, of: tuple[int, ...], reason: str) -> Axes:
    """Axes of a result: those of an operand where the size is kept, new fixed ones elsewhere."""
    made = []
    for place, size in enumerate(_shape(variable)):
        if place < len(like) and of[place] == size:
            made.append(like[place])
        else:
            made += ties.axes([size], reason)
            if place < len(like):
                ties.fix(like[place], reason)
    return made


def elementwise(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    ranks = {len(axes) for axes in ins} - {0}
    if any(len(_shape(out)) not in ranks for out in eqn.outvars) and ranks:
        return unknown(ties, eqn, ins)  # as a bitcast to smaller numbers
    results = []
    for variable in eqn.outvars:
        shape = _shape(variable)
        axes: Axes = []
        for place, size in enumerate(shape):
            same = [
                one[place]
                for one, operand in zip(ins, eqn.invars, strict=True)
                if len(_shape(operand)) == len(shape) and _shape(operand)[place] == size
            ]
            for other in same[1:]:
                ties.tie(same[0], other)
            axes.append(same[0] if same else [ties.new(size)])
        results.append(axes)
    return results


def reduction(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    if eqn.primitive.name in ("argmax", "argmin"):
        _prefixes(ties, [ins[0][place] for place in eqn.params["axes"]], "a position in it is asked for")
    kept = [axis for place, axis in enumerate(ins[0]) if place not in eqn.params["axes"]]
    return [kept for _ in eqn.outvars]


def collective(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    """The batched form of a reduction along a named axis of `jax.vmap`."""
    axes = eqn.params["axes"]
    if not all(isinstance(place, int) for place in axes):
        return unknown(ties, eqn, ins)
    for axis in (one[place] for one in ins for place in axes):
        ties.fix(axis, "reduced by name")
    return [[axis for place, axis in enumerate(one) if place not in axes] for one in ins]


def _same_or_fixed(ties: Ties, one: Axis, other: Axis, whole: bool, reason: str) -> None:
    """Ties an axis and a window of it if the window is the whole axis, and fixes both otherwise."""
    if whole:
        ties.tie(one, other)
    else:
        ties.fix(one, reason)
        ties.fix(other, reason)


def _prefixes(ties: Ties, axes: Axes, reason: str) -> None:
    """Fixes axes whose active part may be no prefix."""
    for axis in axes:
        factors = ties.factors(axis)
        if len(factors) > 1 or any(atom in ties.sums for atom in factors):
            ties.fix(axis, reason)


def broadcast_in_dim(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    shape, where = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    axes: Axes = [[ties.new(size)] for size in shape]
    for place, target in enumerate(where):
        if _shape(eqn.invars[0])[place] == shape[target]:
            axes[target] = ins[0][place]
    return [axes]


def reshape(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    if 0 in eqn.params["new_sizes"]:
        for every in ins[0]:
            ties.fix(every, "an empty array")
        return [ties.axes(eqn.params["new_sizes"], "an empty array")]
    left = [atom for axis in ins[0] for atom in ties.factors(axis)]
    axes: Axes = []
    for size in eqn.params["new_sizes"]:
        axis, need = [], size
        while need > 1:
            left = ties.factors(left)
            atom = left.pop(0)
            have = ties.sizes[atom]
            if need % have == 0:
                axis.append(atom)
                need //= have
            elif have % need == 0:
                outer, inner = ties.split(atom, [need, have // need])
                axis.append(outer)
                left.insert(0, inner)
                need = 1
            else:
                reason = "reshaped to sizes that do not divide it"
                for every in ins[0]:
                    ties.fix(every, reason)
                return [ties.axes(eqn.params["new_sizes"], reason)]
        axes.append(axis or [ties.new(1)])
    return [axes]


def transpose(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    return [[ins[0][place] for place in eqn.params["permutation"]]]


def squeeze(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    return [[axis for place, axis in enumerate(ins[0]) if place not in eqn.params["dimensions"]]]


def expand_dims(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    axes = list(ins[0])
    for place in sorted(eqn.params["dimensions"]):
        axes.insert(place, [ties.new(1)])
    return [axes]


def dot_general(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    for i, j in (*zip(left, right, strict=True), *zip(left_batch, right_batch, strict=True)):
        ties.tie(ins[0][i], ins[1][j])
    free = [axis for i, axis in enumerate(ins[0]) if i not in (*left, *left_batch)]
    free += [axis for j, axis in enumerate(ins[1]) if j not in (*right, *right_batch)]
    return [[ins[0][i] for i in left_batch] + free]


def convolution(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    numbers, groups = eqn.params["dimension_numbers"], eqn.params["feature_group_count"]
    left, right, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    axes = ties.axes(_shape(eqn.outvars[0]), "positions of a convolution")
    axes[out[0]] = ins[0][left[0]]
    for place in left[2:]:
        ties.fix(ins[0][place], "positions of a convolution")
    for place in right[2:]:
        if _shape(eqn.invars[1])[place] == _shape(eqn.invars[1])[right[2]]:
            ties.tie(ins[1][place], ins[1][right[2]])
        ties.fix(ins[1][place], KERNEL)
    if eqn.params["batch_group_count"] != 1:
        for axis in (*ins[0], *ins[1], *axes):
            ties.fix(axis, "a convolution with groups of examples")
        return [axes]
    if groups == 1:
        ties.tie(ins[0][left[1]], ins[1][right[1]])
        axes[out[1]] = ins[1][right[0]]
        return [axes]
    # The channels are (groups, channels of a group) in all three, and each group has its own kernels.
    channels, kernels = ins[0][left[1]], ins[1][right[0]]
    sizes = groups, ties.size(channels) // groups, ties.size(kernels) // groups
    count, each, made = map(ties.new, sizes)
    ties.tie(channels, [count, each])
    ties.tie(kernels, [count, made])
    ties.tie(ins[1][right[1]], [each])
    axes[out[1]] = kernels
    return [axes]


KERNEL = "taps of a convolution"
LOOKED_UP = "looked up"


def concatenate(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    along = eqn.params["dimension"]
    axes = list(ins[0])
    for other in ins[1:]:
        for place, axis in enumerate(other):
            if place != along:
                ties.tie(axes[place], axis)
    axes[along] = ties.joined([one[along] for one in ins if ties.size(one[along])] or [axes[along]])
    return [axes]


def tile(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    times = eqn.params["reps"]
    return [[[*ties.axes([n], "repeats")[0], *axis] for n, axis in zip(times, ins[0], strict=True)]]


def stack(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    for other in ins[1:]:
        for one, axis in zip(ins[0], other, strict=True):
            ties.tie(one, axis)
    along = eqn.params["axis"]
    return [[*ins[0][:along], *ties.axes([len(ins)], "arrays that are stacked"), *ins[0][along:]]]


def unstack(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    along = eqn.params["axis"]
    ties.fix(ins[0][along], "arrays that are stacked")
    return [[*ins[0][:along], *ins[0][along + 1 :]] for _ in eqn.outvars]


def split(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    along, sizes = eqn.params["axis"], eqn.params["sizes"]
    kept = [size for size in sizes if size]
    pieces = ties.cut(ins[0][along], [sum(kept[: i + 1]) for i in range(len(kept) - 1)])
    if pieces is None:
        pieces = [ties.axes([size], "cut within a factor")[0] for size in kept]
    found = iter(pieces)
    pieces = [next(found) if size else ties.axes([0], "an empty piece")[0] for size in sizes]
    return [[*ins[0][:along], piece, *ins[0][along + 1 :]] for piece in pieces]


def slice_(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    axes, full = [], _shape(eqn.invars[0])
    strides = eqn.params["strides"] or (1,) * len(full)
    bounds = zip(eqn.params["start_indices"], eqn.params["limit_indices"], strides, strict=True)
    for axis, size, (start, stop, stride) in zip(ins[0], full, bounds, strict=True):
        if (start, stop, stride) == (0, size, 1):
            axes.append(axis)
            continue
        pieces = ties.cut(axis, [start, stop]) if stride == 1 and stop > start else None
        if pieces is None:
            ties.fix(axis, "single positions are read")
            axes += ties.axes([-(-(stop - start) // stride)], "single positions are read")
        else:
            axes.append(pieces[1 if start else 0])
    return [axes]


def dynamic_slice(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    return [_new(ties, eqn.outvars[0], ins[0], _shape(eqn.invars[0]), "sliced at a traced position")]


def dynamic_update_slice(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    for place, (size, part) in enumerate(zip(*map(_shape, eqn.invars[:2]), strict=True)):
        _same_or_fixed(ties, ins[0][place], ins[1][place], size == part, "updated at a traced position")
    return [ins[0]]


def pad(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    axes = []
    for axis, size, (low, high, inside) in zip(
        ins[0], _shape(eqn.outvars[0]), eqn.params["padding_config"], strict=True
    ):
        if low == high == inside == 0:
            axes.append(axis)
        elif inside or min(low, high) < 0:
            ties.fix(axis, "padded within")
            axes += ties.axes([size], "padded within")
        else:  # zeros that keep their number
            ends = [ties.axes([n], "padding")[0] if n else None for n in (low, high)]
            axes.append(ties.joined([one for one in (ends[0], axis, ends[1]) if one is not None]))
    return [axes]


def gather(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    numbers, axes = eqn.params["dimension_numbers"], ties.axes(_shape(eqn.outvars[0]))
    places = numbers.collapsed_slice_dims, numbers.offset_dims
    batching = numbers.operand_batching_dims, numbers.start_indices_batching_dims
    _windows(ties, ins, axes, eqn.params["slice_sizes"], (*places, *batching), LOOKED_UP)
    return [axes]


def _windows(
    ties: Ties, ins: list[Axes], windows: Axes, sizes: tuple[int, ...], numbers: tuple[Any, ...], reason: str
) -> None:
    """Ties the axes of an operand, of the places in it, and of the windows there that are read or written."""
    (operand, indices), (dropped, targets, batched, places) = ins, numbers
    kept = [place for place in range(len(operand)) if place not in (*dropped, *batched)]
    for place, target in zip(kept, targets, strict=True):
        whole = sizes[place] == ties.size(operand[place])
        _same_or_fixed(ties, operand[place], windows[target], whole, reason)
    for place in dropped:
        ties.fix(operand[place], reason)
    batch = [target for target in range(len(windows)) if target not in targets]
    for target, axis in zip(batch, indices[:-1], strict=True):
        ties.tie(windows[target], axis)
    for place, other in zip(batched, places, strict=True):
        ties.tie(operand[place], indices[other])
    ties.fix(indices[-1], "positions to look up")


def scatter(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    numbers, shape = eqn.params["dimension_numbers"], _shape(eqn.invars[2])
    places = numbers.inserted_window_dims, numbers.update_window_dims
    batching = numbers.operand_batching_dims, numbers.scatter_indices_batching_dims
    kept = iter([shape[target] for target in numbers.update_window_dims])
    sizes = tuple(1 if place in (*places[0], *batching[0]) else next(kept) for place in range(len(ins[0])))
    _windows(ties, ins[:2], ins[2], sizes, (*places, *batching), "written at positions")
    return [ins[0]]


def along_axes(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    """Windows and reversals: axes of windows of one keep their sizes, others are positions."""
    return [_new(ties, out, ins[0], _windowed(eqn), "windows or positions") for out in eqn.outvars]


def _windowed(eqn: Any) -> tuple[int, ...]:
    shape = _shape(eqn.invars[0])
    window = eqn.params.get("window_dimensions")
    moved = eqn.params.get("dimensions", ())
    return tuple(
        -1 if (window and window[place] != 1) or place in moved else size for place, size in enumerate(shape)
    )


def cumulative(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    return [ins[0]]


def sort(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    _prefixes(ties, [ins[0][eqn.params["dimension"]]], "sorted")
    for other in ins[1:]:
        for one, axis in zip(ins[0], other, strict=True):
            ties.tie(one, axis)
    return [ins[0] for _ in eqn.outvars]


def top_k(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    along = eqn.params.get("axis", len(ins[0]) - 1) % len(ins[0])
    ties.fix(ins[0][along], "the largest of all are taken")
    found = ties.axes([eqn.params["k"]], "the largest of all are taken")
    return [[*ins[0][:along], *found, *ins[0][along + 1 :]] for _ in eqn.outvars]


def fft(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    plain = len(ins[0]) - len(eqn.params["fft_lengths"])
    for axis in ins[0][plain:]:
        ties.fix(axis, "transformed by an FFT")
    return [[*ins[0][:plain], *ties.axes(_shape(eqn.outvars[0])[plain:], "transformed by an FFT")]]


def created(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    """Arrays that are made of nothing, or of keys: whatever uses them says how large they are."""
    keys = ins[0] if ins else []
    return [[*keys, *ties.axes(_shape(eqn.outvars[0])[len(keys) :])]]


def scalars(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    """Keys: their axes, if there are any, stay."""
    return [ties.axes(_shape(out), "random keys") for out in eqn.outvars]


def unknown(ties: Ties, eqn: Any, ins: list[Axes]) -> list[Axes]:
    reason = f"the primitive {eqn.primitive.name} has no rule"
    for axes in ins:
        for axis in axes:
            ties.fix(axis, reason)
    return [ties.axes(_shape(out), reason) for out in eqn.outvars]


RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(CUMULATIVE, cumulative),
    **dict.fromkeys(CREATED, created),
    **dict.fromkeys(("random_fold_in", "random_split", "random_seed", "random_clone"), scalars),
    **dict.fromkeys("scatter scatter-add scatter_add scatter-mul scatter-min scatter-max".split(), scatter),
    **dict.fromkeys((*(f"reduce_window{kind}" for kind in ("", "_max", "_min", "_sum")), "rev"), along_axes),
    **dict.fromkeys(("psum", "pmax", "pmin"), collective),
    "broadcast_in_dim": broadcast_in_dim,
    "concatenate": concatenate,
    "conv_general_dilated": convolution,
    "dot_general": dot_general,
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    "expand_dims": expand_dims,
    "fft": fft,
    "gather": gather,
    "pad": pad,
    "reshape": reshape,
    "slice": slice_,
    "sort": sort,
    "split": split,
    "squeeze": squeeze,
    "stack": stack,
    "top_k": top_k,
    "tile": tile,
    "transpose": transpose,
    "unstack": unstack,
}

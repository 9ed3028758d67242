"""Sorts what a network has by importance, so that a smaller one keeps the best parts.

A permutation of the positions of a group, applied to all axes that belong to it, leaves the network the same
function, and every size is a prefix. Modules cannot change places: they get a rank, for `Depth(..., order=)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.axes.groups import Group, Groups, Traced
from jaxnas.axes.models import paths
from jaxnas.axes.program import Constant, Operation, Program
from jaxnas.axes.rules import CUMULATIVE, SORTED, contracted, reduced
from jaxnas.axes.ties import Layout, Leaf, atoms_of, size_of
from jaxnas.inputs import describe, specification
from jaxnas.space import Arch
from jaxnas.testing import difference
from jaxnas.transform import regions, turns
from jaxnas.transform.evaluate import call
from jaxnas.transform.sizes import place_of
from jaxnas.transform.supernet import Supernet
from jaxnas.transform.tables import covering

Score = Callable[[Group, Any], Any]
Seen = list[tuple[Any, jax.Array]]
Numbered = Mapping[Any, Any]  # of arrays
See = Callable[[Operation, Numbered, set[Any]], Seen]
_SCORES = dict.fromkeys(("activations", "weights", "contributions"), "inputs")  # and their batches
_SCORES |= {"taylor": "(inputs, targets)"}


def order(
    net: Supernet,
    variables: Any,
    batches: Iterable[Any] | None = None,
    *,
    by: str | Score = "activations",
    loss: Callable[[Any, Any], jax.Array] | None = None,
) -> Any:
    """Permutes each elastic group, most important positions first: the full network stays the same function.

    For each group, the score of a position is a sum over the contractions (products and convolutions) that
    read the group, each normalized to a mean of one. Of a group that none reads, the weights that have it
    count. A group stays as it is where positions matter: kernels, and axes that the network enumerates, sorts
    or accumulates along, or has constants or random numbers of, as the angles of rotary embeddings. A group
    that has a size by turn of a scan has an order by turn, too. Decisions of a module's own, as in a
    `jaxnas.elastic.Mixture`, take each of their options once on each batch.

    Args:
      net: a supernet of `jaxnas.supernet`.
      variables: of its full size, by collection; batch statistics are permuted, too.
      batches: calibration data: pytrees of inputs with a leading batch axis; for "taylor" pairs (inputs,
        targets). Not needed for "weights" or a function.
      by: "activations", the root mean square of what enters the contraction; "weights", the sum of absolute
        weights that read it; "contributions", the product of these two; "taylor", the sum of |weight *
        gradient| of the weights that read it; or a function `score(group, variables) -> [group.size]`, by
        turn `[turns, group.size]`, larger for what is to be kept.
      loss: of "taylor", `loss(outputs, targets) -> scalar`.

    Returns:
      Variables of the same structure.

    Raises:
      ValueError: missing batches or loss, batches or variables of another structure, scores of another shape
        or that are not finite, or a network that is another function afterwards, by more than 1e-5 of its
        largest output (.02 in half precision).

    Example:
      >>> def mlp(variables, x):
      ...     params = variables["params"]
      ...     return jax.nn.relu(x @ params["up"]) @ params["down"]
      >>> variables = {"params": {"up": jnp.ones((4, 3)), "down": jnp.array([[1.0], [3.0], [2.0]])}}
      >>> inputs = jnp.ones((2, 4))
      >>> net = jaxnas.supernet(jaxnas.analyze(mlp, variables, inputs), {"up/hidden": Choice(1, 2, 3)})
      >>> jaxnas.order(net, variables, [inputs], by="contributions")["params"]["down"].tolist()
      [[3.0], [2.0], [1.0]]
    """
    groups = net.groups
    arrays, pairs = groups.arrays(variables), _pairs(groups, batches, by, loss)
    moved = {place.name for place in net.places} - _bound(groups)
    chosen = [group for group in groups if group.name in moved]
    traced = groups.traced(groups.inputs, False)
    turned = {place.name for place in net.places if place.turn is not None}
    scans = {g.atom: turns.scan_of(traced, g.atom) for g in chosen if g.name in turned}
    if isinstance(by, str):
        scores = _scores(groups, arrays, pairs, by, loss, {g.atom: scans.get(g.atom) for g in chosen})
    else:
        scores = {group.atom: by(group, variables) for group in chosen}
    orders = {g.atom: _descending(g, scores[g.atom], scans.get(g.atom)) for g in chosen}
    permuted = [permute(x, groups.layouts.get(path, ()), orders, scans) for path, x in paths(variables)]
    ordered = jax.tree.unflatten(jax.tree.structure(variables), permuted)
    inputs = pairs[0][0] if pairs else _zeros(groups, jax.random.key(0))

    def alone(group: Group) -> list[Any]:
        one, layouts = {group.atom: orders[group.atom]}, groups.layouts.values()
        return [permute(x, own, one, scans) for x, own in zip(arrays, layouts, strict=True)]

    _check_same(groups, arrays, groups.arrays(ordered), {g.name: partial(alone, g) for g in chosen}, inputs)
    return ordered


def rank_modules(
    net: Supernet | Groups, variables: Any, batches: Iterable[Any], modules: str | Sequence[str]
) -> tuple[str, ...]:
    """The modules by how much they change their stream, for `Depth(..., order=rank_modules(...))`.

    The change is 1 - the cosine similarity of a module's input and output along the axes of groups, mean over
    all other axes and over batches ("block influence").

    Args:
      net: a supernet, or the groups of `jaxnas.analyze`.
      variables: of its full size, by collection.
      batches: calibration data: pytrees of inputs with a leading batch axis.
      modules: names, or a pattern of names as for `Depth`.

    Returns:
      The names, largest change first; of equal ones the first stays first. "layers[2]" is a turn of a scan.

    Raises:
      ValueError: no batches, batches or variables of another structure, or a module that has no input of the
        shape of its output.
    """
    groups = net.groups if isinstance(net, Supernet) else net
    arrays, pairs = groups.arrays(variables), _pairs(groups, batches, "activations", None)
    traced = groups.traced(groups.inputs, False)
    given = [modules] if isinstance(modules, str) else modules
    places = {key: place for one in given for key, place in turns.modules(traced, one).items()}
    names = list(dict.fromkeys(name for name, _ in places.values()))

    def influence(arrays: list[Any], inputs: Any, own: Arch) -> list[jax.Array]:
        traced = groups.traced(specification(inputs), False)
        elastic = {group.atom for group in groups}
        streams = [(name, regions.region_of(traced, name)[1].outs[0]) for name in names]

        def see(op: Operation, values: Numbered, varying: set[Any]) -> Seen:
            found = []
            for name, (out, source) in streams:
                if out in op.outs:
                    axes = [i for i, x in enumerate(traced.layouts[out]) if atoms_of(x).keys() & elastic]
                    change = _change(values[source], values[out], axes or range(1, values[out].ndim))
                    found.append((name, change.mean()))
            return found

        seen = dict(_walk_all(traced, arrays, inputs, own, see))
        return [(seen[name] if turn is None else seen[name][turn]).mean() for name, turn in places.values()]

    compiled = jax.jit(influence)
    decided = covering(groups.own)
    changes = np.sum([compiled(arrays, inputs, own) for inputs, _ in pairs for own in decided], axis=0)
    return tuple(list(places)[i] for i in np.argsort(-changes, kind="stable"))


def permute(
    x: Any, layouts: Sequence[Layout], orders: Mapping[int, np.ndarray], scans: Mapping[int, turns.Scan] = {}
) -> Any:
    """An array with its axes permuted, from the orders of atoms, of `scans` by turn; others stay."""
    for axis, layout in enumerate(layouts):
        own = atoms_of(layout).keys() & orders.keys()
        if turned := own & scans.keys():
            scan = scans[min(turned)]
            rows = [
                _positions(layout, {a: orders[a][turn] if a in turned else orders[a] for a in own})
                for turn in range(scan.length)
            ]
            along = place_of(scan.axis, layouts)
            places = np.stack(rows) if along < axis else np.stack(rows, 1)
            shape = [size if i in (axis, along) else 1 for i, size in enumerate(x.shape)]
            x = jnp.take_along_axis(jnp.asarray(x), places.reshape(shape), axis)
        elif own:
            x = jnp.take(x, _positions(layout, orders), axis=axis)
    return x


def _positions(layout: Layout, orders: Mapping[int, np.ndarray]) -> np.ndarray:
    """For each position of a permuted axis the one that it was at."""
    total = np.zeros(1, int)
    for factor in layout:
        if isinstance(factor, Leaf):
            own = orders.get(factor.atom, np.arange(factor.size))
        else:
            pieces = [_positions(piece, orders) for piece in factor.pieces]
            starts = np.cumsum([0, *map(len, pieces)])
            own = np.concatenate([start + piece for start, piece in zip(starts, pieces, strict=False)])
        total = (total[:, None] * factor.size + own).reshape(-1)
    return total


def _spread(x: jax.Array, layout: Layout) -> Iterator[tuple[int, jax.Array]]:
    """Sums of what the positions of an axis have, for each of its atoms."""
    grid = x.reshape([factor.size for factor in layout])
    for place, factor in enumerate(layout):
        own = grid.sum([i for i in range(grid.ndim) if i != place])
        if isinstance(factor, Leaf):
            yield factor.atom, own
            continue
        start = 0
        for piece in factor.pieces:
            stop = start + size_of(piece, {})
            yield from _spread(own[start:stop], piece)
            start = stop


def _along(x: Any, axis: int, power: int = 1) -> jax.Array:
    """The sum of absolute values, or of their squares, at each position of an axis."""
    return (jnp.abs(x).astype(jnp.float32) ** power).sum([i for i in range(x.ndim) if i != axis])


def _scores(
    groups: Groups,
    arrays: list[Any],
    pairs: list[Any],
    by: str,
    loss: Any,
    scans: Mapping[int, turns.Scan | None],
) -> dict[int, np.ndarray]:
    """The score of each position of groups, by their atoms; by turn where there is a scan."""
    atoms = set(scans)

    def read(arrays: list[Any], inputs: Any, own: Arch, by: str) -> dict[tuple[int, int], jax.Array]:
        """The squares of scores, of what contractions read of groups."""
        traced = groups.traced(specification(inputs), False)
        every: Numbered = traced.layouts

        def see(op: Operation, values: Numbered, varying: set[Any]) -> Seen:
            found = []
            for pair in contracted(op.eqn):
                layouts = [every[one][axis] for one, axis in zip(op.ins, pair, strict=True)]
                both = atoms & atoms_of(layouts[0]).keys() & atoms_of(layouts[1]).keys()
                sides = []
                for one, axis, layout in zip(op.ins, pair, layouts, strict=True):
                    own = _spread(_along(values[one], axis, 2 if one in varying else 1), layout)
                    sides.append([(atom, x if one in varying else x**2) for atom, x in own if atom in both])
                if by == "contributions":
                    found += [(atom, x * y) for (atom, x), (_, y) in zip(*sides, strict=True)]
                else:
                    for one, side in zip(op.ins, sides, strict=True):
                        found += side if (one in varying) == (by == "activations") else []
            return found

        seen = _walk_all(traced, arrays, inputs, own, see)
        missing = atoms - {atom for atom, _ in seen}
        for x, (path, layouts) in zip(arrays, groups.layouts.items(), strict=True):
            for axis, layout in enumerate(layouts if path[0] == "params" else ()):
                for atom in missing & atoms_of(layout).keys():
                    along = -1 if (scan := scans[atom]) is None else place_of(scan.axis, layouts)
                    rows = [x] if along < 0 else jnp.split(x, x.shape[along], along)
                    each = [_spread(_along(row, axis), layout) for row in rows]
                    sums = zip(*([y**2 for a, y in one if a == atom] for one in each), strict=True)
                    seen += [(atom, jnp.stack(x) if along >= 0 else x[0]) for x in sums]
        return {(number, atom): x for number, (atom, x) in enumerate(seen)}

    def first_order(
        arrays: list[Any], inputs: Any, own: Arch, targets: Any
    ) -> dict[tuple[int, int], jax.Array]:
        moves = [p[0] == "params" and jnp.issubdtype(x.dtype, jnp.inexact) for p, x in groups.shapes.items()]

        def objective(some: dict[int, Any]) -> jax.Array:
            every = [some.get(place, x) for place, x in enumerate(arrays)]
            return loss(_call(groups, every, inputs, own), targets)

        slopes = jax.grad(objective)({place: arrays[place] for place, learned in enumerate(moves) if learned})
        terms = [x * slopes[place] if place in slopes else x for place, x in enumerate(arrays)]
        return read(terms, inputs, own, "weights")

    if by == "weights":
        pairs = [(_zeros(groups), None)]
    one = jax.jit(
        first_order if by == "taylor" else lambda arrays, inputs, own, _: read(arrays, inputs, own, by)
    )
    totals: dict[tuple[int, int], Any] = {}
    for inputs, targets in pairs:
        for own in covering(groups.own):
            for key, x in one(arrays, inputs, own, targets).items():
                totals[key] = totals.get(key, 0) + x
    scores = {atom: np.zeros(()) for atom in atoms}
    for (_, atom), x in totals.items():
        scan = scans[atom]
        rows = np.sqrt(np.asarray(x, np.float64)).reshape(scan.length if scan else 1, -1, x.shape[-1])
        means = rows.mean(-1, keepdims=True)
        by_turn = (rows / np.where(means == 0, 1, means)).sum(1)
        scores[atom] = scores[atom] + (by_turn if scan else by_turn[0])
    return scores


def _change(x: jax.Array, y: jax.Array, axes: Iterable[int]) -> jax.Array:
    """1 - the cosine similarity along some axes."""
    x, y, along = x.astype(jnp.float32), y.astype(jnp.float32), tuple(axes)
    norms = jnp.sqrt((x * x).sum(along) * (y * y).sum(along))
    return 1 - (x * y).sum(along) / jnp.maximum(norms, jnp.finfo(jnp.float32).tiny)


def _walk_all(traced: Traced, arrays: Sequence[Any], inputs: Any, own: Arch, see: See) -> Seen:
    rows = [*jax.tree.leaves(inputs), jax.random.key(0)]
    varies = [False] * len(arrays) + [True] * len(rows) + [False] * len(own)
    return _walk(traced.program, [*arrays, *rows, *own.values()], varies, traced.trace.constants, see)[1]


def _walk(
    program: Program, arguments: Sequence[Any], varies: Sequence[bool], constants: Numbered, see: See
) -> tuple[list[Any], Seen]:
    """Runs a program at its full size: the results, and all that `see` gives.

    That is called after each operation, with the arrays by number and the numbers of those that depend on the
    inputs. Within a scan, what it gives has a leading axis of turns. A branch that is not taken gives zeros,
    and the body of a `while` nothing. `varies` says of each argument whether it depends on the inputs.
    """
    values = {**constants, **dict(zip(program.inputs, arguments, strict=True))}
    data = {number for number, own in zip(program.inputs, varies, strict=True) if own}
    found: Seen = []

    def body(op: Operation, varying: list[bool], names: list[Any], number: int, given: Any, row: Any = None):
        own = op.handed(number, varying, any(varying))
        results, seen = _walk(op.bodies[number], given, own, constants, see)
        names[:] = [name for name, _ in seen]
        return [*results, *(x for _, x in seen)]

    for op in program.operations:
        given = [one.value if isinstance(one, Constant) else values[one] for one in op.ins]
        varying, names = [one in data for one in op.ins], list[Any]()
        run = partial(body, op, varying, names)
        if op.bodies and op.name not in ("while", "cond"):
            results = call(op, given, run)
            found += zip(names, results[len(op.outs) :], strict=True)
        else:
            results = op.bind(given)
        for number, branch in enumerate(op.bodies if op.name == "cond" else ()):
            seen = run(number, given[1:])[len(branch.outputs) :]
            found += zip(names, (jnp.where(given[0] == number, x, 0) for x in seen), strict=True)
        values.update(zip(op.outs, results, strict=False))
        if any(varying):
            data.update(op.outs)
        found += see(op, values, data)
    return [one.value if isinstance(one, Constant) else values[one] for one in program.outputs], found


def _bound(groups: Groups) -> set[str]:
    """The groups whose positions matter."""
    found = {group.name for group in groups if group.kind == "kernel"}
    for train in (False, True):
        traced = groups.traced(groups.inputs, train)
        ordered = [
            layout for op in traced.program.nested() for layout in _in_order(op, traced.layouts, train)
        ]
        atoms = {atom for layout in ordered for atom in atoms_of(layout)}
        constants = [(x, traced.layouts[number]) for number, x in traced.trace.constants.items()]
        for group in groups:
            if group.atom in atoms or any(_differs(x, own, group) for x, own in constants):
                found.add(group.name)
    return found


def _in_order(op: Operation, layouts: Numbered, train: bool) -> Iterator[Layout]:
    """The axes along which an operation treats each position in its own way."""
    if op.name == "iota":
        yield layouts[op.outs[0]][op.eqn.params["dimension"]]
    elif op.name == "random_bits" and not train:  # in training all positions are equally likely
        yield from layouts[op.outs[0]]
    elif op.name in (*CUMULATIVE, *SORTED, "argmax", "argmin"):
        yield from (layouts[op.ins[0]][axis] for axis in reduced(op.eqn))


def _differs(x: Any, layouts: tuple[Layout, ...], group: Group) -> bool:
    """Whether some permutation of a group changes an array: a rotation and a swap make all permutations."""
    if not any(group.atom in atoms_of(layout) for layout in layouts):
        return False
    swap = np.r_[1, 0, 2 : group.size] if group.size > 1 else np.arange(1)
    orders = [np.roll(np.arange(group.size), 1), swap]
    return not all(np.array_equal(x, permute(x, layouts, {group.atom: one})) for one in orders)


def _descending(group: Group, scores: Any, scan: turns.Scan | None) -> np.ndarray:
    scores, shape = np.asarray(scores), (*([scan.length] if scan else []), group.size)
    if scores.shape != shape or not np.all(np.isfinite(scores)):
        what = f"the shape {scores.shape}" if scores.shape != shape else "values that are not finite"
        raise ValueError(f"The scores of {group.name} have {what}: expected {shape} finite numbers.")
    return np.argsort(-scores, axis=-1, kind="stable")


def _check_same(
    groups: Groups, before: list[Any], after: list[Any], alone: Mapping[str, Callable[[], Any]], inputs: Any
) -> None:
    """Compares the full network with the ordered one, and says by which group it differs."""
    with jax.default_matmul_precision("highest"):
        one, decided = jax.jit(lambda x, own: _call(groups, x, inputs, own)), covering(groups.own)
        half = groups.traced(specification(inputs), False).half_precision
        tolerance = 2e-2 if half else 1e-5

        def call(arrays: list[Any]) -> list[Any]:
            return [one(arrays, own) for own in decided]

        expected = call(before)

        def error(arrays: list[Any]) -> float:
            return difference(groups.model.name, expected, call(arrays)) or 0.0

        worst = error(after)
        if worst <= tolerance:
            return
        errors = {name: error(arrays()) for name, arrays in alone.items()}
    name = max(errors, key=lambda one: errors[one])
    raise ValueError(
        f"{groups.model.name} is another function when its groups are ordered: outputs differ by "
        f"{worst:.1e} of the largest, where {tolerance:.0e} is allowed. {name} alone differs by "
        f"{errors[name]:.1e}: leave it out of the choices, or give scores that keep its order."
    )


def _call(groups: Groups, arrays: Sequence[Any], inputs: Any, own: Arch) -> Any:
    variables = jax.tree.unflatten(jax.tree.structure(groups.model.variables), arrays)
    return groups.model.call(variables, inputs, jax.random.key(0), False, *([own] if own else []))[0]


def _zeros(groups: Groups, key: jax.Array | None = None) -> Any:
    """Inputs of the analyzed shapes: zeros, or with a key normal numbers in place of floats."""

    def one(x: Any) -> jax.Array:
        random = key is not None and jnp.issubdtype(x.dtype, jnp.floating)
        return jax.random.normal(key, x.shape, x.dtype) if random else jnp.zeros(x.shape, x.dtype)

    return jax.tree.map(one, groups.inputs)


def _pairs(
    groups: Groups, batches: Iterable[Any] | None, by: str | Score, loss: Any
) -> list[tuple[Any, Any]]:
    """The batches as (inputs, targets), if they are what the network and the score take."""
    if isinstance(by, str) and by not in _SCORES:
        raise ValueError(f"by={by!r} is no score: expected one of {', '.join(_SCORES)}, or a function.")
    if (by == "taylor") != (loss is not None):
        raise ValueError(
            f"by='taylor' needs loss=, a function of (outputs, targets), and no other score does; got "
            f"by={by!r}, loss={loss!r}."
        )
    found = [] if batches is None else list(batches)
    if isinstance(by, str) and by != "weights" and not found:
        raise ValueError(f"An order by {by} needs data: batches of {_SCORES[by]}.")
    pairs = found if by == "taylor" else [(inputs, None) for inputs in found]
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"by='taylor' takes batches of (inputs, targets); got {type(pair).__name__}.")
        given, known = specification(pair[0]), groups.inputs
        kinds = [jax.tree.map(lambda x: (len(x.shape), str(x.dtype)), one) for one in (given, known)]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"A batch has the inputs {describe(given)}; {groups.model.name} was analyzed with "
                f"{describe(known)}."
            )
    return pairs

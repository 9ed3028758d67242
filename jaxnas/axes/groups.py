"""The groups of axes of a network that belong together, by name."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import display
from jaxnas.axes.models import Model, model_of, paths
from jaxnas.axes.program import Program, Trace
from jaxnas.axes.rules import KERNEL, LOOKED_UP
from jaxnas.axes.ties import Layout, Leaf, atoms_of, leaves
from jaxnas.choice import Choice
from jaxnas.inputs import calling, check_ranks, describe, specification, with_batch
from jaxnas.products import computes_in_half_precision
from jaxnas.tensors import Path

WIDTH, CHANNELS, HIDDEN = "width", "channels", "hidden"
# The logical names of axes by the kinds of their groups, as elastic layers call them.
_LOGICAL = {WIDTH: "embed", CHANNELS: "embed", HIDDEN: "mlp"}
_LOGICAL |= dict.fromkeys(("heads", "kv_heads", "queries"), "heads")


@dataclasses.dataclass(frozen=True)
class Group:
    """Axes that have one size.

    Attributes:
      name: by the module that it is in, as "encoder/layer_0/mlp/hidden".
      kind: "width" (of a stream), "hidden", "channels", "heads", "kv_heads", "queries" (heads for each of
        these), "head_dim", "value_dim", "experts" (each with kernels of its own), or "kernel" (of a
        convolution, whose active part is its center).
      size: in the network as it is.
      atom: its number in the analysis.
      places: the variables that have it, with the axis.
      parameters: the number of elements of these.
    """

    name: str
    kind: str
    size: int
    atom: int
    places: tuple[tuple[Path, int], ...]
    parameters: int


@dataclasses.dataclass(frozen=True)
class Fixed:
    """Axes of variables that keep their size, and why."""

    reason: str
    places: tuple[tuple[Path, int], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Traced:
    """One traced call.

    Attributes:
      program: from variables, inputs and a key to outputs and updated variables.
      trace: what is known of its arrays.
      layouts: the factors of the axes of its arrays.
      outputs: the structure of its outputs, behind which are the updated variables.
      updated: for each updated variable, its number among the variables.
      batch: the atom of the leading axis of the inputs.
      half_precision: whether it computes in bfloat16 or float16 somewhere.
    """

    program: Program
    trace: Trace
    layouts: dict[int, tuple[Layout, ...]]
    outputs: Any
    updated: tuple[int, ...]
    batch: int
    half_precision: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Groups:
    """An analyzed network.

    Attributes:
      model: the network as a pure function.
      groups: by name.
      fixed: the axes that keep their size.
      shapes: of the variables, by path.
      layouts: the factors of their axes, by path.
      inputs: the specification of the inputs that it was analyzed with.
    """

    model: Model
    groups: dict[str, Group]
    fixed: tuple[Fixed, ...]
    shapes: dict[Path, jax.ShapeDtypeStruct]
    layouts: dict[Path, tuple[Layout, ...]]
    inputs: Any
    calls: dict[Any, Traced] = dataclasses.field(repr=False)

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups.values())

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, name: str) -> Group:
        return self.groups[name]

    def __str__(self) -> str:
        rows = [("group", "kind", "size", "axes", "parameters", "first axis")]
        for group in self:
            numbers = str(group.size), str(len(group.places)), f"{group.parameters:,}"
            rows.append((group.name, group.kind, *numbers, _axes(group.places[:1])))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        for fixed in self.fixed:
            more = f" and {len(fixed.places) - 3} more" if len(fixed.places) > 3 else ""
            lines.append(f"fixed, {fixed.reason}: {_axes(fixed.places[:3])}{more}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        names = ("group", "kind", "size", "parameters")
        cells = ((one.name, one.kind, one.size, one.parameters) for one in self)
        rows = [dict(zip(names, row, strict=True)) for row in cells]
        kept = "; ".join(f"{fixed.reason}: {len(fixed.places)} axes" for fixed in self.fixed)
        return display.table(rows, f"Fixed, {kept}" if kept else "", most=len(rows))

    @functools.cached_property
    def own(self) -> dict[str, Choice]:
        """The choices of the module itself, of a Linen module with a space."""
        return {} if self.model.space is None else self.model.space.choices

    @functools.cached_property
    def names(self) -> dict[Path, tuple[str | None, ...]]:
        """The logical names of the axes of each variable, for sharding rules.

        An axis of heads and their channels has that of heads, and one that is joined of pieces that of any.
        """
        found: dict[Path, list[str | None]] = {
            path: [None] * len(shape.shape) for path, shape in self.shapes.items()
        }
        named = [(_LOGICAL[group.kind], group.places) for group in self if group.kind in _LOGICAL]
        named += [("vocabulary", fixed.places) for fixed in self.fixed if fixed.reason == LOOKED_UP]
        for name, places in named:
            for path, axis in places:
                found[path][axis] = name
        return {path: tuple(names) for path, names in found.items()}

    def arrays(self, variables: Any, shapes: Mapping[Path, Any] | None = None) -> list[Any]:
        """The arrays of variables in the order of the analysis.

        Args:
          variables: by collection.
          shapes: that are expected; None for the full ones, and for an array that is not there. A dict of
            shapes is of several arrays below a path, which come as a dict.

        Raises:
          ValueError: an array is missing, or has another shape.
        """
        found = dict(paths(variables))

        def one(path: Path, expected: Any, full: Any) -> Any:
            if isinstance(expected, dict):
                return {name: one((*path, name), shape, full) for name, shape in expected.items()}
            if expected is None:
                return None
            given = found.get(path)
            if given is None or (jnp.shape(given), jnp.result_type(given)) != (expected, full.dtype):
                has = "nothing" if given is None else describe(given)
                wanted = f"whole, as {describe(full)}" if shapes is None else f"with the shape {expected}"
                alone = " Parameters alone are given as {'params': params}." * ("params" not in variables)
                raise ValueError(
                    f"{'/'.join(path)} of {self.model.name} is expected {wanted}; got {has}.{alone}"
                )
            return given

        return [
            one(path, full.shape if shapes is None else shapes[path], full)
            for path, full in self.shapes.items()
        ]

    def traced(self, inputs: Any, train: bool, own: Mapping[str, Any] | None = None) -> Traced:
        """The program for inputs of some shape; it is traced once for each.

        Args:
          inputs: their specification.
          train: whether it runs as in training.
          own: decisions of the module's own space: shapes of hard or soft ones, which are further inputs of
            the program, or arrays of NumPy, which the program has in it. None for hard ones.

        Raises:
          ValueError: with these inputs other axes belong together, or cannot change their size.
        """
        own = _hard(self.model) if own is None else own
        key = _key(inputs, train, own)
        if key not in self.calls:
            self.calls[key] = self._trace_again(inputs, train, own)
        return self.calls[key]

    def _trace_again(self, inputs: Any, train: bool, own: Mapping[str, Any]) -> Traced:
        check_ranks(self.model.name, inputs, self.inputs)
        trace = Trace(self.model.root)
        known: dict[int, int] = {}

        def atoms(layout: Layout) -> list[int]:
            return [
                known.setdefault(one.atom, trace.ties.new(one.size))
                if isinstance(one, Leaf)
                else trace.ties.joined([atoms(piece) for piece in one.pieces])[0]
                for one in layout
            ]

        axes = [[atoms(layout) for layout in layouts] for layouts in self.layouts.values()]
        traced = _trace(trace, self.model, self.shapes, axes, (inputs, own), train)
        renamed: dict[int, int] = {}
        elastic = {group.atom: group.name for group in self if group.kind != "kernel"}
        for base, new in known.items():
            if base not in elastic:
                continue
            now = trace.ties.factors([new])
            if len(now) != 1 or now[0] in trace.ties.sums or now[0] in trace.ties.fixed:
                reason = trace.ties.fixed.get(now[0], "it is divided") if now else "it is of size one"
                raise ValueError(
                    f"{elastic[base]} can change its size with inputs {self.inputs} and not with {inputs}: "
                    f"{reason}. Analyze the network with inputs of this shape."
                )
            if renamed.setdefault(now[0], base) != base:
                raise ValueError(
                    f"{elastic[base]} and {elastic.get(renamed[now[0]], 'another group')} have one size with "
                    f"inputs {inputs}, and not with {self.inputs}. Analyze the network with inputs of "
                    "this shape."
                )
        for base in known.keys() - elastic.keys():  # axes that keep their size, as turns of a scan
            now = trace.ties.factors([known[base]])
            if len(now) == 1:
                renamed.setdefault(now[0], base)
        return dataclasses.replace(traced, layouts=_renamed(trace.layouts(), renamed))


def _axes(places: tuple[tuple[Path, int], ...]) -> str:
    return ", ".join(f"{'/'.join(path)}[{axis}]" for path, axis in places)


def _renamed(layouts: dict[int, tuple[Layout, ...]], names: dict[int, int]) -> dict[int, tuple[Layout, ...]]:
    """Layouts with the atoms of the first analysis; others get negative numbers."""

    @functools.cache
    def one(layout: Layout) -> Layout:
        return tuple(
            Leaf(names.get(x.atom, -1 - x.atom), x.size)
            if isinstance(x, Leaf)
            else type(x)(tuple(one(piece) for piece in x.pieces))
            for x in layout
        )

    return {number: tuple(map(one, every)) for number, every in layouts.items()}


def analyze(model: Any, variables: Any = None, inputs: Any = None) -> Groups:
    """Finds the groups of axes of a network that belong together, by one walk over its jaxpr.

    The network is not changed. Its axes of inputs and outputs keep their sizes, and so does all that an
    operation touches whose effect on a smaller axis is not known. `print(groups)` shows a table.

    Args:
      model: a Flax Linen, Flax NNX or Equinox module, or a function of (variables, inputs), which may also
        take `train` (or `training`, `deterministic`) and `key`. Equinox modules take one example.
      variables: of a Linen module, its collections; of a function, a pytree of arrays. None for NNX and
        Equinox, whose modules hold them.
      inputs: a pytree of arrays or `jax.ShapeDtypeStruct` with a leading batch axis; values are not used. A
        dict is given by name, if its names are those of the call's arguments.

    Returns:
      The groups, for `jaxnas.supernet`.

    Raises:
      TypeError: a model of another kind, or missing variables.
      ValueError: a model that cannot be traced with these inputs.

    Example:
      >>> mlp = lambda params, x: jax.nn.relu(x @ params["up"]) @ params["down"]
      >>> params = {"up": jnp.ones((4, 16)), "down": jnp.ones((16, 2))}
      >>> [(group.name, group.size) for group in jaxnas.analyze(mlp, params, jnp.ones((1, 4)))]
      [('up/hidden', 16)]
    """
    if inputs is None:
        raise TypeError(
            "analyze takes a model, its variables and inputs with a leading batch axis; got no inputs."
        )
    pure = model_of(model, variables)
    example = specification(inputs)
    if all(x.shape[0] == 1 for x in jax.tree.leaves(example)):
        example = with_batch(example, 2)  # an axis of size one is followed nowhere
    shapes = {
        path: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)) for path, x in paths(pure.variables)
    }
    trace = Trace(pure.root)
    axes = [trace.ties.axes(shape.shape) for shape in shapes.values()]
    calls = {}
    for train in (False, True):
        calls[train] = _trace(trace, pure, shapes, axes, (example, _hard(pure)), train)
    batches = {atom for call in calls.values() for atom in trace.ties.factors([call.batch])}
    for axis in (one for every in axes for one in every):
        if batches.intersection(trace.ties.factors(axis)):
            trace.ties.fix(axis, "an axis of the inputs")
    layouts, hard = trace.layouts(), _hard(pure)  # when both programs are tied
    made = {
        _key(example, train, hard): dataclasses.replace(one, layouts=layouts) for train, one in calls.items()
    }
    groups, fixed = _named(trace, list(shapes.items()), layouts, calls)
    own = {path: layouts[number] for number, path in zip(calls[False].program.inputs, shapes, strict=False)}
    return Groups(pure, groups, fixed, shapes, own, example, made)


def _key(inputs: Any, train: bool, own: Mapping[str, Any]) -> tuple[Any, ...]:
    leaves, structure = jax.tree.flatten(inputs)
    values = [x.tobytes() if isinstance(x, np.ndarray) else None for x in own.values()]
    return train, structure, tuple(own), *values, *((x.shape, str(x.dtype)) for x in [*leaves, *own.values()])


def _hard(model: Model) -> dict[str, Any]:
    """The specification of hard decisions of a module's own space."""
    choices = {} if model.space is None else model.space.choices
    return {name: jax.ShapeDtypeStruct(choice.shape, jnp.int32) for name, choice in choices.items()}


def _trace(
    trace: Trace,
    model: Model,
    shapes: dict[Path, jax.ShapeDtypeStruct],
    axes: list[Any],
    given: tuple[Any, Mapping[str, Any]],
    train: bool,
) -> Traced:
    inputs, own = given
    decisions = {name: x for name, x in own.items() if not isinstance(x, np.ndarray)}
    structure = jax.tree.structure(model.variables)
    variables = jax.tree.unflatten(structure, list(shapes.values()))
    key = jax.eval_shape(lambda: jax.random.key(0))

    def call(variables: Any, inputs: Any, key: jax.Array, *decided: Any) -> Any:
        if model.space is None:
            return model.call(variables, inputs, key, train)
        arch = dict(own) | dict(zip(decisions, decided, strict=True))
        return model.call(variables, inputs, key, train, arch)

    with calling(model.name, inputs):
        closed, out = jax.make_jaxpr(call, return_shape=True)(variables, inputs, key, *decisions.values())
    numbers = [trace.array(list(one), x.shape) for one, x in zip(axes, shapes.values(), strict=True)]
    trace.origin.update({number: number for number in numbers})
    rows, batch = [], trace.ties.new(jax.tree.leaves(inputs)[0].shape[0])
    for x in jax.tree.leaves(inputs):
        first = [batch if trace.ties.sizes[batch] == x.shape[0] else trace.ties.new(x.shape[0])]
        rows.append(trace.array([first, *trace.ties.axes(x.shape[1:], "an axis of the inputs")], x.shape))
    chosen = [trace.array(trace.ties.axes(x.shape, "a decision"), x.shape) for x in decisions.values()]
    program = trace.program(closed, [*numbers, *rows, trace.array([], ()), *chosen])
    (outputs, updates), half = out, computes_in_half_precision(closed.jaxpr)
    count = len(jax.tree.leaves(outputs))
    for one in program.outputs[:count]:
        for axis in trace.axes[one] if isinstance(one, int) else ():
            if trace.ties.factors(axis) != trace.ties.factors([batch]):
                trace.ties.fix(axis, "an axis of the outputs")
    order = list(shapes)
    updated = tuple(order.index(path) for path, _ in paths(updates))
    for one, place in zip(program.outputs[count:], updated, strict=True):
        if isinstance(one, int):
            for axis, own in zip(trace.axes[one], axes[place], strict=True):
                trace.ties.tie(axis, own)
    return Traced(program, trace, {}, jax.tree.structure(outputs), updated, batch, half)


def _named(
    trace: Trace, shapes: list[tuple[Path, Any]], layouts: Any, calls: dict[bool, Traced]
) -> tuple[dict[str, Group], tuple[Fixed, ...]]:
    numbers = calls[False].program.inputs[: len(shapes)]
    path_of = {}
    for call in calls.values():
        path_of.update(zip(call.program.inputs, [path for path, _ in shapes], strict=False))
    uses: dict[int, list[tuple[str, Path | None]]] = defaultdict(list)
    for use, axis, origin in trace.uses:
        for atom in atoms_of(trace.ties.layout(axis)):
            uses[atom].append((use, None if origin is None else path_of.get(origin)))
    places: dict[int, list[tuple[Path, int]]] = defaultdict(list)
    elements: Counter[int] = Counter()
    whole: dict[str, list[tuple[Path, int]]] = defaultdict(list)
    for number, (path, x) in zip(numbers, shapes, strict=True):
        for axis, layout in enumerate(layouts[number]):
            for leaf in dict.fromkeys(leaves(layout)):
                reason = trace.ties.fixed.get(leaf.atom)
                if reason is None or (reason == KERNEL and layout == (leaf,)):
                    places[leaf.atom].append((path, axis))
                    elements[leaf.atom] += math.prod(x.shape) if path[0] == "params" else 0
                else:
                    whole[reason].append((path, axis))
    kinds = kinds_of(trace, places, uses, [layouts[number] for number in numbers])
    names = names_of(places, uses, kinds)
    sizes = trace.ties.sizes
    groups = {
        names[atom]: Group(names[atom], kinds[atom], sizes[atom], atom, tuple(places[atom]), elements[atom])
        for atom in sorted(places, key=lambda atom: _by_number(places[atom][0][0]))
    }
    return groups, tuple(Fixed(reason, tuple(dict.fromkeys(found))) for reason, found in whole.items())


def _by_number(path: Path) -> list[list[Any]]:
    """Sorts layers_10 behind layers_2, as modules are called: decisions count positions in this order."""
    return [[int(x) if x.isdecimal() else x for x in re.split(r"(\d+)", part)] for part in path]


def kinds_of(trace: Trace, places: Any, uses: Any, arrays: list[tuple[Layout, ...]]) -> dict[int, str]:
    """The kind of each atom, by what uses it."""
    used = {atom: {use for use, _ in uses[atom]} for atom in places}
    together = {pair for layouts in arrays for pair in _pairs(layouts)}
    kinds = {}

    def beside(kind: str, atom: int) -> list[int]:
        return [one for one in places if kinds[one] == kind and (one, atom) in together]

    for atom in places:
        makers = {path for use, path in uses[atom] if use in ("made", "channels") and path}
        if trace.ties.fixed.get(atom) == KERNEL:
            kinds[atom] = "kernel"
        elif "batched" in used[atom]:
            kinds[atom] = "heads"
        elif {"expert", "scaled"} & used[atom]:
            kinds[atom] = "experts"
        elif {"added", "made"} <= used[atom] and len(makers) > 1:
            kinds[atom] = WIDTH
        else:
            kinds[atom] = CHANNELS if "channels" in used[atom] else HIDDEN
    for atom in places:
        compared = "compared" in used[atom]
        # Rotary embeddings add channels of heads, as a stream is added; but no kernel reads these.
        rotated = kinds[atom] == WIDTH and compared and "read" not in used[atom]
        if (kinds[atom] == HIDDEN or rotated) and beside("heads", atom):
            kinds[atom] = "head_dim" if compared else "value_dim"
    for atom in places:
        if kinds[atom] == "value_dim" and beside("head_dim", atom):
            kinds[atom] = "queries"
            kinds |= dict.fromkeys(beside("heads", atom), "kv_heads")
    return kinds


def _pairs(layouts: tuple[Layout, ...]) -> Iterator[tuple[int, int]]:
    """The atoms of an array that are factors of one part of it: in two axes, or in one piece of an axis."""
    axes = [list(_pieces(layout)) for layout in layouts]
    for number, axis in enumerate(axes):
        others = {atom for i, other in enumerate(axes) if i != number for piece in other for atom in piece}
        for piece in axis:
            yield from ((one, other) for one in piece for other in {*piece, *others} if one != other)


def _pieces(layout: Layout) -> Iterator[tuple[int, ...]]:
    """The atoms of an axis, once for each piece that it is joined of."""
    if not layout:
        yield ()
        return
    first, rest = layout[0], layout[1:]
    heads = [(first.atom,)] if isinstance(first, Leaf) else [p for one in first.pieces for p in _pieces(one)]
    for head in heads:
        for tail in _pieces(rest):
            yield (*head, *tail)


def names_of(places: Any, uses: Any, kinds: dict[int, str]) -> dict[int, str]:
    """The module that all axes are in, or else the one that makes the axis, and the kind."""
    candidates: dict[int, list[str]] = {}
    for atom, found in places.items():
        modules = [path[1:-1] or path[1:] for path, _ in found]
        makers = [path[1:-1] or path[1:] for use, path in uses[atom] if use in ("made", "channels") and path]
        makers = list(dict.fromkeys(makers)) or modules[:1]
        common = _common(modules)
        around = common if common or len(makers) > 1 else makers[0]
        options = [around, _common(makers), makers[0]]
        candidates[atom] = ["/".join((*prefix, kinds[atom])) for prefix in options]
    names: dict[int, str] = {}
    for level in range(3):
        left = {atom: options[level] for atom, options in candidates.items() if atom not in names}
        counts = Counter(left.values())
        taken = set(names.values())
        names |= {atom: name for atom, name in left.items() if counts[name] == 1 and name not in taken}
    for atom, options in candidates.items():
        if atom not in names:
            numbered = itertools.chain(options[-1:], (f"{options[-1]}_{n}" for n in itertools.count(2)))
            names[atom] = next(name for name in numbered if name not in names.values())
    return names


def _common(modules: list[Path]) -> Path:
    return tuple(os.path.commonprefix([list(module) for module in modules]))

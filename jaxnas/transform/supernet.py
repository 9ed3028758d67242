"""A network that knows nothing of jaxnas as a supernet: one program for all sizes, exact extraction."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import products
from jaxnas.annotations import Annotations
from jaxnas.choice import Choice, nearest
from jaxnas.elastic.decisions import Decisions, static
from jaxnas.elastic.width import Table, Width, combine, constant, joint, width
from jaxnas.inputs import specification
from jaxnas.space import Arch, Space
from jaxnas.tensors import Path, unflatten
from jaxnas.transform import regions
from jaxnas.transform.evaluate import NONE, Region, Sizes, run
from jaxnas.transform.groups import Group, Groups, Traced, paths
from jaxnas.transform.program import Operation, Program
from jaxnas.transform.specs import LayoutSpec, active_part, table_of
from jaxnas.transform.ties import Layout, Leaf, atoms_of

_BORDER = 0.7  # of the mean share of products, below which products run at their active sizes


@dataclasses.dataclass(frozen=True)
class Skip:
    """Each module that a pattern matches may be left out, by a decision of its own."""


@dataclasses.dataclass(frozen=True, init=False)
class Depth:
    """How many of the modules that a pattern matches run.

    Attributes:
      options: numbers of modules.
      order: the modules by importance, most important first; those that run keep their places in the network.
        None for the first ones.
    """

    options: tuple[int, ...]
    order: tuple[str, ...] | None

    def __init__(self, *options: int, order: Sequence[str] | None = None):
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "order", None if order is None else tuple(order))


@dataclasses.dataclass(frozen=True, eq=False)
class Size:
    """The size of a group as a function of decisions, which it takes by their names.

    A decision that is repeated gives the value at the position of the match. For example, with the decisions
    "width" and "mlp_ratio", `Size(lambda width, mlp_ratio: int(width * mlp_ratio))`.
    """

    function: Callable[..., int]

    @property
    def decisions(self) -> tuple[str, ...]:
        """The names of the decisions."""
        return tuple(inspect.signature(self.function).parameters)


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """What one decision, or several, do at one place of the network.

    Attributes:
      name: of a group, or of a module that may be skipped.
      decisions: that set it, by name and position.
      function: from an option of each to the size, or to whether the module runs.
    """

    name: str
    decisions: tuple[tuple[str, int | None], ...]
    function: Callable[..., int]

    def within(self, space: Space) -> tuple[Any, ...] | None:
        """The decisions as a space has them; None where one has no such position, beyond the depth."""
        for name, position in self.decisions:
            length = space.choices[name].length
            if position is not None and (length is None or position >= length):
                return None
        return tuple(name if position is None else (name, position) for name, position in self.decisions)

    def table(self, space: Space) -> Table:
        """The size, or whether the module runs, over the decisions of a space."""
        found = self.within(space)
        if found is None:
            return constant(0)
        read = Decisions(space, None, initializing=True)
        return width(self.function, *(read[key] for key in found)).table


def supernet(
    groups: Groups,
    choices: Mapping[str, Choice | Size | Skip | Depth],
    *,
    decisions: Mapping[str, Choice] | None = None,
    shared: Sequence[str] = (),
    form: Literal["auto", "masked", "switch"] = "auto",
) -> Supernet:
    """Makes a supernet of an analyzed network.

    Args:
      groups: of `jaxnas.analyze`.
      choices: by a pattern of the names of groups, as "blocks_*/hidden": a `Choice` of sizes, with a decision
        for each group that matches, or `Size`, a function of decisions. By a pattern of modules: `Skip()`,
        or `Depth(10, 11, 12)`. The decisions have the names of the patterns.
      decisions: further choices, which the functions of `Size` take by name.
      shared: patterns whose matches share one decision.
      form: "masked" runs products at their full sizes, with masks; "switch" at their active sizes, which
        takes longer to compile; "auto" takes "switch" where random architectures have less than 70 % of the
        products of the largest one.

    Returns:
      A network with a `space`, called as `net.apply(variables, inputs, arch)`.

    Raises:
      ValueError: a pattern that matches nothing, sizes that a group cannot have, or a module that cannot be
        skipped.
    """
    named: dict[str, Choice] = dict(decisions or {})
    places: list[Place] = []
    for pattern, choice in choices.items():
        if isinstance(choice, Skip | Depth):
            places += _skipped(groups, pattern, choice, named, pattern in shared)
            continue
        matches = _matching(groups, pattern)
        if isinstance(choice, Size):
            places += [_computed(match, choice, number, named) for number, match in enumerate(matches)]
            continue
        _check_sizes(pattern, choice, matches)
        single = len(matches) == 1 or pattern in shared
        named[pattern] = choice if single or choice.length is not None else choice.repeat(len(matches))
        for number, match in enumerate(matches):
            position = None if named[pattern].length is None else number
            places.append(Place(match.name, ((pattern, position),), _itself))
    chosen = [place.name for place in places]
    if twice := {name for name in chosen if chosen.count(name) > 1}:
        raise ValueError(f"{sorted(twice)[0]!r} is matched by more than one pattern.")
    net = Supernet(groups, Space(**_conditional(groups, named, places)), tuple(places), "masked")
    if form == "auto":
        form = "switch" if net.mean_products() < _BORDER else "masked"
    return dataclasses.replace(net, form=form)


def _conditional(groups: Groups, named: dict[str, Choice], places: list[Place]) -> dict[str, Choice]:
    """Choices of groups within modules that may be skipped, active where these run."""
    modules = {place.decisions[0]: place.name for place in places if place.name not in groups.groups}
    depths: dict[str, list[str]] = {}
    for place in places:
        if isinstance(place.function, _Ranked) and place.function.in_order:
            depths.setdefault(place.decisions[0][0], []).append(place.name)
    made = dict(named)
    for name, choice in named.items():
        if choice.length is None or choice.active or choice.condition:
            continue
        groups_at = [
            [
                groups[place.name]
                for place in places
                if (name, position) in place.decisions and place.name in groups.groups
            ]
            for position in range(choice.length)
        ]
        for skip in {key[0] for key in modules}:
            inside = [modules.get((skip, position)) for position in range(choice.length)]
            if named[skip].length == choice.length and _all_inside(groups_at, inside):
                made[name] = choice.when(skip, "keep")
        for depth, inside in depths.items():
            if _all_inside(groups_at, inside):
                made[name] = choice.replace(active=depth)
    return made


def _all_inside(groups: list[list[Group]], modules: Sequence[str | None]) -> bool:
    """Whether the groups of each position are within the module of that position."""
    return len(groups) == len(modules) and all(
        module is not None and found and all(_inside(group, module) for group in found)
        for found, module in zip(groups, modules, strict=True)
    )


def _inside(group: Group, module: str) -> bool:
    parts = tuple(module.split("/"))
    return all(path[1 : len(parts) + 1] == parts for path, _ in group.places)


def _itself(size: int) -> int:
    return size


def _runs(option: str) -> int:
    return int(option == "keep")


def _matching(groups: Groups, pattern: str) -> list[Group]:
    found = [group for group in groups if fnmatch.fnmatchcase(group.name, pattern)]
    if found:
        return found
    for fixed in groups.fixed:
        for path, axis in fixed.places:
            if fnmatch.fnmatchcase("/".join(path[1:]), pattern):
                raise ValueError(
                    f"{pattern!r} keeps its size: axis {axis} of {'/'.join(path)} is {fixed.reason}."
                )
    raise ValueError(
        f"{pattern!r} matches no group{nearest(pattern, groups.groups)} The groups are "
        f"{', '.join(groups.groups)}."
    )


def _check_sizes(pattern: str, choice: Choice, matches: list[Group]) -> None:
    for group in matches:
        for option in choice.options:
            if not isinstance(option, int) or not 1 <= option <= group.size:
                raise ValueError(
                    f"{pattern!r}: {option!r} is no size of {group.name}, which has {group.size}: "
                    "expected ints "
                    f"from 1 to {group.size}."
                )
            if group.kind == "kernel" and (group.size - option) % 2:
                raise ValueError(
                    f"{pattern!r}: a kernel of {option} has no common centre with the {group.size} of "
                    f"{group.name}."
                )


def _computed(group: Group, size: Size, number: int, named: dict[str, Choice]) -> Place:
    reads = []
    for name in size.decisions:
        if name not in named:
            raise ValueError(f"{group.name} depends on {name!r}, which is no decision{nearest(name, named)}")
        reads.append((name, None if named[name].length is None else number))
    rows = [named[name].options_at(position or 0) for name, position in reads]
    for options in np.ndindex(*map(len, rows)):
        given = [row[index] for row, index in zip(rows, options, strict=True)]
        made = size.function(*given)
        if not isinstance(made, int | np.integer) or not 1 <= made <= group.size:
            raise ValueError(
                f"{group.name} has the size {made!r} with "
                f"{dict(zip(size.decisions, given, strict=True))}: expected "
                f"an int from 1 to {group.size}."
            )
    return Place(group.name, tuple(reads), size.function)


def _skipped(
    groups: Groups, pattern: str, choice: Skip | Depth, named: dict[str, Choice], shared: bool
) -> list[Place]:
    traced = groups.traced(groups.inputs, False)
    modules = regions.matching(traced, pattern)
    for module in modules:
        regions.region_of(traced, module)
    if isinstance(choice, Skip):
        named[pattern] = Choice("skip", "keep")
        if len(modules) > 1 and not shared:
            named[pattern] = named[pattern].repeat(len(modules))
        length = named[pattern].length
        return [
            Place(module, ((pattern, None if length is None else i),), _runs)
            for i, module in enumerate(modules)
        ]
    order = list(choice.order or modules)
    if sorted(order) != sorted(modules):
        raise ValueError(f"{pattern!r}: the order is of {order}, and the modules are {modules}.")
    for option in choice.options:
        if not 0 <= option <= len(modules):
            raise ValueError(f"{pattern!r} matches {len(modules)} modules, of which {option} cannot run.")
    named[pattern] = Choice(*choice.options)
    return [Place(m, ((pattern, None),), _Ranked(order.index(m), order == modules)) for m in modules]


@dataclasses.dataclass(frozen=True)
class _Ranked:
    rank: int
    in_order: bool

    def __call__(self, depth: int) -> int:
        return int(self.rank < depth)


@dataclasses.dataclass(frozen=True, eq=False)
class Supernet:
    """A network whose sizes are chosen by an array at call time.

    Attributes:
      groups: of the analyzed network.
      space: its decisions; of one architecture, variables and shapes are those of the sub-network.
      places: what the decisions do.
      form: "masked" or "switch"; see `supernet`.
    """

    groups: Groups
    space: Space
    places: tuple[Place, ...]
    form: Literal["masked", "switch"]

    @property
    def __name__(self) -> str:
        return self.groups.model.name

    def described(self) -> dict[str, Any]:
        """What a record of a run holds of the network, beside its program."""
        places = [(place.name, [name for name, _ in place.decisions]) for place in self.places]
        return {"type": self.__name__, "space": self.space.to_json(), "places": places}

    def mean_products(self) -> float:
        """The mean multiply-accumulates of random architectures, as a share of the largest one's."""
        tables = self.annotations(self.groups.inputs).macs
        with jax.ensure_compile_time_eval():
            archs = jax.tree.map(np.asarray, self.space.sample(jax.random.key(0), 32))
            largest = jax.tree.map(np.asarray, self.space.largest())
        rows = [jax.tree.map(lambda x, i=i: x[i], archs) for i in range(32)]
        counted = [sum(table.at_host(arch) for table in tables) for arch in (largest, *rows)]
        return float(np.mean(counted[1:]) / max(counted[0], 1))

    def sizes(self) -> dict[str, int]:
        """The sizes of the groups of one architecture, and 0 or 1 of modules that may be skipped."""
        found = {group.name: group.size for group in self.groups}
        return found | {place.name: place.table(self.space).maximum for place in self.places}

    def clone(self, *, space: Space) -> Supernet:
        """The network with another space, as that of one architecture."""
        return dataclasses.replace(self, space=space)

    def init(self, key: jax.Array, inputs: Any, arch: Arch | None = None) -> dict[str, Any]:
        """Initial variables, or those that the network was analyzed with if it cannot make any."""
        model, shapes = self.groups.model, self.groups.shapes
        variables = model.variables if model.init is None else model.init(key, inputs)
        whole = {path: _of_dtype(jnp.asarray(x), shapes[path].dtype) for path, x in paths(variables)}
        if self.space.cardinality > 1:
            return unflatten(whole)
        host, specs = static(self.space), self._specs
        return unflatten(
            {
                path: specs[path].active(x, host)
                for path, x in whole.items()
                if specs[path].shape(host) is not None
            }
        )

    def apply(
        self,
        variables: dict[str, Any],
        inputs: Any,
        arch: Arch | None = None,
        *,
        train: bool = False,
        mutable: Any = False,
        rngs: Any = None,
    ) -> Any:
        """Calls the network.

        Args:
          variables: by collection, maximal; those of the sub-network if the space has one architecture.
          inputs: a pytree of arrays, batch in front.
          arch: an architecture, hard or soft; None if there is one.
          train: whether the network runs as in training.
          mutable: whether to return updated collections, too, or their names.
          rngs: a key, or a dict of keys of which "dropout" is used.

        Returns:
          The outputs, or with `mutable` `(outputs, updates)`.
        """
        small = self.space.cardinality == 1
        rows = jax.tree.leaves(inputs)
        symbolic = not all(isinstance(size, int) for x in rows for size in x.shape)
        traced = self.groups.traced(self.groups.inputs if symbolic else specification(inputs), train)
        widths = self._widths(arch)
        sizes = self._sizes(traced, widths, small)
        if symbolic:  # the leading axis of an export
            sizes = _with_batch(sizes, traced, rows[0].shape[0], small)
        key = rngs.get("dropout", next(iter(rngs.values()))) if isinstance(rngs, dict) else rngs
        key = jax.random.key(0) if key is None else key
        given = self._given(variables, sizes)
        zero = [NONE if small else sizes.atoms(number) for number in traced.program.inputs[: len(given)]]
        arguments = [*given, *rows, key]
        results = run(traced.program, arguments, [*zero, *[NONE] * (len(rows) + 1)], sizes)
        count = traced.outputs.num_leaves
        outputs = jax.tree.unflatten(traced.outputs, results[:count])
        if mutable is False or mutable is None:
            return outputs
        order = list(self.groups.shapes)
        updates = {order[place]: x for place, x in zip(traced.updated, results[count:], strict=True)}
        kept = {p: x for p, x in updates.items() if x is not None and (mutable is True or p[0] in mutable)}
        return outputs, unflatten(self._untouched(variables, kept, sizes))

    def annotations(self, inputs: Any) -> Annotations:
        """What `jaxnas.network` asks a network for: the sizes of its variables and its products."""
        traced = self.groups.traced(inputs, False)
        macs = _macs(traced.program, traced.layouts, self._tables, self._gates, self._borders(traced))
        specs = self._specs
        shapes = {
            path: jax.ShapeDtypeStruct(shape, x.dtype)
            for path, x in self.groups.shapes.items()
            if (shape := self._shape(path, x.shape, specs)) is not None
        }
        choices = [place.table(self.space) for place in self.places]
        return Annotations(
            unflatten(shapes),
            {path[1:]: spec for path, spec in specs.items() if path[0] == "params"},
            {path: spec for path, spec in specs.items() if path[0] != "params"},
            tuple(macs),
            tuple(dict.fromkeys(choices)),
            traced.half_precision,
        )

    def _shape(self, path: Path, full: tuple[int, ...], specs: dict[Path, LayoutSpec]) -> Any:
        return full if self.space.cardinality > 1 else specs[path].shape(static(self.space))

    def _given(self, variables: Any, sizes: Sizes) -> list[Any]:
        """The variables as the program takes them; None of those in a module that is skipped."""
        if not sizes.small:
            whole = self.groups.arrays(variables)
            return [sizes.mask(x, own) for x, own in zip(whole, self.groups.layouts.values(), strict=True)]
        host = static(self.space)
        return self.groups.arrays(variables, {path: spec.shape(host) for path, spec in self._specs.items()})

    def _untouched(self, old: Any, new: dict[Path, Any], sizes: Sizes) -> dict[Path, Any]:
        """Updated collections, with the old values behind their active part."""
        if sizes.small:
            return new
        before = dict(paths(old))
        return {path: sizes.keep(x, self.groups.layouts[path], before[path]) for path, x in new.items()}

    def _kernel(self, name: str) -> bool:
        return self.groups[name].kind == "kernel"

    def _widths(self, arch: Arch | None) -> dict[str, Width]:
        read = Decisions(self.space, arch)
        made = {}
        for place in self.places:
            if (found := place.within(self.space)) is not None:
                made[place.name] = width(place.function, *(read[key] for key in found))
            else:  # beyond the depth of a space of one architecture
                made[place.name] = width(lambda: 0)
        return made

    @functools.cached_property
    def _tables(self) -> dict[int, Table]:
        """The active sizes of the elastic atoms."""
        return {
            self.groups[place.name].atom: place.table(self.space)
            for place in self.places
            if place.name in self.groups.groups
        }

    @functools.cached_property
    def _specs(self) -> dict[Path, LayoutSpec]:
        centred = frozenset(group.atom for group in self.groups if group.kind == "kernel")
        traced = self.groups.traced(self.groups.inputs, False)
        numbers = dict(zip(self.groups.shapes, traced.program.inputs, strict=False))
        users: dict[int, list[Table]] = {}
        for op in traced.program.operations:
            for one in op.ins:
                if isinstance(one, int):
                    users.setdefault(one, []).append(_gate_of(op, self._gates))
        specs = {}
        for path, layouts in self.groups.layouts.items():
            own = tuple((a, t) for a, t in self._tables.items() if any(a in atoms_of(x) for x in layouts))
            used = list(dict.fromkeys(users.get(numbers[path], [constant(1)])))
            gate = constant(1) if constant(1) in used else combine(lambda *x: max(x), *used)
            specs[path] = LayoutSpec(layouts, own, gate, centred & {a for a, _ in own})
        return specs

    @functools.cached_property
    def _gates(self) -> dict[str, Table]:
        return {
            place.name: place.table(self.space)
            for place in self.places
            if place.name not in self.groups.groups
        }

    def _borders(self, traced: Traced) -> dict[int, tuple[tuple[int, int], ...]]:
        """For each convolution with an elastic kernel, the atom and full size of each spatial axis."""
        kernels = {
            group.atom: group.size
            for group in self.groups
            if group.kind == "kernel" and any(place.name == group.name for place in self.places)
        }
        found = {}
        variables = dict(zip(traced.program.inputs, self.groups.shapes, strict=False))
        for program in regions.programs(traced.program):
            for op in program.operations:
                if op.name == "conv_general_dilated" and kernels:
                    origin = traced.trace.origin.get(op.array(1))
                    if origin in variables:
                        layouts = self.groups.layouts[variables[origin]]
                        spatial = [layouts[i] for i in op.eqn.params["dimension_numbers"].rhs_spec[2:]]
                        atoms = [next(iter(atoms_of(x)), -1) for x in spatial]
                        if any(atom in kernels for atom in atoms):
                            found[id(op)] = tuple((atom, kernels.get(atom, 0)) for atom in atoms)
        return found

    def _sizes(self, traced: Traced, widths: dict[str, Width], small: bool) -> Sizes:
        chosen = {
            self.groups[n].atom: (w, self._kernel(n)) for n, w in widths.items() if n in self.groups.groups
        }
        gates: dict[int, list[tuple[Region, Any]]] = {}
        for name, gate in widths.items():
            if name not in self.groups.groups:
                program, region = regions.region_of(traced, name)
                runs = bool(gate.maximum) if gate.is_fixed else _gate(gate)
                gates.setdefault(id(program), []).append((region, runs))
        for found in gates.values():
            found.sort(key=lambda one: one[0].start - one[0].stop)
        borders = {}
        if small:
            sizes = {atom: w.maximum for atom, (w, _) in chosen.items()}
            borders = {
                key: tuple((full - sizes[atom]) // 2 if atom in sizes else 0 for atom, full in axes)
                for key, axes in self._borders(traced).items()
            }
            return Sizes(traced.layouts, sizes, None, gates, borders, traced.trace.constants)
        full = {group.atom: group.size for group in self.groups}
        masks = {atom: _mask(w, full[atom], centred) for atom, (w, centred) in chosen.items()}
        sizes = {
            atom: mask.sum() if mask.dtype != np.dtype(bool) else mask.sum(dtype=np.int32)
            for atom, mask in masks.items()
        }
        hard = not any(joint(w).is_soft for w, _ in chosen.values())
        switched = None
        if self.form == "switch" and hard:
            switched = {atom: w for atom, (w, centred) in chosen.items() if not centred and not w.is_fixed}
        return Sizes(traced.layouts, sizes, masks, gates, borders, traced.trace.constants, switched)


def _of_dtype(x: jax.Array, dtype: Any) -> jax.Array:
    """A new variable in the dtype of the analyzed one: weights of a file may have another than new ones."""
    return x if x.dtype == dtype else x.astype(dtype)


def _with_batch(sizes: Sizes, traced: Traced, batch: Any, small: bool) -> Sizes:
    """Sizes with another number of examples, which may be symbolic.

    Raises:
      ValueError: the examples do not go through the network side by side.
    """
    factors = traced.trace.ties.factors([traced.batch])
    if not small or len(factors) != 1 or factors[0] in traced.trace.ties.fixed:
        raise ValueError("The network was analyzed for one number of examples, and cannot take any number.")
    return dataclasses.replace(sizes, sizes={**sizes.sizes, factors[0]: batch})


def _mask(one: Width, full: int, centred: bool) -> Any:
    """The weight of each position of a group, bool (hard) or float (soft), [full]."""
    if one.is_fixed:
        return active_part(full, one.maximum, centred, np)
    choice = joint(one)
    sizes = np.array([row[0] for row in choice.rows], np.int32)
    if choice.is_soft:
        active = np.stack([active_part(full, size, centred, np) for size in sizes]).astype(np.float32)
        return choice.weights() @ jnp.asarray(active)
    return active_part(full, jnp.asarray(sizes)[choice.index()], centred, jnp)


def _gate(one: Width) -> Any:
    choice = joint(one)
    runs = np.array([row[0] for row in choice.rows])
    if choice.is_soft:
        return choice.weights() @ jnp.asarray(runs, jnp.float32)
    index = choice.index()
    return bool(runs[index]) if isinstance(index, int) else jnp.asarray(runs > 0)[index]


def _gate_of(op: Operation, gates: dict[str, Table]) -> Table:
    """When an operation runs: when all modules around it do."""
    around = [table for module, table in gates.items() if regions.within(op, module)]
    return combine(lambda *x: math.prod(x), *around) if around else constant(1)


def _macs(program: Program, layouts: Any, tables: dict[int, Table], gates: Any, borders: Any) -> list[Table]:
    """The multiply-accumulates of each product."""
    found = []
    for op in program.operations:
        gate = _gate_of(op, gates)
        if op.bodies:
            inner = [_macs(body, layouts, tables, gates, borders) for body in op.bodies]
            times = op.eqn.params["length"] if op.name == "scan" else 1
            if op.name in ("while", "cond") and any(inner):
                raise ValueError(
                    f"{'/'.join(op.scope)} has products in a lax.{op.name}, and the traced program does not "
                    "say how many of them run."
                )
            found += [
                combine(lambda on, n, t=times: on * n * t, gate, table) for one in inner for table in one
            ]
        elif op.name in products.PRODUCTS or op.name in products.SPARSE:
            found.append(combine(operator.mul, gate, _product(op, layouts, tables, borders)))
    return found


def _product(op: Operation, layouts: Any, tables: dict[int, Table], borders: Any) -> Table:
    """The multiply-accumulates of one product: the count at full size, with its elastic factors exchanged."""
    full = products.total(_alone(op.eqn)).least
    factors: list[Layout] = list(layouts[op.outs[0]])
    if op.name == "dot_general":
        contracted = op.eqn.params["dimension_numbers"][0][0]
        factors += [layouts[op.ins[0]][place] for place in contracted]
    elif op.name == "conv_general_dilated":
        factors.append(layouts[op.ins[1]][op.eqn.params["dimension_numbers"].rhs_spec[1]])
        factors += [(Leaf(atom, size),) for atom, size in borders.get(id(op), ()) if size]
    elastic = [x for x in factors if atoms_of(x).keys() & tables.keys()]
    whole = math.prod(math.prod(factor.size for factor in layout) for layout in elastic)
    sizes = [table_of(layout, tables) for layout in elastic]
    return combine(lambda *now: full // whole * math.prod(now), *sizes) if sizes else constant(full)


class _alone:
    """A program of one equation, to be counted."""

    def __init__(self, eqn: Any):
        self.eqns = [eqn]

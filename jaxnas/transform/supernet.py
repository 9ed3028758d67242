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
from jaxnas.transform import regions, turns
from jaxnas.transform.evaluate import NONE, Region, Row, Sizes, Turns, outermost_first, place_of, run
from jaxnas.transform.groups import Group, Groups, Traced, paths
from jaxnas.transform.program import Operation, Program
from jaxnas.transform.specs import LayoutSpec, TurnSpec, active_part, table_of
from jaxnas.transform.ties import Layout, Leaf, atoms_of

# The mean share of products below which the form is "switch". One H200 was slower with branches at .7;
# smaller shares have not been measured there.
_BORDERS = {"cpu": 0.85, "gpu": 0.5, "tpu": 0.5}


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
      turn: of a scan; None for all turns, and for what is in no scan.
    """

    name: str
    decisions: tuple[tuple[str, int | None], ...]
    function: Callable[..., int]
    turn: int | None = None

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
        or `Depth(10, 11, 12)`. The decisions have the names of the patterns. `Choice(8, 16).repeat(turns)`
        of a group within a `lax.scan` is a size for each turn, and a module within one is skipped by turn.
      decisions: further choices, which the functions of `Size` take by name.
      shared: patterns whose matches share one decision.
      form: "masked" runs everything at full sizes, with masks; "switch" at active sizes, in switches over
        segments such as an attention or an MLP, which takes longer to compile; "auto" takes "switch" where
        random architectures have less than 85 % (CPU) or 50 % (accelerators) of the largest one's products.

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
            places += _computed(groups, pattern, choice, matches, named)
            continue
        _check_sizes(pattern, choice, matches)
        single = len(matches) == 1 or pattern in shared
        named[pattern] = choice if single or choice.length is not None else choice.repeat(len(matches))
        positions = _positions(groups, pattern, matches, named[pattern].length, pattern in shared)
        places += [Place(match.name, ((pattern, i),), _itself, turn) for match, turn, i in positions]
    chosen: dict[str, list[int | None]] = {}
    for place in places:
        chosen.setdefault(place.name, []).append(place.turn)
    for name, found in chosen.items():
        if len(set(found)) < len(found) or (None in found and len(found) > 1):
            raise ValueError(f"{name!r} is matched by more than one pattern.")
    net = Supernet(groups, Space(**_conditional(groups, named, places)), tuple(places), "masked")
    if form == "auto":
        border = _BORDERS.get(jax.default_backend(), 0.5)
        form = "switch" if net.mean_products() < border else "masked"
    return dataclasses.replace(net, form=form)


def _conditional(groups: Groups, named: dict[str, Choice], places: list[Place]) -> dict[str, Choice]:
    """Choices of groups within modules that may be skipped, active where these run."""
    modules = {place.decisions[0]: place for place in places if place.name not in groups.groups}
    depths: dict[str, list[Place]] = {}
    for place in places:
        if isinstance(place.function, _Ranked) and place.function.in_order:
            depths.setdefault(place.decisions[0][0], []).append(place)
    made = dict(named)
    for name, choice in named.items():
        if choice.length is None or choice.active or choice.condition:
            continue
        groups_at = [
            [place for place in places if (name, position) in place.decisions and place.name in groups.groups]
            for position in range(choice.length)
        ]
        for skip in {key[0] for key in modules}:
            inside = [modules.get((skip, position)) for position in range(choice.length)]
            if named[skip].length == choice.length and _all_inside(groups, groups_at, inside):
                made[name] = choice.when(skip, "keep")
        for depth, inside in depths.items():
            if _all_inside(groups, groups_at, inside):
                made[name] = choice.replace(active=depth)
    return made


def _all_inside(groups: Groups, sizes: list[list[Place]], modules: Sequence[Place | None]) -> bool:
    """Whether the groups of each position are within the module of that position."""
    return len(sizes) == len(modules) and all(
        module is not None and found and all(_inside(groups, place, module) for place in found)
        for found, module in zip(sizes, modules, strict=True)
    )


def _inside(groups: Groups, place: Place, module: Place) -> bool:
    group = groups[place.name]
    if module.turn is not None:
        if place.turn != module.turn:
            return False
        traced = groups.traced(groups.inputs, False)
        return turns.only_inside(traced, turns.scan_of(traced, group.atom), group.atom, module.name)
    parts = tuple(module.name.split("/"))
    return all(path[1 : len(parts) + 1] == parts for path, _ in group.places)


def _positions(
    groups: Groups, pattern: str, matches: list[Group], length: int | None, shared: bool
) -> list[tuple[Group, int | None, int | None]]:
    """For each group that is matched, and each turn if it has its own size, the position of its decision."""
    if length is None:
        return [(match, None, None) for match in matches]
    if length == len(matches) and not shared:
        return [(match, None, number) for number, match in enumerate(matches)]
    found = []
    for match in matches:
        if match.kind == "kernel":
            raise ValueError(
                f"{pattern!r}: a kernel has one size in all turns; got a choice for each of {length}."
            )
        try:
            scan, _ = (turns.scan_of(groups.traced(groups.inputs, x), match.atom) for x in (False, True))
        except ValueError as error:
            raise ValueError(
                f"{pattern!r} has {length} sizes for {len(matches)} group{'s' * (len(matches) > 1)}, and "
                f"{match.name} has one size in all turns: {error}."
            ) from error
        found += [(match, turn) for turn in range(scan.length)]
    if length != (found[-1][1] + 1 if shared else len(found)):
        count = found[-1][1] + 1 if shared else len(found)
        raise ValueError(
            f"{pattern!r} has {count} sizes in all turns of its scan: expected a choice that is repeated "
            f"{count} times; got {length}."
        )
    return [(match, turn, turn if shared else i) for i, (match, turn) in enumerate(found)]


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


def _computed(
    groups: Groups, pattern: str, size: Size, matches: list[Group], named: dict[str, Choice]
) -> list[Place]:
    for name in size.decisions:
        if name not in named:
            raise ValueError(f"{pattern} depends on {name!r}, which is no decision{nearest(name, named)}")
    lengths = {named[name].length for name in size.decisions} - {None}
    found: list[tuple[Group, int | None, int | None]] = [(m, None, i) for i, m in enumerate(matches)]
    if len(lengths) == 1 and lengths != {len(matches)}:
        found = _positions(groups, pattern, matches, lengths.pop(), False)
    return [_place(match, size, turn, position, named) for match, turn, position in found]


def _place(group: Group, size: Size, turn: int | None, number: int | None, named: dict[str, Choice]) -> Place:
    reads = [(name, None if named[name].length is None else number) for name in size.decisions]
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
    return Place(group.name, tuple(reads), size.function, turn)


def _skipped(
    groups: Groups, pattern: str, choice: Skip | Depth, named: dict[str, Choice], shared: bool
) -> list[Place]:
    modules = turns.modules(groups.traced(groups.inputs, False), pattern, by_turn=not shared)
    for name in dict.fromkeys(name for name, _ in modules.values()):
        regions.region_of(groups.traced(groups.inputs, True), name)
    if isinstance(choice, Skip):
        named[pattern] = Choice("skip", "keep")
        if len(modules) > 1 and not shared:
            named[pattern] = named[pattern].repeat(len(modules))
        length = named[pattern].length
        return [
            Place(name, ((pattern, None if length is None else i),), _runs, turn)
            for i, (name, turn) in enumerate(modules.values())
        ]
    order = list(choice.order or modules)
    if sorted(order) != sorted(modules):
        raise ValueError(f"{pattern!r}: the order is of {order}, and the modules are {list(modules)}.")
    for option in choice.options:
        if not 0 <= option <= len(modules):
            raise ValueError(f"{pattern!r} matches {len(modules)} modules, of which {option} cannot run.")
    named[pattern] = Choice(*choice.options)
    return [
        Place(name, ((pattern, None),), _Ranked(order.index(one), order == list(modules)), turn)
        for one, (name, turn) in modules.items()
    ]


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

    def sizes(self) -> dict[str, Any]:
        """The sizes of the groups of one architecture, and 0 or 1 of modules that may be skipped.

        What a scan has by turn is a tuple.
        """
        found: dict[str, Any] = {group.name: group.size for group in self.groups}
        for place in self.places:
            now = place.table(self.space).maximum
            before = found[place.name] if place.turn else ()
            found[place.name] = now if place.turn is None else (*before, now)
        return found

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
        sizes = self._sizes(traced, self._widths(arch), small)
        if symbolic:  # the leading axis of an export
            sizes = _with_batch(sizes, traced, rows[0].shape[0], small)
        key = rngs.get("dropout", next(iter(rngs.values()))) if isinstance(rngs, dict) else rngs
        key = jax.random.key(0) if key is None else key
        given = self._given(variables, sizes)
        cut = frozenset(sizes.sizes if small else sizes.widths or ())
        zero = [sizes.atoms(number) - cut for number in traced.program.inputs[: len(given)]]
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
        macs = _Products(traced.layouts, self, self._scans(traced), self._borders(traced)).count(
            traced.program, None
        )
        specs = self._specs
        shapes = {
            path: jax.tree.map(
                lambda one, x=x: jax.ShapeDtypeStruct(one, x.dtype),
                shape,
                is_leaf=lambda x: isinstance(x, tuple),
            )
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

    def _shape(self, path: Path, full: tuple[int, ...], specs: dict[Path, Any]) -> Any:
        return full if self.space.cardinality > 1 else specs[path].shape(static(self.space))

    def _given(self, variables: Any, sizes: Sizes) -> list[Any]:
        """The variables as the program takes them; None of those in a module that is skipped.

        Of a scan whose turns are not alike, a tuple of what each turn has.
        """
        if not sizes.small:
            cut = frozenset(sizes.widths or ())  # where they are used
            return [
                sizes.mask(x, [None if sizes.elastic(a) and sizes.elastic(a) <= cut else a for a in own])
                for x, own in zip(self.groups.arrays(variables), self.groups.layouts.values(), strict=True)
            ]
        host, specs = static(self.space), self._specs
        arrays = self.groups.arrays(variables, {path: spec.shape(host) for path, spec in specs.items()})
        unrolled = {one.axis for one in sizes.turns.values() if one.rows}
        for place, spec in enumerate(specs.values()):
            if isinstance(spec, TurnSpec) and spec.turns in unrolled:
                arrays[place] = spec.split(arrays[place], host)
        return arrays

    def _untouched(self, old: Any, new: dict[Path, Any], sizes: Sizes) -> dict[Path, Any]:
        """Updated collections, with the old values behind their active part."""
        if not sizes.small:
            before = dict(paths(old))
            return {path: sizes.keep(x, self.groups.layouts[path], before[path]) for path, x in new.items()}
        stored = dict(new)
        for path, x in new.items():
            if isinstance(spec := self._specs[path], TurnSpec) and isinstance(x, tuple):
                stored[path] = spec.joined({turn: row for turn, row in enumerate(x) if row is not None})
        return stored

    def _kernel(self, name: str) -> bool:
        return self.groups[name].kind == "kernel"

    def _widths(self, arch: Arch | None) -> dict[tuple[str, int | None], Width]:
        """Of each place, by its name and turn."""
        read = Decisions(self.space, arch)
        made = {}
        for place in self.places:
            if (found := place.within(self.space)) is not None:
                made[place.name, place.turn] = width(place.function, *(read[key] for key in found))
            else:  # beyond the depth of a space of one architecture
                made[place.name, place.turn] = width(lambda: 0)
        return made

    def _tables(self, turn: int | None) -> dict[int, Table]:
        """The active sizes of the elastic atoms, outside of scans or in one turn."""
        return {
            self.groups[name].atom: x for name, x in self._by_turn[turn].items() if name in self.groups.groups
        }

    def _gates(self, turn: int | None) -> dict[str, Table]:
        """Whether modules run, outside of scans or in one turn."""
        return {name: x for name, x in self._by_turn[turn].items() if name not in self.groups.groups}

    @functools.cached_property
    def _by_turn(self) -> dict[int | None, dict[str, Table]]:
        """The tables of all places, outside of scans (None) and in each turn."""
        tables = [(place.name, place.turn, place.table(self.space)) for place in self.places]
        return {
            now: {name: table for name, turn, table in tables if turn in (None, now)}
            for now in {None, *(turn for _, turn, _ in tables)}
        }

    @functools.cached_property
    def _specs(self) -> dict[Path, Any]:
        traced = self.groups.traced(self.groups.inputs, False)
        users: dict[int, list[Operation]] = {}
        for op in traced.program.operations:
            for one in op.ins:
                if isinstance(one, int):
                    users.setdefault(one, []).append(op)
        scans = list(self._scans(traced).values())
        specs: dict[Path, Any] = {}
        for (path, layouts), number in zip(self.groups.layouts.items(), traced.program.inputs, strict=False):
            specs[path] = self._spec(layouts, users.get(number), None)
            for one in scans:
                axis = place_of(one.scan.axis, layouts)
                differs = {group.atom for group in one.groups} & {a for x in layouts for a in atoms_of(x)}
                if axis >= 0 and (differs or one.modules):
                    reading = turns.readers(traced, one.scan, number)
                    alone = tuple(() if i == axis else x for i, x in enumerate(layouts))
                    rows = [
                        self._spec(alone, reading, turn).gated(one.runs(self._gates(turn)))
                        for turn in range(one.scan.length)
                    ]
                    specs[path] = TurnSpec(one.scan.axis, axis, tuple(rows))
        return specs

    def _spec(
        self, layouts: tuple[Layout, ...], users: list[Operation] | None, turn: int | None
    ) -> LayoutSpec:
        """What a variable is made of that some operations read, in one turn of a scan or outside of scans."""
        tables, gates = self._tables(turn), self._gates(turn)
        centred = frozenset(group.atom for group in self.groups if group.kind == "kernel")
        own = tuple((a, t) for a, t in tables.items() if any(a in atoms_of(x) for x in layouts))
        used = [constant(1)] if not users else list(dict.fromkeys(_gate_of(op, gates) for op in users))
        gate = constant(1) if constant(1) in used else combine(lambda *x: max(x), *used)
        return LayoutSpec(layouts, own, gate, centred & {a for a, _ in own})

    def _scans(self, traced: Traced) -> dict[int, _ByTurn]:
        """The scans that have sizes or modules by turn, by the identity of their operations."""
        found: dict[int, _ByTurn] = {}
        for name in dict.fromkeys(place.name for place in self.places if place.turn is not None):
            if name in self.groups.groups:
                scan = turns.scan_of(traced, self.groups[name].atom)
                found.setdefault(id(scan.op), _ByTurn(scan, [], [], [])).groups.append(self.groups[name])
                continue
            program, region = regions.region_of(traced, name)
            around = turns.scan_around(traced, program)
            if around is None:
                raise ValueError(f"{name} is skipped by turn of a scan, and with these inputs it is in none.")
            own = found.setdefault(id(around.op), _ByTurn(around, [], [], []))
            own.modules.append((name, id(program), region))
            if turns.hands_on(traced, around, program, region):
                own.whole.append(name)
        return found

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

    def _sizes(self, traced: Traced, widths: dict[tuple[str, int | None], Width], small: bool) -> Sizes:
        everywhere = {name: one for (name, turn), one in widths.items() if turn is None}
        chosen = {
            self.groups[n].atom: (w, self._kernel(n))
            for n, w in everywhere.items()
            if n in self.groups.groups
        }
        gates: dict[int, list[tuple[Region, Any]]] = {}
        switched_gates = {}
        for name, gate in everywhere.items():
            if name not in self.groups.groups:
                program, region = regions.region_of(traced, name)
                switched_gates[region] = gate
                runs = bool(gate.maximum) if gate.is_fixed else _gate(gate)
                gates.setdefault(id(program), []).append((region, runs))
        gates = {program: outermost_first(found) for program, found in gates.items()}
        scans, constants = self._scans(traced), traced.trace.constants
        if small:
            sizes = {atom: w.maximum for atom, (w, _) in chosen.items()}
            borders = {
                key: tuple((full - sizes[atom]) // 2 if atom in sizes else 0 for atom, full in axes)
                for key, axes in self._borders(traced).items()
            }
            made = Sizes(traced.layouts, sizes, None, gates, borders, constants)
            for one in scans.values():
                made = one.small(made, widths)
            return made
        full = {group.atom: group.size for group in self.groups}
        masks = {atom: _mask(w, full[atom], centred) for atom, (w, centred) in chosen.items()}
        sizes = {atom: _size(mask) for atom, mask in masks.items()}
        hard, switched = not any(joint(w).is_soft for w in widths.values()), None
        if self.form == "switch" and hard:
            switched = {atom: w for atom, (w, centred) in chosen.items() if not centred}
        by_turn = {key: one.masked(widths, switched is not None) for key, one in scans.items()}
        for one in by_turn.values():
            sizes, masks = {**sizes, **one.rows.sizes}, {**masks, **one.rows.masks}
        own_gates = {} if switched is None else switched_gates
        return Sizes(traced.layouts, sizes, masks, gates, {}, constants, switched, own_gates, by_turn)


@dataclasses.dataclass(frozen=True)
class _ByTurn:
    """What a supernet chooses by turn of a scan.

    Attributes:
      scan: in one traced program.
      groups: with a size by turn.
      modules: that may be skipped by turn: the name, the identity of the program that it is in, the region.
      whole: the modules without which a turn only hands its carry on.
    """

    scan: turns.Scan
    groups: list[Group]
    modules: list[tuple[str, int, Region]]
    whole: list[str]

    def runs(self, gates: dict[str, Table]) -> Table:
        """Whether a turn is needed at all."""
        return combine(lambda *on: math.prod(on), constant(1), *(gates[name] for name in self.whole))

    def _each(self, widths: Mapping[Any, Width], name: str) -> list[Width]:
        return [widths[name, turn] for turn in range(self.scan.length)]

    def masked(self, widths: Mapping[Any, Width], switched: bool) -> Turns:
        """Masked: what all turns have, with the turns in front."""
        masks, products = {}, {}
        for group in self.groups:
            own = self._each(widths, group.name)
            masks[group.atom] = _of_turns(lambda w, n=group.size: _mask(w, n, False), own)
            stacked = _stacked(own)
            if switched and stacked is not None and not stacked.is_fixed:
                products[group.atom] = stacked
        gates = tuple(_of_turns(_gate, self._each(widths, name)) for name, _, _ in self.modules)
        row = Row({atom: _size(mask) for atom, mask in masks.items()}, masks, products, gates)
        return Turns(self.scan.axis, tuple((program, region) for _, program, region in self.modules), row)

    def small(self, sizes: Sizes, widths: Mapping[Any, Width]) -> Sizes:
        """Sizes at small shapes: those of the scan where its turns are alike, or else a row for each turn."""
        names = [*(group.name for group in self.groups), *(name for name, _, _ in self.modules)]
        now = {name: [w.maximum for w in self._each(widths, name)] for name in names}
        kept = tuple(t for t in range(self.scan.length) if all(now[name][t] for name in self.whole))
        rows = [
            Row(
                {group.atom: now[group.name][turn] for group in self.groups},
                {},
                {},
                tuple(bool(now[name][turn]) for name, _, _ in self.modules),
            )
            for turn in range(self.scan.length)
        ]
        places = tuple((program, region) for _, program, region in self.modules)
        if any(rows[turn] != rows[kept[0]] for turn in kept):
            made = Turns(self.scan.axis, places, rows, kept)
            return dataclasses.replace(sizes, turns={**sizes.turns, id(self.scan.op): made})
        made = Turns(self.scan.axis, places, [], kept)
        if kept:
            sizes = dataclasses.replace(sizes.at(made, rows[kept[0]]), turns=sizes.turns)
        if len(kept) < self.scan.length:
            sizes = dataclasses.replace(sizes, sizes={**sizes.sizes, self.scan.axis: len(kept)})
        return dataclasses.replace(sizes, turns={**sizes.turns, id(self.scan.op): made})


def _stacked(widths: list[Width]) -> Width | None:
    """The widths of all turns as one, with the turns in front; None where their tables differ."""
    first = widths[0]
    if any((w.table.counts, w.table.values) != (first.table.counts, first.table.values) for w in widths):
        return None
    # Negative positions, since the first turn's decision is another one where it is read outside of the scan.
    names = [tuple((name, None if i is None else -1 - i) for name, i in first.table.names)]
    columns = list(zip(*(w.table.names for w in widths), strict=True))
    values: dict[tuple[str, int | None], Any] = {
        name: jnp.stack([jnp.asarray(w.values[own]) for w, own in zip(widths, column, strict=True)])
        for name, column in zip(names[0], columns, strict=True)
    }
    return Width(dataclasses.replace(first.table, names=names[0]), values)


def _of_turns(function: Callable[[Width], Any], widths: list[Width]) -> Any:
    """A function of the widths of all turns, with the turns in front."""
    stacked = _stacked(widths)
    if stacked is None or stacked.is_fixed:
        return jnp.stack([jnp.asarray(function(w)) for w in widths])
    return jax.vmap(function)(stacked)


def _size(mask: Any) -> Any:
    """The active, or expected, number of positions of masks."""
    return mask.sum(-1) if mask.dtype != np.dtype(bool) else mask.sum(-1, dtype=np.int32)


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


@dataclasses.dataclass(frozen=True)
class _Products:
    """Counts the multiply-accumulates of a supernet's products."""

    layouts: Any
    net: Supernet
    scans: dict[int, _ByTurn]
    borders: Any

    def count(self, program: Program, turn: int | None) -> list[Table]:
        """Of each product of a program, or of one turn of a scan."""
        found = []
        tables, gates = self.net._tables(turn), self.net._gates(turn)
        for op in program.operations:
            gate = _gate_of(op, gates)
            if op.bodies:
                inner = [(1, gate, table) for body in op.bodies for table in self.count(body, turn)]
                if op.name in ("while", "cond") and inner:
                    raise ValueError(
                        f"{'/'.join(op.scope)} has products in a lax.{op.name}, and the traced program does "
                        "not say how many of them run."
                    )
                if own := self.scans.get(id(op)):
                    each = [
                        (own.runs(self.net._gates(t)), self.count(own.scan.body, t))
                        for t in range(own.scan.length)
                    ]
                    inner = [(1, combine(operator.mul, gate, runs), x) for runs, some in each for x in some]
                elif op.name == "scan":
                    inner = [(op.eqn.params["length"], gate, table) for _, _, table in inner]
                found += [combine(lambda on, n, t=times: on * n * t, on, table) for times, on, table in inner]
            elif op.name in products.PRODUCTS or op.name in products.SPARSE:
                found.append(combine(operator.mul, gate, _product(op, self.layouts, tables, self.borders)))
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

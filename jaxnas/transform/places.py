"""The effect of decisions on groups and modules: sizes, and modules that are skipped."""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxnas.axes.groups import Group, Groups
from jaxnas.choice import Choice, nearest
from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.width import Table, Width, width
from jaxnas.space import Space
from jaxnas.transform import regions, turns


@dataclasses.dataclass(frozen=True)
class Skip:
    """Each module that a pattern matches may be left out, by a decision of its own.

    Example:
      >>> places = {"blocks_*": Skip()}  # for `jaxnas.supernet`: a decision "keep" or "skip" for each block
    """


@dataclasses.dataclass(frozen=True, init=False)
class Depth:
    """How many of the modules that a pattern matches run.

    Attributes:
      options: numbers of modules.
      order: the modules by importance, most important first; those that run keep their places in the network.
        None for the first ones.

    Example:
      >>> places = {"blocks_*": Depth(8, 10, 12)}  # for `jaxnas.supernet`: the first blocks are kept
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

    Example:
      >>> places = {"blocks_*/hidden": Size(lambda ratio, width: int(ratio * width))}
      >>> decisions = {"ratio": Choice(1.0, 2.0).repeat(2)}  # of `jaxnas.supernet`, beside a group "width"
    """

    function: Callable[..., int]

    @property
    def decisions(self) -> tuple[str, ...]:
        """The names of the decisions."""
        return tuple(inspect.signature(self.function).parameters)


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """The effect of decisions at one place of the network.

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
        if any(i is not None and i >= (space.choices[name].length or 0) for name, i in self.decisions):
            return None
        return tuple(name if position is None else (name, position) for name, position in self.decisions)

    def width(self, space: Space, read: Decisions) -> Width:
        """The size, or whether the module runs, in an architecture of a space; 0 beyond the depth."""
        found = self.within(space)
        return width(lambda: 0) if found is None else width(self.function, *(read[key] for key in found))

    def table(self, space: Space) -> Table:
        """The size, or whether the module runs, over the decisions of a space."""
        return self.width(space, Decisions(space, None, initializing=True)).table

    def by_options(self, space: Space) -> Any:
        """Entries of `table` by options as text: {"2": 8, "4": 16}, of two decisions {"2": {"3": 24}}."""
        if self.within(space) is None:
            return 0
        rows = [space.choices[name].options_at(position or 0) for name, position in self.decisions]

        def below(given: tuple[Any, ...]) -> Any:
            if len(given) == len(rows):
                return int(self.function(*given))
            return {str(option): below((*given, option)) for option in rows[len(given)]}

        return below(())


def places_of(
    groups: Groups,
    choices: Mapping[str, Choice | Size | Skip | Depth],
    decisions: Mapping[str, Choice],
    shared: Sequence[str],
) -> tuple[dict[str, Choice], tuple[Place, ...]]:
    """The decisions of a space, by name, and what they do; see `jaxnas.supernet`."""
    for name, one in (*choices.items(), *decisions.items()):
        kinds = Choice | Size | Skip | Depth if name in choices else Choice
        if not isinstance(one, kinds):
            raise TypeError(
                f"{name!r} is {one!r}, expected a jaxnas.Choice, such as Choice(8, 16)"
                f"{', or a Size, Skip() or Depth(...)' if name in choices else ''}."
            )
    shared = [shared] if isinstance(shared, str) else shared
    for pattern in shared:
        if pattern not in choices:
            raise ValueError(
                f"shared has {pattern!r}, which is no pattern of the choices{nearest(pattern, choices)}"
            )
    named: dict[str, Choice] = dict(decisions)
    places: list[Place] = []
    for pattern, choice in choices.items():
        if isinstance(choice, Skip | Depth):
            places += _skipped(groups, pattern, choice, named, pattern in shared)
        elif isinstance(choice, Size):
            places += _computed(groups, pattern, choice, named)
        else:
            places += _chosen(groups, pattern, choice, named, pattern in shared)
    chosen: dict[str, list[int | None]] = defaultdict(list)
    for place in places:
        chosen[place.name].append(place.turn)
    for name, found in chosen.items():
        if len(set(found)) < len(found) or (None in found and len(found) > 1):
            raise ValueError(f"{name!r} is matched by more than one pattern.")
    return _conditional(groups, named, places), tuple(places)


def _conditional(groups: Groups, named: dict[str, Choice], places: list[Place]) -> dict[str, Choice]:
    """Choices of groups within modules that may be skipped, active where these run."""
    modules = {place.decisions[0]: place for place in places if place.name not in groups.groups}
    depths: dict[str, list[Place]] = defaultdict(list)
    for place in places:
        if isinstance(place.function, _Ranked) and place.function.in_order:
            depths[place.decisions[0][0]].append(place)
    made = dict(named)
    for name, choice in named.items():
        if choice.length is None or choice.active or choice.condition:
            continue
        sizes = [place for place in places if place.name in groups.groups]
        groups_at = [[one for one in sizes if (name, i) in one.decisions] for i in range(choice.length)]
        for skip in {key[0] for key in modules}:
            inside = [modules.get((skip, i)) for i in range(choice.length)]
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
    group, parts = groups[place.name], tuple(module.name.split("/"))
    if module.turn is None:
        return all(path[1 : len(parts) + 1] == parts for path, _ in group.places)
    traced = groups.traced(groups.inputs, False)
    return place.turn == module.turn and turns.only_inside(
        traced, turns.scan_of(traced, group.atom), group.atom, module.name
    )


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
        try:
            scan, _ = (turns.scan_of(groups.traced(groups.inputs, x), match.atom) for x in (False, True))
        except ValueError as error:
            raise ValueError(
                f"{pattern!r} has {length} sizes for {len(matches)} group{'s' * (len(matches) > 1)}, and "
                f"{match.name} has one size in all turns: {error}."
            ) from error
        found += [(match, turn) for turn in range(scan.length)]
    count = found[-1][1] + 1 if shared else len(found)
    if length != count:
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


def _chosen(
    groups: Groups, pattern: str, choice: Choice, named: dict[str, Choice], shared: bool
) -> list[Place]:
    matches = _matching(groups, pattern)
    for group, option in itertools.product(matches, choice.options):
        if not isinstance(option, int) or not 1 <= option <= group.size:
            raise ValueError(
                f"{pattern!r}: {option!r} is no size of {group.name}, which has {group.size}: expected ints "
                f"from 1 to {group.size}."
            )
        if group.kind == "kernel" and (group.size - option) % 2:
            raise ValueError(
                f"{pattern!r}: a kernel of {option} has no common center with the {group.size} of "
                f"{group.name}."
            )
    single = len(matches) == 1 or shared
    named[pattern] = choice if single or choice.length is not None else choice.repeat(len(matches))
    positions = _positions(groups, pattern, matches, named[pattern].length, shared)
    return [Place(match.name, ((pattern, i),), _itself, turn) for match, turn, i in positions]


def _computed(groups: Groups, pattern: str, size: Size, named: dict[str, Choice]) -> list[Place]:
    matches = _matching(groups, pattern)
    for name in size.decisions:
        if name not in named:
            raise ValueError(f"{pattern} depends on {name!r}, which is no decision{nearest(name, named)}")
    lengths = {named[name].length for name in size.decisions} - {None}
    found: list[tuple[Group, int | None, int | None]] = [(m, None, i) for i, m in enumerate(matches)]
    if len(lengths) == 1 and lengths != {len(matches)}:
        found = _positions(groups, pattern, matches, lengths.pop(), False)
    places = []
    for group, turn, number in found:
        reads = [(name, None if named[name].length is None else number) for name in size.decisions]
        for given in itertools.product(*(named[name].options_at(i or 0) for name, i in reads)):
            made = size.function(*given)
            if not isinstance(made, int | np.integer) or not 1 <= made <= group.size:
                raise ValueError(
                    f"{group.name} has the size {made!r} with {dict(zip(size.decisions, given, strict=True))}"
                    f": expected an int from 1 to {group.size}."
                )
        places.append(Place(group.name, tuple(reads), size.function, turn))
    return places


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
        one = named[pattern].length is None
        return [
            Place(name, ((pattern, None if one else i),), _runs, turn)
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

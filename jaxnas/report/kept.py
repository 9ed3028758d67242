"""The share of each size that an architecture keeps: a heat map of blocks by kind of place.

A place is a size of the network that decisions set, or a module that they may leave out. Its row is the block
that it is in, as layers_3, and its column is what is left of its name, as mlp/hidden. So thirty layers are a
matrix.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from jaxnas.report import vega, words
from jaxnas.report.result import Result

_NUMBERED = re.compile(r"^(.*?)(\d+)$")


@dataclasses.dataclass(frozen=True)
class Kept:
    """The size kept at a place.

    Attributes:
      module: that it is in, or that may be left out; () of a size of the whole network.
      kind: of the size, as "hidden", or "module".
      size: in the whole network; 1 of a module.
      kept: of the size; 0 where the module does not run.
      turn: of the scan that the place is in, or None.
    """

    module: tuple[str, ...]
    kind: str
    size: int
    kept: int
    turn: int | None

    @property
    def name(self) -> str:
        """The whole name of the place, as "layers/up/hidden[2]"."""
        parts = "/".join((*self.module, *([self.kind] if self.kind != "module" else [])))
        return parts if self.turn is None else f"{parts}[{self.turn}]"

    @property
    def text(self) -> str:
        """The size in words, as "8 of 16 · 50 %"."""
        if not self.kept or self.kind == "module":
            return "runs" if self.kept else "skipped"
        share = words.percent(self.kept / self.size, 0)
        return f"{words.count(self.kept)} of {words.count(self.size)} · {share}"

    def inside(self, other: Kept) -> bool:
        """Whether a module that may be left out is around this place."""
        depth, same = len(other.module), other.turn in (None, self.turn)
        return other.kind == "module" and same and self.module[:depth] == other.module


def places_of(result: Result) -> Mapping[str, Any]:
    """The places that a result has of a transformed network, by name; {} of another network."""
    network = result.config.get("network")
    places = network.get("places") if isinstance(network, Mapping) else None
    right = isinstance(places, Mapping) and all(isinstance(one, Mapping) for one in places.values())
    return places if right else {}


def kept_of(places: Mapping[str, Any], architecture: Mapping[str, Any]) -> list[Kept]:
    """The size kept at each place, in the order of the places.

    Args:
      places: as `Supernet.described` has them.
      architecture: option values by choice.
    """
    found = []
    for one in places.values():
        sizes = one["kept"]
        for name, position in one["decisions"]:
            value = architecture.get(name)
            if position is not None:
                value = value[position] if isinstance(value, list) and position < len(value) else None
            sizes = sizes.get(str(value), 0) if isinstance(sizes, Mapping) else sizes
        module = tuple(part for part in one["module"].split("/") if part)
        found.append(Kept(module, one["kind"], one["size"], sizes, one["turn"]))
    out = [gate for gate in found if gate.kind == "module" and not gate.kept]
    return [dataclasses.replace(one, kept=0) if any(map(one.inside, out)) else one for one in found]


def beside(places: Mapping[str, Any], architecture: Mapping[str, Any]) -> list[str]:
    """The decisions that set no place, each with its value: those that the module has itself."""
    drawn = {name for one in places.values() for name, _ in one["decisions"]}
    rest = [name for name in architecture if name not in drawn]
    return [f"{words.plain(name)} {words.show(architecture[name])}" for name in rest]


def rows_of(found: Sequence[Kept]) -> dict[str, dict[str, Kept]]:
    """The places by block and by column; those of the whole network are in the block "all blocks"."""
    inner = [one for one in found if one.module or one.turn is not None]
    named: dict[str, dict[str, Kept]] = defaultdict(dict)
    for one in found:
        if not (one.module or one.turn is not None):
            named["all blocks"][one.kind] = one
    for one, depth in zip(inner, _blocks(inner), strict=True):
        block, rest = "/".join(one.module[:depth]), one.module[depth:]
        if one.turn is not None:
            block = f"{block}[{one.turn}]" if block else f"turn {one.turn}"
        named[block]["/".join(rest if one.kind == "module" else (*rest, one.kind)) or "block"] = one
    return dict(named)


def _blocks(inner: Sequence[Kept]) -> list[int]:
    """For each place the length of its block's path.

    A block is numbered and has siblings, and no module that may be left out is cut. In a scan it is a turn.
    """
    siblings: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for one in inner:
        for stop, part in enumerate(one.module):
            if match := _NUMBERED.match(part):
                siblings[*one.module[:stop], match[1]].add(one.module[: stop + 1])
    several = {block for blocks in siblings.values() if len(blocks) > 1 for block in blocks}
    gates = {one.module for one in inner if one.kind == "module"}
    depths = []
    for one in inner:
        if one.turn is not None:
            scan = [x.module for x in inner if x.turn is not None and x.module[:1] == one.module[:1]]
            depths.append(len(os.path.commonprefix([list(module) for module in scan])))
            continue
        stops = [stop for stop in range(1, len(one.module) + 1) if one.module[:stop] in several]
        left_out = [stop for stop in stops if one.module[:stop] in gates]
        depths.append(max(left_out or stops or [len(one.module)]))
    return depths


def chart(places: Mapping[str, Any], architecture: Mapping[str, Any]) -> vega.Spec:
    """The heat map as a Vega-Lite chart, with a cell for each place."""
    cells = [
        vega.Cell(words.plain(column), block, one.kept / one.size, one.text, one.name)
        for block, columns in rows_of(kept_of(places, architecture)).items()
        for column, one in columns.items()
    ]
    return vega.heat(cells, "kept")


def kept_svg(net: Any, arch: Any) -> str:
    """The sizes that an architecture keeps of a transformed network, as a picture.

    Args:
      net: of `jaxnas.supernet`.
      arch: a hard architecture of its space.

    Returns:
      The text of an SVG file.

    Raises:
      TypeError: another network, of which nothing of this kind is known.
    """
    if not hasattr(net, "described"):
        raise TypeError(f"kept_svg draws networks of jaxnas.supernet; got a {type(net).__name__}.")
    return vega.to_svg(chart(net.described()["places"], net.space.to_dict(arch)))

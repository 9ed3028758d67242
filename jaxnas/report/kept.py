"""A picture of what an architecture keeps of a network that was transformed: a row for each module.

A place is a size of the network that decisions set, or a module that they may leave out. Its row is the block
that it is in, as layers_3, and its column is what is left of its name, as mlp/hidden. So thirty layers are a
matrix, and a network without blocks is a list. A bar is as long, and as dark, as the share that is kept.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxnas.report import style, svg, words
from jaxnas.report.document import fixed
from jaxnas.report.result import Result

# In px: a bar, its height, a letter, a column's margin, and the lines above the rows.
BAR, THICK, LETTER, GAP, HEAD = 84, 9, 6.9, 22, 40
_NUMBERED = re.compile(r"^(.*?)(\d+)$")


@dataclasses.dataclass(frozen=True)
class Kept:
    """What is kept at a place.

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
    def share(self) -> float:
        """The part that is kept."""
        return self.kept / self.size

    def inside(self, other: Kept) -> bool:
        """Whether a module that may be left out is around this place."""
        depth, same = len(other.module), other.turn in (None, self.turn)
        return other.kind == "module" and same and self.module[:depth] == other.module


@dataclasses.dataclass(frozen=True)
class Row:
    """A block of the network.

    Attributes:
      name: of the block.
      runs: whether it is not left out.
      cells: by column.
    """

    name: str
    runs: bool
    cells: Mapping[str, Kept]


def places_of(result: Result) -> Mapping[str, Any]:
    """The places that a result has of a transformed network, by name; {} of another network."""
    network = result.config.get("network")
    places = network.get("places") if isinstance(network, Mapping) else None
    right = isinstance(places, Mapping) and all(isinstance(one, Mapping) for one in places.values())
    return places if right else {}


def kept_of(places: Mapping[str, Any], architecture: Mapping[str, Any]) -> list[Kept]:
    """What an architecture keeps at each place, in the order of the places.

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


def rows_of(found: Sequence[Kept]) -> list[Row]:
    """The places within modules as rows, one for each block."""
    inner = [one for one in found if one.module or one.turn is not None]
    blocks = _blocks(inner)
    named: dict[str, list[tuple[str, Kept]]] = defaultdict(list)
    for one, depth in zip(inner, blocks, strict=True):
        block, rest = "/".join(one.module[:depth]), one.module[depth:]
        if one.turn is not None:
            block = f"{block}[{one.turn}]" if block else f"turn {one.turn}"
        named[block].append(("/".join(rest if one.kind == "module" else (*rest, one.kind)), one))
    columns = {column for cells in named.values() for column, _ in cells}
    rows = []
    for block, cells in named.items():
        own = {
            column: one
            for column, one in cells
            # The rest of a module that is left out says so.
            if column and not (one.kind == "module" and any(x.startswith(f"{column}/") for x in columns))
        }
        rows.append(Row(block, all(one.kept for column, one in cells if not column), own))
    return rows


def draw(places: Mapping[str, Any], architecture: Mapping[str, Any]) -> str:
    """The drawing as HTML."""
    size, about, body = _drawn(kept_of(places, architecture))
    return fixed("kept", size, "What is kept of the network", about, body)


def kept_svg(net: Any, arch: Any) -> str:
    """What an architecture keeps of a transformed network, as a picture.

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
    places = net.described()["places"]
    size, about, body = _drawn(kept_of(places, net.space.to_dict(arch)))
    rules = f"<style>{style.COLOURS}{style.KEPT}</style>"
    return svg.figure("kept", size, "What is kept of the network", about, "".join([rules, *body]))


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


def _drawn(found: Sequence[Kept]) -> tuple[tuple[float, float], str, list[str]]:
    """The size of the drawing, what it shows in words, and its elements."""
    rows = rows_of(found)
    shared = [one for one in found if not one.module and one.turn is None]
    names = [words.plain(one.kind) for one in shared] + [row.name for row in rows]
    left, y = 14 + LETTER * max(map(len, names), default=0), 2.0
    body, right = [], left + LETTER * len("skipped")
    for one in shared:
        text = _amount(one)
        body += [svg.text(2, y + 15, words.plain(one.kind), "name"), *_bar(one, left, y + 10, text)]
        right, y = max(right, left + BAR + 10 + LETTER * len(text)), y + 24
    y += 8 if shared else 0
    columns = _columns(rows)
    edge, edges = left, {}
    for column in columns:
        edges |= dict.fromkeys(column.names, edge)
        body += [svg.text(edge, y + 12, column.label, "name"), svg.text(edge, y + 28, column.of, "note")]
        right = max(right, edge + column.width)
        edge += column.width + GAP
    y += HEAD if any(column.of for column in columns) else 24 if columns else 0
    text_of = {name: text for column in columns for name, text in column.texts.items()}
    step = 20 if len(rows) > 12 else 26
    for row in rows:
        middle = y + step / 2
        body.append(svg.text(2, middle + 4, row.name, "name" if row.runs else "name gone"))
        for number, (name, one) in enumerate(row.cells.items()):
            said = row.runs or number == 0  # "skipped" once
            body += _bar(one, edges[name], middle, text_of[name](one) if said else "")
        if not row.cells:
            body.append(svg.text(left, middle + 4, "runs" if row.runs else "skipped", "note"))
        y += step
    about = [f"{words.plain(one.kind)} {_amount(one)}" for one in shared]
    for row in rows:
        cells = ", ".join(f"{words.plain(name)} {_amount(one)}" for name, one in row.cells.items())
        about.append(f"{row.name}: {'skipped' if not row.runs else cells or 'runs'}")
    return (right + 4, y + 4), "; ".join(about), ['<g class="kept">', *body, "</g>"]


@dataclasses.dataclass(frozen=True)
class _Column:
    """What stands in one column: one kind of place, or all where no row has more than one."""

    label: str
    of: str  # the size in the whole network, where it is one
    width: float
    texts: Mapping[str, Callable[[Kept], str]]

    @property
    def names(self) -> list[str]:
        return list(self.texts)


def _columns(rows: Sequence[Row]) -> list[_Column]:
    cells: dict[str, list[Kept]] = defaultdict(list)
    for row in rows:
        for name, one in row.cells.items():
            cells[name].append(one)

    def column(label: str, of: str, names: Sequence[str], text: Callable[[Kept], str]) -> _Column:
        longest = max(len(text(one)) for name in names for one in cells[name])
        wide = BAR + 10 + LETTER * max(longest, len("skipped"))
        return _Column(label, of, max(wide, LETTER * len(label)), dict.fromkeys(names, text))

    if len(cells) > 1 and all(len(row.cells) <= 1 for row in rows):
        return [column("kept", "", list(cells), functools.partial(_amount, kind=True))]
    ends = {name.rpartition("/")[2] for name in cells}
    made = []
    for name, own in cells.items():
        label = words.plain(name.rpartition("/")[2] if len(ends) == len(cells) else name)
        sizes = {one.size for one in own if one.kind != "module"}
        text = functools.partial(_amount, full=len(sizes) > 1)
        made.append(column(label, f"of {svg.count(*sizes)}" if len(sizes) == 1 else "", [name], text))
    return made


def _amount(one: Kept, full: bool = True, kind: bool = False) -> str:
    """What is kept in words, as "8 of 16 · 50 %"; with `kind`, "8 of 16 channels · 50 %"."""
    if not one.kept or one.kind == "module":
        return "runs" if one.kept else "skipped"
    whole = f" of {svg.count(one.size)}" if full else ""
    unit = f" {words.plain(one.kind)}" if kind else ""
    return f"{svg.count(one.kept)}{whole}{unit} · {svg.percent(one.share, 0)}"


def _bar(one: Kept, x: float, middle: float, text: str) -> list[str]:
    """A bar over its rail, and the text beside it; of what is left out, a hollow rail."""
    place = "/".join((*one.module, *([one.kind] if one.kind != "module" else [])))
    title = f"{place}{'' if one.turn is None else f'[{one.turn}]'}: {_amount(one)}"
    top = middle - THICK / 2
    out = [svg.rect(x, top, BAR, THICK, "rail" if one.kept else "rail none", 2.5, title)]
    if one.kept:
        dark = 0.35 + 0.65 * one.share
        out.append(f'<g opacity="{dark:.2f}">{svg.rect(x, top, BAR * one.share, THICK, "bar", 2.5)}</g>')
    return [*out, svg.text(x + BAR + 10, middle + 4, text, "value" if one.kept else "note")]

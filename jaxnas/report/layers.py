"""A picture of layers that are additions or attentions, with an operation on each of their inputs.

AutoAttend (Guan et al., ICML 2021, section 4.1): the first input of a layer comes from the layer before, and
the others come from one earlier layer. The chain runs straight down. What skips layers runs in lanes at the
right: a line leaves its source, goes down a lane that belongs to this source, and turns to each layer that
takes it. Any space with these decisions is drawn, whatever the network is called.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxnas.report import svg, words
from jaxnas.report.document import fixed

# In px: a box, the distance between rows, the middle of the chain, a letter of a label, and between lanes.
BOX, HEIGHT, ROW, CHAIN, LETTER, LANE = 116, 46, 76, 59, 6.9, 12
# The inputs of a layer beside the first, by its kind, and the operation that stands for none.
KINDS = {"addition": ("second",), "attention": ("key", "value")}
ZERO = "zero"


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer.

    Attributes:
      kind: "addition" or "attention".
      source: the layer that the other inputs come from; 0 is the input of the network.
      first: the operation on the output of the layer before.
      others: (role, operation) of the other inputs: "second", or "key" and "value".
    """

    kind: str
    source: int
    first: str
    others: tuple[tuple[str, str], ...]

    @property
    def joined(self) -> bool:
        """Whether anything comes from the source: an addition may have nothing but its first input."""
        return any(operation != ZERO for _, operation in self.others)


def layers_of(architecture: Mapping[str, Any], choices: Mapping[str, Any]) -> list[Layer]:
    """The layers of an architecture; [] where its space does not have the decisions of such layers."""
    kinds = words.options_of(choices.get("layer", {}))
    roles = {"source", "first", *(role for kind in kinds for role in KINDS.get(kind, ()))}
    if not (kinds and set(kinds) <= set(KINDS) and roles <= set(choices)):
        return []
    # What counts in no layer is left out of an architecture.
    table: dict[str, Any] = {name: architecture.get(name, []) for name in ("layer", *roles)}
    if not all(isinstance(values, list) for values in table.values()):
        return []
    found = []
    for i in range(len(table["layer"])):
        # Decisions that do not count are None, and are left out at the end of a list.
        row: dict[str, Any] = {name: values[i] if i < len(values) else None for name, values in table.items()}
        others = tuple((role, row[role]) for role in KINDS.get(row["layer"], ()))
        below = isinstance(row["source"], int) and 0 <= row["source"] <= i
        named = all(isinstance(name, str) for name in (row["first"], *(name for _, name in others)))
        if not (others and below and named):
            return []
        found.append(Layer(row["layer"], row["source"], row["first"], others))
    return found


def lanes(layers: Sequence[Layer]) -> dict[int, int]:
    """The lane of each source that is used by a later layer, 0 being the innermost.

    A source needs its lane from itself to the last layer that takes it; the shortest ones are innermost.
    """
    last = {one.source: number for number, one in enumerate(layers, 1) if one.joined}
    taken: list[list[tuple[int, int]]] = []
    found = {}
    for start, end in sorted(last.items(), key=lambda pair: (pair[1] - pair[0], pair[0])):
        free = (i for i, spans in enumerate(taken) if all(end < a or b < start for a, b in spans))
        lane = next(free, len(taken))
        taken += [[]] if lane == len(taken) else []
        taken[lane].append((start, end))
        found[start] = lane
    return found


def draw(layers: Sequence[Layer]) -> str:
    """The drawing as HTML: the input at the top, and the last layer at the bottom."""
    lane_of = lanes(layers)
    longest = max(len(_label(*other)) for one in layers for other in one.others)
    stop = BOX + 26 + LETTER * (longest + len("from input"))  # the right end of the labels
    body = [_lines(layers, source, lane, stop + 14) for source, lane in lane_of.items()]
    body.append(_box(0, "input", "box", "value"))
    for number, one in enumerate(layers, 1):
        body += _layer(number, one, stop)
    about = "; ".join(_about(number, one) for number, one in enumerate(layers, 1))
    size = (stop + 20 + LANE * max(lane_of.values(), default=0), _y(len(layers)) + HEIGHT + 2)
    return fixed("layers", size, "The layers of the found architecture", about, body)


def _layer(number: int, one: Layer, stop: float) -> list[str]:
    """The box of a layer, and its inputs with their operations."""
    attends, y = one.kind == "attention", _y(number)
    looks = ("head", "letter on") if attends else ("box", "value")
    first = f"query {words.plain(one.first)}" if attends else words.plain(one.first)
    out = [
        svg.line([(CHAIN, y - ROW + HEIGHT), (CHAIN, y - 6)], "front"),
        _arrowhead(CHAIN, y, down=True),
        svg.text(CHAIN + 10, y - (ROW - HEIGHT) / 2 + 4, first, "value"),
        _box(number, f"{number} {one.kind}", *looks, _about(number, one)),
    ]
    for (role, operation), at in zip(one.others, _heights(number, one), strict=True):
        there = operation != ZERO
        out.append(svg.text(BOX + 14, at - 5, _label(role, operation), "value" if there else "note"))
        dashes = f'<path class="nothing" d="M{svg.num(stop)} {svg.num(at)}H{BOX + 2}"/>'
        out.append(_arrowhead(BOX + 2, at) if there else dashes)
    if one.joined:
        source = "input" if one.source == 0 else f"{one.source}"
        out.append(svg.text(stop + 4, _heights(number, one)[0] - 5, f"from {source}", "note", "end"))
    return out


def _lines(layers: Sequence[Layer], source: int, lane: int, left: float) -> str:
    """All lines from a source to the layers that take it, down its lane, with rounded corners."""
    x, start, r, n = left + LANE * lane, _y(source) + HEIGHT - 6, 5, svg.num
    lines = [f"M{BOX + 2} {n(start)}H{n(x - r)}Q{n(x)} {n(start)} {n(x)} {n(start + r)}"]
    for number, one in enumerate(layers, 1):
        for (_, operation), at in zip(one.others, _heights(number, one), strict=True):
            if one.source == source and operation != ZERO:
                turn = f"V{n(at - r)}Q{n(x)} {n(at)} {n(x - r)} {n(at)}H{BOX + 8}"
                lines.append(f"M{n(x)} {n(start + r)}{turn}")
    return f'<path class="line lane{lane % 4}" d="{"".join(lines)}"/>'


def _label(role: str, operation: str) -> str:
    """What stands at an edge; the two inputs of an addition play the same role."""
    return words.plain(operation) if role == "second" else f"{role} {words.plain(operation)}"


def _about(number: int, one: Layer) -> str:
    """A layer in words."""
    before = "the input" if number == 1 else f"layer {number - 1}"
    source = "the input" if one.source == 0 else f"layer {one.source}"
    first = f"{'query ' if one.kind == 'attention' else ''}{words.plain(one.first)} of {before}"
    rest = [f"{_label(*other)} of {source}" for other in one.others]
    return f"layer {number}, {one.kind}: {words.listed([first, *rest])}"


def _y(number: int) -> float:
    """The upper edge of a layer's box; number 0 is the input."""
    return 2 + ROW * number


def _heights(number: int, one: Layer) -> list[float]:
    """Where the inputs from the source arrive at a layer, one below the other."""
    return [_y(number) + at for at in ((14, 32) if len(one.others) > 1 else (22,))]


def _box(number: int, label: str, kind: str, ink: str, about: str = "") -> str:
    box = svg.rect(2, _y(number), BOX, HEIGHT, kind, 6, about)
    return box + svg.text(CHAIN, _y(number) + HEIGHT / 2 + 5, label, ink, "middle")


def _arrowhead(x: float, y: float, down: bool = False) -> str:
    """The head of an arrow that ends at a pixel position, pointing down or to the left."""
    back = [(x - 4, y - 8), (x + 4, y - 8)] if down else [(x + 8, y - 4), (x + 8, y + 4)]
    return svg.area([(x, y)], back, "arrowhead")

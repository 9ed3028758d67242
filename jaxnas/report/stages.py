"""A picture of a network in stages: what was chosen for each stage, and for each of its blocks.

A space has stages if its decisions end with the number of one, as `depth_1`, `depth_2` and `width_2` do. A
repeated decision belongs to the blocks of a stage, and any other one to the stage as a whole. Any space with
such decisions is drawn, whatever the network is called.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxnas.report import svg, words
from jaxnas.report.document import fixed

# In px: a block, the distance from one to the next, a line in it, and the line above a stage.
BOX, STEP, LINE, HEAD = 132, 152, 24, 26
LETTER = 7.0


@dataclasses.dataclass(frozen=True)
class Decided:
    """A decision that was made.

    Attributes:
      name: without the number of its stage.
      value: the option.
      share: of the largest option if it is a number, else None.
      place: of the option among all.
    """

    name: str
    value: Any
    share: float | None
    place: int


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
      number: from 1 on.
      most: blocks that it has in the largest network.
      whole: what was decided for all of it, without its depth.
      blocks: what was decided for each of its blocks.
    """

    number: int
    most: int
    whole: tuple[Decided, ...]
    blocks: tuple[tuple[Decided, ...], ...]


def stages_of(architecture: Mapping[str, Any], choices: Mapping[str, Any]) -> list[Stage]:
    """The stages of an architecture; [] where its space has none."""
    found = []
    while svg.is_number(depth := architecture.get(f"depth_{len(found) + 1}")):
        number = len(found) + 1
        names = [name for name in choices if name.endswith(f"_{number}") and name in architecture]
        names.remove(f"depth_{number}")
        repeated = [name for name in names if isinstance(architecture[name], (list, tuple))]
        blocks = []
        for i in range(int(depth)):
            given = ((name, architecture[name][i : i + 1]) for name in repeated)
            blocks.append(tuple(_decided(name, x[0], choices) for name, x in given if x and x[0] is not None))
        whole = tuple(_decided(n, architecture[n], choices) for n in names if n not in repeated)
        options = [x for x in choices[f"depth_{number}"].get("options", ()) if svg.is_number(x)]
        found.append(Stage(number, int(max([*options, depth])), whole, tuple(blocks)))
    return found


def beside(architecture: Mapping[str, Any]) -> list[str]:
    """The decisions that belong to no stage, each with its value."""
    rest = [name for name in architecture if f"depth_{name.rpartition('_')[2]}" not in architecture]
    return [f"{words.plain(name)} {words.show(architecture[name])}" for name in rest]


def draw(stages: Sequence[Stage]) -> str:
    """The drawing as HTML: a row for each stage, with its blocks from left to right."""
    body, y, right = [], 2.0, 0.0
    for stage in stages:
        head, lines = _head(stage), max([len(block) for block in stage.blocks] + [1])
        height = LINE * lines + 8
        body.append(svg.text(2, y + 15, head, "value"))
        for i in range(stage.most):
            x, there = 2 + STEP * i, i < len(stage.blocks)
            if i and there:
                middle = svg.num(y + HEAD + height / 2)
                body.append(f'<path class="wire" d="M{x + BOX - STEP} {middle}h{STEP - BOX}"/>')
            title = f"stage {stage.number}, block {i + 1}"
            if not there:
                body.append(svg.rect(x, y + HEAD, BOX, height, "block-idle", 6, f"{title}: skipped"))
                continue
            body.append(
                svg.rect(x, y + HEAD, BOX, height, "box", 6, f"{title}: {_in_words(stage.blocks[i])}")
            )
            for line, decided in enumerate(stage.blocks[i]):
                body += _line(decided, x + 9, y + HEAD + LINE * line + 18)
        right = max(right, LETTER * len(head), STEP * stage.most)
        y += HEAD + height + 14
    about = "; ".join(f"{_head(stage)}: {'; '.join(map(_in_words, stage.blocks))}" for stage in stages)
    return fixed("stages", (right + 4, y - 10), "The stages of the found architecture", about, body)


def _decided(name: str, value: Any, choices: Mapping[str, Any]) -> Decided:
    # Positions may have options of their own.
    rows = choices[name].get("per_position") or [choices[name].get("options", ())]
    options = list(dict.fromkeys(option for row in rows for option in row))
    share = None
    if svg.is_number(value):
        largest = max([option for option in options if svg.is_number(option)] + [value, 1e-9])
        share = max(0.0, value / largest)
    place = options.index(value) if value in options else 0
    return Decided(words.plain(name.rpartition("_")[0]), value, share, place)


def _head(stage: Stage) -> str:
    """The line above a stage."""
    blocks = f"{len(stage.blocks)} of {stage.most} block{'s' if stage.most > 1 else ''}"
    return ", ".join([f"stage {stage.number}: {blocks}", *([_in_words(stage.whole)] if stage.whole else [])])


def _in_words(decided: Sequence[Decided]) -> str:
    return ", ".join(f"{one.name} {words.show(one.value)}" for one in decided) or "nothing to choose"


def _line(decided: Decided, x: float, y: float) -> list[str]:
    """A decision in a block: a number with a bar over a rail, or a word with a line in its colour."""
    wide, value = BOX - 18, words.plain(words.show(decided.value))
    if decided.share is None:
        return [
            svg.text(x, y, value, "value"),
            svg.rect(x, y + 4, wide, 3, f"block{decided.place % 5}", 1.5),
        ]
    return [
        svg.text(x, y, decided.name, "note"),
        svg.text(x + wide, y, value, "value", "end"),
        svg.rect(x, y + 4, wide, 3, "ghost", 1.5),
        svg.rect(x, y + 4, wide * decided.share, 3, "mlp", 1.5),
    ]

"""How probable each option of each decision is: a heat map, as a PNG, and over time as a GIF.

The options of a repeated choice are rows and its positions columns, as dark as they are probable; the
most probable option of each position is framed, with its probability in per cent.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

from jaxnas.report import svg, words
from jaxnas.report.document import fixed, say, section
from jaxnas.report.read import Run
from jaxnas.report.selection import weights_were_even

CELL, LEFT, TOP, BOTTOM = 46, 118, 44, 30
MOST_FRAMES, WIDEST = 80, 1000
FRAME_MS, LAST_FRAME_MS = 120, 2500

_ABOUT = "A stronger shade is more probable; the most probable option has its per cent"

Probabilities = Mapping[str, Any]


def panel(run: Run) -> str:
    """The section of the probabilities; "" without architecture parameters."""
    selection, choices = run.result.selection, run.result.space.choices
    if selection is None or not selection.probabilities or weights_were_even(run):
        return ""
    text = (
        "The search gave each option a probability, which is shown in per cent after "
        f"{svg.count(selection.steps)} steps. A stronger shade is more probable, and the most probable "
        "option of each decision is framed. In the least decided one that option has "
        f"{svg.percent(selection.confidence)}."
    )
    parts = [say(text)]
    for name, rows in selection.probabilities.items():
        if "length" in choices[name]:
            parts += [f"<h3>{svg.esc(words.plain(name))}</h3>", repeated(name, rows, choices[name])]
    single = {name: row for name, row in selection.probabilities.items() if "length" not in choices[name]}
    parts += ["<h3>choices that are made once</h3>", singles(single, choices)] if single else []
    moving = run.pictures.get("probabilities.gif")
    if moving is not None:
        data = base64.b64encode(moving).decode()
        parts.append(
            '<h3>During the search</h3><img class="motion" alt="The probabilities while the supernet was '
            f'trained" src="data:image/gif;base64,{data}">'
        )
    return section("How probable each option is", *parts)


def labels_of(choice: Mapping[str, Any]) -> list[str]:
    """Names of the options of a choice; numbers where they differ by position."""
    if choice.get("per_position"):
        return [f"option {i + 1}" for i in range(words.width_of(choice))]
    return [words.plain(option) for option in words.options_of(choice)]


def repeated(name: str, rows: Sequence[Sequence[float]], choice: Mapping[str, Any]) -> str:
    """The heat map of a repeated choice, [positions][options]; the last option is in the first row."""
    cell, body, labels = min(56.0, 820 / len(rows)), [], labels_of(choice)
    for column, label in enumerate(labels):
        y = 44 * (len(labels) - 1 - column)
        body.append(svg.text(LEFT, y + 26, label, "value", "end"))
        for position, row in enumerate(rows):
            options = words.options_of(choice, position)
            option = words.plain(options[column]) if column < len(options) else "no option"
            about = f"{words.plain(name)} {position + 1}: {option} {svg.percent(row[column])}"
            body.append(_cell(position, y, cell, row, column, about))
    for position in range(0, len(rows), -(-20 // max(1, int(cell)))):
        x = LEFT + 12 + cell * (position + 0.5)
        body.append(svg.text(x, 44 * len(labels) + 24, position + 1, "tick", "middle"))
    size = (LEFT + 12 + cell * len(rows), 44 * len(labels) + 34)
    title = f"Probabilities of {words.plain(name)}"
    return fixed(f"probabilities-{svg.identifier(name)}", size, title, _ABOUT, body)


def singles(probabilities: Mapping[str, Sequence[float]], choices: Mapping[str, Any]) -> str:
    """The heat map of choices that are not repeated: a row each, with the options' names below the cells."""
    most, body = max(map(len, probabilities.values())), []
    cell = min(110.0, 820 / most)
    for number, (name, row) in enumerate(probabilities.items()):
        y = 62 * number
        body.append(svg.text(LEFT, y + 26, words.plain(name), "value", "end"))
        for column, label in enumerate(labels_of(choices[name])):
            about = f"{words.plain(name)} {label}: {svg.percent(row[column])}"
            body.append(_cell(column, y, cell, row, column, about))
            body.append(svg.text(LEFT + 12 + cell * (column + 0.5), y + 56, label, "tick", "middle"))
    size = (LEFT + 12 + cell * most, 62 * len(probabilities))
    return fixed("probabilities", size, "Probabilities of the choices", _ABOUT, body)


def _cell(place: int, y: float, cell: float, row: Sequence[float], column: int, about: str) -> str:
    """One probability: its shade, a frame, and its per cent if it is the largest of its row."""
    x, value, most = LEFT + 12 + cell * place, row[column], column == _largest(row)
    width = max(cell - 3, 0.5)
    shade = svg.rect(x, y, width, 41, "shade", 0, about)
    frame = svg.rect(x, y, width, 41, "most" if most else "ghost")
    out = f'<g fill-opacity="{value:.3f}">{shade}</g>{frame}'
    kind = "number on" if value > 0.5 else "number"
    number = svg.text(x + cell / 2 - 1, y + 25, f"{100 * value:.0f}", kind, "middle")
    return out + number if most and cell > 19 else out


def _largest(row: Sequence[float]) -> int:
    return max(range(len(row)), key=row.__getitem__)


def trajectory(run: Run) -> list[tuple[int, Probabilities]]:
    """(step, probabilities by choice) in order, the last being the result's."""
    selection = run.result.selection
    if selection is None or not selection.probabilities or weights_were_even(run):
        return []
    moments = [(line["step"], line["probabilities"]) for line in run.of_split("architecture")]
    same = [
        one for one in moments if one[0] < selection.steps and one[1].keys() == selection.probabilities.keys()
    ]
    return [*same, (selection.steps, selection.probabilities)]


def pictures(run: Run) -> dict[str, bytes]:
    """The last moment as PNG and all as GIF, by file name; {} without probabilities."""
    moments, choices = trajectory(run), run.result.space.choices
    if not moments:
        return {}
    # The last moment is always there.
    every = -(-len(moments) // MOST_FRAMES)
    frames = [_frame(values, choices, f"step {step:,}") for step, values in moments[::-1][::every][::-1]]
    png, gif = io.BytesIO(), io.BytesIO()
    frames[-1].save(png, "PNG", optimize=True)
    # Some greys are enough, and a third of the bytes.
    frames = [frame.point(lambda grey: round(grey / 17) * 17) for frame in frames]
    durations = [FRAME_MS] * (len(frames) - 1) + [LAST_FRAME_MS]
    frames[0].save(
        gif, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True
    )
    return {"probabilities.png": png.getvalue(), "probabilities.gif": gif.getvalue()}


def _frame(probabilities: Probabilities, choices: Mapping[str, Any], caption: str) -> Any:
    """A picture of one moment, with the choices from left to right: a greyscale `PIL.Image`."""
    from PIL import Image, ImageDraw, ImageFont

    places, x, y, height = [], 0, TOP, 0
    for name, rows in probabilities.items():
        table = rows if "length" in choices[name] else [rows]
        width = LEFT + CELL * len(table) + 12
        if x and x + width > WIDEST:
            x, y, height = 0, y + height, 0
        places.append((name, table, x, y))
        x, height = x + width, max(height, CELL * words.width_of(choices[name]) + BOTTOM)
    widest = max(left + LEFT + CELL * len(table) + 12 for _, table, left, _ in places)
    image = Image.new("L", (widest, y + height), 255)
    canvas = ImageDraw.Draw(image)
    font, small = ImageFont.load_default(16), ImageFont.load_default(13)
    canvas.text((12, 12), caption, fill=0, font=font)
    for name, table, left, top in places:
        labels, left = labels_of(choices[name]), left + LEFT
        for column, label in enumerate(labels):
            y = top + CELL * (len(labels) - 1 - column)
            canvas.text((left - 10, y + CELL / 2), label[:13], fill=0, font=font, anchor="rm")
            for position, row in enumerate(table):
                x, shade = left + CELL * position, round(255 * (1 - row[column]))
                canvas.rectangle((x, y, x + CELL - 1, y + CELL - 1), fill=shade, outline=170)
                if column == _largest(row):
                    ink = 255 if shade < 128 else 0
                    canvas.rectangle((x + 2, y + 2, x + CELL - 3, y + CELL - 3), outline=ink, width=2)
                    middle = (x + CELL / 2, y + CELL / 2)
                    canvas.text(middle, f"{100 * row[column]:.0f}", fill=ink, font=font, anchor="mm")
        foot = top + CELL * len(labels) + 13
        for position in range(len(table) if "length" in choices[name] else 0):
            middle = (left + CELL * (position + 0.5), foot)
            canvas.text(middle, str(position + 1), fill=90, font=small, anchor="mm")
        canvas.text((left - 10, foot), words.plain(name)[:16], fill=90, font=small, anchor="rm")
    return image

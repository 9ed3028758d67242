"""Pictures of a stack of blocks: how probable each option of each block is, as a PNG and over time as a GIF.

Options are rows and blocks are columns, as dark as they are probable; the most probable option of each
block is framed, with its probability in per cent. Needs Pillow (`pip install 'jaxnas[images]'`).
"""

from __future__ import annotations

import io
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxnas import files

CELL, LEFT, TOP, BOTTOM = 46, 118, 44, 30
MOST_FRAMES = 80
FRAME_MS, LAST_FRAME_MS = 120, 2500


def draw(probabilities: Any, options: Sequence[str], caption: str) -> Any:
    """A picture of one moment.

    Args:
      probabilities: float [blocks, options].
      options: their names, in the order of the last axis; the last is drawn in the first row.
      caption: what stands above.

    Returns:
      A greyscale `PIL.Image`.
    """
    from PIL import Image, ImageDraw, ImageFont

    values = np.asarray(probabilities, np.float64)
    blocks, rows = values.shape
    size = (LEFT + CELL * blocks + 12, TOP + CELL * rows + BOTTOM)
    image = Image.new("L", size, 255)
    canvas = ImageDraw.Draw(image)
    font, small = ImageFont.load_default(16), ImageFont.load_default(13)
    canvas.text((12, 12), caption, fill=0, font=font)
    for row, option in enumerate(reversed(options)):
        y = TOP + CELL * row
        name = option.replace("_", "-")
        canvas.text((LEFT - 10, y + CELL / 2), name, fill=0, font=font, anchor="rm")
        for block in range(blocks):
            x, value = LEFT + CELL * block, values[block, rows - 1 - row]
            shade = round(255 * (1 - value))
            canvas.rectangle((x, y, x + CELL - 1, y + CELL - 1), fill=shade, outline=170)
            if np.argmax(values[block]) == rows - 1 - row:
                ink = 255 if shade < 128 else 0
                canvas.rectangle((x + 2, y + 2, x + CELL - 3, y + CELL - 3), outline=ink, width=2)
                middle = (x + CELL / 2, y + CELL / 2)
                canvas.text(middle, f"{100 * value:.0f}", fill=ink, font=font, anchor="mm")
    for block in range(blocks):
        middle = (LEFT + CELL * (block + 0.5), TOP + CELL * rows + 13)
        canvas.text(middle, str(block + 1), fill=90, font=small, anchor="mm")
    return image


def write_pictures(
    folder: str | os.PathLike, trajectory: Sequence[tuple[int, Any]], options: Sequence[str]
) -> list[pathlib.Path]:
    """Writes probabilities.png, the last moment, and probabilities.gif, all of them.

    Args:
      folder: where they go.
      trajectory: (step, probabilities) in order, at least one; a GIF has 80 of them at most.
      options: names of the options.

    Returns:
      The paths of the PNG and of the GIF.
    """
    folder = pathlib.Path(folder)
    # The last moment is always there.
    every = -(-len(trajectory) // MOST_FRAMES)
    shown = list(trajectory)[::-1][::every][::-1]
    frames = [draw(values, options, f"step {step:,}") for step, values in shown]
    png, gif = io.BytesIO(), io.BytesIO()
    frames[-1].save(png, "PNG", optimize=True)
    # Some greys are enough, and a third of the bytes.
    frames = [frame.point(lambda grey: round(grey / 17) * 17) for frame in frames]
    durations = [FRAME_MS] * (len(frames) - 1) + [LAST_FRAME_MS]
    frames[0].save(
        gif, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True
    )
    paths = [folder / "probabilities.png", folder / "probabilities.gif"]
    for path, picture in zip(paths, (png, gif), strict=True):
        files.write_bytes(path, picture.getvalue())
    return paths

"""Images that stay encoded, each of its own size, until a batch needs them.

Worker processes receive the bytes of files and return pixels of one size, so an image in a batch depends only
on its file and the numbers drawn for it. A run does not record where files lie (`described`).
"""

import collections
import concurrent.futures
import dataclasses
import io
import itertools
import math
import os
import pathlib
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from jaxnas import executors

ATTEMPTS = 10  # Boxes that are drawn until one lies in the image.
_CHUNK = 4  # Images that a worker decodes at a time.
_UNDER_WAY = 256  # Chunks at most that are read or decoded and not yet taken.
_READERS = 16  # Files that are read at once.
_BORDER = 1 / 16  # 256 / 224 in the usual evaluation: what is cut off at each side, as part of an image.
_GAP = 2  # A JPEG is decoded at a part of its size if that is still so many times the size that is needed.
_ORIENTATION, _TURNED = 0x0112, 5  # EXIF: from this value on, height and width are exchanged.
# What Pillow raises for damaged files.
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclasses.dataclass(frozen=True, eq=False)
class Files:
    """The bytes of image files of this machine, by number."""

    root: pathlib.Path
    paths: Sequence[str]  # relative to it

    def described(self) -> dict[str, Any]:
        """The record of them in a run."""
        return {"type": "Files", "paths": self.paths}

    def __getitems__(self, rows: Sequence[int]) -> list[bytes]:
        with concurrent.futures.ThreadPoolExecutor(_READERS) as threads:
            return list(threads.map(lambda row: (self.root / self.paths[row]).read_bytes(), rows))

    def name(self, row: int) -> str:
        """The path of a file, for messages."""
        return str(self.root / self.paths[row])


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """The bytes of the images of a part of a data set that TFDS prepared, by number."""

    source: Any  # of TFDS, which gives examples with "image" as bytes
    what: str  # the part, for messages

    def described(self) -> dict[str, Any]:
        """The record of them in a run."""
        return {"type": "Prepared", "what": self.what}

    def __getitems__(self, rows: Sequence[int]) -> list[bytes]:
        try:
            return [example["image"] for example in self.source.__getitems__(list(rows))]
        except RuntimeError as error:  # of array_record, which does not say whose data these are
            raise OSError(f"{self.what} cannot be read ({error}). Prepare or copy it again.") from error

    def name(self, row: int) -> str:
        """The number of an image in the part, for messages."""
        return f"image {row:,} of {self.what}"


@dataclasses.dataclass(frozen=True, eq=False)
class SourceImages:
    """Images of one size, decoded on demand: indexing by an int array [b] gives uint8 [b, H, W, C].

    These are for evaluation: a sixteenth is cut off at each side, and the largest box in the middle of the
    rest is scaled to the size, which is the usual resizing to 256 and cropping to 224.

    Args:
      records: encoded images of any size.
      size: (H, W, C) of the decoded images; C is 3 for colors, 1 for gray.
      rows: int64 [n], which of the records they are.
      pool: of processes that decode, see `decoding_pool`; None to decode in this one.
    """

    records: Files | Prepared
    size: tuple[int, int, int]
    rows: np.ndarray
    pool: concurrent.futures.Executor | None = None

    dtype = np.dtype(np.uint8)
    ndim = 4

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[n, H, W, C]."""
        return (len(self.rows), *self.size)

    def described(self) -> dict[str, Any]:
        """The record of them in a run."""
        source = {"type": "Decoder", "records": self.records, "shape": self.size}
        return {"type": "SourceImages", "source": source, "rows": self.rows}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: np.ndarray | slice) -> np.ndarray:
        return self.decoded(index)

    def decoded(
        self, index: np.ndarray | slice, draws: np.ndarray | None = None, scale: float = 0.0
    ) -> np.ndarray:
        """Decodes b of the images to uint8 [b, H, W, C]; draws and scale as of `decode`, [b, ATTEMPTS, 4]."""
        rows = self.rows[index].tolist()
        drawn = [None] * len(rows) if draws is None else list(draws)
        chunks = [slice(start, start + _CHUNK) for start in range(0, len(rows), _CHUNK)]
        # The next files are read while the first ones are decoded.
        given = ((self.records.__getitems__(rows[c]), drawn[c], scale, self.size) for c in chunks)
        out = np.empty((len(rows), *self.size), np.uint8)
        try:
            images = itertools.chain.from_iterable(_in_turn(self.pool, given))
            for i, image in enumerate(images):
                if isinstance(image, str):
                    name = self.records.name(rows[i])
                    raise ValueError(f"{name} cannot be decoded: {image}. Copy or remove it.")
                out[i] = image
        except BrokenProcessPool as error:
            raise RuntimeError(
                "A process that decodes images was killed, perhaps out of memory, or by a script that works "
                "on import: put that under `if __name__ == '__main__':`, or set workers=0."
            ) from error
        return out


def _in_turn(pool: concurrent.futures.Executor | None, given: Iterator[tuple]) -> Iterator[list]:
    """Results of workers in order, with enough chunks under way to keep all of them busy."""
    waiting: collections.deque[concurrent.futures.Future] = collections.deque()
    for arguments in given:
        if pool is None:
            yield decode_all(*arguments)
            continue
        waiting.append(pool.submit(decode_all, *arguments))
        if len(waiting) == _UNDER_WAY:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def decoding_pool(workers: int | None) -> concurrent.futures.Executor | None:
    """Processes that decode images, None for one per processor; they begin with the first image."""
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return executors.processes(workers) if workers else None


def decode_all(
    encoded: Sequence[bytes], draws: Sequence[np.ndarray | None], scale: float, shape: tuple[int, int, int]
) -> list[np.ndarray | str]:
    """Decodes some images in a worker; an error becomes a string in the place of its image."""
    out: list[np.ndarray | str] = []
    for data, drawn in zip(encoded, draws, strict=True):
        try:
            out.append(decode(data, shape, drawn, scale))
        except UNREADABLE as error:
            out.append(f"{type(error).__name__}: {error}")
    return out


def decode(
    encoded: bytes, shape: tuple[int, int, int], draws: np.ndarray | None = None, scale: float = 0.08
) -> np.ndarray:
    """Decodes a file to uint8 [H, W, C], by Pillow's bicubic filter; turned as its EXIF data say.

    Args:
      encoded: the content of a file in any format that Pillow reads.
      shape: (H, W, C), C = 1 or 3.
      draws, scale: of a random box, see `random_box`; None for the middle of the image.
    """
    height, width, channels = shape
    with Image.open(io.BytesIO(encoded)) as file:
        turned = file.getexif().get(_ORIENTATION, 1) >= _TURNED
        across, down = file.size[::-1] if turned else file.size
        box = (0.0, 0.0, across, down) if draws is None else random_box(across, down, draws, scale)
        # Large JPEGs come at 1/2, 1/4 or 1/8, where they are scaled down by more than that anyway.
        needed = max(width / (box[2] - box[0]), height / (box[3] - box[1])) * _GAP
        if needed < 1:
            file.draft(None, (math.ceil(file.width * needed), math.ceil(file.height * needed)))
        image = ImageOps.exif_transpose(file).convert("L" if channels == 1 else "RGB")
    bicubic = Image.Resampling.BICUBIC
    if draws is None:
        image = ImageOps.fit(image, (width, height), bicubic, bleed=_BORDER)
    else:
        x, y = image.width / across, image.height / down
        box = (box[0] * x, box[1] * y, min(box[2] * x, image.width), min(box[3] * y, image.height))
        image = image.resize((width, height), bicubic, box=box)
    return np.asarray(image).reshape(shape)


def random_box(width: int, height: int, draws: np.ndarray, scale: float) -> Box:
    """The box of a random resized crop (Szegedy et al. 2015, section 6), as torchvision draws it.

    The first that lies in the image, in whole pixels; if none does, the largest in its middle.

    Args:
      width, height: of the image, in pixels.
      draws: float64 [ATTEMPTS, 4], random numbers in [0, 1): each row is an area, a shape and a place.
      scale: smallest share of the area; the largest is 1. Width / height is from 3/4 to 4/3.
    """
    low, high = 3 / 4, 4 / 3
    for area, shape, x, y in draws.tolist():
        pixels = width * height * (scale + (1 - scale) * area)
        ratio = low * (high / low) ** shape
        w, h = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(x * (width - w + 1)), int(y * (height - h + 1))
            return left, top, left + w, top + h
    w, h = max(min(width, round(height * high)), 1), max(min(height, round(width / low)), 1)
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h

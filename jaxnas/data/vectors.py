"""Vectors of words that were learnt on other texts, as GloVe's (Pennington et al., EMNLP 2014)."""

from __future__ import annotations

import dataclasses
import io
import os
import pathlib
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxnas import files
from jaxnas.data.copies import local_copy
from jaxnas.data.roles import read_only
from jaxnas.data.source_files import decode, find_source, read_bytes
from jaxnas.data.splits import uniform

_WHERE = (
    "It holds the words and vectors of GloVe: a .npz file with `words` (joined by ends of lines, uint8) and"
    " `vectors` (floats [words, dimensions]), or GloVe's own text file, a word and its numbers on each line,"
    " or one of word2vec, with a line of their counts before them"
)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Vectors:
    """A vector for each token of a vocabulary.

    Args:
      name: of the file that they are from.
      table: float32 [V, G]; kept as a read-only view.
      known: bool [V], which tokens the file has. The others have vectors that were drawn.
    """

    name: str
    table: np.ndarray
    known: np.ndarray

    def __post_init__(self):
        if self.table.dtype != np.float32 or self.table.ndim != 2 or self.known.shape != self.table.shape[:1]:
            raise ValueError(
                f"{self.name}: vectors are {self.table.dtype}{list(self.table.shape)} with"
                f" {list(self.known.shape)} marks of what is known; expected float32 [V, G] and [V]"
            )
        object.__setattr__(self, "table", read_only(self.table))
        object.__setattr__(self, "known", read_only(self.known))

    @property
    def dim(self) -> int:
        """G, numbers of a vector."""
        return self.table.shape[1]

    def coverage(self, rows: Mapping[str, Any]) -> float:
        """The share of the words of encoded texts whose vectors are from the file."""
        return float(self.known[rows["tokens"][rows["mask"]]].mean())


def find_vectors(
    name: str, data_dir: str | os.PathLike | None, source_dir: str | os.PathLike | None
) -> pathlib.Path:
    """The file of vectors by its path, or by its name in the folder of original files.

    A file that was found by its name is copied to `data_dir/embeddings`, and found there from then on.

    Raises:
      FileNotFoundError: there is none; the message says where it was looked for.
    """
    if os.sep in name or pathlib.Path(name).suffix in (".npz", ".txt", ".gz", ".xz", ".zip"):
        path = local_copy(name)
        if not path.is_file():
            raise FileNotFoundError(f"embeddings: {path} is no file. {_WHERE}.")
        return path
    if data_dir is None:  # Imported here: TFDS takes a while.
        from tensorflow_datasets.core import constants

        data_dir = constants.DATA_DIR
    names = tuple(f"{name}{end}" for end in ("_vocab.npz", ".npz", ".txt"))
    if source_dir is not None and files.is_remote(data_dir):
        return find_source(local_copy(source_dir), names, _WHERE)
    kept = local_copy(data_dir, "embeddings") / "embeddings"
    if source_dir is None:
        try:
            return find_source(kept, names, _WHERE)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"embeddings {name!r} are not in {kept}: name the folder with their file (source_dir), or"
                f" give its path. {_WHERE}."
            ) from error
    found = find_source(local_copy(source_dir), names, _WHERE)
    content, copy = found.read_bytes(), kept / found.name
    if not copy.is_file() or copy.read_bytes() != content:
        kept.mkdir(parents=True, exist_ok=True)
        files.write_bytes(copy, content)
    return copy


def read_vectors(path: str | os.PathLike, words: Sequence[str], seed: int = 0) -> Vectors:
    """The vectors of words, as they are written or else in lower case, from a file.

    A word that the file does not have gets a vector of independent uniform numbers around 0 with the standard
    deviation of all numbers of the file (as Kim, EMNLP 2014, section 3.3), drawn by the seed.

    Args:
      path: of a file as GloVe's, in text, or in .npz with "words" and "vectors".
      words: V of them.
      seed: of the vectors that are drawn.

    Raises:
      ValueError: the file holds no such vectors, or none of the words.
    """
    table, rows = _read(pathlib.Path(path))
    found = np.array([rows.get(word, rows.get(word.lower(), -1)) for word in words])
    known = found >= 0
    if not known.any():
        raise ValueError(
            f"{path}: has none of the {len(words)} words of the texts, of which one is {words[0]!r}"
        )
    drawn = 2 * uniform(np.random.Philox(key=seed), len(words) * table.shape[1]) - 1
    drawn = drawn.reshape(len(words), -1) * np.sqrt(3) * table.std(dtype=np.float64)  # [V, G]
    return Vectors(
        name=pathlib.Path(path).name,
        table=np.where(known[:, None], table[found], drawn).astype(np.float32),
        known=known,
    )


def _read(path: pathlib.Path) -> tuple[np.ndarray, dict[str, int]]:
    """The vectors of a file, float [words, G], and the row of each word."""
    words, table = _read_npz(path) if path.suffix == ".npz" else _read_lines(path)
    if table.ndim != 2 or len(words) != len(table) or table.dtype.kind != "f" or not table.size:
        raise ValueError(
            f"{path}: has {len(words)} words, and vectors {table.dtype}{list(table.shape)}; expected floats"
            " with a row for each word"
        )
    if not np.isfinite(table).all():
        raise ValueError(f"{path}: some numbers of the vectors are not finite; copy it again")
    return table, {word: row for row, word in enumerate(words)}


def _read_npz(path: pathlib.Path) -> tuple[list[str], np.ndarray]:
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            if missing := {"words", "vectors"} - set(arrays):
                raise ValueError(f"no array {' and '.join(map(repr, sorted(missing)))}")
            return decode(path, arrays["words"].tobytes()).split("\n"), arrays["vectors"]
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: {error}; expected words and vectors. {_WHERE}.") from error


def _read_lines(path: pathlib.Path) -> tuple[list[str], np.ndarray]:
    lines = decode(path, read_bytes(path)).rstrip("\n").split("\n")
    # Files of word2vec begin with how many words there are, and how many numbers of each.
    first = 2 if len(lines) > 1 and re.fullmatch(r"\d+ \d+", lines[0].strip()) else 1
    lines = lines[first - 1 :]
    words, numbers = zip(*(line.partition(" ")[::2] for line in lines), strict=True)
    dim = len(numbers[0].split())

    def row(number: int, text: str) -> Iterable[float]:
        try:
            values = np.array(text.split(), np.float32)
        except ValueError:
            values = np.empty(0)
        if len(values) != dim or not dim:
            expected = (
                f"{dim} numbers behind it, as line {first} is" if dim else "blanks and numbers behind it"
            )
            raise ValueError(
                f"{path}: line {number} is no word with {expected}: {lines[number - first][:60]!r}"
            )
        return values

    return list(words), np.array([row(i, text) for i, text in enumerate(numbers, first)], np.float32)

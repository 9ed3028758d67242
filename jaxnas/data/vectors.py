"""Word vectors of other texts, such as GloVe's (Pennington et al., EMNLP 2014)."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxnas import files
from jaxnas.data.source_files import data_root, find_source, local_copy, read_text
from jaxnas.data.splits import read_only, uniform


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Vectors:
    """A vector for each token of a vocabulary."""

    name: str  # of the file
    table: np.ndarray  # float32 [V, G]; read-only
    known: np.ndarray  # bool [V], tokens that the file has; the others have random vectors

    def __post_init__(self):
        object.__setattr__(self, "table", read_only(self.table))
        object.__setattr__(self, "known", read_only(self.known))

    @property
    def dim(self) -> int:
        """G, numbers of a vector."""
        return self.table.shape[1]

    def coverage(self, rows: Mapping[str, Any]) -> float:
        """The share of the words of encoded texts whose vectors are from the file."""
        return float(self.known[rows["tokens"][rows["mask"]]].mean())


def find_vectors(name: str, data_dir: str | os.PathLike | None) -> pathlib.Path:
    """Finds a file of vectors by its path, or by its name in the folder "embeddings" of prepared data."""
    if os.sep in name or pathlib.Path(name).suffix in (".npz", ".txt", ".gz", ".xz", ".zip"):
        path = local_copy(name)
        if not path.is_file():
            raise FileNotFoundError(f"embeddings={name!r}: {path} is no file.")
        return path
    folder = local_copy(data_root(data_dir), "embeddings") / "embeddings"
    try:
        return find_source(folder, *(f"{name}{end}" for end in ("_vocab.npz", ".npz", ".txt")))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"embeddings={name!r}: {error} Put it there, or give its path.") from error


def read_vectors(path: str | os.PathLike, words: Sequence[str], seed: int = 0) -> Vectors:
    """Reads the vectors of words, as they are written or else in lower case.

    Other words get independent uniform numbers with the standard deviation of the file (as Kim, EMNLP 2014).

    Args:
      path: of an .npz file with `words` (joined by ends of lines, uint8) and `vectors` (floats [words, G]),
        or of GloVe's text file, a word and its numbers in each line, or word2vec's, with a line of their
        counts first.
      words: V of them.
      seed: of the random vectors.
    """
    path = pathlib.Path(path)
    names, table = _read_npz(path) if path.suffix == ".npz" else _read_lines(path)
    if table.ndim != 2 or len(names) != len(table) or table.dtype.kind != "f" or not np.isfinite(table).all():
        raise ValueError(
            f"{path} has {len(names)} words, and vectors {table.dtype}{list(table.shape)}; expected a row of "
            "finite floats for each word."
        )
    rows = {name: row for row, name in enumerate(names)}
    found = np.array([rows.get(word, rows.get(word.lower(), -1)) for word in words])
    known = found >= 0
    if not known.any():
        raise ValueError(f"{path} has none of the {len(words)} words of the texts, such as {words[0]!r}.")
    drawn = 2 * uniform(np.random.Philox(key=seed), len(words) * table.shape[1]) - 1
    drawn = drawn.reshape(len(words), -1) * np.sqrt(3) * table.std(dtype=np.float64)  # [V, G]
    vectors = np.where(known[:, None], table[found], drawn).astype(np.float32)
    return Vectors(name=path.name, table=vectors, known=known)


def _read_npz(path: pathlib.Path) -> tuple[list[str], np.ndarray]:
    arrays = files.read_arrays(path)
    if missing := {"words", "vectors"} - set(arrays):
        raise ValueError(f"{path} has no array {' and '.join(map(repr, sorted(missing)))}.")
    return arrays["words"].tobytes().decode().split("\n"), arrays["vectors"]


def _read_lines(path: pathlib.Path) -> tuple[list[str], np.ndarray]:
    lines = read_text(path).rstrip("\n").split("\n")
    # Files of word2vec begin with how many words there are, and how many numbers of each.
    first = 2 if len(lines) > 1 and re.fullmatch(r"\d+ \d+", lines[0].strip()) else 1
    words, numbers = zip(*(line.partition(" ")[::2] for line in lines[first - 1 :]), strict=True)
    rows = [text.split() for text in numbers]
    for number, row in enumerate(rows, first):
        if not row or len(row) != len(rows[0]):
            raise ValueError(
                f"{path}: line {number} has {len(row)} numbers behind its word, and line {first} "
                f"{len(rows[0])}."
            )
    try:
        return list(words), np.array(rows, np.float32)
    except ValueError as error:
        raise ValueError(f"{path}: expected a word and numbers in each line ({error}).") from error

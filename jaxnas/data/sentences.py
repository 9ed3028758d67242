"""Texts with labels as token sequences of one length, for classification."""

from __future__ import annotations

import collections
import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from jaxnas.data.labelled import Labelled, make_splits, number_labels, some
from jaxnas.data.source_files import read_text
from jaxnas.data.vocabulary import END_OF_LINE, UNKNOWN, Vocabulary, WordVocabulary


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Sentences(Labelled):
    """Texts with labels, in disjoint splits of "tokens" int32 [n, T] and "mask" bool [n, T].

    The mask is True where there is a word. Behind the end of a text the token is that of `<eos>`.

    Args:
        vocabulary: of the training texts.
        unknown: how many words of each role the vocabulary does not have.
        cut: how many texts of each role are longer than T, of which the end is left out.

    Raises:
        ValueError: tokens that are not integers, or not in the vocabulary, or as `Labelled`.
    """

    vocabulary: Vocabulary
    unknown: Mapping[str, int]
    cut: Mapping[str, int]

    def __post_init__(self):
        super().__post_init__()
        for role, split in self.splits.items():
            tokens, mask = (np.asarray(split.inputs[name]) for name in ("tokens", "mask"))
            if tokens.dtype != np.int32 or mask.dtype != bool or tokens.shape != (len(split), self.length):
                raise ValueError(
                    f"{self.name}: the {role} split has tokens {tokens.dtype}{list(tokens.shape)} and a mask"
                    f" {mask.dtype}{list(mask.shape)}; expected int32 and bool [{len(split)}, {self.length}]"
                )
            if tokens.min() < 0 or tokens.max() >= self.vocabulary.size:
                wrong = tokens.min() if tokens.min() < 0 else tokens.max()
                raise ValueError(
                    f"{self.name}: the {role} split has the token {wrong}; tokens are from 0 to"
                    f" {self.vocabulary.size - 1} in this vocabulary"
                )

    @property
    def length(self) -> int:
        """T, tokens of a text."""
        return self.train.inputs["mask"].shape[1]


def from_tsv(
    path: str | os.PathLike,
    test: str | os.PathLike | None = None,
    *,
    text: str | int = "text",
    label: str | int = "label",
    name: str | None = None,
    classes: Sequence[str] | None = None,
    length: int | None = None,
    max_words: int | None = None,
    encoding: str = "utf-8",
    search_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Sentences:
    """Makes labelled sentences of a file of tab-separated values, plain or compressed.

    A row is a line, and a tab ends a column; quotation marks mean nothing. Words are what stands between
    white space. The vocabulary is that of the rows to train on alone, and other words become `<unk>`.

    Args:
      path: of the rows to train on.
      test: of the rows for the networks that are chosen; None to hold a part of the others out.
      text, label: the columns, by their names in the first line, or both by their numbers from 0 if there is
        no line of names.
      name: of the data; by default that of the file.
      classes: the labels in the order of their numbers; by default those that occur, in alphabetical order.
      length: words of a text, of which the rest is left out; None for the longest text to train on.
      max_words: size of the vocabulary, of the most frequent words; None for all.
      encoding: of the files, as Python names it.
      search_fraction, validation_fraction, test_fraction, seed: as of `from_arrays`.

    Raises:
      FileNotFoundError: no such file.
      ValueError: another encoding (which says at which byte), no such column, a row with another number of
        columns, a text without a word, a label that is in no class, or a class with too few rows.
    """
    name = name or pathlib.Path(path).name
    if isinstance(text, str) != isinstance(label, str):
        raise ValueError(f"from_tsv: text={text!r} and label={label!r}; name both columns, or number both.")
    for option, value in (("length", length), ("max_words", max_words)):
        if value is not None and (type(value) is not int or value < 1):
            raise ValueError(f"from_tsv: {option} is {value!r}, expected a whole number of at least 1.")
    texts, labels = _rows(path, text, label, encoding)
    numbers, classes = number_labels(labels, classes, f"{path}: labels")
    given = {"train": ({"text": np.array(texts, object)}, numbers)}
    if test is not None:
        texts, labels = _rows(test, text, label, encoding)
        numbers, _ = number_labels(labels, classes, f"{test}: labels")
        given["test"] = {"text": np.array(texts, object)}, numbers
    elif not test_fraction > 0:
        raise ValueError(
            f"from_tsv: test_fraction is {test_fraction} and no test file is given; chosen networks are "
            "measured on the test rows, so there must be some."
        )
    fractions = {"test": test_fraction, "validation": validation_fraction, "search": search_fraction}
    splits = make_splits(name, given, fractions, seed, classes)
    words = {role: [str(x).split() for x in split.inputs["text"][:]] for role, split in splits.items()}
    vocabulary = _vocabulary(words["train"], max_words)
    length = length or max(map(len, words["train"]))
    encoded = {role: _encode(texts, vocabulary, length) for role, texts in words.items()}
    [number] = vocabulary.encode(UNKNOWN)
    unknown = {role: int(((x["tokens"] == number) & x["mask"]).sum()) for role, x in encoded.items()}
    cut = {role: sum(len(x) > length for x in texts) for role, texts in words.items()}
    for role in words:
        if unknown[role] or cut[role]:
            logging.info(
                "%s, %s: %d words are unknown, %d texts are cut", name, role, unknown[role], cut[role]
            )
    splits = {role: dataclasses.replace(split, inputs=encoded[role]) for role, split in splits.items()}
    return Sentences(
        name=name, classes=tuple(classes), vocabulary=vocabulary, unknown=unknown, cut=cut, **splits
    )


def _rows(
    path: str | os.PathLike, text: str | int, label: str | int, encoding: str
) -> tuple[list[str], list[str]]:
    """The texts and labels of a file."""
    # Lines are not split at what Unicode also calls an end of a line, which texts may hold.
    lines = [line.removesuffix("\r") for line in read_text(path, encoding).split("\n")]
    if not lines[-1]:
        del lines[-1]
    rows = [line.split("\t") for line in lines]
    header, columns, start = rows[0], len(rows[0]), int(isinstance(text, str))

    def number_of(column: str | int) -> int:
        if not isinstance(column, str):
            return column
        if header.count(column) != 1:
            raise ValueError(
                f"{path}: the first line names {header.count(column)} columns {column!r}; it is "
                f"{some(header)}. Name the columns as text=... and label=..., or number them from 0 if "
                "there is no line of names."
            )
        return header.index(column)

    text, label = number_of(text), number_of(label)
    if not 0 <= min(text, label) <= max(text, label) < columns:
        raise ValueError(
            f"{path} has {columns} columns, which tabs part and which are numbered from 0; got text={text} "
            f"and label={label}."
        )
    wrong = [number for number, row in enumerate(rows, 1) if len(row) != columns]
    if wrong:
        raise ValueError(
            f"{path}: line {wrong[0]} has {len(rows[wrong[0] - 1])} columns, and the first line has "
            f"{columns}; {len(wrong):,} of {len(rows):,} lines differ from it. A tab ends a column, "
            "and each line is one row."
        )
    for number, row in enumerate(rows[start:], start + 1):
        if not row[text].strip() or not row[label].strip():
            missing = "word" if not row[text].strip() else "label"
            raise ValueError(f"{path}: line {number} has no {missing}; remove it or mend it.")
    return [row[text] for row in rows[start:]], [row[label].strip() for row in rows[start:]]


def _vocabulary(texts: Sequence[Sequence[str]], most: int | None) -> WordVocabulary:
    """The words of texts by decreasing frequency, and the two that every vocabulary has."""
    counts = collections.Counter(word for words in texts for word in words)
    for word in (UNKNOWN, END_OF_LINE):
        counts.setdefault(word, 0)
    kept = dict(counts.most_common(most))
    lost = sum(counts.values()) - sum(kept.values())
    for word in (UNKNOWN, END_OF_LINE):
        kept.setdefault(word, counts[word])
    kept[UNKNOWN] += lost
    return WordVocabulary(counts=np.array(list(kept.values()), np.int64), words=tuple(kept))


def _encode(texts: Sequence[Sequence[str]], vocabulary: WordVocabulary, length: int) -> dict[str, np.ndarray]:
    """The tokens int32 [n, T] of texts, filled up with `<eos>`, and where there is a word, bool [n, T]."""
    [end] = vocabulary.encode("\n")
    tokens = np.full((len(texts), length), end, np.int32)
    for row, words in zip(tokens, texts, strict=True):
        kept = words[:length]
        row[: len(kept)] = vocabulary.encode(" ".join(kept))
    lengths = np.array([min(len(words), length) for words in texts])
    return {"tokens": tokens, "mask": np.arange(length) < lengths[:, None]}

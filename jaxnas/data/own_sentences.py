"""Labeled texts of one's own: a file of tab-separated values, or lists."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from jaxnas.choice import nearest
from jaxnas.data.encoding import Encoding
from jaxnas.data.labeled import number_labels, some
from jaxnas.data.sentences import Sentences, make_sentences
from jaxnas.data.source_files import read_text
from jaxnas.files import as_path

_SURROGATE = re.compile("[\ud800-\udfff]")


def from_texts(
    texts: Sequence[str],
    labels: Any,
    *,
    test_texts: Sequence[str] | None = None,
    test_labels: Any = None,
    name: str = "texts",
    classes: Sequence[str] | None = None,
    tokens: str = "words",
    length: int | None = None,
    max_words: int | None = None,
    keep: str = "start",
    search_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Sentences:
    """Makes labeled sentences of lists of texts. The vocabulary is that of the texts to train on alone.

    Args:
      texts: to train on.
      labels: of the texts, integers from 0 or strings.
      test_texts, test_labels: for the networks that are chosen; None to hold a part of the others out.
      name: of the data.
      classes: the labels in the order of their numbers; by default those that occur, in alphabetical order.
      tokens, length, max_words, keep: how texts become tokens, see `data.Encoding`.
      search_fraction, validation_fraction, test_fraction, seed: as of `from_arrays`.

    Raises:
      ValueError: texts without an order, such as a set, or none; another number of labels than of texts; a
        text that is no string, is no valid Unicode or has no token; a label that is in no class, or a class
        with too few texts.
    """
    encoding = Encoding(tokens=tokens, length=length, max_words=max_words, keep=keep)
    if (test_texts is None) != (test_labels is None):
        raise ValueError("from_texts: give test_texts and test_labels, or none of the two.")
    given = {}
    for role, own, its_labels in (("train", texts, labels), ("test", test_texts, test_labels)):
        if own is None and role == "test":
            continue
        if isinstance(own, str | Set | Mapping) or not isinstance(own, Iterable):
            raise ValueError(
                f"from_texts: the {role} texts are a {type(own).__name__}; expected a list of strings, in "
                "the order of their labels."
            )
        own = list(own)
        if not all(isinstance(text, str) for text in own):
            raise ValueError(f"from_texts: the {role} texts are not all strings; expected a list of strings.")
        if not own:
            raise ValueError(f"from_texts: there are no {role} texts.")
        for number, text in enumerate(own, 1):
            if found := _SURROGATE.search(text):
                raise ValueError(
                    f"from_texts: {role} text {number} has half of a surrogate pair, which is no character, "
                    f"{found.group()!r}. It comes from text that was cut or decoded in parts: "
                    "read it again, or leave such characters out."
                )
        count = len(its_labels) if hasattr(its_labels, "__len__") else "no"
        if len(own) != count:
            raise ValueError(f"from_texts: {len(own)} {role} texts and {count} labels of them.")
        given[role] = own, its_labels, f"{name}: {role} labels"
    fractions = {"test": test_fraction, "validation": validation_fraction, "search": search_fraction}
    return _sentences(name, given, classes, fractions, seed, encoding)


def from_tsv(
    path: str | os.PathLike,
    test: str | os.PathLike | None = None,
    *,
    text: str | int = "text",
    label: str | int = "label",
    name: str | None = None,
    classes: Sequence[str] | None = None,
    tokens: str = "words",
    length: int | None = None,
    max_words: int | None = None,
    keep: str = "start",
    encoding: str = "utf-8",
    search_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Sentences:
    """Makes labeled sentences of a file of tab-separated values, plain or compressed.

    A row is a line, and a tab ends a column; quotation marks mean nothing. The vocabulary is that of the rows
    to train on alone, and other words become `<unk>`.

    Args:
      path: of the rows to train on.
      test: of the rows for the networks that are chosen; None to hold a part of the others out.
      text, label: the columns, by their names in the first line, or both by their numbers from 0 if there is
        no line of names.
      name: of the data; by default that of the file.
      classes: the labels in the order of their numbers; by default those that occur, in alphabetical order.
      tokens, length, max_words, keep: how texts become tokens, see `data.Encoding`.
      encoding: of the files, as Python names it.
      search_fraction, validation_fraction, test_fraction, seed: as of `from_arrays`.

    Raises:
      FileNotFoundError: no such file.
      ValueError: another encoding (which says at which byte), no row, no such column, one column for text and
        label, a row with another number of columns, a text without a token, a label that is in no class, or a
        class with too few rows.
    """
    name = name or as_path(path).name
    if isinstance(text, str) != isinstance(label, str):
        raise ValueError(f"from_tsv: text={text!r} and label={label!r}; name both columns, or number both.")
    if text == label:
        raise ValueError(
            f"from_tsv: text and label are both the column {text!r}, so the label would be in what is read."
        )
    recipe = Encoding(tokens=tokens, length=length, max_words=max_words, keep=keep)
    given = {}
    for role, file in (("train", path), ("test", test)):
        if file is not None:
            given[role] = *_rows(file, text, label, encoding, recipe), f"{file}: labels"
    fractions = {"test": test_fraction, "validation": validation_fraction, "search": search_fraction}
    return _sentences(name, given, classes, fractions, seed, recipe)


def _sentences(
    name: str,
    given: Mapping[str, tuple[list[str], Any, str]],
    classes: Sequence[str] | None,
    fractions: Mapping[str, float],
    seed: int,
    encoding: Encoding,
) -> Sentences:
    """Makes sentences of the texts and labels of each role, and of what messages call these labels.

    Where no classes are given, those of the first role are the classes of all.
    """
    numbered = {}
    for role, (texts, labels, what) in given.items():
        numbers, classes = number_labels(labels, classes, what)
        numbered[role] = texts, numbers
    assert classes is not None
    return make_sentences(name, numbered, classes, fractions, seed, encoding)


def _rows(
    path: str | os.PathLike, text: str | int, label: str | int, encoding: str, recipe: Encoding
) -> tuple[list[str], list[str]]:
    """The texts and labels of a file."""
    # Lines are not split at what Unicode also calls an end of a line, which texts may hold.
    lines = [line.removesuffix("\r") for line in read_text(path, encoding).split("\n")]
    if not lines[-1]:
        del lines[-1]
    rows = [line.split("\t") for line in lines]
    start = int(isinstance(text, str))
    if len(rows) <= start:
        raise ValueError(f"{path}: there is no row{' behind the line of names' * start}.")
    header, columns = rows[0], len(rows[0])

    def number_of(column: str | int) -> int:
        if not isinstance(column, str):
            return column
        if column not in header:
            there = some(header) if any(header) else "empty"
            raise ValueError(
                f"{path}: the first line has no column {column!r}{nearest(column, header)} It is {there}. "
                "Name the columns as text=... and label=..., or number them from 0 if there is no line of "
                "names."
            )
        if header.count(column) > 1:
            raise ValueError(
                f"{path}: the first line names {header.count(column)} columns {column!r}; it is "
                f"{some(header)}. Number the columns from 0 as text=... and label=..., without this line."
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
        if not recipe.parts(row[text]) or not row[label].strip():
            missing = "label" if recipe.parts(row[text]) else "token"
            raise ValueError(f"{path}: line {number} has no {missing}; remove it or mend it.")
    return [row[text] for row in rows[start:]], [row[label].strip() for row in rows[start:]]

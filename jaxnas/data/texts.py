"""Labeled texts of a user: lists, or a file of tab-separated values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from jaxnas.choice import nearest
from jaxnas.data.encoding import Encoding
from jaxnas.data.labeled import number_labels, some
from jaxnas.data.sentences import Sentences, make_sentences
from jaxnas.data.source_files import read_text
from jaxnas.data.splits import HeldOut
from jaxnas.files import as_path


def from_texts(
    texts: Sequence[str],
    labels: Any,
    *,
    test_texts: Sequence[str] | None = None,
    test_labels: Any = None,
    name: str = "texts",
    classes: Sequence[str] | None = None,
    encoding: Encoding = Encoding(),
    held_out: HeldOut = HeldOut(),
) -> Sentences:
    """Makes labeled sentences of lists of texts, with the vocabulary of the training texts.

    Args:
      texts: to train on.
      labels: of the texts, integers from 0 or strings.
      test_texts, test_labels: of the test; None to hold out a part of the others.
      name: of the data.
      classes: the labels in the order of their numbers; by default those that occur, in alphabetical order.
      encoding: how texts become tokens.
      held_out: shares of the other roles.

    Raises:
      ValueError: something else than a list of strings, a text without a token, another number of labels than
        of texts, or a label that is in no class.
    """
    if (test_texts is None) != (test_labels is None):
        raise ValueError("from_texts: give test_texts and test_labels, or none of the two.")
    given = {"train": (texts, labels)}
    if test_texts is not None:
        given["test"] = test_texts, test_labels
    numbered = {}
    for role, (own, its_labels) in given.items():
        # A set has no order, which labels need, and a string is none of texts.
        if not isinstance(own, Sequence) or isinstance(own, str):
            own = own.tolist() if hasattr(own, "tolist") else own
        if not isinstance(own, list | tuple) or not all(isinstance(text, str) for text in own):
            raise ValueError(
                f"from_texts: the {role} texts are a {type(own).__name__}, expected a list of strings."
            )
        numbers, classes = number_labels(its_labels, classes, f"{name}: {role} labels")
        numbered[role] = own, numbers
    assert classes is not None
    return make_sentences(name, numbered, classes, held_out, encoding)


def from_tsv(
    path: str | os.PathLike,
    test: str | os.PathLike | None = None,
    *,
    text: str | int = "text",
    label: str | int = "label",
    classes: Sequence[str] | None = None,
    encoding: Encoding = Encoding(),
    held_out: HeldOut = HeldOut(),
) -> Sentences:
    """Makes labeled sentences of a file of tab-separated values in UTF-8, plain or compressed.

    A row is a line, and a tab ends a column; quotation marks mean nothing.

    Args:
      path: of the rows to train on.
      test: of the rows for the test; None to hold out a part of the others.
      text, label: columns, by their names in the first line, or both by their numbers from 0 if there is no
        line of names.
      classes, encoding, held_out: as of `from_texts`.

    Raises:
      FileNotFoundError: no such file.
      ValueError: no such column, a row with another number of columns or without a label, or as `from_texts`.
    """
    if isinstance(text, str) != isinstance(label, str) or text == label:
        raise ValueError(
            f"from_tsv: text={text!r} and label={label!r}; expected the names or the numbers of two columns."
        )
    texts, labels = _rows(path, text, label)
    tests = (None, None) if test is None else _rows(test, text, label)
    return from_texts(
        texts,
        labels,
        test_texts=tests[0],
        test_labels=tests[1],
        name=as_path(path).name,
        classes=classes,
        encoding=encoding,
        held_out=held_out,
    )


def _rows(path: str | os.PathLike, text: str | int, label: str | int) -> tuple[list[str], list[str]]:
    """The texts and labels of a file."""
    # Lines are not split at what Unicode also calls an end of a line, which texts may hold.
    lines = read_text(path).removesuffix("\n").split("\n")
    rows = [line.removesuffix("\r").split("\t") for line in lines]
    header, named, places = rows[0], isinstance(text, str), []
    for column in (text, label):
        if isinstance(column, str) and header.count(column) != 1:
            raise ValueError(
                f"{path}: the first line has no column {column!r}, or several{nearest(column, header)} It is "
                f"{some(header)}. Name the columns as text=... and label=..., or number them from 0 if there "
                "is no line of names."
            )
        places.append(header.index(column) if isinstance(column, str) else column)
    if not 0 <= min(places) <= max(places) < len(header):
        raise ValueError(
            f"{path} has {len(header)} columns, numbered from 0; got text={text} and label={label}."
        )
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise ValueError(
                f"{path}: line {number} has {len(row)} columns, and the first line has {len(header)}. A tab "
                "ends a column, and each line is one row."
            )
        if not all(row[place].strip() for place in places):
            raise ValueError(f"{path}: line {number} has no text or no label; remove or complete it.")
    texts, labels = ([row[place] for row in rows[named:]] for place in places)
    return texts, [one.strip() for one in labels]

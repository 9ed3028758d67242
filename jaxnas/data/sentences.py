"""Texts with labels as token sequences of one length: data sets by name, lists, and tab-separated files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from jaxnas.choice import nearest
from jaxnas.data.source_files import check_prepared, class_names, examples, open_prepared, read_text
from jaxnas.data.splits import ROLES, HeldOut, Labeled, Split, make_splits, number_labels, some
from jaxnas.data.vectors import Vectors, read_vectors
from jaxnas.data.vocabulary import Encoding, Vocabulary, WordVocabulary, count_unknown
from jaxnas.files import as_path

# Sets whose texts are parted already as their authors mean it. Others are English prose.
_PARTED = {"sst5": "words", "sst2": "words", "listops": "symbols"}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Sentences(Labeled):
    """Texts with labels, in disjoint splits of "tokens" int32 [n, T] and "mask" bool [n, T].

    The mask is True where there is a token; tokens of the padding are undefined.

    Args:
      vocabulary: of the training texts.
      unknown: number of words of each role that the vocabulary does not have.
      cut: number of texts of each role that are longer than T, of which a part is left out.
      encoding: how the texts became tokens.
      development: whether `search` is an official part of its own, which is never trained on.
      vectors: of the tokens, which a network receives with them; None for none.
    """

    vocabulary: Vocabulary
    unknown: Mapping[str, int]
    cut: Mapping[str, int]
    encoding: Encoding = Encoding()
    development: bool = False
    vectors: Vectors | None = None

    def __post_init__(self):
        super().__post_init__()
        for role, split in self.splits.items():
            tokens, mask = (np.asarray(split.inputs[name]) for name in ("tokens", "mask"))
            if tokens.dtype != np.int32 or mask.dtype != bool or tokens.shape != (len(split), self.length):
                raise ValueError(
                    f"{self.name}: the {role} split has tokens {tokens.dtype}{list(tokens.shape)} and a mask "
                    f"{mask.dtype}{list(mask.shape)}; expected int32 and bool [{len(split)}, {self.length}]."
                )
            if tokens.min() < 0 or tokens.max() >= self.vocabulary.size:
                raise ValueError(
                    f"{self.name}: the {role} split has tokens from {tokens.min()} to {tokens.max()}; "
                    f"expected 0 to {self.vocabulary.size - 1}, as in its vocabulary."
                )

    @property
    def length(self) -> int:
        """T, tokens of a text."""
        return self.train.inputs["mask"].shape[1]

    def whole(self) -> Self:
        """The data for a retraining; an official development part becomes "validation"."""
        if self.search is None or not self.development:
            return super().whole()
        watched = Split("validation", self.search.inputs, self.search.labels)
        return dataclasses.replace(self, search=None, validation=watched)


def with_vectors(
    sentences: Sentences, path: str | os.PathLike, dim: int | None = None, seed: int = 0
) -> Sentences:
    """Adds vectors of `dim` numbers, None for any, of words from a file; see `vectors.read_vectors`."""
    if not isinstance(words := sentences.vocabulary, WordVocabulary):
        raise ValueError(
            f"embeddings {path} are of words, and the tokens of {sentences.name} are "
            f"{sentences.encoding.tokens}; choose tokens='words' or 'english', or no embeddings."
        )
    vectors = read_vectors(path, words.words or (), seed)
    if dim not in (None, vectors.dim):
        raise ValueError(
            f"embedding_dim is {dim}, and the vectors of {path} have {vectors.dim} numbers each."
        )
    return dataclasses.replace(sentences, vectors=vectors)


def load_sentences(
    name: str,
    *,
    data_dir: str | os.PathLike | None = None,
    encoding: Encoding | None = None,
    phrases: bool = False,
    search_fraction: float | None = None,
    seed: int = 0,
) -> Sentences:
    """Loads labeled texts by name, and encodes them by the vocabulary of the training texts.

    The official validation part is the role "search", and "validation" in a retraining. If there is none, or
    a `search_fraction` is given, "search" is held out of the training part.

    Args:
      name: of a TFDS dataset with features "text" and "label", prepared as array_record; also with config and
        version as in "name/config:1.0.0".
      data_dir: of prepared data; None is TFDS's own default, ~/tensorflow_datasets.
      encoding: how texts become tokens; None for the usual one: words as they are of "sst5" and "sst2",
        symbols of "listops", and English words of others.
      phrases: train on each different labeled phrase of the trees of "sst5" and "sst2".
      search_fraction: share of the training part that is held out for a search, stratified; None for 0.2
        where there is no official validation part.
      seed: of what is held out.
    """
    if phrases and search_fraction:
        raise ValueError(
            f"{name}: search_fraction is {search_fraction} and phrases is True; phrases overlap, so a "
            "network would be trained on parts of the held-out ones. Leave search_fraction out: the "
            "development part is for the search."
        )
    builder = open_prepared(name, data_dir)
    official = {"train": "phrases" if phrases else "train", "validation": "validation", "test": "test"}
    check_prepared(name, builder.info, ("text", "label"), (official["train"], "test"))
    read = {role: _read(builder, part) for role, part in official.items() if part in builder.info.splits}
    classes = class_names(builder.info, [labels for _, labels in read.values()])
    development = "validation" in read and search_fraction is None
    if development:
        read["search"] = read.pop("validation")
    held_out = HeldOut(search=0.2 if search_fraction is None else search_fraction, seed=seed)
    encoding = Encoding(tokens=usual_tokens(name)) if encoding is None else encoding
    made = make_sentences(name, read, classes, held_out, encoding)
    return dataclasses.replace(made, development=development)


def usual_tokens(name: str) -> str:
    """The usual tokens of a named data set."""
    return _PARTED.get(name.partition(":")[0].partition("/")[0], "english")


def make_sentences(
    name: str,
    given: Mapping[str, tuple[Sequence[str], np.ndarray]],
    classes: Sequence[str],
    held_out: HeldOut,
    encoding: Encoding,
) -> Sentences:
    """Makes sentences of texts with labels int32 [n] by role, and holds out the roles that are not given."""
    parts = {
        role: ({"parts": _parts(encoding, texts, f"{name}, {role}")}, labels)
        for role, (texts, labels) in given.items()
    }
    splits: dict[str, Any] = make_splits(name, parts, held_out, classes)
    texts = {role: list(splits[role].inputs["parts"]) for role in ROLES if role in splits}
    vocabulary = encoding.vocabulary(texts["train"])
    length = encoding.length or max(map(len, texts["train"]))
    unknown, cut = {}, {}
    for role, rows in texts.items():
        encoded = encoding.encode(rows, vocabulary, length, f"{name}, {role}")
        splits[role] = dataclasses.replace(splits[role], inputs=encoded)
        unknown[role] = count_unknown(encoded, vocabulary)
        cut[role] = sum(len(row) > length for row in rows)
    counts = dict(unknown=unknown, cut=cut)
    return Sentences(
        name=name, classes=tuple(classes), vocabulary=vocabulary, encoding=encoding, **counts, **splits
    )


def _parts(encoding: Encoding, texts: Sequence[str], what: str) -> np.ndarray:
    """The tokens of each text, object [n]; an error counts texts as the lines of a file, from 1."""
    parts = np.fromiter(map(encoding.parts, texts), object, count=len(texts))
    for number, row in enumerate(parts, 1):
        if not row:
            raise ValueError(
                f"{what}: text {number} has no token: {str(texts[number - 1])[:60]!r}; remove it."
            )
    return parts


def _read(builder: Any, part: str) -> tuple[list[str], np.ndarray]:
    """The texts and the labels int32 [n] of a prepared part."""
    read = [(x["text"].decode(), x["label"]) for x in examples(builder, part)]
    return [text for text, _ in read], np.array([label for _, label in read], np.int32)


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
    """Makes labeled sentences of a file of tab-separated values in UTF-8; quotation marks mean nothing.

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
    settings: dict[str, Any] = dict(classes=classes, encoding=encoding, held_out=held_out)
    if test is not None:
        settings["test_texts"], settings["test_labels"] = _rows(test, text, label)
    return from_texts(*_rows(path, text, label), name=as_path(path).name, **settings)


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

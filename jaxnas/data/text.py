"""Real text for language models: train / search / validation / test streams of tokens."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jaxnas.data.corpus import Corpus, Stream
from jaxnas.data.datasets import check_prepared, examples, open_prepared
from jaxnas.data.vocabulary import (
    TOKENIZER,
    ByteVocabulary,
    PieceVocabulary,
    TokenizerVocabulary,
    Vocabulary,
    learn_pieces,
    read_tokenizer,
    split_words,
    word_vocabulary,
)
from jaxnas.files import as_path

_SLACK = 10  # A stream that is held out may be a tenth longer or shorter, to begin where a document does.
# Where a document starts, in the corpora whose files don't tell otherwise. A title of WikiText has
# a blank line on both sides: rows of tables may look like one, but for that.
_STARTS = {
    "wikitext2": rb"(?m)^ *\n *= (?!= )[^\n]*(?<! =) = *\n(?= *\n)",
    "enwik8": rb"  <page>\n",
    "tiny_shakespeare": None,
}


def load_text(
    name: str,
    *,
    data_dir: str | os.PathLike | None = None,
    source_dir: str | os.PathLike | None = None,
    tokenizer: str | None = None,
    search_fraction: float = 0.2,
) -> Corpus:
    """Loads a text and holds the search stream out of its official training part.

    "wikitext2", "enwik8" and "tiny_shakespeare" are prepared from their original files in
    `source_dir`. Any other name is a TFDS dataset that was prepared as array_record before, with a
    feature "text" and the splits train, validation and test; each of its examples is a document
    that ends its line.

    The search stream is the last part of the training text, cut where a document starts if one
    does nearby (within a tenth of the search stream's length), else at a line or a word. So it is
    the same text whatever the tokenizer.

    Args:
      name: TFDS name, also with config and version as in "name/config:1.0.0".
      data_dir: where prepared data are; None is TFDS's own default, ~/tensorflow_datasets.
      source_dir: folder with original files, needed once for the three.
      tokenizer: "word", "byte", or "sentencepiece:8000" for so many sub-words, learnt from the
        official training part and kept beside the prepared data; or the folder of a checkpoint with a
        tokenizer.json, or such a file. None is "word" for "wikitext2" and "byte" for others.
      search_fraction: share of the bytes of the official training part that become `search`; 0
        holds nothing out.

    Returns:
      The corpus, in memory. Nothing in it depends on the machine or the process. The vocabulary
      is that of the whole official training part, also of `search`.

    Raises:
      ValueError: unknown name or tokenizer (with the nearest known one), or a dataset that isn't
        such a text, or a search stream that would leave nothing to train on.
      FileNotFoundError: the dataset is not prepared; the message says how to.
      ImportError: sub-words without the package sentencepiece.
    """
    check_fraction("search_fraction", search_fraction)
    check_tokenizer(tokenizer)
    builder = open_prepared(name, data_dir, source_dir)
    _check(name, builder.info)
    texts = {split: _read(builder, name, split) for split in ("train", "validation", "test")}
    if tokenizer is None:
        tokenizer = "word" if builder.name == "wikitext2" else "byte"
    if tokenizer != "byte":
        for split, text in texts.items():
            _check_utf8(name, split, text.content)
    folder = pathlib.Path(builder.data_path).parent
    return make_corpus(name, texts, tokenizer, search_fraction, folder)


def make_corpus(
    name: str,
    texts: Mapping[str, Text],
    tokenizer: str,
    search_fraction: float,
    folder: pathlib.Path | None,
) -> Corpus:
    """Makes streams of tokens of a text, and holds the search stream out of the training text.

    Args:
      name: of the text.
      texts: of the roles "train", "validation" and "test".
      tokenizer: see `load_text`.
      search_fraction: share of the bytes to train on that become "search".
      folder: where learnt sub-words are kept; None to keep them nowhere.

    Raises:
      ValueError: an unknown tokenizer, or a search stream that would leave nothing to train on.
      ImportError: sub-words without the package sentencepiece.
    """
    texts, pieces = dict(texts), _pieces(tokenizer)
    official = texts["train"].content
    if _is_path(tokenizer):
        vocabulary = read_tokenizer(tokenizer)
    elif tokenizer == "byte":
        vocabulary = ByteVocabulary(counts=_count(np.frombuffer(official, np.uint8), 256))
    elif pieces:
        vocabulary = learn_pieces(name, official, pieces, folder)
    else:
        vocabulary = word_vocabulary(collections.Counter(split_words(official.decode())))

    if search_fraction:
        texts["train"], texts["search"] = hold_out_end(name, texts["train"], "search", search_fraction)
    tokens, documents = {}, {}
    for role, text in texts.items():
        tokens[role], documents[role] = text.encode(vocabulary)
    if isinstance(vocabulary, PieceVocabulary):  # They are counted in the text as it is cut.
        vocabulary, number = vocabulary.by_frequency(_official(tokens, pieces))
        tokens = {role: number[ids] for role, ids in tokens.items()}
    elif isinstance(vocabulary, TokenizerVocabulary):
        vocabulary = dataclasses.replace(vocabulary, counts=_official(tokens, vocabulary.size))
    streams = {
        role: Stream(role, tokens[role], documents[role], len(text.content)) for role, text in texts.items()
    }
    return Corpus(name=name, vocabulary=vocabulary, **streams)


def check_fraction(name: str, fraction: float) -> None:
    """Raises ValueError for a share that is not from 0 to below 1."""
    if not 0 <= fraction < 1:
        raise ValueError(f"{name} must be in [0, 1), got {fraction}")


def hold_out_end(name: str, text: Text, role: str, fraction: float) -> tuple[Text, Text]:
    """The text without its end, and the end, which is held out for a role."""
    return text.at(_cut(name, text, role, fraction))


def check_tokenizer(tokenizer: str | None) -> None:
    """Raises ValueError for a tokenizer that `load_text` does not know."""
    if tokenizer not in (None, "word", "byte") and not _pieces(tokenizer) and not _is_path(tokenizer):
        raise ValueError(
            f"unknown tokenizer {tokenizer!r}, expected 'word', 'byte', 'sentencepiece:8000' (with any "
            f"number), or a folder with a {TOKENIZER}"
        )


def _pieces(tokenizer: str | None) -> int:
    """How many sub-words are learnt, 0 for other tokenizers."""
    found = re.fullmatch("sentencepiece:([1-9][0-9]*)", tokenizer or "", re.ASCII)
    return int(found[1]) if found else 0


def _is_path(tokenizer: str | None) -> bool:
    """Whether a tokenizer is a file of its own, or in a folder that there is."""
    return tokenizer is not None and (tokenizer.endswith(".json") or as_path(tokenizer).is_dir())


def _official(tokens: Mapping[str, np.ndarray], size: int) -> np.ndarray:
    """How often each token occurs in the official training text, int64 [size]."""
    return np.sum([_count(tokens[role], size) for role in ("train", "search") if role in tokens], axis=0)


@dataclasses.dataclass(frozen=True, eq=False)
class Text:
    """The bytes of a role, and where in them documents start; the first start is 0."""

    content: bytes
    starts: list[int]

    def at(self, cut: int) -> tuple[Text, Text]:
        """Returns the text before and behind a byte."""
        before = [start for start in self.starts if start < cut]
        after = [start - cut for start in self.starts if start > cut]
        return Text(self.content[:cut], before), Text(self.content[cut:], [0, *after])

    def encode(self, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
        """Returns tokens int32 [n] and documents int32 [n]."""
        bounds = [*self.starts, len(self.content)]
        if isinstance(vocabulary, ByteVocabulary):
            tokens = np.frombuffer(self.content, np.uint8).astype(np.int32)
            lengths = np.diff(bounds)
        else:
            parts = [
                vocabulary.encode(self.content[start:end].decode())
                for start, end in itertools.pairwise(bounds)
            ]
            tokens, lengths = np.concatenate(parts), [len(part) for part in parts]
        return tokens, np.repeat(np.arange(len(self.starts), dtype=np.int32), lengths)


def _check(name: str, info: Any) -> None:
    splits = ("train", "validation", "test")
    check_prepared(name, info, ("text",), splits, "; prepare one that has train, validation and test")
    feature = info.features["text"]
    if feature.shape != () or np.dtype(feature.np_dtype) != object:
        raise ValueError(
            f"{name}: the feature 'text' must be one string, got {np.dtype(feature.np_dtype)}"
            f" {list(feature.shape)}"
        )


def _read(builder: Any, name: str, split: str) -> Text:
    records = [example["text"] for example in examples(builder, split)]
    if builder.name in _STARTS:
        content = b"".join(records)
        pattern = _STARTS[builder.name]
        starts = [match.start() for match in re.finditer(pattern, content)] if pattern else []
        # What is before the first start is a document, too: the rest of one that was cut.
        starts = sorted({0, *starts})
    else:
        records[:-1] = [record.removesuffix(b"\n") + b"\n" for record in records[:-1]]
        content = b"".join(records)
        starts = list(itertools.accumulate(map(len, records[:-1]), initial=0))
    if not content:
        raise ValueError(f"the {split} split of {name} has no text; prepare it again")
    return Text(content, starts)


def _check_utf8(name: str, split: str, content: bytes) -> None:
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"the {split} split of {name} is not UTF-8 at byte {error.start} ({error.reason});"
            " tokenizer='byte' takes it as it is"
        ) from error


def _cut(name: str, text: Text, role: str, fraction: float) -> int:
    """Returns where the text of a role starts in the text that it is held out of."""
    content = text.content
    size = round(len(content) * fraction)
    if not 0 < size < len(content):
        raise ValueError(
            f"the {role} stream of {name}: cannot hold {size} of {len(content)} bytes out and"
            f" leave both sides with some; choose another {role}_fraction than {fraction}"
        )
    wanted, slack = len(content) - size, size // _SLACK
    low, high = max(wanted - slack, 1), min(wanted + slack, len(content) - 1)
    window = content[low - 1 : high]
    for separator in (None, b"\n", b" "):
        starts: Iterable[int] = text.starts
        if separator is not None:
            starts = (low + match.start() for match in re.finditer(separator, window))
        near = [start for start in starts if low <= start <= high]
        if near:
            return min(near, key=lambda start: abs(start - wanted))
    while wanted > low and content[wanted] & 0xC0 == 0x80:  # Not within a character.
        wanted -= 1
    return wanted


def _count(tokens: np.ndarray, size: int) -> np.ndarray:
    """Returns how often each token occurs, int64 [size]."""
    counts = np.zeros(size, np.int64)
    step = 2**22  # bincount makes an int64 copy.
    for start in range(0, len(tokens), step):
        counts += np.bincount(tokens[start : start + step], minlength=size)
    return counts

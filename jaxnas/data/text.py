"""Text for language models: train / search / validation / test streams of tokens."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jaxnas.data.source_files import check_prepared, examples, open_prepared, read_text
from jaxnas.data.splits import HeldOut, Parts, check_role, read_only
from jaxnas.data.vocabulary import (
    TOKENIZER,
    ByteVocabulary,
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


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """The text of one role as one long sequence of tokens.

    Args:
      role: "train", "search", "validation" or "test".
      tokens: int32 [n], not negative; read-only.
      documents: int32 [n], not decreasing: the document of each token; read-only.
      n_bytes: of the text in UTF-8.
    """

    role: str
    tokens: np.ndarray
    documents: np.ndarray
    n_bytes: int

    def __post_init__(self):
        check_role(self.role)
        if not len(self.tokens):
            raise ValueError(f"the {self.role!r} stream has no tokens.")
        for name in ("tokens", "documents"):
            object.__setattr__(self, name, read_only(getattr(self, name)))

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"Stream({self.role!r}, {len(self)} tokens, {self.n_bytes} bytes)"

    def first(self, count: int) -> Stream:
        """The first tokens, with their share of the bytes."""
        share = min(count / len(self), 1.0)
        n_bytes = max(1, round(share * self.n_bytes))
        return Stream(self.role, self.tokens[:count], self.documents[:count], n_bytes)

    def join(self, other: Stream) -> Stream:
        """Both texts in the role of this one; `other` begins a new document."""
        return Stream(
            self.role,
            np.concatenate([self.tokens, other.tokens]),
            np.concatenate([self.documents, other.documents + (self.documents[-1] + 1)]),
            self.n_bytes + other.n_bytes,
        )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Corpus(Parts[Stream]):
    """Text in disjoint streams with one vocabulary; see `Parts`."""

    vocabulary: Vocabulary

    def __post_init__(self):
        super().__post_init__()
        for role, stream in self.splits.items():
            if stream.tokens.max() >= self.vocabulary.size:
                raise ValueError(
                    f"the {role} stream has the token {stream.tokens.max()}, and the vocabulary has "
                    f"{self.vocabulary.size}; make both with one vocabulary."
                )


def load_text(
    name: str,
    *,
    data_dir: str | os.PathLike | None = None,
    tokenizer: str | None = None,
    search_fraction: float = 0.2,
) -> Corpus:
    """Loads a text by name, and holds the search stream out of its official training part.

    A name is a TFDS dataset with a feature "text", a document in each example, and the splits train,
    validation and test, prepared as array_record. The search stream is the end of the training text, cut
    where a document starts if one does nearby, else at a line or a word: the same text whatever the
    tokenizer.

    Args:
      name: TFDS name, also with config and version as in "name/config:1.0.0".
      data_dir: of prepared data; None is TFDS's own default, ~/tensorflow_datasets.
      tokenizer: "word", "byte", or "bpe:8000" for so many sub-words, learned from the official training part;
        or the folder of a checkpoint with a tokenizer.json, or such a file. None is "word" for "wikitext2"
        and "byte" for others.
      search_fraction: share of the bytes of the training part that becomes `search`; 0 for none.

    Returns:
      The corpus, in memory, with the vocabulary of the whole training part, also of `search`.
    """
    check_tokenizer(tokenizer)
    held_out = HeldOut(search=search_fraction)
    builder = open_prepared(name, data_dir)
    check_prepared(name, builder.info, ("text",), ("train", "validation", "test"))
    feature = builder.info.features["text"]
    if feature.shape != () or np.dtype(feature.np_dtype) != object:
        raise ValueError(
            f"{name}: the feature 'text' is {feature.np_dtype}{list(feature.shape)}, expected a string."
        )
    texts = {role: _read(builder, role) for role in ("train", "validation", "test")}
    if tokenizer is None:
        tokenizer = "word" if builder.name == "wikitext2" else "byte"
    return _corpus(name, texts, tokenizer, held_out)


def from_text(
    path: str | os.PathLike,
    validation: str | os.PathLike | None = None,
    test: str | os.PathLike | None = None,
    *,
    name: str | None = None,
    tokenizer: str = "byte",
    encoding: str = "utf-8",
    held_out: HeldOut = HeldOut(test=0.05, validation=0.05),
) -> Corpus:
    """Makes a corpus of text files, plain or compressed by gzip, xz or zip.

    Without files of their own, the end of the text is for the test, the text before it for the validation,
    and the end of the rest for a search, cut at the end of a line or a word.

    Args:
      path: of the text to train on.
      validation, test: of the texts of these roles; None to hold a part out.
      name: of the data; by default that of the file.
      tokenizer: "byte", "word", or "bpe:8000" for so many sub-words, which are learned in each call; or the
        folder of a checkpoint with a tokenizer.json, or such a file.
      encoding: of the files, as Python names it.
      held_out: shares of the bytes.

    Raises:
      FileNotFoundError: no such file.
      ValueError: an empty file, another encoding, an unknown tokenizer, or a text too short for its roles.
      ImportError: sub-words without the package tokenizers.
    """
    check_tokenizer(tokenizer)
    paths = {"train": path, "validation": validation, "test": test}
    given = {role: file for role, file in paths.items() if file is not None}
    texts = {role: Text(read_text(file, encoding).encode(), [0]) for role, file in given.items()}
    return _corpus(name or as_path(path).name, texts, tokenizer, held_out)


def _corpus(name: str, texts: Mapping[str, Text], tokenizer: str, held_out: HeldOut) -> Corpus:
    """Makes streams of tokens of texts by role, and holds out the roles that are not given."""
    texts = dict(texts)

    def hold_out(role: str) -> None:
        cut = _cut(name, texts["train"], role, getattr(held_out, role))
        texts["train"], texts[role] = texts["train"].at(cut)

    for role in ("test", "validation"):
        if role not in texts:
            hold_out(role)
    vocabulary = _vocabulary(name, texts, tokenizer)
    if held_out.search:
        hold_out("search")
    tokens, documents = {}, {}
    for role, text in texts.items():
        tokens[role], documents[role] = text.encode(vocabulary)
    if isinstance(vocabulary, TokenizerVocabulary):  # They are counted in the text as it is cut.
        counts = [_count(tokens[role], vocabulary.size) for role in ("train", "search") if role in tokens]
        vocabulary = dataclasses.replace(vocabulary, counts=np.sum(counts, axis=0))
    streams = {
        role: Stream(role, tokens[role], documents[role], len(text.content)) for role, text in texts.items()
    }
    return Corpus(name=name, vocabulary=vocabulary, **streams)


def check_tokenizer(tokenizer: str | None) -> None:
    """Raises ValueError for a tokenizer that `load_text` does not know."""
    if not (tokenizer in (None, "word", "byte") or _pieces(tokenizer) or _is_path(tokenizer)):
        raise ValueError(
            f"unknown tokenizer {tokenizer!r}, expected 'word', 'byte', 'bpe:8000' (with any number), or a "
            f"folder with a {TOKENIZER}"
        )


def _pieces(tokenizer: str) -> int:
    """How many sub-words are learned, 0 for other tokenizers."""
    found = re.fullmatch("bpe:([1-9][0-9]*)", tokenizer, re.ASCII)
    return int(found[1]) if found else 0


def _is_path(tokenizer: str) -> bool:
    return tokenizer.endswith(".json") or as_path(tokenizer).is_dir()


def _vocabulary(name: str, texts: Mapping[str, Text], tokenizer: str) -> Vocabulary:
    """The vocabulary of the training text."""
    content = texts["train"].content
    if tokenizer == "byte":
        return ByteVocabulary(counts=_count(np.frombuffer(content, np.uint8), 256))
    for role, text in texts.items():
        try:
            text.content.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"the {role} part of {name} is not UTF-8 at byte {error.start} ({error.reason}); "
                "tokenizer='byte' takes it as it is."
            ) from error
    if _is_path(tokenizer):
        return read_tokenizer(tokenizer)
    if pieces := _pieces(tokenizer):
        return learn_pieces(content.decode(), pieces)
    return word_vocabulary(collections.Counter(split_words(content.decode())))


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


def _read(builder: Any, split: str) -> Text:
    records = [example["text"] for example in examples(builder, split)]
    if not any(records) or None in records:
        raise OSError(f"{builder.data_path} has damaged text, or none. Delete and prepare it again.")
    if builder.name in _STARTS:
        content = b"".join(records)
        pattern = _STARTS[builder.name]
        starts = [match.start() for match in re.finditer(pattern, content)] if pattern else []
        # What is before the first start is a document, too: the rest of one that was cut.
        return Text(content, sorted({0, *starts}))
    records[:-1] = [record.removesuffix(b"\n") + b"\n" for record in records[:-1]]
    return Text(b"".join(records), list(itertools.accumulate(map(len, records[:-1]), initial=0)))


def _cut(name: str, text: Text, role: str, share: float) -> int:
    """Returns where the text of a role starts in the text that it is held out of."""
    content = text.content
    size = round(len(content) * share)
    if not 0 < size < len(content):
        raise ValueError(
            f"the {role} stream of {name}: {role}={share} of {len(content)} bytes is {size}, which leaves "
            "one side empty; choose another share."
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
    for start in range(0, len(tokens), 2**22):  # bincount copies to int64
        counts += np.bincount(tokens[start : start + 2**22], minlength=size)
    return counts

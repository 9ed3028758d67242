"""Encoding of texts as rows of tokens of one length."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxnas.checks import check_counts
from jaxnas.data.vocabulary import (
    UNKNOWN,
    ByteVocabulary,
    SymbolVocabulary,
    Vocabulary,
    WordVocabulary,
    word_vocabulary,
)

KINDS = ("words", "english", "bytes", "symbols")
PADDING = "<pad>"  # Of symbols alone: a row of words is filled up with <eos>, and one of bytes with 0.
# Endings as the Penn Treebank parts them, numbers, words with hyphens, and runs of one mark. So "don't"
# becomes "do n't", and what was parted before stays as it is.
_ENGLISH = re.compile(
    r"n't\b|\w+?(?=n't\b)|'(?:s|re|ve|ll|d|m)\b|\d+(?:[.,]\d+)*(?!\w)|\w+(?:-\w+)*|([^\w\s])\1*"
)

Parts = Sequence[str] | bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoding:
    """How texts become rows of tokens.

    Attributes:
      tokens: "words" between white space; "english" words in lower case with punctuation and endings such
        as 's apart; "bytes" of UTF-8; or "symbols" between white space, none of which may be unknown.
      length: tokens of a row; None for the longest text to train on.
      max_words: size of the vocabulary, beside `<unk>` and `<eos>`; None for all words.
      keep: part of a too long text that is kept, its "start" or its "end".
    """

    tokens: str = "words"
    length: int | None = None
    max_words: int | None = None
    keep: str = "start"

    def __post_init__(self) -> None:
        for name, options in (("tokens", KINDS), ("keep", ("start", "end"))):
            if (value := getattr(self, name)) not in options:
                raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, options))}.")
        check_counts(self, "length", "max_words", none=True)
        if self.max_words is not None and self.tokens not in ("words", "english"):
            raise ValueError(f"max_words is {self.max_words}, and tokens={self.tokens!r} are no words.")

    def parts(self, text: str) -> Parts:
        """The tokens of a text as strings, or its bytes."""
        if self.tokens == "bytes":
            return text.encode()
        if self.tokens == "english":
            return [match.group() for match in _ENGLISH.finditer(text.lower().replace("<br />", " "))]
        return text.split()

    def vocabulary(self, texts: Sequence[Parts]) -> Vocabulary:
        """The vocabulary of the texts to train on."""
        if self.tokens == "bytes":
            content = b"".join(parts for parts in texts if isinstance(parts, bytes))
            counts = np.bincount(np.frombuffer(content, np.uint8), minlength=256)
            return ByteVocabulary(counts=counts.astype(np.int64))
        words = collections.Counter(part for parts in texts for part in parts if isinstance(part, str))
        if self.tokens == "symbols":
            if PADDING in words:
                raise ValueError(
                    f"a text to train on has the symbol {PADDING!r}, which is padding; rename it."
                )
            symbols = sorted(words)
            counts = np.array([0, *(words[symbol] for symbol in symbols)], np.int64)
            return SymbolVocabulary(counts=counts, words=(PADDING, *symbols))
        return word_vocabulary(words, self.max_words)

    def encode(
        self, texts: Sequence[Parts], vocabulary: Vocabulary, length: int, what: str
    ) -> dict[str, np.ndarray]:
        """Encodes the parts of n texts as "tokens" int32 [n, T] and "mask" bool [n, T]; T is the length.

        Raises:
          ValueError: a symbol that is not in the vocabulary; the message begins with `what`.
        """
        tokens = np.full((len(texts), length), filler(vocabulary), np.int32)
        lengths = np.array([min(len(parts), length) for parts in texts])
        for i, parts in enumerate(texts):
            kept: Any = parts[:length] if self.keep == "start" else parts[-length:]
            if isinstance(kept, bytes):
                tokens[i, : len(kept)] = np.frombuffer(kept, np.uint8)
                continue
            try:
                tokens[i, : len(kept)] = vocabulary.encode(" ".join(kept))
            except ValueError as error:
                raise ValueError(f"{what}: {error}, in {' '.join(kept)[:60]!r}") from error
        return {"tokens": tokens, "mask": np.arange(length) < lengths[:, None]}


def filler(vocabulary: Vocabulary) -> int:
    """The token of the padding."""
    return int(vocabulary.encode("\n")[0]) if isinstance(vocabulary, WordVocabulary) else 0


def count_unknown(rows: Mapping[str, np.ndarray], vocabulary: Vocabulary) -> int:
    """Number of words of encoded texts that are not in their vocabulary."""
    if not isinstance(vocabulary, WordVocabulary):
        return 0
    [number] = vocabulary.encode(UNKNOWN)
    return int(((rows["tokens"] == number) & rows["mask"]).sum())

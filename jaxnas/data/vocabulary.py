"""Text as numbers and back: bytes, words, sub-words, symbols; and texts as rows of tokens of one length."""

from __future__ import annotations

import abc
import collections
import dataclasses
import functools
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxnas import files
from jaxnas.checks import check_counts
from jaxnas.data.splits import read_only

UNKNOWN, END_OF_LINE = "<unk>", "<eos>"
TOKENIZER = "tokenizer.json"
KINDS = ("words", "english", "bytes", "symbols")
PADDING = "<pad>"  # Of symbols alone: a row of words is filled up with <eos>, and one of bytes with 0.
# Endings as the Penn Treebank parts them, numbers, words with hyphens, and runs of one mark. So "don't"
# becomes "do n't", and what was parted before stays as it is.
_ENGLISH = re.compile(
    r"n't\b|\w+?(?=n't\b)|'(?:s|re|ve|ll|d|m)\b|\d+(?:[.,]\d+)*(?!\w)|\w+(?:-\w+)*|([^\w\s])\1*"
)
Parts = Sequence[str] | bytes


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Vocabulary(abc.ABC):
    """Text as numbers and back.

    Args:
      counts: int64 [size], of each token in "train" and "search" together; read-only.
      words: the string of each token, different ones, or None where tokens are bytes.
    """

    counts: np.ndarray
    words: tuple[str, ...] | None = None

    def __post_init__(self):
        object.__setattr__(self, "counts", read_only(self.counts))

    @property
    def size(self) -> int:
        """Tokens are in [0, size)."""
        return len(self.counts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size} tokens)"

    @abc.abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Returns the tokens of a text, int32 [n]."""

    def decode(self, tokens: Iterable[int] | np.ndarray) -> str:
        """Returns the text of tokens, int [n]; raises a ValueError for one that is not in [0, size)."""
        tokens = np.asarray(tokens, np.int64)
        outside = (tokens < 0) | (tokens >= self.size)
        if outside.any():
            raise ValueError(
                f"tokens must be in [0, {self.size}), got {tokens[outside][0]}; were they made with another "
                "vocabulary?"
            )
        return self._decode(tokens)

    @abc.abstractmethod
    def _decode(self, tokens: np.ndarray) -> str: ...

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words or ())}


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ByteVocabulary(Vocabulary):
    """The 256 bytes of UTF-8, each its own number; decoding half of a character gives U+FFFD."""

    def encode(self, text: str) -> np.ndarray:
        """Returns the bytes of a text, int32 [n]."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def _decode(self, tokens: np.ndarray) -> str:
        return tokens.astype(np.uint8).tobytes().decode(errors="replace")


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class WordVocabulary(Vocabulary):
    """Words between white space, `<eos>` for each end of a line, `<unk>` for all other words.

    They are numbered by decreasing frequency, and decoded as WikiText-2 is written: " the end \\n".
    """

    def encode(self, text: str) -> np.ndarray:
        """Returns the words of a text, int32 [n]; an unfinished last line has no `<eos>`."""
        words = split_words(text)
        find, unknown = self._ids.get, self._ids[UNKNOWN]
        ids = map(find, words, itertools.repeat(unknown))
        return np.fromiter(ids, np.int32, count=len(words))

    def _decode(self, tokens: np.ndarray) -> str:
        assert self.words is not None
        words = (self.words[i] for i in tokens.tolist())
        return "".join(" \n" if word == END_OF_LINE else f" {word}" for word in words)


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TokenizerVocabulary(Vocabulary):
    """Tokens of the package `tokenizers`: of a pretrained network, or sub-words of `learn_pieces`."""

    definition: str  # content of its tokenizer.json

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return _tokenizers().Tokenizer.from_str(self.definition)

    def encode(self, text: str) -> np.ndarray:
        """Returns the tokens of a text, int32 [n], without special ones at its ends."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def _decode(self, tokens: np.ndarray) -> str:
        return self._tokenizer.decode(tokens.tolist(), skip_special_tokens=False)


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SymbolVocabulary(Vocabulary):
    """A closed set of symbols between white space, of which the first is padding."""

    def encode(self, text: str) -> np.ndarray:
        """Returns the symbols of a text, int32 [n]; raises a ValueError for one that there is not."""
        symbols = text.split()
        if wrong := [symbol for symbol in symbols if symbol not in self._ids]:
            known = " ".join((self.words or ())[1:21])
            raise ValueError(f"there is no symbol {wrong[0]!r}, only {known}{' ...' * (self.size > 21)}")
        return np.fromiter(map(self._ids.__getitem__, symbols), np.int32, count=len(symbols))

    def _decode(self, tokens: np.ndarray) -> str:
        assert self.words is not None
        return " ".join(self.words[i] for i in tokens.tolist())


def split_words(text: str) -> list[str]:
    """Returns the words of a text, and `<eos>` for each end of a line."""
    return text.replace("\n", f" {END_OF_LINE} ").split()


def word_vocabulary(counts: collections.Counter[str], most: int | None = None) -> WordVocabulary:
    """The most frequent words, None for all, and the two that every vocabulary has; ties keep their order."""
    for word in (UNKNOWN, END_OF_LINE):
        counts.setdefault(word, 0)
    kept = dict(counts.most_common(most))
    lost = counts.total() - sum(kept.values())
    for word in (UNKNOWN, END_OF_LINE):
        kept.setdefault(word, counts[word])
    kept[UNKNOWN] += lost
    return WordVocabulary(counts=np.array(list(kept.values()), np.int64), words=tuple(kept))


def read_tokenizer(path: str | os.PathLike) -> TokenizerVocabulary:
    """Returns the tokens of a tokenizer.json, or of the folder of a checkpoint that has one; counts are 0."""
    given = files.as_path(path)
    file = given / TOKENIZER if given.is_dir() else given
    if not file.is_file():
        raise FileNotFoundError(f"tokenizer={str(path)!r}: there is no {file}.")
    try:
        return _vocabulary(file.read_text(encoding="utf-8"))
    except ImportError:
        raise
    except Exception as error:  # The package raises no class of its own.
        raise ValueError(f"{file} is no tokenizer: {error}") from error


def learn_pieces(text: str, size: int) -> TokenizerVocabulary:
    """Learns sub-words of a text (byte-level BPE, lossless), numbered by frequency; counts are 0."""
    package = _tokenizers()
    tokenizer = package.Tokenizer(package.models.BPE())
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = package.decoders.ByteLevel()
    alphabet = package.pre_tokenizers.ByteLevel.alphabet()
    trainer = package.trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    lines = text.splitlines(keepends=True)
    tokenizer.train_from_iterator(lines, trainer)
    if (found := tokenizer.get_vocab_size()) != size:
        raise ValueError(
            f"tokenizer='bpe:{size}': {len(text)} characters have {found} sub-words; choose another number."
        )
    counts = collections.Counter(range(size))  # so that each is there
    counts.update(itertools.chain.from_iterable(tokenizer.encode(line).ids for line in lines))
    numbers = {old: new for new, (old, _) in enumerate(counts.most_common())}
    definition = json.loads(tokenizer.to_str())
    words = definition["model"]["vocab"]
    definition["model"]["vocab"] = {word: numbers[old] for word, old in words.items()}
    return _vocabulary(json.dumps(definition))


def _vocabulary(definition: str) -> TokenizerVocabulary:
    known = _tokenizers().Tokenizer.from_str(definition).get_vocab(with_added_tokens=True)
    words = [""] * (1 + max(known.values(), default=0))
    for word, number in known.items():
        words[number] = word
    counts = np.zeros(len(words), np.int64)
    return TokenizerVocabulary(counts=counts, words=tuple(words), definition=definition)


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "Sub-words and a tokenizer.json need the package tokenizers: pip install 'jaxnas[hf]'"
        ) from error
    return tokenizers


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
        """Encodes the parts of n texts as "tokens" int32 [n, T] and "mask" bool [n, T]; T is the length."""
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

"""Text as numbers and back: bytes, words, sub-words."""

import abc
import collections
import dataclasses
import functools
import io
import itertools
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from absl import logging

from jaxnas import files
from jaxnas.data.roles import read_only

UNKNOWN, END_OF_LINE = "<unk>", "<eos>"
TOKENIZER = "tokenizer.json"

_SAMPLE = 2**24  # Bytes that sub-words are learnt from: of a longer text every k-th line.
# What makes sub-words lossless: white space as it is, and a rare character as its bytes.
_PIECES = {
    "model_type": "bpe",
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "add_dummy_prefix": False,
    "byte_fallback": True,
    # Each is one token. <unk> is a word of WikiText; what the model doesn't know has another name,
    # but there is nothing that it cannot write in bytes.
    "user_defined_symbols": ["\n", UNKNOWN],
    "unk_id": 0,
    "unk_piece": "<unknown>",
    "bos_id": -1,
    "eos_id": -1,
    "pad_id": -1,
    "max_sentence_length": 2**30,
    "num_threads": 1,  # The number is written into the model.
}


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Vocabulary(abc.ABC):
    """Text as numbers and back.

    Args:
      counts: int64 [size], how often each token occurs in the official training text, that is in
        "train" and "search" together; kept as a read-only view.
      words: the string of each token, or None where tokens are bytes.

    Raises:
      ValueError: counts and words don't match.
    """

    counts: np.ndarray
    words: tuple[str, ...] | None = None

    def __post_init__(self):
        if self.counts.dtype != np.int64 or self.counts.ndim != 1:
            raise ValueError(
                f"counts must be int64 [size], got {self.counts.dtype} {list(self.counts.shape)}"
            )
        if self.words is not None and len(self.words) != len(self.counts):
            raise ValueError(f"expected a count for each of {len(self.words)} words, got {len(self.counts)}")
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
        """Returns the text of tokens, int [n].

        Raises:
          ValueError: a token is not in [0, size).
        """
        tokens = np.asarray(tokens, np.int64)
        outside = (tokens < 0) | (tokens >= self.size)
        if outside.any():
            raise ValueError(
                f"tokens must be in [0, {self.size}), got {tokens[outside][0]}; were they made"
                " with another vocabulary?"
            )
        return self._decode(tokens)

    @abc.abstractmethod
    def _decode(self, tokens: np.ndarray) -> str:
        """Returns the text of tokens that are all in range."""

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words or ())}


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ByteVocabulary(Vocabulary):
    """The 256 bytes of UTF-8, each its own number.

    Decoding what begins or ends within a character gives U+FFFD there.
    """

    def __post_init__(self):
        super().__post_init__()
        if self.size != 256 or self.words is not None:
            raise ValueError(f"bytes need 256 counts and no words, got {self.size} counts")

    def encode(self, text: str) -> np.ndarray:
        """Returns the bytes of a text, int32 [n]."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def _decode(self, tokens: np.ndarray) -> str:
        return tokens.astype(np.uint8).tobytes().decode(errors="replace")


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class WordVocabulary(Vocabulary):
    """Words between white space, `<eos>` for each end of a line, `<unk>` for all other words.

    The numbers are by decreasing frequency, so that an adaptive softmax can cut them. A text is
    decoded as WikiText-2 is written: " the end \\n", a space before each word and line end.

    Raises:
      ValueError: a word occurs twice, or `<unk>` or `<eos>` is missing.
    """

    def __post_init__(self):
        super().__post_init__()
        if self.words is None or not {UNKNOWN, END_OF_LINE} <= self._ids.keys():
            raise ValueError(f"words must contain {UNKNOWN} and {END_OF_LINE}; add them")
        if len(self._ids) != self.size:
            [(word, times)] = collections.Counter(self.words).most_common(1)
            raise ValueError(f"each word must occur once, got {word!r} {times} times")

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
class PieceVocabulary(Vocabulary):
    """Sub-words of the `sentencepiece` package, numbered by decreasing frequency.

    Decoding gives the text back exactly, but for U+2581, which sub-words use for a space. Decoding
    what begins or ends within a character gives U+FFFD there.

    Args:
      model: as sentencepiece writes it to a file.
      order: int64 [size], the number that the model gives to each of our tokens.
    """

    model: bytes
    order: np.ndarray

    @functools.cached_property
    def _processor(self) -> Any:
        return _sentencepiece().SentencePieceProcessor(model_proto=self.model)

    @functools.cached_property
    def _rank(self) -> np.ndarray:
        rank = np.empty(self.size, np.int32)
        rank[self.order] = np.arange(self.size, dtype=np.int32)
        return rank

    def encode(self, text: str) -> np.ndarray:
        """Returns the sub-words of a text, int32 [n]; none goes over the end of a line."""
        *lines, rest = text.split("\n")
        lines = [line + "\n" for line in lines] + [rest]
        ids = list(itertools.chain.from_iterable(self._processor.encode(lines)))
        return self._rank[np.array(ids, np.int64)]

    def _decode(self, tokens: np.ndarray) -> str:
        return self._processor.decode(self.order[tokens].tolist())

    def by_frequency(self, counts: np.ndarray) -> tuple["PieceVocabulary", np.ndarray]:
        """Returns the sub-words in order of decreasing counts, and how they are numbered now.

        Args:
          counts: int64 [size], of each token as it was numbered.

        Returns:
          The vocabulary; and the new number of each token, int32 [size].
        """
        assert self.words is not None
        order = np.argsort(-counts, kind="stable")  # Ties keep their order.
        words = tuple(self.words[i] for i in order.tolist())
        new = dataclasses.replace(self, words=words, order=self.order[order], counts=counts[order])
        return new, np.argsort(order).astype(np.int32)


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TokenizerVocabulary(Vocabulary):
    """The tokens of a pretrained network, numbered as the network knows them.

    Args:
      definition: what its tokenizer.json holds.
    """

    definition: str

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
    """A closed set of symbols between white space, of which the first fills up what is masked.

    Raises:
      ValueError: a symbol occurs twice, or there are none.
    """

    def __post_init__(self):
        super().__post_init__()
        if not self.words or len(self._ids) != self.size:
            raise ValueError(f"expected different symbols, got {self.words!r}")

    def encode(self, text: str) -> np.ndarray:
        """Returns the symbols of a text, int32 [n].

        Raises:
          ValueError: a symbol that there is not.
        """
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
    """Words by decreasing frequency, and the two that every vocabulary has.

    Args:
      counts: of the words of the text to train on, in the order of the text, which ties keep.
      most: how many words are kept, with these two or beside them; others count as unknown. None for all.
    """
    for word in (UNKNOWN, END_OF_LINE):
        counts.setdefault(word, 0)
    kept = dict(counts.most_common(most))
    lost = counts.total() - sum(kept.values())
    for word in (UNKNOWN, END_OF_LINE):
        kept.setdefault(word, counts[word])
    kept[UNKNOWN] += lost
    return WordVocabulary(counts=np.array(list(kept.values()), np.int64), words=tuple(kept))


def read_tokenizer(path: str | os.PathLike) -> TokenizerVocabulary:
    """Returns the tokens of a tokenizer.json, or of the folder of a checkpoint that has one; counts are 0.

    Raises:
      FileNotFoundError: there is none.
      ValueError: the file is no tokenizer.
      ImportError: the package tokenizers is missing.
    """
    given = files.as_path(path)
    file = given / TOKENIZER if given.is_dir() else given
    if not file.is_file():
        raise FileNotFoundError(f"tokenizer={str(path)!r}: there is no {file}.")
    package = _tokenizers()
    try:
        definition = file.read_text(encoding="utf-8")
        known = package.Tokenizer.from_str(definition).get_vocab(with_added_tokens=True)
    except Exception as error:  # The package raises no class of its own.
        raise ValueError(f"{file} is no tokenizer: {error}") from error
    words = [""] * (1 + max(known.values(), default=0))
    for word, number in known.items():
        words[number] = word
    return TokenizerVocabulary(
        counts=np.zeros(len(words), np.int64), words=tuple(words), definition=definition
    )


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "A tokenizer.json needs the package tokenizers: pip install 'jaxnas[hf]'"
        ) from error
    return tokenizers


def _sentencepiece() -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise ImportError(
            "tokenizer='sentencepiece:...' needs the package sentencepiece: pip install 'jaxnas[text]'"
        ) from error
    return sentencepiece


def learn_pieces(name: str, content: bytes, size: int, folder: pathlib.Path | None) -> PieceVocabulary:
    """Returns the sub-words of a text, from the file in the folder if they were learnt before.

    Args:
      name: of the text, for messages.
      content: the text in UTF-8.
      size: how many sub-words.
      folder: where the model is kept, if it can be written to; None to keep it nowhere.

    Raises:
      ValueError: the text has not so many sub-words, or the file is not a model.
      ImportError: the package sentencepiece is missing.
    """
    package = _sentencepiece()
    recipe = repr((sorted(_PIECES.items()), _SAMPLE)).encode()
    digest = files.digest(recipe + content)
    path = None if folder is None else folder / f"sentencepiece-{size}-{digest}.model"
    if path is not None and path.is_file():
        model = path.read_bytes()
        try:
            package.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise ValueError(
                f"{path}: not a model of sentencepiece ({error}); delete it, and it is made again"
            ) from error
    else:
        logging.info("Learning %d sub-words of %s", size, name)
        lines = content.decode().split("\n")
        buffer = io.BytesIO()
        try:
            package.SentencePieceTrainer.train(
                sentence_iterator=iter(lines[:: -(-len(content) // _SAMPLE)]),
                model_writer=buffer,
                vocab_size=size,
                minloglevel=2,
                **_PIECES,
            )
        except RuntimeError as error:
            raise ValueError(
                f"tokenizer='sentencepiece:{size}': cannot make {size} sub-words of the"
                f" {len(content)} bytes of {name}; choose another number ({error})"
            ) from error
        model = buffer.getvalue()
        try:
            if path is not None:
                files.write_bytes(path, model)
        except OSError as error:  # A folder that is read-only, or a full disk: they are learnt again.
            logging.warning("Sub-words are not kept for the next time: %s", error)
    processor = package.SentencePieceProcessor(model_proto=model)
    words = tuple(processor.id_to_piece(i) for i in range(size))
    counts = np.zeros(size, np.int64)
    return PieceVocabulary(counts=counts, words=words, model=model, order=np.arange(size))

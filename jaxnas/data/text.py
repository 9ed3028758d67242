"""Real text for language models: train / search / validation / test streams of tokens."""

import abc
import collections
import dataclasses
import functools
import hashlib
import io
import itertools
import os
import pathlib
import re
import tempfile
from collections.abc import Iterable
from typing import Any

import numpy as np
from absl import logging

STREAM_ROLES = ("train", "search", "validation", "test")
UNKNOWN, END_OF_LINE = "<unk>", "<eos>"

_CHUNK = 4096  # Records read at a time.
_SLACK = 10  # The search stream may be a tenth longer or shorter, to begin where a document does.
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
# Where a document starts, in the corpora whose files don't tell otherwise. A title of WikiText has
# a blank line on both sides: rows of tables may look like one, but for that.
_STARTS = {
    "wikitext2": rb"(?m)^ *\n *= (?!= )[^\n]*(?<! =) = *\n(?= *\n)",
    "enwik8": rb"  <page>\n",
    "tiny_shakespeare": None,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """The text of one role as one long sequence of tokens, which knows what it may be used for.

    Whoever scores architectures for a search calls `stream.require("search")` first, and whoever
    trains calls `stream.require("train")`; so the test text cannot reach either by accident.

    Args:
        role: "train", "search", "validation" or "test".
        tokens: int32 [n], not negative; kept as a read-only view.
        documents: int32 [n], not decreasing: the number of the document that a token is part of;
            kept as a read-only view.
        n_bytes: of the text in UTF-8. Nats summed over the stream, divided by `n_bytes * log(2)`,
            are bits per byte, whatever the tokens are.

    Raises:
        ValueError: unknown role, wrong shapes or dtypes, no tokens.
    """

    role: str
    tokens: np.ndarray
    documents: np.ndarray
    n_bytes: int

    def __post_init__(self):
        if self.role not in STREAM_ROLES:
            raise ValueError(
                f"unknown role {self.role!r}, expected one of {', '.join(STREAM_ROLES)}"
            )
        if self.tokens.dtype != np.int32 or self.tokens.ndim != 1:
            raise ValueError(
                f"tokens must be int32 [n], got {self.tokens.dtype} {list(self.tokens.shape)}"
            )
        if self.documents.dtype != np.int32 or self.documents.shape != self.tokens.shape:
            raise ValueError(
                f"documents must be int32 [{len(self.tokens)}], as the tokens, got"
                f" {self.documents.dtype} {list(self.documents.shape)}"
            )
        if not len(self.tokens):
            raise ValueError(f"the {self.role} stream has no tokens")
        if self.tokens.min() < 0:
            raise ValueError(
                f"the {self.role} stream has the token {self.tokens.min()}; tokens are numbered"
                " from 0"
            )
        if self.documents[0] < 0 or np.any(self.documents[1:] < self.documents[:-1]):
            raise ValueError(
                f"the documents of the {self.role} stream must be numbered from 0 in the order of"
                " the text; sort them, with the tokens"
            )
        if self.n_bytes < 1:
            raise ValueError(
                f"n_bytes of the {self.role} stream must be positive, got {self.n_bytes}"
            )
        for name in ("tokens", "documents"):
            view = getattr(self, name).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"Stream({self.role!r}, {len(self)} tokens, {self.n_bytes} bytes)"

    def require(self, *roles: str) -> "Stream":
        """Returns the stream itself if it has one of the roles.

        Raises:
            ValueError: it has another role.
        """
        if self.role not in roles:
            wanted = " or ".join(repr(role) for role in roles)
            raise ValueError(
                f"this needs the {wanted} stream, and got the {self.role!r} stream: networks are"
                " trained on 'train', compared in a search on 'search', watched on 'validation',"
                " and only the chosen ones are measured on 'test'"
            )
        return self


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
            raise ValueError(
                f"expected a count for each of {len(self.words)} words, got {len(self.counts)}"
            )
        view = self.counts.view()
        view.flags.writeable = False
        object.__setattr__(self, "counts", view)

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

    def _by_frequency(self, counts: np.ndarray) -> tuple["Vocabulary", np.ndarray]:
        """Returns the vocabulary with its tokens in order of decreasing counts, and that order."""
        order = np.argsort(-counts, kind="stable")  # Ties keep their order.
        return dataclasses.replace(self, **self._reordered(order), counts=counts[order]), order

    def _reordered(self, order: np.ndarray) -> dict[str, Any]:
        return {"words": tuple(self.words[i] for i in order.tolist())}


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

    def _by_frequency(self, counts: np.ndarray) -> tuple[Vocabulary, np.ndarray]:
        return dataclasses.replace(self, counts=counts), np.arange(256)


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

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words or ())}

    def encode(self, text: str) -> np.ndarray:
        """Returns the words of a text, int32 [n]; an unfinished last line has no `<eos>`."""
        words = _split_words(text)
        find, unknown = self._ids.get, self._ids[UNKNOWN]
        ids = map(find, words, itertools.repeat(unknown))
        return np.fromiter(ids, np.int32, count=len(words))

    def _decode(self, tokens: np.ndarray) -> str:
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

    def _reordered(self, order: np.ndarray) -> dict[str, Any]:
        return super()._reordered(order) | {"order": self.order[order]}


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Real text in disjoint streams, each in the order of the text.

    Args:
        name: TFDS name.
        train: the official training text without `search`.
        search: held out of the official training text; compares architectures in a search. None
            if nothing was held out.
        validation: the official validation text.
        test: the official test text, for the networks that were chosen.
        vocabulary: of all streams.

    Raises:
        ValueError: a stream in the place of another, or a token that isn't in the vocabulary.
    """

    name: str
    train: Stream
    search: Stream | None
    validation: Stream
    test: Stream
    vocabulary: Vocabulary

    def __post_init__(self):
        for role in STREAM_ROLES:
            stream = getattr(self, role)
            if stream is None and role == "search":
                continue
            stream.require(role)
            if stream.tokens.max() >= self.vocabulary.size:
                raise ValueError(
                    f"the {role} stream has the token {stream.tokens.max()}, and the vocabulary"
                    f" has {self.vocabulary.size}; make both with one vocabulary"
                )


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
            official training part and kept beside the prepared data; None is "word" for
            "wikitext2" and "byte" for others.
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
    if not 0 <= search_fraction < 1:
        raise ValueError(f"search_fraction must be in [0, 1), got {search_fraction}")
    pieces = _number_of_pieces(tokenizer)
    # Imported here: those who bring their own text don't need images.
    from jaxnas.data.datasets import open_prepared

    builder = open_prepared(name, data_dir, source_dir)
    _check(name, builder.info)
    texts = {split: _read(builder, name, split) for split in ("train", "validation", "test")}

    vocabulary: Vocabulary
    official = texts["train"].content
    if tokenizer is None:
        tokenizer = "word" if builder.name == "wikitext2" else "byte"
    if tokenizer == "byte":
        vocabulary = ByteVocabulary(counts=np.zeros(256, np.int64))
    else:
        for split, text in texts.items():
            _check_utf8(name, split, text.content)
        if pieces:
            folder = pathlib.Path(builder.data_path).parent
            vocabulary = _learn_pieces(name, official, pieces, folder)
        else:
            words = _split_words(official.decode())
            found = tuple(dict.fromkeys([*words, UNKNOWN, END_OF_LINE]))
            vocabulary = WordVocabulary(counts=np.zeros(len(found), np.int64), words=found)

    if search_fraction:
        cut = _cut(name, texts["train"], search_fraction)
        texts["train"], texts["search"] = texts["train"].at(cut)
    tokens, documents = {}, {}
    for role, text in texts.items():
        tokens[role], documents[role] = text.encode(vocabulary)
    counts = _count(tokens["train"], vocabulary.size)
    if "search" in tokens:
        counts += _count(tokens["search"], vocabulary.size)
    vocabulary, order = vocabulary._by_frequency(counts)
    if tokenizer != "byte":  # Bytes keep their numbers, and there are many of them.
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        tokens = {role: rank[ids] for role, ids in tokens.items()}
    streams: dict[str, Stream | None] = {"search": None}
    for role, text in texts.items():
        streams[role] = Stream(role, tokens[role], documents[role], len(text.content))
    return Corpus(name=name, vocabulary=vocabulary, **streams)


def _number_of_pieces(tokenizer: str | None) -> int:
    """Returns how many sub-words a tokenizer has, 0 for "word" and "byte"."""
    if tokenizer in (None, "word", "byte"):
        return 0
    kind, _, number = tokenizer.partition(":")
    if kind != "sentencepiece" or not re.fullmatch("[1-9][0-9]*", number, re.ASCII):
        raise ValueError(
            f"unknown tokenizer {tokenizer!r}, expected 'word', 'byte' or 'sentencepiece:8000'"
            " (with any number)"
        )
    return int(number)


@dataclasses.dataclass(frozen=True, eq=False)
class _Text:
    """The bytes of a role, and where in them documents start; the first start is 0."""

    content: bytes
    starts: list[int]

    def at(self, cut: int) -> tuple["_Text", "_Text"]:
        before = [start for start in self.starts if start < cut]
        after = [start - cut for start in self.starts if start > cut]
        return _Text(self.content[:cut], before), _Text(self.content[cut:], [0, *after])

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
    if "text" not in set(info.features):
        raise ValueError(f"{name} has no feature 'text', only {', '.join(sorted(info.features))}")
    feature = info.features["text"]
    if feature.shape != () or np.dtype(feature.np_dtype) != object:
        raise ValueError(
            f"{name}: the feature 'text' must be one string, got {np.dtype(feature.np_dtype)}"
            f" {list(feature.shape)}"
        )
    missing = {"train", "validation", "test"} - set(info.splits)
    if missing:
        raise ValueError(
            f"{name} has no split {' and '.join(map(repr, sorted(missing)))}, only"
            f" {', '.join(sorted(info.splits))}; prepare one that has train, validation and test"
        )


def _read(builder: Any, name: str, split: str) -> _Text:
    source = builder.as_data_source(split=split)
    records: list[bytes] = []
    for start in range(0, len(source), _CHUNK):
        rows = range(start, min(start + _CHUNK, len(source)))
        records += [example["text"] for example in source.__getitems__(list(rows))]
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
    return _Text(content, starts)


def _check_utf8(name: str, split: str, content: bytes) -> None:
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"the {split} split of {name} is not UTF-8 at byte {error.start} ({error.reason});"
            " tokenizer='byte' takes it as it is"
        ) from error


def _cut(name: str, text: _Text, fraction: float) -> int:
    """Returns where the search text starts in the training text."""
    content = text.content
    size = round(len(content) * fraction)
    if not 0 < size < len(content):
        raise ValueError(
            f"the search stream of {name}: cannot hold {size} of {len(content)} bytes out and"
            f" leave both sides with some; choose another search_fraction than {fraction}"
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


def _split_words(text: str) -> list[str]:
    return text.replace("\n", f" {END_OF_LINE} ").split()


def _sentencepiece() -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise ImportError(
            "tokenizer='sentencepiece:...' needs the package sentencepiece: pip install"
            " 'jaxnas[text]'"
        ) from error
    return sentencepiece


def _learn_pieces(name: str, content: bytes, size: int, folder: pathlib.Path) -> PieceVocabulary:
    """Returns the sub-words of a text, from the file in the folder if they were learnt before."""
    package = _sentencepiece()
    recipe = repr((sorted(_PIECES.items()), _SAMPLE)).encode()
    digest = hashlib.sha256(recipe + content).hexdigest()[:16]
    path = folder / f"sentencepiece-{size}-{digest}.model"
    if path.is_file():
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
        _write(path, model)
    processor = package.SentencePieceProcessor(model_proto=model)
    words = tuple(processor.id_to_piece(i) for i in range(size))
    counts = np.zeros(size, np.int64)
    return PieceVocabulary(counts=counts, words=words, model=model, order=np.arange(size))


def _write(path: pathlib.Path, content: bytes) -> None:
    """Writes a file that appears complete or not at all; a folder that is read-only is no error."""
    try:
        handle, own = tempfile.mkstemp(prefix=".incomplete-", dir=path.parent)
    except OSError as error:
        logging.warning("Sub-words are not kept for the next time: %s", error)
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(own, 0o644)  # mkstemp's are for their owner alone.
        os.replace(own, path)
    except BaseException:
        os.unlink(own)
        raise

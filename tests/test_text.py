"""Text for language models: the real files where they are there, small ones of their shape always."""

import dataclasses
import gzip
import hashlib
import io
import lzma
import math
import os
import re
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnas import data
from jaxnas.data import text, text_builders

REAL = os.environ.get("JAXNAS_TEXT")
real = pytest.mark.skipif(
    not REAL, reason="JAXNAS_TEXT names no folder with the original files of texts"
)
WORDS = (
    "the of and in to a was The on as for with by is 's @-@ \u2013 Senj\u014d <unk> , ; ( )".split()
)


def article(rng, title, lines):
    """An article as WikiText-2 has them; its table has a row that looks like a title."""
    text = [" ", f" = {title} = ", " "]
    for i in range(lines):
        text.append(" " + " ".join(rng.choice(WORDS, rng.integers(3, 40))) + " . ")
        if i % 3 == 2:
            text += [" ", " = = Part = = ", " ", " = Wins ; L = ", " 3 ; 4 "]
    return "".join(line + "\n" for line in text) + " \n"


@pytest.fixture(scope="module")
def wikitext():
    rng = np.random.default_rng(0)
    parts = {}
    for split, n in (("train", 20), ("validation", 3), ("test", 2)):
        parts[split] = "".join(article(rng, f"{split} number {i}", 4 + i % 3) for i in range(n))
    return parts


@pytest.fixture(scope="module")
def folder(tmp_path_factory, wikitext):
    """The original files of all sets, small, under several names and compressions."""
    folder = tmp_path_factory.mktemp("files")
    contents = {split: part.encode() for split, part in wikitext.items()}
    (folder / "wikitext-2.train.txt.xz").write_bytes(lzma.compress(contents["train"]))
    (folder / "wikitext-2.valid.txt").write_bytes(gzip.compress(contents["validation"]))
    (folder / "wiki.test.tokens").write_bytes(contents["test"])
    (folder / "input.txt").write_bytes(play().encode())
    with zipfile.ZipFile(folder / "enwik8.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("enwik8", dump())
    return folder


def play():
    rng = np.random.default_rng(1)
    return "".join(
        f"{rng.choice(['ROMEO', 'JULIÉT'])}:\n{' '.join(rng.choice(WORDS, 9))}\n\n"
        for _ in range(60)
    )


def dump():
    """1,000 bytes of pages, and what was before the first."""
    pages = "".join(f"  <page>\n    <title>{i} é</title>\n  </page>\n" for i in range(30))
    return ("<mediawiki>\n" + pages).encode()[:1000]


@pytest.fixture
def small_enwik8(monkeypatch):
    sizes = {"train": 800, "validation": 120, "test": 80}
    monkeypatch.setattr(text_builders.Enwik8, "SIZES", sizes)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("tfds")


@pytest.fixture(scope="module")
def corpus(folder, root):
    return data.load_text("wikitext2", data_dir=root, source_dir=folder)


def records(root, name, split):
    import tensorflow_datasets as tfds

    source = tfds.data_source(name, split=split, data_dir=root, download=False)
    return [source[i]["text"] for i in range(len(source))]


def numbered(n, role="train", documents=1):
    """A stream whose tokens say where they are."""
    tokens = np.arange(n, dtype=np.int32)
    return data.Stream(role, tokens, tokens * documents // n, n_bytes=n)


# Words: WikiText-2


def test_words_of_wikitext(corpus, wikitext):
    official = wikitext["train"]
    words = official.replace("\n", " <eos> ").split()
    vocabulary = corpus.vocabulary
    assert len(corpus.train) + len(corpus.search) == len(words) == vocabulary.counts.sum()
    assert vocabulary.size == len(set(words))
    counts = [words.count(word) for word in vocabulary.words]
    assert vocabulary.counts.tolist() == counts == sorted(counts, reverse=True)
    # Of words as frequent as each other, the one that came first is first.
    ties = [(-count, words.index(w)) for w, count in zip(vocabulary.words, counts, strict=True)]
    assert ties == sorted(ties)
    # The text comes back exactly, of all roles.
    both = np.concatenate([corpus.train.tokens, corpus.search.tokens])
    assert vocabulary.decode(both) == official
    np.testing.assert_array_equal(vocabulary.encode(official), both)
    assert vocabulary.decode(vocabulary.encode(wikitext["test"])) != wikitext["test"]  # Titles.
    for role in ("validation", "test"):
        expected = [
            word if word in vocabulary.words else "<unk>"
            for word in wikitext[role].replace("\n", " <eos> ").split()
        ]
        stream = getattr(corpus, role)
        assert [vocabulary.words[i] for i in stream.tokens] == expected
        assert stream.n_bytes == len(wikitext[role].encode())
    assert corpus.train.n_bytes + corpus.search.n_bytes == len(official.encode())
    assert repr(vocabulary) == f"WordVocabulary({vocabulary.size} tokens)"
    assert repr(corpus.test) == (
        f"Stream('test', {len(corpus.test)} tokens, {corpus.test.n_bytes} bytes)"
    )


def test_documents_of_wikitext_are_its_articles(corpus):
    streams = [corpus.train, corpus.search, corpus.validation, corpus.test]
    ends = [int(stream.documents[-1]) + 1 for stream in streams]
    assert ends[0] + ends[1] == 20 and ends[2:] == [3, 2]
    for stream in streams:
        for i in range(stream.documents[-1] + 1):
            article = corpus.vocabulary.decode(stream.tokens[stream.documents == i])
            assert article.startswith(" \n = ") and article.count(" number ") <= 1
            assert "= = Part = =" in article and " = Wins ; L = \n" in article


def test_the_search_stream_is_the_end_of_the_training_text(corpus, folder, root, wikitext):
    decode = corpus.vocabulary.decode
    search = decode(corpus.search.tokens)
    assert wikitext["train"] == decode(corpus.train.tokens) + search
    assert search.startswith(" \n = train number")
    n = len(wikitext["train"].encode())
    assert 0.18 * n <= corpus.search.n_bytes <= 0.22 * n
    again = data.load_text("wikitext2", data_dir=root)
    for role in data.STREAM_ROLES:
        a, b = getattr(corpus, role), getattr(again, role)
        np.testing.assert_array_equal(a.tokens, b.tokens)
        np.testing.assert_array_equal(a.documents, b.documents)
    whole = data.load_text("wikitext2", data_dir=root, search_fraction=0)
    assert whole.search is None and whole.train.documents[-1] == 19
    assert whole.vocabulary.words == corpus.vocabulary.words
    np.testing.assert_array_equal(whole.vocabulary.counts, corpus.vocabulary.counts)
    # The same text is held out whatever the tokens.
    letters = data.load_text("wikitext2", data_dir=root, tokenizer="byte")
    assert letters.vocabulary.decode(letters.search.tokens) == search
    assert letters.search.documents[-1] == corpus.search.documents[-1]


@pytest.mark.parametrize(
    "content, starts, cut",
    [
        (b"x" * 85 + b"\n" + b"x" * 14, [0, 40, 81], 81),
        (b"x" * 85 + b"\n" + b"x" * 14, [0, 40, 77], 80),  # Neither is near.
        (b"x" * 80 + b"\n" + b"x" * 19, [0, 40, 77], 81),
        (b"x" * 77 + b"\n\nx x" + b"\n" + b"x" * 17, [0], 79),
        (b"x" * 81 + b" " + b"x" * 18, [0], 82),
        (b"x" * 79 + "é".encode() + b"x" * 19, [0], 79),
        ("é".encode() * 50, [0], 80),
    ],
)
def test_where_the_search_stream_starts(content, starts, cut):
    assert len(content) == 100
    found = text._Text(content, starts)
    assert text._cut("some", found, 0.2) == cut
    train, search = found.at(cut)
    assert train.content + search.content == content
    assert train.starts[0] == search.starts[0] == 0
    assert all(content[cut:][s:] == content[cut + s :] for s in search.starts)


WORD_LISTS = st.lists(st.sampled_from("a b cc <unk> é".split()), max_size=5)


@given(st.lists(WORD_LISTS, max_size=6), WORD_LISTS)
def test_words_round_trip(lines, rest):
    vocabulary = text.WordVocabulary(
        counts=np.zeros(6, np.int64), words=("a", "b", "cc", "é", "<eos>", "<unk>")
    )
    whole = "".join("".join(f" {w}" for w in line) + " \n" for line in lines)
    whole += "".join(f" {w}" for w in rest)
    tokens = vocabulary.encode(whole)
    assert tokens.dtype == np.int32
    assert len(tokens) == len(lines) + len(rest) + sum(map(len, lines))
    assert vocabulary.decode(tokens) == whole
    np.testing.assert_array_equal(vocabulary.encode(vocabulary.decode(tokens)), tokens)


# Bytes: enwik8, Tiny Shakespeare


@given(st.text())
def test_bytes_round_trip(content):
    vocabulary = text.ByteVocabulary(counts=np.zeros(256, np.int64))
    tokens = vocabulary.encode(content)
    assert tokens.dtype == np.int32 and len(tokens) == len(content.encode())
    assert vocabulary.decode(tokens) == content


def test_bytes_of_enwik8(folder, tmp_path, small_enwik8):
    corpus = data.load_text("enwik8", data_dir=tmp_path, source_dir=folder, search_fraction=0.5)
    roles = [corpus.train, corpus.search, corpus.validation, corpus.test]
    assert [len(s) for s in roles[2:]] == [120, 80] and len(roles[0]) + len(roles[1]) == 800
    whole = np.concatenate([s.tokens for s in roles]).astype(np.uint8).tobytes()
    assert whole == dump()
    assert corpus.vocabulary.words is None and corpus.vocabulary.size == 256
    np.testing.assert_array_equal(
        corpus.vocabulary.counts, np.bincount(np.frombuffer(whole[:800], np.uint8), minlength=256)
    )
    for stream in roles:
        content = stream.tokens.astype(np.uint8).tobytes()
        firsts = np.flatnonzero(np.diff(stream.documents)) + 1
        found = [match.start() for match in re.finditer(b"  <page>\n", content)]
        # What is before the first page is a document, too.
        assert firsts.tolist() == [start for start in found if start]
        assert stream.n_bytes == len(stream)
    assert roles[1].tokens[:8].tolist() == list(b"  <page>")
    # An end within a character doesn't hurt.
    assert corpus.vocabulary.decode(np.array([97, 0xC3], np.int32)) == "a\ufffd"


def test_tiny_shakespeare_is_cut_as_by_tfds(folder, tmp_path):
    corpus = data.load_text("tiny_shakespeare", data_dir=tmp_path, source_dir=folder)
    characters = play()
    n = len(characters)
    first = int(n * 0.9)
    second = first + (n - first) // 2
    expected = (characters[:first], characters[first:second], characters[second:])
    for split, part in zip(("train", "validation", "test"), expected, strict=True):
        assert b"".join(records(tmp_path, "tiny_shakespeare", split)).decode() == part
    decode = corpus.vocabulary.decode
    assert decode(corpus.train.tokens) + decode(corpus.search.tokens) == expected[0]
    assert decode(corpus.validation.tokens) == expected[1]
    assert decode(corpus.train.tokens).endswith("\n")
    assert all(getattr(corpus, role).documents[-1] == 0 for role in data.STREAM_ROLES)
    words = data.load_text("tiny_shakespeare", data_dir=tmp_path, tokenizer="word")
    assert {"<unk>", "<eos>", "ROMEO:"} <= set(words.vocabulary.words)
    assert words.search.n_bytes == corpus.search.n_bytes


# Sub-words


@pytest.fixture(scope="module")
def pieces(folder, root):
    pytest.importorskip("sentencepiece")
    return data.load_text(
        "wikitext2", data_dir=root, source_dir=folder, tokenizer="sentencepiece:340"
    )


def test_sub_words_of_wikitext(pieces, corpus, wikitext, root, monkeypatch):
    vocabulary = pieces.vocabulary
    assert vocabulary.size == 340 == len(vocabulary.words) == len(set(vocabulary.words))
    assert np.all(np.diff(vocabulary.counts) <= 0)
    both = np.concatenate([pieces.train.tokens, pieces.search.tokens])
    np.testing.assert_array_equal(vocabulary.counts, np.bincount(both, minlength=340))
    np.testing.assert_array_equal(both, vocabulary.encode(wikitext["train"]))
    for role in ("validation", "test"):
        stream = getattr(pieces, role)
        assert stream.tokens.dtype == np.int32
        assert vocabulary.decode(stream.tokens) == wikitext[role]
    for role in data.STREAM_ROLES:
        a, b = getattr(pieces, role), getattr(corpus, role)
        assert a.n_bytes == b.n_bytes and len(b) < len(a) < a.n_bytes
        assert a.documents[-1] == b.documents[-1]
    assert "<unk>" in vocabulary.words and "\n" in vocabulary.words
    # Learnt once, they are kept; and learnt again they are the same.
    [kept] = (root / "wikitext2").glob("sentencepiece-340-*.model")
    assert kept.read_bytes() == vocabulary.model
    trainer = text._sentencepiece().SentencePieceTrainer
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "train", None)
        again = data.load_text("wikitext2", data_dir=root, tokenizer="sentencepiece:340")
    np.testing.assert_array_equal(again.test.tokens, pieces.test.tokens)
    content = wikitext["train"].encode()
    other = text._learn_pieces("wikitext2", content, 340, root)
    assert other.model == vocabulary.model
    (root / kept.name).unlink()


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581")))
def test_sub_words_round_trip(pieces, content):
    tokens = pieces.vocabulary.encode(content)
    assert tokens.dtype == np.int32
    assert pieces.vocabulary.decode(tokens) == content


def test_sub_words_that_cannot_be(pieces, root):
    def load(number):
        return data.load_text("wikitext2", data_dir=root, tokenizer=f"sentencepiece:{number}")

    with pytest.raises(ValueError, match="cannot make 100000 sub-words of the .* of wikitext2"):
        load(100000)
    [kept] = (root / "wikitext2").glob("sentencepiece-340-*.model")
    kept.write_bytes(b"something else")
    with pytest.raises(ValueError, match="340-.*: not a model of sentencepiece.*delete it"):
        load(340)
    kept.write_bytes(pieces.vocabulary.model)


def test_sub_words_without_their_package(corpus, root, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ImportError, match=r"needs the package .* pip install 'jaxnas\[text\]'"):
        data.load_text("wikitext2", data_dir=root, tokenizer="sentencepiece:340")


def test_sub_words_are_kept_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "some.model"
    text._write(path, b"model")
    assert path.read_bytes() == b"model" and path.stat().st_mode & 0o777 == 0o644

    def fail(*args, **kwargs):
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="no space"):
            text._write(path, b"other")
    with monkeypatch.context() as patch:  # A folder that cannot be written.
        patch.setattr(text.tempfile, "mkstemp", fail)
        text._write(path, b"other")
    assert [p.name for p in tmp_path.iterdir()] == ["some.model"]
    assert path.read_bytes() == b"model"


# Vocabularies, streams, corpora


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda c: text.ByteVocabulary(counts=c), "bytes need 256 counts and no words, got 3"),
        (lambda c: text.ByteVocabulary(counts=c.astype(np.int32)), r"int64 \[size\], got int32"),
        (lambda c: text.WordVocabulary(counts=c), "must contain <unk> and <eos>"),
        (lambda c: text.WordVocabulary(counts=c, words=("a", "<eos>", "b")), "must contain <unk>"),
        (lambda c: text.WordVocabulary(counts=c, words=("a",)), "each of 1 words, got 3"),
        (
            lambda c: text.WordVocabulary(
                counts=np.zeros(4, np.int64), words=("<eos>", "a", "a", "<unk>")
            ),
            "each word must occur once, got 'a' 2 times",
        ),
    ],
)
def test_vocabulary_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make(np.zeros(3, np.int64))


def test_tokens_of_another_vocabulary(corpus):
    size = corpus.vocabulary.size
    for token in (-1, size):
        with pytest.raises(ValueError, match=rf"must be in \[0, {size}\), got {token}; were they"):
            corpus.vocabulary.decode([0, token])
    assert corpus.vocabulary.decode([]) == ""
    with pytest.raises(ValueError, match="train stream has the token .* vocabulary has 2; make"):
        small = text.WordVocabulary(counts=np.zeros(2, np.int64), words=("<eos>", "<unk>"))
        dataclasses.replace(corpus, vocabulary=small)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"role": "valid"}, "unknown role 'valid', expected one of train, search, validation"),
        ({"tokens": np.zeros(3, np.int64)}, r"tokens must be int32 \[n\], got int64 \[3\]"),
        ({"tokens": np.zeros((3, 1), np.int32)}, r"tokens must be int32 \[n\], got int32 \[3, 1\]"),
        ({"documents": np.zeros(2, np.int32)}, r"int32 \[3\], as the tokens, got int32 \[2\]"),
        ({"documents": np.zeros(3, np.int64)}, r"int32 \[3\], as the tokens, got int64 \[3\]"),
        ({"documents": np.array([0, 1, 0], np.int32)}, "must be numbered from 0 in the order"),
        ({"documents": np.array([-1, 0, 0], np.int32)}, "must be numbered from 0"),
        ({"tokens": np.array([0, -7, 0], np.int32)}, "has the token -7"),
        ({"n_bytes": 0}, "n_bytes of the train stream must be positive, got 0"),
        (
            {"tokens": np.zeros(0, np.int32), "documents": np.zeros(0, np.int32)},
            "the train stream has no tokens",
        ),
    ],
)
def test_stream_errors(change, message):
    good = {"role": "train", "n_bytes": 5}
    good |= {name: np.zeros(3, np.int32) for name in ("tokens", "documents")}
    data.Stream(**good)
    with pytest.raises(ValueError, match=message):
        data.Stream(**(good | change))


def test_the_test_stream_cannot_be_searched(corpus):
    assert corpus.search.require("search") is corpus.search
    assert corpus.test.require("validation", "test") is corpus.test
    with pytest.raises(ValueError, match="needs the 'search' stream, and got the 'test' stream"):
        corpus.test.require("search")
    with pytest.raises(ValueError, match="'train' or 'search'"):
        corpus.validation.require("train", "search")
    with pytest.raises(ValueError, match="needs the 'validation' stream, and got the 'test'"):
        dataclasses.replace(corpus, validation=corpus.test)
    with pytest.raises(AttributeError, match="NoneType"):
        dataclasses.replace(corpus, train=None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        corpus.test.role = "search"
    for values in (corpus.train.tokens, corpus.train.documents, corpus.vocabulary.counts):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0


# Batches


@given(st.data())
def test_rows_go_on_where_they_stopped(draw):
    count = draw.draw(st.integers(1, 3))
    batch_size = count * draw.draw(st.integers(1, 4))
    length = draw.draw(st.integers(1, 9))
    n = draw.draw(st.integers(batch_size * length + 1, batch_size * length * 6 + 1))
    seed = draw.draw(st.none() | st.integers(0, 2**64 - 1))
    k_documents = draw.draw(st.integers(1, n))
    stream = numbered(n, documents=k_documents)
    batches = data.ContiguousBatches(stream, batch_size, length, seed=seed)
    k = batches.steps_per_epoch
    row = (n - 1) // batch_size
    assert k == row // length >= 1
    for epoch in (0, 2):
        steps = [batches.at(epoch * k + i) for i in range(k)]
        rows = {
            name: np.concatenate([s[name] for s in steps], 1)
            for name in steps[0].keys() - {"first"}
        }
        start = rows["tokens"][0, 0]
        assert seed is not None or start == 0
        for r in range(batch_size):
            places = start + r * row + np.arange(k * length)
            np.testing.assert_array_equal(rows["tokens"][r], places % n)
            np.testing.assert_array_equal(rows["targets"][r], (places + 1) % n)
            expected = stream.documents[places % n] + k_documents * (places >= n)
            assert k_documents == stream.documents[-1] + 1
            np.testing.assert_array_equal(rows["documents"][r], expected)
        # No token is seen twice in an epoch.
        assert len(np.unique(rows["tokens"])) == rows["tokens"].size
        assert [s["first"].tolist() for s in steps] == [[i == 0] * batch_size for i in range(k)]
    # Any other object at any step gives the same: nothing is remembered.
    step = draw.draw(st.integers(0, 10**9))
    batch = batches.at(step)
    assert {name: (x.dtype, x.shape) for name, x in batch.items()} == {
        "tokens": (np.int32, (batch_size, length)),
        "targets": (np.int32, (batch_size, length)),
        "documents": (np.int32, (batch_size, length)),
        "first": (np.bool_, (batch_size,)),
    }
    # The processes together have the global batch, in order.
    parts = [
        data.ContiguousBatches(stream, batch_size, length, (i, count), seed).at(np.int64(step))
        for i in range(count)
    ]
    for name, values in batch.items():
        assert {len(part[name]) for part in parts} == {batch_size // count}
        np.testing.assert_array_equal(np.concatenate([p[name] for p in parts]), values)


def test_epochs_start_elsewhere_with_a_seed():
    stream = numbered(1000)
    batches = data.ContiguousBatches(stream, 4, 10, seed=0)
    k = batches.steps_per_epoch
    starts = [int(batches.at(epoch * k)["tokens"][0, 0]) for epoch in range(20)]
    assert len(set(starts)) == 20 and max(starts) > 700 and min(starts) < 300
    assert starts[:2] == [259, 638]  # The draw doesn't change between versions.
    other = data.ContiguousBatches(stream, 4, 10, seed=1)
    assert int(other.at(0)["tokens"][0, 0]) != starts[0]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            {"batch_size": 10, "length": 10},
            "10 rows of 10 tokens and the next one are 101 tokens, and the 'train' stream has 100;"
            " what fits is 9 rows of this length or this many rows of length 9",
        ),
        ({"batch_size": 200, "length": 9}, "has 100; what fits is 11 rows of this length$"),
        ({"batch_size": 9, "length": 100}, "has 100; what fits is this many rows of length 11$"),
        ({"batch_size": 100, "length": 100}, "has 100; what fits is 1 row of length 99$"),
        ({"batch_size": 0}, r"batch_size must be positive, got 0 \(the 'train' stream has 100"),
        ({"length": -1}, "length must be positive, got -1"),
        ({"batch_size": 3, "shard": (0, 2)}, "a batch of 3 rows cannot be shared by 2 processes"),
        ({"shard": (2, 2)}, "0 <= index < count"),
        ({"seed": -1}, "seed must be None or in"),
    ],
)
def test_batches_errors(arguments, message):
    good = {"batch_size": 2, "length": 5}
    data.ContiguousBatches(numbered(100), **good)
    with pytest.raises(ValueError, match=message):
        data.ContiguousBatches(numbered(100), **(good | arguments))


def test_batches_need_a_step_that_is_not_negative():
    assert data.ContiguousBatches(numbered(11), 2, 5).steps_per_epoch == 1
    with pytest.raises(ValueError, match="step must not be negative, got -1"):
        data.ContiguousBatches(numbered(11), 2, 5).at(-1)


@given(st.integers(2, 80), st.integers(1, 12), st.integers(1, 12))
def test_evaluation_has_every_token_once(n, batch_size, length):
    stream = numbered(n, "test", documents=3)
    out = data.evaluation_streams(stream, batch_size, length)
    m = math.ceil(math.ceil((n - 1) / batch_size) / length)
    dtypes = {"tokens": np.int32, "targets": np.int32, "documents": np.int32, "weight": np.float32}
    for name, dtype in dtypes.items():
        assert out[name].shape == (m, batch_size, length) and out[name].dtype == dtype
    assert set(out["weight"].ravel()) <= {0.0, 1.0}
    real = out["weight"] == 1
    assert sorted(out["targets"][real]) == list(range(1, n))
    np.testing.assert_array_equal(out["tokens"][real] + 1, out["targets"][real])
    np.testing.assert_array_equal(out["documents"], stream.documents[out["tokens"]])
    # What is real of a row goes on from batch to batch, and padding is at its end.
    for r in range(batch_size):
        row, weight = out["tokens"][:, r].ravel(), real[:, r].ravel()
        assert not np.any(weight[1:] & ~weight[:-1])
        assert np.all(np.diff(row[weight]) == 1)
    assert out["first"].tolist() == [[i == 0] * batch_size for i in range(m)]


def test_perplexity_is_exact_whatever_the_batches(corpus):
    counts = np.maximum(corpus.vocabulary.counts, 1)
    nats = -np.log(counts / counts.sum())
    expected = math.exp(nats[corpus.test.tokens[1:]].mean())
    for batch_size, length in ((1, 7), (5, 8), (64, 100)):
        out = data.evaluation_streams(corpus.test, batch_size, length)
        total = (nats[out["targets"]] * out["weight"]).sum()
        assert math.exp(total / out["weight"].sum()) == pytest.approx(expected, rel=1e-12)


def test_evaluation_errors():
    with pytest.raises(ValueError, match="the 'test' stream has one token and no next one"):
        data.evaluation_streams(numbered(1, "test"), 1, 1)
    with pytest.raises(ValueError, match="batch_size must be positive, got 0"):
        data.evaluation_streams(numbered(5), 0, 1)
    with pytest.raises(ValueError, match="length must be positive, got 0"):
        data.evaluation_streams(numbered(5), 1, 0)


# Files and records


def test_the_records_are_the_file(folder, root, corpus, wikitext, tmp_path, monkeypatch):
    for split, content in wikitext.items():
        assert b"".join(records(root, "wikitext2", split)).decode() == content
    # Many records, each of whole lines where these are not longer.
    monkeypatch.setattr(text_builders, "_RECORD", 100)
    again = data.load_text("wikitext2", data_dir=tmp_path, source_dir=folder)
    np.testing.assert_array_equal(again.train.tokens, corpus.train.tokens)
    np.testing.assert_array_equal(again.train.documents, corpus.train.documents)
    cut = records(tmp_path, "wikitext2", "train")
    assert b"".join(cut).decode() == wikitext["train"]
    assert {len(record) > 100 for record in cut} == {False}
    assert {record.endswith(b"\n") for record in cut} == {False, True}
    whole = [line for line in wikitext["train"].encode().splitlines(True) if len(line) <= 100]
    inside = set(b"".join(record + b"\0" for record in cut).replace(b"\n", b"\n\0").split(b"\0"))
    assert set(whole) <= inside


def test_prepared_once_and_without_tensorflow(folder, tmp_path):
    code = (
        "import sys; from jaxnas import data\n"
        "assert 'tensorflow_datasets' not in sys.modules\n"
        "assert 'sentencepiece' not in sys.modules\n"
        f"c = data.load_text('wikitext2', data_dir={str(tmp_path)!r}, source_dir={str(folder)!r})\n"
        "assert 'tensorflow' not in sys.modules\n"
        "assert 'sentencepiece' not in sys.modules\n"
        "print(c.vocabulary.decode(c.test.tokens[:3]).encode())\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == repr(b" \n = <unk>")
    assert [path.name for path in tmp_path.iterdir()] == ["wikitext2"]


def zipped(*names):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.mkdir("folder")
        for name in names:
            archive.writestr(name, b"text " * 9)
    return buffer.getvalue()


CONTENTS = [b"text " * 9, gzip.compress(b"text " * 9), lzma.compress(b"text " * 9), zipped("a")]


@pytest.mark.parametrize("content", CONTENTS, ids=["plain", "gzip", "xz", "zip"])
def test_the_content_decides_how_a_file_is_read(tmp_path, content):
    path = tmp_path / "some.gz"
    path.write_bytes(content)
    assert text_builders.read_bytes(path) == b"text " * 9
    for wrong in [] if content == CONTENTS[0] else [content[:-7], content[:20]]:
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match="some.gz: truncated or corrupt .* of [0-9]+ bytes"):
            text_builders.read_bytes(path)


def test_files_that_cannot_be_read(tmp_path):
    path = tmp_path / "some"
    for content, message in (
        (b"", "some: expected text, found an empty file"),
        (gzip.compress(b""), "some: expected text, found an empty gzip file"),
        (zipped("a", "b"), r"some: expected a zip archive of one file, found 2 \(a, b\); unpack"),
        (lzma.compress(b"text")[:-20] + b"x" * 20, "some: truncated or corrupt xz file"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            text_builders.read_bytes(path)


@pytest.mark.parametrize(
    "name, where",
    [
        ("wikitext2", "has no file wikitext-2.train.txt or wiki.train.tokens, .*wikitext-2-v1.zip"),
        ("enwik8", "has no file enwik8, plain .*mingru-pytorch==0.2.1 holds it as data/enwik8.gz"),
        ("tiny_shakespeare", "has no file tinyshakespeare.txt or input.txt, .*karpathy/char-rnn"),
    ],
)
def test_missing_files(name, where, tmp_path):
    root = tmp_path / "tfds"
    words = where.rpartition(".*")[2]
    for source_dir, message in (
        (None, f"{name} is not prepared in .*source_dir.*{words}"),
        (tmp_path / "nowhere", f"there is no folder .*nowhere.*{words}"),
        (tmp_path, where),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            data.load_text(name, data_dir=root, source_dir=source_dir)
    assert not list(root.glob("*"))  # Nothing half-made is left.


@pytest.mark.parametrize(
    "name, file, content, message",
    [
        ("wikitext2", "wikitext-2.test.txt", b" a \n \xff", "found the byte 0xff at offset 5"),
        ("wikitext2", "wikitext-2.test.txt", b"", "test.txt: expected text, found an empty file"),
        ("tiny_shakespeare", "input.txt", b"\xc3", "found the byte 0xc3 at offset 0 .unexpected"),
        ("tiny_shakespeare", "input.txt", b"a", "90, 5 and 5 %, found 1 characters"),
        ("enwik8", "enwik8", b"abc", "enwik8: expected 100,000,000 bytes of text, found 3; copy"),
    ],
)
def test_damaged_files(name, file, content, message, tmp_path):
    for part in ("train", "valid", "test"):
        (tmp_path / f"wikitext-2.{part}.txt").write_bytes(b" a \n")
    (tmp_path / file).write_bytes(content)
    root = tmp_path / "tfds"
    with pytest.raises(ValueError, match=f"{file}: .*{message}|{message}"):
        data.load_text(name, data_dir=root, source_dir=tmp_path)
    assert not list(root.glob("*"))


# Names, options, and what TFDS has prepared


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"name": "wikitext"}, "unknown dataset 'wikitext', did you mean 'wikitext2'"),
        ({"search_fraction": 1.0}, r"search_fraction must be in \[0, 1\), got 1.0"),
        ({"search_fraction": -0.1}, r"search_fraction must be in \[0, 1\), got -0.1"),
        ({"search_fraction": 1e-9}, "search stream of wikitext2: cannot hold 0 of .* bytes out"),
        ({"tokenizer": "words"}, "unknown tokenizer 'words', expected 'word', 'byte' or 'sent"),
        ({"tokenizer": "sentencepiece"}, "unknown tokenizer 'sentencepiece'"),
        ({"tokenizer": "sentencepiece:0"}, "unknown tokenizer 'sentencepiece:0'"),
        ({"tokenizer": "byte:8"}, "unknown tokenizer 'byte:8'"),
    ],
)
def test_options_that_cannot_be(corpus, root, arguments, message):
    with pytest.raises(ValueError, match=message):
        data.load_text(**({"name": "wikitext2", "data_dir": root} | arguments))


def prepare(tmp_path, texts, feature=None):
    """A set with a feature "text" as TFDS prepares it: a record for each example."""
    import tensorflow_datasets as tfds

    class SomeTexts(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("2.0.0")
        code_path = None

        def _info(self):
            features = tfds.features.FeaturesDict({"text": feature or tfds.features.Text()})
            return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples(part) for split, part in texts.items()}

        def _generate_examples(self, part):
            for i, example in enumerate(part):
                yield i, {"text": example}

    SomeTexts(data_dir=tmp_path, file_format="array_record").download_and_prepare()


def test_any_other_prepared_text(tmp_path):
    train = ["one two\n", "three four", "\u00e9", "", "two two"]
    prepare(tmp_path, {"train": train, "validation": ["one"], "test": ["one", "five\n"]})
    corpus = data.load_text("some_texts", data_dir=tmp_path, search_fraction=0)
    decode = corpus.vocabulary.decode
    assert decode(corpus.train.tokens) == "one two\nthree four\n\u00e9\n\ntwo two"
    assert decode(corpus.test.tokens) == "one\nfive\n"
    assert corpus.train.documents.tolist() == [0] * 8 + [1] * 11 + [2] * 3 + [3] + [4] * 7
    words = data.load_text(
        "some_texts:2.0.0", data_dir=tmp_path, tokenizer="word", search_fraction=0.23
    )
    assert words.vocabulary.words[:2] == ("<eos>", "two")
    assert words.vocabulary.words[-1] == "<unk>" and words.vocabulary.counts[-1] == 0
    assert words.search.documents.tolist() == [0, 0]
    assert words.vocabulary.decode(words.search.tokens) == " two two"
    assert words.vocabulary.decode(words.test.tokens) == " one \n <unk> \n"


def test_prepared_sets_that_are_not_such_texts(tmp_path, folder, root):
    import tensorflow_datasets as tfds

    with pytest.raises(ValueError, match="digits has no feature 'text', only image, label"):
        data.load_text("digits", data_dir=tmp_path / "images")
    data.load_text("wikitext2", data_dir=root, source_dir=folder)
    with pytest.raises(ValueError, match="wikitext2 has no feature 'image' and 'label', only text"):
        data.load("wikitext2", data_dir=root)
    prepare(tmp_path / "a", {"train": ["one"], "test": ["one"]})
    with pytest.raises(ValueError, match="some_texts has no split 'validation', only test, train"):
        data.load_text("some_texts", data_dir=tmp_path / "a")
    splits = ("train", "validation", "test")
    prepare(
        tmp_path / "b",
        dict.fromkeys(splits, [[1, 2]]),
        tfds.features.Tensor(shape=(2,), dtype=np.int32),
    )
    with pytest.raises(ValueError, match=r"'text' must be one string, got int32 \[2\]"):
        data.load_text("some_texts", data_dir=tmp_path / "b")
    prepare(tmp_path / "c", dict.fromkeys(splits, [b"one"]) | {"test": [b"", b"\xff"]})
    with pytest.raises(
        ValueError, match="test split of some_texts is not UTF-8 at byte 1 .*'byte'"
    ):
        data.load_text("some_texts", data_dir=tmp_path / "c", tokenizer="word")
    corpus = data.load_text("some_texts", data_dir=tmp_path / "c")
    assert corpus.test.tokens.tolist() == [10, 255]
    prepare(tmp_path / "d", dict.fromkeys(splits, ["one"]) | {"validation": [""]})
    with pytest.raises(ValueError, match="the validation split of some_texts has no text"):
        data.load_text("some_texts", data_dir=tmp_path / "d")


def test_our_name_prepared_in_another_format(tmp_path, folder):
    data.load_text("tiny_shakespeare", data_dir=tmp_path, source_dir=folder)
    info = tmp_path / "tiny_shakespeare" / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(FileNotFoundError, match="is prepared as tfrecord .*array_record is needed"):
        data.load_text("tiny_shakespeare", data_dir=tmp_path)


# The real files


def source(*names):
    try:
        return text_builders.read_bytes(text_builders.find_source(REAL, names, ""))
    except FileNotFoundError as error:
        pytest.skip(f"JAXNAS_TEXT: {error}")


@real
def test_real_wikitext(tmp_path):
    contents = {
        split: source(f"wikitext-2.{part}.txt", f"wiki.{part}.tokens")
        for split, part in (("train", "train"), ("validation", "valid"), ("test", "test"))
    }
    corpus = data.load_text("wikitext2", data_dir=tmp_path, source_dir=REAL)
    train, search, validation, test = (getattr(corpus, role) for role in data.STREAM_ROLES)
    assert len(train) + len(search) == 2_088_628 == corpus.vocabulary.counts.sum()
    assert (len(validation), len(test), corpus.vocabulary.size) == (217_646, 245_569, 33_278)
    ends = [int(s.documents[-1]) + 1 for s in (train, search, validation, test)]
    assert ends[0] + ends[1] == 600 and ends[2:] == [60, 60]
    decode = corpus.vocabulary.decode
    assert (decode(train.tokens) + decode(search.tokens)).encode() == contents["train"]
    assert decode(validation.tokens).encode() == contents["validation"]
    assert decode(test.tokens).encode() == contents["test"]
    assert abs(len(search) / 2_088_628 - 0.2) < 0.005


@real
def test_real_tiny_shakespeare(tmp_path):
    content = source("tinyshakespeare.txt", "input.txt")
    corpus = data.load_text("tiny_shakespeare", data_dir=tmp_path, source_dir=REAL)
    streams = [getattr(corpus, role) for role in data.STREAM_ROLES]
    assert len(streams[0]) + len(streams[1]) == 1_003_854
    assert [len(s) for s in streams[2:]] == [55_770, 55_770]
    assert "".join(corpus.vocabulary.decode(s.tokens) for s in streams).encode() == content


@real
def test_real_enwik8(tmp_path):
    content = source("enwik8")
    assert hashlib.md5(content).hexdigest() == "a1fa5ffddb56f4953e226637dabbb36a"
    corpus = data.load_text("enwik8", data_dir=tmp_path, source_dir=REAL)
    start = documents = 0
    for role in data.STREAM_ROLES:
        stream = getattr(corpus, role)
        assert stream.tokens.astype(np.uint8).tobytes() == content[start : start + len(stream)]
        start += len(stream)
        documents += stream.documents[-1] + 1
    assert start == 100_000_000 and len(corpus.validation) == len(corpus.test) == 5_000_000
    # The pages, what is before the first, and the rest of two that were cut.
    assert documents == 12_347 + 3

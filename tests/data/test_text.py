"""Text for language models: the real files where they are there, small ones of their shape always."""

import collections
import gzip
import hashlib
import io
import lzma
import os
import re
import zipfile

import numpy as np
import pytest
import refusals
from small_texts import dump, play, prepare_examples

from jaxnas import data
from jaxnas.data import source_files, text, text_builders

REAL = os.environ.get("JAXNAS_TEXT")
real = pytest.mark.skipif(not REAL, reason="JAXNAS_TEXT names no folder with the original files of texts")


@pytest.fixture
def small_enwik8(monkeypatch):
    sizes = {"train": 800, "validation": 120, "test": 80}
    monkeypatch.setattr(text_builders.Enwik8, "SIZES", sizes)


def records(text_root, name, split):
    import tensorflow_datasets as tfds

    [digest] = (path.name for path in (text_root / name).iterdir())
    source = tfds.data_source(f"{name}/{digest}", split=split, data_dir=text_root, download=False)
    return [source[i]["text"] for i in range(len(source))]


def test_words_of_wikitext(corpus, wikitext):
    official = wikitext["train"]
    words = official.replace("\n", " <eos> ").split()
    vocabulary = corpus.vocabulary
    assert len(corpus.train) + len(corpus.search) == len(words) == vocabulary.counts.sum()
    # Of words as frequent as each other, the one that came first is first.
    counted = zip(vocabulary.words, vocabulary.counts.tolist(), strict=True)
    assert list(counted) == collections.Counter(words).most_common()
    # The text comes back exactly, of all roles.
    both = np.concatenate([corpus.train.tokens, corpus.search.tokens])
    assert vocabulary.decode(both) == official
    np.testing.assert_array_equal(vocabulary.encode(official), both)
    assert vocabulary.decode(vocabulary.encode(wikitext["test"])) != wikitext["test"]  # Titles.
    for role in ("validation", "test"):
        stream, given = corpus.splits[role], wikitext[role].replace("\n", " <eos> ").split()
        expected = [word if word in vocabulary.words else "<unk>" for word in given]
        assert [vocabulary.words[i] for i in stream.tokens] == expected
        assert stream.n_bytes == len(wikitext[role].encode())
    assert corpus.train.n_bytes + corpus.search.n_bytes == len(official.encode())
    assert repr(vocabulary) == f"WordVocabulary({vocabulary.size} tokens)"
    assert repr(corpus.test) == f"Stream('test', {len(corpus.test)} tokens, {corpus.test.n_bytes} bytes)"


def test_documents_of_wikitext_are_its_articles(corpus):
    ends = {role: int(stream.documents[-1]) + 1 for role, stream in corpus.splits.items()}
    assert ends["train"] + ends["search"] == 20 and (ends["validation"], ends["test"]) == (3, 2)
    for stream in corpus.splits.values():
        for i in range(stream.documents[-1] + 1):
            article = corpus.vocabulary.decode(stream.tokens[stream.documents == i])
            assert article.startswith(" \n = ") and article.count(" number ") <= 1
            assert "= = Part = =" in article and " = Wins ; L = \n" in article


def test_the_search_stream_is_the_end_of_the_training_text(corpus, text_files, text_root, wikitext):
    decode = corpus.vocabulary.decode
    search = decode(corpus.search.tokens)
    assert wikitext["train"] == decode(corpus.train.tokens) + search
    assert search.startswith(" \n = train number")
    n = len(wikitext["train"].encode())
    assert 0.18 * n <= corpus.search.n_bytes <= 0.22 * n
    again = data.load_text("wikitext2", data_dir=text_root)
    for role, stream in corpus.splits.items():
        np.testing.assert_array_equal(stream.tokens, again.splits[role].tokens)
        np.testing.assert_array_equal(stream.documents, again.splits[role].documents)
    whole = data.load_text("wikitext2", data_dir=text_root, search_fraction=0)
    assert whole.search is None and whole.train.documents[-1] == 19
    assert whole.vocabulary.words == corpus.vocabulary.words
    np.testing.assert_array_equal(whole.vocabulary.counts, corpus.vocabulary.counts)
    # The same text is held out whatever the tokens.
    letters = data.load_text("wikitext2", data_dir=text_root, tokenizer="byte")
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
    found = text.Text(content, starts)
    assert text._cut("some", found, "search", 0.2) == cut
    train, search = found.at(cut)
    assert train.content + search.content == content
    assert train.starts[0] == search.starts[0] == 0
    assert all(content[cut:][s:] == content[cut + s :] for s in search.starts)


def test_bytes_of_enwik8(text_files, tmp_path, small_enwik8):
    corpus = data.load_text("enwik8", data_dir=tmp_path, source_dir=text_files, search_fraction=0.5)
    roles = [getattr(corpus, role) for role in data.ROLES]
    assert [len(s) for s in roles[2:]] == [120, 80] and len(roles[0]) + len(roles[1]) == 800
    whole = np.concatenate([s.tokens for s in roles]).astype(np.uint8).tobytes()
    assert whole == dump()
    assert corpus.vocabulary.words is None and corpus.vocabulary.size == 256
    expected = np.bincount(np.frombuffer(whole[:800], np.uint8), minlength=256)
    np.testing.assert_array_equal(corpus.vocabulary.counts, expected)
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


def test_tiny_shakespeare_is_cut_as_by_tfds(text_files, tmp_path):
    corpus = data.load_text("tiny_shakespeare", data_dir=tmp_path, source_dir=text_files)
    characters = play()
    first = int(len(characters) * 0.9)
    second = first + (len(characters) - first) // 2
    expected = (characters[:first], characters[first:second], characters[second:])
    for split, part in zip(("train", "validation", "test"), expected, strict=True):
        assert b"".join(records(tmp_path, "tiny_shakespeare", split)).decode() == part
    decode = corpus.vocabulary.decode
    assert decode(corpus.train.tokens) + decode(corpus.search.tokens) == expected[0]
    assert decode(corpus.validation.tokens) == expected[1]
    assert decode(corpus.train.tokens).endswith("\n")
    assert all(getattr(corpus, role).documents[-1] == 0 for role in data.ROLES)
    words = data.load_text("tiny_shakespeare", data_dir=tmp_path, tokenizer="word")
    assert {"<unk>", "<eos>", "ROMEO:"} <= set(words.vocabulary.words)
    assert words.search.n_bytes == corpus.search.n_bytes


def test_the_records_are_the_file(text_files, text_root, corpus, wikitext, tmp_path, monkeypatch):
    for split, content in wikitext.items():
        assert b"".join(records(text_root, "wikitext2", split)).decode() == content
    # Many records, each of whole lines where these are not longer.
    monkeypatch.setattr(text_builders, "_RECORD", 100)
    again = data.load_text("wikitext2", data_dir=tmp_path, source_dir=text_files)
    np.testing.assert_array_equal(again.train.tokens, corpus.train.tokens)
    np.testing.assert_array_equal(again.train.documents, corpus.train.documents)
    cut = records(tmp_path, "wikitext2", "train")
    assert b"".join(cut).decode() == wikitext["train"]
    assert max(map(len, cut)) <= 100
    short = {line for line in wikitext["train"].encode().splitlines(True) if len(line) <= 100}
    assert short <= {line for record in cut for line in record.splitlines(True)}


def zipped(*names):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.mkdir("folder")
        for name in names:
            archive.writestr(name, b"text " * 9)
    return buffer.getvalue()


def test_the_content_decides_how_a_file_is_read(tmp_path):
    path, content = tmp_path / "some.gz", b"text " * 9
    for given in (content, gzip.compress(content), lzma.compress(content), zipped("a")):
        path.write_bytes(given)
        assert source_files.read_bytes(path) == content
        for wrong in [] if given == content else [given[:-7], given[:20]]:
            path.write_bytes(wrong)
            refusals.check((lambda: source_files.read_bytes(path), ValueError, "some.gz", "truncated"))
    xz = lzma.compress(content)[:-20] + b"x" * 20
    for wrong, name in (
        (b"", "content"),
        (gzip.compress(b""), "content"),
        (zipped("a", "b"), "2"),
        (xz, "corrupt"),
    ):
        path.write_bytes(wrong)
        refusals.check((lambda: source_files.read_bytes(path), ValueError, "some.gz", name))


@pytest.mark.parametrize(
    "name, file, origin",
    [
        ("wikitext2", "wikitext-2.train.txt or wiki.train.tokens", "wikitext-2-v1.zip"),
        ("enwik8", "enwik8", "data/enwik8.gz"),
        ("tiny_shakespeare", "tinyshakespeare.txt or input.txt", "karpathy/char-rnn"),
    ],
)
def test_missing_files(name, file, origin, tmp_path):
    def case(source, *names):
        given = dict(data_dir=tmp_path / "tfds", source_dir=source)
        return lambda: data.load_text(name, **given), FileNotFoundError, origin, *names

    refusals.check(
        case(None, f"{name} is not prepared in", "source_dir"),
        case(tmp_path / "nowhere", "no folder", "nowhere"),
        case(tmp_path, f"has no file {file}"),
    )
    assert not list(tmp_path.iterdir())  # Nothing half-made is left.


@pytest.mark.parametrize(
    "name, file, content, message",
    [
        ("wikitext2", "wikitext-2.test.txt", b" a \n \xff", "at offset 5"),
        ("wikitext2", "wikitext-2.test.txt", b"", "some content"),
        ("tiny_shakespeare", "input.txt", b"\xc3", "at offset 0"),
        ("tiny_shakespeare", "input.txt", b"a", "90, 5"),
        ("enwik8", "enwik8", b"abc", "100,000,000"),
    ],
)
def test_damaged_files(name, file, content, message, tmp_path):
    for part in ("train", "valid", "test"):
        (tmp_path / f"wikitext-2.{part}.txt").write_bytes(b" a \n")
    (tmp_path / file).write_bytes(content)
    root = tmp_path / "tfds"
    refusals.check((lambda: data.load_text(name, data_dir=root, source_dir=tmp_path), ValueError, message))
    assert not list(root.glob("*"))


def test_options_that_cannot_be(corpus, text_root):
    def case(*names, name="wikitext2", **options):
        return lambda: data.load_text(name, data_dir=text_root, **options), ValueError, *names

    refusals.check(
        case("'wikitext'", name="wikitext"),
        case("search_fraction", search_fraction=1.0),
        case("cannot hold 0", search_fraction=1e-9),
        *(
            case(repr(name), tokenizer=name)
            for name in ("words", "sentencepiece", "sentencepiece:0", "byte:8")
        ),
    )


def prepare(folder, feature=None, **texts):
    """A set with a feature "text"."""
    import tensorflow_datasets as tfds

    splits = {split: [{"text": text} for text in part] for split, part in texts.items()}
    return prepare_examples(folder, {"text": feature or tfds.features.Text()}, **splits)


def test_any_other_prepared_text(tmp_path):
    train = ["one two\n", "three four", "\u00e9", "", "two two"]
    prepare(tmp_path, train=train, validation=["one"], test=["one", "five\n"])
    corpus = data.load_text("some_examples", data_dir=tmp_path, search_fraction=0)
    decode = corpus.vocabulary.decode
    assert decode(corpus.train.tokens) == "one two\nthree four\n\u00e9\n\ntwo two"
    assert decode(corpus.test.tokens) == "one\nfive\n"
    assert corpus.train.documents.tolist() == [0] * 8 + [1] * 11 + [2] * 3 + [3] + [4] * 7
    words = data.load_text("some_examples:2.0.0", data_dir=tmp_path, tokenizer="word", search_fraction=0.23)
    assert words.vocabulary.words[:2] == ("<eos>", "two")
    assert words.vocabulary.words[-1] == "<unk>" and words.vocabulary.counts[-1] == 0
    assert words.search.documents.tolist() == [0, 0]
    assert words.vocabulary.decode(words.search.tokens) == " two two"
    assert words.vocabulary.decode(words.test.tokens) == " one \n <unk> \n"


def test_prepared_sets_that_are_not_such_texts(tmp_path, corpus, text_root):
    import tensorflow_datasets as tfds

    def case(name, letter, **options):
        return (
            lambda: data.load_text("some_examples", data_dir=tmp_path / letter, **options),
            ValueError,
            name,
        )

    one, bytes_, numbers = ["one"], [b"one"], tfds.features.Tensor(shape=(2,), dtype=np.int32)
    prepare(tmp_path / "a", train=one, test=one)
    prepare(tmp_path / "b", numbers, train=[[1, 2]], validation=[[1, 2]], test=[[1, 2]])
    prepare(tmp_path / "c", train=bytes_, validation=bytes_, test=[b"", b"\xff"])
    prepare(tmp_path / "d", train=one, validation=[""], test=one)
    refusals.check(
        (lambda: data.load_text("digits", data_dir=tmp_path / "images"), ValueError, "'text'"),
        (lambda: data.load("wikitext2", data_dir=text_root), ValueError, "'image'"),
        case("'validation'", "a"),
        case("'text'", "b"),
        case("'byte'", "c", tokenizer="word"),
        case("some_examples", "d"),
    )
    assert data.load_text("some_examples", data_dir=tmp_path / "c").test.tokens.tolist() == [10, 255]


def source(*names):
    try:
        return source_files.read_bytes(text_builders.find_source(REAL, names, ""))
    except FileNotFoundError as error:
        pytest.skip(f"JAXNAS_TEXT: {error}")


@real
def test_real_wikitext(tmp_path):
    names = {"train": "train", "validation": "valid", "test": "test"}
    contents = {
        split: source(f"wikitext-2.{name}.txt", f"wiki.{name}.tokens") for split, name in names.items()
    }
    corpus = data.load_text("wikitext2", data_dir=tmp_path, source_dir=REAL)
    sizes = {role: len(stream) for role, stream in corpus.splits.items()}
    assert sizes["train"] + sizes["search"] == 2_088_628 == corpus.vocabulary.counts.sum()
    assert (sizes["validation"], sizes["test"], corpus.vocabulary.size) == (217_646, 245_569, 33_278)
    assert abs(sizes["search"] / 2_088_628 - 0.2) < 0.005
    ends = {role: int(stream.documents[-1]) + 1 for role, stream in corpus.splits.items()}
    assert ends["train"] + ends["search"] == 600 and ends["validation"] == ends["test"] == 60
    texts = {role: corpus.vocabulary.decode(stream.tokens) for role, stream in corpus.splits.items()}
    texts["train"] += texts.pop("search")
    assert {role: text.encode() for role, text in texts.items()} == contents


@real
def test_real_tiny_shakespeare(tmp_path):
    content = source("tinyshakespeare.txt", "input.txt")
    corpus = data.load_text("tiny_shakespeare", data_dir=tmp_path, source_dir=REAL)
    streams = [getattr(corpus, role) for role in data.ROLES]
    assert len(streams[0]) + len(streams[1]) == 1_003_854
    assert [len(stream) for stream in streams[2:]] == [55_770, 55_770]
    assert "".join(corpus.vocabulary.decode(stream.tokens) for stream in streams).encode() == content


@real
def test_real_enwik8(tmp_path):
    content = source("enwik8")
    assert hashlib.md5(content).hexdigest() == "a1fa5ffddb56f4953e226637dabbb36a"
    corpus = data.load_text("enwik8", data_dir=tmp_path, source_dir=REAL)
    streams = [getattr(corpus, role) for role in data.ROLES]
    assert b"".join(stream.tokens.astype(np.uint8).tobytes() for stream in streams) == content
    assert len(content) == 100_000_000 and [len(stream) for stream in streams[2:]] == [5_000_000] * 2
    # The pages, what is before the first, and the rest of two that were cut.
    assert sum(stream.documents[-1] + 1 for stream in streams) == 12_347 + 3

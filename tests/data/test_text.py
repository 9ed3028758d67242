"""Text for language models, of small files of the shape of the real ones."""

import collections
import gzip
import io
import lzma
import zipfile

import numpy as np
import pytest
import refusals
from small_texts import prepare_examples

from jaxnas.data import source_files, text
from jaxnas.data.images import load as load_images
from jaxnas.data.text import load_text


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
    again = load_text("wikitext2", data_dir=text_root)
    for role, stream in corpus.splits.items():
        np.testing.assert_array_equal(stream.tokens, again.splits[role].tokens)
        np.testing.assert_array_equal(stream.documents, again.splits[role].documents)
    whole = load_text("wikitext2", data_dir=text_root, search_fraction=0)
    assert whole.search is None and whole.train.documents[-1] == 19
    assert whole.vocabulary.words == corpus.vocabulary.words
    np.testing.assert_array_equal(whole.vocabulary.counts, corpus.vocabulary.counts)
    # The same text is held out whatever the tokens.
    letters = load_text("wikitext2", data_dir=text_root, tokenizer="byte")
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
    for wrong, name in ((b"", "empty"), (zipped("a", "b"), "2 files"), (xz, "corrupt")):
        path.write_bytes(wrong)
        refusals.check((lambda: source_files.read_bytes(path), ValueError, "some.gz", name))


def prepare_texts(folder, feature=None, **texts):
    """A set with a feature "text"."""
    import tensorflow_datasets as tfds

    splits = {split: [{"text": text} for text in part] for split, part in texts.items()}
    return prepare_examples(folder, {"text": feature or tfds.features.Text()}, **splits)


def test_any_other_prepared_text(tmp_path):
    train = ["one two\n", "three four", "\u00e9", "", "two two"]
    prepare_texts(tmp_path, train=train, validation=["one"], test=["one", "five\n"])
    corpus = load_text("some_examples", data_dir=tmp_path, search_fraction=0)
    decode = corpus.vocabulary.decode
    assert decode(corpus.train.tokens) == "one two\nthree four\n\u00e9\n\ntwo two"
    assert decode(corpus.test.tokens) == "one\nfive\n"
    assert corpus.train.documents.tolist() == [0] * 8 + [1] * 11 + [2] * 3 + [3] + [4] * 7
    words = load_text("some_examples:2.0.0", data_dir=tmp_path, tokenizer="word", search_fraction=0.23)
    assert words.vocabulary.words[:2] == ("<eos>", "two")
    assert words.vocabulary.words[-1] == "<unk>" and words.vocabulary.counts[-1] == 0
    assert words.search.documents.tolist() == [0, 0]
    assert words.vocabulary.decode(words.search.tokens) == " two two"
    assert words.vocabulary.decode(words.test.tokens) == " one \n <unk> \n"


def test_prepared_sets_that_are_not_such_texts(tmp_path, corpus, text_root):
    import tensorflow_datasets as tfds

    def case(name, letter, error=ValueError, **options):
        return lambda: load_text("some_examples", data_dir=tmp_path / letter, **options), error, name

    def wiki(name, **options):
        return lambda: load_text("wikitext2", data_dir=text_root, **options), ValueError, name

    one, bytes_, numbers = ["one"], [b"one"], tfds.features.Tensor(shape=(2,), dtype=np.int32)
    prepare_texts(tmp_path / "a", train=one, test=one)
    prepare_texts(tmp_path / "b", numbers, train=[[1, 2]], validation=[[1, 2]], test=[[1, 2]])
    prepare_texts(tmp_path / "c", train=bytes_, validation=bytes_, test=[b"", b"\xff"])
    prepare_texts(tmp_path / "d", train=one, validation=[""], test=one)
    refusals.check(
        (lambda: load_images("wikitext2", data_dir=text_root), ValueError, "'image'"),
        case("'validation'", "a"),
        case("'text'", "b"),
        case("'byte'", "c", tokenizer="word"),
        case("some_examples", "d", OSError),
        wiki("search is 1.0", search_fraction=1.0),
        wiki("search=1e-09", search_fraction=1e-9),
        *(wiki(repr(name), tokenizer=name) for name in ("words", "bpe", "bpe:0", "byte:8")),
    )
    assert load_text("some_examples", data_dir=tmp_path / "c").test.tokens.tolist() == [10, 255]

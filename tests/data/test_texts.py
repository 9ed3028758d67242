"""Labeled texts of lists and files: tokens, vectors, and batches by length."""

import gzip

import numpy as np
import pytest
import refusals
from hypothesis import given as drawn
from hypothesis import strategies
from small_texts import decoded

from jaxnas import data, tasks
from jaxnas.data.splits import ROLES

TEXTS = [f"{('good', 'bad')[i % 2]} film {i}" for i in range(20)]
LABELS = [("up", "down")[i % 2] for i in range(20)]


def test_texts_in_lists():
    test = dict(test_texts=["good", "awful bad film"], test_labels=["up", "down"])
    dataset = data.from_texts(TEXTS, LABELS, **test)
    assert tasks.Text(data=dataset).sizes == {"train": 16, "search": 4, "test": 2}
    assert decoded(dataset, "test") == [("good", 1), ("<unk> bad film", 0)] and dataset.unknown["test"] == 1
    encoding, held_out = data.Encoding(length=2, keep="end"), data.HeldOut(seed=1)
    end = data.from_texts(TEXTS, LABELS, encoding=encoding, held_out=held_out)
    assert all(text.split()[0] == "film" for text, _ in decoded(end, "train")) and end.cut["train"] == 13


def test_texts_in_lists_that_cannot_be_right_are_refused():
    def case(*names, **changes):
        return lambda: data.from_texts(**dict(texts=TEXTS, labels=LABELS) | changes), ValueError, *names

    symbols = data.Encoding(tokens="symbols")
    refusals.check(
        case("20 of 'parts'", "19 labels", labels=LABELS[1:]),
        case("train texts are a str", texts="good film"),
        case("train texts are a set", texts=set(TEXTS)),
        case("train texts", "strings", texts=[*TEXTS[1:], 3]),
        case("twice", classes=("up", "down", "up")),
        case("integers [n]", labels=np.zeros(20)),
        case("strings [n]", labels=[*LABELS[1:], None]),
        case("'<pad>'", texts=[*TEXTS[1:], "<pad>"], encoding=symbols),
        case("text 20 has no token", texts=[*TEXTS[1:], "  "]),
        case("test_texts", "test_labels", test_texts=TEXTS),
        case("'left'", test_texts=["a"], test_labels=["left"]),
        case("no symbol '7'", texts=TEXTS, test_texts=["9 4"], test_labels=["up"], encoding=symbols),
    )


@drawn(
    strategies.lists(strategies.text(min_size=1).filter(str.strip), min_size=8, max_size=12),
    strategies.sampled_from(["words", "english", "bytes", "symbols"]),
)
def test_tokens_are_the_text(texts, kind):
    texts = [f"{text} a" for text in texts]
    encoding = data.Encoding(tokens=kind)
    parts = [encoding.parts(text) for text in texts]
    vocabulary = encoding.vocabulary(parts)
    rows = encoding.encode(parts, vocabulary, max(map(len, parts)), "texts")
    for text, tokens, mask in zip(texts, rows["tokens"], rows["mask"], strict=True):
        back = vocabulary.decode(tokens[mask])
        if kind == "bytes":
            assert back == text
        elif kind == "english":
            assert "".join(back.split()) == "".join(text.lower().replace("<br />", " ").split())
        elif "<eos>" not in text:
            assert back.split() == text.split()


def test_english_words():
    parts = data.Encoding(tokens="english").parts
    for text, expected in (
        ("I don't think it's 3.5 stars...<br />Well-made!", "i do n't think it 's 3.5 stars ... well-made !"),
        ("do n't , it 's `` so-so ''", "do n't , it 's `` so-so ''"),
        ("They'll cost $1,000 (or 5th)", "they 'll cost $ 1,000 ( or 5th )"),
    ):
        assert " ".join(parts(text)) == expected


@pytest.fixture
def vectors(tmp_path):
    """A folder with files of vectors as they are shared, with the words of some texts."""
    words = ["film", "good", "1", "2"]
    table = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float16)
    folder = tmp_path / "embeddings"
    folder.mkdir()
    joined = np.frombuffer("\n".join(words).encode(), np.uint8)
    np.savez(folder / "small_vocab.npz", words=joined, vectors=table)
    lines = (f"{w} {' '.join(map(str, row))}\n" for w, row in zip(words, table.tolist(), strict=True))
    (folder / "small.txt").write_text("".join(lines))
    return folder, dict(zip(words, table.astype(np.float32), strict=True))


def test_vectors_of_words(vectors, tmp_path):
    folder, table = vectors
    texts = ["Good film , bad end"] * 10 + ["bad film"] * 10
    test = dict(test_texts=["good plot 1"], test_labels=["up"])
    dataset = data.from_texts(texts, LABELS, **test, held_out=data.HeldOut(search=0.25))
    task = tasks.Text(data=dataset, embeddings="small", embedding_dim=3)
    loaded = task.load(tmp_path)
    shapes = {name: x.shape for name, x in loaded.inputs.items()}
    assert shapes == dict(tokens=(1, 5), mask=(1, 5), vectors=(1, 5, 3))
    batch = loaded.batches("train", 15, 0).at(0)
    inputs = loaded.preprocess(batch)
    assert inputs["vectors"].dtype == np.float32
    words, unknown = dataset.vocabulary.words, {}
    for tokens, mask, row in zip(batch["tokens"], batch["mask"], np.asarray(inputs["vectors"]), strict=True):
        assert (row[~mask] == 0).all()
        for word, vector in zip((words[i] for i in tokens[mask]), row[mask], strict=True):
            known = table.get(word.lower(), unknown.setdefault(word, vector))  # "Good" is there as "good".
            np.testing.assert_array_equal(vector, known)
    scale = np.std(list(table.values()))
    assert all(0 < np.abs(vector).max() <= scale * 3**0.5 + 1e-6 for vector in unknown.values())
    covered = loaded.details()["words_with_vectors"]
    assert covered["test"] == 0 and 0 < covered["train"] < 1
    # By its path, and in text, the vectors are the same.
    counted = folder / "counted.txt"
    counted.write_text(f"4 3\n{(folder / 'small.txt').read_text()}")  # as word2vec writes it
    paths = (tasks.Text(data=dataset, embeddings=str(path)) for path in (folder / "small.txt", counted))
    for other in (task.load() for task in paths):
        np.testing.assert_array_equal(other.dataset.vectors.table, loaded.dataset.vectors.table)
    another = tasks.Text(data=dataset, embeddings="small", seed=1).load(tmp_path).dataset.vectors.table
    assert ((another != loaded.dataset.vectors.table).any(axis=1) == ~loaded.dataset.vectors.known).all()


def test_vectors_that_cannot_be_right_are_refused(vectors, tmp_path):
    folder, _ = vectors
    (folder / "short.txt").write_text("good 1 2 3\nfilm 1 2\n")
    (folder / "none.txt").write_text("einem 1 2 3\n")
    (folder / "tabs.txt").write_text("good\t1\t2\t3\n")
    (folder / "counted.txt").write_text("2 3\ngood 1 2 3\nfilm 1 2\n")
    (folder / "broken.npz").write_bytes(b"PK\x03\x04")
    word, words = (np.frombuffer(content, np.uint8) for content in (b"a", b"a\nb"))
    np.savez(folder / "other.npz", table=np.zeros(3))
    np.savez(folder / "fewer.npz", words=words, vectors=np.zeros((3, 2), np.float32))
    np.savez(folder / "nan.npz", words=word, vectors=np.full((1, 2), np.nan))

    def case(embeddings, *names, error=ValueError, tokens="words", **more):
        texts = data.from_texts(TEXTS, LABELS, encoding=data.Encoding(tokens=tokens))
        return lambda: tasks.Text(data=texts, embeddings=embeddings, **more).load(tmp_path), error, *names

    refusals.check(
        case("small", "embedding_dim is 50", embedding_dim=50),
        case("small", "bytes", tokens="bytes"),
        case("short", "line 2", "2 numbers"),
        case("tabs", "line 1"),
        case("counted", "line 3", "2 numbers"),
        case("none", "none of the"),
        case("other", "other.npz", "'vectors'", "'words'"),
        case("fewer", "2 words", "float32[3, 2]"),
        case("nan", "finite"),
        case("broken", "broken.npz"),
        case("missing", "missing_vocab.npz", error=FileNotFoundError),
        case("missing.npz", "missing.npz", error=FileNotFoundError),
    )


def test_batches_of_texts_of_about_one_length():
    random = np.random.default_rng(0)
    texts = [" ".join([str(i), *["a"] * random.integers(0, 30)]) for i in range(210)]
    dataset = data.from_texts(texts, np.arange(210) % 2, held_out=data.HeldOut(search=0))
    lengths = (8, 16, dataset.length)
    task, n = tasks.Text(data=dataset, lengths=lengths), len(dataset.train)
    batches = task.batches("train", 10, 3)
    epochs = [[batches.at(step) for step in range(e * (n // 10), (e + 1) * (n // 10))] for e in range(2)]
    plain = dataset.train.inputs["tokens"]
    for epoch in epochs:
        widths = [batch["tokens"].shape[1] for batch in epoch]
        assert set(widths) <= set(lengths) and len(set(widths)) == 3
        assert widths != sorted(widths)
        first = np.concatenate([batch["tokens"][:, 0] for batch in epoch])
        assert len(set(first.tolist())) == len(first) == n // 10 * 10  # each text once
        exact = 0
        for batch, width in zip(epoch, widths, strict=True):
            longest = batch["mask"].sum(1)
            assert longest.max() <= width and batch["mask"].shape == (10, width)
            exact += all(min(t for t in lengths if t >= own) == width for own in longest)
            for tokens in batch["tokens"]:  # nothing but what stands behind the end is cut off
                [row] = plain[plain[:, 0] == tokens[0]]
                np.testing.assert_array_equal(row[:width], tokens)
        assert exact >= len(epoch) - 2  # all but those on the borders between two lengths
    orders = [[batch["tokens"][:, 0].tolist() for batch in epoch] for epoch in epochs]
    assert orders[0] != orders[1]
    # A batch depends on its number alone, and processes share it.
    parts = [task.batches("train", 10, 3, (index, 2)) for index in range(2)]
    for step in (5, 0, 17):
        whole = batches.at(step)
        for name, x in whole.items():
            np.testing.assert_array_equal(np.concatenate([part.at(step)[name] for part in parts]), x)
    assert task.evaluation("test")["tokens"].shape[-1] == dataset.length


LINES = "".join(f"line {i} of a caf\u00e9\n" for i in range(100))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(LINES, encoding="utf-8")
    return path


def test_a_text_is_cut_into_roles_at_the_ends_of_lines(text):
    corpus = data.from_text(text, tokenizer="byte")
    parts = [corpus.vocabulary.decode(corpus.splits[role].tokens) for role in ROLES]
    assert "".join(parts) == LINES and all(part.endswith("\n") for part in parts)
    shares = [len(corpus.splits[role]) for role in ROLES]
    expected = [0.95**2 * 0.8, 0.95**2 * 0.2, 0.95 * 0.05, 0.05]
    np.testing.assert_allclose(np.array(shares) / sum(shares), expected, atol=0.015)
    task = tasks.Language(data=corpus, length=8)
    assert task.name == "book.txt" and list(task.sizes) == list(ROLES)


def test_a_text_of_several_files_in_any_encoding(text, tmp_path):
    other = tmp_path / "other.txt.gz"
    other.write_bytes(gzip.compress("caf\u00e9 2000\n".encode("latin-1")))
    with pytest.raises(ValueError, match="text in utf-8"):
        data.from_text(text, test=other)
    roles = dict(validation=other, test=other, held_out=data.HeldOut(search=0))
    corpus = data.from_text(other, **roles, encoding="latin-1", name="o")
    assert corpus.vocabulary.decode(corpus.train.tokens) == "caf\u00e9 2000\n" and corpus.search is None
    assert corpus.name == "o" and corpus.test.n_bytes == 11
    marked = tmp_path / "marked.txt"
    marked.write_bytes("\ufeff".encode() + LINES.encode())
    assert data.from_text(marked).train.tokens[0] == ord("l")


def test_texts_that_cannot_be_right_are_refused(text, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_bytes(b"")
    refusals.check(
        (lambda: data.from_text(tmp_path / "none.txt"), FileNotFoundError, "none.txt"),
        (lambda: data.from_text(tmp_path), FileNotFoundError, "folder"),
        (lambda: data.from_text(empty), ValueError, "empty.txt"),
        (lambda: data.from_text(text, encoding="latin1000"), ValueError, "'latin1000'"),
        (lambda: data.from_text(text, tokenizer="words"), ValueError, "'words'"),
        (lambda: data.from_text(text, held_out=data.HeldOut(test=0)), ValueError, "test stream of book.txt"),
    )


def rows(count, start=0):
    words = ("good", "fine", "bad", "poor")
    return [(f"{words[i % 4]} film {i}", "up" if i % 4 < 2 else "down") for i in range(start, start + count)]


def write(path, pairs, header="text\tlabel"):
    path.write_text("".join(f"{line}\n" for line in [header, *("\t".join(pair) for pair in pairs)] if line))
    return path


def test_labeled_sentences_are_tokens_with_a_mask(tmp_path):
    path = write(tmp_path / "films.tsv", [*rows(40), ('a\u2028long one, "quoted', "up")])
    given = data.from_tsv(path, encoding=data.Encoding(length=3))
    task = tasks.Text(data=given)
    assert (given.name, given.classes, given.length) == ("films.tsv", ("down", "up"), 3)
    assert task.sizes == {"train": 26, "search": 7, "test": 8}
    batch = task.batches("train", 26, 0).at(0)
    assert (batch["tokens"].dtype, batch["mask"].dtype, batch["tokens"].shape) == (np.int32, bool, (26, 3))
    # Words of the training rows alone: all numbers of other rows are unknown.
    known = {given.vocabulary.words[i] for i in batch["tokens"][batch["mask"]].tolist()}
    assert {*known, "<unk>", "<eos>"} == set(given.vocabulary.words)
    assert given.unknown["train"] == 0 and given.unknown["search"] >= 7 and given.unknown["test"] >= 8
    for tokens, label in zip(batch["tokens"], batch["label"], strict=True):
        first = given.vocabulary.words[tokens[0]]
        assert label == (first in ("good", "fine", "a")) or first == "<unk>"
    # The end of a long text is left out, and that of a short one is filled up.
    assert sum(given.cut.values()) == 1
    longer = data.from_tsv(path, encoding=data.Encoding(length=6))
    short = longer.train.inputs
    end = longer.vocabulary.words.index("<eos>")
    assert (short["tokens"][~short["mask"]] == end).all() and short["mask"].sum(1).min() == 3


def test_columns_by_number_and_files_of_their_own(tmp_path):
    train, test = (
        write(tmp_path / f"{start}.tsv", [(label, "9", text) for text, label in rows(n, start)], header="")
        for n, start in ((20, 0), (8, 100))
    )
    encoding, held_out = data.Encoding(max_words=3), data.HeldOut(validation=0.2)
    given = data.from_tsv(train, test, text=2, label=0, encoding=encoding, held_out=held_out)
    assert tasks.Text(data=given).sizes == {"train": 13, "search": 3, "validation": 4, "test": 8}
    assert given.vocabulary.words[0] == "film" and given.vocabulary.size == 5
    assert given.unknown["test"] >= 8 and given.train.inputs["mask"].all()


def test_tables_of_sentences_that_cannot_be_right_are_refused(tmp_path):
    def case(name, *more, start=20, **options):
        path = write(tmp_path / f"{len(list(tmp_path.iterdir()))}.tsv", [*rows(start), *more])
        return lambda: data.from_tsv(path, **options), ValueError, name

    test = write(tmp_path / "test.tsv", [("good", "sideways")])
    refusals.check(
        case("line 22", ("  ", "up")),
        case("line 22 has no text or no label", ("good film", "")),
        case("line 22", ("good", "film", "up")),
        case("'review'", text="review"),
        case("has 2 columns", text=1, label=2),
        case("'label'", text=0),
        case("'sideways'", test=test),  # a label of no training row
        case("'up'", *[("good film", "up")] * 9, start=0),
        case("labels are", start=0),
    )

"""Labeled texts by name: their files and parts, tokens, vectors, and batches by length."""

import gzip
import lzma
import os

import numpy as np
import pytest
import refusals
from hypothesis import given as drawn
from hypothesis import strategies

from jaxnas import data, tasks
from jaxnas.data import sentence_builders

REAL = os.environ.get("JAXNAS_TEXT")
real = pytest.mark.skipif(not REAL, reason="JAXNAS_TEXT names no folder with the original files of texts")

TREES = {
    "train": [
        "(4 (2 A) (4 (4 fine) (2 film)))",
        "(0 (2 It) (0 (0 fails) (2 .)))",
        "(2 (2 A) (2 film))",
        "(1 (1 dull) (2 .))",
        "(3 (3 fun) (2 .))",
    ]
    * 2,
    "dev": ["(3 (2 It) (3 (3 works) (2 .)))", "(1 (1 Dull) (2 film))", "(2 (2 An) (2 hour))"],
    "test": ["(4 (4 Fine) (2 .))", "(1 (2 It) (1 (1 drags) (2 .)))"],
}
FILES = {
    "TREC.train.all": "".join(f"{i % 6} What 's caf\u00e9 {i} ?\n" for i in range(60)).encode("latin-1"),
    "TREC.test.all": b"0 What is it ?\n5 How many ?\n",
    "rt-polarity.all": "".join(f"{i % 2} it's a caf\u00e9 , {i} . \n" for i in range(60)).encode("latin-1"),
    "subj.all": b"".join(b"%d an opinion %d\n" % (i % 2, i) for i in range(60)),
    "custrev.all": b"0 \n" + b"".join(b"%d n't work %d\n" % (i % 2, i) for i in range(60)),
    "mpqa.all": "".join(f"{i % 2} caf\u00e9 {i}\n" for i in range(60)).encode(),
    "imdb.train.tsv": b"".join(b"%d\t%d\tDon't watch. Ever!<br />\n" % (i % 2, i % 9) for i in range(40)),
    "imdb.test.tsv": b"1\t9\tWatch...\n0\t1\tDon't\n",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The original files, small, some compressed and in folders of their own."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "text").mkdir()
    for part, lines in TREES.items():
        content = gzip.compress("".join(f"{line}\n" for line in lines).encode())
        (folder / "text" / f"sst_trees.{part}.txt.gz").write_bytes(content)
    for name, content in FILES.items():
        place = folder / f"{name}.xz" if "imdb" in name else folder / "text" / name
        place.write_bytes(lzma.compress(content) if "imdb" in name else content)
    return folder


@pytest.fixture
def small_trees(monkeypatch):
    monkeypatch.setattr(sentence_builders.Sst5, "SENTENCES", {part: len(x) for part, x in TREES.items()})


def decoded(dataset, role):
    """The words and the label of each text of a role."""
    split = dataset.splits[role]
    rows = zip(split.inputs["tokens"], split.inputs["mask"], split.labels, strict=True)
    return [(dataset.vocabulary.decode(tokens[mask]).strip(), int(label)) for tokens, mask, label in rows]


def sizes(*counts):
    roles = ("train", "search", "test") if len(counts) == 3 else ("train", "test")
    return dict(zip(roles, counts, strict=True))


def test_names_with_their_parts_and_classes(small_trees, files, tmp_path):
    for name, classes, parts, whole in (
        ("sst5", 5, sizes(10, 3, 2), sizes(10, 2) | {"validation": 3}),
        ("sst2", 2, sizes(8, 2, 2), sizes(8, 2) | {"validation": 2}),
        ("trec", 6, sizes(48, 12, 2), sizes(60, 2)),
        *((name, 2, sizes(43, 11, 6), sizes(54, 6)) for name in ("mr", "subj", "cr", "mpqa")),
        ("imdb_reviews", 2, sizes(32, 8, 2), sizes(40, 2)),
    ):
        task = tasks.Text(data=name).load(tmp_path, files)
        assert (task.dataset.num_classes, task.sizes, task.whole().sizes) == (classes, parts, whole), name
        # Once prepared, the files are needed no more.
        again = tasks.Text(data=name).load(tmp_path)
        for role in parts:
            assert decoded(again.dataset, role) == decoded(task.dataset, role)
    assert decoded(again.dataset, "train")[0][0] == "do n't watch . ever !"
    words = tasks.Text(data="mr").load(tmp_path).dataset.vocabulary.words
    assert {"it", "'s", "caf\u00e9", ","} <= set(words)
    # The test part of those that have no official one is the same for every seed.
    seeds = (tasks.Text(data="mr", seed=seed, tokens="bytes").load(tmp_path).dataset for seed in (0, 1))
    first, second = (decoded(dataset, "test") for dataset in seeds)
    assert first == second


def test_sentences_and_phrases_of_trees(small_trees, files, tmp_path):
    fine = tasks.Text(data="sst5").load(tmp_path, files).dataset
    assert decoded(fine, "train")[:3] == [("a fine film", 4), ("it fails .", 0), ("a film", 2)]
    assert fine.vocabulary.size == 8 + 2 and fine.unknown == {"train": 0, "search": 3, "test": 1}
    phrases = tasks.Text(data="sst5", phrases=True).load(tmp_path).dataset
    expected = [("a", 2), ("fine", 4), ("film", 2), ("fine film", 4), ("a fine film", 4), ("it", 2)]
    expected += [("fails", 0), (".", 2), ("fails .", 0), ("it fails .", 0), ("a film", 2)]
    expected += [("dull", 1), ("dull .", 1), ("fun", 3), ("fun .", 3)]
    assert decoded(phrases, "train") == expected
    assert decoded(phrases, "test") == decoded(fine, "test") and len(phrases.search) == 3
    binary = tasks.Text(data="sst2", phrases=True).load(tmp_path, files).dataset
    assert decoded(binary, "train") == [(text, int(label > 2)) for text, label in expected if label != 2]
    # A share that is held out leaves the development part to watch a retraining with.
    both = tasks.Text(data="sst5", search_fraction=0.5).load(tmp_path)
    assert both.sizes == {"train": 5, "search": 5, "validation": 3, "test": 2}
    assert both.whole().sizes == {"train": 10, "validation": 3, "test": 2}


def test_files_that_cannot_be_right_are_refused(small_trees, files, tmp_path):
    def case(*names, error=ValueError, file="other", content=b"", **text):
        folder = tmp_path / f"{text['data']}-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for path in files.rglob("*.*"):
            if not path.name.startswith(file):
                (folder / path.name).write_bytes(path.read_bytes())
        (folder / file).write_bytes(content)
        return lambda: tasks.Text(**text).load(tmp_path / "tfds", folder), error, *names

    def dev(content, *names):
        return case(*names, data="sst5", file="sst_trees.dev.txt", content=content)

    trec = dict(data="trec", file="TREC.test.all", content=b"0 What ?\n6 How ?\n")
    imdb = dict(data="imdb_reviews", file="imdb.test.tsv", content=b"1\t9\tGood\n1\tGood\n")
    refusals.check(
        dev(b"(3 (2 It)\n" * 3, "line 1", "'(3 (2 it)'"),
        dev(b"(3 ok)\n(3 ok)\n(3 ok) ok\n", "line 3"),
        dev(b"(3 ok)\n", "expected 3 trees", "found 1"),
        case("line 2", "'6'", **trec),
        case("line 2", **imdb),
        case("phrases", data="sst5", phrases=True, search_fraction=0.2),
        case("mr has no labeled phrases", data="mr", phrases=True),
        case("glove9.npz", error=FileNotFoundError, data="mr", embeddings="glove9"),
        case("no symbol", data="mr", tokens="symbols"),
    )


TEXTS = [f"{('good', 'bad')[i % 2]} film {i}" for i in range(20)]
LABELS = [("up", "down")[i % 2] for i in range(20)]


def test_texts_in_lists():
    test = dict(test_texts=["good", "awful bad film"], test_labels=["up", "down"])
    dataset = data.from_texts(TEXTS, LABELS, **test)
    assert tasks.Text(data=dataset).sizes == {"train": 16, "search": 4, "test": 2}
    assert decoded(dataset, "test") == [("good", 1), ("<unk> bad film", 0)] and dataset.unknown["test"] == 1
    end = data.from_texts(TEXTS, LABELS, length=2, keep="end", seed=1)
    assert all(text.split()[0] == "film" for text, _ in decoded(end, "train")) and end.cut["train"] == 13


def test_texts_in_lists_that_cannot_be_right_are_refused():
    def case(*names, **changes):
        return lambda: data.from_texts(**dict(texts=TEXTS, labels=LABELS) | changes), ValueError, *names

    symbols = dict(tokens="symbols", search_fraction=0)
    without_4 = [text.replace(" 4", "") for text in TEXTS]
    refusals.check(
        case("20 train texts", "19 labels", labels=LABELS[1:]),
        case("train texts are a str", texts="good film"),
        case("train texts are a set", texts=set(TEXTS)),
        case("train texts", "strings", texts=[*TEXTS[1:], 3]),
        case("no train texts", texts=[], labels=[]),
        case("train text 20", "surrogate", texts=[*TEXTS[1:], "\ud83d a"]),
        case("'up'", "twice", classes=("up", "down", "up")),
        case("integers [n]", labels=np.zeros(20)),
        case("strings [n]", "None", labels=[*LABELS[1:], None]),
        case("seed is -1", seed=-1),
        case("'<pad>'", texts=[*TEXTS[1:], "<pad>"], tokens="symbols"),
        case("text 20 has no token", texts=[*TEXTS[1:], "  "]),
        case("test_texts", "test_labels", test_texts=TEXTS),
        case("'left'", test_texts=["a"], test_labels=["left"]),
        case("test_fraction is 0.0", test_fraction=0.0),
        case("test", "'4'", texts=without_4, test_texts=["9 4"], test_labels=["up"], **symbols),
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
    """A file of vectors as it is shared, with the words of some texts."""
    words = ["film", "good", "1", "2"]
    table = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float16)
    folder = tmp_path / "source"
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
    dataset = data.from_texts(texts, LABELS, **test, search_fraction=0.25)
    task = tasks.Text(data=dataset, embeddings="small", embedding_dim=3)
    loaded = task.load(tmp_path, folder)
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
    # By its path, in text, and from where it was kept, the vectors are the same.
    counted = folder / "counted.txt"
    counted.write_text(f"4 3\n{(folder / 'small.txt').read_text()}")  # as word2vec writes it
    paths = (tasks.Text(data=dataset, embeddings=str(path)) for path in (folder / "small.txt", counted))
    for other in (*(task.load() for task in paths), task.load(tmp_path)):
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

    def case(
        embeddings, *names, error=ValueError, tokens="words", places=(tmp_path / "kept", folder), **more
    ):
        texts = data.from_texts(TEXTS, LABELS, tokens=tokens)
        return lambda: tasks.Text(data=texts, embeddings=embeddings, **more).load(*places), error, *names

    refusals.check(
        case("small", "embedding_dim is 50", embedding_dim=50),
        case("small", "bytes", tokens="bytes"),
        case("short", "line 2", "3 numbers"),
        case("tabs", "line 1"),
        case("counted", "line 3", "'film 1 2'"),
        case("none", "none of the"),
        case("other", "other.npz", "'vectors'", "'words'"),
        case("fewer", "2 words", "float32[3, 2]"),
        case("nan", "finite"),
        case("broken", "broken.npz"),
        case("missing", "missing_vocab.npz", error=FileNotFoundError),
        case("missing.npz", "missing.npz", error=FileNotFoundError),
        case("small", "'small'", error=FileNotFoundError, places=(tmp_path / "new",)),
    )


def test_batches_of_texts_of_about_one_length():
    random = np.random.default_rng(0)
    texts = [" ".join([str(i), *["a"] * random.integers(0, 30)]) for i in range(210)]
    dataset = data.from_texts(texts, np.arange(210) % 2, search_fraction=0)
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


def load_real(tmp_path, name, **options):
    try:
        return tasks.Text(data=name, **options).load(tmp_path, REAL)
    except FileNotFoundError as error:
        pytest.skip(f"JAXNAS_TEXT: {error}")


@real
@pytest.mark.parametrize(
    ("name", "phrases", "sizes", "least", "most"),
    [
        ("sst5", False, (8544, 1101, 2210), 16_581, 16_581),
        ("sst2", False, (6920, 872, 1821), 14_830, 14_830),
        ("sst5", True, (157_401, 1101, 2210), 16_581, 16_581),
        ("sst2", True, (77_307, 872, 1821), 16_372, 16_372),
        ("trec", False, (4362, 1090, 500), 7_000, 8_600),
        ("mr", False, (7677, 1919, 1066), 16_000, 19_000),
        ("subj", False, (7200, 1800, 1000), 18_000, 20_000),
        ("cr", False, (2715, 679, 377), 4_500, 5_500),
        ("mpqa", False, (7634, 1909, 1060), 5_000, 6_000),
    ],
)
def test_real_files(name, phrases, sizes, least, most, tmp_path):
    task = load_real(tmp_path, name, embeddings="glove6b_50d", embedding_dim=50, phrases=phrases)
    details = task.details()
    assert tuple(task.sizes.values()) == sizes and least <= details["vocabulary"] <= most
    assert details["words_with_vectors"]["train"] > 0.98 and details["words_with_vectors"]["test"] > 0.87


@real
def test_real_reviews(tmp_path):
    task = load_real(tmp_path, "imdb_reviews", tokens="bytes", length=1000)
    assert task.sizes == {"train": 20_000, "search": 5_000, "test": 25_000}
    for split in task.dataset.splits.values():
        assert np.bincount(split.labels).tolist() == [len(split) // 2] * 2


@real
def test_real_expressions(tmp_path):
    task = load_real(tmp_path, "listops")
    assert task.sizes == {"train": 90_000, "search": 2_000, "test": 10_000}
    rows = [row.tobytes() for split in task.dataset.splits.values() for row in split.inputs["tokens"]]
    assert len(set(rows)) == len(rows)  # no expression twice, and so none in two roles

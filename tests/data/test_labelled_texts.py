"""Labelled texts by name: their files and parts, tokens, vectors, and batches by length."""

import gzip
import lzma
import os

import numpy as np
import pytest
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


def test_names_with_their_parts_and_classes(small_trees, files, tmp_path):
    cases = (
        ("sst5", 5, {"train": 10, "search": 3, "test": 2}, {"train": 10, "validation": 3, "test": 2}),
        ("sst2", 2, {"train": 8, "search": 2, "test": 2}, {"train": 8, "validation": 2, "test": 2}),
        ("trec", 6, {"train": 48, "search": 12, "test": 2}, {"train": 60, "test": 2}),
        ("mr", 2, {"train": 43, "search": 11, "test": 6}, {"train": 54, "test": 6}),
        ("subj", 2, {"train": 43, "search": 11, "test": 6}, {"train": 54, "test": 6}),
        ("cr", 2, {"train": 43, "search": 11, "test": 6}, {"train": 54, "test": 6}),
        ("mpqa", 2, {"train": 43, "search": 11, "test": 6}, {"train": 54, "test": 6}),
        ("imdb_reviews", 2, {"train": 32, "search": 8, "test": 2}, {"train": 40, "test": 2}),
    )
    for name, classes, sizes, whole in cases:
        task = tasks.Text(data=name).load(tmp_path, files)
        assert (task.dataset.num_classes, task.sizes, task.whole().sizes) == (classes, sizes, whole), name
        # Once prepared, the files are needed no more.
        again = tasks.Text(data=name).load(tmp_path)
        for role in sizes:
            assert decoded(again.dataset, role) == decoded(task.dataset, role)
    assert decoded(tasks.Text(data="imdb_reviews").load(tmp_path).dataset, "train")[0][0] == (
        "do n't watch . ever !"
    )
    words = tasks.Text(data="mr").load(tmp_path).dataset.vocabulary.words
    assert {"it", "'s", "caf\u00e9", ","} <= set(words)
    # The test part of those that have no official one is the same for every seed.
    tests = [
        decoded(tasks.Text(data="mr", seed=s, tokens="bytes").load(tmp_path).dataset, "test") for s in (0, 1)
    ]
    assert tests[0] == tests[1]


def test_sentences_and_phrases_of_trees(small_trees, files, tmp_path):
    fine = tasks.Text(data="sst5").load(tmp_path, files).dataset
    assert decoded(fine, "train")[:3] == [("a fine film", 4), ("it fails .", 0), ("a film", 2)]
    assert fine.vocabulary.size == 8 + 2 and fine.unknown == {"train": 0, "search": 3, "test": 1}
    phrases = tasks.Text(data="sst5", phrases=True).load(tmp_path).dataset
    expected = [
        ("a", 2),
        ("fine", 4),
        ("film", 2),
        ("fine film", 4),
        ("a fine film", 4),
        ("it", 2),
        ("fails", 0),
    ]
    expected += [(".", 2), ("fails .", 0), ("it fails .", 0), ("a film", 2)]
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
    cases = (
        (
            "sst5",
            {},
            "sst_trees.dev.txt",
            b"(3 (2 It)\n" * 3,
            "line 1 is no tree as (4 (2 a) (3 film)): '(3 (2 it)'",
        ),
        ("sst5", {}, "sst_trees.dev.txt", b"(3 ok)\n(3 ok)\n(3 ok) ok\n", "line 3 is no tree"),
        ("sst5", {}, "sst_trees.dev.txt", b"(3 ok)\n", "expected 3 trees, one in each line, found 1"),
        (
            "trec",
            {},
            "TREC.test.all",
            b"0 What ?\n6 How ?\n",
            "line 2 has the label '6'; expected a class from 0 to 5",
        ),
        (
            "imdb_reviews",
            {},
            "imdb.test.tsv",
            b"1\t9\tGood\n1\tGood\n",
            "line 2 is no label, rating and text",
        ),
        ("sst5", {"phrases": True, "search_fraction": 0.2}, "other", b"", "phrases overlap, so a network"),
        ("mr", {"phrases": True}, "other", b"", "mr has no labelled phrases, only test, train"),
        (
            "mr",
            {"embeddings": "glove9"},
            "other",
            b"",
            "has no file glove9_vocab.npz or glove9.npz or glove9.txt",
        ),
        ("mr", {"tokens": "symbols"}, "other", b"", "there is no symbol '"),
    )
    for number, (name, options, file, content, message) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        for path in files.rglob("*.*"):
            if not path.name.startswith(file):
                (folder / path.name).write_bytes(path.read_bytes())
        (folder / file).write_bytes(content)
        with pytest.raises((ValueError, FileNotFoundError)) as error:
            tasks.Text(data=name, **options).load(tmp_path / "tfds", folder)
        assert message in str(error.value), str(error.value)


TEXTS = [f"{('good', 'bad')[i % 2]} film {i}" for i in range(20)]
LABELS = [("up", "down")[i % 2] for i in range(20)]


def test_texts_in_lists(tmp_path):
    cases = (
        (dict(texts=TEXTS, labels=LABELS[1:]), "20 train texts and 19 labels of them"),
        (dict(texts="good film", labels=LABELS), "the train texts are a str; expected a list of strings"),
        (dict(texts=[*TEXTS[1:], 3], labels=LABELS), "the train texts are not all strings"),
        (
            dict(texts=set(TEXTS), labels=LABELS),
            "the train texts are a set; expected a list of strings, in the",
        ),
        (dict(texts=[], labels=[]), "there are no train texts"),
        (dict(texts=[*TEXTS[1:], "\ud83d a"], labels=LABELS), "train text 20 has half of a surrogate pair"),
        (dict(texts=TEXTS, labels=LABELS, classes=("up", "down", "up")), "the class 'up' is named twice"),
        (
            dict(texts=TEXTS, labels=np.zeros(20)),
            "expected integers [n], from 0, or strings [n]. Write labels.",
        ),
        (dict(texts=TEXTS, labels=[*LABELS[1:], None]), "strings [n]. The first that is no string is None."),
        (dict(texts=TEXTS, labels=LABELS, seed=-1), "seed is -1, expected 0 to"),
        (dict(texts=[*TEXTS[1:], "<pad>"], labels=LABELS, tokens="symbols"), "has the symbol '<pad>'"),
        (dict(texts=[*TEXTS[1:], "  "], labels=LABELS), "texts, train: text 20 has no token"),
        (dict(texts=TEXTS, labels=LABELS, test_texts=TEXTS), "give test_texts and test_labels, or none"),
        (dict(texts=TEXTS, labels=LABELS, test_texts=["a"], test_labels=["left"]), "the first is 'left'"),
        (
            dict(texts=TEXTS, labels=LABELS, test_fraction=0.0),
            "test_fraction is 0.0 and nothing is given for the test",
        ),
        (
            dict(
                texts=TEXTS,
                labels=LABELS,
                test_texts=["9 4"],
                test_labels=["up"],
                tokens="symbols",
                search_fraction=0,
            ),
            "texts, test: there is no symbol '4', only",
        ),
    )
    for given, message in cases:
        if "4'" in message:
            given["texts"] = [text.replace(" 4", "") for text in TEXTS]
        with pytest.raises(ValueError) as error:
            data.from_texts(**given)
        assert message in str(error.value), str(error.value)
    dataset = data.from_texts(
        TEXTS, LABELS, test_texts=["good", "awful bad film"], test_labels=["up", "down"]
    )
    assert tasks.Text(data=dataset).sizes == {"train": 16, "search": 4, "test": 2}
    assert decoded(dataset, "test") == [("good", 1), ("<unk> bad film", 0)] and dataset.unknown["test"] == 1
    end = data.from_texts(TEXTS, LABELS, length=2, keep="end", seed=1)
    assert all(text.split()[0] == "film" for text, _ in decoded(end, "train")) and end.cut["train"] == 13


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
    cases = (
        ("I don't think it's 3.5 stars...<br />Well-made!", "i do n't think it 's 3.5 stars ... well-made !"),
        ("do n't , it 's `` so-so ''", "do n't , it 's `` so-so ''"),
        ("They'll cost $1,000 (or 5th)", "they 'll cost $ 1,000 ( or 5th )"),
    )
    for text, expected in cases:
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
    dataset = data.from_texts(
        texts, LABELS, test_texts=["good plot 1"], test_labels=["up"], search_fraction=0.25
    )
    task = tasks.Text(data=dataset, embeddings="small", embedding_dim=3)
    loaded = task.load(tmp_path, folder)
    assert {k: x.shape for k, x in loaded.inputs.items()} == dict(
        tokens=(1, 5), mask=(1, 5), vectors=(1, 5, 3)
    )
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
    for other in (
        tasks.Text(data=dataset, embeddings=str(folder / "small.txt")).load(),
        tasks.Text(data=dataset, embeddings=str(counted)).load(),
        task.load(tmp_path),
    ):
        np.testing.assert_array_equal(other.dataset.vectors.table, loaded.dataset.vectors.table)
    another = tasks.Text(data=dataset, embeddings="small", seed=1).load(tmp_path).dataset.vectors.table
    assert ((another != loaded.dataset.vectors.table).any(axis=1) == ~loaded.dataset.vectors.known).all()


def test_vectors_that_cannot_be_right_are_refused(vectors, tmp_path):
    folder, _ = vectors
    (folder / "short.txt").write_text("good 1 2 3\nfilm 1 2\n")
    (folder / "none.txt").write_text("einem 1 2 3\n")
    (folder / "tabs.txt").write_text("good\t1\t2\t3\n")
    (folder / "counted.txt").write_text("2 3\ngood 1 2 3\nfilm 1 2\n")
    np.savez(folder / "other.npz", table=np.zeros(3))
    np.savez(
        folder / "fewer.npz", words=np.frombuffer(b"a\nb", np.uint8), vectors=np.zeros((3, 2), np.float32)
    )
    np.savez(folder / "nan.npz", words=np.frombuffer(b"a", np.uint8), vectors=np.full((1, 2), np.nan))
    (folder / "broken.npz").write_bytes(b"PK\x03\x04")
    cases = (
        ("small", {"embedding_dim": 50}, {}, "embedding_dim is 50, and the vectors of"),
        ("small", {}, {"tokens": "bytes"}, "are of words, and the tokens of texts are bytes"),
        ("short", {}, {}, "line 2 is no word with 3 numbers behind it"),
        ("tabs", {}, {}, "line 1 is no word with blanks and numbers behind it: "),
        ("counted", {}, {}, "line 3 is no word with 3 numbers behind it, as line 2 is: 'film 1 2'"),
        ("none", {}, {}, "has none of the 25 words of the texts"),
        ("other", {}, {}, "other.npz: no array 'vectors' and 'words'"),
        ("fewer", {}, {}, "has 2 words, and vectors float32[3, 2]"),
        ("nan", {}, {}, "some numbers of the vectors are not finite"),
        ("broken", {}, {}, "broken.npz: "),
        ("missing", {}, {}, "has no file missing_vocab.npz"),
        ("missing.npz", {}, {}, "embeddings: missing.npz is no file"),
    )
    for name, options, given, message in cases:
        task = tasks.Text(
            data=data.from_texts(
                TEXTS, LABELS, test_texts=TEXTS, test_labels=LABELS, search_fraction=0, **given
            ),
            embeddings=name,
            **options,
        )
        with pytest.raises((ValueError, FileNotFoundError)) as error:
            task.load(tmp_path / "kept", folder)
        assert message in str(error.value), str(error.value)
    with pytest.raises(FileNotFoundError, match="'small'"):
        tasks.Text(data=data.from_texts(TEXTS, LABELS), embeddings="small").load(tmp_path / "new")


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


# The real files


@real
def test_real_files(tmp_path):
    cases = (
        ("sst5", {}, (8544, 1101, 2210), (16_581, 16_581)),
        ("sst2", {}, (6920, 872, 1821), (14_830, 14_830)),
        ("sst5", {"phrases": True}, (157_401, 1101, 2210), (16_581, 16_581)),
        ("sst2", {"phrases": True}, (77_307, 872, 1821), (16_372, 16_372)),
        ("trec", {}, (4362, 1090, 500), (7_000, 8_600)),
        ("mr", {}, (7677, 1919, 1066), (16_000, 19_000)),
        ("subj", {}, (7200, 1800, 1000), (18_000, 20_000)),
        ("cr", {}, (2715, 679, 377), (4_500, 5_500)),
        ("mpqa", {}, (7634, 1909, 1060), (5_000, 6_000)),
    )
    for name, options, sizes, (least, most) in cases:
        try:
            task = tasks.Text(data=name, embeddings="glove6b_50d", embedding_dim=50, **options)
            task = task.load(tmp_path, REAL)
        except FileNotFoundError as error:
            pytest.skip(f"JAXNAS_TEXT: {error}")
        details = task.details()
        assert tuple(task.sizes.values()) == sizes and least <= details["vocabulary"] <= most, name
        assert details["words_with_vectors"]["train"] > 0.98 and details["words_with_vectors"]["test"] > 0.87


@real
def test_real_reviews(tmp_path):
    try:
        task = tasks.Text(data="imdb_reviews", tokens="bytes", length=1000).load(tmp_path, REAL)
    except FileNotFoundError as error:
        pytest.skip(f"JAXNAS_TEXT: {error}")
    assert task.sizes == {"train": 20_000, "search": 5_000, "test": 25_000}
    for split in task.dataset.splits.values():
        assert np.bincount(split.labels).tolist() == [len(split) // 2] * 2


@real
def test_real_expressions(tmp_path):
    try:
        task = tasks.Text(data="listops").load(tmp_path, REAL)
    except FileNotFoundError as error:
        pytest.skip(f"JAXNAS_TEXT: {error}")
    assert task.sizes == {"train": 90_000, "search": 2_000, "test": 10_000}
    rows = [row.tobytes() for split in task.dataset.splits.values() for row in split.inputs["tokens"]]
    assert len(set(rows)) == len(rows)  # no expression twice, and so none in two roles

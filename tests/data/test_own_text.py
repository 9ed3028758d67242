"""A user's own text file, and labeled sentences in a TSV."""

import gzip

import numpy as np
import pytest
import refusals

from jaxnas import data, tasks

LINES = "".join(f"line {i} of a caf\u00e9\n" for i in range(100))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(LINES, encoding="utf-8")
    return path


@pytest.mark.parametrize("tokenizer", ["byte", "word"])
def test_a_text_is_cut_into_roles_at_the_ends_of_lines(text, tokenizer):
    corpus = data.from_text(text, tokenizer=tokenizer)
    parts = [corpus.vocabulary.decode(corpus.splits[role].tokens) for role in data.ROLES]
    if tokenizer == "byte":
        assert "".join(parts) == LINES and all(part.endswith("\n") for part in parts)
    shares = [len(corpus.splits[role]) for role in data.ROLES]
    expected = [0.95**2 * 0.8, 0.95**2 * 0.2, 0.95 * 0.05, 0.05]
    np.testing.assert_allclose(np.array(shares) / sum(shares), expected, atol=0.015)
    task = tasks.Language(data=corpus, length=8)
    assert task.name == "book.txt" and list(task.sizes) == list(data.ROLES)


def test_a_text_of_several_files_in_any_encoding(text, tmp_path):
    other = tmp_path / "other.txt.gz"
    other.write_bytes(gzip.compress("caf\u00e9 2000\n".encode("latin-1")))
    with pytest.raises(ValueError, match="text in utf-8"):
        data.from_text(text, test=other)
    roles = dict(validation=other, test=other, search_fraction=0)
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
        (lambda: data.from_text(text, search_fraction=float("nan")), ValueError, "search_fraction"),
        (lambda: data.from_text(text, test_fraction=0), ValueError, "test stream of book.txt"),
    )


def rows(count, start=0):
    words = ("good", "fine", "bad", "poor")
    return [(f"{words[i % 4]} film {i}", "up" if i % 4 < 2 else "down") for i in range(start, start + count)]


def write(path, pairs, header="text\tlabel"):
    path.write_text("".join(f"{line}\n" for line in [header, *("\t".join(pair) for pair in pairs)] if line))
    return path


def test_labeled_sentences_are_tokens_with_a_mask(tmp_path):
    path = write(tmp_path / "films.tsv", [*rows(40), ('a\u2028long one, "quoted', "up")])
    given = data.from_tsv(path, length=3)
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
    longer = data.from_tsv(path, length=6)
    short = longer.train.inputs
    end = longer.vocabulary.words.index("<eos>")
    assert (short["tokens"][~short["mask"]] == end).all() and short["mask"].sum(1).min() == 3


def test_columns_by_number_and_files_of_their_own(tmp_path):
    train = write(tmp_path / "a.tsv", [(label, "9", text) for text, label in rows(20)], header="")
    test = write(tmp_path / "b.tsv", [(label, "9", text) for text, label in rows(8, 100)], header="")
    given = data.from_tsv(train, test, text=2, label=0, validation_fraction=0.2, max_words=3)
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
        case("line 22 has no label", ("good film", "")),
        case("line 22", ("good", "film", "up")),
        case("'review'", text="review"),
        case("has 2 columns", text=1, label=2),
        case("'label'", text=0),
        case("max_words is 1.5", max_words=1.5),
        case("test_fraction is 0.0", test_fraction=0.0),
        case("search_fraction is 1.0", search_fraction=1.0),
        case("'flat'", ("flat film", "flat")),
        case("'up'", *[("good film", "up")] * 9, start=0),
        case("there is no", start=0),
        case("'sideways'", test=test),  # a label of no training row
    )

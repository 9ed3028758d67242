"""The original files of texts, in the folder that JAXNAS_TEXT names: published sizes and values."""

import hashlib
import os

import numpy as np
import pytest
from small_texts import decoded, expression_value

from jaxnas import data, tasks
from jaxnas.data import source_files
from jaxnas.data.expressions import listops
from jaxnas.data.splits import ROLES
from jaxnas.data.text import load_text
from tools import convert_data

REAL = os.environ.get("JAXNAS_TEXT")
pytestmark = pytest.mark.skipif(not REAL, reason="JAXNAS_TEXT names no folder with original files")


def found(name):
    """The path of a file; skips if it is not there."""
    try:
        return source_files.find_source(REAL, name)
    except FileNotFoundError as error:
        pytest.skip(f"JAXNAS_TEXT: {error}")


def load(tmp_path, name, loader):
    """What a loader reads of a set that is converted; skips if its files are not there."""
    try:
        convert_data.convert(name, REAL, tmp_path)
    except FileNotFoundError as error:
        pytest.skip(f"JAXNAS_TEXT: {error}")
    return loader(tmp_path)


def corpus(tmp_path, name):
    return load(tmp_path, name, lambda root: load_text(name, data_dir=root))


def test_wikitext(tmp_path):
    given = corpus(tmp_path, "wikitext2")
    sizes = {role: len(stream) for role, stream in given.splits.items()}
    assert sizes["train"] + sizes["search"] == 2_088_628 == given.vocabulary.counts.sum()
    assert (sizes["validation"], sizes["test"], given.vocabulary.size) == (217_646, 245_569, 33_278)
    assert abs(sizes["search"] / 2_088_628 - 0.2) < 0.005
    ends = {role: int(stream.documents[-1]) + 1 for role, stream in given.splits.items()}
    assert ends["train"] + ends["search"] == 600 and ends["validation"] == ends["test"] == 60


def test_tiny_shakespeare(tmp_path):
    sizes = [len(stream) for stream in corpus(tmp_path, "tiny_shakespeare").splits.values()]
    assert sum(sizes[:2]) == 1_003_854 and sizes[2:] == [55_770, 55_770]


def test_enwik8(tmp_path):
    given = corpus(tmp_path, "enwik8")
    streams = [given.splits[role] for role in ROLES]
    whole = b"".join(stream.tokens.astype(np.uint8).tobytes() for stream in streams)
    assert hashlib.md5(whole).hexdigest() == "a1fa5ffddb56f4953e226637dabbb36a"
    # The pages, what is before the first, and the rest of two that were cut.
    assert sum(stream.documents[-1] + 1 for stream in streams) == 12_347 + 3


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
def test_sentences(name, phrases, sizes, least, most, tmp_path):
    vectors = str(found("glove6b_50d_vocab.npz"))
    task = tasks.Text(data=name, embeddings=vectors, embedding_dim=50, phrases=phrases)
    task = load(tmp_path, name, task.load)
    details = task.details()
    assert tuple(task.sizes.values()) == sizes and least <= details["vocabulary"] <= most
    assert details["words_with_vectors"]["train"] > 0.98 and details["words_with_vectors"]["test"] > 0.87


def test_reviews(tmp_path):
    task = load(tmp_path, "imdb_reviews", tasks.Text(data="imdb_reviews", tokens="bytes", length=1000).load)
    assert task.sizes == {"train": 20_000, "search": 5_000, "test": 25_000}
    for split in task.dataset.splits.values():
        assert np.bincount(split.labels).tolist() == [len(split) // 2] * 2


def test_expressions(tmp_path):
    given = load(tmp_path, "listops", tasks.Text(data="listops").load).dataset
    assert {role: len(split) for role, split in given.splits.items()} == dict(
        train=90_000, search=2_000, test=10_000
    )
    rows = [row.tobytes() for split in given.splits.values() for row in split.inputs["tokens"]]
    assert len(set(rows)) == len(rows)  # no expression twice, and so none in two roles
    official = decoded(given, "test")
    values, depths, widths = zip(*(expression_value(text) for text, _ in official), strict=True)
    assert list(values) == [answer for _, answer in official]
    assert max(depths) == 20 and max(widths) == 5
    # The official file is a random tenth of 100,000 different expressions.
    sizes = dict(examples=100_000, search_examples=1, test_examples=1)
    made = listops(data.ListOps(**sizes, max_depth=20, max_args=5, min_length=0, max_length=1000)).train
    lengths = made.inputs["mask"].sum(axis=1)
    theirs = given.test.inputs["mask"].sum(axis=1)
    for share in (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99):
        expected = np.quantile(theirs, share)
        assert abs(np.quantile(lengths, share) - expected) <= max(1, 0.07 * expected), share
    histograms = [np.bincount(x, minlength=10) / len(x) for x in (made.labels, given.test.labels)]
    np.testing.assert_allclose(*histograms, atol=4 * 0.3 / 100)  # four standard errors of the file's

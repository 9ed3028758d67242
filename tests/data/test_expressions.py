"""ListOps: its values by an independent parser, its lengths, and the official test file where it is there."""

import os
import statistics

import numpy as np
import pytest

from jaxnas import data, tasks
from jaxnas.data import source_files
from jaxnas.data.expressions import SYMBOLS

REAL = os.environ.get("JAXNAS_TEXT")
FUNCTIONS = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}


def evaluate(text):
    """The value of an expression, its levels, and the most arguments that an operation has."""
    symbols = iter(text.split())

    def node(symbol):
        if symbol not in FUNCTIONS:
            return int(symbol), 1, 0
        inner = []
        while (following := next(symbols)) != "]":
            inner.append(node(following))
        values, depths, widths = zip(*inner, strict=True)
        return FUNCTIONS[symbol](values), 1 + max(depths), max(len(inner), *widths)

    found = node(next(symbols))
    assert next(symbols, None) is None
    return found


def expressions(given, role):
    split = given.splits[role]
    rows = zip(split.inputs["tokens"], split.inputs["mask"], split.labels, strict=True)
    return [(given.vocabulary.decode(tokens[mask]), int(label)) for tokens, mask, label in rows]


def test_expressions_are_those_of_the_rule():
    for case in (
        dict(max_depth=6, max_args=5, min_length=8, max_length=60, seed=3),
        dict(max_depth=10, max_args=10, min_length=100, max_length=300),
        dict(max_depth=2, max_args=2, min_length=0, max_length=5, operation_probability=0.9),
        dict(max_depth=3, max_args=3, min_length=13, max_length=18, operation_probability=1.0),
    ):
        rule = data.ListOps(examples=300, search_examples=30, test_examples=20, **case)
        given = data.listops(rule)
        found = {role: expressions(given, role) for role in given.splits}
        assert {role: len(rows) for role, rows in found.items()} == dict(train=300, search=30, test=20)
        every = [text for rows in found.values() for text, _ in rows]
        assert len(set(every)) == len(every) and given.length == rule.max_length
        values, depths, widths = map(np.array, zip(*map(evaluate, every), strict=True))
        labels = [label for rows in found.values() for _, label in rows]
        lengths = np.array([len(text.split()) for text in every])
        np.testing.assert_array_equal(values, labels)
        assert depths.max() <= rule.max_depth and widths.max() <= rule.max_args
        assert rule.min_length < lengths.min() and lengths.max() < rule.max_length
        assert given.vocabulary.counts.sum() == given.train.inputs["mask"].sum()


def test_a_split_is_a_stream_of_its_own_and_a_seed_another_one():
    def made(examples, seed):
        sizes = dict(examples=examples, search_examples=20, test_examples=20)
        rule = data.ListOps(**sizes, seed=seed, max_depth=5, max_args=4, min_length=5, max_length=40)
        return data.listops(rule)

    few, many, other = made(50, 0), made(200, 0), made(50, 1)
    assert expressions(many, "train")[:50] == expressions(few, "train")
    for role in ("search", "test"):
        assert expressions(many, role) == expressions(few, role) != expressions(other, role)


def test_more_expressions_than_there_are_are_refused():
    rule = data.ListOps(examples=2000, max_depth=2, max_args=2, min_length=0, max_length=6)
    with pytest.raises(ValueError, match="after 410"):
        data.listops(rule)  # 10 digits, and 4 operations on two of them


def test_a_task_makes_its_expressions_when_it_is_loaded():
    sizes = dict(examples=40, search_examples=8, test_examples=6)
    rule = data.ListOps(**sizes, max_depth=4, max_args=3, min_length=4, max_length=24)
    task = tasks.Text(data=rule, lengths=(12, 24))
    assert task.name == "listops"
    with pytest.raises(ValueError, match="'listops'"):
        _ = task.inputs
    task = task.load()
    assert task.load() is task and task.sizes == {"train": 40, "search": 8, "test": 6}
    assert task.inputs["tokens"].shape == (1, 24) and task.details()["vocabulary"] == len(SYMBOLS) == 16
    # The search split is a part of its own, which a retraining is watched on.
    assert task.whole().sizes == {"train": 40, "validation": 8, "test": 6}


@pytest.fixture(scope="module")
def official():
    """The answers and the expressions of the official test file, without parentheses."""
    if not REAL:
        pytest.skip("JAXNAS_TEXT names no folder with the original files of texts")
    try:
        path = source_files.find_source(REAL, "listops_test_d20s.tsv")
    except FileNotFoundError as error:
        pytest.skip(f"JAXNAS_TEXT: {error}")
    rows = [line.split("\t") for line in source_files.read_text(path).splitlines()]
    without = str.maketrans("()", "  ")
    return [(" ".join(text.translate(without).split()), int(answer)) for answer, text in rows]


def test_the_official_expressions_have_the_official_values(official):
    assert len(official) == len(set(official)) == 10_000
    measured = [evaluate(text) for text, _ in official]
    assert [value for value, _, _ in measured] == [answer for _, answer in official]
    assert max(depth for _, depth, _ in measured) == 20 and max(width for _, _, width in measured) == 5


def test_the_generator_makes_what_the_official_file_has(official):
    # The official file is a random tenth of 100,000 different expressions.
    sizes = dict(examples=100_000, search_examples=1, test_examples=1)
    rule = data.ListOps(**sizes, max_depth=20, max_args=5, min_length=0, max_length=1000)
    made = data.listops(rule).train
    lengths = made.inputs["mask"].sum(axis=1)
    theirs = np.array([len(text.split()) for text, _ in official])
    for share in (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99):
        expected = np.quantile(theirs, share)
        assert abs(np.quantile(lengths, share) - expected) <= max(1, 0.07 * expected), share
    histograms = [np.bincount(x, minlength=10) / len(x) for x in (made.labels, [y for _, y in official])]
    np.testing.assert_allclose(*histograms, atol=4 * 0.3 / 100)  # four standard errors of the file's

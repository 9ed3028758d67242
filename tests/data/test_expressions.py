"""ListOps: its values by an independent parser, and its lengths."""

import numpy as np
import pytest
from small_texts import decoded, expression_value

from jaxnas import data, tasks
from jaxnas.data.expressions import SYMBOLS, listops


def test_expressions_are_those_of_the_rule():
    for case in (
        dict(max_depth=6, max_args=5, min_length=8, max_length=60, seed=3),
        dict(max_depth=10, max_args=10, min_length=100, max_length=300),
        dict(max_depth=2, max_args=2, min_length=0, max_length=5, operation_probability=0.9),
        dict(max_depth=3, max_args=3, min_length=13, max_length=18, operation_probability=1.0),
    ):
        rule = data.ListOps(examples=100, search_examples=30, test_examples=20, **case)
        given = listops(rule)
        found = {role: decoded(given, role) for role in given.splits}
        assert {role: len(rows) for role, rows in found.items()} == dict(train=100, search=30, test=20)
        every = [text for rows in found.values() for text, _ in rows]
        assert len(set(every)) == len(every) and given.length == rule.max_length
        values, depths, widths = map(np.array, zip(*map(expression_value, every), strict=True))
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
        return {role: decoded(listops(rule), role) for role in ("train", "search", "test")}

    few, many, other = made(50, 0), made(200, 0), made(50, 1)
    assert many["train"][:50] == few["train"]
    for role in ("search", "test"):
        assert many[role] == few[role] != other[role]


def test_more_expressions_than_there_are_are_refused():
    rule = data.ListOps(examples=2000, max_depth=2, max_args=2, min_length=0, max_length=6)
    with pytest.raises(ValueError, match="after 410"):
        listops(rule)  # 10 digits, and 4 operations on two of them


def test_a_task_makes_its_expressions_when_it_is_loaded():
    sizes = dict(examples=40, search_examples=8, test_examples=6)
    rule = data.ListOps(**sizes, max_depth=4, max_args=3, min_length=4, max_length=24)
    task = tasks.Text(data=rule, lengths=(12, 24))
    with pytest.raises(ValueError, match="'listops'"):
        _ = task.inputs
    task = task.load()
    assert task.load() is task and task.sizes == {"train": 40, "search": 8, "test": 6}
    assert task.inputs["tokens"].shape == (1, 24) and task.details()["vocabulary"] == len(SYMBOLS) == 16
    # The search split is a part of its own, which a retraining is watched on.
    assert task.whole().sizes == {"train": 40, "validation": 8, "test": 6}

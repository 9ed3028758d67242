"""Rows of numbers with classes or targets."""

import dataclasses

import numpy as np
import refusals

from jaxnas import data, tasks

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(3, 2, (60, 3))
Y = X @ [1.0, 2.0, 3.0]


def test_columns_and_targets_are_standardized_by_the_rows_to_train_on():
    """Also times in seconds, whose differences float32 does not hold, and a column that is constant."""
    x = np.concatenate([1.7e9 + X, np.full((60, 1), 0.1)], axis=1)
    given = data.from_table(x, 1e9 + Y, held_out=data.HeldOut(validation=0.1))
    assert tasks.Table(data=given).sizes == {"train": 34, "search": 9, "validation": 5, "test": 12}
    rows = np.concatenate([split.inputs["row"] for split in given.splits.values()])
    targets = np.concatenate([split.labels for split in given.splits.values()])
    assert rows.dtype == targets.dtype == np.float32
    # Every row is in one role, and has its own target.
    order, own = np.argsort(rows[:, 0]), np.argsort(x[:, 0])
    np.testing.assert_allclose(given.rows(x)[own], rows[order])
    np.testing.assert_allclose(given.targets(targets[order][:, None]), (1e9 + Y)[own], atol=1e-5)
    for values in (given.train.inputs["row"][:, :3], given.train.labels):
        np.testing.assert_allclose(values.mean(0), 0, atol=1e-6)
        np.testing.assert_allclose(values.std(0), 1, atol=1e-6)
    np.testing.assert_allclose(rows[:, 3], 0, atol=1e-6)
    whole = given.whole()
    assert len(whole.train) == 43 and whole.search is None and whole.mean is given.mean
    # Classes are there in proportion, and as they are.
    labels = np.array(["a", "b", "c"])[np.arange(60) % 3]
    classes = data.from_table(X, labels, X[:6], labels[:6])
    assert classes.classes == ("a", "b", "c") and (classes.target_mean, classes.target_std) == (0, 1)
    counts = {role: np.bincount(split.labels).tolist() for role, split in classes.splits.items()}
    assert counts == {"train": [16] * 3, "search": [4] * 3, "test": [2] * 3}


def test_tables_that_do_not_fit_are_refused():
    def case(*names, **changes):
        given = dict(x=X, y=Y, x_test=X[:5], y_test=Y[:5]) | changes
        return lambda: data.from_table(**given), ValueError, *names

    given = data.from_table(X, np.arange(60) % 2)
    missing, mixed = X.copy(), X.astype(object)
    missing[7, 2], mixed[7, 2] = np.nan, "3"
    refusals.check(
        case("x is float64[60]", x=X[:, 0]),
        case("x holds", "get_dummies", x=mixed),
        case("x holds", x=[[1, 2], [3]]),
        case("x is float64[0, 3]", x=X[:0]),
        case("x[7, 2] is nan", x=missing),
        case("x[0, 0] is 1e+300", x=np.full((60, 3), 1e300)),
        case("all rows", x=np.ones((60, 3))),
        case("60 of 'row'", "59 labels", y=Y[:-1]),
        case("[3, 2] columns", x_test=X[:5, :2]),
        case("y is float64[60, 1]", y=Y[:, None]),
        case("y[0] is inf", y=np.full(60, np.inf)),
        case("[0. 1.] alone", "y.astype(int)", y=np.arange(60) % 2.0),
        case("y_test is int64", "no classes", y_test=np.arange(5)),
        case("y_test is float64", "2 classes", y=np.arange(60) % 2),
        case("y_test", y_test=None),
        (lambda: given.rows(X[:, :2]), ValueError, "2 columns", "3"),
        (lambda: dataclasses.replace(given, classes=()), ValueError, "label 1", "0 classes"),
    )

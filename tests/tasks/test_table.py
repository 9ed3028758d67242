"""Tables: the metrics of a regression in its own unit, and of classes."""

import dataclasses

import numpy as np
import pytest
import refusals
from sklearn.metrics import accuracy_score, r2_score, root_mean_squared_error
from small_nets import random_params
from small_tasks import net_of, task_of

from jaxnas import data, recipes, tasks, training

TASK, NET = task_of("table"), net_of("table")
VARIABLES = {"params": random_params(NET, TASK.inputs.shape)}


def test_metrics_are_scikit_learns_over_batches_that_do_not_divide_the_data():
    arch, given = NET.space.largest(), TASK.dataset
    found = training.make_evaluator(TASK, NET, "test", batch_size=7)(VARIABLES, arch)
    predicted = given.targets(NET.apply(VARIABLES, given.test.inputs["row"], arch))
    true = given.targets(given.test.labels[:, None])
    assert true.std() > 100 and [metric.name for metric in TASK.metrics] == ["rmse", "r2"]
    assert float(found["rmse"]) == pytest.approx(root_mean_squared_error(true, predicted), rel=1e-5)
    assert float(found["r2"]) == pytest.approx(r2_score(true, predicted), rel=1e-4)


def test_a_class_of_rows_is_learned():
    x = np.random.default_rng(0).normal(size=(200, 2))
    task = tasks.Table(data=data.from_table(x, (x[:, 0] * x[:, 1] > 0).astype(int)))
    net = NET.clone(num_outputs=2, dropout=0.0)
    trained = training.fit(task, net, training.Training(steps=150, learning_rate=1e-2))
    arch, rows = net.space.largest(), task.dataset.test.inputs["row"]
    found = training.make_evaluator(task, net, "test")(trained.variables, arch)["accuracy"]
    logits = net.apply(trained.variables, rows, arch)
    assert float(found) == pytest.approx(accuracy_score(task.dataset.test.labels, np.argmax(logits, 1)))
    assert found > 0.85


def test_what_a_regression_cannot_do_is_refused():
    steps = training.Training(steps=1)
    wide = dataclasses.replace(NET, num_outputs=2)
    refusals.check(
        (lambda: training.fit(TASK, wide, steps), ValueError, "[1, 2]", "[1, 1]"),
        (lambda: training.fit(TASK, NET, steps, recipe=recipes.Sandwich()), ValueError, "distill=None"),
        (lambda: tasks.Table(data="wine"), ValueError, "'wine'"),
    )

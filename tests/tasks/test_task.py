"""What every task keeps: metrics by their names, roles, and data that must be loaded first."""

import functools

import pytest
import refusals
from small_tasks import TASKS, net_of, perceptron, task_of

import jaxnas
from jaxnas import runs, tasks, training
from jaxnas.data.splits import ROLES
from jaxnas.tasks.task import check_fits


@pytest.mark.parametrize("kind", TASKS)
def test_a_task_keeps_the_protocol(kind):
    task = task_of(kind)
    assert set(task.sizes) <= set(ROLES) and task.rows("train") >= 8
    assert task.load() is task and task.rows("no such role") == 0
    assert len({metric.name for metric in task.metrics}) == len(task.metrics)
    for metric in task.metrics:
        assert (metric.score(2.0) > metric.score(1.0)) == (metric.direction == "max")
    check_fits(task, perceptron() if kind == "images" else net_of(kind))
    # What a linear model reaches, where there is one: these classes are told by brightness, or by a word.
    linear = task.linear_model(("search", "test"))
    assert linear == ({"search": 1.0, "test": 1.0} if kind in ("images", "text") else {})


def test_a_dict_in_place_of_an_array_is_named_and_the_reverse():
    images, text = (task_of(kind).inputs for kind in ("images", "text"))
    refusals.check(
        (lambda: check_fits(task_of("images"), net_of("text")), ValueError, "one array"),
        (lambda: check_fits(task_of("text"), net_of("images")), ValueError, "'mask'"),
        (lambda: jaxnas.cost(net_of("text"), images), ValueError, "one array"),
        (lambda: jaxnas.cost(net_of("images"), text), ValueError, "'mask'"),
    )


def test_a_data_set_is_no_task():
    """Wherever a task is given."""
    net, given, name = perceptron(), task_of("images").data, "task is expected"
    refusals.check(
        (lambda: training.fit(given, net, 3), TypeError, name),
        (lambda: training.make_evaluator(given, net, "search"), TypeError, name),
        (lambda: training.train_seeds(given, net, training.Training(steps=3), (0,)), TypeError, name),
        (lambda: runs.search_space(given, net, {}), TypeError, name),
        (lambda: check_fits(given, net), TypeError, name),
    )


@pytest.mark.parametrize("kind", TASKS)
def test_each_role_has_its_use(kind):
    task = task_of(kind)
    refusals.check(
        (lambda: task.batches("test", 4, 0), ValueError, "'test'", "training"),
        (lambda: task.batches("validation", 4, 0), ValueError, "'validation'", "training"),
        (lambda: task.evaluation("train"), ValueError, "'train'", "evaluation"),
        (lambda: task.evaluation("tset"), ValueError, "'tset'"),
        (lambda: task.whole().batches("search", 4, 0), ValueError, "'search'", "only of train"),
        (lambda: task.whole().evaluation("search"), ValueError, "'search'", "only of train"),
    )


def test_settings_that_cannot_be_right_are_refused():
    """Beyond those of tests/test_settings.py."""
    images = functools.partial(tasks.Images, data="digits")
    language = functools.partial(tasks.Language, data="enwik8")
    refusals.check(
        (lambda: images().sizes, ValueError, "'digits'"),
        (lambda: language(length=8).sizes, ValueError, "'enwik8'"),
        (lambda: images(label_smoothing=2), ValueError, "label_smoothing is 2"),
        (lambda: images(search_fraction=1.0), ValueError, "search_fraction is 1.0"),
        (lambda: images(evaluation_batch_size=0), ValueError, "evaluation_batch_size is 0"),
        (lambda: language(length=0), ValueError, "length is 0"),
    )

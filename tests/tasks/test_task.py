"""What every task keeps: metrics by their names, roles, and data that must be loaded first."""

import pytest
from small_tasks import TASKS, net_of, perceptron, task_of

import jaxnas
from jaxnas import runs, tasks, training
from jaxnas.tasks import check_fits


@pytest.mark.parametrize("kind", TASKS)
def test_a_task_keeps_the_protocol(kind):
    task = task_of(kind)
    assert set(task.sizes) <= set(tasks.ROLES) and task.rows("train") >= 8
    assert task.load() is task and task.rows("no such role") == 0
    assert len({metric.name for metric in task.metrics}) == len(task.metrics)
    for metric in task.metrics:
        assert (metric.score(2.0) > metric.score(1.0)) == (metric.direction == "max")
    check_fits(task, perceptron() if kind == "images" else net_of(kind))
    # What a linear model reaches, where there is one: these classes are told by brightness, or by a word.
    linear = task.linear_model(("search", "test"))
    assert linear == ({"search": 1.0, "test": 1.0} if kind in ("images", "text") else {})


def test_a_dict_in_place_of_an_array_is_named_and_the_reverse():
    for task, net, message in (("images", "text", "The inputs are one array;"), ("text", "images", "'mask'")):
        for enter in (check_fits, lambda task, net: jaxnas.cost(net, task.inputs)):
            with pytest.raises(ValueError) as error:
                enter(task_of(task), net_of(net))
            assert message in str(error.value)


def test_a_data_set_is_no_task():
    """Wherever a task is given."""
    net, given = perceptron(), task_of("images").data
    for enter in (
        lambda: training.fit(given, net, 3),
        lambda: training.make_evaluator(given, net, "search"),
        lambda: training.train_seeds(given, net, training.Training(steps=3), (0,)),
        lambda: runs.search_space(given, net, {}),
        lambda: check_fits(given, net),
    ):
        with pytest.raises(TypeError, match="task is expected"):
            enter()


@pytest.mark.parametrize("kind", TASKS)
def test_each_role_has_its_use(kind):
    task = task_of(kind)
    cases = (
        (lambda: task.batches("test", 4, 0), "'test' may not be used for training, only 'train' or 'search'"),
        (lambda: task.batches("validation", 4, 0), "'validation' may not be used for training"),
        (lambda: task.evaluation("train"), "'train' may not be used for an evaluation"),
        (lambda: task.evaluation("tset"), "'tset' is not a role; expected one of train, search, validation"),
        (lambda: task.whole().batches("search", 4, 0), "of the role 'search', only of train"),
        (lambda: task.whole().evaluation("search"), "of the role 'search', only of train"),
    )
    for call, message in cases:
        with pytest.raises(ValueError) as error:
            call()
        assert message in str(error.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tasks.Images(data="digits").sizes, "'digits'"),
        (lambda: tasks.Language(data="enwik8", length=8).sizes, "'enwik8'"),
        (lambda: tasks.Images(data="digits", mixup=-1), "mixup is -1"),
        (lambda: tasks.Images(data="digits", mixup="a"), "'a'"),
        (lambda: tasks.Images(data="digits", search_fraction=float("nan")), "search_fraction is nan"),
        (lambda: tasks.Language(data="enwik8", length="8"), "'8'"),
        (lambda: tasks.Language(data="enwik8", length=8, search_fraction=float("nan")), "fraction is nan"),
        (lambda: tasks.Images(data="digits", label_smoothing=2), "label_smoothing is 2"),
        (lambda: tasks.Images(data="digits", label_smoothing=float("nan")), "label_smoothing is nan"),
        (lambda: tasks.Images(data="digits", crop_padding=-1), "crop_padding is -1"),
        (lambda: tasks.Images(data="digits", search_fraction=1.0), "search_fraction is 1.0"),
        (lambda: tasks.Images(data="digits", evaluation_batch_size=0), "evaluation_batch_size is 0"),
        (lambda: tasks.Language(data="enwik8", length=0), "length is 0"),
        (lambda: tasks.Language(data="enwik8", length=8, evaluation_rows=0), "evaluation_rows is 0"),
        (lambda: tasks.Language(data="enwik8", length=8, clamp_length=-1), "clamp_length is -1"),
        (lambda: tasks.Language(data="enwik8", length=8, search_fraction=-0.1), "search_fraction is -0.1"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert message in str(error.value)

"""Every number among the settings is refused where it cannot be right, by a message that says all of it."""

import dataclasses
import types
import typing

import jax
import numpy as np
import pytest
import refusals
from small_tasks import task_of

from jaxnas import Choice, Space, predictors, recipes, runs, search, tasks, training
from jaxnas.predictors import features
from jaxnas.recipes.relaxations import softmax
from jaxnas.runs.methods import METHODS
from jaxnas.search import reinforce

SPACE = {"space": Space(digit=Choice(*range(10)).repeat(4))}
NEEDED = {  # what a class cannot be made without, beside the space of a strategy
    training.Training: {"steps": 10},
    search.PredictorGuided: {**SPACE, "predictor": predictors.GaussianProcess(), "features": dict},
    features.ChainCell: {"nodes": 2, "operations": 3},
    features.EdgeCell: {"edges": ((0, 1),), "operations": 3},
    predictors.TransformerPredictor: {"kinds": 3, "places": 3},
    tasks.Graphs: {"data": "cora"},
    tasks.Images: {"data": "digits"},
    tasks.Language: {"data": "enwik8", "length": 8},
    tasks.Table: {"data": task_of("table").data},
    tasks.Text: {"data": "sst5"},
}
NO_SETTINGS = {runs.Lab}  # what these packages give back, or hand to the functions of a user
GROUPS = {training.Training: "training.", runs.Search: "search.", runs.SpaceEvolution: "evolution."}
GROUPS |= dict.fromkeys(METHODS.values(), "search.method.")
# Bounds of costs and of options, which may lie below 0.
ANY_SIGN = {(search.ShiftRule, "least"), (search.ShiftRule, "most")}
ANY_SIGN |= {(runs.Search, "least"), (runs.Search, "most"), (runs.SpaceEvolution, "most")}


def number_fields(cls):
    """The fields that hold a number: their names, whether it is whole, and whether None will do."""
    found = {}
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        kinds = set(typing.get_args(hint)) if union else {hint}
        if field.init and kinds - {type(None)} and kinds <= {int, float, type(None)}:
            found[field.name] = float not in kinds, type(None) in kinds
    return found


PUBLIC = [
    *(
        vars(one)[name]
        for one in (recipes, training, search, predictors, tasks, runs)
        for name in one.__all__
    ),
    *(features.ChainCell, features.EdgeCell, reinforce.SoftmaxPolicy),
]
CLASSES = [cls for cls in PUBLIC if isinstance(cls, type) and dataclasses.is_dataclass(cls)]
SETTINGS = [cls for cls in CLASSES if number_fields(cls) and cls not in NO_SETTINGS]


@pytest.mark.parametrize("cls", SETTINGS, ids=lambda cls: cls.__name__)
def test_a_number_that_cannot_be_right_is_refused(cls):
    """In every public class that has numbers."""
    given = NEEDED.get(cls, SPACE if issubclass(cls, search.Strategy) else {})
    cls(**given)
    for name, (whole, may_be_none) in number_fields(cls).items():
        wrong = [float("nan"), float("inf"), "x", True]
        wrong += [] if (cls, name) in ANY_SIGN else [-1]
        wrong += [2.5] if whole else []
        wrong += [] if may_be_none else [None]
        for value in wrong:
            with pytest.raises(ValueError) as error:
                cls(**given | {name: value})
            owner = GROUPS.get(cls, f"{cls.__name__}: ")
            assert str(error.value).startswith(f"{owner}{name} is {value!r}, expected a "), str(error.value)


def test_a_number_among_arguments_that_cannot_be_right_is_refused():
    op = {"op": jax.numpy.zeros(2)}
    refusals.check(
        (lambda: softmax(op, temperature=0.0), ValueError, "temperature", "0.0"),
        (lambda: softmax(op, 0.0), TypeError, "jax.random", "0.0"),
    )


@pytest.mark.parametrize(
    ("cls", "name", "settings"), [(runs.Trials, "steps", {}), (tasks.Text, "lengths", {"data": "sst5"})]
)
def test_whole_numbers_that_increase_are_that(cls, name, settings):
    for value in ((), (5, 3), (5, 5), (0, 2), (float("nan"),), (2.5,), (True, 3), "x", 5, (3, "x")):
        with pytest.raises(ValueError) as error:
            cls(**settings | {name: value})
        owner = GROUPS.get(cls, f"{cls.__name__}: ")
        assert f"{owner}{name} is {value!r}, expected whole numbers" in str(error.value)
    # Those of NumPy become plain ones: settings are written as JSON, and compared.
    given = getattr(cls(**settings | {name: [*np.arange(2, 4)]}), name)
    assert given == (2, 3) and {type(x) for x in given} == {int}
    given = training.Training(steps=np.arange(4)[3])
    assert type(given.steps) is int and given == training.Training(steps=3)

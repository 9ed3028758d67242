"""Every way of searching says and stores where its time went."""

import logging
import math
import types

import numpy as np
import pytest
import tiers
from small_tasks import perceptron, task_of

from jaxnas import files, report, runs, search
from jaxnas.training import Relaxed, Training, make_mesh
from jaxnas.training.setup import prepare

TASK, NET = task_of("images"), perceptron()
RECIPE = Relaxed(order="first", start=1, every=1)
TRAINING = Training(devices=1, steps=2, batch_size=8, learning_rate=1e-2, warmup_steps=1)
RANDOM = runs.ByStrategy(search.RandomSearch(NET.space, evaluations=4, batch=2))
METHODS = {name: method() for name, method in runs.METHODS.items()} | {
    "replacements": runs.Replacements(samples=0),
    "strategy": RANDOM,
    "trials": runs.Trials(samples=2, steps=(1,)),
    "perturbation": runs.Perturbation(tune_steps=1),
    "strongest": runs.Pruning(at_once=True),
}
TRAINS, EVALUATES = ("trials", "perturbation"), set(METHODS) - {"argmax"}
QUICK = ("strategy", "argmax")


@pytest.fixture(scope="module")
def state():
    return prepare(TASK, NET, TRAINING, RECIPE)[0]


@pytest.mark.parametrize("method", tiers.cases(METHODS, QUICK))
def test_a_search_says_and_stores_where_its_time_went(method, state, tmp_path, caplog):
    """Not even an older search of the same workdir, by another method, is taken for it."""
    path = tmp_path / "search" / "times.json"
    path.parent.mkdir()
    files.write_json(path, {"seconds": 1e9})
    settings = runs.Search(METHODS[method], limit=1)
    lab = runs.Lab(tmp_path, mesh=make_mesh(1))
    with caplog.at_level(logging.INFO, "jaxnas"):
        if isinstance(METHODS[method], runs.BY_BUDGET):
            found = runs.search_space(TASK, NET, state.variables, settings, lab)
        else:
            found = runs.select(TASK, NET, state, settings, RECIPE, TRAINING, lab)
    assert files.read_json(path) == dict(found.times) and 0 < found.times["seconds"] < 1e9
    shares = {name: x for name, x in found.times.items() if not name.startswith(("seconds", "evaluations_"))}
    assert min(shares.values()) >= 0 and sum(shares.values()) == pytest.approx(1)
    assert (shares["step"] > 0) == (method in TRAINS)
    assert (shares["evaluation"] > 0) == (method in EVALUATES)
    assert report.times_line(found.times) in caplog.messages
    assert f"{100 * shares['evaluation']:.0f} % evaluation" in report.times_line(found.times)


def test_a_random_search_has_no_other_one_beside_it(state):
    settings = runs.Search(RANDOM, limit=1)
    found = runs.search_space(TASK, NET, state.variables, settings, runs.Lab(mesh=make_mesh(1)))
    assert not found.others and [one.name for one in found.searches] == ["random"]


def test_sampling_takes_the_best_and_never_a_nan(state, monkeypatch):
    def select(*scores):
        evaluator = types.SimpleNamespace(examples=12, scores=lambda *_: np.asarray(scores, np.float32))
        monkeypatch.setattr(runs.selecting, "make_evaluator", lambda *_, **__: evaluator)
        settings = runs.Search(runs.Sampling(samples=3))
        return runs.select(TASK, NET, state, settings, RECIPE, TRAINING, runs.Lab(mesh=make_mesh(1)))

    found = select(0.1, 0.3, math.nan)
    candidates = found.selection.candidates
    assert len(candidates) == 3 and math.isnan(candidates[2].supernet)
    assert NET.space.to_dict(found.arch) == candidates[1].architecture
    with pytest.raises(ValueError, match="scores is a"):
        select(math.nan, math.inf, -math.inf)

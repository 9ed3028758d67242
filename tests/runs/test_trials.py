"""Trials on workers: the race is that of trials one after another, and none is lost when a worker dies."""

import functools
import json
from concurrent.futures import BrokenExecutor

import jax
import numpy as np
import objectives
import pytest
from ray_cluster import ray_cluster

from jaxnas import executors, search
from jaxnas.recipes.selections import Candidates
from jaxnas.runs import Lab, Trials
from jaxnas.runs.searching import history_of
from jaxnas.runs.selecting import race as raced
from jaxnas.space import Choice, Space
from jaxnas.training.alone import on_workers

SPACE = Space(op=Choice(*range(9)))
METHOD = Trials(steps=(1, 2, 3), eta=2)
DRAWN = Candidates({"op": np.arange(9, dtype=np.int32)}, np.zeros(9, bool))


def in_turn(folder, archs, fidelity):
    texts = [json.dumps({"op": int(op)}) for op in archs["op"]]
    return np.asarray([objectives.raced(str(folder), text, fidelity) for text in texts], np.float32)


@pytest.fixture
def folder(tmp_path):
    """Where trials are noted."""
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


def race(workdir, folder, executor=None):
    """The winner, the scores of all, the history as it is written, and how often each trial was begun."""
    calls = None if executor is None else executors.Calls(objectives.raced, executor, str(folder))
    before = len(list(folder.glob("*-*")))
    kept = {"history_path": history_of(workdir), "objective": "raced"}
    trials = functools.partial(in_turn, folder)
    if calls is not None:
        trials = on_workers(calls, SPACE)
    arch, told = raced(SPACE, METHOD, DRAWN, trials, kept, Lab(workers={"trials": calls}))
    begun = len(list(folder.glob("*-*"))) - before
    return int(arch["op"]), told, history_of(workdir).read_bytes(), begun


def test_a_race_on_workers_is_that_of_the_loop_and_goes_on_when_one_was_killed(tmp_path, folder):
    here = race(tmp_path / "here", folder)
    assert here[3] == 9 + 4 + 2 and len([scores for scores in here[1] if len(scores) == 3]) == 2
    with executors.processes(2) as executor:
        np.testing.assert_equal(race(tmp_path / "there", folder, executor), here)
    (folder / "kill").touch()
    died = pytest.raises(BrokenExecutor)
    with executors.processes(2) as executor, died:
        race(tmp_path / "killed", folder, executor)
    kept = len((tmp_path / "killed" / "search" / "history.jsonl").read_bytes().splitlines())
    assert 9 <= kept < 13
    with executors.processes(2) as executor:
        again = race(tmp_path / "killed", folder, executor)
    np.testing.assert_equal(again[:3], here[:3])
    assert again[3] == 15 - kept
    # What workers began, the loop takes up.
    np.testing.assert_equal(race(tmp_path / "killed", folder)[:3], here[:3])


def test_a_race_on_ray_does_the_trial_of_a_killed_worker_again(tmp_path, folder):
    here = race(tmp_path / "here", folder)
    (folder / "kill").touch()
    with ray_cluster() as executor:
        there = race(tmp_path / "there", folder, executor)
    np.testing.assert_equal(there[:3], here[:3])
    assert (here[3], there[3]) == (15, 16) and not (folder / "kill").exists()


def test_calls_that_began_are_not_made_again_and_are_given_up_after_an_error():
    with executors.processes(2) as executor:
        calls = executors.Calls(objectives.product, executor, 2)
        for right in (3, 4, 3):
            calls.begin(right)
        assert [calls(right) for right in (4, 3, 5)] == [8, 6, 10]
        failing = executors.Calls(objectives.product, executor)
        failing.begin(7, 1)
        with pytest.raises(ValueError, match="seven"):
            failing(7, 1)
        with pytest.raises(ValueError, match="the workers cannot import"):
            executors.Calls(lambda x: x, executor)


def test_before_is_called_with_the_state_of_each_evaluation_that_is_not_recorded(tmp_path):
    seen = []
    kept = dict(history_path=tmp_path / "history.jsonl", before=lambda state: seen.append(int(state.size)))
    for evaluations, states in ((4, [0, 2]), (6, [0, 2, 4])):
        strategy = search.RandomSearch(SPACE, evaluations=evaluations, batch=2)
        search.run(strategy, lambda values: values["op"], jax.random.key(0), **kept)
        assert seen == states

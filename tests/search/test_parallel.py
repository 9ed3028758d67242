"""A user's own function of one architecture on parallel workers."""

import concurrent.futures
import functools
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import objectives
import pytest
import refusals
import tiers

from jaxnas import executors, predictors, search
from jaxnas.space import Choice, Space

SPACE = Space(op=Choice("a", "b", "c").repeat(3))
PROCESS = predictors.GaussianProcess(steps=8)
KEY = jax.random.key(0)


def guided(**settings):
    common = dict(predictor=PROCESS, features=predictors.one_hot(SPACE), evaluations=12)
    return search.PredictorGuided(SPACE, **(common | settings))


STRATEGIES = {
    "random": search.RandomSearch(SPACE, evaluations=12, batch=1),
    "local": search.LocalSearch(SPACE, evaluations=12),
    "ageing": search.RegularizedEvolution(SPACE, evaluations=12, population=4, sample=2, unique=True),
    "guided": guided(),
    "reinforce": search.Reinforce(SPACE, evaluations=12, batch=1),
}


@pytest.mark.parametrize(
    "name", tiers.cases([name for name in STRATEGIES if name != "reinforce"], ("guided",))
)
def test_what_is_being_evaluated_is_not_asked_for_again_and_scores_may_come_in_any_order(name):
    strategy, random = STRATEGIES[name], np.random.default_rng(0)
    state, running, told = strategy.init(KEY), [], []
    while not strategy.finished(state):
        while len(running) < 3 and len(told) + len(running) < 12:
            archs, state = strategy.ask(state)
            state = search.begin_evaluation(strategy, state, archs)
            running.append(archs)
        archs = running.pop(random.integers(len(running)))
        score = jnp.sum(archs["op"], axis=1).astype(jnp.float32)
        state = search.end_evaluation(strategy, state, archs, score)
        told.append((tuple(np.asarray(archs["op"][0]).tolist()), float(score[0])))
        assert int(state.pending) == len(running)
    assert len({code for code, _ in told}) == 12
    assert [tuple(code) for code in np.asarray(state.codes).tolist()] == [code for code, _ in told]
    np.testing.assert_array_equal(state.scores, [score for _, score in told])


def test_one_worker_is_the_search_without_workers(tmp_path):
    strategy = STRATEGIES["guided"]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        one = search.run_parallel(strategy, objectives.count, KEY, executor=pool)
    loop = search.run(strategy, objectives.count, KEY)
    np.testing.assert_array_equal(one.state.codes, loop.state.codes)


def test_every_failure_is_one_failed_evaluation_and_the_search_goes_on(tmp_path):
    path = tmp_path / "history.jsonl"
    strategy = search.RandomSearch(SPACE, evaluations=27, batch=1)
    settings = dict(workers=2, metric="score", history_path=path)
    result = search.run_parallel(strategy, objectives.troubled, KEY, timeout=1.0, **settings)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == result.history and len(lines) == 27
    assert result.failed == 24 and result.score == 3
    reasons = {"".join(line["architecture"]["op"]): line.get("error") for line in lines}
    for first, reason in {
        "aaa": "RuntimeError: out of luck",
        "aba": "the worker died",
        "aca": "TimeoutError: it took more than 1.0 seconds",
        "baa": "returned None, expected a finite number",
        "bba": "returned 'high'",
        "bca": "returned [1.0, 2.0, 3.0]",
        "caa": "returned nan",
        "cba": "returned a dict of 'loss'; metric is 'score', expected one of these: give metric='loss'",
        "aab": "SystemExit: no data",
        "bbb": "if that is what the evaluation returned, return a number",
    }.items():
        assert reason in reasons[first]
    assert all(line["metrics"] == {"score": line["score"], "loss": 1.0} for line in lines if line["score"])
    troubled = lines[0]["settings"]["objective"]
    again = search.run_parallel(strategy, objectives.never, KEY, objective=troubled, **settings)
    assert again.resumed == 27 and again.history == lines
    refusals.check(
        (
            lambda: search.run_parallel(strategy, objectives.never, KEY, **settings),
            ValueError,
            troubled,
            "objective=",
        )
    )


def test_a_stopped_search_goes_on_and_repeats_nothing_that_was_finished(tmp_path):
    """The scores come out of order, and a part of a line is left."""
    path, seen, lock = tmp_path / "history.jsonl", [], threading.Lock()

    def stopping(standing):
        if standing.evaluations == 7:
            raise KeyboardInterrupt

    def counted(values):
        with lock:
            seen.append("".join(values["op"]))
        return objectives.count(values)

    strategy, settings = STRATEGIES["guided"], dict(workers=3, history_path=path)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        with pytest.raises(KeyboardInterrupt):
            search.run_parallel(strategy, counted, KEY, executor=pool, progress=stopping, **settings)
        before = path.read_text()
        path.write_text(before + '{"index": 7, "str')
        seen.clear()
        result = search.run_parallel(strategy, counted, KEY, executor=pool, **settings)
    finished = {"".join(json.loads(line)["architecture"]["op"]) for line in before.splitlines()}
    assert result.resumed == 7 and path.read_text().startswith(before)
    assert len(seen) == 5 and not finished & set(seen)
    with pytest.raises(ValueError, match="other settings: workers"):
        search.run_parallel(strategy, counted, KEY, workers=2, history_path=path)


def test_a_search_keeps_away_from_an_option_that_always_fails():
    space = Space(op=Choice("a", "b", "c", "d").repeat(5))
    strategy = search.PredictorGuided(
        space, evaluations=40, predictor=PROCESS, features=predictors.one_hot(space), initial=8
    )

    def evaluate(archs):
        score = jnp.sum(archs["op"] == 2, axis=1).astype(jnp.float32)
        return jnp.where(archs["op"][:, 0] == 3, jnp.nan, score)

    keys = jax.random.split(jax.random.key(1), 6)
    states = jax.jit(jax.vmap(functools.partial(search.scan, strategy, evaluate)))(keys)
    # A quarter of all fails: two of the eight at random, and hardly one of the 32 that are chosen.
    assert np.isnan(states.scores[:, 8:]).mean() < 0.05
    assert np.all(np.nanmax(states.scores, axis=1) == 5)


def test_clear_errors(tmp_path):
    random = STRATEGIES["random"]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        with pytest.raises(ValueError, match="all 12"):
            search.run_parallel(random, objectives.broken, KEY, executor=pool, workers=2)
    for wrong, message in (
        ({"workers": 0}, "workers is 0"),
        ({"workers": "2"}, "'2'"),
        ({"timeout": -1}, "timeout is -1"),
        ({"evaluations": 10.5}, "evaluations is 10"),
        ({"evaluations": "10"}, "'10'"),
        ({"history_path": tmp_path}, "is a folder; give the path"),
    ):
        with pytest.raises(ValueError, match=message):
            search.run_parallel(random, objectives.count, KEY, **wrong)
    with pytest.raises(ValueError, match="asks for 50"):
        search.run_parallel(search.Evolution(SPACE), objectives.count, KEY)
    with pytest.raises(ValueError, match="SuccessiveHalving asks for"):
        search.run_parallel(search.SuccessiveHalving(SPACE), objectives.count, KEY)
    with pytest.raises(ValueError, match="the workers cannot import"):
        search.run_parallel(random, lambda values: 1.0, KEY)
    for key in (0, None):
        with pytest.raises(TypeError, match="expected one typed key"):
            search.run_parallel(random, objectives.count, key)
    with pytest.raises(TypeError, match="evaluate is None"):
        search.run_parallel(random, None, KEY)


def test_workers_end_with_a_search_that_is_killed_and_it_goes_on(tmp_path):
    history, numbers = tmp_path / "history.jsonl", tmp_path / "numbers"
    numbers.mkdir()
    program = f"""if __name__ == "__main__":
    import jax, objectives
    from jaxnas import Choice, Space, search
    space = Space(op=Choice("a", "b", "c").repeat(3))
    strategy = search.RandomSearch(space, evaluations=20, batch=1)
    search.run_parallel(
        strategy, objectives.numbered, jax.random.key(0), workers=2, history_path={str(history)!r}
    )
"""
    path = tmp_path / "program.py"
    path.write_text(program)
    tests = str(pathlib.Path(objectives.__file__).parent)
    environment = os.environ | {"PYTHONPATH": tests, "NUMBERS": str(numbers)}
    process = subprocess.Popen([sys.executable, str(path)], env=environment)
    deadline = time.monotonic() + 120
    while not history.exists() or history.read_bytes().count(b"\n") < 6:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    workers = [int(one.name) for one in numbers.iterdir()]
    assert len(workers) == 2
    while any(map(_runs, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    before = history.read_bytes().rpartition(b"\n")[0]
    subprocess.run([sys.executable, str(path)], env=environment, check=True, timeout=120)
    assert history.read_bytes().startswith(before) and history.read_bytes().count(b"\n") == 20


def _runs(process):
    """Whether a process is there, and not only its number, as of one whose parent has not asked for it."""
    status = pathlib.Path(f"/proc/{process}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("executor", ["dask", object()])
def test_something_else_than_an_executor_is_refused(executor):
    with pytest.raises(TypeError, match="A client of Dask makes one"):
        search.run_parallel(STRATEGIES["random"], objectives.count, KEY, executor=executor)


class Cancelled(executors.Ray):
    """As on Ray, a call that is cancelled ends a while later; without Ray."""

    def __init__(self, after):
        self.after = after

    def submit(self, function, /, *args):
        future = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        values = args[0] if args and isinstance(args[0], dict) else None
        if values is None or values["op"][0] != "a":
            future.set_result(function(*args))
        elif self.after is not None:
            ends = threading.Timer(self.after, future.set_exception, [RuntimeError("cancelled")])
            future.cancel = ends.start
        return future


@pytest.mark.parametrize("workers", [1, 2])
def test_a_search_on_ray_waits_for_what_it_cancelled(workers):
    result = search.run_parallel(
        search.RandomSearch(SPACE, evaluations=27, batch=1),
        objectives.count,
        KEY,
        workers=workers,
        executor=Cancelled(after=0.1),
        timeout=0.05,
    )
    assert len(result.history) == 27 and result.failed == 9
    assert all("TimeoutError" in line["error"] for line in result.history if line["score"] is None)


def test_a_search_on_ray_that_cannot_end_what_it_cancelled_says_so(monkeypatch):
    monkeypatch.setattr(search.workers, "_CANCELLED", 0.1)
    with pytest.raises(RuntimeError, match="all 1 workers"):
        search.run_parallel(
            search.RandomSearch(SPACE, evaluations=27, batch=1),
            objectives.count,
            KEY,
            executor=Cancelled(after=None),
            timeout=0.05,
        )


def test_an_executor_that_was_shut_down_is_named():
    for kind in (concurrent.futures.ThreadPoolExecutor, concurrent.futures.ProcessPoolExecutor):
        with kind(1) as executor:
            pass
        with pytest.raises(RuntimeError, match="the executor takes no more:"):
            search.run_parallel(STRATEGIES["random"], objectives.count, KEY, executor=executor)

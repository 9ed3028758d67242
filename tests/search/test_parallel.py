"""A user's own function of one architecture on parallel workers."""

import concurrent.futures
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
from small_searches import SMALL

from jaxnas import executors, predictors, search
from jaxnas.search.strategy import begin_evaluation, end_evaluation

KEY = jax.random.key(0)
RANDOM = search.RandomSearch(SMALL, evaluations=12, batch=1)
ALL = search.RandomSearch(SMALL, evaluations=27, batch=1)
GUIDED = search.PredictorGuided(
    SMALL, evaluations=12, predictor=predictors.GaussianProcess(steps=8), features=predictors.one_hot(SMALL)
)
STRATEGIES = {
    "guided": GUIDED,
    "local": search.LocalSearch(SMALL, evaluations=12),
    "ageing": search.RegularizedEvolution(SMALL, evaluations=12, population=4, sample=2, unique=True),
}


def parallel(strategy, evaluate, key=KEY, **settings):
    return search.run_parallel(strategy, evaluate, key, **settings)


@pytest.mark.parametrize("name", tiers.cases(STRATEGIES, ("guided",)))
def test_what_is_being_evaluated_is_not_asked_for_again_and_scores_may_come_in_any_order(name):
    strategy, random = STRATEGIES[name], np.random.default_rng(0)
    state, running, told = strategy.init(KEY), [], []
    while not strategy.finished(state):
        while len(running) < 3 and len(told) + len(running) < 12:
            archs, state = strategy.ask(state)
            state = begin_evaluation(strategy, state, archs)
            running.append(archs)
        archs = running.pop(random.integers(len(running)))
        score = jnp.sum(archs["op"], axis=1).astype(jnp.float32)
        state = end_evaluation(strategy, state, archs, score)
        told.append((tuple(np.asarray(archs["op"][0]).tolist()), float(score[0])))
        assert int(state.pending) == len(running)
    assert len({code for code, _ in told}) == 12
    assert [tuple(code) for code in np.asarray(state.codes).tolist()] == [code for code, _ in told]
    np.testing.assert_array_equal(state.scores, [score for _, score in told])


def test_one_worker_is_the_search_without_workers():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        one = parallel(GUIDED, objectives.count, executor=pool)
    loop = search.run(GUIDED, objectives.count, KEY)
    np.testing.assert_array_equal(one.state.codes, loop.state.codes)


def test_every_failure_is_one_failed_evaluation_and_the_search_goes_on(tmp_path):
    path = tmp_path / "history.jsonl"
    settings = dict(workers=2, metric="score", history_path=path)
    result = parallel(ALL, objectives.troubled, timeout=1.0, **settings)
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
        "cba": "returned a dict of 'loss'; metric is 'score'",
        "aab": "SystemExit: no data",
        "bbb": "expected a finite number",
    }.items():
        assert reason in reasons[first]
    assert all(line["metrics"] == {"score": line["score"], "loss": 1.0} for line in lines if line["score"])
    troubled = lines[0]["settings"]["objective"]
    again = parallel(ALL, objectives.never, objective=troubled, **settings)
    assert again.resumed == 27 and again.history == lines
    other = lambda: parallel(ALL, objectives.never, **settings)  # noqa: E731
    refusals.check((other, ValueError, troubled, "objective="))


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

    settings = dict(workers=3, history_path=path)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        with pytest.raises(KeyboardInterrupt):
            parallel(GUIDED, counted, executor=pool, progress=stopping, **settings)
        before = path.read_text()
        path.write_text(before + '{"index": 7, "str')
        seen.clear()
        result = parallel(GUIDED, counted, executor=pool, **settings)
    finished = {"".join(json.loads(line)["architecture"]["op"]) for line in before.splitlines()}
    assert result.resumed == 7 and path.read_text().startswith(before)
    assert len(seen) == 5 and not finished & set(seen)
    other = lambda: parallel(GUIDED, counted, **settings | {"workers": 2})  # noqa: E731
    refusals.check((other, ValueError, "workers"))


def test_what_cannot_be_searched_in_parallel_is_refused(tmp_path):
    def case(error, *names, strategy=RANDOM, evaluate=objectives.count, **settings):
        return (lambda: parallel(strategy, evaluate, **settings)), error, *names

    with (
        concurrent.futures.ThreadPoolExecutor(2) as pool,
        concurrent.futures.ThreadPoolExecutor(1) as threads,
        concurrent.futures.ProcessPoolExecutor(1) as processes,
    ):
        threads.shutdown()
        processes.shutdown()
        refusals.check(
            case(ValueError, "all 12", evaluate=objectives.broken, executor=pool, workers=2),
            case(ValueError, "workers", "0", workers=0),
            case(ValueError, "workers", "'2'", workers="2"),
            case(ValueError, "timeout", "-1", timeout=-1),
            case(OSError, str(tmp_path), history_path=tmp_path),
            case(ValueError, "50", strategy=search.Evolution(SMALL)),
            case(ValueError, "SuccessiveHalving", strategy=search.SuccessiveHalving(SMALL)),
            case(ValueError, "import", evaluate=lambda values: 1.0),
            case(TypeError, "key", "0", key=0),
            case(TypeError, "key", "None", key=None),
            case(TypeError, "evaluate", "None", evaluate=None),
            case(TypeError, "executor", "str", executor="dask"),
            case(TypeError, "executor", "object", executor=object()),
            case(RuntimeError, "shutdown", executor=threads),
            case(RuntimeError, "shutdown", executor=processes),
        )


PROGRAM = """if __name__ == "__main__":
    import jax, objectives, sys
    from jaxnas import search
    from small_searches import SMALL
    strategy = search.RandomSearch(SMALL, evaluations=27, batch=1)
    search.run_parallel(
        strategy, objectives.numbered, jax.random.key(0), workers=2, history_path=sys.argv[1]
    )
"""


def test_workers_end_with_a_search_that_is_killed(tmp_path):
    history, numbers, path = (tmp_path / name for name in ("history.jsonl", "numbers", "program.py"))
    numbers.mkdir()
    path.write_text(PROGRAM)
    folders = [str(pathlib.Path(file).parent) for file in (objectives.__file__, __file__)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders), "NUMBERS": str(numbers)}
    process = subprocess.Popen([sys.executable, str(path), str(history)], env=environment)
    deadline = time.monotonic() + 120
    while not history.exists() or len(list(numbers.iterdir())) < 2:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    workers = [int(one.name) for one in numbers.iterdir()]
    while any(map(_runs, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert len(workers) == 2 and history.read_bytes().count(b"\n") < 27


def _runs(process):
    """Whether a process is there, and not only its number, as of one whose parent has not asked for it."""
    status = pathlib.Path(f"/proc/{process}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Cancelled(executors.Ray):
    """As on Ray, a call that is cancelled ends a while later; without Ray."""

    def __init__(self, after):
        self.after = after

    def submit(self, function, /, *args):
        future = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        values = args[-1] if args and isinstance(args[-1], dict) else None
        if values is None or values["op"][0] != "a":
            future.set_result(function(*args))
        elif self.after is not None:
            ends = threading.Timer(self.after, future.set_exception, [RuntimeError("cancelled")])
            future.cancel = ends.start
        return future


def test_a_search_on_ray_waits_for_what_it_cancelled():
    result = parallel(ALL, objectives.count, workers=2, executor=Cancelled(after=0.1), timeout=0.05)
    assert len(result.history) == 27 and result.failed == 9
    assert all("TimeoutError" in line["error"] for line in result.history if line["score"] is None)


def test_a_search_on_ray_that_cannot_end_what_it_cancelled_says_so(monkeypatch):
    monkeypatch.setattr(search.parallel, "_CANCELED", 0.1)
    stuck = lambda: parallel(ALL, objectives.count, executor=Cancelled(after=None), timeout=0.05)  # noqa: E731
    refusals.check((stuck, RuntimeError, "all 1 workers"))

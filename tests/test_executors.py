"""Independent work on processes and on a Ray cluster, of which workers are killed."""

import collections
import concurrent.futures
import functools
import importlib
import pickle
import pkgutil
import signal
import sys
import types
from concurrent.futures import BrokenExecutor

import jax
import objectives
import pytest
import refusals
from ray_cluster import ray_cluster

import jaxnas
from jaxnas import executors, processes, search
from jaxnas.space import Choice, Space
from jaxnas.training.checkpoint import CheckpointError, ConfigMismatch, NotFinite
from jaxnas.training.store import DivergedError
from jaxnas.training.workdir import WorkdirError

SPACE = Space(op=Choice("a", "b", "c").repeat(3))


def jobs_of(function, jobs, executor):
    return lambda: list(executors.as_completed(function, jobs, executor))


def test_jobs_on_processes_are_those_of_the_loop():
    jobs = [(left, 3) for left in range(7)]
    here, seen = list(executors.as_completed(objectives.product, jobs)), []
    next(executors.as_completed(seen.append, [(1,), (2,)]))
    assert seen == [1]  # here a call begins when its result is asked for, so that each can be kept before
    assert here == [(number, 3 * number) for number in range(7)]
    with executors.processes(2) as executor:
        assert sorted(executors.as_completed(objectives.product, jobs, executor)) == here
        assert list(executors.as_completed(objectives.product, [], executor)) == []
        refusals.check(
            (jobs_of(objectives.product, [(7, 1)], executor), ValueError, "seven"),
            (jobs_of(lambda left: left, [(1,)], executor), ValueError, "workers cannot import"),
            (jobs_of(objectives.product, [(8, 1), *jobs], executor), BrokenExecutor),
        )


ERRORS = [
    processes.ProcessesDisagree("seed: 0 / 1"),
    CheckpointError("no room"),
    ConfigMismatch("another config", ["seed", "steps"]),
    DivergedError("not finite"),
    WorkdirError("in use"),
    NotFinite("a NaN"),
]


def test_exceptions_come_back_from_another_process_as_they_were():
    """One that cannot be unpickled breaks a pool of processes, which then says nothing of it."""
    names = [found.name for found in pkgutil.walk_packages(jaxnas.__path__, "jaxnas.")]
    public = [pair for name in names for pair in vars(importlib.import_module(name)).items()]
    errors = {x for name, x in public if isinstance(x, type) and issubclass(x, Exception) and name[0] != "_"}
    ours = {one for one in errors if one.__module__.startswith("jaxnas.")}
    assert {one for one in ours if ".experiments." not in one.__module__} == {type(one) for one in ERRORS}
    for error in ERRORS:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)


def test_ray_that_does_not_start_is_named_and_leaves_the_handler_of_sigterm_as_it_was(monkeypatch):
    def init(**_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise ConnectionError("no cluster")

    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(is_initialized=lambda: False, init=init))
    before = signal.getsignal(signal.SIGTERM)
    try:
        for handler, after in ((before, before), (None, signal.SIG_DFL)):  # None: it was not set from Python.
            with monkeypatch.context() as patch, pytest.raises(ConnectionError):
                patch.setattr(signal, "getsignal", lambda _, handler=handler: handler)
                executors.Ray()
            assert signal.getsignal(signal.SIGTERM) == after
    finally:
        signal.signal(signal.SIGTERM, before)
    small = dict(is_initialized=lambda: False, init=lambda **_: None, shutdown=lambda: None)
    small["cluster_resources"] = lambda: {"CPU": 2.0}
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(**small))
    refusals.check((lambda: executors.Ray(2, num_gpus=1), ValueError, "'GPU': 1", "'GPU': 0"))
    monkeypatch.setitem(sys.modules, "ray", None)  # not installed
    refusals.check((lambda: executors.Ray(), ImportError, "package ray"))


@pytest.fixture(scope="module")
def cluster():
    before = signal.getsignal(signal.SIGTERM)
    with ray_cluster() as executor:
        assert signal.getsignal(signal.SIGTERM) == before
        yield executor


def test_a_search_on_ray_loses_and_repeats_no_evaluation_when_workers_are_killed(cluster, tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()

    def progress(standing):
        if standing.evaluations in (3, 8):
            (notes / "kill").touch()

    strategy = search.RandomSearch(SPACE, evaluations=14, batch=1)
    objective = functools.partial(objectives.noted, str(notes))
    given = dict(workers=2, executor=cluster, history_path=tmp_path / "history.jsonl", progress=progress)
    result = search.run_parallel(strategy, objective, jax.random.key(0), **given)
    assert result.failed == 0 and len(result.history) == 14
    told = {"".join(line["architecture"]["op"]): line["score"] for line in result.history}
    assert len(told) == 14
    assert all(score == float(name.count("c")) for name, score in told.items())
    calls = collections.Counter(path.name.partition("-")[0] for path in notes.iterdir())
    assert calls.keys() == told.keys() and calls.total() == 16


def test_failures_on_ray_are_those_of_other_executors(cluster, tmp_path, monkeypatch):
    # A module that the driver alone has; what was on its path when Ray began is on that of the workers.
    (tmp_path / "here_alone.py").write_text("def one(values):\n    return 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    one, random, key = importlib.import_module("here_alone").one, search.RandomSearch, jax.random.key(0)
    refusals.check(
        (jobs_of(objectives.product, [(7, 1)], cluster), ValueError, "seven"),
        # A job that kills each worker is given up; Ray tries it four times.
        (jobs_of(objectives.product, [(8, 1)], cluster), BrokenExecutor, "max_retries"),
        (jobs_of(one, [({},)], cluster), ValueError, "import one"),
        (lambda: search.run_parallel(random(SPACE, batch=1), one, key, executor=cluster), ValueError, "one"),
    )
    # A worker that hangs is ended by Ray, and another goes on with the next evaluation.
    # Within the time-out is the start of a process that Ray begins anew.
    given = dict(workers=2, executor=executors.Ray(max_retries=0), metric="score", timeout=20.0)
    strategy = random(SPACE, evaluations=27, batch=1)
    result = search.run_parallel(strategy, objectives.troubled, key, **given)
    assert len(result.history) == 27 and result.failed == 24 and result.score == 3
    reasons = {"".join(line["architecture"]["op"]): line.get("error") for line in result.history}
    assert reasons["aaa"] == "RuntimeError: out of luck" and "SystemExit: no data" in reasons["aab"]
    assert "the worker died: a worker of Ray" in reasons["aba"] and "TimeoutError" in reasons["aca"]


def test_an_executor_on_ray_that_was_shut_down_takes_no_more(cluster):
    second = executors.Ray()  # On the cluster that there is, which stays when this one is shut down.
    assert second.submit(objectives.product, 2, right=3).result() == 6
    second.shutdown()
    strategy, key = search.RandomSearch(SPACE, batch=1), jax.random.key(0)
    run = functools.partial(search.run_parallel, strategy, objectives.count, key, executor=second)
    refusals.check(
        (lambda: second.submit(objectives.product, 2, 3), RuntimeError, "shutdown"),
        (lambda: run(), RuntimeError, "shutdown"),
    )
    assert cluster.submit(objectives.product, 2, 4).result() == 8
    assert isinstance(second, concurrent.futures.Executor)

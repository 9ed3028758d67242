"""Independent work on processes and on a Ray cluster, of which workers are killed."""

import collections
import concurrent.futures
import functools
import importlib
import os
import pickle
import pkgutil
import signal
import sys
import threading
import time
import types

import jax
import objectives
import pytest

import jaxnas
from jaxnas import executors, processes, search, training
from jaxnas.space import Choice, Space

SPACE = Space(op=Choice("a", "b", "c").repeat(3))


def test_jobs_on_processes_are_those_of_the_loop():
    jobs = [(left, 3) for left in range(7)]
    here = list(executors.as_completed(objectives.product, jobs))
    assert here == [(number, 3 * number) for number in range(7)]
    with executors.processes(2) as executor:
        assert sorted(executors.as_completed(objectives.product, jobs, executor)) == here
        assert list(executors.as_completed(objectives.product, [], executor)) == []
        with pytest.raises(ValueError, match="seven"):
            list(executors.as_completed(objectives.product, [(7, 1)], executor))
        with pytest.raises(ValueError, match="the workers cannot import"):
            list(executors.as_completed(lambda left: left, [(1,)], executor))
        with pytest.raises(executors.WorkerDied, match="what is done"):
            list(executors.as_completed(objectives.product, [(8, 1), *jobs], executor))


@pytest.mark.parametrize(
    "function, job, message",
    [(objectives.unreadable, (), "'reason'"), (objectives.product, (8, 1), "it was killed, or its")],
)
def test_what_broke_a_pool_is_said(function, job, message):
    with executors.processes(1) as executor:
        with pytest.raises(executors.WorkerDied, match=message):
            list(executors.as_completed(function, [job], executor))
        with pytest.raises(executors.WorkerDied, match="asked for product, before"):
            list(executors.as_completed(objectives.product, [(1, 1)], executor))


def test_a_worker_that_dies_while_jobs_are_submitted_is_named():
    class Breaks(concurrent.futures.ThreadPoolExecutor):
        def submit(self, function, /, *args):
            if args == (1, 1):
                raise concurrent.futures.BrokenExecutor("broken")
            return super().submit(function, *args)

    with Breaks(1) as executor, pytest.raises(executors.WorkerDied, match="ended without a result"):
        list(executors.as_completed(objectives.product, [(0, 1), (1, 1)], executor))


ERRORS = [
    executors.WorkerDied("died"),
    processes.ProcessesDisagree("seed: 0 / 1"),
    training.CheckpointError("no room"),
    training.ConfigMismatch("another config", ["seed", "steps"]),
    training.DivergedError("not finite"),
    training.WorkdirError("in use"),
    training.checkpoint.NotFinite("a NaN"),
]


def test_every_public_exception_is_in_the_table():
    modules = [
        importlib.import_module(found.name) for found in pkgutil.walk_packages(jaxnas.__path__, "jaxnas.")
    ]
    found = {
        one
        for module in modules
        for name, one in vars(module).items()
        if isinstance(one, type) and issubclass(one, Exception) and not name.startswith("_")
    }
    assert {one for one in found if one.__module__.startswith("jaxnas.")} == {type(one) for one in ERRORS}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_exceptions_come_back_from_another_process_as_they_were(error):
    """One that cannot be unpickled breaks a pool of processes, which then says nothing of it."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)


def test_ray_leaves_the_handler_of_sigterm_as_it_was_also_when_it_does_not_start(monkeypatch):
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


def test_work_is_done_here_only_when_it_is_asked_for():
    """So that each result can be kept before the next call begins."""
    seen = []
    results = executors.as_completed(seen.append, [(1,), (2,)])
    next(results)
    assert seen == [1]


def test_ray_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match="needs the package ray: pip"):
        executors.Ray()


@pytest.fixture(scope="module")
def cluster():
    """A new cluster of Ray with two workers on this machine."""
    pytest.importorskip("ray")
    jax.devices()  # JAX has threads by now, and warns of forks.
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.path.dirname(objectives.__file__), prepend=os.pathsep)
        with executors.Ray(workers=2) as executor:
            assert signal.getsignal(signal.SIGTERM) == before
            yield executor


def kill_the_next(folder, killed):
    """Kills the process of the job that begins next, and adds the job to `killed`.

    That job takes the file `kill` away, under a name of its own, and waits to be killed.
    """
    (folder / "kill").touch()

    def wait():
        while not (found := list(folder.glob("*.kill"))):
            time.sleep(0.005)
        note = found[0].with_suffix("")
        found[0].unlink()
        killed.append(note.name.partition("-")[0])
        os.kill(int(note.read_text()), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def calls_of(folder):
    notes = [path for path in folder.iterdir() if path.name != "kill" and not path.suffix]
    return collections.Counter(path.name.partition("-")[0] for path in notes)


def test_a_job_whose_worker_is_killed_is_done_again_and_counts_once(cluster, tmp_path):
    jobs = [(str(tmp_path), {"op": [x, y, "c"]}) for x in "abc" for y in "abcd"]
    found, killed = {}, []
    for number, returned in executors.as_completed(objectives.noted, jobs, cluster):
        assert number not in found
        found[number] = returned
        if len(found) in (2, 6):
            kill_the_next(tmp_path, killed)
    assert found == {number: objectives.count(values) for number, (_, values) in enumerate(jobs)}
    calls = calls_of(tmp_path)
    assert len(calls) == 12 and calls.total() == 14
    assert calls == collections.Counter(["".join(values["op"]) for _, values in jobs] + killed)


def test_a_search_on_ray_loses_and_repeats_no_evaluation_when_workers_are_killed(cluster, tmp_path):
    notes, strategy = tmp_path / "notes", search.RandomSearch(SPACE, evaluations=14, batch=1)
    notes.mkdir()
    killed = []

    def progress(standing):
        if standing.evaluations in (3, 8):
            kill_the_next(notes, killed)

    result = search.run_parallel(
        strategy,
        functools.partial(objectives.noted, str(notes)),
        jax.random.key(0),
        workers=2,
        executor=cluster,
        history_path=tmp_path / "history.jsonl",
        progress=progress,
    )
    assert result.failed == 0 and len(result.history) == 14
    told = {"".join(line["architecture"]["op"]): line["score"] for line in result.history}
    assert len(told) == 14
    assert all(score == float(name.count("c")) for name, score in told.items())
    calls = calls_of(notes)
    assert calls == collections.Counter([*told, *killed]) and calls.total() == 16


def test_failures_on_ray_are_those_of_other_executors(cluster, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="^seven$"):
        list(executors.as_completed(objectives.product, [(7, 1)], cluster))
    # A job that kills each worker is given up; Ray tries it four times.
    with pytest.raises(executors.WorkerDied, match="max_retries"):
        list(executors.as_completed(objectives.product, [(8, 1)], cluster))
    # A module that the driver alone has; what was on its path when Ray began is on that of the workers.
    (tmp_path / "here_alone.py").write_text("def one(values):\n    return 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    one = importlib.import_module("here_alone").one
    with pytest.raises(ValueError, match="workers cannot import one:"):
        list(executors.as_completed(one, [({},)], cluster))
    with pytest.raises(ValueError, match="workers cannot import one:"):
        search.run_parallel(search.RandomSearch(SPACE, batch=1), one, jax.random.key(0), executor=cluster)
    # A worker that hangs is ended by Ray, and another goes on with the next evaluation.
    strategy = search.RandomSearch(SPACE, evaluations=27, batch=1)
    result = search.run_parallel(
        strategy,
        objectives.troubled,
        jax.random.key(0),
        workers=2,
        executor=executors.Ray(max_retries=0),
        metric="score",
        timeout=20.0,  # A process that Ray begins anew counts to it.
    )
    assert len(result.history) == 27 and result.failed == 24 and result.score == 3
    reasons = {"".join(line["architecture"]["op"]): line.get("error") for line in result.history}
    assert reasons["aaa"] == "RuntimeError: out of luck" and "SystemExit: no data" in reasons["aab"]
    assert "the worker died: a worker of Ray" in reasons["aba"] and "TimeoutError" in reasons["aca"]


def test_an_executor_on_ray_that_was_shut_down_takes_no_more(cluster):
    second = executors.Ray()  # On the cluster that there is, which stays when this one is shut down.
    assert second.submit(objectives.product, 2, right=3).result() == 6
    second.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        second.submit(objectives.product, 2, 3)
    with pytest.raises(RuntimeError, match="the executor takes no more"):
        search.run_parallel(
            search.RandomSearch(SPACE, batch=1), objectives.count, jax.random.key(0), executor=second
        )
    assert cluster.submit(objectives.product, 2, 4).result() == 8
    assert isinstance(second, concurrent.futures.Executor)

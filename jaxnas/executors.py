"""Where independent work runs: here, on processes of this machine, or on a Ray cluster.

All are executors of the interface of `concurrent.futures`, and None stands for here, one call after another.
"""

from __future__ import annotations

import concurrent.futures as futures_lib
import contextlib
import importlib
import logging
import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from typing import Any


class WorkerDied(RuntimeError):
    """A worker ended without a result, and its executor does not begin the call again."""


def processes(workers: int) -> futures_lib.ProcessPoolExecutor:
    """An executor of new processes of this machine, which end with the one that made them.

    They are spawned: a fork of a process in which JAX runs threads may hang.
    """
    context = multiprocessing.get_context("spawn")
    return futures_lib.ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent)


class Ray(futures_lib.Executor):
    """An executor on the workers of Ray, which has none of its own.

    What a worker was doing when it died, or its machine was lost, is done again by another one, up to
    `max_retries` times (3 by default). Then the future raises `WorkerDied`.

    Ray is connected to as its own `ray.init()` does it: to $RAY_ADDRESS, to a cluster that `ray start`
    has begun on this machine, or to a new one on this machine, which ends with `shutdown`. Whoever needs
    more, such as a `runtime_env` that brings code to the workers, calls `ray.init` before.

    Args:
      workers: of a new cluster on this machine, whatever others there are; None for the cluster as above. A
        process that is connected already stays so.
      options: of `ray.remote`, for each call: what it needs, as num_cpus=1 and num_gpus=0, and max_retries.

    Raises:
      ImportError: Ray is not installed.
    """

    def __init__(self, workers: int | None = None, **options: Any) -> None:
        try:
            self._ray = importlib.import_module("ray")
        except ImportError as error:
            raise ImportError(
                "an executor on Ray needs the package ray: pip install 'jaxnas[ray]'"
            ) from error
        self._began = not self._ray.is_initialized()
        if self._began:
            new = {} if workers is None else {"address": "local", "num_cpus": workers}
            with _signals_as_before(), warnings.catch_warnings():
                # JAX warns of forks that go on with its threads; Ray's become its own programs at once.
                warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
                self._ray.init(logging_level=logging.WARNING, include_dashboard=False, **new)

        # A function in a function travels by value, so that workers need no jaxnas for what has none.
        def call(function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
            try:
                return function(*args, **kwargs)
            except SystemExit as error:  # For Ray its worker has died, and the call begins again.
                raise RuntimeError(f"SystemExit: {error}") from error

        self._call = self._ray.remote(call).options(**{"num_cpus": 1, **options})
        self._running: set[futures_lib.Future] = set()
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures_lib.Future:
        """Calls a function on a worker; see `concurrent.futures.Executor.submit`."""
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            reference = self._call.remote(function, args, kwargs)
            future = _FutureOfRay(lambda: self._ray.cancel(reference, force=True))
            self._running.add(future)

        def ended(told: futures_lib.Future) -> None:
            with self._lock:
                self._running.discard(future)
            error = told.exception()
            if error is None:
                future.set_result(told.result())
            else:
                future.set_exception(self._cause(error))

        reference.future().add_done_callback(ended)
        return future

    def _cause(self, error: BaseException) -> BaseException:
        """What was raised on the worker; Ray wraps it, with process numbers and addresses in its text."""
        if isinstance(error, self._ray.exceptions.WorkerCrashedError):
            died = WorkerDied(
                "a worker of Ray ended without a result, as often as max_retries allows: it was killed, or "
                "its machine has no memory left. The same command goes on from what is done."
            )
            died.__cause__ = error
            return died
        for name in ("cause", "client_exc"):
            inner = getattr(error, name, None)
            error = inner if isinstance(inner, BaseException) else error
        return error

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more; see `concurrent.futures.Executor.shutdown`. A cluster of its own ends."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        if cancel_futures:
            for future in running:
                future.cancel()
        if wait:
            futures_lib.wait(running)
            if self._began:
                self._ray.shutdown()


class _FutureOfRay(futures_lib.Future):
    """The result of a call on Ray. A call that runs can be cancelled, too: its worker is ended."""

    def __init__(self, cancel: Callable[[], Any]) -> None:
        super().__init__()
        self._cancel = cancel
        self.set_running_or_notify_cancel()

    def cancel(self) -> bool:
        """Ends the call, which soon raises Ray's error. Returns False, since it is not cancelled yet."""
        if not self.done():
            self._cancel()
        return False


@contextlib.contextmanager
def _signals_as_before() -> Iterator[None]:
    """Restores the handler of SIGTERM, which Ray takes for a crash, with a trace and the exit status 134."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # Python allows it there alone.
            # A handler that was not set from Python is None, and cannot be set from there again.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def check_import(function: Callable[..., Any], executor: futures_lib.Executor) -> None:
    """Checks that the workers of an executor can import a function, before any work is spent.

    Raises:
      ValueError: they cannot.
      WorkerDied: the worker that was asked ended.
      RuntimeError: the executor was shut down.
    """
    name = getattr(function, "__qualname__", repr(function))
    try:
        if isinstance(executor, futures_lib.ProcessPoolExecutor):
            # Sent as it is, a function that cannot be imported breaks the pool without a reason.
            asked = executor.submit(pickle.loads, pickle.dumps(function))
        else:
            asked = executor.submit(callable, function)
        if isinstance(asked.exception(), SystemExit):  # Of the worker, and not to be raised in this process.
            raise ImportError(f"its module exits ({asked.exception()})")
        asked.result()
    except WorkerDied:
        raise
    except futures_lib.BrokenExecutor as error:
        raise WorkerDied(
            f"a worker ended when it was asked for {name}, before any work: it was killed, its machine has "
            "no memory left, or the script that begins the workers does not do so under "
            'if __name__ == "__main__".'
        ) from error
    except Exception as error:  # Pickle raises many kinds, and an import raises what its module does.
        if isinstance(error, RuntimeError) and "shutdown" in str(error):
            raise
        raise ValueError(
            f"the workers cannot import {name}: {type(error).__name__}: {error}. Define it at the top level "
            "of a module that they find."
        ) from error


def as_completed(
    function: Callable[..., Any], jobs: Sequence[tuple], executor: futures_lib.Executor | None = None
) -> Iterator[tuple[int, Any]]:
    """Calls a function for each of many independent jobs, and yields what it returns as soon as it ends.

    Args:
      function: of the arguments of a job. For workers it stands at the top level of a module.
      jobs: the arguments of each call.
      executor: None for one call after another, here.

    Yields:
      The number of the job, from 0, and what the function returned, in the order in which the calls end.

    Raises:
      ValueError: the workers cannot import the function.
      WorkerDied: a worker ended without a result, or what it returned or raised could not be sent, and its
        executor does not begin the call again.
      Exception: what a call raised; those that have not begun are given up, on Ray also those that run.
    """
    if executor is None:
        for number, job in enumerate(jobs):
            yield number, function(*job)
        return
    if jobs:
        check_import(function, executor)
    numbers: dict[futures_lib.Future, int] = {}
    try:
        for number, job in enumerate(jobs):
            numbers[executor.submit(function, *job)] = number
        for future in futures_lib.as_completed(numbers):
            yield numbers[future], future.result()
    except futures_lib.BrokenExecutor as error:
        raise _died(error) from error
    finally:
        for future in numbers:
            future.cancel()


class Calls:
    """Calls of a function on an executor that can begin before their results are asked for, each once.

    Args:
      function: at the top level of a module.
      executor: where it is called.
      first: its first arguments, the same for all calls. The others are hashable, and name a call.

    Raises:
      ValueError, WorkerDied: as `check_import`.
    """

    def __init__(self, function: Callable[..., Any], executor: futures_lib.Executor, *first: Any) -> None:
        check_import(function, executor)
        self._function, self._executor, self._first = function, executor, first
        self._futures: dict[tuple, futures_lib.Future] = {}

    def begin(self, *args: Any) -> None:
        """Submits a call, unless it was.

        Raises:
          WorkerDied: the workers of the executor are gone.
        """
        if args in self._futures:
            return
        try:
            self._futures[args] = self._executor.submit(self._function, *self._first, *args)
        except futures_lib.BrokenExecutor as error:
            raise _died(error) from error

    def __call__(self, *args: Any) -> Any:
        """What a call returns. It raises as `as_completed` does, and the other calls are given up then."""
        try:
            self.begin(*args)
            return self._futures[args].result()
        except BaseException as error:
            for future in self._futures.values():
                future.cancel()
            if isinstance(error, futures_lib.BrokenExecutor):
                raise _died(error) from error
            raise


def _died(error: futures_lib.BrokenExecutor) -> WorkerDied:
    """What broke an executor, as a sentence."""
    # A pool of processes names a cause only where it could not read what a worker sent.
    trace = [line for line in str(error.__cause__ or "").splitlines() if line.strip("'")]
    if trace:
        return WorkerDied(
            "what a worker returned or raised could not be sent back, since it cannot be unpickled: "
            f"{trace[-1]}. The same command goes on from what is done."
        )
    return WorkerDied(
        "a worker ended without a result: it was killed, or its machine has no memory left. The same "
        "command goes on from what is done; take fewer workers if memory is short."
    )


def _end_with_parent() -> None:
    """Has this worker end when its maker is killed, which could not end it any more."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

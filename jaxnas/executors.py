"""Executors of independent work: processes of this machine, or a Ray cluster.

Both have the interface of `concurrent.futures`, whose `BrokenExecutor` they raise where a worker died.
"""

from __future__ import annotations

import concurrent.futures as futures_lib
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

SPAWN = multiprocessing.get_context("spawn")  # A fork of a process in which JAX runs threads may hang.


def processes(workers: int) -> futures_lib.ProcessPoolExecutor:
    """Returns an executor of new processes, which end with the process that made them."""
    return futures_lib.ProcessPoolExecutor(workers, mp_context=SPAWN, initializer=end_with_parent)


def end_with_parent() -> None:
    """Ends this worker when the process that made it is killed."""

    def watch(parent: Any) -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, args=(multiprocessing.parent_process(),), daemon=True).start()


class Ray(futures_lib.Executor):
    """An executor on Ray: the cluster of $RAY_ADDRESS, that of `ray start`, or a new one on this machine.

    Ray repeats a call whose worker died up to `max_retries` times, 3 by default. Call `ray.init` before to
    set more, such as a `runtime_env`.

    Args:
      workers: of a new cluster on this machine; None to connect as above.
      options: of `ray.remote` for each call, such as num_cpus=1, num_gpus=0 and max_retries=3.

    Raises:
      ValueError: a call asks for more than a new cluster has, which would wait forever.
    """

    def __init__(self, workers: int | None = None, **options: Any) -> None:
        try:
            self._ray = importlib.import_module("ray")
        except ImportError as error:
            raise ImportError(
                "an executor on Ray needs the package ray: pip install 'jaxnas[ray]'"
            ) from error
        self._owned = not self._ray.is_initialized()
        if self._owned:
            new = {} if workers is None else {"address": "local", "num_cpus": workers}
            before = signal.getsignal(signal.SIGTERM)
            try:
                with warnings.catch_warnings():
                    # JAX warns of forks that keep its threads; Ray's become its own programs at once.
                    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
                    self._ray.init(logging_level=logging.WARNING, include_dashboard=False, **new)
            finally:  # Ray takes SIGTERM for a crash. Python sets handlers in the main thread alone.
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)

        asked = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus", 0)}
        found = self._ray.cluster_resources()
        if self._owned and workers is not None and any(asked[name] > found.get(name, 0) for name in asked):
            self._ray.shutdown()
            there = {name: found.get(name, 0) for name in asked}
            raise ValueError(
                f"each call asks for {asked}, and the new cluster on this machine has {there}. Ask for less, "
                "or leave out `workers` to use a running cluster."
            )

        # A nested function travels by value: workers need jaxnas only for what imports it.
        def call(function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
            try:
                return function(*args, **kwargs)
            except SystemExit as error:  # For Ray its worker has died, and the call begins again.
                raise RuntimeError(f"SystemExit: {error}") from error

        self._call = self._ray.remote(call).options(**{"num_cpus": 1, **options})
        self._running: set[futures_lib.Future] = set()
        self._closed = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures_lib.Future:
        """Calls a function on a worker; see `concurrent.futures.Executor.submit`."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = _RayFuture(self._ray, self._call.remote(function, args, kwargs))
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls; see `concurrent.futures.Executor.shutdown`. A cluster of its own ends."""
        self._closed, running = True, list(self._running)
        for future in running if cancel_futures else ():
            future.cancel()
        if wait:
            futures_lib.wait(running)
            if self._owned:
                self._ray.shutdown()


class _RayFuture(futures_lib.Future):
    """The result of a call on Ray. `cancel` ends the worker of a call that runs, which raises soon after."""

    def __init__(self, ray: Any, reference: Any) -> None:
        super().__init__()
        self._ray, self._reference = ray, reference
        self.set_running_or_notify_cancel()
        reference.future().add_done_callback(self._ended)

    def cancel(self) -> bool:
        if not self.done():
            self._ray.cancel(self._reference, force=True)
        return False

    def _ended(self, told: futures_lib.Future) -> None:
        error = told.exception()
        if error is None:
            self.set_result(told.result())
        elif isinstance(error, self._ray.exceptions.WorkerCrashedError):
            self.set_exception(
                futures_lib.BrokenExecutor("a worker of Ray ended, as often as max_retries allows")
            )
        else:
            for name in ("cause", "client_exc"):  # Ray's own text has process numbers and addresses.
                inner = getattr(error, name, None)
                error = inner if isinstance(inner, BaseException) else error
            self.set_exception(error)


def check_import(function: Callable[..., Any], executor: futures_lib.Executor) -> None:
    """Raises ValueError unless the workers of an executor can import a function, before any work is spent."""
    try:
        # Ray sends the functions of a script by value, and threads share them.
        if isinstance(executor, Ray | futures_lib.ThreadPoolExecutor):
            executor.submit(callable, function).result()
        else:  # One that cannot be imported would break a pool of processes without a reason; bytes do not.
            executor.submit(pickle.loads, pickle.dumps(function)).result()
    except RuntimeError:  # The executor is broken or shut down.
        raise
    except (Exception, SystemExit) as error:  # An import raises what its module does.
        name = getattr(function, "__qualname__", repr(function))
        raise ValueError(
            f"the workers cannot import {name}: {type(error).__name__}: {error}. Define it at the top level "
            "of a module that they find."
        ) from error


def as_completed(
    function: Callable[..., Any], jobs: Sequence[tuple], executor: futures_lib.Executor | None = None
) -> Iterator[tuple[int, Any]]:
    """Calls a function for each of many independent jobs, and yields each result as soon as it is there.

    Args:
      function: of the arguments of a job; for workers, at the top level of a module.
      jobs: the arguments of each call.
      executor: None for one call after another in this process.

    Yields:
      The number of the job, from 0, and what the function returned.

    Raises:
      ValueError: the workers cannot import the function.
      BrokenExecutor: a worker ended without a result; calls that have not begun are then canceled.
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
    finally:
        for future in numbers:
            future.cancel()


class Calls:
    """Calls of a function on an executor that begin before their results are needed, each once.

    `first` are arguments that are the same for all calls. The others are hashable, and name a call.
    """

    def __init__(self, function: Callable[..., Any], executor: futures_lib.Executor, *first: Any) -> None:
        check_import(function, executor)
        self._function, self._executor, self._first = function, executor, first
        self._futures: dict[tuple, futures_lib.Future] = {}

    def begin(self, *args: Any) -> None:
        """Submits a call, unless it was."""
        if args not in self._futures:
            self._futures[args] = self._executor.submit(self._function, *self._first, *args)

    def __call__(self, *args: Any) -> Any:
        """Returns the result of a call; if that raises, calls that have not begun are canceled."""
        try:
            self.begin(*args)
            return self._futures[args].result()
        except BaseException:
            for future in self._futures.values():
                future.cancel()
            raise

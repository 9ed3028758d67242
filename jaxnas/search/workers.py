"""Evaluations on workers. One that raises, hangs, or loses its worker has no score, and the reason beside."""

import collections
import concurrent.futures as futures_lib
import contextlib
import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pebble

from jaxnas import executors

_CANCELED = 60.0  # Seconds in which Ray ends a call that was canceled, also on a busy machine.


class Processes(futures_lib.Executor):
    """Processes of pebble, which ends one whose call takes longer than `timeout`, and replaces what died."""

    def __init__(self, workers: int, module: str) -> None:
        self.timeout: float | None = None
        # Processes import a module as they start: later they would do so one after another.
        self._pool = pebble.ProcessPool(
            workers, initializer=_start, initargs=(module,), context=executors.SPAWN
        )

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures_lib.Future:
        """See `concurrent.futures.Executor.submit`."""
        return self._pool.schedule(function, args, kwargs, self.timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends all processes at once."""
        self._pool.stop()
        self._pool.join()


def _start(module: str) -> None:
    executors.end_with_parent()
    with contextlib.suppress(Exception, SystemExit):  # which `check_import` reports
        importlib.import_module(module)


class Workers:
    """A number of evaluations at a time, within a `with` statement; workers start with the first one.

    Args:
      evaluate: from option values to a number, or to a dict of numbers. Where workers are processes it stands
        at the top level of a module.
      metric: the name of the score in such a dict.
      count: how many evaluations run at a time.
      executor: None for `Processes`. Calls of another one but Ray cannot be ended: a worker that hangs is out
        of use until its evaluation returns.
      timeout: seconds that one evaluation may take; None for no limit.
    """

    def __init__(
        self,
        evaluate: Callable[[dict[str, Any]], Any],
        metric: str | None,
        count: int,
        executor: futures_lib.Executor | None = None,
        timeout: float | None = None,
    ) -> None:
        self._evaluate, self._metric = evaluate, metric
        self._count, self._given, self._timeout = count, executor, timeout
        self._executor: futures_lib.Executor | None = None
        self._waiting: collections.deque[tuple[int, dict[str, Any]]] = collections.deque()
        self._running: dict[futures_lib.Future, tuple[int, float]] = {}  # the number, and when it is late
        self._late: set[futures_lib.Future] = set()  # had their time, and keep their workers busy

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: Any) -> None:
        if isinstance(self._executor, Processes):
            self._executor.shutdown()

    def submit(self, number: int, values: dict[str, Any]) -> None:
        """Evaluates option values as soon as a worker is free."""
        self._waiting.append((number, values))

    def next(self) -> tuple[int, float, dict[str, Any]]:
        """Waits until some evaluation has ended, and returns its number and what `judged` says of it.

        Raises:
          RuntimeError: the executor takes no more calls, or all its workers are stuck.
        """
        while True:
            self._begin()
            if not self._running:
                raise RuntimeError(
                    f"search: all {self._count} workers of the executor are still busy with evaluations that "
                    f"took more than {self._timeout} seconds. Resume with a new executor and the same "
                    "history; or give no executor, and workers that hang are ended and replaced."
                )
            now = time.monotonic()
            for future, (number, end) in self._running.items():
                if not future.done() and now < end:
                    continue
                del self._running[future]
                if future.done():
                    return number, *self._outcome(future)
                future.cancel()  # one that has not begun, and on Ray also one that runs
                self._late.add(future)
                return number, *self._took_too_long()
            first = min(end for _, end in self._running.values()) - now
            futures_lib.wait(
                [*self._running, *self._late],
                timeout=None if first == float("inf") else first,
                return_when=futures_lib.FIRST_COMPLETED,
            )

    def _begin(self) -> None:
        if self._executor is None:
            self._executor = self._started()
        if self._late and not self._running and isinstance(self._executor, executors.Ray):
            futures_lib.wait(self._late, _CANCELED, return_when=futures_lib.FIRST_COMPLETED)
        self._late = {future for future in self._late if not future.done()}
        while self._waiting and len(self._running) + len(self._late) < self._count:
            number, values = self._waiting.popleft()
            own = self._given is None  # `Processes` have a time-out of their own
            end = float("inf") if own or self._timeout is None else time.monotonic() + self._timeout
            if own:
                future = self._executor.submit(scored, self._evaluate, self._metric, values)
            else:  # Workers of others may have no jaxnas.
                future = self._executor.submit(self._evaluate, values)
            self._running[future] = number, end

    def _started(self) -> futures_lib.Executor:
        if self._given is None:
            own = Processes(self._count, getattr(self._evaluate, "__module__", __name__))
            self._executor = own  # ends with this object, also if the check fails
            executors.check_import(self._evaluate, own)
            own.timeout = self._timeout
            return own
        if isinstance(self._given, futures_lib.ProcessPoolExecutor | executors.Ray):
            executors.check_import(self._evaluate, self._given)
        return self._given

    def _outcome(self, future: futures_lib.Future) -> tuple[float, dict[str, Any]]:
        try:
            returned = future.result()
            return returned if self._given is None else judged(returned, self._metric)
        except (futures_lib.BrokenExecutor, pebble.ProcessExpired) as error:
            return _failed(f"the worker died: {error}")
        except (Exception, SystemExit) as error:
            late = self._given is None and isinstance(error, TimeoutError)
            return self._took_too_long() if late else _failed(f"{type(error).__name__}: {error}")

    def _took_too_long(self) -> tuple[float, dict[str, Any]]:
        return _failed(f"TimeoutError: it took more than {self._timeout} seconds")


def scored(
    evaluate: Callable[[dict[str, Any]], Any], metric: str | None, values: dict[str, Any]
) -> tuple[float, dict[str, Any]]:
    """Evaluates an architecture on a worker; what it returns or raises may not be fit to be sent."""
    try:
        return judged(evaluate(values), metric)
    except (Exception, SystemExit) as error:
        return _failed(f"{type(error).__name__}: {error}")


def judged(returned: Any, metric: str | None) -> tuple[float, dict[str, Any]]:
    """Returns the score in what an evaluation returned, and a note for the history.

    The score is NaN if the evaluation failed, with the reason as "error"; numbers of a dict are "metrics".
    """
    note: dict[str, Any] = {}
    if isinstance(returned, dict):
        if metric not in returned:
            names = ", ".join(map(repr, returned)) or "nothing"
            return _failed(f"the evaluation returned a dict of {names}; metric is {metric!r}")
        numbers = {str(key): _number(x) for key, x in returned.items()}
        note["metrics"] = {key: x for key, x in numbers.items() if x is not None}
        returned = returned[metric]
    number = _number(returned)
    if number is None or not np.isfinite(np.float32(number)):
        return _failed(f"the evaluation returned {returned!r:.100}, expected a finite number", note)
    return number, note


def _failed(reason: str, note: dict[str, Any] | None = None) -> tuple[float, dict[str, Any]]:
    return float("nan"), {**(note or {}), "error": reason[:500]}


def _number(value: Any) -> float | None:
    """A number, or an array of shape () that holds one, as a float; None for anything else."""
    if isinstance(value, bool | str | bytes) or value is None:
        return None
    try:
        array = np.asarray(value)
        return float(array) if array.shape == () and array.dtype.kind in "fiu" else None
    except (TypeError, ValueError, RuntimeError):  # by arrays of other libraries
        return None

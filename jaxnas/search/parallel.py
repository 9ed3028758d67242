"""Runs a search whose evaluations are a user's slow function of one architecture, on parallel workers.

The strategy is asked for the next architecture as soon as a worker is free. What is asked depends only on the
key, the number of workers and the order of the scores, which is that of the history: so a search resumes.
"""

import collections
import concurrent.futures as futures_lib
import contextlib
import importlib
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pebble

from jaxnas import executors
from jaxnas.search import runner
from jaxnas.search.strategy import Strategy, begin_evaluation, end_evaluation

_CANCELED = 60.0  # Seconds in which Ray ends a call that was canceled, also on a busy machine.
_log = logging.getLogger(__name__)

Evaluate = Callable[[dict[str, Any]], Any]  # from option values to a number, or to a dict of numbers
Outcome = tuple[float, dict[str, Any]]  # a score, and a note for the history: "error", "metrics"


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
    """Evaluations of which `count` run at a time, within a `with` statement; see `run_parallel`."""

    def __init__(
        self,
        evaluate: Evaluate,
        metric: str | None,
        count: int,
        executor: futures_lib.Executor | None = None,
        timeout: float | None = None,
    ) -> None:
        self._evaluate, self._metric = evaluate, metric
        self._count, self._given, self._timeout = count, executor, timeout
        self._executor: futures_lib.Executor | None = None  # starts with the first evaluation
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
        """Waits until some evaluation has ended, and returns its number and what `judged` says of it."""
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
                if future.done() or now >= end:
                    del self._running[future]
                    return number, *self._outcome(future)
            first = min(end for _, end in self._running.values()) - now
            wait = None if first == float("inf") else first
            futures_lib.wait([*self._running, *self._late], wait, futures_lib.FIRST_COMPLETED)

    def _begin(self) -> None:
        if self._executor is None:
            self._executor = self._started()
        if self._late and not self._running and isinstance(self._executor, executors.Ray):
            futures_lib.wait(self._late, _CANCELED, return_when=futures_lib.FIRST_COMPLETED)
        self._late = {future for future in self._late if not future.done()}
        while self._waiting and len(self._running) + len(self._late) < self._count:
            number, values = self._waiting.popleft()
            if self._given is None:  # `Processes` have a time-out of their own
                future, end = self._executor.submit(scored, self._evaluate, self._metric, values), None
            else:  # Workers of others may have no jaxnas.
                future, end = self._executor.submit(self._evaluate, values), self._timeout
            self._running[future] = number, float("inf") if end is None else time.monotonic() + end

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

    def _outcome(self, future: futures_lib.Future) -> Outcome:
        late = _failed(f"TimeoutError: it took more than {self._timeout} seconds")
        if not future.done():
            future.cancel()  # one that has not begun, and on Ray also one that runs
            self._late.add(future)
            return late
        try:
            returned = future.result()
            return returned if self._given is None else judged(returned, self._metric)
        except (futures_lib.BrokenExecutor, pebble.ProcessExpired) as error:
            return _failed(f"the worker died: {error}")
        except (Exception, SystemExit) as error:
            own = self._given is None and isinstance(error, TimeoutError)
            return late if own else _failed(f"{type(error).__name__}: {error}")


def scored(evaluate: Evaluate, metric: str | None, values: dict[str, Any]) -> Outcome:
    """Evaluates an architecture on a worker; what it returns or raises may not be fit to be sent."""
    try:
        return judged(evaluate(values), metric)
    except (Exception, SystemExit) as error:
        return _failed(f"{type(error).__name__}: {error}")


def judged(returned: Any, metric: str | None) -> Outcome:
    """Returns the score in what an evaluation returned, NaN if it failed, and a note for the history."""
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


def _failed(reason: str, note: dict[str, Any] | None = None) -> Outcome:
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


def run_parallel(
    strategy: Strategy,
    evaluate: Evaluate,
    key: jax.Array,
    *,
    workers: int = 1,
    executor: futures_lib.Executor | None = None,
    timeout: float | None = None,
    metric: str | None = None,
    history_path: str | os.PathLike | None = None,
    name: str | None = None,
    objective: str | None = None,
    progress: Callable[[runner.Standing], None] | None = None,
) -> runner.Result:
    """Runs a search on parallel workers to its end.

    An evaluation fails if it raises, takes too long, returns no finite number, or its worker dies. Its score
    is then null in the history, beside "error" with the reason, and the search continues.

    Args:
      strategy: one that is asked for one architecture at a time, with batch=1.
      evaluate: from the option values of one architecture, as `space.to_dict` gives them, to a number (higher
        is better), or to a dict of numbers of which `metric` is the score. It stands at the top level of a
        module where workers are processes.
      key: a typed key.
      workers: how many architectures are evaluated at a time. A search resumes with the same number only.
      executor: of `concurrent.futures`, `executors.Ray()`, or that of a Dask client. By default each worker
        is a process, replaced when it hangs or dies. A worker of another executor but Ray that hangs is out
        of use until its evaluation returns.
      timeout: seconds that an evaluation may take; None for no limit.
      metric: the score's name, where the evaluation returns a dict. The others are kept in the history.
      history_path, name, objective, progress: see `search.run`.

    Raises:
      ValueError: as `search.run`, a strategy that asks for generations, or workers that cannot import
        `evaluate`.
      RuntimeError: an executor that broke, or whose workers are all stuck.
    """
    _check(strategy, workers, executor, timeout)
    runner.check_search(strategy, evaluate, key, "values")
    history = runner.open_history(strategy, evaluate, key, history_path, name, objective, workers=workers)
    state = strategy.init(key)
    # The architectures that are being evaluated, and their option values, by the number of their question.
    running: dict[int, tuple[Any, dict[str, Any]]] = {}
    asked, submitted = 0, set[int]()
    with Workers(evaluate, metric, workers, executor, timeout) as crew:
        while True:
            while len(running) < workers and asked < strategy.evaluations and not bool(state.exhausted):
                archs, state = runner.ask(strategy, state)
                if not bool(state.valid[0]):
                    break
                state = begin_evaluation(strategy, state, archs)
                running[asked] = archs, strategy.space.to_dicts(archs)[0]
                asked += 1
            if not running:
                break
            old = history.next(len(history.lines))
            if old:
                number, score, note = _recorded(old[0], running, history_path)
            else:
                for number in running.keys() - submitted:  # some may have begun before the search was stopped
                    crew.submit(number, running[number][1])
                submitted |= running.keys()
                number, score, note = crew.next()
                if "error" in note:
                    _log.warning("search: evaluation %d failed: %s", len(history.lines), note["error"])
            state = end_evaluation(strategy, state, running.pop(number)[0], np.full((1,), score, np.float32))
            runner.record(strategy, state, history, progress, note)
    return runner.make_result(strategy, state, history)


def _check(strategy: Any, workers: Any, executor: Any, timeout: Any) -> None:
    runner.check_strategy(strategy)
    if strategy.batch != 1 or strategy.fidelities is not None or strategy.objectives is not None:
        raise ValueError(
            f"search: {type(strategy).__name__} asks for batches of {strategy.batch}, or for all scores of a "
            "rung. RandomSearch, LocalSearch, RegularizedEvolution, PredictorGuided and Reinforce run in "
            "parallel, with batch=1; for the others call search.run(..., batched=True) with an evaluation "
            "that spreads its batch over workers itself."
        )
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ValueError(f"search: workers is {workers!r}, expected an int of at least 1.")
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0
    if timeout is not None and not number:
        raise ValueError(f"search: timeout is {timeout!r}, expected seconds above 0, or None for no limit.")
    if executor is not None and not isinstance(executor, futures_lib.Executor):
        raise TypeError(
            f"search: executor is a {type(executor).__name__}, expected a concurrent.futures.Executor. A "
            "client of Dask makes one by client.get_executor()."
        )


def _recorded(line: dict[str, Any], running: dict[int, Any], path: Any) -> tuple[int, float, dict[str, Any]]:
    """The number of the question that a recorded line answers, and the answer."""
    note = {name: line[name] for name in ("error", "metrics") if name in line}
    score = float("nan") if line["score"] is None else line["score"]
    for number, (_, values) in running.items():
        if values == line["architecture"]:
            return number, score, note
    raise ValueError(
        f"{path} is not the history of this search: at index {line['index']} it recorded "
        f"{line['architecture']}, which is not asked for now. Use the cost function and version that wrote "
        "it, or another file."
    )

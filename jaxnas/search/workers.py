"""Evaluations in parallel, each of which may fail: it raises, takes too long, or its worker dies.

Of an executor only `submit`, the `result` of futures and `concurrent.futures.wait` are used.
"""

import collections
import concurrent.futures as futures_lib
import dataclasses
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from jaxnas import executors

_CANCELLED = 60.0  # Seconds in which Ray ends a call that was cancelled, also on a busy machine.


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one evaluation ended.

    Attributes:
      label: what the evaluation was called when it was submitted.
      returned: what the function returned; None if it failed.
      error: why it failed; None if it returned.
    """

    label: Any
    returned: Any = None
    error: str | None = None


@dataclasses.dataclass
class _Slot:
    """Room for one evaluation at a time. `process` is the worker's number where it is ours to end."""

    executor: futures_lib.Executor
    process: int | None = None
    future: futures_lib.Future | None = None
    label: Any = None
    started: float = 0.0


def _takes_no_more(error: RuntimeError) -> RuntimeError:
    return RuntimeError(
        f"search: the executor takes no more: {str(error).rstrip('.')}. Go on with a new executor "
        "and the same history; or give no executor, and a worker that dies is replaced."
    )


class Workers:
    """A number of workers that evaluate a function, until `close`.

    Without an executor each worker is a process of its own, which is ended and replaced when an
    evaluation takes too long or ends it. A worker of a given executor cannot be ended, but on Ray: it is
    out of use until its evaluation returns.

    Args:
      function: of one argument. For processes it stands at the top level of a module.
      count: how many evaluations run at a time.
      executor: see above; it is not shut down.
      timeout: seconds that one evaluation may take; None for no limit.

    Raises:
      ValueError: the workers cannot import the function.
      TypeError: something else than an executor, as a client of Dask itself.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        count: int,
        executor: futures_lib.Executor | None = None,
        timeout: float | None = None,
    ):
        if executor is not None and not isinstance(executor, futures_lib.Executor):
            raise TypeError(
                f"search: executor is a {type(executor).__name__}, expected a concurrent.futures.Executor. A "
                "client of Dask makes one by client.get_executor()."
            )
        self._function, self._given, self._timeout = function, executor, timeout
        self._waiting: collections.deque = collections.deque()
        self._slots: list[_Slot] = []
        if executor is None or isinstance(executor, futures_lib.ProcessPoolExecutor | executors.Ray):
            self._check_import()
        self._slots = [self._slot() for _ in range(count)]

    def submit(self, label: Any, argument: Any) -> None:
        """Evaluates the function of an argument as soon as a worker is free."""
        self._waiting.append((label, argument))

    def next(self) -> Outcome:
        """Waits until some evaluation has ended, and says how.

        Raises:
          RuntimeError: the executor takes no more, or all its workers are stuck.
        """
        while True:
            for slot in self._slots:
                if slot.label is None and slot.future is not None and slot.future.done():
                    slot.future = None  # A late result, of an evaluation that had its time.
                if slot.future is None and self._waiting:
                    self._start(slot)
            running = [slot for slot in self._slots if slot.label is not None]
            if not running:
                if self._freed():
                    continue
                raise RuntimeError(
                    f"search: all {len(self._slots)} workers of the executor are still busy with evaluations "
                    f"that took more than {self._timeout} seconds. Go on with a new executor and the same "
                    "history; or give no executor, and workers that are stuck are ended and replaced."
                )
            for slot in running:
                assert slot.future is not None
                if slot.future.done():
                    return self._ended(slot)
                if self._timeout is not None and time.monotonic() - slot.started > self._timeout:
                    return self._late(slot)
            left = None
            if self._timeout is not None:
                left = max(min(s.started for s in running) + self._timeout - time.monotonic(), 0) + 0.01
            futures = [slot.future for slot in self._slots if slot.future is not None]
            futures_lib.wait(futures, timeout=left, return_when=futures_lib.FIRST_COMPLETED)

    def close(self) -> None:
        """Ends the processes that are ours."""
        for slot in self._slots:
            self._end(slot)

    def _slot(self) -> _Slot:
        if self._given is not None:
            return _Slot(self._given)
        executor = executors.processes(1)
        return _Slot(executor, executor.submit(os.getpid).result())

    def _check_import(self) -> None:
        """Asks one worker for the function, before any evaluation is spent."""
        executor = executors.processes(1) if self._given is None else self._given
        try:
            executors.check_import(self._function, executor)
        except executors.WorkerDied:
            raise
        except RuntimeError as error:
            raise _takes_no_more(error) from error
        finally:
            if self._given is None:
                executor.shutdown()

    def _start(self, slot: _Slot) -> None:
        label, argument = self._waiting.popleft()
        try:
            future = slot.executor.submit(self._function, argument)
        except RuntimeError as error:  # A BrokenExecutor, or one that was shut down.
            raise _takes_no_more(error) from error
        slot.label, slot.future, slot.started = label, future, time.monotonic()

    def _ended(self, slot: _Slot) -> Outcome:
        label, future = slot.label, slot.future
        assert future is not None
        slot.label, slot.future = None, None
        error = futures_lib.CancelledError() if future.cancelled() else future.exception()
        if error is None:
            return Outcome(label, future.result())
        if isinstance(error, futures_lib.BrokenExecutor | executors.WorkerDied):
            self._replace(slot)
            return Outcome(label, error=f"the worker died: {error}")
        if isinstance(error, KeyboardInterrupt):
            raise error  # Ctrl-C reaches this process and those that it began.
        # Whatever else a user's function raises, SystemExit too, is one failed evaluation.
        reason = f"{type(error).__name__}: {error}"[:500]
        if "pickle" in reason:
            reason += "; if that is what the evaluation returned, return a number, or a dict of numbers"
        return Outcome(label, error=reason)

    def _late(self, slot: _Slot) -> Outcome:
        label = slot.label
        slot.label = None
        assert slot.future is not None
        slot.future.cancel()  # One that has not begun; and on Ray also one that runs.
        self._replace(slot)
        return Outcome(label, error=f"TimeoutError: it took more than {self._timeout} seconds")

    def _freed(self) -> bool:
        """Waits for some evaluation that was cancelled to end, where the executor ends what runs.

        Only Ray does, and not at once; it then begins a new process, too.
        """
        if not isinstance(self._given, executors.Ray):
            return False
        late = [slot.future for slot in self._slots if slot.future is not None]
        return bool(futures_lib.wait(late, _CANCELLED, return_when=futures_lib.FIRST_COMPLETED).done)

    def _replace(self, slot: _Slot) -> None:
        if slot.process is not None:
            self._end(slot)
            new = self._slot()
            slot.executor, slot.process, slot.future = new.executor, new.process, None

    def _end(self, slot: _Slot) -> None:
        if slot.process is not None:
            try:
                os.kill(slot.process, signal.SIGKILL)
            except ProcessLookupError:
                slot.process = None  # It died by itself.
            slot.executor.shutdown(wait=True, cancel_futures=True)

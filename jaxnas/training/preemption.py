"""Stopping a training in order when the machine or the user asks for it.

Of several processes, JAX's preemption service takes the SIGTERM that schedulers send, and agrees on the step
after which all stop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax
from jax.experimental import multihost_utils


class Stopped(BaseException):
    """A signal stopped a training, whose result so far is `trained`.

    Ctrl-C raises it as a KeyboardInterrupt, SIGTERM as a SystemExit of 143.
    """

    def __init__(self, message: str, trained: Any) -> None:
        super().__init__(message)
        self.trained = trained


class Interrupted(Stopped, KeyboardInterrupt):
    """Ctrl-C stopped a training."""


class Terminated(Stopped, SystemExit):
    """SIGTERM stopped a training; where nothing catches it the process ends with status 143."""

    def __init__(self, message: str, trained: Any) -> None:
        super().__init__(message, trained)
        self.code = 143


@dataclasses.dataclass
class Stop:
    """Whether a signal requested a stop, and the exception to raise then."""

    requested: bool = False
    kind: type[Stopped] = Terminated

    def reached(self, turn: int) -> bool:
        """Whether to stop now; called once in each turn of a loop, from 1, the same in all processes."""
        if jax.process_count() == 1:
            return self.requested
        return multihost_utils.reached_preemption_sync_point(turn)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Turns the first SIGTERM or Ctrl-C into a request; a second one acts as without this context."""
    stop, together = Stop(), jax.process_count() > 1
    # With several, JAX has its own handler for SIGTERM, which tells the other processes.
    signals = (signal.SIGINT,) if together else (signal.SIGTERM, signal.SIGINT)
    if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        signals = ()
    before = {number: signal.getsignal(number) for number in signals}

    def restore() -> None:
        for number, handler in before.items():
            # None: a handler that was not set from Python, which cannot be set back from it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        stop.requested, stop.kind = True, Interrupted if number == signal.SIGINT else Terminated
        restore()
        if together:
            os.kill(os.getpid(), signal.SIGTERM)

    for number in signals:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        restore()

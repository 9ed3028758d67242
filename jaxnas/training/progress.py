"""Progress of a loop: one line that rewrites itself on a terminal, plain lines elsewhere."""

from __future__ import annotations

import collections
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Self, TextIO

from jaxnas.processes import is_first


class Progress:
    """Shows the step, the rate and the time left; stores nothing.

    Until the first update it says how long that is waited for. Of several processes the first one shows
    it. The rate is that of the last steps shown, and the first step is left out of it: it compiles.
    """

    def __init__(
        self,
        total: int,
        start: int = 0,
        label: str = "step",
        stream: TextIO | None = None,
        every: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts to count.

        Args:
          total: the last step.
          start: the step that is already done, for a resumed run.
          label: what stands before the count.
          stream: where to write; standard error by default.
          every: least seconds between two lines; 0.1 on a terminal, else 10.
          clock: seconds, for tests.
        """
        self._total, self._label, self._clock = total, label, clock
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._every = (0.1 if self._terminal else 10.0) if every is None else every
        self._patience = (1.0 if self._terminal else 10.0) if every is None else every
        self._marks: collections.deque[tuple[float, int]] = collections.deque(maxlen=20)
        self._shown_at: float | None = None
        self._step, self._width, self._shown = start, 0, is_first()
        self._begun, self._lock = threading.Event(), threading.Lock()  # of the first update

    def update(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Says that `step` is done; metrics are shown beside it (reading them waits for them)."""
        with self._lock:
            self._begun.set()
        now = self._clock()
        self._step = step
        due = self._shown_at is None or now - self._shown_at >= self._every
        if not self._shown or (not due and step < self._total):
            return
        self._marks.append((now, step))
        self._shown_at = now
        self._show(metrics or {})

    def close(self) -> None:
        """Ends the line on a terminal, so that what follows starts on a new one."""
        with self._lock:
            self._begun.set()
        if self._terminal and self._width:
            self._stream.write("\n")
            self._stream.flush()
            self._width = 0

    def __enter__(self) -> Self:
        if self._shown:
            threading.Thread(target=self._wait, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self) -> None:
        """Says how long the first update is waited for: compiling may take minutes."""
        begun = time.monotonic()
        while not self._begun.wait(self._patience):
            so_far = duration(time.monotonic() - begun)
            with self._lock:
                if not self._begun.is_set():
                    self._write(f"{self._label} {self._step}/{self._total}  compiling, {so_far} so far")

    def _show(self, metrics: Mapping[str, float]) -> None:
        parts = [f"{self._label} {self._step}/{self._total}"]
        (first, first_step), (last, last_step) = self._marks[0], self._marks[-1]
        if last > first and last_step > first_step:
            rate = (last_step - first_step) / (last - first)
            left = duration((self._total - self._step) / rate)
            parts += [f"{rate:.3g}/s" if rate < 100 else f"{rate:.0f}/s", f"{left} left"]
        parts += [f"{name} {float(value):.4g}" for name, value in metrics.items()]
        self._write("  ".join(parts))

    def _write(self, text: str) -> None:
        if self._terminal:
            # A wrapped line could not be rewritten; spaces cover a longer line from before.
            text = text[: shutil.get_terminal_size().columns - 1]
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


def duration(seconds: float) -> str:
    """Writes seconds as 0:42, 12:05 or 3:07:00."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"

"""The progress and the times of a run: one line that rewrites itself on a terminal, plain lines elsewhere."""

from __future__ import annotations

import collections
import math
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TextIO, TypeVar

from jaxnas.processes import is_first

T = TypeVar("T")
# The parts and rates in the line of a run, in their order: of a training, of a search, of a comparison.
_PARTS = ("input", "step", "evaluation", "checkpoint", "strategy", "selection", "search", "report")
_RATES = ("steps_per_second", "evaluations_per_second")


class Progress:
    """Shows the step, the rate and the time left; stores nothing.

    Until the first update it shows how long that has taken: compiling may take minutes. Of several processes
    the first one shows it. The rate is that of the last steps shown, without the first step, which compiles.
    A resumed run has `start` steps done. There are `every` seconds between two lines, by default 0.1 on a
    terminal and 10 elsewhere.
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
        self._total, self._step, self._label, self._clock = total, start, label, clock
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        # Seconds between two lines, and before the first says that something compiles.
        usual = (0.1, 1.0) if self._terminal else (10.0, 10.0)
        self._every, self._patience = usual if every is None else (every, every)
        self._marks: collections.deque[tuple[float, int]] = collections.deque(maxlen=20)  # shown
        self._width, self._shown = 0, is_first()
        self._metrics: Mapping[str, float] = {}
        self._begun, self._lock = threading.Event(), threading.Lock()  # of the first update

    def update(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Shows that `step` is done, and the last given metrics beside it (reading them waits for them)."""
        with self._lock:
            self._begun.set()
        self._metrics = metrics or self._metrics
        self._step, now = step, self._clock()
        due = not self._marks or now - self._marks[-1][0] >= self._every
        if not self._shown or (not due and step < self._total):
            return
        self._marks.append((now, step))
        parts = [f"{self._label} {step}/{self._total}"]
        first, first_step = self._marks[0]
        if now > first and step > first_step:
            rate = (step - first_step) / (now - first)
            left = duration((self._total - step) / rate)
            parts += [f"{rate:.3g}/s" if rate < 100 else f"{rate:.0f}/s", f"{left} left"]
        parts += [f"{name} {float(value):.4g}" for name, value in self._metrics.items()]
        self._write("  ".join(parts))

    def __enter__(self) -> Self:
        if self._shown:
            threading.Thread(target=self._wait, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._begun.set()
        if self._terminal and self._width:  # What follows starts on a new line.
            self._stream.write("\n")
            self._stream.flush()

    def _wait(self) -> None:
        begun = time.monotonic()
        while not self._begun.wait(self._patience):
            so_far = duration(time.monotonic() - begun)
            with self._lock:
                if not self._begun.is_set():
                    self._write(f"{self._label} {self._step}/{self._total}  compiling, {so_far} so far")

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


class Clock:
    """Sums up the seconds of the named parts of a run."""

    def __init__(self, parts: Sequence[str]) -> None:
        self._begun = self._lap_begun = time.perf_counter()
        self.seconds = dict.fromkeys(parts, 0.0)
        self._at_lap = dict(self.seconds)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts the time within as that of a part."""
        begun = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - begun

    def waiting(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """Passes items on, and counts the wait for each as the time of a part."""
        iterator = iter(items)
        while True:
            with self.part(name):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def lap(self) -> dict[str, float]:
        """Seconds since the last lap, or since the start, and the share of each part in them."""
        now = time.perf_counter()
        total, since = now - self._lap_begun, {k: x - self._at_lap[k] for k, x in self.seconds.items()}
        self._lap_begun, self._at_lap = now, dict(self.seconds)
        return {"seconds": total, **{f"{name}_share": seconds / total for name, seconds in since.items()}}

    def shares(self, rest: str | None = None, **done: int) -> dict[str, float]:
        """The content of times.json: "seconds", "<name>_per_second" of each count, the share of each part.

        All other time belongs to a part named `rest`, None where it has no name. Counts have their name
        in the plural, as in `shares(steps=300)`.
        """
        total = time.perf_counter() - self._begun
        shares = {name: seconds / total for name, seconds in self.seconds.items()}
        if rest is not None:
            shares[rest] = max(1 - sum(shares.values()), 0.0)
        rates = {f"{name}_per_second": count / total for name, count in done.items()}
        return {"seconds": total, **rates, **shares}


def times_line(times: Mapping[str, Any]) -> str:
    """Where the time of a run went, as one line for a terminal or a log.

    It is not on the page: a run that was killed and resumed takes another time, and gives the same page.
    """
    known = {name: float(value) for name, value in times.items() if isinstance(value, int | float)}
    seconds = known.get("seconds", math.nan)
    shares = [f"{100 * known[name]:.0f} % {name}" for name in _PARTS if name in known]
    line = "Time: not known" if math.isnan(seconds) else f"Time: {seconds:,.1f} s"
    line += f": {', '.join(shares)}" if shares else ""
    line += "".join(f"; {known[name]:.4g} {name.replace('_', ' ')}" for name in _RATES if name in known)
    return f"{line}."

"""Where the time of a run goes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
# What the line of a run names, in its order: of a training, of a search, of a comparison.
_PARTS = ("input", "step", "evaluation", "checkpoint", "strategy", "selection", "search", "report")
_RATES = ("steps_per_second", "evaluations_per_second")


class Clock:
    """Sums up the seconds of the parts of a run."""

    def __init__(self, parts: Sequence[str]) -> None:
        """Starts; `parts` are the names of what is told apart."""
        self._begun = self._lap_begun = time.perf_counter()
        self.seconds = dict.fromkeys(parts, 0.0)
        self._at_lap = dict(self.seconds)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts the time within as that of a part."""
        begun = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - begun

    def lap(self) -> dict[str, float]:
        """Seconds since the last lap, or since the start, and the share of each part in them."""
        now = time.perf_counter()
        total, since = now - self._lap_begun, {k: x - self._at_lap[k] for k, x in self.seconds.items()}
        self._lap_begun, self._at_lap = now, dict(self.seconds)
        return {"seconds": total, **{f"{name}_share": seconds / total for name, seconds in since.items()}}

    def waiting(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """Passes items on, and counts the time that each is waited for as that of a part."""
        iterator = iter(items)
        while True:
            with self.part(name):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def shares(self, rest: str | None = None, **done: int) -> dict[str, float]:
        """What times.json holds.

        Args:
          rest: the name of the part that all other time belongs to; None where that has no name.
          **done: how many were done, by their name in the plural, as in `shares(steps=300)`.

        Returns:
          "seconds" in all, "<name>_per_second" of what was done, and the share of each part.
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

    Args:
      times: what times.json holds: "seconds", as fractions of it the shares of parts such as "input", and
        "<unit>_per_second".

    Returns:
      The line, without what is missing.
    """
    known = {name: float(value) for name, value in times.items() if isinstance(value, int | float)}
    seconds = known.get("seconds", math.nan)
    shares = [f"{100 * known[name]:.0f} % {name}" for name in _PARTS if name in known]
    line = "Time: not known" if math.isnan(seconds) else f"Time: {seconds:,.1f} s"
    line += f": {', '.join(shares)}" if shares else ""
    line += "".join(f"; {known[name]:.4g} {name.replace('_', ' ')}" for name in _RATES if name in known)
    return f"{line}."

"""Where the time of a run goes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


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

    def shares(self, done: int, unit: str) -> dict[str, float]:
        """What times.json holds.

        Args:
          done: how many of a unit were done, such as steps.
          unit: its name in the plural.

        Returns:
          "seconds" in all, "<unit>_per_second", and the share of each part.
        """
        total = time.perf_counter() - self._begun
        shares = {name: seconds / total for name, seconds in self.seconds.items()}
        return {"seconds": total, f"{unit}_per_second": done / total, **shares}

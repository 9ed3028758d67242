"""Batches made ahead of their step, so that the devices need not wait for them."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any, Self


class Ahead:
    """Batches by number, of which the next ones are made in a thread while a step runs.

    A batch is a function of its number, so what is made ahead changes nothing.

    Args:
      batch: makes the batch of a number, on the devices.
      count: how many are made ahead; 0 to make each when it is asked for.
      end: the number behind the last one.
    """

    def __init__(self, batch: Callable[[int], Any], count: int, end: int) -> None:
        self._batch, self._count, self._end = batch, count, end
        self._made: dict[int, concurrent.futures.Future] = {}
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="batches")

    def __call__(self, number: int) -> Any:
        """The batch of a number; what making it raised is raised here."""
        if not self._count:
            return self._batch(number)
        for next_one in range(number, min(number + self._count + 1, self._end)):
            if next_one not in self._made:
                self._made[next_one] = self._thread.submit(self._batch, next_one)
        return self._made.pop(number).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

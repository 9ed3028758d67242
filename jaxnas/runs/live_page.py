"""The page of a run, rewritten while it runs."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from jaxnas import files, processes
from jaxnas.report.page import write_running
from jaxnas.report.result import NAME, Network, Result, SearchOf
from jaxnas.runs.describe import describe_space, describe_task
from jaxnas.space import Space
from jaxnas.tasks import Task
from jaxnas.training.progress import duration


@dataclasses.dataclass
class LivePage:
    """Writes report.html of a workdir as results come; a browser that shows it follows.

    A page that is written often would cost time: there are `every` seconds between two, and writing
    takes a fortieth of the time at most.

    Attributes:
      task, space: of the run.
      workdir: whose metrics.jsonl and search/history.jsonl are shown.
      every: least seconds between two pages.
      searches: those that have begun.
      network: of a network of `jaxnas.supernet`, what its `described` gives: the page draws its sizes.
      clock: seconds, for tests.
    """

    task: Task
    space: Space
    workdir: str | os.PathLike
    every: float = 5.0
    searches: tuple[SearchOf, ...] = ()
    network: Mapping[str, Any] | None = None
    clock: Callable[[], float] = time.monotonic
    _due: float | None = dataclasses.field(default=None, init=False)
    _first: tuple[float, int] | None = dataclasses.field(default=None, init=False)

    def begin(self, doing: str) -> None:
        """Writes the page before anything is recorded; the page of a result is left as it is."""
        if not (files.as_path(self.workdir) / NAME).exists():
            self._write(doing, reload=max(1, round(self.every)))

    def update(self, doing: str, done: int = 0, total: int = 0) -> None:
        """Writes the page if it is time.

        Args:
          doing: a sentence on what the run is doing.
          done, total: of its steps or evaluations, from which the time left follows; 0 where it is not known.
        """
        begun = self.clock()
        since, before = self._first = self._first or (begun, done)
        if done > before and begun > since:
            left = (total - done) * (begun - since) / (done - before)
            doing += f" About {duration(left)} left."
        if self._due is None or begun >= self._due:
            self._write(doing, reload=max(1, round(self.every)))
            self._due = begun + max(self.every, 40 * (self.clock() - begun))

    def end(self, doing: str) -> None:
        """Writes the page a last time, without reloading; the page of a result is left as it is.

        A run that was killed behind its last step writes it when it is started again.
        """
        if self._due is not None or not (files.as_path(self.workdir) / NAME).exists():
            self._write(doing, reload=None)

    def _write(self, doing: str, reload: int | None) -> None:
        if not processes.is_first():
            return
        result = Result(
            task=describe_task(self.task),
            space=describe_space(self.space),
            found=Network(name="best so far", architecture={}, costs={}, metrics={}),
            searches=self.searches,
            config={"network": self.network},
        )
        write_running(self.workdir, result, doing, reload)

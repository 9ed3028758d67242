"""A run as its result says it: task, space and versions; its page meanwhile."""

from __future__ import annotations

import dataclasses
import os
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any

import flax
import jax
import numpy as np
import optax

import jaxnas
from jaxnas import files, processes
from jaxnas.inputs import describe
from jaxnas.report.page import write_running
from jaxnas.report.result import NAME, MetricOf, Network, Result, SearchOf, SpaceOf, TaskOf
from jaxnas.space import Space
from jaxnas.tasks import Task
from jaxnas.training.progress import duration
from jaxnas.training.settings import SETTINGS


def describe_run(
    task: Task, space: Space, found: Network, config: Mapping[str, Any] | None, **more: Any
) -> Result:
    """The result of a run on this machine; `more` are further fields of `Result`."""
    return Result(
        task=describe_task(task),
        space=describe_space(space),
        found=found,
        config=config or {},
        versions=versions(),
        device=jax.devices()[0].device_kind,
        **more,
    )


def describe_task(task: Task) -> TaskOf:
    """The task's part of a result; of a text, as many tokens as an evaluation takes."""
    most = getattr(task, "evaluation_tokens", None)
    sizes = {x: n if x == "train" or most is None else min(n, most) for x, n in task.sizes.items()}
    return TaskOf(
        name=task.name,
        examples=task.examples,
        sizes=sizes,
        metrics=tuple(MetricOf(name=m.name, unit=m.unit, direction=m.direction) for m in task.metrics),
        details=files.plain(dict(task.details())),
        inputs=f"{describe(task.inputs)}, with any number of rows, {task.preparation()}",
    )


def describe_space(space: Space) -> SpaceOf:
    """The space's part of a result."""
    return SpaceOf(cardinality=str(space.cardinality), choices=space.to_json())


def versions() -> dict[str, str]:
    """Versions of what decides numbers."""
    packages = (jaxnas, jax, flax, optax, np)
    return {one.__name__: one.__version__ for one in packages} | {"python": platform.python_version()}


def trained_by(workdir: str | os.PathLike) -> dict[str, Any]:
    """The settings of the training that ended in a workdir, as plain values; {} where there was none."""
    path = files.as_path(workdir) / SETTINGS
    return dict(files.read_json(path)) if path.is_file() else {}


@dataclasses.dataclass
class LivePage:
    """Writes report.html of a workdir as results come; a browser that shows it follows.

    A page that is written often would cost time: there are `every` seconds between two, and writing
    takes a fortieth of the time at most.

    Attributes:
      task, space: of the run.
      workdir: whose metrics.jsonl and search/history.jsonl are shown; None for no page.
      searches: those that have begun.
      network: of a network of `jaxnas.supernet`, what its `described` gives: the page draws its sizes.
    """

    task: Task
    space: Space
    workdir: str | os.PathLike | None
    every: float = 5.0
    searches: tuple[SearchOf, ...] = ()
    network: Mapping[str, Any] | None = None
    clock: Callable[[], float] = time.monotonic
    _due: float | None = dataclasses.field(default=None, init=False)
    _first: tuple[float, int] | None = dataclasses.field(default=None, init=False)

    def begin(self, doing: str) -> None:
        """Writes the page before anything is recorded; the page of a result is left as it is."""
        if not self._has_result():
            self._write(doing, reload=max(1, round(self.every)))

    def update(self, doing: str, done: int = 0, total: int = 0) -> None:
        """Writes the page if it is time, with a sentence on what the run is doing.

        The time left follows from how many of its steps or evaluations are done; 0 where it is not known.
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
        if self._due is not None or not self._has_result():
            self._write(doing, reload=None)

    def _has_result(self) -> bool:
        return self.workdir is not None and (files.as_path(self.workdir) / NAME).exists()

    def _write(self, doing: str, reload: int | None) -> None:
        if self.workdir is None or not processes.is_first():
            return
        result = Result(
            task=describe_task(self.task),
            space=describe_space(self.space),
            found=Network(name="best so far", architecture={}, costs={}, metrics={}),
            searches=self.searches,
            config={"network": self.network},
        )
        write_running(self.workdir, result, doing, reload)

"""The context that the parts of a run share."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from jax.sharding import Mesh

from jaxnas import files, trackers
from jaxnas.cost import Cost
from jaxnas.executors import Calls
from jaxnas.training.settings import Training


@dataclasses.dataclass(frozen=True)
class Lab:
    """Where a run works: its directory, seed, devices and workers.

    Attributes:
      workdir: directory of the run, from which a stopped search resumes; None keeps no files.
      seed: of everything random.
      alone: how an architecture is trained alone, as finalists, rankings and retrainings ask for.
      mesh: of the devices that evaluate, None for all; trainings use those of their settings.
      cost: of architectures; None for parameters, products and the latency that `Search.latency` asks for.
      workers: trainings alone on workers, by kind ("trials", "alone"); without one they run here, in turn.
      config: plain values that describe the run, recorded with its results.
      log: `jaxnas.trackers`, which figures of trainings and searches, the networks of the result and the page
        are passed to.
    """

    workdir: str | os.PathLike | None = None
    seed: int = 0
    alone: Training | None = None
    mesh: Mesh | None = None
    cost: Cost | None = None
    workers: Mapping[str, Calls | None] = dataclasses.field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    log: Iterable[Any] = trackers.NONE

    def __post_init__(self) -> None:
        object.__setattr__(self, "log", trackers.as_log(self.log))

    @property
    def root(self) -> pathlib.Path:
        """The directory of the run; without one, a ValueError."""
        if self.workdir is None:
            raise ValueError("the results of a run need a directory; give runs.Lab(workdir=...).")
        return files.as_path(self.workdir)

    def training_alone(self, asked_by: str) -> Training:
        """The settings of trainings alone; without them, a ValueError that says what asked for them."""
        if self.alone is None:
            raise ValueError(f"{asked_by}; give runs.Lab(alone=...), how they are trained alone.")
        return self.alone

    def shortened(self, steps: int | None) -> Lab:
        """Returns this lab with trainings alone of `steps` steps; None keeps those of its settings."""
        return dataclasses.replace(self, alone=self.training_alone("trainings alone").shortened(steps))

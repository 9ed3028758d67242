"""Commands or Python calls that repeat or resume a run."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from jaxnas.report.read import Run
from jaxnas.training.settings import Training

# Where `result.config` has what the command line asked for.
CONFIG, SET = "--config", "--set"
AGAIN = "again"  # or the calls in Python that make it again


def by_binaries(run: Run) -> bool:
    """Whether a config by its name made the run, as binaries do."""
    return isinstance(run.result.config.get("name"), str)


def binaries(run: Run) -> tuple[str, ...]:
    """The binaries that make a run like this, in their order: a checkpoint needs no supernet's training."""
    later = ("search", "retrain", "evaluate")
    return later if run.result.loader and not run.metrics else ("train_supernet", *later)


def command(run: Run, binary: str, *more: str, workdir: str = "DIR") -> str:
    """The command of a binary on this run; `more` are assignments for --set.

    The binaries behind the first one find its assignments in the workdir, so only that repeats them; a
    training also takes those of the search.
    """
    config = run.result.config
    own = config.get(SET, ()) if binary == binaries(run)[0] else ()
    # The last assignment of a field counts.
    assignments = {text.partition("=")[0].strip(): text for text in (*own, *more)}.values()
    given = [f"--config={config.get(CONFIG, config.get('name'))}", f"--workdir={workdir}"]
    parts = [shlex.quote(one) for one in given] + [f"--set {shlex.quote(one)}" for one in assignments]
    lines = [f"jaxnas {binary}"]
    for part in parts:
        if len(lines[-1]) + len(part) < 100:
            lines[-1] += f" {part}"
        else:
            lines.append(f"    {part}")
    return " \\\n".join(lines)


def call(name: str, settings: Mapping[str, Any]) -> str:
    """The call that makes an object with these settings: "Training(steps=300, batch_size=64)"."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in settings.items())})"


def training_call(run: Run, steps: int) -> str:
    """The settings of the run's training with other steps, without what is a default."""
    given, fields = run.result.config.get("training"), dataclasses.fields(Training)
    given = given if isinstance(given, Mapping) else {}
    own = {x.name: given[x.name] for x in fields if given.get(x.name, x.default) != x.default}
    return call("training.Training", {**own, "steps": steps})


def steps_of(run: Run) -> int:
    """Of the supernet's training; 0 where it is not known."""
    return int(max((line["step"] for line in run.metrics), default=0))

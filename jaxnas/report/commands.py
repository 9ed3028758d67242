"""How to make a run again or to go on with it: commands where binaries made it, else calls in Python."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from jaxnas.report.read import Run

# Where `result.config` has what the command line asked for.
CONFIG, SET = "--config", "--set"
AGAIN = "again"  # or the calls in Python that make it again


def by_binaries(run: Run) -> bool:
    """Whether a config by its name made the run, as binaries do."""
    return isinstance(run.result.config.get("name"), str)


def command(run: Run, binary: str, *more: str, workdir: str = "DIR") -> str:
    """The command of a binary on this run; `more` are assignments for --set.

    The binaries behind the training find its assignments in the workdir, so only the training repeats them;
    it also takes those of the search.
    """
    config = run.result.config
    own = config.get(SET, ()) if binary == "train_supernet" else ()
    # The last assignment of a field counts.
    assignments = {text.partition("=")[0].strip(): text for text in (*own, *more)}.values()
    parts = [f"--config={config.get(CONFIG, config.get('name'))}", f"--workdir={workdir}"]
    parts += [part for text in assignments for part in ("--set", text)]
    return " ".join([f"python -m experiments.{binary}", *map(shlex.quote, parts)])


def call(name: str, settings: Mapping[str, Any]) -> str:
    """The call that makes an object with these settings: "Training(steps=300, batch_size=64)"."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in settings.items())})"


def steps_of(run: Run) -> int:
    """Of the supernet's training; 0 where it is not known."""
    return int(max((line["step"] for line in run.metrics), default=0))

"""Small runs of the binaries, and how one is watched and ended."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import time

import numpy as np

ROOT = pathlib.Path(__file__).parents[2]


_ONE_SHOT, _RELAXED, _EVOLVING = (
    (f"--config={ROOT / 'tools' / 'drill' / 'configs.py'}:{name}",)
    for name in ("one_shot", "relaxed", "evolving")
)
_TABLE = ("--benchmark=grid.csv", "--objectives=score=max", "--seeds=60", "--chunk=10", "--evaluations=20")
_COMPARED = (*_TABLE, "--strategies=random,regularized_evolution")
# What changes while a run writes: the file itself, or the one that is still to take its place.
SAVES, _LINES, _FILES = "checkpoints/*", "*.jsonl", "*.*"
_HISTORY, _CHUNKS, _SUBNET = "search/*.jsonl", "searches/*/*", "*subnet*/*"
_TRAINED, _SEARCHED = (SAVES, _LINES, _FILES), (_HISTORY, _HISTORY, _SUBNET, _FILES)
_OF_SPACES = "space_*/checkpoints/*"
OFTEN = (SAVES, _LINES, _HISTORY, _CHUNKS, _OF_SPACES)


@dataclasses.dataclass(frozen=True)
class Flow:
    """A run of one binary.

    Attributes:
      binary, arguments: of the command.
      writes: patterns of what changes while the run writes something.
      after: the flow that it goes on from.
      folder: of the workdir that the run writes to.
      processes: that are the run together.
    """

    binary: str
    arguments: tuple[str, ...]
    writes: tuple[str, ...]
    after: str = ""
    folder: str = "."
    processes: int = 1


FLOWS = {
    "training": Flow("train_supernet", _ONE_SHOT, _TRAINED),
    "search": Flow("search", _ONE_SHOT, _SEARCHED, "training"),
    "retraining": Flow("retrain", _ONE_SHOT, _TRAINED, "search", "retrained/found-scratch-0"),
    "comparison": Flow("compare", _COMPARED, (_CHUNKS, _CHUNKS, _FILES)),
    "differentiable": Flow("train_supernet", _RELAXED, _TRAINED),
    "trials": Flow("search", _RELAXED, _SEARCHED, "differentiable"),
    "evolution": Flow("train_supernet", _EVOLVING, (_OF_SPACES, *_TRAINED)),
}
# Searches of a comparison are jobs of one process each.
FLOWS |= {
    f"{name}_of_two": dataclasses.replace(flow, processes=2)
    for name, flow in FLOWS.items()
    if flow.binary != "compare"
}


@dataclasses.dataclass
class Run:
    """The processes of a run, and the file that they print to."""

    processes: list[subprocess.Popen]
    log: pathlib.Path

    def goes_on(self) -> bool:
        return all(process.poll() is None for process in self.processes)

    def finish(self) -> tuple[int, str]:
        """Waits for the end; the exit status that is not 0, if one is, and what was printed."""
        codes = [process.wait(timeout=900) for process in self.processes]
        return max(codes, key=abs), self.log.read_text(errors="replace")

    def writes(self, folder: pathlib.Path, pattern: str, count: int) -> bool:
        """Waits until what matches the pattern changed that often; False if the run ended before."""
        before = changes(folder, pattern)
        while count > 0 and self.goes_on():
            now = changes(folder, pattern)
            count -= any(change != before.get(path) for path, change in now.items())
            before = now
            time.sleep(0.0003)
        return self.goes_on()

    def end(self, number: int, random: np.random.Generator) -> None:
        """Sends a signal to each process, in a random order, with up to a second in between."""
        for position, index in enumerate(random.permutation(len(self.processes))):
            time.sleep(random.uniform(0, 1) if position else 0)
            self.processes[index].send_signal(number)


def changes(folder: pathlib.Path, pattern: str) -> dict[str, tuple[int, int]]:
    """The size and the time of the last change of what a pattern matches; what goes meanwhile is left out."""
    found = {}
    for path in folder.glob(pattern):
        try:
            found[str(path)] = (path.stat().st_size, path.stat().st_mtime_ns)
        except FileNotFoundError:  # renamed just now
            continue
    return found

"""Jobs on a new cluster of Ray whose workers are killed with SIGKILL while they work.

  python -m experiments.benchmarks.worker_kills --jobs=60 --kills=20 --workers=2

A job leaves a file as it begins and as it ends, and computes for a fifth of a second. Processes that are at a
job are killed one after another, at most once for each job. Printed is how often jobs were begun, how many
came to their end, and whether each result came once and is that of the same jobs in turn, here.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import signal
import tempfile
import threading
import time
from collections import Counter

from absl import flags

from experiments import binary
from jaxnas import executors

_JOBS = flags.DEFINE_integer("jobs", 60, "How many.", lower_bound=1)
_KILLS = flags.DEFINE_integer(
    "kills", 20, "How many workers are killed, if there are jobs left.", lower_bound=0
)
_WORKERS = flags.DEFINE_integer("workers", 2, "Of the cluster.", lower_bound=1)


def job(folder: str, number: int) -> str:
    """A digest that takes a while, with a file as it begins and as it ends."""
    note = pathlib.Path(folder, f"{number}-{os.getpid()}-{time.monotonic_ns()}")
    note.with_suffix(".begun").touch()
    digest, end = str(number).encode(), time.monotonic() + 0.2
    rounds = 0
    while rounds < 1000 or time.monotonic() < end:
        digest = hashlib.sha256(digest).digest() if rounds < 1000 else digest
        rounds += 1
    note.with_suffix(".ended").touch()
    return digest.hex()


def kill(folder: pathlib.Path, count: int, killed: list[str], done: threading.Event) -> None:
    """Kills processes that are at a job, each job's at most once."""
    while len(killed) < count and not done.wait(0.05):
        for note in sorted(folder.glob("*.begun")):
            number, process, _ = note.stem.split("-")
            if number not in killed and not note.with_suffix(".ended").exists():
                try:
                    os.kill(int(process), signal.SIGKILL)
                except ProcessLookupError:  # It was killed at another job.
                    continue
                killed.append(number)
                break


def main() -> None:
    jobs, killed, done = range(_JOBS.value), [], threading.Event()
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
        alone = [job(here, number) for number in jobs]
        killer = threading.Thread(target=kill, args=(pathlib.Path(there), _KILLS.value, killed, done))
        with executors.Ray(workers=_WORKERS.value) as executor:
            killer.start()
            told = list(executors.as_completed(job, [(there, number) for number in jobs], executor))
            done.set()
            killer.join()
        begun, ended = (
            Counter(path.name.partition("-")[0] for path in pathlib.Path(there).glob(f"*.{kind}"))
            for kind in ("begun", "ended")
        )
    once = Counter(number for number, _ in told) == Counter(jobs)
    twice = sum(count > 1 for count in ended.values())
    equal = once and [returned for _, returned in sorted(told)] == alone
    print(
        f"jobs {len(jobs)}, kills {len(killed)}, begun {begun.total()}, done {len(ended)}, "
        f"done twice {twice}, each result once and equal: {'yes' if equal else 'no'}"
    )


if __name__ == "__main__":
    binary.run(main)

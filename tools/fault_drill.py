"""Breaks runs in every way at hand, starts them again, and compares them with runs that nothing disturbed.

  python -m tools.fault_drill --kills=100 --workdir=runs/drill
  python -m tools.fault_drill --kills=6 --only=kills --flows=training --workdir=runs/short

Runs are killed (SIGKILL) at random moments and inside of writes, stopped (SIGTERM), given a disk that is
full or read-only, damaged files, a clock that was set back, and a second run in their workdir. A run that
ends must have the weights, history, result and page of the undisturbed run, byte for byte but for times.
Prints what was done, how many runs ended equal, how many said what is wrong, and what did neither; with
any of these it ends with status 1. Full and read-only disks need the right to mount.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
from absl import flags, logging

from jaxnas.experiments import binary
from jaxnas.experiments.config import ConfigError
from tools.drill.contents import differences
from tools.drill.runs import FLOWS, OFTEN, ROOT, SAVES, Run, changes

_KILLS = flags.DEFINE_integer("kills", 100, "How many runs are killed, over all flows.", lower_bound=0)
_SEED = flags.DEFINE_integer("seed", 0, "Of the moments and the damage.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory for all runs; emptied first.", required=True)
_ONLY = flags.DEFINE_list("only", [], "Only these faults, of those in the table; by default all.")
_FLOWS = flags.DEFINE_list("flows", list(FLOWS), f"Only these flows, of {', '.join(FLOWS)}.")


MARK = ".drill"  # In a folder that the drill may empty.


@dataclasses.dataclass
class Row:
    """The outcomes of the runs of one fault and flow; `neither` lists what was wrong."""

    times: int = 0
    equal: int = 0
    said: int = 0
    neither: list[str] = dataclasses.field(default_factory=list)


class Drill:
    """The drill's folder, its random numbers, and what it has found."""

    def __init__(self, root: pathlib.Path, seed: int) -> None:
        self.root, self.random = root, np.random.default_rng(seed)
        self.rows: dict[tuple[str, str], Row] = {}
        self.seconds: dict[str, float] = {}  # of the undisturbed runs
        self._logs = itertools.count()

    def row(self, fault: str, name: str) -> Row:
        return self.rows.setdefault((fault, name), Row())

    def start(self, name: str, workdir: pathlib.Path) -> Run:
        """Starts a flow in a workdir."""
        flow, log = FLOWS[name], self.root / f"log-{next(self._logs)}-{name}.txt"
        command = [sys.executable, "-m", f"jaxnas.experiments.{flow.binary}", *flow.arguments]
        together: list[list[str]] = [[]]
        if flow.processes > 1:
            with socket.socket() as free:
                free.bind(("localhost", 0))
                shared = [f"--coordinator=localhost:{free.getsockname()[1]}", f"--processes={flow.processes}"]
            together = [[*shared, f"--process={index}"] for index in range(flow.processes)]
        # A kill may leave a part of an entry in the cache of programs: it is the drill's own.
        own = {"JAX_COMPILATION_CACHE_DIR": str(self.root / "programs"), "PYTHONPATH": str(ROOT)}
        with open(log, "wb") as file:
            common = dict(cwd=self.root, stdout=file, stderr=file, env=os.environ | own)
            every = [[*command, f"--workdir={workdir}", *more] for more in together]
            return Run([subprocess.Popen(one, **common) for one in every], log)

    def fresh(self, name: str, label: str) -> pathlib.Path:
        """A workdir in which a flow can begin."""
        workdir, after = self.root / label / name, FLOWS[name].after
        shutil.rmtree(workdir, ignore_errors=True)
        if after:
            shutil.copytree(self.undisturbed(after), workdir)
        workdir.mkdir(parents=True, exist_ok=True)
        return workdir

    def undisturbed(self, name: str) -> pathlib.Path:
        """The workdir of a flow that nothing disturbed; it runs when it is first asked for."""
        if name not in self.seconds:
            workdir, begun = self.fresh(name, "undisturbed"), time.monotonic()
            code, text = self.start(name, workdir).finish()
            if code:
                raise RuntimeError(f"{name} ends with {code} although nothing disturbed it:\n{text}")
            self.seconds[name] = time.monotonic() - begun
            print(f"{name}: {self.seconds[name]:.0f} s undisturbed", flush=True)
        return self.root / "undisturbed" / name

    def interrupted(self, name: str, label: str, number: int = signal.SIGKILL) -> tuple[pathlib.Path, int]:
        """A workdir in which a flow was ended after some writes, and the exit status."""
        workdir, flow = self.fresh(name, label), FLOWS[name]
        run = self.start(name, workdir)
        run.writes(workdir / flow.folder, flow.writes[0], 12 if SAVES in flow.writes else 3)
        run.end(number, self.random)
        return workdir, run.finish()[0]

    def judge(
        self, fault: str, name: str, workdir: pathlib.Path, what: str, may_say: bool = False, unread: str = ""
    ) -> bool:
        """Runs a flow to its end and enters how it ended; whether that was with a message.

        A file that the run need not read may stay as it was, if it is named.
        """
        before = (workdir / unread).read_bytes() if unread else b""
        code, text = self.start(name, workdir).finish()
        row, wrong = self.row(fault, name), ""
        said = may_say and code == 2 and "error: " in text and "Traceback" not in text
        if code == 0 and "Traceback" not in text:
            different = differences(workdir, self.undisturbed(name))
            kept = unread in different and (workdir / unread).is_file()
            if kept and (workdir / unread).read_bytes() == before:
                different.remove(unread)
            wrong = f"ends with other {', '.join(different)}" if different else ""
        elif not said:
            wrong = f"status {code}: {text[-800:]}"
        row.times, row.said, row.equal = row.times + 1, row.said + said, row.equal + (not said and not wrong)
        row.neither += [f"{what}: {wrong}"] if wrong else []
        message = text[text.rindex("error: ") :].strip() if said else "equal"
        print(f"{fault}, {name}, {what}: {wrong or message}", flush=True)
        return said


def kills(drill: Drill, names: list[str]) -> None:
    """Chains of up to six kills, flow after flow, until there were as many as were asked for."""
    random, total, chain, inside = drill.random, 0, 0, 0
    while total < _KILLS.value and chain < 2 * _KILLS.value:  # A run may be at its end before its kill.
        name, chain = names[chain % len(names)], chain + 1
        drill.undisturbed(name)
        flow, workdir = FLOWS[name], drill.fresh(name, "kills")
        folder, done, seen = workdir / flow.folder, [], set()
        while len(done) < 6 and total + len(done) < _KILLS.value:
            run, moment = drill.start(name, workdir), str(random.choice(["random", *flow.writes]))
            if moment == "random":
                time.sleep(random.uniform(0.2, 0.8) * drill.seconds[name])
            else:  # as it begins, or a little behind it
                run.writes(folder, moment, int(random.integers(1, 6 if moment in OFTEN else 3)))
                time.sleep(random.choice([0, random.uniform(0, 0.3)]))
            reached = run.goes_on()
            run.end(signal.SIGKILL, random)
            run.finish()
            if not reached:
                break  # the run was at its end, and its chain too
            left = set(changes(workdir, "**/*tmp*"))
            inside, seen, done = inside + bool(left - seen), left, [*done, moment]
        total += len(done)
        if done:
            drill.judge("chain of kills", name, workdir, f"{len(done)} kills at {', '.join(done)}")
            drill.row("kills", name).times += len(done)
        print(f"{total} kills so far, and behind {inside} of them there was an unfinished write", flush=True)


def sigterm(drill: Drill, names: list[str]) -> None:
    """A training saves and ends with 143; the others end at once, which a shell calls 143 too."""
    for name in names:
        workdir, code = drill.interrupted(name, "sigterm", signal.SIGTERM)
        drill.judge("SIGTERM", name, workdir, "started again")
        if code != (143 if SAVES in FLOWS[name].writes else -signal.SIGTERM):
            drill.row("SIGTERM", name).neither.append(f"SIGTERM ended it with {code}")


def mounted(folder: pathlib.Path, options: str) -> bool:
    """Mounts a file system in memory, or mounts it anew; whether that is allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return shutil.which("mount") is not None and not subprocess.run(command, check=False).returncode


def disk(drill: Drill, names: list[str], fault: str) -> None:
    """A disk that is full before the end, or read-only, and then is not."""
    for name in names:
        before, after = drill.fresh(name, "disk-start"), drill.undisturbed(name)
        low, high = (
            sum(512 * path.stat().st_blocks for path in workdir.rglob("*") if path.is_file())
            for workdir in (before, after)
        )
        full, place = [f"size={low + int(part * (high - low))}" for part in (0.1, 0.6)], drill.root / "disk"
        for options in full if fault == "disk full" else ["ro"]:
            if not mounted(place, "size=1g"):
                print(f"{fault}, {name}: not tried, since mounting is not allowed here", flush=True)
                drill.row(fault, name)
                continue
            try:
                workdir = shutil.copytree(before, place / name)
                if not mounted(place, f"remount,{options}"):
                    raise RuntimeError(f"{place} could not be mounted anew with {options}")
                said = drill.judge(fault, name, workdir, options, may_say=True)
                if not said and options in ("ro", full[0]):
                    drill.row(fault, name).neither.append(f"{options}: ended as if there were no fault")
                if said:
                    mounted(place, "remount,rw,size=1g")
                    drill.judge(f"{fault}, then mended", name, workdir, "started again")
            finally:
                subprocess.run(["umount", str(place)], check=True)


def damage(drill: Drill, names: list[str]) -> None:
    """One file of each kind of an interrupted run is damaged; a message is as good as the same end."""
    for name in names:
        workdir, _ = drill.interrupted(name, "damage")
        own = {*(workdir / FLOWS[name].folder).rglob("*"), *workdir.glob("result.json")}
        found = sorted(path for path in own if path.is_file() and path.name != ".lock")
        kinds: dict[str, list[pathlib.Path]] = {}
        for path in (path.relative_to(workdir) for path in found):
            kinds.setdefault(re.sub(r"[0-9a-f]{8,}|\d+", "N", str(path)), []).append(path)
        for kind, paths in kinds.items():
            broken = drill.root / "damaged" / name
            shutil.rmtree(broken, ignore_errors=True)
            shutil.copytree(workdir, broken)
            target = broken / drill.random.choice([str(path) for path in paths])
            data = bytearray(target.read_bytes())
            flipped = bytearray(data)
            if data:
                flipped[drill.random.integers(len(data))] ^= 1 << int(drill.random.integers(8))
            ways = {"emptied": b"", "cut short": data[: len(data) // 2], "a flipped bit": flipped}
            way = drill.random.choice(list(ways))
            target.write_bytes(ways[way])
            unread = str(target.relative_to(broken))
            drill.judge("damaged file", name, broken, f"{kind}, {way}", may_say=True, unread=unread)


def clock(drill: Drill, names: list[str]) -> None:
    """The files of an interrupted run are a year younger than now, as after a clock was set back."""
    for name in names:
        workdir, _ = drill.interrupted(name, "clock")
        for path in workdir.rglob("*"):
            os.utime(path, (time.time() + 365 * 86_400,) * 2)
        drill.judge("clock set back", name, workdir, "files of the next year")


def two_runs(drill: Drill, names: list[str]) -> None:
    """A second run in a workdir is refused, and the first one goes on to its end."""
    for name in names:
        workdir, flow = drill.fresh(name, "two"), FLOWS[name]
        first = drill.start(name, workdir)
        first.writes(workdir / flow.folder, flow.writes[0], 1)
        first.end(signal.SIGSTOP, drill.random)  # so that it is not at its end before the second one begins
        code, text = drill.start(name, workdir).finish()
        first.end(signal.SIGCONT, drill.random)
        row = drill.row("second run", name)
        refused = code == 2 and "in use by another run" in text
        row.times, row.said = row.times + 1, row.said + refused
        row.neither += [] if refused else [f"the second run ended with {code}: {text[-300:]}"]
        first.finish()
        drill.judge("first of two runs", name, workdir, "started again")


def table(rows: dict[tuple[str, str], Row]) -> str:
    """The rows as a table of Markdown."""
    lines = ["| fault | flow | times | ended equal | said what is wrong | neither |", "|---" * 6 + "|"]
    for (fault, name), row in rows.items():
        figures = ("", "", "") if fault == "kills" else (row.equal, row.said, len(row.neither))
        lines.append(f"| {fault} | {name} | {row.times} | {' | '.join(map(str, figures))} |")
    return "\n".join(lines)


FAULTS = {
    "kills": kills,
    "sigterm": sigterm,
    "full": functools.partial(disk, fault="disk full"),
    "readonly": functools.partial(disk, fault="read-only disk"),
    "damage": damage,
    "clock": clock,
    "two_runs": two_runs,
}


def main() -> int:
    only, names = _ONLY.value or list(FAULTS), _FLOWS.value
    for given, known in ((only, FAULTS), (names, FLOWS)):
        if unknown := [one for one in given if one not in known]:
            raise ConfigError(f"{', '.join(unknown)} is not known; there are {', '.join(known)}.")
    logging.set_verbosity(logging.ERROR)
    root, begun = pathlib.Path(_WORKDIR.value).absolute(), time.monotonic()
    if root.exists() and any(root.iterdir()) and not (root / MARK).is_file():
        raise ConfigError(f"--workdir={root} holds other files, which would be lost. Take a new folder.")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    (root / MARK).touch()
    lines = [f"{a},{b},{a + b / 7}" for a in range(9) for b in range(9)]
    (root / "grid.csv").write_text("\n".join(["left,right,score", *lines]) + "\n")
    drill, alone = Drill(root, _SEED.value), [name for name in names if FLOWS[name].processes == 1]
    try:
        for fault in only:
            FAULTS[fault](drill, names if fault in ("kills", "sigterm") else alone)
    except KeyboardInterrupt:
        print("ended by Ctrl-C")
    print(table(drill.rows), f"{(time.monotonic() - begun) / 60:.0f} minutes, seed {_SEED.value}", sep="\n")
    wrong = [f"{fault}, {name}: {one}" for (fault, name), row in drill.rows.items() for one in row.neither]
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    binary.run(main)

"""The same training on other numbers of devices and processes: how far weights and losses differ.

  python -m experiments.benchmarks.devices --workdir=runs/devices

A small supernet on digits (`experiments/drill/configs.py`, AdamW, 60 steps) is trained once on one device.
Each row trains it on simulated CPU devices, shared by `model_devices`, of one or several processes. A row
with an arrow begins as on its left; SIGTERM stops it behind some checkpoint, and it goes on as on its right.
Printed is a table of the largest difference of a weight, over the largest weight of its array, and of a loss
of the records, over that loss.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np
from absl import flags, logging

from experiments import binary
from experiments.drill.contents import arrays
from jaxnas import files

_WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the runs, which is emptied.", required=True)
_ROWS = flags.DEFINE_list("rows", None, "Numbers of rows, from 0, in this order; by default all.")
_ROOT = pathlib.Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a training runs on; devices are those of all processes together."""

    devices: int
    model: int = 1
    processes: int = 1

    def __str__(self) -> str:
        return f"{self.devices} / {self.model} / {self.processes}"


ALONE = Setting(1)
ROWS = (
    (Setting(2),),
    (Setting(8),),
    (Setting(8, model=2),),
    (Setting(8, model=4),),
    (Setting(8, processes=2),),
    (Setting(8, processes=4),),
    (Setting(8, model=4, processes=2),),
    (Setting(8, model=4), Setting(8, model=2), ALONE),
    (Setting(8, model=2, processes=4), Setting(8, model=4, processes=2), ALONE),
)


def start(setting: Setting, workdir: pathlib.Path, log: Any) -> list[subprocess.Popen]:
    """The processes of a training."""
    config = f"--config={_ROOT / 'experiments' / 'drill' / 'configs.py'}:one_shot"
    command = [sys.executable, "-m", "experiments.train_supernet", config, f"--workdir={workdir}"]
    command.append(f"--set=training.model_devices={setting.model}")
    if setting.processes > 1:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        command += [f"--coordinator={address}", f"--processes={setting.processes}"]
    count = setting.devices // setting.processes
    flags_of_xla = f"--xla_backend_optimization_level=0 --xla_force_host_platform_device_count={count}"
    own = {"XLA_FLAGS": flags_of_xla, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(_ROOT)}
    common = dict(stdout=log, stderr=log, env=os.environ | own)
    every = [
        [*command, f"--process={i}"] if setting.processes > 1 else command for i in range(setting.processes)
    ]
    return [subprocess.Popen(one, **common) for one in every]


def last_step(workdir: pathlib.Path) -> int:
    """Of the checkpoints; 0 if there is none."""
    return max((int(step.name) for step in workdir.glob("checkpoints/*") if step.name.isdigit()), default=0)


def train(settings: tuple[Setting, ...], workdir: pathlib.Path) -> list[int]:
    """Trains by one setting after another; the steps at which they were stopped."""
    stops, log = [], workdir.with_suffix(".txt")
    for number, setting in enumerate(settings):
        with open(log, "ab") as file:
            started = start(setting, workdir, file)
        if number + 1 < len(settings):
            least = 15 * (number + 1)
            while last_step(workdir) < least and all(one.poll() is None for one in started):
                time.sleep(0.01)
            started[0].send_signal(signal.SIGTERM)
        codes = {one.wait() for one in started}
        if codes != {143 if number + 1 < len(settings) else 0}:
            raise RuntimeError(f"{setting} ends with {codes}; see {log}")
        stops.append(last_step(workdir))
    return stops[:-1]


def weights(workdir: pathlib.Path) -> Any:
    """The parameters of the last checkpoint."""
    return arrays(workdir / "checkpoints" / str(last_step(workdir)))["variables"]["params"]


def losses(workdir: pathlib.Path) -> np.ndarray:
    """Of the records of the training, float64 [records]."""
    return np.array([line["loss"] for line in files.read_lines(workdir / "metrics.jsonl") if "loss" in line])


def difference(one: Any, other: Any) -> float:
    """The largest difference of two trees of arrays, over the largest value of each array of the other."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in pairs)


def main() -> None:
    logging.set_verbosity(logging.ERROR)  # Orbax says how each file is read.
    root = pathlib.Path(_WORKDIR.value).absolute()
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    train((ALONE,), root / "alone")
    expected, expected_losses = weights(root / "alone"), losses(root / "alone")
    print("| devices / `model_devices` / processes | stopped behind step | weights | losses |")
    print("|---|---|---|---|", flush=True)
    for number in range(len(ROWS)) if _ROWS.value is None else map(int, _ROWS.value):
        row = ROWS[number]
        stops = train(row, root / str(number))
        worst = difference(weights(root / str(number)), expected)
        apart = float(np.max(np.abs(losses(root / str(number)) / expected_losses - 1)))
        cells = " → ".join(map(str, row)), ", ".join(map(str, stops)) or "-", f"{worst:.1e}", f"{apart:.1e}"
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    binary.run(main)

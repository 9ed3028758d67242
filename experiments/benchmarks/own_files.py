"""Images from a user's own files at their real size: arrays and folders, by a config file and by Python.

  python -m experiments.benchmarks.own_files --data=mnist --source_dir=DIR --workdir=runs/own_files

The images of a known data set are written as files that a user may have: `images.npz`, and a picture for each
image in `pictures/train/<class>/` and `pictures/test/<class>/`. The same small vision transformer is then
trained and searched four times: from either form, through `--config=my_config.py` and through Python. This is
a check that all ways work and agree, and no claim about the data.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any

import numpy as np
from absl import flags
from PIL import Image

from experiments import binary
from experiments.benchmarks import own_files_config
from jaxnas import data, runs, tasks, training
from jaxnas.report import result

_DATA = flags.DEFINE_enum("data", "mnist", ["mnist", "fashion_mnist", "cifar10"], "Whose images.")
_SOURCE = flags.DEFINE_string("source_dir", None, "Where its original files are.", required=True)
_PREPARED = flags.DEFINE_string("data_dir", None, "Where prepared data are.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where files and runs go.", required=True)


def write_files(dataset: data.Dataset, folder: pathlib.Path) -> None:
    """Writes the images to train and to test as `images.npz` and as pictures, and the config beside them."""
    arrays = {}
    for role in ("train", "test"):
        split = dataset.splits[role]
        labels = split.labels
        images = np.asarray(split.images[np.arange(len(labels))])  # uint8 [n, H, W, C]
        arrays |= {f"{role}_x": images, f"{role}_y": labels}
        for label in range(dataset.num_classes):
            (folder / "pictures" / role / str(label)).mkdir(parents=True, exist_ok=True)
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            picture = Image.fromarray(np.squeeze(image))  # [H, W] or [H, W, 3]
            picture.save(folder / "pictures" / role / str(label) / f"{number:05}.png")
    np.savez(folder / "images.npz", **arrays)
    shutil.copyfile(own_files_config.__file__, folder / "my_config.py")


def by_python(form: str, folder: pathlib.Path, workdir: pathlib.Path) -> None:
    """Trains and searches in this process."""
    task = tasks.Images(data=own_files_config.read(form, folder))
    own = own_files_config.config(form, task)
    trained = training.fit(task, own.network, own.training, workdir=workdir)
    runs.search_and_finish(task, own.network, trained.variables, own.search, workdir=workdir)


def by_config(form: str, folder: pathlib.Path, workdir: pathlib.Path) -> None:
    """Does the same through the binaries."""
    for name in ("train_supernet", "search"):
        flag = f"--config={folder / 'my_config.py'}:{form}"
        command = [sys.executable, "-m", f"experiments.{name}", flag, f"--workdir={workdir}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Prints a line for each form and way."""
    folder = pathlib.Path(_WORKDIR.value).absolute() / _DATA.value
    if not (folder / "my_config.py").exists():
        where = dict(data_dir=_PREPARED.value, source_dir=_SOURCE.value)
        write_files(data.load(_DATA.value, search_fraction=0.0, **where), folder)
    for form in ("arrays", "folder"):
        for way, run in (("python", by_python), ("config", by_config)):
            workdir, start = folder / f"{form}-{way}", time.perf_counter()
            run(form, folder, workdir)
            report = result.read(workdir)
            line: dict[str, Any] = {"data": _DATA.value, "form": form, "way": way}
            line["parameters"] = report.found.costs["params"]
            for one in (report.found, *report.networks):
                if one.name in (report.found.name, "random search", "largest"):
                    line[one.name] = one.metrics["test"]["accuracy"]
            print(json.dumps(line | {"minutes": round((time.perf_counter() - start) / 60, 1)}), flush=True)


if __name__ == "__main__":
    binary.run(main)

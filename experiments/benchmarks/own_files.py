"""Images from a user's own files at their real size: arrays and folders, by a config file and by Python.

  python -m experiments.benchmarks.own_files --data=mnist --source_dir=DIR --workdir=runs/own_files

The images of a known data set are written as files that a user may have: `images.npz`, and a picture for each
image in `pictures/train/<class>/` and `pictures/test/<class>/`. The same small vision transformer is then
trained and searched four times: from either form, through `--config=my_config.py` and through Python. A check
that all ways work and agree, and no claim about the data.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import time
from typing import Any

import numpy as np
from absl import app, flags
from PIL import Image

import jaxnas
from experiments.config import Config
from jaxnas import data, runs, search, supernets, tasks, training
from jaxnas.report import result

_DATA = flags.DEFINE_enum("data", "mnist", ["mnist", "fashion_mnist", "cifar10"], "Whose images.")
_SOURCE = flags.DEFINE_string("source_dir", None, "Where its original files are.", required=True)
_PREPARED = flags.DEFINE_string("data_dir", None, "Where prepared data are.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where files and runs go.", required=True)

_CONFIG = """from experiments.benchmarks import own_files

CONFIGS = own_files.configs({folder!r})
"""


def write_files(dataset: data.Dataset, folder: pathlib.Path) -> None:
    """Writes the images to train and to test as `images.npz` and as pictures."""
    arrays = {}
    for role in ("train", "test"):
        split = dataset.splits[role]
        labels = split.labels
        images = np.asarray(split.images[np.arange(len(labels))])  # uint8 [n, H, W, C]
        arrays |= {f"{role}_images": images, f"{role}_labels": labels}
        for label in range(dataset.num_classes):
            (folder / "pictures" / role / str(label)).mkdir(parents=True, exist_ok=True)
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            picture = Image.fromarray(np.squeeze(image))  # [H, W] or [H, W, 3]
            picture.save(folder / "pictures" / role / str(label) / f"{number:05}.png")
    np.savez(folder / "images.npz", **arrays)


def configs(folder: str) -> dict[str, Config]:
    """A config for each form of the files."""
    stored = np.load(pathlib.Path(folder) / "images.npz")
    names = [f"{role}_{what}" for role in ("train", "test") for what in ("images", "labels")]
    forms = {
        "arrays": data.from_arrays(*(stored[name] for name in names)),
        "folder": data.from_folder(pathlib.Path(folder) / "pictures"),
    }
    return {name: config(name, tasks.Images(data=given)) for name, given in forms.items()}


def config(name: str, task: tasks.Images) -> Config:
    """A vision transformer of up to 4 layers on patches of a quarter of the image's height."""
    height = task.dataset.image_shape[0]
    space = jaxnas.spaces.vit(embed_dim=(32, 64, 96), depth=(2, 3, 4), num_heads=(2, 4), mlp_ratio=(1.0, 2.0))
    net = supernets.ViT(
        space,
        image_size=height,
        patch_size=height // 4,
        num_classes=task.dataset.num_classes,
        head_dim=16,
        init_std=0.1,
    )
    steps = training.Training(
        steps=800, batch_size=128, learning_rate=2e-3, warmup_steps=50, steps_per_call=10
    )
    strategy = search.Evolution(space, evaluations=60, population=20, parents=5, mutations=10, crossovers=10)
    settings = runs.Search(strategy=strategy, most_share=0.6, limit=4)
    return Config(name=name, task=task, network=net, training=steps, search=settings)


def by_python(form: str, folder: pathlib.Path, workdir: pathlib.Path) -> None:
    """Trains and searches in this process."""
    own = configs(str(folder))[form]
    trained = training.fit(own.task, own.network, own.training, workdir=workdir)
    runs.search_and_finish(own.task, own.network, trained.variables, own.search, workdir=workdir)


def by_config(form: str, folder: pathlib.Path, workdir: pathlib.Path) -> None:
    """Does the same through the binaries."""
    path = folder / "my_config.py"
    path.write_text(_CONFIG.format(folder=str(folder)))
    for binary in ("train_supernet", "search"):
        flag = f"--config={path}:{form}"
        subprocess.run(
            [sys.executable, "-m", f"experiments.{binary}", flag, f"--workdir={workdir}"],
            check=True,
            stdout=subprocess.DEVNULL,
        )


def main(_: list[str]) -> None:
    """Prints a line for each form and way."""
    folder = pathlib.Path(_WORKDIR.value).absolute() / _DATA.value
    if not (folder / "images.npz").exists():
        given = data.load(
            _DATA.value, data_dir=_PREPARED.value, source_dir=_SOURCE.value, search_fraction=0.0
        )
        write_files(given, folder)
    for form in ("arrays", "folder"):
        for way, run in (("python", by_python), ("config", by_config)):
            workdir, start = folder / f"{form}-{way}", time.perf_counter()
            run(form, folder, workdir)
            report = result.read(workdir)
            line: dict[str, Any] = {
                "data": _DATA.value,
                "form": form,
                "way": way,
                "found": report.found.costs["params"],
            }
            for one in (report.found, *report.networks):
                if one.name in (report.found.name, "random search", "largest"):
                    line[one.name] = one.metrics["test"]["accuracy"]
            print(json.dumps(line | {"minutes": round((time.perf_counter() - start) / 60, 1)}), flush=True)


if __name__ == "__main__":
    app.run(main)

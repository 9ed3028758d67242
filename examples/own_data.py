"""Data of your own: arrays, a folder of images, a text, and labeled sentences, each in one call.

    python examples/own_data.py --workdir=runs/own_data

The workdir gets files as you may have them, and my_config.py, which reads the same through the binaries.
"""

import argparse
import pathlib
import runpy
import shutil
import sys

import numpy as np
import sklearn.cluster
import sklearn.datasets
import sklearn.linear_model
from my_config import network_of
from PIL import Image

from jaxnas import data, tasks, training

EXAMPLES = pathlib.Path(__file__).parent
BOOKS = ("iris", "wine", "diabetes", "breast_cancer", "digits", "linnerud")


def write_files(folder):
    """Writes pictures/<class>/<number>.png, book.txt and sentences.tsv, of what scikit-learn has."""
    for name in ("china", "flower"):
        (folder / "pictures" / name).mkdir(parents=True, exist_ok=True)
        picture = sklearn.datasets.load_sample_image(f"{name}.jpg")  # [427, 640, 3]
        for number, (y, x) in enumerate(np.ndindex(6, 10)):
            tile = picture[64 * y : 64 * y + 64, 64 * x : 64 * x + 64]
            Image.fromarray(tile).save(folder / "pictures" / name / f"{number:02}.png")
    text = "\n".join(getattr(sklearn.datasets, f"load_{name}")().DESCR for name in BOOKS)
    (folder / "book.txt").write_text(text, encoding="utf-8")
    with open(folder / "sentences.tsv", "w", encoding="utf-8") as file:
        file.write("text\tlabel\n")
        for module in (sklearn.cluster, sklearn.datasets, sklearn.linear_model):
            lines = "\n".join(str(getattr(module, name).__doc__) for name in module.__all__).splitlines()
            file.writelines(f"{x.strip()}\t{module.__name__}\n" for x in lines if len(x.split()) > 8)


def main(folder):
    """Trains a small network on each."""
    write_files(folder)
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    digits = data.from_arrays(images.reshape(-1, 8, 8), labels)  # any numbers [n, H, W] or [n, H, W, C]
    pictures = data.from_folder(folder / "pictures", size=16)  # class/image.png, or train/class/image.png
    book = data.from_text(folder / "book.txt", tokenizer="byte")  # or "word", or "bpe:8000"
    sentences = data.from_tsv(folder / "sentences.tsv", text="text", label="label")
    for task in (
        tasks.Images(data=digits),
        tasks.Images(data=pictures, flip=True),
        tasks.Language(data=book, length=32),
        tasks.Text(data=sentences),
    ):
        net = network_of(task)
        trained = training.fit(task, net, training.Training(steps=150, batch_size=16, learning_rate=1e-2))
        metric = task.metrics[0].name
        value = training.make_evaluator(task, net, "search")(trained.variables, net.space.largest())[metric]
        print(f"{task.name}: {dict(task.sizes)} {task.examples}, {metric} on search {float(value):.3f}")

    # The same through a binary, here for the sentences; the other names are digits, pictures and book.
    shutil.copy(EXAMPLES / "my_config.py", folder)
    sys.argv[1:] = [f"--config={folder}/my_config.py:sentences", f"--workdir={folder}/run"]
    runpy.run_module("jaxnas.experiments.train_supernet", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs/own_data"))
    main(parser.parse_args().workdir.absolute())

"""The config of `own_files`. It stands beside a user's images: `images.npz`, and `pictures/` by class.

python -m experiments.train_supernet --config=my_config.py:folder --workdir=runs/folder
"""

import pathlib

import numpy as np

from experiments.config import Config
from jaxnas import data, runs, search, spaces, supernets, tasks, training

HERE = pathlib.Path(__file__).parent


def read(form, folder):
    """The images of a folder in one of their two forms, which hold the same."""
    if form == "folder":
        return data.from_folder(folder / "pictures")
    stored = np.load(folder / "images.npz")
    return data.from_arrays(*(stored[f"{role}_{part}"] for role in ("train", "test") for part in ("x", "y")))


def config(name, task):
    """A vision transformer of up to 4 layers on 4 x 4 patches of the image."""
    height = task.dataset.image_shape[0]
    space = spaces.vit(embed_dim=(32, 64, 96), depth=(2, 3, 4), num_heads=(2, 4), mlp_ratio=(1.0, 2.0))
    classes = task.dataset.num_classes
    sizes = dict(image_size=height, patch_size=height // 4, num_classes=classes, head_dim=16)
    settings = training.Training(
        steps=800, batch_size=128, learning_rate=2e-3, warmup_steps=50, steps_per_call=10
    )
    strategy = search.Evolution(space, evaluations=60, population=20, parents=5, mutations=10, crossovers=10)
    return Config(
        name=name,
        task=task,
        network=supernets.ViT(space, init_std=0.1, **sizes),
        training=settings,
        search=runs.Search(runs.ByStrategy(strategy), most_share=0.6, limit=4),
    )


FORMS = ("arrays", "folder") if (HERE / "images.npz").exists() else ()
CONFIGS = {form: config(form, tasks.Images(data=read(form, HERE))) for form in FORMS}

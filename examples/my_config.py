"""Configs on data of your own.

Each is trained by its name, and then searched:

jaxnas train_supernet --config=my_config.py:pictures --workdir=runs/pictures
jaxnas search --config=my_config.py:pictures --workdir=runs/pictures
"""

import pathlib

import flax.linen as nn
import jax.numpy as jnp
import sklearn.datasets

from jaxnas import Choice, Space, data, elastic, runs, spaces, supernets, tasks, training
from jaxnas.experiments import Config

HERE = pathlib.Path(__file__).parent


class Mlp(nn.Module):
    """Two hidden layers of searched widths, on pixels or on the mean of the embeddings of words."""

    space: Space
    classes: int
    words: int = 0

    @nn.compact
    def __call__(self, inputs, arch=None, *, train=False):
        """Maps images or texts to logits [B, classes]."""
        decisions = elastic.Decisions(self.space, arch, initializing=self.is_initializing())
        if self.words:
            embed = elastic.Embedding(self.words, name="embedding")(inputs["tokens"], elastic.fixed(32))
            mask = inputs["mask"][..., None].astype(embed.dtype)
            x = jnp.sum(embed * mask, axis=1) / jnp.sum(mask, axis=1)  # [B, 32]
        else:
            x = inputs.reshape(inputs.shape[0], -1)  # [B, H * W * C]
        width = elastic.fixed(x.shape[-1])
        for i in range(2):
            hidden = elastic.width(int, decisions["hidden", i])
            x, width = nn.relu(elastic.Dense(name=f"hidden_{i}")(x, width, hidden)), hidden
        return elastic.Dense(name="out")(x, width, elastic.fixed(self.classes))


def network_of(task):
    """A small network that fits a task."""
    if isinstance(task, tasks.Language):
        sizes = dict(width=32, num_heads=2, head_dim=16, hidden=64, memory_length=32)
        words = task.dataset.vocabulary.size
        return supernets.TransformerXL(
            spaces.par(2), vocabulary=words, scan_blocks=True, dtype=jnp.float32, **sizes
        )
    space = Space(hidden=Choice(16, 32, 64).repeat(2))
    words = task.dataset.vocabulary.size if isinstance(task, tasks.Text) else 0
    return Mlp(space, classes=task.dataset.num_classes, words=words)


def config(name, task):
    """The config of a task."""
    settings = training.Training(steps=150, batch_size=16, learning_rate=1e-2)
    search = runs.Search(budget="params", most_share=0.8)
    return Config(name=name, task=task, network=network_of(task), training=settings, search=search)


images, labels = sklearn.datasets.load_digits(return_X_y=True)
TASKS = {"digits": tasks.Images(data=data.from_arrays(images.reshape(-1, 8, 8), labels))}
# The others are there if their files lie beside this one, where own_data.py puts some.
if (HERE / "pictures").is_dir():
    TASKS["pictures"] = tasks.Images(data=data.from_folder(HERE / "pictures", size=16), flip=True)
if (HERE / "book.txt").is_file():
    TASKS["book"] = tasks.Language(data=data.from_text(HERE / "book.txt"), length=32)
if (HERE / "sentences.tsv").is_file():
    TASKS["sentences"] = tasks.Text(data=data.from_tsv(HERE / "sentences.tsv"))
CONFIGS = {name: config(name, task) for name, task in TASKS.items()}

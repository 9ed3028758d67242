"""A convolutional network of your own: kernel sizes, expansions, width and depth, with batch normalization.

    python examples/own_convolutions.py --workdir=runs/own_convolutions

Batch statistics belong to an architecture. They are made anew before it is scored, extracted or exported.
"""

import argparse

import flax.linen as nn
import sklearn.datasets

from jaxnas import Choice, Space, data, elastic, runs, search, tasks, training

SPACE = Space(
    width=Choice(8, 16),
    depth=Choice(1, 2),
    kernel=Choice(1, 3).repeat(2, active="depth"),
    expansion=Choice(1, 2).repeat(2, active="depth"),
)


class MBConv(nn.Module):
    """An inverted residual block: expand, depthwise, project."""

    train: bool

    @nn.compact
    def __call__(self, x, width, hidden, size, gate):
        one = elastic.fixed(1)
        y = elastic.Conv(use_bias=False, name="expand")(x, width, hidden, one, gate=gate)
        y = nn.relu(elastic.BatchNorm(name="norm_in")(y, hidden, train=self.train, gate=gate))
        y = elastic.Conv(depthwise=True, use_bias=False, name="depthwise")(y, hidden, hidden, size, gate=gate)
        y = nn.relu(elastic.BatchNorm(name="norm")(y, hidden, train=self.train, gate=gate))
        y = elastic.Conv(use_bias=False, name="project")(y, hidden, width, one, gate=gate)
        return elastic.BatchNorm(name="norm_out")(y, width, train=self.train, gate=gate)


class Network(nn.Module):
    space: Space

    @nn.compact
    def __call__(self, images, arch=None, *, train=False):
        decisions = elastic.Decisions(self.space, arch, initializing=self.is_initializing())
        width, channels = elastic.width(int, decisions["width"]), elastic.fixed(1)
        x = elastic.Conv((2, 2), use_bias=False, name="stem")(images, channels, width, elastic.fixed(3))
        x = nn.relu(elastic.BatchNorm(name="stem_norm")(x, width, train=train))
        for i in range(self.space["depth"].options[-1]):
            gate = elastic.width(lambda depth, i=i: int(i < depth), decisions["depth"])
            hidden = elastic.width(lambda size, n: size * n, decisions["width"], decisions["expansion", i])
            size = elastic.width(int, decisions["kernel", i])
            x = x + MBConv(train, name=f"block_{i}")(x, width, hidden, size, gate)
        return elastic.Dense(name="head")(x.mean(axis=(1, 2)), width, elastic.fixed(10))


def main():
    """Trains, searches, extracts and exports it on the digits that scikit-learn carries."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workdir", default="runs/own_convolutions")
    digits = sklearn.datasets.load_digits()
    images, labels = digits.images.astype("uint8"), digits.target
    task = tasks.Images(data=data.from_arrays(images[:1280], labels[:1280], images[1280:], labels[1280:]))
    trained = training.fit(task, Network(SPACE), training.Training(steps=200, learning_rate=1e-2))
    settings = runs.Search(runs.ByStrategy(search.Evolution(SPACE, evaluations=16)), most_share=0.6)
    workdir = parser.parse_args().workdir
    result = runs.search_and_finish(task, Network(SPACE), trained.variables, settings, runs.Lab(workdir))
    print(result.found.architecture, result.found.metrics["test"])
    print(f"open {workdir}/report.html; the exported network is in {workdir}/subnet")


if __name__ == "__main__":
    main()

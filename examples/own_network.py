"""A network of your own, an MLP-Mixer of elastic layers: trained, searched, extracted and exported.

python examples/own_network.py --workdir=runs/own_network
"""

import argparse

import flax.linen as nn
import jax.numpy as jnp
import sklearn.datasets

from jaxnas import Choice, Space, data, elastic, runs, search, tasks, training

LAYERS = 2
SPACE = Space(
    width=Choice(8, 16),
    depth=Choice(1, LAYERS),
    mix=Choice(8, 16).repeat(LAYERS, active="depth"),
    ratio=Choice(1, 2).repeat(LAYERS, active="depth"),
)


def mix(x, kernel_in, bias, kernel_out):
    """An MLP over the tokens of x [B, T, E]; an operation is a plain function of its active parts."""
    hidden = nn.gelu(jnp.einsum("bte,th->bhe", x, kernel_in) + bias[None, :, None])
    return jnp.einsum("bhe,ht->bte", hidden, kernel_out)


class MixTokens(nn.Module):
    @nn.compact
    def __call__(self, x, width, hidden, gate):
        init, tokens = nn.initializers.lecun_normal(), elastic.fixed(x.shape[1])
        shapes = {"in": (tokens, hidden), "bias": (hidden,), "out": (hidden, tokens)}
        inits = {"in": init, "bias": nn.initializers.zeros, "out": init}
        weights = [elastic.parameter(self, name, inits[name], shapes[name], gate=gate) for name in shapes]
        tables = width.table, hidden.table, gate.table
        elastic.record_macs(self, elastic.combine(lambda e, h, on: 2 * x.shape[1] * e * h * on, *tables))
        axes = "batch tokens embed, tokens hidden, hidden, hidden tokens -> batch tokens embed"
        return elastic.run(mix, axes, {"embed": width, "hidden": hidden}, x, *weights, gate=gate)


class Mixer(nn.Module):
    space: Space

    @nn.compact
    def __call__(self, images, arch=None, *, train=False):
        decisions = elastic.Decisions(self.space, arch, initializing=self.is_initializing())
        width = elastic.width(int, decisions["width"])
        x = images.reshape(-1, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4).reshape(-1, 16, 4)  # [B, T, 2 * 2]
        x = elastic.Dense(name="embed")(x, elastic.fixed(4), width)
        for i in range(self.space["depth"].options[-1]):
            gate = elastic.width(lambda depth, i=i: int(i < depth), decisions["depth"])
            tokens = elastic.width(int, decisions["mix", i])
            hidden = elastic.width(
                lambda size, ratio: size * ratio, decisions["width"], decisions["ratio", i]
            )
            x = x + MixTokens(name=f"mix_{i}")(x, width, tokens, gate)
            x = x + elastic.Mlp(name=f"mlp_{i}")(x, width, hidden, gate=gate)
        return elastic.Dense(name="head")(x.mean(axis=1), width, elastic.fixed(10))


def main():
    """Trains, searches, extracts and exports it on the digits that scikit-learn carries."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workdir", default="runs/own_network")
    workdir, digits = parser.parse_args().workdir, sklearn.datasets.load_digits()
    images, labels = digits.images.astype("uint8"), digits.target
    task = tasks.Images(data=data.from_arrays(images[:1280], labels[:1280], images[1280:], labels[1280:]))
    trained = training.fit(task, Mixer(SPACE), training.Training(steps=300, learning_rate=1e-2))
    settings = runs.Search(runs.ByStrategy(search.Evolution(SPACE, evaluations=32)), most_share=0.6)
    result = runs.search_and_finish(task, Mixer(SPACE), trained.variables, settings, runs.Lab(workdir))
    print(result.found.architecture, result.found.metrics["test"])
    print(f"open {workdir}/report.html; the exported network is in {workdir}/subnet")


if __name__ == "__main__":
    main()

"""A network of Flax NNX, a vision transformer, made smaller: `python examples/any_nnx.py`."""

import jax.numpy as jnp
import sklearn.datasets
from flax import nnx

import jaxnas
from jaxnas import Choice, Depth, data, runs, tasks, training
from jaxnas.search import Evolution


class Block(nnx.Module):
    """Attention and an MLP, each added to the stream."""

    def __init__(self, width, heads, hidden, rngs):
        self.norm1, self.norm2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(heads, width, heads * 8, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, hidden, rngs=rngs), nnx.Linear(hidden, width, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class Vit(nnx.Module):
    """A vision transformer of patches of 2x2 pixels."""

    def __init__(self, rngs, width=48, blocks=((6, 96),) * 3):
        self.patches = nnx.Conv(1, width, (2, 2), (2, 2), rngs=rngs)
        self.positions = nnx.Param(0.2 * rngs.params.normal((16, width)))
        self.blocks = nnx.List([Block(width, heads, hidden, rngs) for heads, hidden in blocks])
        self.norm, self.head = nnx.LayerNorm(width, rngs=rngs), nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, images):
        x = self.patches(images)
        x = x.reshape(x.shape[0], 16, -1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(axis=1))


images, labels = sklearn.datasets.load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1)

# From here on it is jaxnas. The table shows the names of the groups of axes.
task = tasks.Images(data=data.from_arrays(images, labels), mixup=0.4)
print(groups := jaxnas.analyze(Vit(nnx.Rngs(0)), inputs=task.inputs))
choices = {"width": Choice(32, 48), "blocks/*/heads": Choice(2, 4, 6), "blocks/*": Depth(2, 3)}
net = jaxnas.supernet(groups, choices | {"blocks/*/hidden": Choice(24, 48, 96)})
settings = training.Training(steps=2500, learning_rate=3e-3, steps_per_call=10)
trained = training.fit(task, net, settings, workdir="runs/any_nnx")
method = runs.ByStrategy(Evolution(net.space, evaluations=100))
search = runs.Search(method, most_share=0.6)  # of the parameters
result = runs.search_and_finish(task, net, trained.variables, search, runs.Lab("runs/any_nnx"))
for one in (result.found, *result.networks):
    print(one.name, int(one.costs["params"]), one.metrics["test"]["accuracy"], one.architecture)


def rebuild(sizes):  # from the sizes of groups to a module of the class above
    kept = [f"blocks/{i}" for i in range(3) if sizes[f"blocks/{i}"]]
    blocks = [(sizes[f"{block}/attention/heads"], sizes[f"{block}/hidden"]) for block in kept]
    return Vit(nnx.Rngs(0), sizes["width"], blocks)


arch = net.space.from_dict(result.found.architecture)
found = jaxnas.extract(net, trained.variables, arch, verify=jnp.asarray(images[:64]) / 16, rebuild=rebuild)
print(type(found.net).__name__, len(found.net.blocks), "blocks, difference", found.error)

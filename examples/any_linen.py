"""A network of Flax Linen, a CNN with batch norm, made smaller. Run it by `python examples/any_linen.py`."""

import flax.linen as nn
import jax
import sklearn.datasets

import jaxnas
from jaxnas import Choice, data, runs, tasks, training


class Cnn(nn.Module):
    """A convolutional network as a tutorial writes it."""

    @nn.compact
    def __call__(self, images, train: bool):
        x = images
        for channels in (16, 32):
            x = nn.Conv(channels, kernel_size=(3, 3), use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
            x = nn.max_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(64)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


images, labels = sklearn.datasets.load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1)
variables = Cnn().init(jax.random.key(0), images[:1], train=False)

# From here on it is jaxnas. The table shows the names of the groups of axes.
task = tasks.Images(data=data.from_arrays(images, labels))
print(groups := jaxnas.analyze(Cnn(), variables, task.inputs))
choices = {"Conv_0/channels": Choice(4, 8, 16), "Conv_1/channels": Choice(8, 16, 32)}
net = jaxnas.supernet(groups, choices | {"Dense_0/hidden": Choice(16, 32, 64)})
settings = training.Training(steps=2000, learning_rate=4e-3, steps_per_call=10)
trained = training.fit(task, net, settings, workdir="runs/any_linen")
search = runs.Search(most_share=0.4)  # of the parameters
result = runs.search_and_finish(task, net, trained.variables, search, runs.Lab("runs/any_linen"))
for one in (result.found, *result.networks):
    print(one.name, int(one.costs["params"]), one.metrics["test"]["accuracy"], one.architecture)

# The folder also holds model.stablehlo, which runs without jaxnas.
small, weights = jaxnas.load_subnet("runs/any_linen/subnet")
print(small.apply(weights, jax.numpy.zeros((5, 8, 8, 1))).shape)

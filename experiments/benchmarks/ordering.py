"""A trained network cut in each width without further training, by what its parts are ordered by.

python -m experiments.benchmarks.ordering
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import sklearn.datasets

import jaxnas
from jaxnas.transform import analyze, order, supernet


class Network(nn.Module):
    """As a tutorial writes it."""

    @nn.compact
    def __call__(self, x):
        for channels in (32, 64):
            x = nn.max_pool(nn.relu(nn.Conv(channels, (3, 3))(x)), (2, 2), (2, 2))
        x = nn.relu(nn.Dense(128)(x.reshape(len(x), -1)))
        return nn.Dense(10)(x)


def loss(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def measure(seed, model, x, y, test, answers):
    rng, variables = np.random.default_rng(seed), model.init(jax.random.key(seed), x[:1])
    optimizer = optax.adam(1e-3)
    step = jax.jit(lambda v, s, x, y: optimizer.update(jax.grad(lambda v: loss(model.apply(v, x), y))(v), s))
    state = optimizer.init(variables)
    for _ in range(40):
        for some in rng.permutation(1400)[:1344].reshape(-1, 64):
            updates, state = step(variables, state, x[some], y[some])
            variables = optax.apply_updates(variables, updates)
    groups = analyze(model, variables, x[:1])
    sizes = {
        g.name: jaxnas.Choice(g.size // 2, g.size * 3 // 4, g.size) for g in groups if g.kind != "kernel"
    }
    net, x, y = supernet(groups, sizes), x[:512], y[:512]
    orders = {"whole, as stored": [variables]}
    orders["random"] = [order(net, variables, by=lambda g, _: rng.random(g.size)) for _ in range(5)]
    orders |= {by: [order(net, variables, [x], by=by)] for by in ("activations", "weights", "contributions")}
    orders["taylor"] = [order(net, variables, [(x, y)], by="taylor", loss=loss)]
    rows = {}
    for name, drawn in orders.items():
        cuts = [[{n: jnp.int32(i) for n in sizes} for i in (2, 1, 0)] for _ in drawn]
        small = [
            [jaxnas.extract(net, v, a, inputs=x[:1]) for a in cut] for v, cut in zip(drawn, cuts, strict=True)
        ]
        right = [[(s.net.apply(s.variables, test).argmax(1) == answers).mean() for s in row] for row in small]
        rows[name] = 100 * np.mean(right, axis=0)
    return rows


if __name__ == "__main__":
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    there = np.random.default_rng(0).permutation(len(images))
    x, y = jnp.float32(images[there]).reshape(-1, 8, 8, 1) / 16, jnp.int32(labels[there])
    seeds = [measure(seed, Network(), x[:1400], y[:1400], x[1400:], y[1400:]) for seed in range(6)]
    for name in seeds[0]:
        found = np.stack([rows[name] for rows in seeds])
        print(
            name, *(f"| {m:.1f} +- {s:.1f}" for m, s in zip(found.mean(0), found.std(0, ddof=1), strict=True))
        )

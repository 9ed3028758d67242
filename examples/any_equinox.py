"""A network of Equinox, a small GPT, on a text of yours: `python examples/any_equinox.py FILE.txt`."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp

import jaxnas
from jaxnas import Choice, Skip, data, runs, tasks, training
from jaxnas.search import Evolution


class Block(eqx.Module):
    """Attention and an MLP, each added to the stream."""

    norm1: eqx.nn.LayerNorm
    norm2: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP

    def __init__(self, width, heads, hidden, key):
        first, second = jax.random.split(key)
        self.norm1, self.norm2 = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
        self.attention = eqx.nn.MultiheadAttention(heads, width, qk_size=16, vo_size=16, key=first)
        self.mlp = eqx.nn.MLP(width, width, hidden, depth=1, activation=jax.nn.gelu, key=second)

    def __call__(self, x):
        y = jax.vmap(self.norm1)(x)
        x = x + self.attention(y, y, y, mask=jnp.tri(len(x), dtype=bool))
        return x + jax.vmap(self.mlp)(jax.vmap(self.norm2)(x))


class Gpt(eqx.Module):
    """A language model: from the tokens of one text, int32 [T], to logits [T, vocabulary]."""

    tokens: eqx.nn.Embedding
    positions: eqx.nn.Embedding
    blocks: list[Block]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, vocabulary, length, key, width=64, blocks=((4, 256),) * 3):
        first, second, last, *keys = jax.random.split(key, 3 + len(blocks))
        self.tokens = eqx.nn.Embedding(vocabulary, width, key=first)
        self.positions = eqx.nn.Embedding(length, width, key=second)
        self.blocks = [Block(width, *sizes, one) for sizes, one in zip(blocks, keys, strict=True)]
        self.norm, self.head = eqx.nn.LayerNorm(width), eqx.nn.Linear(width, vocabulary, key=last)

    def __call__(self, tokens):
        x = jax.vmap(self.tokens)(tokens) + self.positions.weight[: len(tokens)]
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.head)(jax.vmap(self.norm)(x))


text = data.from_text(
    sys.argv[1], held_out=data.HeldOut(test=0.05, validation=0.05, search=0.05)
)  # its bytes
gpt = Gpt(text.vocabulary.size, 64, jax.random.key(0))

# From here on it is jaxnas. The table shows the names of the groups of axes.
task = tasks.Language(data=text, length=64)
print(groups := jaxnas.analyze(gpt, inputs=task.inputs))
choices = {"blocks/*/heads": Choice(1, 2, 4), "blocks/*/hidden": Choice(64, 128, 256), "blocks/*": Skip()}
net = jaxnas.supernet(groups, choices)
settings = training.Training(steps=500, batch_size=16, learning_rate=4e-3, steps_per_call=10)
trained = training.fit(task, net, settings, workdir="runs/any_equinox")
method = runs.ByStrategy(Evolution(net.space, evaluations=40))
search = runs.Search(method, most_share=0.6)  # of the parameters
result = runs.search_and_finish(task, net, trained.variables, search, runs.Lab("runs/any_equinox"))
for one in (result.found, *result.networks):
    print(one.name, int(one.costs["params"]), one.metrics["test"]["nats"], one.architecture)


def rebuild(sizes):  # from the sizes of groups to a module of the class above
    kept = [f"blocks/{i}" for i in range(3) if sizes[f"blocks/{i}"]]
    blocks = [(sizes[f"{block}/attention/heads"], sizes[f"{block}/mlp/layers/hidden"]) for block in kept]
    return Gpt(text.vocabulary.size, 64, jax.random.key(0), blocks=blocks)


arch, tokens = net.space.from_dict(result.found.architecture), text.test.tokens[:512].reshape(8, 64)
found = jaxnas.extract(net, trained.variables, arch, verify={"tokens": jnp.asarray(tokens)}, rebuild=rebuild)
eqx.tree_serialise_leaves("runs/any_equinox/gpt.eqx", found.net)
print(type(found.net).__name__, len(found.net.blocks), "blocks, difference", found.error)

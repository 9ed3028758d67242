"""Tasks and networks so small that every recipe and every way of searching can be tried on each."""

import dataclasses
import functools
import types

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from user_networks import Elastic, ElasticMlp

from jaxnas import Choice, Space, data, spaces, supernets, tasks
from jaxnas.data.sentences import Sentences
from jaxnas.data.splits import Split
from jaxnas.data.text import Corpus, Stream
from jaxnas.data.vocabulary import ByteVocabulary, WordVocabulary
from jaxnas.elastic import Dense, Embedding, Mixture, fixed, width
from jaxnas.supernets import graph_operations as ops
from jaxnas.supernets.transformer_xl import Memory

TASKS = ("images", "language", "text", "graphs", "table")


def random_images(count, seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count)
    images = random.integers(0, 100, (count, 4, 4, 1)) + 100 * labels[:, None, None, None]
    return images.astype(np.uint8), labels


def random_sentences(random):
    """Sentences of two classes, the first word of which says the class, by role."""
    vocabulary = WordVocabulary(counts=np.ones(6, np.int64), words=("no", "yes", "a", "b", "<unk>", "<eos>"))

    def split(role, count):
        labels, lengths = random.integers(0, 2, count), random.integers(1, 8, count)
        mask = np.arange(7) < lengths[:, None]
        tokens = np.where(mask, random.integers(2, 4, (count, 7)), 5)
        tokens[:, 0] = labels
        return Split(role, {"tokens": tokens.astype(np.int32), "mask": mask}, labels.astype(np.int32))

    sizes = {"train": 64, "search": 24, "test": 30}
    splits = {role: split(role, count) for role, count in sizes.items()}
    none = dict.fromkeys(sizes, 0)
    return Sentences(
        name="sentences", classes=("no", "yes"), vocabulary=vocabulary, unknown=none, cut=none, **splits
    )


def random_graph(random, nodes=6):
    """A graph of two classes, in whose features a node's neighbors show its class."""
    labels = random.integers(0, 2, nodes)
    labels[:2] = 0, 1
    i, j = np.triu_indices(nodes, 1)
    edges = np.stack([i, j], axis=1)[(labels[i] == labels[j]) & (random.random(len(i)) < 0.7)]
    return random.normal(labels[:, None], 1, (nodes, 4)), edges, labels


@functools.cache
def task_of(kind):
    if kind == "images":
        given = data.from_arrays(*random_images(80, 0), *random_images(30, 1))
        return tasks.Images(data=given, evaluation_batch_size=16)
    random = np.random.default_rng(0)
    if kind == "text":
        return tasks.Text(data=random_sentences(random), evaluation_batch_size=16)

    if kind == "graphs":
        sizes = {"train": 16, "search": 8, "test": 9}
        given = {role: [random_graph(random, 4 + i % 3) for i in range(n)] for role, n in sizes.items()}
        return tasks.Graphs(data=data.from_graphs(**given), evaluation_graphs=8)

    if kind == "table":
        x = random.normal(5, 3, (90, 4))
        return tasks.Table(data=data.from_table(x, 100 * x[:, 0] * x[:, 1]), evaluation_batch_size=16)

    def stream(role, count):
        tokens, documents = random.integers(0, 7, count), np.sort(random.integers(0, 3, count))
        return Stream(role, tokens.astype(np.int32), documents.astype(np.int32), 2 * count)

    vocabulary = ByteVocabulary(counts=np.bincount(np.arange(7), minlength=256))
    sizes = {"train": 400, "search": 90, "validation": 80, "test": 70}
    streams = {role: stream(role, count) for role, count in sizes.items()}
    corpus = Corpus(name="tokens", vocabulary=vocabulary, **streams)
    return tasks.Language(data=corpus, length=8, by_document=True, evaluation_rows=4, memory_length=6)


@functools.cache
def net_of(kind, scan=False):
    if kind == "images":
        space = spaces.vit((4, 8), (1, 2), (1, 2), (1.0, 2.0))
        sizes = dict(image_size=4, patch_size=2, num_classes=2, head_dim=4, max_relative_position=1)
        return supernets.ViT(space, **sizes, drop_path_rate=0.1, init_std=0.2, form="masked")
    if kind == "text":
        return Reader(Space(embed=Choice(4, 8), hidden=Choice(4, 8, 16)), vocabulary=6)
    if kind == "graphs":
        return Neighbors(Space(op=Choice("linear", "gcn", "gat"), hidden=Choice(4, 8, 16)))
    if kind == "table":
        return supernets.TableMlp(spaces.mlp((4, 8), (1, 2), (4, 8)), num_outputs=1, dropout=0.1)
    sizes = dict(vocabulary=256, width=8, num_heads=2, head_dim=4, hidden=16, memory_length=4)
    rates = dict(dropout=0.1, init_std=0.2)
    return supernets.TransformerXL(spaces.par(4), **sizes, **rates, scan_blocks=scan, dtype=jnp.float32)


class Perceptron(Elastic):
    """Residual blocks of elastic hidden widths on flat images: it compiles in a moment."""

    classes: int = 2

    def body(self, images, decisions, train):
        x = images.reshape(images.shape[0], -1)  # [B, H * W * C]
        channels = fixed(x.shape[-1])
        for i in range(self.space["hidden"].length):
            hidden = width(int, decisions["hidden", i], axis="mlp")
            y = jnp.tanh(Dense(name=f"in_{i}")(x, channels, hidden))
            x = x + Dense(name=f"out_{i}")(y, hidden, channels)
        return Dense(name="head")(x, channels, fixed(self.classes))


class Reader(Elastic):
    vocabulary: int

    def body(self, inputs, decisions, train):
        embed, hidden = width(int, decisions["embed"]), width(int, decisions["hidden"])
        x = Embedding(self.vocabulary, name="embedding")(inputs["tokens"], embed)  # [B, T, E]
        mask = inputs["mask"].astype(x.dtype)[..., None]
        x = jnp.sum(x * mask, 1) / jnp.sum(mask, 1)  # [B, E]
        x = nn.relu(Dense(name="hidden")(x, embed, hidden))
        return Dense(name="out")(x, hidden, fixed(2))


class Recalling(Elastic):
    """The mean of all tokens of a document up to one, also of those in a memory, tells the next one."""

    memory_length: int = 4

    def empty_memory(self, rows):
        places = rows, self.memory_length
        return Memory(jnp.zeros((1, *places, 8)), jnp.full(places, -1, jnp.int32))

    def body(self, inputs, decisions, train):
        tokens, length = inputs["tokens"], inputs["tokens"].shape[1]
        memory = inputs["memory"] if "memory" in inputs else self.empty_memory(tokens.shape[0])
        documents = inputs["documents"] if "documents" in inputs else jnp.zeros_like(tokens)
        x = nn.Embed(7, 8, name="embedding")(tokens)
        seen = jnp.concatenate([memory.inputs[0], x], axis=1)  # [B, M + T, 8]
        of = jnp.concatenate([memory.documents, documents], axis=1)
        before = jnp.arange(seen.shape[1])[None] <= jnp.arange(length)[:, None] + self.memory_length
        weights = (before[None] & (of[:, None] == documents[..., None])).astype(x.dtype)  # [B, T, M + T]
        mean = weights @ seen / jnp.sum(weights, axis=-1, keepdims=True)
        y = ElasticMlp(name="mlp")(mean, width(int, decisions["hidden"]))
        scores = nn.log_softmax(nn.Dense(7, name="head")(x + y))
        if "targets" in inputs:
            scores = jnp.take_along_axis(scores, inputs["targets"][..., None], axis=-1)[..., 0]
        kept = self.memory_length
        return scores, Memory(seen[None, :, -kept:], of[:, -kept:])


class Neighbors(Elastic):
    def body(self, inputs, decisions, train):
        hidden = width(int, decisions["hidden"])
        x, graph = ops.union(inputs)
        pool = {"linear": ops.Linear(8), "gcn": ops.GCNConv(8), "gat": ops.GeoLayer(8, "gat", 2, dropout=0.1)}
        x = jnp.tanh(Mixture(pool, name="op")(decisions["op"], x, graph, train=train))  # [G * N, 8]
        x = x.reshape(*inputs["node_mask"].shape, 8)  # elastic layers count the products of a row
        x = nn.relu(Dense(name="hidden")(x, fixed(8), hidden))
        return Dense(name="out")(x, hidden, fixed(2))


def recalling():
    return Recalling(Space(hidden=Choice(2, 4, 8)))


def perceptron(blocks=2, options=(1, 2, 4)):
    return Perceptron(Space(hidden=Choice(*options).repeat(blocks)))


class Disturbed(tasks.Images):
    """Images whose training batch of one step is another, or does something when it is asked for."""

    def batches(self, role, batch_size, seed, shard=(0, 1)):
        batches, (step, change) = super().batches(role, batch_size, seed), self.__dict__["disturbance"]

        def at(number):
            # Not in the few rows or the many by which a training compares its data with those of before.
            changed = number == step and batch_size == 8
            return change(batches.at(number)) if changed else batches.at(number)

        return types.SimpleNamespace(at=at)


Disturbed.__name__ = "Images"  # for a training it is the task that it disturbs


def disturbed(step, change):
    task = task_of("images")
    made = Disturbed(**{field.name: getattr(task, field.name) for field in dataclasses.fields(task)})
    made.__dict__["disturbance"] = step, change
    return made

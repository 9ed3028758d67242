"""What cannot be right is refused where data and tasks are made, and the message says what was given."""

import dataclasses
import functools

import numpy as np
import refusals
from small_tasks import random_images, task_of

from jaxnas import data, tasks
from jaxnas.data.images import load as load_images
from jaxnas.data.splits import Split
from jaxnas.data.text import Stream

IMAGES, LABELS = random_images(40, 0)[0], np.arange(40) % 2
SENTENCES = task_of("text").dataset
TOKENS = np.array(SENTENCES.train.inputs["tokens"])
NODES = dict(features=np.eye(6), edges=[], labels=[0, 1] * 3, train=[0], test=[1])


def sentences(tokens):
    inputs = {**SENTENCES.train.inputs, "tokens": tokens}
    return dataclasses.replace(SENTENCES, train=Split("train", inputs, SENTENCES.train.labels))


def of_images(images=IMAGES, **settings):
    return tasks.Images(data=data.from_arrays(images, LABELS), **settings)


def test_tokens():
    stream = Stream("train", np.array([0, 256], np.int32), np.zeros(2, np.int32), 9)
    refusals.check(
        (lambda: dataclasses.replace(task_of("language").dataset, train=stream), ValueError, "stream", "256"),
        (lambda: sentences(TOKENS + 3), ValueError, "8", "0 to 5"),
        (lambda: sentences(TOKENS - 1), ValueError, "-1", "0 to 5"),
        (lambda: sentences(TOKENS.astype(np.float32)), ValueError, "float32[64, 7]", "mask"),
    )


def test_settings_that_do_not_go_with_the_images():
    def case(setting, value, images=IMAGES, kind="uint8, 4 x 4 x 1"):
        return lambda: of_images(images, **{setting: value}), ValueError, f"{setting} is {value}", kind

    refusals.check(
        case("crop_padding", 4),
        case("crop_scale", 0.05),
        case("erase", 0.25),
        case("cutmix", 1.0, IMAGES[:, :1], "uint8, 1 x 4 x 1"),
        case("randaugment", 9, IMAGES / 255, "float32, 4 x 4 x 1"),
        case("randaugment", 9, IMAGES // 16),
        case("image_size", 224),
    )


def test_settings_that_do_not_go_with_the_texts():
    named, text = (lambda **s: tasks.Text(data="sst5", **s)), (lambda **s: tasks.Text(data=SENTENCES, **s))
    refusals.check(
        (lambda: text(tokens="bytes"), ValueError, "tokens is 'bytes'", "sentences"),
        (lambda: named(tokens="letters"), ValueError, "tokens is 'letters'"),
        (lambda: named(tokens="bytes", max_words=8), ValueError, "max_words is 8"),
        (lambda: text(lengths=(2, 4)), ValueError, "the length 7", "lengths is 4"),
        (lambda: named(embedding_dim=50), ValueError, "embedding_dim is 50"),
        (lambda: text(embeddings="glove.txt").inputs, ValueError, "'glove.txt'", "task.load()"),
        (lambda: data.ListOps(min_length=5, max_length=6), ValueError, "max_length is 6"),
    )


def test_things_of_another_kind():
    refusals.check(
        (lambda: tasks.Images(data=task_of("language").dataset), ValueError, "data is a Corpus"),
        (lambda: tasks.Images(data=IMAGES), ValueError, "data is a ndarray"),
        (lambda: tasks.Text(data=["good", "bad"]), ValueError, "data is a list"),
        (lambda: data.from_texts(None, None), ValueError, "NoneType"),
        (lambda: data.from_texts(["good"], None), ValueError, "train labels"),
        (lambda: data.from_folder(None), TypeError, "None"),
        (lambda: data.from_tsv(5), TypeError, "5"),
        (lambda: data.from_texts(["a", "b"], ["x", "y"], classes=frozenset("xy")), TypeError, "order"),
        (lambda: data.from_graph(**NODES | {"labels": [10**9] * 6}), ValueError, "1000000000", "0 never"),
        (lambda: load_images("digits", search_fraction=1196 / 1197), ValueError, "held out"),
    )


def test_a_switch_is_true_or_false():
    for name, make in {
        "flip": lambda **no: tasks.Images(data="digits", **no),
        "sparse": lambda **no: tasks.Graphs(data="cora", **no),
        "phrases": lambda **no: tasks.Text(data="sst5", **no),
        "same_length": lambda **no: tasks.Language(data="enwik8", length=8, **no),
        "undirected": lambda **no: data.from_graph(**NODES, **no),
        "in_memory": lambda **no: data.from_folder(".", **no),
    }.items():
        for value in ("no", 1):
            call = functools.partial(make, **{name: value})
            refusals.check(
                (lambda call=call: call(), ValueError, f"{name} is {value!r}, expected True or False")
            )
    refusals.check((lambda: tasks.Text(data="sst5", phrases=None), ValueError, "phrases is None"))

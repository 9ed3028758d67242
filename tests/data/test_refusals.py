"""What cannot be right is refused where data and tasks are made, and the message says what was given."""

import dataclasses

import numpy as np
import pytest
from small_tasks import random_images, task_of

from jaxnas import data, tasks

IMAGES, LABELS = random_images(40, 0)[0], np.arange(40) % 2
GIVEN = IMAGES, LABELS, IMAGES, LABELS
STREAM = task_of("language").dataset.train
SENTENCES = task_of("text").dataset
NAN = float("nan")


def stream(tokens):
    return data.Stream("train", tokens, np.zeros(len(tokens), np.int32), 9)


def corpus(tokens):
    return dataclasses.replace(task_of("language").dataset, train=stream(tokens))


def sentences(tokens):
    inputs = {**SENTENCES.train.inputs, "tokens": tokens}
    return dataclasses.replace(SENTENCES, train=data.Split("train", inputs, SENTENCES.train.labels))


TOKENS = np.array(SENTENCES.train.inputs["tokens"])
CASES = {
    "a token beyond the vocabulary": (
        lambda: corpus(np.array([0, 256], np.int32)),
        "the train stream has the token 256, and the vocabulary has 256",
    ),
    "a negative token": (
        lambda: stream(np.array([0, -1], np.int32)),
        "has the token -1; tokens are numbered",
    ),
    "tokens as floats": (
        lambda: stream(np.zeros(4, np.float32)),
        "tokens must be int32 [n], got float32 [4]",
    ),
    "a word beyond the vocabulary": (
        lambda: sentences(TOKENS + 3),
        "has the token 8; tokens are from 0 to 5",
    ),
    "a negative word": (lambda: sentences(TOKENS - 1), "has the token -1; tokens are from 0 to 5"),
    "words as floats": (lambda: sentences(TOKENS.astype(np.float32)), "has tokens float32[64, 7] and a mask"),
    "a label in no class": (
        lambda: dataclasses.replace(data.from_arrays(*GIVEN), classes=("cat",)),
        "has the label 1, and there are 1 classes, numbered from 0",
    ),
    "another number of channels": (
        lambda: data.from_arrays(*GIVEN[:2], IMAGES.repeat(3, -1), LABELS),
        "images are uint8[40, 4, 4, 1] and test_images uint8[40, 4, 4, 3]",
    ),
    "one image left to train on": (
        lambda: data.from_arrays(*GIVEN, search_fraction=39 / 40),
        "20 examples, which are divided as 0 for train, 20 for search",
    ),
    "a fraction that is no number": (
        lambda: data.from_arrays(*GIVEN, search_fraction=NAN),
        "search_fraction is nan, expected 0 to below 1",
    ),
    "a fraction of a named set that is no number": (
        lambda: tasks.Images(data="digits", search_fraction=NAN),
        "Images: search_fraction is nan, expected a number of at least 0 and below 1",
    ),
    "a fraction of a named text that is no number": (
        lambda: tasks.Language(data="enwik8", length=8, search_fraction=NAN),
        "Language: search_fraction is nan",
    ),
    "a negative mixup": (
        lambda: tasks.Images(data="digits", mixup=-1),
        "Images: mixup is -1, expected a number of at least 0",
    ),
    "half a repetition": (
        lambda: tasks.Images(data="digits", repeats=1.5),
        "Images: repeats is 1.5, expected a whole number",
    ),
    "a shift as large as an image": (
        lambda: tasks.Images(data=data.from_arrays(*GIVEN), crop_padding=4),
        "Images: crop_padding is 4, and the images of arrays are uint8, 4 x 4 x 1: so large a shift leaves",
    ),
    "a crop of less than a pixel": (
        lambda: tasks.Images(data=data.from_arrays(*GIVEN), crop_scale=0.05),
        "Images: crop_scale is 0.05, and the images of arrays are uint8, 4 x 4 x 1: such a part is less than",
    ),
    "an erasing of less than a pixel": (
        lambda: tasks.Images(data=data.from_arrays(*GIVEN), erase=0.25),
        "Images: erase is 0.25, and the images of arrays are uint8, 4 x 4 x 1: the smallest rectangle, 2 %",
    ),
    "a box cut out of a line": (
        lambda: tasks.Images(data=data.from_arrays(IMAGES[:, :1], LABELS), cutmix=1.0),
        "Images: cutmix is 1.0, and the images of arrays are uint8, 1 x 4 x 1: there is no box",
    ),
    "RandAugment of numbers": (
        lambda: tasks.Images(data=data.from_arrays(IMAGES / 255, LABELS), randaugment=9),
        "Images: randaugment is 9, and the images of arrays are float32, 4 x 4 x 1: its operations are for",
    ),
    "RandAugment of values up to 16": (
        lambda: tasks.Images(data=data.from_arrays(IMAGES // 16, LABELS), randaugment=9),
        "Images: randaugment is 9, and the images of arrays are uint8, 4 x 4 x 1: its operations are for",
    ),
    "a size for images that have one": (
        lambda: tasks.Images(data=data.from_arrays(*GIVEN), image_size=224),
        "Images: image_size is 224, and the images of arrays are uint8, 4 x 4 x 1: it is for images of",
    ),
    "crops on demand of images in memory": (
        lambda: data.CroppedBatches(data.from_arrays(*GIVEN).train, 4, scale=0.08),
        "has images that are not decoded on demand; crop them on the device",
    ),
    "too much smoothing": (
        lambda: tasks.Text(data=SENTENCES, label_smoothing=2),
        "Text: label_smoothing is 2, expected a number of at least 0 and below 1",
    ),
    "data of another task": (
        lambda: tasks.Images(data=task_of("language").dataset),
        "Images: data is a Corpus; expected a name, or what data.from_arrays, data.from_folder or data.load",
    ),
    "texts in a list": (
        lambda: tasks.Text(data=["good", "bad"]),
        "Text: data is a list; expected a name, or what data.from_tsv, data.from_texts or data.ListOps",
    ),
    "tokens of texts that have some": (
        lambda: tasks.Text(data=SENTENCES, tokens="bytes"),
        "Text: tokens is 'bytes', and sentences has its tokens already; give it to data.from_tsv",
    ),
    "tokens of no kind": (
        lambda: tasks.Text(data="sst5", tokens="letters"),
        "Text: tokens is 'letters', expected one of 'words', 'english', 'bytes', 'symbols'",
    ),
    "a vocabulary of so many bytes": (
        lambda: tasks.Text(data="sst5", tokens="bytes", max_words=8),
        "Text: max_words is 8, and tokens='bytes' are no words",
    ),
    "lengths that fall": (
        lambda: tasks.Text(data="sst5", lengths=(32, 16)),
        "Text: lengths is (32, 16), expected whole numbers of at least 1 that increase",
    ),
    "lengths that end before the texts do": (
        lambda: tasks.Text(data=SENTENCES, lengths=(2, 4)),
        "Text: texts have the length 7, and the last of lengths is 4",
    ),
    "a size of vectors and no vectors": (
        lambda: tasks.Text(data="sst5", embedding_dim=50),
        "Text: embedding_dim is 50, and there are no embeddings",
    ),
    "texts whose vectors are not loaded": (
        lambda: tasks.Text(data=SENTENCES, embeddings="glove.txt").inputs,
        "The vectors of 'glove.txt' are not loaded yet; call task.load() first",
    ),
    "expressions of no length": (
        lambda: data.ListOps(min_length=5, max_length=6),
        "ListOps: max_length is 6, expected a whole number of at least 7",
    ),
    "arrays in place of a data set": (
        lambda: tasks.Images(data=IMAGES),
        "Images: data is a ndarray; expected",
    ),
    "images of several sizes": (
        lambda: data.from_arrays([IMAGES[0], IMAGES[1, :2], IMAGES[2]], [0, 1, 0]),
        "images are of 2 sizes: (2, 4, 1), (4, 4, 1); expected one size. Scale them first",
    ),
    "one image of each class": (
        lambda: data.from_arrays(IMAGES[:2], [0, 1]),
        "test_fraction=0.2 of 2 examples is 0, and both test and what is left to train on need some. Give",
    ),
    "no texts": (
        lambda: data.from_texts(None, None),
        "the train texts are a NoneType; expected a list of strings",
    ),
    "one text": (lambda: data.from_texts("good", [1]), "the train texts are a str; expected a list"),
    "texts without labels": (lambda: data.from_texts(["good"], None), "1 train texts and no labels of them"),
    "a folder that is none": (lambda: data.from_folder(None), "a path is expected, as text or as a"),
    "a text that is none": (lambda: data.from_text(None), "a path is expected, as text or as a"),
    "rows that are none": (
        lambda: data.from_tsv(5),
        "a path is expected, as text or as a pathlib.Path, and 5",
    ),
    "labels that are ids": (
        lambda: data.from_arrays(IMAGES, np.arange(40) * 10**8),
        "40 integers up to 3900000000, and 1 never occurs",
    ),
    "labels of nodes that are ids": (
        lambda: data.from_graph(np.eye(6), [], [10**9] * 6, train=[0], test=[1]),
        "1 integers up to 1000000000, and 0 never occurs",
    ),
    "classes without an order": (
        lambda: data.from_arrays(*GIVEN, classes={"cat", "dog"}),
        "expected a list: their order",
    ),
    "classes of texts without an order": (
        lambda: data.from_texts(["a", "b"], ["x", "y"], classes=frozenset("xy")),
        "expected a list: their order",
    ),
    "a string of classes": (
        lambda: data.from_arrays(*GIVEN, classes="ab"),
        "classes are 'ab', expected a list",
    ),
    "flip": (lambda: tasks.Images(data="digits", flip="no"), "Images: flip is 'no', expected True or False"),
    "sparse": (lambda: tasks.Graphs(data="cora", sparse=1), "Graphs: sparse is 1, expected True or False"),
    "phrases": (
        lambda: tasks.Text(data="sst5", phrases=None),
        "Text: phrases is None, expected True or False",
    ),
    "same_length": (
        lambda: tasks.Language(data="enwik8", length=8, same_length="no"),
        "Language: same_length is 'no', expected True or False",
    ),
    "undirected": (
        lambda: data.from_graph(np.eye(6), [], [0, 1] * 3, train=[0], test=[1], undirected="no"),
        "from_graph: undirected is 'no', expected True or False",
    ),
    "in_memory": (lambda: data.from_folder(".", in_memory="no"), "in_memory is 'no', expected True or False"),
    "batches of half an image": (
        lambda: tasks.Images(data="digits", evaluation_batch_size=2.5),
        "evaluation_batch_size is 2.5, expected a whole number",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_right_is_refused(case):
    make, message = CASES[case]
    with pytest.raises((ValueError, TypeError)) as error:
        make()
    assert message in str(error.value)


def test_a_search_split_must_leave_each_class_to_train_on(tmp_path):
    with pytest.raises(ValueError, match="1,196 of"):
        data.load("digits", data_dir=tmp_path, search_fraction=1196 / 1197)

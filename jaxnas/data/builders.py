"""TFDS builders that prepare real data as array_record, without TensorFlow and offline.

`prepare` writes a dataset where TFDS looks for it, so that afterwards
`tfds.data_source("digits", data_dir=...)` reads it as well.
"""

import contextlib
import gzip
import io
import math
import os
import pathlib
import struct
import zlib
from collections.abc import Iterator

import numpy as np
import tensorflow_datasets as tfds
from absl import logging

from jaxnas import files
from jaxnas.data import splits
from jaxnas.data.text_builders import Enwik8, TinyShakespeare, WikiText2

# fmt: off
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)
# fmt: on
FASHION_WHERE = (
    "They are in the Debian package dataset-fashion-mnist (which installs them into"
    " /usr/share/datasets/fashion-mnist), or take the original four files"
    " {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"
)


def read_idx(path: str | os.PathLike, ndim: int) -> np.ndarray:
    """Reads an IDX file of unsigned bytes, plain or compressed by gzip.

    Args:
        path: the file; the content decides whether it is compressed, not the name.
        ndim: expected number of axes, 3 for images and 1 for labels.

    Returns:
        uint8 with `ndim` axes, read-only.

    Raises:
        ValueError: not such a file, or truncated; the message says which file, what was expected
            and what was found.
    """
    data = pathlib.Path(path).read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(
                f"{path}: truncated or corrupt gzip file of {len(data)} bytes ({error}); copy it again"
            ) from error
    magic = bytes([0, 0, 8, ndim])
    header = 4 + 4 * ndim
    if data[:4] != magic:
        raise ValueError(
            f"{path}: not an IDX file of bytes with {ndim} axes: expected it to begin with"
            f" {magic.hex(' ')}, found {data[:4].hex(' ') or 'nothing'}"
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


def find_idx(folder: str | os.PathLike, name: str) -> pathlib.Path:
    """Returns the path of an IDX file, e.g. of name "train-images-idx3-ubyte".

    Found are also the spelling "train-images.idx3-ubyte" and compressed files (".gz").

    Raises:
        FileNotFoundError: none of these is in the folder.
    """
    folder = pathlib.Path(folder)
    dotted = name.replace("-idx", ".idx")
    for candidate in (name, f"{name}.gz", dotted, f"{dotted}.gz"):
        if (folder / candidate).is_file():
            return folder / candidate
    raise FileNotFoundError(f"{folder} has no file {name} or {name}.gz. {FASHION_WHERE}")


class _Arrays(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """What the builders below share: all examples of a split are given as two arrays."""

    VERSION = tfds.core.Version("1.0.0")
    # TFDS looks for checksums of downloads beside the code, through importlib_resources, which it
    # doesn't install. There are no downloads.
    code_path = None

    def _dataset_info(self, description: str, image_shape, **label) -> tfds.core.DatasetInfo:
        # A Tensor, since features.Image needs TensorFlow to encode an array.
        image = tfds.features.Tensor(shape=image_shape, dtype=np.uint8)
        return tfds.core.DatasetInfo(
            builder=self,
            description=description,
            features=tfds.features.FeaturesDict({"image": image, "label": tfds.features.ClassLabel(**label)}),
            supervised_keys=("image", "label"),
            disable_shuffling=True,  # The stored order is the order of the origin.
        )

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

    def _split_generators(self, dl_manager):
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        images = images.astype(np.uint8).reshape(-1, 8, 8, 1)
        test, train = splits.stratified(labels, 600, seed=0)
        return {
            "train": self._generate_examples(images[train], labels[train]),
            "test": self._generate_examples(images[test], labels[test]),
        }


class FashionMnist(_Arrays, skip_registration=True):
    """Fashion-MNIST from its four IDX files: uint8 [28, 28, 1], 10 classes, 60,000 / 10,000.

    The folder with the files is TFDS's `DownloadConfig(manual_dir=...)`.
    """

    name = "fashion_mnist"
    MANUAL_DOWNLOAD_INSTRUCTIONS = FASHION_WHERE

    def _info(self):
        return self._dataset_info("Fashion-MNIST, from IDX files", (28, 28, 1), names=list(FASHION_CLASSES))

    def _split_generators(self, dl_manager):
        folder = dl_manager.manual_dir
        # Both are read before anything is written, so a bad file is found at once.
        arrays = {"train": _read_pair(folder, "train"), "test": _read_pair(folder, "t10k")}
        return {split: self._generate_examples(*pair) for split, pair in arrays.items()}


def _read_pair(folder: os.PathLike, prefix: str) -> tuple[np.ndarray, np.ndarray]:
    images_path = find_idx(folder, f"{prefix}-images-idx3-ubyte")
    labels_path = find_idx(folder, f"{prefix}-labels-idx1-ubyte")
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if images.shape[1:] != (28, 28):
        raise ValueError(f"{images_path}: expected images of 28 x 28, found {images.shape[1:]}")
    if len(images) != len(labels):
        raise ValueError(f"{images_path} has {len(images)} images and {labels_path} has {len(labels)} labels")
    if labels.max(initial=0) > 9:
        raise ValueError(f"{labels_path}: expected labels 0 to 9, found {labels.max()}")
    return images[..., None], labels


BUILDERS = {builder.name: builder for builder in (Digits, FashionMnist, WikiText2, Enwik8, TinyShakespeare)}


def prepared_path(name: str, data_dir: str | os.PathLike | None) -> pathlib.Path:
    """Returns the folder of a dataset of `BUILDERS` under `data_dir` (None: TFDS's default)."""
    return pathlib.Path(BUILDERS[name](data_dir=data_dir).data_path)


def prepare(
    name: str,
    data_dir: str | os.PathLike | None = None,
    source_dir: str | os.PathLike | None = None,
) -> pathlib.Path:
    """Writes a dataset of `BUILDERS` as array_record, unless it is there already.

    Several processes may do this at once, and each may be killed: the dataset's folder appears
    complete or not at all.

    Args:
        name: "digits", "fashion_mnist", "wikitext2", "enwik8" or "tiny_shakespeare".
        data_dir: TFDS's data folder; None is TFDS's own default, ~/tensorflow_datasets.
        source_dir: the folder with the original files; for all but "digits".

    Returns:
        The dataset's folder, `data_dir/name/version`.

    Raises:
        FileNotFoundError, ValueError: the original files are missing or damaged.
        OSError: `data_dir` cannot be written.
    """
    final = prepared_path(name, data_dir)
    if final.exists():
        return final
    if where := BUILDERS[name].MANUAL_DOWNLOAD_INSTRUCTIONS:
        if source_dir is None:
            raise FileNotFoundError(
                f"{name} is not prepared in {final.parents[1]}: name the folder with its files"
                f" (source_dir). {where}"
            )
        source_dir = pathlib.Path(source_dir).expanduser()
        if not source_dir.is_dir():
            raise FileNotFoundError(f"there is no folder {source_dir}. {where}")
    # TFDS's own temporary name comes from Python's global random state, which two processes can
    # share, so each prepares in a folder that is really its own.
    with files.temporary_folder(final.parent) as own:
        logging.info("Preparing %s in %s", name, final)
        builder = BUILDERS[name](data_dir=own, file_format="array_record")
        tfds.disable_progress_bar()
        config = tfds.download.DownloadConfig(manual_dir=source_dir, try_download_gcs=False)
        with contextlib.redirect_stdout(io.StringIO()):  # TFDS prints that it downloads.
            builder.download_and_prepare(download_config=config)
        files.commit_folder(builder.data_path, final)
    return final

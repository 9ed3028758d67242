"""Images with labels: data sets by name, and arrays of a user."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from jaxnas import files
from jaxnas.data.encoded import Decoder, Prepared, decoding_pool
from jaxnas.data.prepared import check_prepared, class_names, examples, open_prepared, reading
from jaxnas.data.splits import (
    HeldOut,
    Labeled,
    SourceImages,
    make_splits,
    number_labels,
    permutation,
    select,
    stratified,
)

_CHUNK = 256  # Examples read at a time where all of a split are gone through.
_SAMPLE = 2048  # Images that the moments are estimated from, where each has to be decoded.
# The mean and standard deviation of each channel that networks for ImageNet are trained with, from 0 to 255.
_IMAGENET = 255 * np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Dataset(Labeled):
    """Images with labels, in disjoint splits of numbers [n, H, W, C]; see `Labeled`.

    Args:
      mean: float32 [C], over `train` alone, in the units of the stored values.
      std: float32 [C], likewise; 1 for a channel that is constant.

    Raises:
      ValueError: images of another shape or dtype than those of `train`, or as `Labeled`.
    """

    mean: np.ndarray
    std: np.ndarray

    def __post_init__(self):
        super().__post_init__()
        train = self.train.images
        for role, split in self.splits.items():
            images = split.images
            if images.ndim != 4 or images.dtype.kind not in "iuf" or images.shape[1:] != train.shape[1:]:
                raise ValueError(
                    f"{self.name}: images to {role} are {images.dtype}{list(images.shape)}, and those to "
                    f"train on {train.dtype}{list(train.shape)}; expected numbers [n, H, W, C] of one size."
                )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(H, W, C)."""
        return tuple(self.train.images.shape[1:])


def load(
    name: str,
    *,
    data_dir: str | os.PathLike | None = None,
    search_fraction: float = 0.2,
    seed: int = 0,
    image_size: int | None = None,
    workers: int | None = None,
) -> Dataset:
    """Loads a dataset by name, and holds the search split out of its official training part.

    "digits" are those of scikit-learn: 1,197 to train on, 600 for the test. Any other name is a TFDS dataset
    with features "image" (uint8) and "label", prepared as array_record by `tools.convert_data` or by TFDS.
    The test is on its part "test", or "validation" if it has none, and for "imagenet2012".

    Images of many sizes are decoded on demand to `image_size` by worker processes, see `Decoder`.

    Args:
      name: TFDS name, also with config and version as in "name/config:1.0.0".
      data_dir: of prepared data; None is TFDS's own default, ~/tensorflow_datasets. gs://bucket/folder is
        copied to this machine once, see `prepared.local_copy`.
      search_fraction: share of the official training part that becomes `search`, stratified.
      seed: of the search split.
      image_size: height and width in pixels to which images of many sizes are decoded.
      workers: processes that decode; 0 for none, None for as many as there are processors.

    Raises:
      FileNotFoundError: the dataset is not prepared.
      ValueError: a dataset without such images, or a share that leaves nothing to train on.
    """
    held_out, imagenet = HeldOut(search=search_fraction, seed=seed), name.startswith("imagenet2012")
    if name == "digits":
        parts, classes = _digits(), tuple("0123456789")
        _image_shape(name, (8, 8, 1), np.uint8, image_size)
    else:
        builder = open_prepared(name, data_dir)
        test = "test" if "test" in builder.info.splits and not imagenet else "validation"
        check_prepared(name, builder.info, ("image", "label"), ("train", test))
        image = builder.info.features["image"]
        shape = _image_shape(name, image.shape, image.np_dtype, image_size)
        pool = None if image_size is None else decoding_pool(workers)
        parts = {
            role: _read(builder, part, shape) if image_size is None else _encoded(builder, part, shape, pool)
            for role, part in (("train", "train"), ("test", test))
        }
        classes = class_names(builder.info, [labels for _, labels in parts.values()])
    return image_dataset(name, name, parts, classes, held_out, _IMAGENET if imagenet else None)


def _digits() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images uint8 [n, 8, 8, 1] from 0 to 16 and labels, in the order of scikit-learn."""
    from sklearn.datasets import load_digits

    images, labels = (np.asarray(x) for x in load_digits(return_X_y=True))
    images, labels = images.astype(np.uint8).reshape(-1, 8, 8, 1), labels.astype(np.int32)
    test, train = stratified(labels, 600, seed=0)
    return {"train": (images[train], labels[train]), "test": (images[test], labels[test])}


def _image_shape(name: str, shape: Sequence[Any], dtype: Any, size: int | None) -> tuple[int, int, int]:
    """(H, W, C) of images of a shape, in which None stands for many sizes."""
    many = None in shape[:2]
    if len(shape) != 3 or dtype != np.uint8 or shape[2] not in ((1, 3) if many else (1, 2, 3, 4)):
        raise ValueError(f"{name} has images {dtype}{list(shape)}; expected uint8 [H, W, C].")
    if many == (size is None):
        raise ValueError(
            f"{name} has images {list(shape)}, and image_size is {size}. It is for images of many sizes, "
            "which need one, as image_size=224."
        )
    height, width = shape[:2] if size is None else (size, size)
    return height, width, shape[2]


def _read(builder: Any, split: str, image_shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The images uint8 [n, H, W, C] and the labels int32 [n] of a part of a data set."""
    n = builder.info.splits[split].num_examples
    images, labels = np.empty((n, *image_shape), np.uint8), np.empty(n, np.int32)
    for i, example in enumerate(examples(builder, split)):
        images[i], labels[i] = example["image"], example["label"]
    return images, labels


def _encoded(
    builder: Any, split: str, image_shape: tuple[int, int, int], pool: Any
) -> tuple[SourceImages, np.ndarray]:
    """The images of a part of a data set, to be decoded on demand, and the labels int32 [n].

    Labels are gathered from all records the first time, and then kept beside these.
    """
    import tensorflow_datasets as tfds

    encoded = {"decoders": {"image": tfds.decode.SkipDecoding()}}
    with reading(builder.data_path):
        source = builder.as_data_source(split=split, **encoded)
    n, kept = len(source), files.as_path(builder.data_path) / f"labels-{split}.npz"
    labels = np.empty(0, np.int32)
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError):  # What is damaged is gathered again.
        labels = files.read_arrays(kept)["labels"]
    if len(labels) != n:
        logging.info("Gathering the labels of %d images in %s", n, builder.data_path)
        labels = np.array([example["label"] for example in examples(builder, split, **encoded)], np.int32)
        try:
            files.write_arrays(kept, {"labels": labels})
        except OSError as error:
            logging.warning("%s cannot be kept, and labels are gathered again next time: %s", kept, error)
    decoder = Decoder(Prepared(source, f"the {split} part of {builder.name}"), image_shape, pool)
    return SourceImages(decoder, np.arange(n)), labels


def moments(images: np.ndarray | SourceImages, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation of each channel, float32 [C]; the latter is 1 of a constant one.

    Images that have to be decoded are represented by 2,048 of them, always the same ones.

    Raises:
      ValueError: all channels are constant.
    """
    if isinstance(images, SourceImages):
        images = select(images, np.sort(permutation(len(images), seed=0)[:_SAMPLE]))
    at_once = max(1, min(_CHUNK, 2**24 // math.prod(images.shape[1:])))  # they become float64
    count = 0
    first = np.asarray(images[:1], np.float64)[0, 0, 0]  # near the mean: nothing is lost in the squares
    total, squares = np.zeros_like(first), np.zeros_like(first)
    for start in range(0, len(images), at_once):
        chunk = np.asarray(images[start : start + at_once], np.float64) - first
        count += chunk[..., 0].size
        total += chunk.sum((0, 1, 2))
        squares += (chunk**2).sum((0, 1, 2))
    if not squares.any():
        raise ValueError(f"{what}: all training images are alike; there is nothing to learn from them.")
    mean = total / count
    std = np.where(squares == 0, 1.0, np.sqrt(np.maximum(squares / count - mean**2, 0)))
    return (first + mean).astype(np.float32), std.astype(np.float32)


def from_arrays(
    images: Any,
    labels: Any,
    test_images: Any = None,
    test_labels: Any = None,
    *,
    name: str = "arrays",
    classes: Sequence[str] | None = None,
    held_out: HeldOut = HeldOut(),
) -> Dataset:
    """Makes a data set of arrays, and holds out part of the training images for the other roles.

    Values may have any unit: networks receive images standardized by the mean and standard deviation of each
    channel of the training images. Integers from 0 to 255 are kept as uint8, all others as float32.

    Args:
      images: to train on, numbers [n, H, W] or [n, H, W, C].
      labels: [n], integers from 0 or strings.
      test_images, test_labels: of the test, likewise; None to hold out a part of `images`.
      name: of the data.
      classes: names of the labels in the order of their numbers; by default the strings that occur, in
        alphabetical order, or the numbers themselves.
      held_out: shares of the other roles.

    Raises:
      ValueError: arrays that do not fit each other, non-finite values, or constant images.

    Example:
      >>> images = np.random.default_rng(0).integers(0, 256, (100, 8, 8), np.uint8)
      >>> digits = data.from_arrays(images, np.arange(100) % 10)  # holds images out for search and test
      >>> len(digits.classes)
      10
    """
    given = {"train": _images("images", images)}
    numbers, classes = number_labels(labels, classes, "from_arrays: labels")
    by_role = {"train": numbers}
    if (test_images is None) != (test_labels is None):
        raise ValueError("from_arrays: give both test_images and test_labels, or none of them.")
    if test_images is not None:
        given["test"] = _images("test_images", test_images)
        by_role["test"], _ = number_labels(test_labels, classes, "from_arrays: test_labels")
    integers = all(x.dtype.kind in "iu" for x in given.values())
    bytes_ = integers and all(x.min() >= 0 and x.max() <= 255 for x in given.values())
    dtype = np.uint8 if bytes_ else np.float32
    parts = {role: (x.astype(dtype), by_role[role]) for role, x in given.items()}
    return image_dataset(name, f"from_arrays ({name})", parts, classes, held_out)


def image_dataset(
    name: str,
    what: str,
    given: Mapping[str, tuple[Any, np.ndarray]],
    classes: Sequence[str],
    held_out: HeldOut,
    scale: np.ndarray | None = None,
) -> Dataset:
    """Makes a data set of images [n, H, W, C] with labels int32 [n] by role; see `make_splits`.

    They are standardized by the mean and the standard deviation in `scale`, float32 [2, C]; None for those of
    the training images.
    """
    inputs = {role: ({"image": images}, labels) for role, (images, labels) in given.items()}
    splits = make_splits(what, inputs, held_out, classes)
    mean, std = scale if scale is not None else moments(splits["train"].images, what)
    return Dataset(name=name, classes=tuple(classes), mean=mean, std=std, **splits)


def _images(name: str, images: Any) -> np.ndarray:
    try:
        images = np.asarray(images)
    except ValueError as error:  # of images of several sizes
        raise ValueError(
            f"from_arrays: {name} are no array ({error}). Scale them to one size first, or let "
            "data.from_folder scale the files by its size=64."
        ) from error
    if images.ndim == 3:
        images = images[..., None]
    described = f"{images.dtype}{list(images.shape)}"
    if images.ndim != 4 or images.dtype.kind not in "iuf" or not images.size:
        raise ValueError(
            f"from_arrays: {name} are {described}; expected numbers [n, H, W] or [n, H, W, C]. Rows of "
            "numbers [n, F] are for data.from_table."
        )
    if images.shape[3] > 4 and images.shape[1] in (1, 3, 4):
        raise ValueError(
            f"from_arrays: {name} are {described}, which has channels before height and width; expected [n, "
            f"H, W, C]. Give {name}.transpose(0, 2, 3, 1)."
        )
    if images.dtype.kind == "f" and not np.abs(images).max() <= np.finfo(np.float32).max:
        raise ValueError(f"from_arrays: {name} hold a NaN, an infinity, or a number beyond float32.")
    return images

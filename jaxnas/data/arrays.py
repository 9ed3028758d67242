"""A data set of images in arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxnas.data.datasets import Dataset, moments
from jaxnas.data.labeled import make_splits, number_labels
from jaxnas.data.splits import HeldOut


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
) -> Dataset:
    """Makes a data set of images [n, H, W, C] with labels int32 [n] by role; see `make_splits`."""
    inputs = {role: ({"image": images}, labels) for role, (images, labels) in given.items()}
    splits = make_splits(what, inputs, held_out, classes)
    mean, std, constant = moments(splits["train"].images)
    if constant.all():
        raise ValueError(f"{what}: all training images are alike; there is nothing to learn from them.")
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

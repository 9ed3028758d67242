"""A data set of images that are there as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxnas.data.datasets import Dataset, moments
from jaxnas.data.labeled import make_splits, number_labels, some


def from_arrays(
    images: Any,
    labels: Any,
    test_images: Any = None,
    test_labels: Any = None,
    *,
    name: str = "arrays",
    classes: Sequence[str] | None = None,
    search_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Makes a data set of arrays, and holds part of the training images out for the other roles.

    Values may have any unit, as 0 to 255 or 0 to 1: networks get images standardized by the mean and the
    standard deviation of each channel of the training images. Integers from 0 to 255 are kept as uint8,
    all others as float32.

    Args:
      images: to train on, [n, H, W] or [n, H, W, C], integers or floating-point numbers; H and W may differ.
      labels: of them, [n], integers from 0 or strings.
      test_images, test_labels: for the networks that are chosen, likewise; None to hold a part of `images`
        out.
      name: of the data.
      classes: names of the labels in the order of their numbers; by default the strings that occur, in
        alphabetical order, or the numbers themselves.
      search_fraction: share of what is left to train on that is held out to compare architectures; 0 for
        none.
      validation_fraction: likewise, to watch networks that are trained.
      test_fraction: likewise, where no test images are given.
      seed: of what is held out; the classes keep their proportions.

    Raises:
      ValueError: shapes, dtypes or labels that do not fit each other, values that are not finite, all images
        alike, or shares that leave a role without a class.
    """
    what, given = f"from_arrays ({name})", {"train": _images("images", images)}
    numbers, classes = number_labels(labels, classes, "from_arrays: labels")
    by_role = {"train": numbers}
    if (test_images is None) != (test_labels is None):
        raise ValueError("from_arrays: give both test_images and test_labels, or none of them.")
    if test_images is not None:
        given["test"] = _images("test_images", test_images)
        by_role["test"], _ = number_labels(test_labels, classes, "from_arrays: test_labels")
        if given["train"].shape[1:] != given["test"].shape[1:] or given["train"].dtype != given["test"].dtype:
            raise ValueError(
                f"from_arrays: images are {_described(given['train'])} and test_images "
                f"{_described(given['test'])}; expected one size and dtype for both."
            )
    for role, array in given.items():
        if len(array) != len(by_role[role]):
            raise ValueError(
                f"from_arrays: {len(array):,} images and {len(by_role[role]):,} labels to {role}."
            )
    fractions = {"test": test_fraction, "validation": validation_fraction, "search": search_fraction}
    parts = {role: (x, by_role[role]) for role, x in _stored(given).items()}
    return image_dataset(name, what, parts, classes, fractions, seed)


def image_dataset(
    name: str,
    what: str,
    given: Mapping[str, tuple[np.ndarray, np.ndarray]],
    classes: Sequence[str],
    fractions: Mapping[str, float],
    seed: int,
) -> Dataset:
    """A data set of images [n, H, W, C] with labels int32 [n] by role; see `make_splits`."""
    inputs = {role: ({"image": images}, labels) for role, (images, labels) in given.items()}
    splits = make_splits(what, inputs, fractions, seed, classes)
    mean, std, alike = moments(splits["train"].images)
    if alike.all():
        raise ValueError(f"{what}: all training images are alike; there is nothing to learn from them.")
    return Dataset(name=name, classes=tuple(classes), mean=mean, std=std, **splits)


def _images(name: str, images: Any) -> np.ndarray:
    given = images
    try:
        images = np.asarray(given)
        several = images.dtype == object and len({np.shape(image) for image in given}) > 1
    except ValueError:  # NumPy says no more than that these images make no array.
        several = True
    if several:
        shapes = sorted({np.asarray(image, object).shape for image in given})
        raise ValueError(
            f"from_arrays: {name} are of {len(shapes)} sizes: {some(shapes)}; expected one size. Scale "
            "them first, as by Pillow's Image.resize, or let data.from_folder scale the files by its size=64."
        )
    shape = images.shape
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.dtype.kind not in "iuf" or not images.size:
        raise ValueError(
            f"from_arrays: {name} are {images.dtype}{list(shape)}; expected numbers [n, H, W] or "
            "[n, H, W, C]. Rows of numbers [n, F] are for data.from_table."
        )
    if images.shape[3] > 4 and images.shape[1] in (1, 3, 4):
        raise ValueError(
            f"from_arrays: {name} are {_described(images)}, which has its channels before height and width; "
            f"expected [n, H, W, C]. Give {name}.transpose(0, 2, 3, 1)."
        )
    if images.dtype.kind == "f" and not np.abs(images).max() <= np.finfo(np.float32).max:
        raise ValueError(
            f"from_arrays: {name} hold a NaN or an infinity, or a number beyond the range of float32."
        )
    return images


def _stored(given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The images of all roles as uint8 if each value is one, else as float32."""
    integers = all(x.dtype.kind in "iu" for x in given.values())
    bytes_ = integers and all(x.min() >= 0 and x.max() <= 255 for x in given.values())
    return {role: x.astype(np.uint8 if bytes_ else np.float32) for role, x in given.items()}


def _described(images: np.ndarray) -> str:
    return f"{images.dtype}{list(images.shape)}"

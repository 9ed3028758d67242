"""A data set of images that are there as arrays."""

from __future__ import annotations

import numpy as np

from jaxnas.data.datasets import Dataset
from jaxnas.data.splits import Split, stratified


def from_arrays(
    images: np.ndarray,
    labels: np.ndarray,
    test_images: np.ndarray,
    test_labels: np.ndarray,
    *,
    name: str = "arrays",
    search_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Makes a data set of arrays, and holds part of the training images out for a search.

    Args:
      images: to train on, [n, H, W] or [n, H, W, C], integers or floating-point numbers.
      labels: of them, integers [n] from 0.
      test_images, test_labels: for the networks that are chosen, likewise.
      name: of the data.
      search_fraction: share of the training images that is held out, stratified; 0 for none.
      seed: of what is held out.

    Raises:
      ValueError: shapes, dtypes or labels that do not fit each other, or no such share.
    """
    if not 0 <= search_fraction < 1:
        raise ValueError(f"from_arrays: search_fraction is {search_fraction}, expected 0 to below 1.")
    images, test_images = _images("images", images), _images("test_images", test_images)
    labels, test_labels = _labels("labels", labels), _labels("test_labels", test_labels)
    if images.shape[1:] != test_images.shape[1:] or images.dtype != test_images.dtype:
        raise ValueError(
            f"from_arrays: images are {images.dtype}{list(images.shape)} and test_images "
            f"{test_images.dtype}{list(test_images.shape)}; expected one size and dtype for both."
        )
    train, search = Split("train", images, labels), None
    if size := round(len(labels) * search_fraction):
        held_out, rest = stratified(labels, size, seed)
        train = Split("train", images[rest], labels[rest])
        search = Split("search", images[held_out], labels[held_out])
    values = np.asarray(train.images, np.float64)
    std = values.std(axis=(0, 1, 2))
    return Dataset(
        name,
        train,
        search,
        Split("test", test_images, test_labels),
        int(max(labels.max(), test_labels.max())) + 1,
        tuple(images.shape[1:]),
        values.mean(axis=(0, 1, 2)).astype(np.float32),
        np.where(std > 0, std, 1).astype(np.float32),
    )


def _images(name: str, images: np.ndarray) -> np.ndarray:
    images = np.asarray(images)
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.dtype.kind not in "iuf" or not len(images):
        raise ValueError(
            f"from_arrays: {name} are {images.dtype}{list(images.shape)}; expected numbers [n, H, W] or "
            "[n, H, W, C]."
        )
    if images.dtype.kind == "f":
        if not np.isfinite(images).all():
            raise ValueError(f"from_arrays: {name} hold a NaN or an infinity.")
        images = images.astype(np.float32)
    return images


def _labels(name: str, labels: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise ValueError(
            f"from_arrays: {name} are {labels.dtype}{list(labels.shape)}; expected integers [n], from 0."
        )
    return labels.astype(np.int32)

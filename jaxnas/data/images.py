"""Images with labels: data sets by name, and arrays and folders of a user."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from PIL import Image, ImageOps

from jaxnas import files
from jaxnas.checks import check_flags
from jaxnas.data.encoded import UNREADABLE, Files, Prepared, SourceImages, decoding_pool
from jaxnas.data.source_files import check_prepared, class_names, examples, local_copy, open_prepared, reading
from jaxnas.data.splits import (
    HeldOut,
    Labeled,
    make_splits,
    number_labels,
    permutation,
    select,
    some,
    stratified,
)

_CHUNK = 256  # Examples read at a time where all of a split are gone through.
_SAMPLE = 2048  # Images that the moments are estimated from, where each has to be decoded.
# The mean and standard deviation of each channel that networks for ImageNet are trained with, from 0 to 255.
_IMAGENET = 255 * np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)
# What folders of roles are called, in capital letters or small ones.
_ROLES = dict(train="train", training="train", search="search", test="test", testing="test")
_ROLES |= dict(validation="validation", val="validation", valid="validation")
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_BYTES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # Pillow's modes of 8 bits a channel
_GRAY = {"1", "L", "LA"}

Found = dict[str, tuple[list[pathlib.Path], list[int]]]  # files and labels by role


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Dataset(Labeled):
    """Images with labels, in disjoint splits of numbers [n, H, W, C]; see `Labeled`."""

    mean: np.ndarray  # float32 [C], over `train` alone, in the units of the stored values
    std: np.ndarray  # float32 [C], likewise; 1 for a channel that is constant

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

    Args:
      name: TFDS name, also with config and version as in "name/config:1.0.0".
      data_dir: of prepared data; None is TFDS's own default, ~/tensorflow_datasets. gs://bucket/folder is
        copied to this machine once, see `source_files.local_copy`.
      search_fraction: share of the official training part that becomes `search`, stratified.
      seed: of the search split.
      image_size: height and width in pixels to which images of many sizes are decoded; see `SourceImages`.
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
    """The images of a part of a data set, and the labels int32 [n], which are kept beside the records."""
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
    records = Prepared(source, f"the {split} part of {builder.name}")
    return SourceImages(records, image_shape, np.arange(n), pool), labels


def moments(images: np.ndarray | SourceImages, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation of each channel, float32 [C]; the latter is 1 of a constant one.

    Images that have to be decoded are represented by 2,048 of them, always the same ones.
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

    Networks receive images standardized by the mean and standard deviation of each channel of the training
    images. Integers from 0 to 255 are kept as uint8, all others as float32.

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

    The `scale` is mean and standard deviation, float32 [2, C]; None for those of the training images.
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


def from_folder(
    path: str | os.PathLike,
    size: int | tuple[int, int] | None = None,
    *,
    name: str | None = None,
    in_memory: bool = True,
    workers: int | None = None,
    held_out: HeldOut = HeldOut(),
) -> Dataset:
    """Makes a data set of image files, and holds out part of the training images for roles without a folder.

    The folder holds `class/image.png`, or `train/class/image.png` with `test/class/...` and perhaps
    `validation/...` and `search/...` beside it, or other usual names of these roles, as `Training`. Images
    may lie deeper in the folder of their class. They become uint8 [n, H, W, 1] if all of them are gray, else
    [n, H, W, 3], without transparency, turned as their EXIF data say. Files with other names are left out.

    Args:
      path: of the folder; gs://bucket/folder is copied to this machine once, see `source_files.local_copy`.
      size: height and width to which images are scaled, or one number for both; in memory without regard to
        their proportions, and None if they are all of one size.
      name: of the data; by default that of the folder.
      in_memory: False to decode images of any sizes on demand, with their proportions; see `SourceImages` and
        `Batches`.
      workers: processes that decode; 0 for none, None for as many as there are processors.
      held_out: shares of the roles that have no folder.

    Raises:
      FileNotFoundError: no such folder, or no folders of classes in it.
      ValueError: images of several sizes without a `size`, of more than 8 bits, or unreadable; classes that
        differ between the roles.
    """
    check_flags("from_folder", in_memory=in_memory)
    root = local_copy(path)
    shape = None
    if size is not None:
        shape = (size, size) if isinstance(size, int) else tuple(size)
        if len(shape) != 2 or not all(isinstance(x, int | np.integer) and x >= 1 for x in shape):
            raise ValueError(f"from_folder: size is {size!r}, expected whole numbers of at least 1.")
    elif not in_memory:
        raise ValueError("from_folder: set the size to which images are decoded on demand, as size=224.")
    found, classes = _find(root)
    paths = [path for paths, _ in found.values() for path in paths]
    if shape is None or in_memory:
        opened, gray = _open(paths, root, functools.partial(_pixels, size=shape))
        images = _stack(root, opened, gray)
    else:
        _, gray = _open(paths, root, lambda file: None)  # reads no more than its mode
        records = Files(root, [str(path.relative_to(root)) for path in paths])
        shape = (*shape, 1 if gray else 3)
        images = SourceImages(records, shape, np.arange(len(paths)), decoding_pool(workers))
    given, start = {}, 0
    for role, (_, labels) in found.items():
        rows = np.arange(start, start + len(labels))
        given[role] = select(images, rows), np.array(labels, np.int32)
        start += len(labels)
    return image_dataset(name or root.resolve().name, str(root), given, classes, held_out)


def _find(root: pathlib.Path) -> tuple[Found, list[str]]:
    """The image files with their labels by role, and the classes."""
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is {'a file' if root.exists() else 'not there'}; expected a folder.")
    roles = {name: _ROLES.get(name.lower(), "") for name in _folders(root)}
    folders = {"train": root}
    if any(role == "train" and _folders(root / name) for name, role in roles.items()):
        folders = {role: root / name for name, role in roles.items()}
        if "" in folders or len(folders) < len(roles):
            raise ValueError(f"{root} has the folders {some(list(roles))}; expected one for each role.")
        folders = {
            role: folders[role] for role in ("train", "search", "validation", "test") if role in folders
        }
    classes, files = _folders(folders["train"]), {}
    for role, folder in folders.items():
        own = _folders(folder)
        if not own:
            raise FileNotFoundError(
                f"{folder} has no folders of classes; expected class/image.png, or train/class/image.png and "
                "test/class/image.png."
            )
        if own != classes:
            raise ValueError(
                f"{folder}: some classes are only in {role} or in train: {some(sorted({*own} ^ {*classes}))}."
            )
        images = [_files_of(folder / name) for name in classes]
        if empty := [name for name, paths in zip(classes, images, strict=True) if not paths]:
            raise ValueError(f"{folder}: no images in the folders of {some(empty)}; remove or fill them.")
        labels = [label for label, paths in enumerate(images) for _ in paths]
        files[role] = sum(images, []), labels
    return files, classes


def _folders(root: pathlib.Path) -> list[str]:
    return sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))


def _files_of(folder: pathlib.Path) -> list[pathlib.Path]:
    """The image files of a class, in the order of their names."""
    inside = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    images = [p for p in inside if p.suffix.lower() in _SUFFIXES]
    if others := [p.name for p in inside if p.suffix.lower() not in _SUFFIXES]:
        logging.warning("%s: left out what is no image: %s", folder, some(others))
    return images


def _open(
    paths: Sequence[pathlib.Path], root: pathlib.Path, keep: Callable[[Image.Image], Any]
) -> tuple[list[Any], bool]:
    """Opens image files; returns what `keep` makes of each, and whether all are gray."""
    kept, modes, unreadable = [], [], []
    for path in paths:
        try:
            with Image.open(path) as file:
                kept.append(keep(file))
                modes.append(file.mode)
        except UNREADABLE as error:
            unreadable.append(f"{path.relative_to(root)} ({error})")
    if unreadable:
        raise ValueError(
            f"{root}: {len(unreadable):,} of {len(paths):,} images cannot be read: {some(unreadable)}. Copy "
            "them again, or remove them."
        )
    if deep := [p.relative_to(root) for p, mode in zip(paths, modes, strict=True) if mode not in _BYTES]:
        raise ValueError(
            f"{root}: {len(deep):,} images have more than 8 bits a channel: {some(deep)}. Convert them, or "
            "give their values with data.from_arrays."
        )
    return kept, set(modes) <= _GRAY


def _pixels(file: Image.Image, size: tuple[int, int] | None) -> Image.Image:
    image = ImageOps.exif_transpose(file).convert("L" if file.mode in _GRAY else "RGB")
    return image if size is None else image.resize((size[1], size[0]))


def _stack(root: pathlib.Path, images: Sequence[Image.Image], gray: bool) -> np.ndarray:
    """Images as uint8 [n, H, W, C]."""
    sizes = sorted({f"{image.height} x {image.width}" for image in images})
    if len(sizes) > 1:
        raise ValueError(
            f"{root}: images are of {len(sizes):,} sizes: {some(sizes)}. Set the size to which they are "
            "scaled, as size=(64, 64)."
        )
    stacked = np.stack([np.asarray(image.convert("L" if gray else "RGB")) for image in images])
    return stacked[..., None] if gray else stacked

"""A data set of image files in a folder for each class."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from absl import logging
from PIL import Image, ImageOps

from jaxnas.checks import check_flags
from jaxnas.data.encoded import UNREADABLE, Decoder, Files, decoding_pool
from jaxnas.data.images import Dataset, image_dataset
from jaxnas.data.prepared import local_copy
from jaxnas.data.splits import HeldOut, SourceImages, select, some

# What folders of roles are called, in capital letters or small ones.
_ROLES = dict(train="train", training="train", search="search", test="test", testing="test")
_ROLES |= dict(validation="validation", val="validation", valid="validation")
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_BYTES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # Pillow's modes of 8 bits a channel
_GRAY = {"1", "L", "LA"}

Found = dict[str, tuple[list[pathlib.Path], list[int]]]  # files and labels by role


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

    With `in_memory=False` images of any sizes stay in their files. Worker processes decode them on demand to
    the `size`, with their proportions: see `Decoder` for evaluations and `Batches` for training.

    Args:
      path: of the folder; gs://bucket/folder is copied to this machine once, see `prepared.local_copy`.
      size: height and width to which images are scaled, or one number for both; in memory without regard to
        their proportions, and None if they are all of one size.
      name: of the data; by default that of the folder.
      in_memory: False to decode images on demand.
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
        decoder = Decoder(records, (*shape, 1 if gray else 3), decoding_pool(workers))
        images = SourceImages(decoder, np.arange(len(paths)))
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
        images = [_images(folder / name) for name in classes]
        if empty := [name for name, paths in zip(classes, images, strict=True) if not paths]:
            raise ValueError(f"{folder}: no images in the folders of {some(empty)}; remove or fill them.")
        labels = [label for label, paths in enumerate(images) for _ in paths]
        files[role] = sum(images, []), labels
    return files, classes


def _folders(root: pathlib.Path) -> list[str]:
    return sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))


def _images(folder: pathlib.Path) -> list[pathlib.Path]:
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
    if deep := [
        str(path.relative_to(root)) for path, mode in zip(paths, modes, strict=True) if mode not in _BYTES
    ]:
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

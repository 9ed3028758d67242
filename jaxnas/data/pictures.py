"""A data set of image files in a folder for each class."""

from __future__ import annotations

import collections
import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging
from PIL import Image, ImageOps

from jaxnas.checks import check_flags
from jaxnas.data.arrays import image_dataset
from jaxnas.data.copies import local_copy
from jaxnas.data.datasets import Dataset
from jaxnas.data.encoded import UNREADABLE, Decoder, Files, decoding_pool
from jaxnas.data.labeled import some
from jaxnas.data.splits import SourceImages, select

# What folders of roles are called, in capital letters or small ones.
_ROLES = {
    "train": "train",
    "training": "train",
    "search": "search",
    "validation": "validation",
    "val": "validation",
    "valid": "validation",
    "test": "test",
    "testing": "test",
}
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_BYTES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # Pillow's modes of 8 bits a channel
_GRAY = ("1", "L", "LA")


def from_folder(
    path: str | os.PathLike,
    size: int | tuple[int, int] | None = None,
    *,
    name: str | None = None,
    skip_unreadable: bool = False,
    in_memory: bool = True,
    workers: int | None = None,
    search_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Makes a data set of image files, and holds part of the training images out for roles without a folder.

    The folder holds `class/image.png`, or `train/class/image.png` with `test/class/...` and perhaps
    `validation/...` and `search/...` beside it, or other usual names of these roles, as `Training`. Images
    may lie deeper in the folder of their class. They become uint8 [n, H, W, 1] if all of them are gray, else
    [n, H, W, 3], without transparency, turned as their EXIF data say. Files that are no images by their names
    are left out with a warning.

    With `in_memory=False` images of any sizes stay in their files. Worker processes decode them on demand to
    the `size`, with their proportions as they are: see `Decoder` for evaluations and `CroppedBatches` for
    training. Only the beginnings of the files are read before; damage behind is found when its turn comes.

    Args:
      path: of the folder; gs://bucket/folder is copied to this machine once, see `copies`.
      size: height and width to which images are scaled, or one number for both; in memory without regard to
        their proportions, and None if they are all of one size.
      name: of the data; by default that of the folder.
      skip_unreadable: leave image files out that cannot be read, with a warning, instead of refusing them.
      in_memory: False to decode images on demand.
      workers: processes that do it; 0 for none, None for as many as there are processors.
      search_fraction, validation_fraction, test_fraction, seed: as of `from_arrays`, for roles that have no
        folder.

    Raises:
      FileNotFoundError: no such folder, or no folders of classes in it.
      ValueError: images of several sizes, or that are to be decoded on demand, without a `size`, or of more
        than 8 bits; files that cannot be read; classes that differ between the folders of roles, or that have
        too few images for their roles.
    """
    check_flags("from_folder", skip_unreadable=skip_unreadable, in_memory=in_memory)
    root = local_copy(path)
    if size is not None:
        given_size, size = size, tuple(size) if isinstance(size, tuple | list) else (size, size)
        if len(size) != 2 or not all(isinstance(x, int | np.integer) and x >= 1 for x in size):
            raise ValueError(
                f"from_folder: size is {given_size!r}, expected an int of at least 1, or two for height and "
                "width."
            )
    elif not in_memory:
        raise ValueError(
            "from_folder: say the size to which images are to be decoded on demand, as size=224."
        )
    files, classes = _find(root)
    paths = [path for paths, _ in files.values() for path in paths]
    if in_memory:
        images, rows = _read(paths, root, size, skip_unreadable)
    else:
        assert size is not None
        images, rows = _on_demand(paths, root, size, skip_unreadable, workers)
    given, start = {}, 0
    for role, (paths, labels) in files.items():
        kept = np.arange(*np.searchsorted(rows, [start, start + len(paths)]))
        given[role] = select(images, kept), np.array(labels, np.int32)[rows[kept] - start]
        start += len(paths)
    fractions = {"test": test_fraction, "validation": validation_fraction, "search": search_fraction}
    return image_dataset(name or root.resolve().name, str(root), given, classes, fractions, seed)


def _find(root: pathlib.Path) -> tuple[dict[str, tuple[list[pathlib.Path], list[int]]], list[str]]:
    """The image files with their labels by role, and the classes."""
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is {'a file' if root.exists() else 'not there'}; expected a folder.")
    folders = {"train": root}
    roles = {name: _ROLES.get(name.lower(), "") for name in _folders(root)}
    train = [name for name, role in roles.items() if role == "train" and _folders(root / name)]
    if train:
        unknown = [name for name, role in roles.items() if not role]
        if unknown:
            raise ValueError(
                f"{root} has the folder {train[0]}/, and beside it {some(unknown)}; expected only folders of "
                f"roles: {', '.join(_ROLES)}."
            )
        folders = {role: root / name for name, role in roles.items()}
        if len(folders) < len(roles):
            raise ValueError(
                f"{root} has two folders of one role: {some(list(roles))}; expected one of each."
            )
        folders = {role: folders[role] for role in _ROLES.values() if role in folders}
    found = {role: _images_by_class(folder) for role, folder in folders.items()}
    for role, folder in folders.items():
        if not found[role]:
            holds = some(sorted(p.name for p in folder.iterdir()))
            has = f"has no folders of classes, only {holds}" if holds else "is empty"
            raise FileNotFoundError(
                f"{folder} {has}; expected class/image.png, or "
                "train/class/image.png and test/class/image.png."
            )
        empty = [name for name, paths in found[role].items() if not paths]
        if empty:
            raise ValueError(
                f"{folder}: no images in the folders of {some(empty)}; remove these or fill them."
            )
        if found[role].keys() != found["train"].keys():
            only = sorted(found[role].keys() - found["train"].keys())
            missing = sorted(found["train"].keys() - found[role].keys())
            raise ValueError(
                f"{root}: the classes in {folder.name}/ are not those to train on: only in {folder.name}/ "
                f"are {some(only) or 'none'}, and {some(missing) or 'none'} are missing."
            )
    classes = sorted(found["train"])
    files = {
        role: (
            [path for name in classes for path in paths[name]],
            [label for label, name in enumerate(classes) for _ in paths[name]],
        )
        for role, paths in found.items()
    }
    return files, classes


def _folders(root: pathlib.Path) -> list[str]:
    return sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))


def _images_by_class(folder: pathlib.Path) -> Mapping[str, list[pathlib.Path]]:
    """The image files of each class, in the order of their names."""
    found, others = {}, []
    for name in _folders(folder):
        inside = sorted(p for p in (folder / name).rglob("*") if p.is_file() and not p.name.startswith("."))
        found[name] = [p for p in inside if p.suffix.lower() in _SUFFIXES]
        others += [str(p.relative_to(folder)) for p in inside if p.suffix.lower() not in _SUFFIXES]
    if others:
        are = (
            "1 file is no image and is"
            if len(others) == 1
            else f"{len(others):,} files are no images and are"
        )
        logging.warning("%s: %s left out: %s", folder, are, some(others))
    return found


def _read(
    paths: Sequence[pathlib.Path], root: pathlib.Path, size: tuple[int, int] | None, skip: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The images of files, uint8 [n, H, W, C], and which of the files they are, int64 [n]."""
    images: list[Image.Image] = []
    rows: list[int] = []
    modes, sizes = collections.Counter(), collections.Counter()
    unreadable, deep = [], []
    for row, path in enumerate(paths):
        try:
            image, mode = _open(path)
        except UNREADABLE as error:
            unreadable.append(f"{path.relative_to(root)} ({error})")
            continue
        modes[mode] += 1
        sizes[image.height, image.width] += 1
        if mode not in _BYTES:
            deep.append(str(path.relative_to(root)))
        if deep or (size is None and len(sizes) > 1):
            images.clear()  # They will be refused, and may fill the memory.
        else:
            rows.append(row)
            images.append(image if size is None else image.resize((size[1], size[0])))
    _report(root, len(paths), unreadable, deep, skip)
    if size is None and len(sizes) > 1:
        shown = [f"{h} x {w} ({count:,})" for (h, w), count in sizes.most_common()]
        raise ValueError(
            f"{root}: images are of {len(sizes):,} sizes, height x width: {some(shown)}. Say to which size "
            "they shall be scaled, as size=(64, 64)."
        )
    mode = "L" if modes.keys() <= set(_GRAY) else "RGB"
    stacked = np.stack([np.asarray(image.convert(mode)) for image in images])
    return stacked if mode == "RGB" else stacked[..., None], np.array(rows)


def _on_demand(
    paths: Sequence[pathlib.Path],
    root: pathlib.Path,
    size: tuple[int, int],
    skip: bool,
    workers: int | None,
) -> tuple[SourceImages, np.ndarray]:
    """The images of files, to be decoded on demand, and which of the files they are, int64 [n]."""
    modes: dict[int, str] = {}
    unreadable, deep = [], []
    for row, path in enumerate(paths):
        try:
            with Image.open(path) as file:  # reads no more than its size and mode
                modes[row] = file.mode
        except UNREADABLE as error:
            unreadable.append(f"{path.relative_to(root)} ({error})")
            continue
        if modes[row] not in _BYTES:
            deep.append(str(path.relative_to(root)))
    _report(root, len(paths), unreadable, deep, skip)
    rows, channels = np.array(list(modes)), 1 if set(modes.values()) <= set(_GRAY) else 3
    records = Files(root, [str(paths[row].relative_to(root)) for row in rows])
    decoder = Decoder(records, *size, channels, decoding_pool(workers))
    return SourceImages(decoder, np.arange(len(rows)), (*size, channels)), rows


def _report(root: pathlib.Path, count: int, unreadable: list[str], deep: list[str], skip: bool) -> None:
    """Refuses files that cannot be read, or warns of them, and refuses images of more than 8 bits."""
    if unreadable:
        message = f"{root}: {len(unreadable):,} of {count:,} images cannot be read: {some(unreadable)}"
        if not skip:
            raise ValueError(f"{message}. Copy them again, or leave them out with skip_unreadable=True.")
        logging.warning("%s; they are left out", message)
    if deep:
        raise ValueError(
            f"{root}: {len(deep):,} images have more than 8 bits a channel: {some(deep)}. Convert them, or "
            "give their values with data.from_arrays."
        )
    if len(unreadable) == count:
        raise ValueError(f"{root}: none of the {count:,} images can be read.")


def _open(path: pathlib.Path) -> tuple[Image.Image, str]:
    """The image of a file, gray or in colors, and Pillow's mode of it; all errors of Pillow pass."""
    with Image.open(path) as file:
        image = ImageOps.exif_transpose(file)
        return image.convert("L" if file.mode in _GRAY else "RGB"), file.mode

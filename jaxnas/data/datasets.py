"""Datasets by TFDS name: train / search / test, without TensorFlow."""

import contextlib
import dataclasses
import difflib
import functools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from absl import logging

from jaxnas import files
from jaxnas.data.copies import local_copy
from jaxnas.data.encoded import Decoder, Prepared, decoding_pool
from jaxnas.data.labeled import Labeled
from jaxnas.data.splits import SourceImages, Split, hold_out, permutation, select

_CHUNK = 256  # Examples read at a time where all of a split are gone through.
_SAMPLE = 2048  # Images that the moments are estimated from, where each has to be decoded.


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Dataset(Labeled):
    """Real images with labels, in disjoint splits of numbers [n, H, W, C]; see `Labeled`.

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
        for role, split in self.splits.items():
            images = split.images
            if images.ndim != 4 or images.dtype.kind not in "iuf":
                raise ValueError(
                    f"{self.name}: {role} images must be numbers [n, H, W, C], got {images.dtype}"
                    f" {list(images.shape)}"
                )
            if images.shape[1:] != self.image_shape:
                raise ValueError(
                    f"{self.name}: images to {role} are {list(images.shape[1:])}, and those to train on"
                    f" {list(self.image_shape)}"
                )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(H, W, C)."""
        return tuple(self.train.images.shape[1:])


def load(
    name: str,
    *,
    data_dir: str | os.PathLike | None = None,
    source_dir: str | os.PathLike | None = None,
    search_fraction: float = 0.2,
    seed: int = 0,
    test_split: str | None = None,
    image_size: int | None = None,
    workers: int | None = None,
) -> Dataset:
    """Loads a dataset and holds the search split out of its official training part.

    "digits" is prepared by itself on first use, and "fashion_mnist" from the IDX files in
    `source_dir`, as are "mnist", "cifar10", "cifar100" and "imagenet2012" from theirs. Any other name is a
    TFDS dataset that was prepared as array_record before, with features "image" (uint8) and "label".

    Images of many sizes, as those of "imagenet2012", are never in memory as a whole: they are decoded on
    demand to `image_size` by worker processes, see `Decoder`. Labels are in memory; the first time they are
    gathered from all records, and then kept beside these.

    Args:
      name: TFDS name, also with config and version as in "name/config:1.0.0".
      data_dir: where prepared data are; None is TFDS's own default, ~/tensorflow_datasets. What lies in
        gs://bucket/folder is copied to this machine once, see `copies`.
      source_dir: folder with original files, needed once.
      search_fraction: share of the official training part that becomes `search`, stratified.
      seed: of the search split, which is a pure function of the labels, the share and the seed.
      test_split: name of the official part to test on; None for "test", and for "imagenet2012", whose test
        images have no published labels, for "validation".
      image_size: height and width in pixels to which images of many sizes are decoded.
      workers: processes that decode them; 0 for none, None for as many as there are processors.

    Returns:
      The dataset. Nothing in it depends on the machine or the process.

    Raises:
      ValueError: unknown name (with the nearest known one), or a dataset that isn't such images,
        or a search split that would leave nothing to train on.
      FileNotFoundError: the dataset is not prepared; the message says how to.
    """
    builder = open_prepared(name, data_dir, source_dir)
    check_prepared(name, builder.info, ("image", "label"), ("train",))
    image_shape = _image_shape(name, builder.info.features, image_size)
    if test_split is None:
        test_split = "validation" if name.startswith("imagenet2012") else "test"
    check_prepared(name, builder.info, (), (test_split,), "; name one of them as test_split")
    if test_split == "train":
        raise ValueError("test_split must be another one than 'train'")

    if image_size is None:
        read = functools.partial(_read, builder, image_shape=image_shape)
    else:
        read = functools.partial(_encoded, builder, image_shape=image_shape, pool=decoding_pool(workers))
    images, labels = read("train")
    rows = hold_out(labels, {"search": search_fraction}, seed, name)
    splits = {role: Split(role, {"image": select(images, part)}, labels[part]) for role, part in rows.items()}
    gone = sorted(set(labels.tolist()) - set(splits["train"].labels.tolist()))
    if gone:
        raise ValueError(
            f"{name}: with {len(rows['search']):,} of {len(labels):,} images held out for a search,"
            f" {len(rows['train']):,} are left to train on, and none of them has the label {gone[0]}; choose"
            " a smaller search_fraction"
        )
    images, labels = read(test_split)
    splits["test"] = Split("test", {"image": images}, labels)

    classes = class_names(builder.info, [split.labels for split in splits.values()])
    if name.startswith("imagenet2012"):
        from jaxnas.data import imagenet

        mean, std = imagenet.MEAN, imagenet.STD
    else:
        mean, std, _ = moments(splits["train"].images)
    return Dataset(name=name, classes=classes, mean=mean, std=std, **splits)


def open_prepared(name: str, data_dir: str | os.PathLike | None, source_dir: str | os.PathLike | None) -> Any:
    """Returns TFDS's builder of a dataset that is prepared, preparing it where we can.

    Raises:
      ValueError: unknown name (with the nearest known one), or damaged original files.
      FileNotFoundError: the dataset is not prepared as array_record; the message says how to.
      OSError: what was prepared is damaged.
    """
    # Imported here: TFDS takes a while, and those who bring their own images don't need it.
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import constants, read_only_builder

    from jaxnas.data import builders

    root = files.as_path(data_dir if data_dir is not None else constants.DATA_DIR).expanduser()
    base = name.partition(":")[0].partition("/")[0]
    if files.is_remote(root):
        try:
            root, source_dir = local_copy(root, base), None
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{name} is not prepared in {root}: {error} Prepare it in a folder of this machine, and copy"
                f" that one: gcloud storage cp -r ~/tensorflow_datasets/{base} {root}/"
            ) from error
    if root.exists() and not root.is_dir():
        raise NotADirectoryError(f"data_dir is {root}, which is a file; expected a folder for prepared data.")
    builder = None
    if name in builders.BUILDERS and (ours := builders.prepare(name, root, source_dir)) is not None:
        with reading(ours):
            builder = tfds.builder_from_directory(ours)
    if builder is None:
        with reading(root / base), contextlib.suppress(tfds.core.DatasetNotFoundError):
            builder = read_only_builder.builder_from_files(name, data_dir=root)
    if builder is not None and builder.info.file_format.value == "array_record":
        return builder
    if builder is None and name in builders.BUILDERS:
        raise FileNotFoundError(
            f"{name} is not prepared in {root}: name the folder with its files (source_dir)."
            f" {builders.BUILDERS[name].MANUAL_DOWNLOAD_INSTRUCTIONS}"
        )
    known = {*builders.BUILDERS, *tfds.list_builders(with_community_datasets=False)}
    if builder is None and base not in known:
        near = difflib.get_close_matches(base, sorted(known), 1)
        raise ValueError(
            f"unknown dataset {name!r}"
            + (f", did you mean {near[0]!r}?" if near else ".")
            + f" Ours are {', '.join(builders.BUILDERS)}; any other is read as TFDS prepared it"
            f" in {root}"
        )
    found = "not prepared" if builder is None else f"prepared as {builder.info.file_format.value}"
    raise FileNotFoundError(
        f"{name} is {found} in {root}, and array_record is needed. Once, where TensorFlow is"
        f" installed, run: tfds.builder({name!r}, data_dir={str(root)!r},"
        " file_format='array_record').download_and_prepare()"
    )


def check_prepared(
    name: str, info: Any, features: Sequence[str], splits: Sequence[str], hint: str = ""
) -> None:
    """Checks that a prepared data set has what it is read for.

    Args:
      name: of the data set.
      info: TFDS's, of it.
      features: what its examples need to have.
      splits: the parts that it needs to have.
      hint: what to do about one that it does not have, for the message.

    Raises:
      ValueError: it has no such feature or split.
    """
    for kind, wanted, found in (("feature", features, info.features), ("split", splits, info.splits)):
        if missing := sorted(set(wanted) - set(found)):
            raise ValueError(
                f"{name} has no {kind} {' and '.join(map(repr, missing))}, only"
                f" {', '.join(sorted(found))}{hint}"
            )


@contextlib.contextmanager
def reading(folder: str | os.PathLike) -> Iterator[None]:
    """Converts errors while reading prepared data to an OSError that names the folder and the remedy.

    Raises:
      OSError: in place of any other error.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # TFDS, protobuf, JSON and array_record raise several kinds for damaged files.
        raise OSError(
            f"The data prepared in {folder} cannot be read ({type(error).__name__}: {error}). Delete this "
            "folder, and prepare or copy the data again."
        ) from error


def examples(builder: Any, split: str, **options: Any) -> Iterator[dict[str, Any]]:
    """All examples of a part of a data set in their order; `options` are those of `as_data_source`.

    Raises:
      OSError: they are damaged.
    """
    with reading(builder.data_path):
        source = builder.as_data_source(split=split, **options)
        for start in range(0, len(source), _CHUNK):
            yield from source.__getitems__(list(range(start, min(start + _CHUNK, len(source)))))


def class_names(info: Any, labels: Iterable[np.ndarray]) -> tuple[str, ...]:
    """The names of the classes of a prepared data set; where it has none, the numbers of these labels."""
    feature = info.features["label"]
    if (names := getattr(feature, "names", None)) is not None:
        return tuple(names)
    count = getattr(feature, "num_classes", None) or 1 + max(int(array.max()) for array in labels)
    return tuple(map(str, range(count)))


def _image_shape(name: str, features: Any, size: int | None) -> tuple[int, int, int]:
    shape, dtype = features["image"].shape, np.dtype(features["image"].np_dtype)
    if (
        len(shape) != 3
        or dtype != np.uint8
        or shape[2] not in ((1, 3) if None in shape[:2] else (*range(1, 5),))
    ):
        raise ValueError(f"{name}: images must be uint8 [H, W, C], got {dtype} {list(shape)}")
    if None not in shape:
        if size is not None:
            raise ValueError(
                f"{name}: image_size is {size}, and all images are of {shape[0]} x {shape[1]}; it is for"
                " images of many sizes. Leave it out"
            )
        return tuple(shape)
    if size is None:
        raise ValueError(
            f"{name} has images of many sizes; say to which one they are to be decoded, as image_size=224"
        )
    return size, size, shape[2]


def _read(builder: Any, split: str, *, image_shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images uint8 [n, H, W, C] and the labels int32 [n] of a part of a data set."""
    n = builder.info.splits[split].num_examples
    images, labels = np.empty((n, *image_shape), np.uint8), np.empty(n, np.int32)
    for i, example in enumerate(examples(builder, split)):
        images[i], labels[i] = example["image"], example["label"]
    return images, labels


def _encoded(
    builder: Any, split: str, *, image_shape: tuple[int, int, int], pool: Any
) -> tuple[SourceImages, np.ndarray]:
    """Returns the images of a part of a data set, to be decoded on demand, and the labels int32 [n]."""
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
    decoder = Decoder(Prepared(source, f"the {split} part of {builder.name}"), *image_shape, pool)
    return SourceImages(decoder, np.arange(n), image_shape), labels


def moments(images: np.ndarray | SourceImages) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the mean and standard deviation of each channel, float32 [C], and bool [C]: is it constant.

    The standard deviation of a channel that is constant is given as 1. Images that have to be decoded are
    represented by 2,048 of them, always the same ones.
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
    constant = squares == 0
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    std[constant] = 1.0
    return (first + mean).astype(np.float32), std.astype(np.float32), constant

"""Images by TFDS name in roles, without TensorFlow."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from absl import logging

from jaxnas import files
from jaxnas.choice import nearest
from jaxnas.data.copies import data_root, local_copy
from jaxnas.data.encoded import Decoder, Prepared, decoding_pool
from jaxnas.data.labeled import Labeled, make_splits
from jaxnas.data.splits import HeldOut, SourceImages, permutation, select, stratified

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
        copied to this machine once, see `copies`.
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
    given = {role: ({"image": images}, labels) for role, (images, labels) in parts.items()}
    splits = make_splits(name, given, held_out, classes)
    mean, std = _IMAGENET if imagenet else moments(splits["train"].images)[:2]
    return Dataset(name=name, classes=classes, mean=mean, std=std, **splits)


def _digits() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images uint8 [n, 8, 8, 1] from 0 to 16 and labels, in the order of scikit-learn."""
    from sklearn.datasets import load_digits

    images, labels = (np.asarray(x) for x in load_digits(return_X_y=True))
    images, labels = images.astype(np.uint8).reshape(-1, 8, 8, 1), labels.astype(np.int32)
    test, train = stratified(labels, 600, seed=0)
    return {"train": (images[train], labels[train]), "test": (images[test], labels[test])}


def open_prepared(name: str, data_dir: str | os.PathLike | None) -> Any:
    """Returns TFDS's builder of a dataset that is prepared as array_record.

    Raises:
      FileNotFoundError: it is not prepared so; the message says how to.
      OSError: what was prepared is damaged.
    """
    # Imported here: TFDS takes a while, and those who bring their own images don't need it.
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import read_only_builder

    root = data_root(data_dir)
    base = name.partition(":")[0].partition("/")[0]
    if files.is_remote(root):
        root = local_copy(root, base)
    with reading(root / base), contextlib.suppress(tfds.core.DatasetNotFoundError):
        # TFDS would look for configs of names that it knows, and `tools.convert_data` makes none.
        own = root / name / "1.0.0"
        if own.is_dir():
            builder = tfds.builder_from_directory(own)
        else:
            builder = read_only_builder.builder_from_files(name, data_dir=root)
        if builder.info.file_format.value == "array_record":
            return builder
    found = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    raise FileNotFoundError(
        f"{name} is not prepared as array_record in {root}{nearest(base, [*found, 'digits'])} `python -m "
        f"tools.convert_data {base} FOLDER`, in a clone, makes it of original files, if it knows it. Or run "
        f"once, where TensorFlow is installed: tfds.builder({name!r}, data_dir={str(root)!r}, "
        "file_format='array_record').download_and_prepare()"
    )


def check_prepared(name: str, info: Any, features: Iterable[str], splits: Iterable[str]) -> None:
    """Raises a ValueError for a prepared data set that lacks some features or splits; `info` is TFDS's."""
    for kind, wanted, found in (("feature", features, info.features), ("split", splits, info.splits)):
        if missing := sorted(set(wanted) - set(found)):
            raise ValueError(
                f"{name} has no {kind} {' and '.join(map(repr, missing))}, only {', '.join(sorted(found))}."
            )


@contextlib.contextmanager
def reading(folder: str | os.PathLike) -> Iterator[None]:
    """Converts errors while reading prepared data to an OSError that names the folder and the remedy."""
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
    """All examples of a part of a data set in their order; `options` are those of `as_data_source`."""
    with reading(builder.data_path):
        source = builder.as_data_source(split=split, **options)
        for start in range(0, len(source), _CHUNK):
            yield from source.__getitems__(list(range(start, min(start + _CHUNK, len(source)))))


def class_names(info: Any, labels: Iterable[np.ndarray]) -> tuple[str, ...]:
    """Names of the classes of a prepared data set; where it has none, the numbers of these labels."""
    feature = info.features["label"]
    if (names := getattr(feature, "names", None)) is not None:
        return tuple(names)
    count = getattr(feature, "num_classes", None) or 1 + max(int(array.max()) for array in labels)
    return tuple(map(str, range(count)))


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


def moments(images: np.ndarray | SourceImages) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns mean and standard deviation of each channel, float32 [C], and which are constant, bool [C].

    The standard deviation of a constant channel is given as 1. Images that have to be decoded are
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

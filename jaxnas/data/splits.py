"""Labeled examples of one role, and the deterministic draws that data depend on."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxnas.data.roles import check_role, read_only

# Draws of a seed, none of which shares its random bits with an epoch of the batches.
_STREAMS = {"search": 2**64 - 1, "test": 2**64 - 2, "validation": 2**64 - 3}


@functools.lru_cache(maxsize=8)
def permutation(n: int, seed: int, stream: int = 0) -> np.ndarray:
    """Returns the numbers 0 .. n-1 in random order, a pure function of the arguments.

    Args:
      n: how many numbers.
      seed: from 0 to 2**64 - 1.
      stream: from 0 to 2**64 - 1; another stream of the same seed, e.g. the epoch.

    Returns:
      int64 [n], read-only.

    Raises:
      ValueError: the seed or the stream is out of range.
    """
    if not (0 <= seed < 2**64 and 0 <= stream < 2**64):
        name, wrong = ("stream", stream) if 0 <= seed < 2**64 else ("seed", seed)
        raise ValueError(f"{name} is {wrong}, expected 0 to 2**64 - 1.")
    # NumPy promises stable raw bits of a bit generator, but not of Generator.permutation.
    bits = np.random.Philox(key=np.array([seed, stream], np.uint64)).random_raw(n)
    order = np.argsort(bits, kind="stable")
    order.flags.writeable = False
    return order


def uniform(bits: np.random.BitGenerator, n: int) -> np.ndarray:
    """Returns n random numbers in [0, 1), float64, from the next raw bits of a generator."""
    # NumPy promises stable raw bits, but not the same distributions in all its versions.
    return (bits.random_raw(n) >> np.uint64(11)).astype(np.float64) / 2**53


def stratified(
    labels: np.ndarray, size: int, seed: int, role: str = "search"
) -> tuple[np.ndarray, np.ndarray]:
    """Draws `size` examples with the classes in proportion (largest remainders).

    Args:
      labels: int [n], not negative.
      size: how many to draw, 0 < size < n.
      seed: the draw is a pure function of labels, size, seed and role.
      role: what they are drawn for: "search", "validation" or "test".

    Returns:
      (drawn int64 [size], the others int64 [n - size]), each in increasing order; together
      they hold every index once.

    Raises:
      ValueError: the size would leave one of the two sides empty.
    """
    n = len(labels)
    if not 0 < size < n:
        raise ValueError(f"cannot draw {size} of {n} examples and leave both sides with some")
    count = np.bincount(labels)
    quota, remainder = np.divmod(count * size, n)
    most = np.argsort(-remainder, kind="stable")
    quota[most[: size - quota.sum()]] += 1
    order = permutation(n, seed, _STREAMS[role])
    by_class = order[np.argsort(labels[order], kind="stable")]
    first = np.repeat(np.cumsum(count) - count, count)
    rank = np.arange(n) - first
    chosen = rank < np.repeat(quota, count)
    return np.sort(by_class[chosen]), np.sort(by_class[~chosen])


def hold_out(
    labels: np.ndarray, fractions: Mapping[str, float], seed: int, what: str
) -> dict[str, np.ndarray]:
    """Divides examples among roles, each with the classes in proportion.

    Args:
      labels: int [n], not negative.
      fractions: the share that is held out for "test", "validation" and "search", in this order,
        each of what is left by those before; 0 holds nothing out.
      seed: of the draws.
      what: the data, for messages.

    Returns:
      The examples of each role that has some, int64 [k] in increasing order; "train" has the rest.

    Raises:
      ValueError: a share that is none, or one that holds out nothing or all.
    """
    for role, fraction in fractions.items():
        if not 0 <= fraction < 1:
            raise ValueError(f"{what}: {role}_fraction is {fraction}, expected 0 to below 1")
    rest, held_out = np.arange(len(labels)), {}
    for role in ("test", "validation", "search"):
        if not (fraction := fractions.get(role, 0)):
            continue
        size = round(len(rest) * fraction)
        if not 0 < size < len(rest):
            raise ValueError(
                f"{what}: {role}_fraction={fraction} of {len(rest)} examples is {size}, and both {role} and "
                f"what is left to train on need some. Give more examples, or another {role}_fraction."
            )
        drawn, left = stratified(labels[rest], size, seed, role)
        held_out[role], rest = rest[drawn], rest[left]
    return {"train": rest, **held_out}


@dataclasses.dataclass(frozen=True, eq=False)
class SourceImages:
    """Images that are decoded on demand.

    Indexing with an int array [b] reads these images: uint8 [b, H, W, C].

    Args:
      source: a `Decoder`, whose `__getitems__(list of int)` gives examples with an "image".
      rows: int64 [n], which examples of the source are ours.
      image_shape: (H, W, C).
    """

    source: Any
    rows: np.ndarray
    image_shape: tuple[int, int, int]

    dtype = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """As of an array, [N, H, W, C]."""
        return (len(self.rows), *self.image_shape)

    @property
    def ndim(self) -> int:
        """As of an array."""
        return 4

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: np.ndarray | slice) -> np.ndarray:
        wanted = self.rows[index]
        out = np.empty((len(wanted), *self.image_shape), np.uint8)
        for i, example in enumerate(self.source.__getitems__(wanted.tolist())):
            out[i] = example["image"]
        return out


def select(images: np.ndarray | SourceImages, rows: np.ndarray) -> np.ndarray | SourceImages:
    """The examples of some rows, int64 [k]; those that are read on demand are not read."""
    if isinstance(images, SourceImages):
        return dataclasses.replace(images, rows=images.rows[rows])
    return images[rows]


def _joined(first: np.ndarray | SourceImages, second: np.ndarray | SourceImages) -> np.ndarray | SourceImages:
    if isinstance(first, SourceImages) and isinstance(second, SourceImages) and first.source is second.source:
        return dataclasses.replace(first, rows=np.concatenate([first.rows, second.rows]))
    return np.concatenate([first[:], second[:]])


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """Labeled examples that know what they may be used for.

    Args:
      role: "train", "search", "validation" or "test".
      inputs: what a network is given, by name, each [n, ...]: {"image"} or {"tokens", "mask"}.
        NumPy arrays are kept as read-only views.
      labels: int32 [n], not negative, or targets of a regression, floating-point [n].

    Raises:
      ValueError: unknown role, wrong shapes or dtypes, no examples.
    """

    role: str
    inputs: Mapping[str, np.ndarray | SourceImages]
    labels: np.ndarray

    def __post_init__(self):
        check_role(self.role)
        for name, array in self.inputs.items():
            if len(array) != len(self.labels):
                raise ValueError(
                    f"the {self.role} split has {len(array)} of {name!r} and {len(self.labels)} labels"
                )
        whole = self.labels.dtype == np.int32
        if not (whole or self.labels.dtype.kind == "f") or self.labels.ndim != 1:
            raise ValueError(
                "labels must be int32 or floating-point [n], got"
                f" {self.labels.dtype} {list(self.labels.shape)}"
            )
        if not len(self.labels):
            raise ValueError(f"the {self.role} split has no examples")
        if whole and self.labels.min() < 0:
            raise ValueError(
                f"the {self.role} split has examples without a label (label {self.labels.min()})"
            )
        inputs = {k: read_only(x) if isinstance(x, np.ndarray) else x for k, x in self.inputs.items()}
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "labels", read_only(self.labels))

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {list(x.shape[1:])}" for name, x in self.inputs.items())
        return f"Split({self.role!r}, {len(self)} examples of {shapes})"

    @property
    def images(self) -> np.ndarray | SourceImages:
        """The images [n, H, W, C] of a split of images."""
        return self.inputs["image"]

    def take(self, rows: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
        """Reads some examples: the inputs [b, ...] by name and "label" int32 [b], for rows int [b]."""
        rows = np.asarray(rows, np.int64)
        return {**{name: x[rows] for name, x in self.inputs.items()}, "label": self.labels[rows]}

    def join(self, other: "Split") -> "Split":
        """The examples of both splits, those of `other` last, in the role of this one.

        What is read on demand stays so if both have it from one source, and is else read into memory.
        """
        inputs = {k: _joined(x, other.inputs[k]) for k, x in self.inputs.items()}
        return Split(self.role, inputs, np.concatenate([self.labels, other.labels]))

"""Splits with a role, and the two deterministic draws that data depend on."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxnas.data.roles import check_role, read_only, require_role

ROLES = ("train", "search", "test")
_USES = (
    "networks are trained on 'train', compared in a search on 'search', and only the chosen ones are"
    " measured on 'test'"
)


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
        raise ValueError(f"seed and stream must be in [0, 2**64), got {seed} and {stream}")
    # NumPy promises stable raw bits of a bit generator, but not of Generator.permutation.
    bits = np.random.Philox(key=np.array([seed, stream], np.uint64)).random_raw(n)
    order = np.argsort(bits, kind="stable")
    order.flags.writeable = False
    return order


def stratified(labels: np.ndarray, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws `size` examples with the classes in proportion (largest remainders).

    Args:
        labels: int [n], not negative.
        size: how many to draw, 0 < size < n.
        seed: the draw is a pure function of labels, size and seed.

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
    # Stream 2**64 - 1 is no epoch, so the draw shares no random bits with the batches.
    order = permutation(n, seed, 2**64 - 1)
    by_class = order[np.argsort(labels[order], kind="stable")]
    first = np.repeat(np.cumsum(count) - count, count)
    rank = np.arange(n) - first
    chosen = rank < np.repeat(quota, count)
    return np.sort(by_class[chosen]), np.sort(by_class[~chosen])


@dataclasses.dataclass(frozen=True, eq=False)
class SourceImages:
    """Images read on demand from a random-access source, e.g. of `tfds.data_source`.

    Indexing with an int array [b] reads these images: uint8 [b, H, W, C].

    Args:
        source: has `__getitems__(list of int)`, a list of examples with an "image".
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


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """Labelled images that know what they may be used for.

    Whoever scores architectures for a search calls `split.require("search")` first, and whoever
    trains calls `split.require("train")`; so the test split cannot reach either by accident.

    Args:
        role: "train", "search" or "test".
        images: [n, H, W, C], a NumPy array of numbers (kept as a read-only view) or `SourceImages`.
        labels: int32 [n], not negative.

    Raises:
        ValueError: unknown role, wrong shapes or dtypes, no examples.
    """

    role: str
    images: np.ndarray | SourceImages
    labels: np.ndarray

    def __post_init__(self):
        check_role(self.role, ROLES)
        if self.images.ndim != 4 or self.images.dtype.kind not in "iuf":
            raise ValueError(
                f"images must be numbers [n, H, W, C], got {self.images.dtype} {list(self.images.shape)}"
            )
        if self.labels.dtype != np.int32 or self.labels.shape != (len(self.images),):
            raise ValueError(
                f"labels must be int32 [{len(self.images)}], got {self.labels.dtype}"
                f" {list(self.labels.shape)}"
            )
        if not len(self.labels):
            raise ValueError(f"the {self.role} split has no examples")
        if self.labels.min() < 0:
            raise ValueError(
                f"the {self.role} split has examples without a label (label {self.labels.min()})"
            )
        for name in ("images", "labels"):
            if isinstance(value := getattr(self, name), np.ndarray):
                object.__setattr__(self, name, read_only(value))

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Split({self.role!r}, {len(self)} images {list(self.images.shape[1:])})"

    def require(self, *roles: str) -> "Split":
        """Returns the split itself if it has one of the roles.

        Raises:
            ValueError: it has another role.
        """
        require_role("split", self.role, roles, _USES)
        return self

    def take(self, rows: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Reads some examples: (uint8 [b, H, W, C], int32 [b]) for rows int [b]."""
        rows = np.asarray(rows, np.int64)
        return self.images[rows], self.labels[rows]

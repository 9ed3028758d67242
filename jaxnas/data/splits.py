"""Labeled examples of one role, and the deterministic draws that data depend on."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from jaxnas.checks import check_counts, check_numbers
from jaxnas.data.encoded import Decoder
from jaxnas.data.roles import check_role, read_only

# Draws of a seed, none of which shares its random bits with an epoch of the batches.
_STREAMS = {"search": 2**64 - 1, "test": 2**64 - 2, "validation": 2**64 - 3}


@functools.lru_cache(maxsize=8)
def permutation(n: int, seed: int, stream: int = 0) -> np.ndarray:
    """Returns the numbers 0 .. n-1 in random order, int64 [n], read-only.

    Args:
      n: how many numbers.
      seed: from 0 to 2**64 - 1.
      stream: likewise; another stream of the same seed, e.g. the epoch.
    """
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
    """Draws examples with the classes in proportion (largest remainders).

    Args:
      labels: int [n], not negative.
      size: how many to draw, 0 < size < n.
      seed: of the draw.
      role: "search", "validation" or "test"; each has its own draw.

    Returns:
      (drawn int64 [size], the others int64 [n - size]), each in increasing order.
    """
    n, count = len(labels), np.bincount(labels)
    quota, remainder = np.divmod(count * size, n)
    most = np.argsort(-remainder, kind="stable")
    quota[most[: size - quota.sum()]] += 1
    order = permutation(n, seed, _STREAMS[role])
    by_class = order[np.argsort(labels[order], kind="stable")]
    first = np.repeat(np.cumsum(count) - count, count)
    chosen = np.arange(n) - first < np.repeat(quota, count)
    return np.sort(by_class[chosen]), np.sort(by_class[~chosen])


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Shares of the training examples that become the other roles, with the classes in proportion.

    Each share is of what the ones before it leave; 0 holds nothing out. A role whose examples are given
    needs no share.

    Attributes:
      test: share that measures chosen networks, held out first.
      validation: share that monitors trainings.
      search: share that compares architectures.
      seed: of the draws.
    """

    test: float = 0.2
    validation: float = 0.0
    search: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, "test", "validation", "search", least=0, below=1)
        check_counts(self, "seed", least=0, most=2**64 - 1)

    def rows(self, labels: np.ndarray, given: Sequence[str], what: str) -> dict[str, np.ndarray]:
        """Divides examples among the roles.

        Args:
          labels: int [n], not negative.
          given: roles that have examples of their own.
          what: the data, for messages.

        Returns:
          The examples of each role, int64 [k] in increasing order; "train" has the rest.

        Raises:
          ValueError: a share that holds out nothing or all, or no examples for the test.
        """
        if "test" not in given and not self.test:
            raise ValueError(f"{what}: nothing is given or held out for the test. Set test=0.2, say.")
        rest, held_out = np.arange(len(labels)), {}
        for role in ("test", "validation", "search"):
            if role in given or not (share := getattr(self, role)):
                continue
            size = round(len(rest) * share)
            if not 0 < size < len(rest):
                raise ValueError(
                    f"{what}: {role}={share} of {len(rest)} examples is {size}, which leaves one side empty. "
                    "Give more examples, or another share."
                )
            drawn, left = stratified(labels[rest], size, self.seed, role)
            held_out[role], rest = rest[drawn], rest[left]
        return {"train": rest, **held_out}


@dataclasses.dataclass(frozen=True, eq=False)
class SourceImages:
    """Images that are decoded on demand: indexing by an int array [b] gives uint8 [b, H, W, C].

    Args:
      source: of encoded images.
      rows: int64 [n], images of the source.
    """

    source: Decoder
    rows: np.ndarray

    dtype = np.dtype(np.uint8)
    ndim = 4

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[n, H, W, C]."""
        return (len(self.rows), *self.source.shape)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: np.ndarray | slice) -> np.ndarray:
        return self.source.decoded(self.rows[index].tolist())


def select(images: np.ndarray | SourceImages, rows: np.ndarray) -> np.ndarray | SourceImages:
    """Selects examples, int64 [k]; images on demand are not decoded."""
    if isinstance(images, SourceImages):
        return dataclasses.replace(images, rows=images.rows[rows])
    return images[rows]


def _joined(first: np.ndarray | SourceImages, second: np.ndarray | SourceImages) -> np.ndarray | SourceImages:
    if isinstance(first, SourceImages) and isinstance(second, SourceImages) and first.source is second.source:
        return dataclasses.replace(first, rows=np.concatenate([first.rows, second.rows]))
    return np.concatenate([first[:], second[:]])


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """Labeled examples of a role.

    Args:
      role: "train", "search", "validation" or "test".
      inputs: of a network by name, each [n, ...]: {"image"} or {"tokens", "mask"}; read-only.
      labels: int32 [n], not negative, or targets of a regression, floating-point [n]; read-only.

    Raises:
      ValueError: unknown role, wrong shapes or dtypes, no examples.
    """

    role: str
    inputs: Mapping[str, np.ndarray | SourceImages]
    labels: np.ndarray

    def __post_init__(self):
        check_role(self.role)
        dtype, n = self.labels.dtype, len(self.labels)
        if not (dtype == np.int32 or dtype.kind == "f") or self.labels.ndim != 1 or not n:
            raise ValueError(
                f"the {self.role} split has labels {dtype}{list(self.labels.shape)}, expected int32 or "
                "floating-point [n] of at least one example"
            )
        for name, array in self.inputs.items():
            if len(array) != n:
                raise ValueError(f"the {self.role} split has {len(array)} of {name!r} and {n} labels")
        if dtype == np.int32 and self.labels.min() < 0:
            raise ValueError(
                f"the {self.role} split has the label {self.labels.min()}, expected none below 0"
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
        """Reads the examples of rows int [b]: inputs [b, ...] by name, and "label" [b]."""
        rows = np.asarray(rows, np.int64)
        return {**{name: x[rows] for name, x in self.inputs.items()}, "label": self.labels[rows]}

    def join(self, other: "Split") -> "Split":
        """The examples of both splits in the role of this one, those of `other` last.

        Images on demand stay so if both are of one source, and are read into memory otherwise.
        """
        inputs = {k: _joined(x, other.inputs[k]) for k, x in self.inputs.items()}
        return Split(self.role, inputs, np.concatenate([self.labels, other.labels]))

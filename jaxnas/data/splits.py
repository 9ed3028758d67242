"""Data in roles: labeled examples, and the deterministic draws that they depend on."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence, Set
from typing import Any, Generic, Self, TypeVar

import numpy as np

from jaxnas.checks import check_counts, check_numbers
from jaxnas.data.encoded import SourceImages

# Weights are trained on "train" and architectures compared on "search". Fixed networks are watched on
# "validation", and only those that were chosen are measured on "test".
ROLES = ("train", "search", "validation", "test")
P = TypeVar("P", bound=Any)  # The data of one `role`, which a method `join` joins with those of another.
# Draws of a seed, none of which shares its random bits with an epoch of the batches.
_STREAMS = {"search": 2**64 - 1, "test": 2**64 - 2, "validation": 2**64 - 3}


def check_role(role: str) -> None:
    """Raises ValueError for an unknown role."""
    if role not in ROLES:
        raise ValueError(f"unknown role {role!r}, expected one of {', '.join(ROLES)}")


def read_only(array: np.ndarray) -> np.ndarray:
    """Returns a read-only view of an array."""
    view = array.view()
    view.flags.writeable = False
    return view


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Parts(Generic[P]):
    """Data in disjoint parts, one for each role; a task rejects a part for a use that its role is not for."""

    name: str
    train: P
    search: P | None = None
    validation: P | None = None
    test: P

    def __post_init__(self):
        if missing := {"train", "test"} - set(self.splits):
            raise ValueError(
                f"{self.name} has no data of the role {' or '.join(map(repr, sorted(missing)))}."
            )
        for role, part in self.splits.items():
            if part.role != role:
                raise ValueError(
                    f"{self.name}: {role} is data of the role {part.role!r}; expected the role {role!r}."
                )

    @property
    def splits(self) -> dict[str, P]:
        """The parts by role, without those that are None."""
        return {role: part for role in ROLES if (part := getattr(self, role)) is not None}

    def whole(self) -> Self:
        """The data with the part held out for a search joined to the training part."""
        if self.search is None:
            return self
        return dataclasses.replace(self, train=self.train.join(self.search), search=None)


@functools.lru_cache(maxsize=8)
def permutation(n: int, seed: int, stream: int = 0) -> np.ndarray:
    """Returns 0 .. n - 1 in random order, int64 [n], read-only; a seed has many streams, as one per epoch."""
    # NumPy promises stable raw bits of a bit generator, but not of Generator.permutation.
    bits = np.random.Philox(key=np.array([seed, stream], np.uint64)).random_raw(n)
    order = np.argsort(bits, kind="stable")
    order.flags.writeable = False
    return order


def uniform(bits: np.random.BitGenerator, n: int) -> np.ndarray:
    """Returns n random numbers in [0, 1), float64, from the next raw bits of a generator."""
    return (bits.random_raw(n) >> np.uint64(11)).astype(np.float64) / 2**53


def stratified(
    labels: np.ndarray, size: int, seed: int, role: str = "search"
) -> tuple[np.ndarray, np.ndarray]:
    """Draws examples with the classes in proportion (largest remainders), another draw for each role.

    Returns:
      Of labels int [n] the drawn rows, int64 [size], and the others, int64 [n - size], in increasing order.
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

    Each share is of what the ones before it leave; 0 holds nothing out.

    Attributes:
      test: share that measures chosen networks, held out first.
      validation: share that monitors trainings.
      search: share that compares architectures.
      seed: of the draws.

    Example:
      >>> held_out = data.HeldOut(test=0.2, search=0.1, seed=1)  # for `data.from_arrays(..., held_out=)`
    """

    test: float = 0.2
    validation: float = 0.0
    search: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, "test", "validation", "search", least=0, below=1)
        check_counts(self, "seed", least=0, most=2**64 - 1)

    def rows(self, labels: np.ndarray, given: Sequence[str], what: str) -> dict[str, np.ndarray]:
        """Divides examples with labels int [n] among the roles that are not `given`; "train" has the rest.

        Returns:
          The rows of each role, int64 [k] in increasing order.
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


def select(images: np.ndarray | SourceImages, rows: np.ndarray) -> np.ndarray | SourceImages:
    """Selects examples, int64 [k]; images on demand are not decoded."""
    if isinstance(images, SourceImages):
        return dataclasses.replace(images, rows=images.rows[rows])
    return images[rows]


def _joined(first: np.ndarray | SourceImages, second: np.ndarray | SourceImages) -> np.ndarray | SourceImages:
    if (
        isinstance(first, SourceImages)
        and isinstance(second, SourceImages)
        and first.records is second.records
    ):
        return dataclasses.replace(first, rows=np.concatenate([first.rows, second.rows]))
    return np.concatenate([first[:], second[:]])


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """Labeled examples of a role.

    Args:
      role: "train", "search", "validation" or "test".
      inputs: of a network by name, each [n, ...]: {"image"} or {"tokens", "mask"}; read-only.
      labels: int32 [n], not negative, or targets of a regression, floating-point [n]; read-only.
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
        """Reads examples, int [b]: inputs [b, ...] by name, and "label" [b]."""
        rows = np.asarray(rows, np.int64)
        return {**{name: x[rows] for name, x in self.inputs.items()}, "label": self.labels[rows]}

    def join(self, other: Split) -> Split:
        """The examples of both splits in the role of this one, those of `other` last."""
        inputs = {k: _joined(x, other.inputs[k]) for k, x in self.inputs.items()}
        return Split(self.role, inputs, np.concatenate([self.labels, other.labels]))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Labeled(Parts[Split]):
    """Labeled examples in disjoint splits; see `Parts`."""

    classes: tuple[str, ...]  # name of each label; () for a regression

    def __post_init__(self):
        super().__post_init__()
        for role, split in self.splits.items():
            if split.labels.dtype == np.int32 and (largest := split.labels.max()) >= len(self.classes):
                raise ValueError(
                    f"{self.name}: the {role} split has the label {largest}, expected one of "
                    f"{len(self.classes)} classes, numbered from 0."
                )

    @property
    def num_classes(self) -> int:
        """Labels are in [0, num_classes)."""
        return len(self.classes)


def as_labels(labels: Any) -> np.ndarray:
    """Labels as an array, of integers where a column of pandas has whole numbers."""
    array = np.asarray(labels)
    if array.dtype.kind == "O" and all(type(one) is int for one in array.ravel().tolist()):
        return array.astype(np.int64)
    return array


def number_labels(
    labels: Any, classes: Sequence[str] | None, what: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers labels [n], integers from 0 or strings, by their classes.

    Returns:
      The labels as int32 [n], and the classes: the given ones, or the strings that occur in alphabetical
      order, or all integers up to the largest.
    """
    array = as_labels(labels)
    if isinstance(classes, str | Set):
        raise TypeError(f"{what}: classes are {classes!r}, expected a list: their order numbers the labels.")
    if classes is not None and len(set(classes)) < len(classes):
        raise ValueError(f"{what}: classes are {some(classes)}, of which some are named twice.")
    strings = array.dtype.kind in "UT" or (
        array.dtype.kind == "O" and all(isinstance(label, str) for label in array.ravel().tolist())
    )
    if array.ndim != 1 or not array.size or not (strings or array.dtype.kind in "iu"):
        raise ValueError(
            f"{what} are {array.dtype}{list(array.shape)}; expected integers [n] from 0, or strings [n]."
        )
    if strings:
        known = tuple(sorted(set(array.tolist()))) if classes is None else tuple(classes)
        number = {name: i for i, name in enumerate(known)}
        numbers = np.array([number.get(label, -1) for label in array.tolist()], np.int64)
    else:
        distinct = np.unique(array)  # and not a name for each number: labels that are ids may be large
        gaps = np.flatnonzero(distinct != np.arange(len(distinct)))
        if classes is None and distinct[0] >= 0 and gaps.size:
            raise ValueError(
                f"{what} are {len(distinct):,} integers up to {distinct[-1]}, and {gaps[0]} never occurs. "
                "Number the classes from 0 without a gap, as np.unique(labels, return_inverse=True)[1] does, "
                "or give the labels as strings."
            )
        known = tuple(map(str, range(len(distinct)))) if classes is None else tuple(classes)
        numbers = array.astype(np.int64)
    if (wrong := (numbers < 0) | (numbers >= len(known))).any():
        raise ValueError(
            f"{what}: {int(wrong.sum()):,} are in none of the {len(known)} classes {some(known)}; the first "
            f"is {array[wrong][0].item()!r}."
        )
    return numbers.astype(np.int32), known


def check_classes(what: str, classes: Sequence[str]) -> None:
    """Raises a ValueError where all examples have one label, which nothing can be learned from."""
    if len(classes) < 2:
        raise ValueError(f"{what}: all labels are {classes[0]!r}; expected at least two classes.")


def make_splits(
    what: str,
    given: Mapping[str, tuple[Mapping[str, Any], np.ndarray]],
    held_out: HeldOut,
    classes: Sequence[str],
) -> dict[str, Split]:
    """Makes splits of inputs and labels by role, and holds out the roles that are not given."""
    for role, (inputs, labels) in given.items():
        if wrong := [f"{len(x):,} of {k!r}" for k, x in inputs.items() if len(x) != len(labels)]:
            raise ValueError(f"{what}: {wrong[0]} and {len(labels):,} labels to {role}; expected as many.")
    inputs, labels = given["train"]
    rows = held_out.rows(labels if classes else np.zeros(len(labels), np.int32), list(given), what)
    if classes:
        check_classes(what, classes)
        if gone := set(labels.tolist()) - set(labels[rows["train"]].tolist()):
            raise ValueError(
                f"{what}: all examples of the class {classes[min(gone)]!r} are held out, and none is left to "
                "train on. Give more of it, or hold out smaller shares."
            )
    parts = {
        role: ({k: select(x, part) for k, x in inputs.items()}, labels[part]) for role, part in rows.items()
    }
    parts |= {role: part for role, part in given.items() if role != "train"}
    return {role: Split(role, *part) for role, part in parts.items()}


def some(names: Sequence[Any]) -> str:
    """The first five names for a message, and how many more there are."""
    shown = ", ".join(str(name) for name in names[:5])
    return shown + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")

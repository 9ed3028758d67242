"""Batches as a pure function of the step, and whole splits in batches for evaluation."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from jaxnas.checks import check_counts
from jaxnas.data.encoded import ATTEMPTS
from jaxnas.data.splits import SourceImages, Split, permutation, uniform

_CROPS = 2**62  # The stream of random boxes of images.
_SHUFFLES = 2**63  # The streams of the order of batches; those of the order of examples are the epochs.


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """The batches of a training run; `at(step)` depends only on these fields and the step.

    So a resumed run needs no saved state of its data. Every epoch has its own order and takes each example at
    most once (exactly once if the batch size divides the split), but for `repeats`.

    Args:
      split: the examples.
      batch_size: of the global batch, over all processes.
      seed: of the order, from 0 to 2**64 - 1.
      shard: (index, count): this process takes the index-th of count equal parts of each batch.
      repeats: how often an example comes in a row, each time augmented differently (repeated augmentation,
        Hoffer et al. 2020, section 2). Epochs stay as long, and each shows a part of the examples.

    Raises:
      ValueError: a batch larger than the split, or not divisible by the shards.
    """

    split: Split
    batch_size: int
    seed: int = 0
    shard: tuple[int, int] = (0, 1)
    repeats: int = 1

    def __post_init__(self):
        check_counts(self, "batch_size", most=len(self.split))
        check_shards(self.batch_size, self.shard)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return len(self.split) // self.batch_size

    def at(self, step: int) -> dict[str, np.ndarray]:
        """Returns this process's part of the batch of a step.

        Args:
          step: from 0; epoch `step // steps_per_epoch`.

        Returns:
          The inputs of the split by name, as {"image": uint8 [b, H, W, C]}, and "label": int32 [b],
          b = batch_size / shard count.
        """
        return self.split.take(self.own(self.rows(step)))

    def rows(self, step: int) -> np.ndarray:
        """Returns the examples of the batch of a step over all processes, int64 [batch_size]."""
        epoch, position = divmod(int(step), self.steps_per_epoch)
        return self._orders(epoch)[position * self.batch_size : (position + 1) * self.batch_size]

    @functools.cached_property
    def _orders(self) -> Callable[[int], np.ndarray]:
        return functools.lru_cache(maxsize=2)(self.order)  # An epoch is drawn once, not for each batch.

    def order(self, epoch: int) -> np.ndarray:
        """Returns the examples in the order in which the batches of an epoch take them, int64 [n]."""
        order = permutation(len(self.split), self.seed, epoch)
        return order if self.repeats == 1 else np.repeat(order, self.repeats)[: len(order)]

    def own(self, rows: np.ndarray) -> np.ndarray:
        """Returns this process's part of the rows of a batch."""
        index, count = self.shard
        part = len(rows) // count
        return rows[index * part : (index + 1) * part]


def check_shards(batch_size: int, shard: tuple[int, int]) -> None:
    """Raises a ValueError for a batch that processes cannot share equally."""
    if batch_size % shard[1]:
        raise ValueError(
            f"a batch of {batch_size} cannot be shared by {shard[1]} processes; choose a multiple."
        )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class CroppedBatches(Batches):
    """Batches of `SourceImages`, each at a random box.

    The box is a function of seed, step and place in the batch.

    Args:
      scale: smallest share of an image's area that a box has; the published recipes have 0.08.
    """

    scale: float

    def at(self, step: int) -> dict[str, np.ndarray]:
        """Returns this process's part of the batch of a step; see `Batches.at`."""
        rows, images = self.rows(step), self.split.images
        assert isinstance(images, SourceImages)
        draws = np.stack([self.draws(step, place) for place in self.own(np.arange(len(rows)))])
        own = self.own(rows)
        cropped = images.source.decoded(images.rows[own].tolist(), draws, self.scale)
        return {"image": cropped, "label": self.split.labels[own]}

    def draws(self, step: int, place: int) -> np.ndarray:
        """The random numbers of a place in a batch, float64 [ATTEMPTS, 4]."""
        key, counter = np.array([self.seed, _CROPS], np.uint64), np.array([0, step, place, 0], np.uint64)
        bits = np.random.Philox(key=key, counter=counter)
        return uniform(bits, 4 * ATTEMPTS).reshape(ATTEMPTS, 4)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LengthBatches(Batches):
    """Batches of sequences of about one length, each cut behind the longest of them.

    The examples of an epoch, in random order, are sorted by the first of `lengths` that holds them, and cut
    into batches, which come in random order. So each batch but a few has examples of one length.

    Args:
      lengths: of batches, increasing; the last holds all sequences of the split, which has a "mask".

    Raises:
      ValueError: a sequence longer than all lengths, or as `Batches`.
    """

    lengths: tuple[int, ...]

    def __post_init__(self):
        super().__post_init__()
        longest = int(self.sizes.max())
        if longest > self.lengths[-1]:
            raise ValueError(f"a sequence has {longest} tokens, and the largest length is {self.lengths[-1]}")

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """The number of tokens of each example, int64 [n]."""
        return np.asarray(self.split.inputs["mask"]).sum(axis=1)

    def order(self, epoch: int) -> np.ndarray:
        """Returns the examples of an epoch's batches, int64 [steps_per_epoch * batch_size]."""
        # What no whole batch has room for is left out before the examples are sorted: any of them, then.
        random = Batches.order(self, epoch)[: self.steps_per_epoch * self.batch_size]
        bucket = np.searchsorted(self.lengths, self.sizes[random])
        batches = random[np.argsort(bucket, kind="stable")].reshape(-1, self.batch_size)
        return batches[permutation(len(batches), self.seed, _SHUFFLES + epoch)].reshape(-1)

    def at(self, step: int) -> dict[str, np.ndarray]:
        """Returns this process's part of the batch of a step; see `Batches.at`.

        The inputs are [b, t, ...], where t is the same for all processes.
        """
        rows = self.rows(step)
        length = self.lengths[int(np.searchsorted(self.lengths, self.sizes[rows].max()))]
        batch = self.split.take(self.own(rows))
        return {name: x if name == "label" else x[:, :length] for name, x in batch.items()}


def evaluation_batches(split: Split, batch_size: int, limit: int | None = None) -> dict[str, np.ndarray]:
    """Returns a whole split in batches of one shape, for `lax.scan` or `lax.map`.

    The mean of a quantity q over the split is exactly `sum(q * weight) / sum(weight)`.

    Args:
      split: n examples, read into memory.
      batch_size, limit: see `evaluation_rows`.

    Returns:
      The inputs of the split by name, as {"image": uint8 [m, B, H, W, C]}, "label": int32 [m, B] and
      "weight": float32 [m, B], 1, or 0 for padding.
    """
    rows, counts = evaluation_rows(len(split), batch_size, limit)  # [m, B]
    batch = {**split.take(rows.reshape(-1)), "weight": counts.reshape(-1).astype(np.float32)}
    return {name: x.reshape(*rows.shape, *x.shape[1:]) for name, x in batch.items()}


def evaluation_rows(n: int, batch_size: int, limit: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns which of n examples an evaluation takes, in batches of one shape.

    Args:
      n: how many examples there are.
      batch_size: B, also larger than n.
      limit: batches at most; None for all. A fixed random part is drawn, since the first examples of a file
        are often all of one class.

    Returns:
      (rows int64 [m, B], counts bool [m, B]), with m = ceil(n / B) or the limit: examples in increasing
      order, and whether each counts. Padding repeats the first one.
    """
    taken, m = np.arange(n), -(-n // batch_size)
    if limit is not None and limit < m:
        taken, m = np.sort(permutation(n, seed=0)[: limit * batch_size]), limit
    places = np.arange(m * batch_size).reshape(m, batch_size)
    counts = places < len(taken)
    return taken[np.where(counts, places, 0)], counts

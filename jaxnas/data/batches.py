"""Batches as a pure function of the step, and whole roles in batches for evaluation."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from jaxnas.checks import check_counts
from jaxnas.data.encoded import ATTEMPTS, SourceImages
from jaxnas.data.splits import Split, permutation, uniform
from jaxnas.data.text import Stream

_CROPS = 2**62  # The stream of random boxes of images.
_SHUFFLES = 2**63  # The streams of the order of batches; those of the order of examples are the epochs.


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """The batches of a training run; `at(step)` depends only on these fields and the step.

    Every epoch has its own order and takes each example at most once, but for `repeats`.

    Args:
      split: the examples.
      batch_size: of the global batch, over all processes.
      seed: of the order, from 0 to 2**64 - 1.
      shard: (index, count): this process takes the index-th of count equal parts of each batch.
      repeats: how often an example comes in a row, each time augmented differently (repeated augmentation,
        Hoffer et al. 2020, section 2). Epochs stay as long, and each shows a part of the examples.
      crop_scale: smallest share of its area that a random box of an image has, where images are decoded on
        demand; 0 for no such crop. A box is a function of seed, step and place in the batch.
      lengths: of batches of sequences, increasing; the last holds all sequences of the split, which has a
        "mask". Each batch but a few has examples of about one length, and is cut behind the longest of them.
        None to batch examples as they come, at full length.
    """

    split: Split
    batch_size: int
    seed: int = 0
    shard: tuple[int, int] = (0, 1)
    repeats: int = 1
    crop_scale: float = 0.0
    lengths: tuple[int, ...] | None = None

    def __post_init__(self):
        check_counts(self, "batch_size", most=len(self.split))
        check_shards(self.batch_size, self.shard)
        if self.lengths is not None and (longest := int(self._tokens.max())) > self.lengths[-1]:
            raise ValueError(f"a sequence has {longest} tokens, and the largest length is {self.lengths[-1]}")

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return len(self.split) // self.batch_size

    def at(self, step: int) -> dict[str, np.ndarray]:
        """Returns this process's part of the batch of a step, from 0.

        Returns:
          The inputs of the split by name, as {"image": uint8 [b, H, W, C]}, and "label": int32 [b],
          b = batch_size / shard count. With `lengths` inputs are [b, t, ...], t the same for all processes.
        """
        rows, places = self.rows(step), _part(np.arange(self.batch_size), self.shard)
        own = rows[places]
        if self.crop_scale:
            images = self.split.images
            assert isinstance(images, SourceImages)
            draws = np.stack([self.draws(step, place) for place in places])
            return {"image": images.decoded(own, draws, self.crop_scale), "label": self.split.labels[own]}
        batch = self.split.take(own)
        if self.lengths is None:
            return batch
        length = self.lengths[int(np.searchsorted(self.lengths, self._tokens[rows].max()))]
        return {name: x if name == "label" else x[:, :length] for name, x in batch.items()}

    def rows(self, step: int) -> np.ndarray:
        """Returns the examples of the batch of a step over all processes, int64 [batch_size]."""
        epoch, position = divmod(int(step), self.steps_per_epoch)
        return self._orders(epoch)[position * self.batch_size : (position + 1) * self.batch_size]

    def draws(self, step: int, place: int) -> np.ndarray:
        """The random numbers of the box of a place in a batch, float64 [ATTEMPTS, 4]."""
        key, counter = np.array([self.seed, _CROPS], np.uint64), np.array([0, step, place, 0], np.uint64)
        bits = np.random.Philox(key=key, counter=counter)
        return uniform(bits, 4 * ATTEMPTS).reshape(ATTEMPTS, 4)

    @functools.cached_property
    def _tokens(self) -> np.ndarray:
        """The number of tokens of each example, int64 [n]."""
        return np.asarray(self.split.inputs["mask"]).sum(axis=1)

    @functools.cached_property
    def _orders(self) -> Callable[[int], np.ndarray]:
        return functools.lru_cache(maxsize=2)(self._order)  # An epoch is drawn once, not for each batch.

    def _order(self, epoch: int) -> np.ndarray:
        """The examples in the order in which the batches of an epoch take them, int64."""
        n = len(self.split)
        random = np.repeat(permutation(n, self.seed, epoch), self.repeats)[:n]
        if self.lengths is None:
            return random
        # What no whole batch has room for is left out before the examples are sorted: any of them, then.
        random = random[: self.steps_per_epoch * self.batch_size]
        bucket = np.searchsorted(self.lengths, self._tokens[random])
        batches = random[np.argsort(bucket, kind="stable")].reshape(-1, self.batch_size)
        return batches[permutation(len(batches), self.seed, _SHUFFLES + epoch)].reshape(-1)


def check_shards(batch_size: int, shard: tuple[int, int]) -> None:
    """Raises a ValueError for a batch that processes cannot share equally."""
    if batch_size % shard[1]:
        raise ValueError(
            f"a batch of {batch_size} cannot be shared by {shard[1]} processes; choose a multiple."
        )


def _part(rows: np.ndarray, shard: tuple[int, int]) -> np.ndarray:
    """A process's part of the rows of a batch."""
    index, count = shard
    part = len(rows) // count
    return rows[index * part : (index + 1) * part]


def evaluation_batches(split: Split, batch_size: int, limit: int | None = None) -> dict[str, np.ndarray]:
    """Returns a whole split, or `limit` batches of it, in batches of one shape, for `lax.scan` or `lax.map`.

    Returns:
      The inputs of the split by name, as {"image": uint8 [m, B, H, W, C]}, "label": int32 [m, B] and
      "weight": float32 [m, B], 1, or 0 for padding.
    """
    rows, counts = evaluation_rows(len(split), batch_size, limit)  # [m, B]
    batch = {**split.take(rows.reshape(-1)), "weight": counts.reshape(-1).astype(np.float32)}
    return {name: x.reshape(*rows.shape, *x.shape[1:]) for name, x in batch.items()}


def evaluation_rows(n: int, batch_size: int, limit: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns which of n examples an evaluation takes, int64 [m, B], and whether each counts, bool [m, B].

    These are all in order, or a fixed random part under a limit, since the first examples of a file are often
    all of one class. Padding repeats the first one.
    """
    taken, m = np.arange(n), -(-n // batch_size)
    if limit is not None and limit < m:
        taken, m = np.sort(permutation(n, seed=0)[: limit * batch_size]), limit
    places = np.arange(m * batch_size).reshape(m, batch_size)
    counts = places < len(taken)
    return taken[np.where(counts, places, 0)], counts


@dataclasses.dataclass(frozen=True, eq=False)
class ContiguousBatches:
    """Batches for a recurrent model: row r continues in the next batch where it stopped.

    Of a stream of n tokens, the first n - 1 are cut into `batch_size` rows of `(n - 1) // batch_size`; the
    rest of a row after `steps_per_epoch` pieces of `length` is not used.

    Args:
      stream: n tokens.
      batch_size: B, rows of the global batch, over all processes.
      length: T, tokens of each row in a batch.
      shard: (index, count): this process takes the index-th of count equal parts of the rows.
      seed: from 0 to 2**64 - 1: each epoch starts at a random place of the stream and continues at its
        beginning when it comes to its end.
    """

    stream: Stream
    batch_size: int
    length: int
    shard: tuple[int, int] = (0, 1)
    seed: int = 0

    def __post_init__(self):
        n = len(self.stream)
        if self.batch_size * self.length > n - 1:
            raise ValueError(
                f"{self.batch_size} rows of {self.length} tokens and the next one are "
                f"{self.batch_size * self.length + 1} tokens, and the {self.stream.role!r} stream has {n}; "
                f"{self.batch_size} rows of {(n - 1) // self.batch_size} would fit."
            )
        check_shards(self.batch_size, self.shard)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return (len(self.stream) - 1) // self.batch_size // self.length

    def at(self, step: int) -> dict[str, np.ndarray]:
        """Returns this process's part of the batch of a step, from 0.

        Returns:
          {"tokens": int32 [b, T], "targets": int32 [b, T], the token after each of them,
          "documents": int32 [b, T], not decreasing in a row, the document of each of `tokens`,
          "first": bool [b], True at the first step of an epoch: what the model remembers must be
          cleared}, b = batch_size / shard count.
        """
        epoch, position = divmod(int(step), self.steps_per_epoch)
        n, rows = len(self.stream), _part(np.arange(self.batch_size), self.shard)
        bits = np.random.Philox(key=np.array([self.seed, epoch], np.uint64))
        starts = rows * ((n - 1) // self.batch_size) + position * self.length + int(bits.random_raw()) % n
        places = starts[:, None] + np.arange(self.length + 1)
        tokens = self.stream.tokens[places % n]
        # After the end of the stream its beginning is another document: nothing leads to it.
        again, places = np.divmod(places[:, :-1], n)
        documents = self.stream.documents
        return {
            "tokens": tokens[:, :-1],
            "targets": tokens[:, 1:],
            "documents": documents[places] + again.astype(np.int32) * (documents[-1] + 1),
            "first": np.full(len(rows), position == 0),
        }


def evaluation_streams(stream: Stream, batch_size: int, length: int) -> dict[str, np.ndarray]:
    """Returns a whole text in batches of one shape, for a `lax.scan` that carries the memory.

    Every token but the first is a target of weight 1 exactly once, and padding has weight 0. Row r continues
    in the next batch where it stopped.

    Returns:
      {"tokens", "targets", "documents": int32 [m, B, T], as of `ContiguousBatches`,
      "weight": float32 [m, B, T], "first": bool [m, B], True in the first batch}, with
      m = ceil(ceil((n - 1) / B) / T), where n is the length of the stream.
    """
    targets = len(stream) - 1
    if not targets:
        raise ValueError(f"the {stream.role!r} stream has one token, expected at least two.")
    row = -(-targets // batch_size)
    m = -(-row // length)
    offset = np.arange(m * length).reshape(m, 1, length)
    places = np.arange(batch_size)[:, None] * row + offset
    real = (offset < row) & (places < targets)
    places = np.minimum(places, targets - 1)
    return {
        "tokens": stream.tokens[places],
        "targets": stream.tokens[places + 1],
        "documents": stream.documents[places],
        "weight": real.astype(np.float32),
        "first": np.broadcast_to(np.arange(m)[:, None] == 0, (m, batch_size)).copy(),
    }

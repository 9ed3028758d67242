"""Batches of a text in which each row continues where it stopped, and whole texts for evaluation."""

import dataclasses

import numpy as np

from jaxnas.data.batches import check_shards
from jaxnas.data.corpus import Stream


@dataclasses.dataclass(frozen=True, eq=False)
class ContiguousBatches:
    """Batches for a recurrent model: row r continues in the next batch where it stopped.

    `at(step)` depends only on these fields and the step. Of a stream of n tokens, the first n - 1 are cut
    into `batch_size` rows of `(n - 1) // batch_size`; the rest of a row after `steps_per_epoch` pieces of
    `length` is not used.

    Args:
      stream: n tokens.
      batch_size: B, rows of the global batch, over all processes.
      length: T, tokens of each row in a batch.
      shard: (index, count): this process takes the index-th of count equal parts of the rows.
      seed: from 0 to 2**64 - 1: each epoch starts at a random place of the stream and continues at its
        beginning when it comes to its end.

    Raises:
      ValueError: more tokens in a batch than the stream has, or a batch not divisible by the shards.
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
        """Returns this process's part of the batch of a step.

        Args:
          step: from 0; epoch `step // steps_per_epoch`.

        Returns:
          {"tokens": int32 [b, T], "targets": int32 [b, T], the token after each of them,
          "documents": int32 [b, T], not decreasing in a row, the document of each of `tokens`,
          "first": bool [b], True at the first step of an epoch: what the model remembers must be
          cleared}, b = batch_size / shard count.
        """
        epoch, position = divmod(int(step), self.steps_per_epoch)
        n, (index, count) = len(self.stream), self.shard
        part = self.batch_size // count
        rows = np.arange(index * part, (index + 1) * part)
        starts = rows * ((n - 1) // self.batch_size) + position * self.length + self._offset(epoch)
        places = starts[:, None] + np.arange(self.length + 1)
        tokens = self.stream.tokens[places % n]
        # After the end of the stream its beginning is another document: nothing leads to it.
        again, places = np.divmod(places[:, :-1], n)
        documents = self.stream.documents
        return {
            "tokens": tokens[:, :-1],
            "targets": tokens[:, 1:],
            "documents": documents[places] + again.astype(np.int32) * (documents[-1] + 1),
            "first": np.full(part, position == 0),
        }

    def _offset(self, epoch: int) -> int:
        """Place of the stream at which an epoch starts."""
        # NumPy promises stable raw bits of a bit generator, but not of Generator.integers.
        bits = np.random.Philox(key=np.array([self.seed, epoch], np.uint64))
        return int(bits.random_raw()) % len(self.stream)


def evaluation_streams(stream: Stream, batch_size: int, length: int) -> dict[str, np.ndarray]:
    """Returns a whole text in batches of one shape, for a `lax.scan` that carries the memory.

    Every token but the first is a target of weight 1 exactly once, and padding has weight 0: the perplexity
    is exactly `exp(sum(nats * weight) / sum(weight))`. Row r continues in the next batch where it stopped;
    with one row, a model sees all that is before a target.

    Args:
      stream: n tokens.
      batch_size: B, rows of (n - 1) / B targets, rounded up.
      length: T.

    Returns:
      {"tokens", "targets", "documents": int32 [m, B, T], as of `ContiguousBatches`,
      "weight": float32 [m, B, T], "first": bool [m, B], True in the first batch}, with
      m = ceil(ceil((n - 1) / B) / T).

    Raises:
      ValueError: a stream of one token.
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

"""Batches as a pure function of the step, and whole splits in batches for evaluation."""

import dataclasses
import operator

import numpy as np

from jaxnas.data.splits import Split, permutation


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """The batches of a training run; `at(step)` depends on nothing but these fields and the step.

    So there is no state to save: a run that resumes at a step sees what it would have seen. Every
    epoch has its own order and takes each example at most once (exactly once if the batch size
    divides the split, or with drop_remainder=False).

    Args:
        split: the examples.
        batch_size: of the global batch, over all processes.
        seed: of the order, from 0 to 2**64 - 1.
        shard: (index, count): this process takes the index-th of count equal parts of each batch.
        shuffle: False keeps the order of the split.
        drop_remainder: False ends each epoch with a smaller batch.

    Raises:
        ValueError: a batch larger than the split, not divisible by the shards, or the like.
    """

    split: Split
    batch_size: int
    seed: int = 0
    shard: tuple[int, int] = (0, 1)
    shuffle: bool = True
    drop_remainder: bool = True

    def __post_init__(self):
        n, (index, count) = len(self.split), self.shard
        if not 0 < self.batch_size <= n:
            raise ValueError(
                f"batch_size must be from 1 to the {n} examples of the {self.split.role!r} split,"
                f" got {self.batch_size}"
            )
        if not 0 <= index < count:
            raise ValueError(f"shard must be (index, count) with 0 <= index < count, got {self.shard}")
        sizes = [self.batch_size] if self.drop_remainder else [self.batch_size, n % self.batch_size]
        for size in sizes:
            if size % count:
                last = "" if size == self.batch_size else ", the last of an epoch,"
                raise ValueError(f"a batch of {size}{last} cannot be shared by {count} processes")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be in [0, 2**64), got {self.seed}")

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        whole, rest = divmod(len(self.split), self.batch_size)
        return whole + (rest > 0 and not self.drop_remainder)

    def at(self, step: int) -> dict[str, np.ndarray]:
        """Returns this process's part of the batch of a step.

        Args:
            step: from 0; epoch `step // steps_per_epoch`.

        Returns:
            The inputs of the split by name, as {"image": uint8 [b, H, W, C]}, and "label": int32 [b],
            b = batch_size / shard count (less in the last batch of an epoch if drop_remainder is
            False).

        Raises:
            ValueError: a negative step.
        """
        step = operator.index(step)
        if step < 0:
            raise ValueError(f"step must not be negative, got {step}")
        epoch, position = divmod(step, self.steps_per_epoch)
        n = len(self.split)
        order = permutation(n, self.seed, epoch) if self.shuffle else np.arange(n)
        rows = order[position * self.batch_size : (position + 1) * self.batch_size]
        index, count = self.shard
        part = len(rows) // count
        return self.split.take(rows[index * part : (index + 1) * part])


def evaluation_batches(split: Split, batch_size: int) -> dict[str, np.ndarray]:
    """Returns a whole split in batches of one shape, for `lax.scan` or `lax.map`.

    The last batch is filled up with copies of the first example, of weight 0; so the mean of a
    quantity q over the split is exactly `sum(q * weight) / sum(weight)`.

    Args:
        split: n examples, read into memory.
        batch_size: B, also larger than n.

    Returns:
        The inputs of the split by name, as {"image": uint8 [m, B, H, W, C]}, "label": int32 [m, B] and
        "weight": float32 [m, B], with m = ceil(n / B), in the order of the split; weights are 1 or 0.

    Raises:
        ValueError: batch_size is not positive.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be positive, got {batch_size}")
    n = len(split)
    m = -(-n // batch_size)
    rows = np.arange(m * batch_size)
    batch = split.take(np.where(rows < n, rows, 0))
    batch["weight"] = (rows < n).astype(np.float32)
    return {name: x.reshape(m, batch_size, *x.shape[1:]) for name, x in batch.items()}

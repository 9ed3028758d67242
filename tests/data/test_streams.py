"""Streams of tokens: their roles, and batches whose rows go on from one to the next."""

import dataclasses
import math

import numpy as np
import refusals
from hypothesis import given
from hypothesis import strategies as st

from jaxnas.data.batches import ContiguousBatches, evaluation_streams
from jaxnas.data.text import Stream


def numbered(n, role="train", documents=1):
    """A stream whose tokens say where they are."""
    tokens = np.arange(n, dtype=np.int32)
    return Stream(role, tokens, tokens * documents // n, n_bytes=n)


@given(st.data())
def test_rows_go_on_where_they_stopped(draw):
    count, length = draw.draw(st.integers(1, 3)), draw.draw(st.integers(1, 9))
    batch_size = count * draw.draw(st.integers(1, 4))
    n = draw.draw(st.integers(batch_size * length + 1, batch_size * length * 6 + 1))
    seed = draw.draw(st.integers(0, 2**64 - 1))
    k_documents = draw.draw(st.integers(1, n))
    stream = numbered(n, documents=k_documents)
    batches = ContiguousBatches(stream, batch_size, length, seed=seed)
    k = batches.steps_per_epoch
    row = (n - 1) // batch_size
    assert k == row // length >= 1
    for epoch in (0, 2):
        steps = [batches.at(epoch * k + i) for i in range(k)]
        rows = {name: np.concatenate([s[name] for s in steps], 1) for name in steps[0].keys() - {"first"}}
        start = rows["tokens"][0, 0]
        for r in range(batch_size):
            places = start + r * row + np.arange(k * length)
            np.testing.assert_array_equal(rows["tokens"][r], places % n)
            np.testing.assert_array_equal(rows["targets"][r], (places + 1) % n)
            expected = stream.documents[places % n] + k_documents * (places >= n)
            np.testing.assert_array_equal(rows["documents"][r], expected)
        # No token is seen twice in an epoch.
        assert len(np.unique(rows["tokens"])) == rows["tokens"].size
        assert [s["first"].tolist() for s in steps] == [[i == 0] * batch_size for i in range(k)]
    # Any other object at any step gives the same: nothing is remembered.
    step = draw.draw(st.integers(0, 10**9))
    batch = batches.at(step)
    expected = dict.fromkeys(("tokens", "targets", "documents"), (np.int32, (batch_size, length)))
    expected["first"] = np.bool_, (batch_size,)
    assert {name: (x.dtype, x.shape) for name, x in batch.items()} == expected
    # The processes together have the global batch, in order.
    parts = [
        ContiguousBatches(stream, batch_size, length, (i, count), seed).at(np.int64(step))
        for i in range(count)
    ]
    for name, values in batch.items():
        assert {len(part[name]) for part in parts} == {batch_size // count}
        np.testing.assert_array_equal(np.concatenate([p[name] for p in parts]), values)


def test_epochs_start_elsewhere_with_a_seed():
    batches = [ContiguousBatches(numbered(1000), 4, 10, seed=seed) for seed in (0, 1)]
    starts = [[int(one.at(24 * e)["tokens"][0, 0]) for e in range(20)] for one in batches]
    assert batches[0].steps_per_epoch == 24 and len(set(starts[0])) == 20 and starts[0] != starts[1]
    assert max(starts[0]) > 700 and min(starts[0]) < 300
    assert starts[0][:2] == [259, 638]  # The draw doesn't change between versions.


def test_what_cannot_be_is_refused(corpus):
    def batches(*names, **changes):
        good = dict(batch_size=2, length=5)
        return lambda: ContiguousBatches(numbered(100), **good | changes), ValueError, *names

    assert ContiguousBatches(numbered(11), 2, 5).steps_per_epoch == 1  # the smallest
    none = np.zeros(0, np.int32)
    refusals.check(
        (lambda: numbered(3, "valid"), ValueError, "'valid'"),
        (lambda: Stream("train", none, none, 5), ValueError, "'train' stream has no tokens"),
        (lambda: dataclasses.replace(corpus, validation=corpus.test), ValueError, "'test'"),
        *(
            (lambda x=x: x.fill(0), ValueError, "read-only")
            for x in (corpus.train.tokens, corpus.train.documents)
        ),
        batches("'train'", "rows of 9", batch_size=10, length=10),
        batches("batch of 3", batch_size=3, shard=(0, 2)),
        (lambda: evaluation_streams(numbered(1, "test"), 1, 1), ValueError, "'test'"),
    )


@given(st.integers(2, 80), st.integers(1, 12), st.integers(1, 12))
def test_evaluation_has_every_token_once(n, batch_size, length):
    stream = numbered(n, "test", documents=3)
    out = evaluation_streams(stream, batch_size, length)
    m = math.ceil(math.ceil((n - 1) / batch_size) / length)
    dtypes = {"tokens": np.int32, "targets": np.int32, "documents": np.int32, "weight": np.float32}
    for name, dtype in dtypes.items():
        assert out[name].shape == (m, batch_size, length) and out[name].dtype == dtype
    assert set(out["weight"].ravel()) <= {0.0, 1.0}
    real = out["weight"] == 1
    assert sorted(out["targets"][real]) == list(range(1, n))
    np.testing.assert_array_equal(out["tokens"][real] + 1, out["targets"][real])
    np.testing.assert_array_equal(out["documents"], stream.documents[out["tokens"]])
    # What is real of a row goes on from batch to batch, and padding is at its end.
    for r in range(batch_size):
        row, weight = out["tokens"][:, r].ravel(), real[:, r].ravel()
        assert not np.any(weight[1:] & ~weight[:-1])
        assert np.all(np.diff(row[weight]) == 1)
    assert out["first"].tolist() == [[i == 0] * batch_size for i in range(m)]

"""Streams of tokens: their roles, and batches whose rows go on from one to the next."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnas import data, tasks


def numbered(n, role="train", documents=1):
    """A stream whose tokens say where they are."""
    tokens = np.arange(n, dtype=np.int32)
    return data.Stream(role, tokens, tokens * documents // n, n_bytes=n)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"role": "valid"}, "'valid'"),
        ({"tokens": np.zeros(3, np.int64)}, r"tokens must be int32 \[n\], got int64 \[3\]"),
        ({"tokens": np.zeros((3, 1), np.int32)}, "3, 1"),
        ({"documents": np.zeros(2, np.int32)}, r"int32 \[3\], as the tokens, got int32 \[2\]"),
        ({"documents": np.zeros(3, np.int64)}, r"int32 \[3\], as the tokens, got int64 \[3\]"),
        ({"documents": np.array([0, 1, 0], np.int32)}, "numbered from 0"),
        ({"documents": np.array([-1, 0, 0], np.int32)}, "must be numbered from 0"),
        ({"tokens": np.array([0, -7, 0], np.int32)}, "has the token -7"),
        ({"n_bytes": 0}, "n_bytes"),
        ({"tokens": np.zeros(0, np.int32), "documents": np.zeros(0, np.int32)}, "the train stream has no"),
    ],
)
def test_stream_errors(change, message):
    good = {"role": "train", "n_bytes": 5}
    good |= {name: np.zeros(3, np.int32) for name in ("tokens", "documents")}
    data.Stream(**good)
    with pytest.raises(ValueError, match=message):
        data.Stream(**(good | change))


def test_the_test_stream_cannot_be_searched(corpus):
    with pytest.raises(ValueError, match="'test'"):
        dataclasses.replace(corpus, validation=corpus.test)
    with pytest.raises(ValueError, match="'train'"):
        dataclasses.replace(corpus, train=None)
    task = tasks.Language(data=corpus, length=8)
    for use in (lambda: task.batches("test", 4, 0), lambda: task.evaluation("train")):
        with pytest.raises(ValueError, match="the role '(test|train)' may not be used for"):
            use()
    with pytest.raises(dataclasses.FrozenInstanceError):
        corpus.test.role = "search"
    for values in (corpus.train.tokens, corpus.train.documents, corpus.vocabulary.counts):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0


# Batches


@given(st.data())
def test_rows_go_on_where_they_stopped(draw):
    count = draw.draw(st.integers(1, 3))
    batch_size = count * draw.draw(st.integers(1, 4))
    length = draw.draw(st.integers(1, 9))
    n = draw.draw(st.integers(batch_size * length + 1, batch_size * length * 6 + 1))
    seed = draw.draw(st.integers(0, 2**64 - 1))
    k_documents = draw.draw(st.integers(1, n))
    stream = numbered(n, documents=k_documents)
    batches = data.ContiguousBatches(stream, batch_size, length, seed=seed)
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
            assert k_documents == stream.documents[-1] + 1
            np.testing.assert_array_equal(rows["documents"][r], expected)
        # No token is seen twice in an epoch.
        assert len(np.unique(rows["tokens"])) == rows["tokens"].size
        assert [s["first"].tolist() for s in steps] == [[i == 0] * batch_size for i in range(k)]
    # Any other object at any step gives the same: nothing is remembered.
    step = draw.draw(st.integers(0, 10**9))
    batch = batches.at(step)
    assert {name: (x.dtype, x.shape) for name, x in batch.items()} == {
        "tokens": (np.int32, (batch_size, length)),
        "targets": (np.int32, (batch_size, length)),
        "documents": (np.int32, (batch_size, length)),
        "first": (np.bool_, (batch_size,)),
    }
    # The processes together have the global batch, in order.
    parts = [
        data.ContiguousBatches(stream, batch_size, length, (i, count), seed).at(np.int64(step))
        for i in range(count)
    ]
    for name, values in batch.items():
        assert {len(part[name]) for part in parts} == {batch_size // count}
        np.testing.assert_array_equal(np.concatenate([p[name] for p in parts]), values)


def test_epochs_start_elsewhere_with_a_seed():
    stream = numbered(1000)
    batches = data.ContiguousBatches(stream, 4, 10, seed=0)
    k = batches.steps_per_epoch
    starts = [int(batches.at(epoch * k)["tokens"][0, 0]) for epoch in range(20)]
    assert len(set(starts)) == 20 and max(starts) > 700 and min(starts) < 300
    assert starts[:2] == [259, 638]  # The draw doesn't change between versions.
    other = data.ContiguousBatches(stream, 4, 10, seed=1)
    assert int(other.at(0)["tokens"][0, 0]) != starts[0]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"batch_size": 10, "length": 10}, "'train'"),
        ({"batch_size": 200, "length": 9}, "fits is 11"),
        ({"batch_size": 9, "length": 100}, "fits is this"),
        ({"batch_size": 100, "length": 100}, "fits is 1"),
        ({"batch_size": 0}, "'train'"),
        ({"length": -1}, "positive, got -1"),
        ({"batch_size": 3, "shard": (0, 2)}, "batch of 3"),
        ({"shard": (2, 2)}, "0 <= index < count"),
        ({"seed": -1}, "0, 2"),
    ],
)
def test_batches_errors(arguments, message):
    good = {"batch_size": 2, "length": 5}
    data.ContiguousBatches(numbered(100), **good)
    with pytest.raises(ValueError, match=message):
        data.ContiguousBatches(numbered(100), **(good | arguments))


def test_batches_need_a_step_that_is_not_negative():
    assert data.ContiguousBatches(numbered(11), 2, 5).steps_per_epoch == 1
    with pytest.raises(ValueError, match="negative, got -1"):
        data.ContiguousBatches(numbered(11), 2, 5).at(-1)


@given(st.integers(2, 80), st.integers(1, 12), st.integers(1, 12))
def test_evaluation_has_every_token_once(n, batch_size, length):
    stream = numbered(n, "test", documents=3)
    out = data.evaluation_streams(stream, batch_size, length)
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


def test_perplexity_is_exact_whatever_the_batches(corpus):
    counts = np.maximum(corpus.vocabulary.counts, 1)
    nats = -np.log(counts / counts.sum())
    expected = math.exp(nats[corpus.test.tokens[1:]].mean())
    for batch_size, length in ((1, 7), (5, 8), (64, 100)):
        out = data.evaluation_streams(corpus.test, batch_size, length)
        total = (nats[out["targets"]] * out["weight"]).sum()
        assert math.exp(total / out["weight"].sum()) == pytest.approx(expected, rel=1e-12)


def test_evaluation_errors():
    with pytest.raises(ValueError, match="'test'"):
        data.evaluation_streams(numbered(1, "test"), 1, 1)
    with pytest.raises(ValueError, match="batch_size"):
        data.evaluation_streams(numbered(5), 0, 1)
    with pytest.raises(ValueError, match="positive, got 0"):
        data.evaluation_streams(numbered(5), 1, 0)

"""Data sets by name, splits, and batches."""

import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import refusals
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from small_texts import prepare_examples

from jaxnas import tasks
from jaxnas.data.batches import Batches, evaluation_batches
from jaxnas.data.images import Dataset
from jaxnas.data.images import load as load_images
from jaxnas.data.splits import Split, permutation, stratified
from jaxnas.data.text import load_text


@pytest.fixture(scope="module")
def digits():
    return load_images("digits")


def pairs(images, labels):
    """Images with their labels, in an order of their own."""
    return sorted((image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True))


def numbered_split(n, role="train"):
    """A split in which the image says which example it is."""
    images = np.zeros((n, 1, 2, 1), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 1, 0] = np.divmod(np.arange(n), 256)
    return Split(role, {"image": images}, np.arange(n, dtype=np.int32))


LABELS = np.arange(6, dtype=np.int32)
THOUSAND = numbered_split(1000, "search")


def test_digits_are_scikit_learns(digits):
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.uint8)
    ours = [digits.train, digits.search, digits.test]
    assert [len(split) for split in ours] == [958, 239, 600]
    assert sorted(sum((pairs(split.images[:], split.labels) for split in ours), [])) == pairs(images, labels)
    # The test split keeps scikit-learn's order.
    test, _ = stratified(labels, 600, seed=0)
    np.testing.assert_array_equal(digits.test.images[..., 0].reshape(600, 64), images[test])
    np.testing.assert_array_equal(digits.test.labels, labels[test])
    assert digits.num_classes == 10 and digits.image_shape == (8, 8, 1)
    # They are standardized by the images to train on.
    np.testing.assert_allclose(digits.mean, digits.train.images.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(digits.std, digits.train.images.std((0, 1, 2)), rtol=1e-6)


def test_digits_of_another_seed_and_size(digits):
    other = load_images("digits", seed=1, search_fraction=200 / 1197)
    assert (len(other.search), len(other.train), len(other.test)) == (200, 997, 600)
    found, before = (set(pairs(x.search.images[:], x.search.labels)) for x in (other, digits))
    assert not found <= before
    np.testing.assert_array_equal(other.test.images, digits.test.images)


@pytest.mark.parametrize("part", ["wikitext2-train", "wikitext2-test", "dataset_info.json", "features.json"])
def test_prepared_data_that_are_damaged_are_named(part, text_root, tmp_path, corpus):
    def damaged(change):
        shutil.copytree(text_root / "wikitext2", tmp_path / change.__name__ / "wikitext2")
        (path,) = (tmp_path / change.__name__).glob(f"wikitext2/*/{part}*")
        change(path)
        return lambda: load_text("wikitext2", data_dir=tmp_path / change.__name__)

    def cut(path):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    def changed(path):
        start = path.read_bytes()
        path.write_bytes(bytes(255 - x for x in start[:99]) + start[99:])

    changes = cut, changed, pathlib.Path.unlink
    refusals.check(*((damaged(change), OSError, str(tmp_path), "Delete") for change in changes))


def test_splits_and_data_sets_that_cannot_be_right_are_refused(digits):
    good = dict(role="train", inputs={"image": np.zeros((3, 2, 2, 1), np.uint8)}, labels=LABELS[:3])
    names, one = tuple("abcdef"), np.ones(1, np.float32)
    whole = dict(name="some", train=numbered_split(6), test=numbered_split(6, "test"), classes=names)

    def split(*names, **changes):
        return lambda: Split(**good | changes), ValueError, *names

    def dataset(*names, **changes):
        return lambda: Dataset(**whole | changes, mean=one, std=one), ValueError, *names

    def test(*shape, dtype=np.float64):
        return Split("test", {"image": np.zeros((2, *shape), dtype)}, LABELS[:2])

    def batches(*names, **arguments):
        return lambda: Batches(numbered_split(10), **arguments), ValueError, *names

    refusals.check(
        batches("batch_size is 11", batch_size=11),
        batches("batch_size is 0", batch_size=0),
        batches("batch of 5", batch_size=5, shard=(0, 2)),
        split("'tset'", role="tset"),
        split("int32", labels=np.zeros(3, np.int64)),
        split("label -1", labels=LABELS[:3] - 1),
        split("at least one", inputs={"image": np.zeros((0, 2, 2, 1))}, labels=LABELS[:0]),
        dataset("'train'", test=numbered_split(3)),
        dataset("'test'", train=None, test=None),
        dataset("the label 5", classes=names[:5]),
        dataset("images to test", "[2, 1, 3, 1]", test=test(1, 3, 1)),
        dataset("images to test", "bool", test=test(1, 2, 1, dtype=bool)),
        (lambda: dataclasses.replace(digits, search=digits.test), ValueError, "'test'"),
        (lambda: setattr(digits.test, "role", "search"), dataclasses.FrozenInstanceError, "role"),
        (lambda: digits.train.images.fill(0), ValueError, "read-only"),
    )


@given(st.lists(st.integers(0, 5), min_size=2, max_size=60), st.data())
def test_stratified_is_a_partition_in_proportion(labels, draw):
    labels = np.array(labels)
    size = draw.draw(st.integers(1, len(labels) - 1))
    seed = draw.draw(st.integers(0, 2**64 - 1))
    drawn, rest = stratified(labels, size, seed)
    assert len(drawn) == size
    assert sorted([*drawn, *rest]) == list(range(len(labels)))
    expected = np.bincount(labels) * size / len(labels)
    got = np.bincount(labels[drawn], minlength=len(expected))
    assert np.all(np.abs(got - expected) < 1)
    np.testing.assert_array_equal(stratified(labels, size, seed)[0], drawn)


def test_draws_do_not_change_between_versions():
    assert permutation(8, seed=0).tolist() == [0, 2, 1, 5, 4, 3, 6, 7]
    assert permutation(8, seed=0, stream=1).tolist() != [0, 2, 1, 5, 4, 3, 6, 7]


@given(st.data())
def test_batches(draw):
    n = draw.draw(st.integers(1, 300))
    batch_size = draw.draw(st.integers(1, n))
    seed = draw.draw(st.integers(0, 2**64 - 1))
    count = draw.draw(st.sampled_from([c for c in (1, 2, 3, 4) if batch_size % c == 0]))
    split = numbered_split(n)
    batches = Batches(split, batch_size, seed)
    k = batches.steps_per_epoch
    assert k == n // batch_size
    epochs = []
    for epoch in (0, 3):
        seen = np.concatenate([batches.at(epoch * k + i)["label"] for i in range(k)]).tolist()
        assert len(set(seen)) == k * batch_size
        epochs.append(seen)
    if len(seen) >= 20:  # each epoch has an order of its own
        assert epochs[0] != epochs[1] and sorted(seen) not in epochs
    # Any other object at any step gives the same: nothing is remembered.
    step = draw.draw(st.integers(0, 10**9))
    batch = batches.at(step)
    again = Batches(split, batch_size, seed).at(np.int64(step))
    np.testing.assert_array_equal(batch["image"], again["image"])
    np.testing.assert_array_equal(batch["label"], again["label"])
    assert batch["image"].dtype == np.uint8 and batch["label"].dtype == np.int32
    pixels = batch["image"].reshape(batch_size, 2).astype(np.int32)
    np.testing.assert_array_equal(pixels @ np.array([256, 1]), batch["label"])
    # Examples that are repeated follow each other, in the order of those that come once.
    repeats = draw.draw(st.integers(1, 4))
    often = Batches(split, batch_size, seed, repeats=repeats)
    seen = np.concatenate([often.at(3 * k + i)["label"] for i in range(k)])
    assert often.steps_per_epoch == k
    np.testing.assert_array_equal(seen, np.repeat(epochs[1], repeats)[: len(seen)])
    # The processes together have the global batch, in order.
    parts = [Batches(split, batch_size, seed, (i, count)).at(step) for i in range(count)]
    assert {len(part["label"]) for part in parts} == {batch_size // count}
    for name in ("image", "label"):
        np.testing.assert_array_equal(np.concatenate([p[name] for p in parts]), batch[name])


@given(st.integers(1, 40), st.integers(1, 50), st.one_of(st.none(), st.integers(1, 6)))
def test_an_evaluation_has_each_example_once_or_a_fixed_draw_of_them(n, batch_size, limit):
    split = numbered_split(n, "search")
    given = () if limit is None else (limit,)
    out, again = (evaluation_batches(split, batch_size, *given) for _ in range(2))
    whole = -(-n // batch_size)
    m = min(limit or whole, whole)
    assert out["image"].shape == (m, batch_size, 1, 2, 1)
    assert out["label"].shape == out["weight"].shape == (m, batch_size)
    assert out["weight"].dtype == np.float32 and set(out["weight"].ravel()) <= {0.0, 1.0}
    real = out["weight"] == 1
    labels = out["label"][real]
    assert len(set(labels.tolist())) == len(labels) == min(n, m * batch_size)
    np.testing.assert_array_equal(out["image"][real], split.images[labels])
    np.testing.assert_array_equal(again["label"], out["label"])
    if limit is None:
        np.testing.assert_array_equal(labels, split.labels)
    # A limited one is not the beginning of a file.
    assert 300 < evaluation_batches(THOUSAND, 50, 2)["label"].mean() < 700


def test_unknown_names_and_what_to_do(tmp_path):
    def case(name, *names):
        return lambda: load_images(name, data_dir=tmp_path), FileNotFoundError, *names

    (tmp_path / "file").write_text("")
    refusals.check(
        case("digit", "'digits'"),
        case("svhn_cropped", "tools.convert_data svhn_cropped", "array_record"),
        (lambda: tasks.Images(data="mnist").load(tmp_path / "file"), OSError, "file"),
    )


def test_any_other_prepared_dataset(tmp_path):
    import tensorflow_datasets as tfds

    def examples(count):
        for i in range(count):
            Image.new("RGB", (5, 4), (10 * i,) * 3).save(tmp_path / f"{i}.png")
            yield {"image": str(tmp_path / f"{i}.png"), "label": i % 2}

    image = tfds.features.Image(shape=(4, 5, 3), encoding_format="png")
    features = {"image": image, "label": tfds.features.ClassLabel(num_classes=2)}
    path = prepare_examples(tmp_path, features, train=examples(6), test=examples(4))
    dataset = load_images("some_examples", data_dir=tmp_path, search_fraction=1 / 3)
    assert dataset.image_shape == (4, 5, 3) and dataset.num_classes == 2
    assert sorted(dataset.test.images[:, 0, 0, 0].tolist()) == [0, 10, 20, 30]
    np.testing.assert_array_equal(dataset.train.images[:, 0, 0, 0] // 10 % 2, dataset.train.labels)
    assert dataset.mean.shape == dataset.std.shape == (3,)
    info = path / "dataset_info.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"fileFormat": "tfrecord"}))
    with pytest.raises(FileNotFoundError, match="array_record"):
        load_images("some_examples", data_dir=tmp_path)


def test_data_are_read_without_tensorflow(digits, corpus, text_root):
    code = (
        "import sys\nfrom jaxnas.data import images, text\n"
        "print(images.load('digits').train.images.sum())\n"
        "assert 'tensorflow_datasets' not in sys.modules\n"
        f"print(len(text.load_text('wikitext2', data_dir={str(text_root)!r}).test))\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.stdout.split() == [str(digits.train.images.sum()), str(len(corpus.test))], run.stderr

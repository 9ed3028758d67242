"""Datasets, splits, batches and augmentation."""

import dataclasses
import gzip
import io
import json
import pathlib
import shutil
import struct
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnas import data, tasks
from jaxnas.data import augment
from jaxnas.data.splits import Split, permutation, stratified


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("tfds")


@pytest.fixture(scope="module")
def digits(data_dir):
    return data.load("digits", data_dir=data_dir)


def rows_of(images):
    """The images as a set of byte strings with how often each occurs."""
    rows, counts = np.unique(images.reshape(len(images), -1), axis=0, return_counts=True)
    return {row.tobytes(): int(count) for row, count in zip(rows, counts, strict=True)}


def numbered_split(n, role="train"):
    """A split in which the image says which example it is."""
    images = np.zeros((n, 1, 2, 1), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 1, 0] = np.divmod(np.arange(n), 256)
    return Split(role, {"image": images}, np.arange(n, dtype=np.int32))


LABELS = np.arange(6, dtype=np.int32)


# Datasets


def test_digits_are_scikit_learns(digits):
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.uint8)
    ours = [digits.train, digits.search, digits.test]
    assert [len(split) for split in ours] == [958, 239, 600]
    assert rows_of(np.concatenate([split.images for split in ours])) == rows_of(images)
    # The test split keeps scikit-learn's order, and every image its label.
    test, _ = stratified(labels, 600, seed=0)
    np.testing.assert_array_equal(digits.test.images[..., 0].reshape(600, 64), images[test])
    np.testing.assert_array_equal(digits.test.labels, labels[test])
    label_of = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    for split in ours:
        assert [label_of[image.tobytes()] for image in split.images] == split.labels.tolist()
    assert digits.num_classes == 10 and digits.image_shape == (8, 8, 1)


def test_digits_are_stratified_and_normalised_by_train_alone(digits):
    total = np.bincount(np.concatenate([s.labels for s in (digits.train, digits.search)]))
    np.testing.assert_allclose(np.bincount(digits.search.labels), total * 239 / 1197, atol=1)
    mean, std = digits.train.images.mean((0, 1, 2)), digits.train.images.std((0, 1, 2))
    np.testing.assert_allclose(digits.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(digits.std, std, rtol=1e-6)
    out = augment.normalize(jnp.asarray(digits.train.images), digits.mean, digits.std)
    assert out.dtype == jnp.float32
    assert abs(float(out.mean())) < 1e-4 and abs(float(out.std()) - 1) < 1e-4


def test_digits_again_other_seed_and_size(digits, data_dir):
    again = data.load("digits", data_dir=data_dir)
    other = data.load("digits", data_dir=data_dir, seed=1, search_fraction=200 / 1197)
    for role in ("train", "search", "test"):
        a, b = getattr(digits, role), getattr(again, role)
        np.testing.assert_array_equal(a.images, b.images)
        np.testing.assert_array_equal(a.labels, b.labels)
    assert (len(other.search), len(other.train), len(other.test)) == (200, 997, 600)
    assert rows_of(other.search.images) != rows_of(digits.search.images)
    np.testing.assert_array_equal(other.test.images, digits.test.images)


@pytest.mark.parametrize("part", ["digits-train", "digits-test", "dataset_info.json", "features.json"])
def test_prepared_data_that_are_damaged_are_named(part, data_dir, tmp_path, digits):
    def damaged(change):
        shutil.copytree(data_dir / "digits", tmp_path / change.__name__ / "digits")
        (path,) = (tmp_path / change.__name__).glob(f"digits/*/{part}*")
        change(path)
        return lambda: data.load("digits", data_dir=tmp_path / change.__name__)

    def cut(path):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    def changed(path):
        start = path.read_bytes()
        path.write_bytes(bytes(255 - x for x in start[:99]) + start[99:])

    changes = cut, changed, pathlib.Path.unlink
    refusals.check(*((damaged(change), OSError, str(tmp_path), "Delete") for change in changes))


def test_splits_cannot_be_changed(digits):
    with pytest.raises(dataclasses.FrozenInstanceError):
        digits.test.role = "search"
    with pytest.raises(ValueError, match="read-only"):
        digits.train.images[0] = 0


def test_the_test_split_cannot_be_searched(digits):
    with pytest.raises(ValueError, match="'test'"):
        dataclasses.replace(digits, search=digits.test)
    task = tasks.Images(data=digits)
    for use in (lambda: task.batches("test", 4, 0), lambda: task.evaluation("train")):
        with pytest.raises(ValueError, match="the role '(test|train)' may not be used for"):
            use()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"role": "tset"}, "'tset'"),
        ({"labels": np.zeros(2, np.int32)}, "'image'"),
        ({"labels": np.zeros(3, np.int64)}, "int32"),
        ({"labels": np.zeros((3, 1), np.int32)}, "int32"),
        ({"labels": np.full(3, -1, np.int32)}, "without a label"),
        ({"inputs": {"image": np.zeros((0, 2, 2, 1))}, "labels": np.zeros(0, np.int32)}, "no examples"),
    ],
)
def test_split_errors(change, message):
    good = {
        "role": "train",
        "inputs": {"image": np.zeros((3, 2, 2, 1), np.uint8)},
        "labels": np.zeros(3, np.int32),
    }
    Split(**good)
    with pytest.raises(ValueError, match=message):
        Split(**(good | change))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"test": numbered_split(3)}, "'train'"),
        ({"train": None, "test": None}, "'test'"),
        ({"classes": tuple("abcde")}, "the label 5"),
        ({"test": Split("test", {"image": np.zeros((2, 1, 3, 1))}, LABELS[:2])}, r"test are \[1, 3, 1\]"),
        ({"test": Split("test", {"image": np.zeros((2, 1, 2, 3))}, LABELS[:2])}, r"test are \[1, 2, 3\]"),
        ({"test": Split("test", {"image": np.zeros((2, 1, 2))}, LABELS[:2])}, "must be numbers"),
        ({"test": Split("test", {"image": np.zeros((2, 1, 2, 1), bool)}, LABELS[:2])}, "must be numbers"),
    ],
)
def test_dataset_errors(change, message):
    one = np.ones(1, np.float32)
    good = dict(name="some", train=numbered_split(6), test=numbered_split(6, "test"), classes=tuple("abcdef"))
    assert data.Dataset(**good, mean=one, std=one).image_shape == (1, 2, 1)
    with pytest.raises(ValueError, match=message):
        data.Dataset(**(good | change), mean=one, std=one)


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


# Batches


@settings(deadline=None)
@given(st.data())
def test_batches(draw):
    n = draw.draw(st.integers(1, 300))
    batch_size = draw.draw(st.integers(1, n))
    seed = draw.draw(st.integers(0, 2**64 - 1))
    count = draw.draw(st.sampled_from([c for c in (1, 2, 3, 4) if batch_size % c == 0]))
    split = numbered_split(n)
    batches = data.Batches(split, batch_size, seed)
    k = batches.steps_per_epoch
    assert k == n // batch_size
    for epoch in (0, 3):
        seen = np.concatenate([batches.at(epoch * k + i)["label"] for i in range(k)])
        assert len(set(seen.tolist())) == k * batch_size
    # Any other object at any step gives the same: nothing is remembered.
    step = draw.draw(st.integers(0, 10**9))
    batch = batches.at(step)
    again = data.Batches(split, batch_size, seed).at(np.int64(step))
    np.testing.assert_array_equal(batch["image"], again["image"])
    np.testing.assert_array_equal(batch["label"], again["label"])
    assert batch["image"].dtype == np.uint8 and batch["label"].dtype == np.int32
    pixels = batch["image"].reshape(batch_size, 2).astype(np.int32)
    np.testing.assert_array_equal(pixels @ np.array([256, 1]), batch["label"])
    # The processes together have the global batch, in order.
    parts = [data.Batches(split, batch_size, seed, (i, count)).at(step) for i in range(count)]
    assert {len(part["label"]) for part in parts} == {batch_size // count}
    for name in ("image", "label"):
        np.testing.assert_array_equal(np.concatenate([p[name] for p in parts]), batch[name])


@given(st.integers(1, 60), st.integers(1, 4), st.data())
def test_repeated_examples_follow_each_other(n, repeats, draw):
    batch_size = draw.draw(st.integers(1, n))
    split = numbered_split(n)
    once, often = (data.Batches(split, batch_size, seed=5, repeats=r) for r in (1, repeats))
    k = once.steps_per_epoch
    assert often.steps_per_epoch == k
    seen = np.concatenate([often.at(k + i)["label"] for i in range(k)])  # of the second epoch
    order = np.concatenate([once.at(k + i)["label"] for i in range(k)])
    np.testing.assert_array_equal(seen, np.repeat(order, repeats)[: len(seen)])


def test_each_epoch_has_its_own_order():
    batches = data.Batches(numbered_split(10), 5)
    first, second = (
        [label for i in steps for label in batches.at(i)["label"].tolist()] for steps in ((0, 1), (2, 3))
    )
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != list(range(10)) and first != second


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"batch_size": 11}, "'train'"),
        ({"batch_size": 0}, "batch_size must be from 1"),
        ({"batch_size": 5, "shard": (0, 2)}, "batch of 5"),
        ({"batch_size": 4, "shard": (2, 2)}, "0 <= index < count"),
        ({"batch_size": 4, "seed": -1}, "seed must be in"),
        ({"batch_size": 4, "repeats": 0}, "at least 1"),
    ],
)
def test_batches_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        data.Batches(numbered_split(10), **arguments)


def test_batches_need_a_step_that_is_not_negative():
    with pytest.raises(ValueError, match="step must not be negative"):
        data.Batches(numbered_split(4), 2).at(-1)


@given(st.integers(1, 40), st.integers(1, 50))
def test_evaluation_batches_are_exact(n, batch_size):
    split = numbered_split(n, "search")
    out = data.evaluation_batches(split, batch_size)
    m = -(-n // batch_size)
    assert out["image"].shape == (m, batch_size, 1, 2, 1)
    assert out["label"].shape == out["weight"].shape == (m, batch_size)
    assert out["weight"].dtype == np.float32 and out["weight"].sum() == n
    real = out["weight"] == 1
    np.testing.assert_array_equal(out["label"][real], split.labels)
    np.testing.assert_array_equal(out["image"][real], split.images)
    assert set(out["weight"].ravel()) <= {0.0, 1.0}
    assert (out["label"] * out["weight"]).sum() == split.labels.sum()


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 6))
def test_a_limited_evaluation_is_a_fixed_draw_of_the_split(n, batch_size, limit):
    split = numbered_split(n, "search")
    out = data.evaluation_batches(split, batch_size, limit)
    assert len(out["label"]) == min(limit, -(-n // batch_size))
    real = out["label"][out["weight"] == 1]
    assert len(real) == len(set(real.tolist())) == min(n, limit * batch_size)
    assert set(real.tolist()) <= set(split.labels.tolist())
    np.testing.assert_array_equal(data.evaluation_batches(split, batch_size, limit)["label"], out["label"])


def test_a_limited_evaluation_is_not_the_beginning_of_a_file():
    labels = data.evaluation_batches(numbered_split(1000, "search"), 50, 2)["label"]
    assert 300 < labels.mean() < 700


# IDX files


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def fashion(tmp_path):
    """A folder with four small files, two spellings and two of them compressed, and the arrays."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "files"
    folder.mkdir()
    arrays = {}
    for prefix, n in (("train", 40), ("t10k", 20)):
        images = rng.integers(0, 256, (n, 28, 28), np.uint8)
        labels = (np.arange(n) % 10).astype(np.uint8)
        arrays[prefix] = images, labels
        dotted = "." if prefix == "train" else "-"
        (folder / f"{prefix}-images{dotted}idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{prefix}-labels{dotted}idx1-ubyte").write_bytes(idx(labels))
    return folder, arrays


def test_fashion_mnist_from_files(fashion, tmp_path):
    folder, arrays = fashion
    root = tmp_path / "tfds"
    dataset = data.load("fashion_mnist", data_dir=root, source_dir=folder, search_fraction=0.25)
    assert [len(s) for s in (dataset.train, dataset.search, dataset.test)] == [30, 10, 20]
    np.testing.assert_array_equal(dataset.test.images[..., 0], arrays["t10k"][0])
    np.testing.assert_array_equal(dataset.test.labels, arrays["t10k"][1])
    official = np.concatenate([dataset.train.images, dataset.search.images])
    assert rows_of(official) == rows_of(arrays["train"][0])
    assert np.bincount(dataset.search.labels).tolist() == [1] * 10
    # Prepared once, the files are not needed again, and TFDS reads it by the same name.
    again = data.load("fashion_mnist", data_dir=root, search_fraction=0.25)
    np.testing.assert_array_equal(again.train.images, dataset.train.images)
    import tensorflow_datasets as tfds

    [digest] = (path.name for path in (root / "fashion_mnist").iterdir())
    source = tfds.data_source(f"fashion_mnist/{digest}:1.0.0", split="test", data_dir=root, download=False)
    np.testing.assert_array_equal(source[3]["image"][..., 0], arrays["t10k"][0][3])
    assert sorted(path.name for path in root.iterdir()) == ["fashion_mnist"]


def test_fashion_mnist_without_its_files(fashion, tmp_path):
    folder, _ = fashion
    root = tmp_path / "tfds"
    (tmp_path / "empty").mkdir()
    for source_dir, message in (
        (None, "source_dir"),
        (tmp_path / "nowhere", "there is no folder"),
        (tmp_path / "empty", "has no file"),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            data.load("fashion_mnist", data_dir=root, source_dir=source_dir)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(19, np.uint8)))
    with pytest.raises(ValueError, match="20 images"):
        data.load("fashion_mnist", data_dir=root, source_dir=folder)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(np.full(20, 10, np.uint8)))
    with pytest.raises(ValueError, match="expected labels 0"):
        data.load("fashion_mnist", data_dir=root, source_dir=folder)
    assert not list(root.glob("*"))  # Nothing half-made is left.


IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "content, message",
    [
        (gzip.compress(idx(IMAGES))[:-12], "truncated or corrupt gzip"),
        (gzip.compress(idx(IMAGES))[:-8] + b"12345678", "truncated or corrupt gzip"),
        (idx(IMAGES)[:-1], "expected 24"),
        (idx(IMAGES) + b"x", "expected 24"),
        (idx(IMAGES)[:9], "header has 9"),
        (idx(IMAGES[0, 0]), "begin with 00"),
        (b"\x89PNG\r\n", "begin with 00"),
        (b"", "expected some content,"),
    ],
)
def test_idx_errors_name_the_file(tmp_path, content, message):
    from jaxnas.data import image_builders

    path = tmp_path / "some-images"
    path.write_bytes(idx(IMAGES))
    np.testing.assert_array_equal(image_builders.read_idx(path, 3), IMAGES)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"some-images: .*{message}"):
        image_builders.read_idx(path, 3)


# Names, and what TFDS has prepared


def test_unknown_names_and_what_to_do(data_dir):
    with pytest.raises(ValueError, match="'digit'"):
        data.load("digit", data_dir=data_dir)
    with pytest.raises(ValueError, match="'fashion_mnist'"):
        data.load("fashionmnist", data_dir=data_dir)
    with pytest.raises(FileNotFoundError, match="svhn_cropped is not"):
        data.load("svhn_cropped", data_dir=data_dir)
    with pytest.raises(ValueError, match="search_fraction is 1"):
        data.load("digits", data_dir=data_dir, search_fraction=1.0)
    with pytest.raises(ValueError, match="'validation'"):
        data.load("digits", data_dir=data_dir, test_split="validation")
    with pytest.raises(ValueError, match="another one than 'train'"):
        data.load("digits", data_dir=data_dir, test_split="train")


def test_any_other_prepared_dataset(tmp_path):
    import tensorflow_datasets as tfds
    from PIL import Image

    class TinyImages(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("2.0.0")
        code_path = None

        def _info(self):
            image = tfds.features.Image(shape=(4, 5, 3), encoding_format="png")
            label = tfds.features.ClassLabel(num_classes=2)
            features = tfds.features.FeaturesDict({"image": image, "label": label})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(6), "test": self._generate_examples(4)}

        def _generate_examples(self, n):
            for i in range(n):
                png = io.BytesIO()
                Image.fromarray(np.full((4, 5, 3), 10 * i, np.uint8)).save(png, "PNG")
                png.seek(0)
                yield i, {"image": png, "label": i % 2}

    builder = TinyImages(data_dir=tmp_path, file_format="array_record")
    builder.download_and_prepare()
    dataset = data.load("tiny_images", data_dir=tmp_path, search_fraction=1 / 3)
    assert dataset.image_shape == (4, 5, 3) and dataset.num_classes == 2
    assert sorted(dataset.test.images[:, 0, 0, 0].tolist()) == [0, 10, 20, 30]
    assert all(
        image[0, 0, 0] // 10 % 2 == label
        for image, label in zip(dataset.train.images, dataset.train.labels, strict=True)
    )
    assert dataset.mean.shape == dataset.std.shape == (3,)

    info = builder.data_path / "dataset_info.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"fileFormat": "tfrecord"}))
    with pytest.raises(FileNotFoundError, match="is prepared as tfrecord"):
        data.load("tiny_images", data_dir=tmp_path)


def test_two_processes_prepare_at_once_and_without_tensorflow(tmp_path, digits):
    code = (
        "import sys; from jaxnas import data\n"
        "assert 'tensorflow_datasets' not in sys.modules\n"
        f"print(data.load('digits', data_dir={str(tmp_path)!r}).train.images.sum())\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True) for _ in range(2)]
    for run in runs:
        out, err = run.communicate(timeout=120)
        assert run.returncode == 0, err
        assert out.split() == [str(digits.train.images.sum())]
    assert [path.name for path in tmp_path.iterdir()] == ["digits"]


def test_who_comes_second_uses_what_the_first_prepared(tmp_path, monkeypatch):
    from jaxnas.data import builders

    final = builders.prepare("digits", tmp_path)
    kept = (final / "features.json").stat().st_ino
    monkeypatch.setattr(type(final), "exists", _false_once(type(final).exists, final))
    assert builders.prepare("digits", tmp_path) == final
    assert (final / "features.json").stat().st_ino == kept
    assert [path.name for path in tmp_path.iterdir()] == ["digits"]


def _false_once(exists, path):
    asked = []

    def patched(self, **kwargs):
        if self == path and not asked:
            asked.append(path)
            return False
        return exists(self, **kwargs)

    return patched


# Augmentation


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(1, 256, (64, 6, 8, 3)).astype(np.uint8)


AUGMENTATIONS = {
    "pad_and_crop": lambda key, x: augment.pad_and_crop(key, x, 2),
    "flip": augment.flip,
    "erase": lambda key, x: augment.erase(key, x, probability=0.5),
    "mixup": lambda key, x: augment.mixup(key, x, jnp.arange(len(x)), len(x))[0],
    "cutmix": lambda key, x: augment.cutmix(key, x, jnp.arange(len(x)), len(x))[0],
    "random_resized_crop": augment.random_resized_crop,
}


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.bfloat16])
def test_augmentation_keeps_shape_and_dtype_under_jit(name, dtype, images):
    function = jax.jit(AUGMENTATIONS[name])
    x = jnp.asarray(images).astype(dtype)
    out = function(jax.random.key(0), x)
    assert out.shape == x.shape and out.dtype == x.dtype
    np.testing.assert_array_equal(out, function(jax.random.key(0), x))
    changed = (out != x).any((1, 2, 3))
    assert changed.any() and (function(jax.random.key(1), x) != out).any()


def test_pad_and_crop_is_a_shift(images):
    out = np.asarray(augment.pad_and_crop(jax.random.key(0), jnp.asarray(images), 2))
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)))
    found = set()
    for image, source in zip(out, padded, strict=True):
        shifts = [
            (i, j) for i in range(5) for j in range(5) if np.array_equal(source[i : i + 6, j : j + 8], image)
        ]
        assert len(shifts) == 1
        found.add(shifts[0])
    assert {i for i, _ in found} == {j for _, j in found} == set(range(5))
    same = augment.pad_and_crop(jax.random.key(0), jnp.asarray(images), 0)
    np.testing.assert_array_equal(same, images)


def test_flip_mirrors_some(images):
    out = np.asarray(augment.flip(jax.random.key(0), jnp.asarray(images)))
    mirrored = (out == images[:, :, ::-1]).all((1, 2, 3))
    untouched = (out == images).all((1, 2, 3))
    assert np.all(mirrored ^ untouched) and 16 < mirrored.sum() < 48
    every = augment.flip(jax.random.key(0), jnp.asarray(images), probability=1.0)
    np.testing.assert_array_equal(every, images[:, :, ::-1])


def test_erased_parts_are_rectangles(images):
    out = np.asarray(AUGMENTATIONS["erase"](jax.random.key(0), jnp.asarray(images)))
    gone = (out == 0).all(-1)
    np.testing.assert_array_equal(out[~gone], images[~gone])
    for mask in gone:
        rows, columns = mask.any(1), mask.any(0)
        np.testing.assert_array_equal(mask, rows[:, None] & columns[None, :])
    assert 16 < gone.any((1, 2)).sum() < 48
    # Sides are rounded to whole pixels: 16 exact pixels at most, 4.6 of a side.
    assert 1 <= gone.sum((1, 2))[gone.any((1, 2))].mean() <= 16


def test_mixup_blends_images_as_labels(images):
    x = jnp.asarray(images).astype(jnp.float32)
    out, soft = augment.mixup(jax.random.key(0), x, jnp.arange(64), 64, alpha=0.5)
    assert soft.shape == (64, 64) and soft.dtype == jnp.float32
    np.testing.assert_allclose(soft.sum(1), 1, rtol=1e-6)
    assert np.all((soft > 0).sum(1) <= 2)
    # Each label is one image here, so the soft labels are the blending weights.
    np.testing.assert_allclose(out, np.einsum("bk,khwc->bhwc", soft, x), rtol=1e-4)

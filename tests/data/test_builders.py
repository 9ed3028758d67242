"""Original files of MNIST, Fashion-MNIST and CIFAR, and what is prepared of them under a digest."""

import gzip
import json
import struct

import numpy as np
import pytest
import refusals
from PIL import Image

from jaxnas import data, tasks
from jaxnas.data import builders, image_builders

CIFAR = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
LABELS = np.arange(20, dtype=np.uint8) % 10


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder, seed=0, compress=lambda content: content):
    """The four files, small, in two spellings; returns the test images."""
    random = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    for prefix, count, mark in (("train", 40, "."), ("t10k", 20, "-")):
        images, labels = random.integers(0, 256, (count, 28, 28), np.uint8), np.resize(LABELS, count)
        (folder / f"{prefix}-images{mark}idx3-ubyte").write_bytes(compress(idx(images)))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(labels))
    return images


def write_binary(folder, names=CIFAR, coarse=()):
    """CIFAR's binary version, small; returns the images of the last file, [20, 32, 32, 3]."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        images = random.integers(0, 256, (20, 32, 32, 3), np.uint8)
        columns = [*coarse, LABELS[:, None], images.transpose(0, 3, 1, 2).reshape(20, -1)]
        (folder / f"{name}.bin").write_bytes(np.concatenate(columns, 1).tobytes())
    return images


def write_binary_100(folder):
    return write_binary(folder, ("train", "test"), [np.full((20, 1), 77, np.uint8)])


def write_png(folder):
    """The same as PNG with an image in each row, and JSON labels."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name in CIFAR:
        images = random.integers(0, 256, (20, 32, 32, 3), np.uint8)
        Image.fromarray(images.reshape(20, 1024, 3)).save(folder / f"{name}.png")
    for name, count in (("train", 100), ("test", 20)):
        (folder / f"{name}_lables.json").write_text(json.dumps([i % 10 for i in range(count)]))
    return images


def test_mnist_is_a_name_for_tfds_too(tmp_path):
    import tensorflow_datasets as tfds

    images, root = write_mnist(tmp_path / "files", compress=gzip.compress), tmp_path / "tfds"
    task = tasks.Images(data="mnist", search_fraction=0.25).load(root, tmp_path / "files")
    assert task.sizes == {"train": 30, "search": 10, "test": 20}
    np.testing.assert_array_equal(task.dataset.test.images[..., 0], images)
    np.testing.assert_array_equal(task.dataset.test.labels, LABELS)
    assert task.dataset.classes == tuple("0123456789")
    [digest] = (path.name for path in (root / "mnist").iterdir())
    source = tfds.data_source(f"mnist/{digest}:1.0.0", split="test", data_dir=root, download=False)
    np.testing.assert_array_equal(source[3]["image"][..., 0], images[3])


@pytest.mark.parametrize(
    ("name", "write", "inner", "first", "train"),
    [
        ("cifar10", write_binary, "", "airplane", 100),
        ("cifar10", write_binary, "cifar-10-batches-bin", "airplane", 100),
        ("cifar100", write_binary_100, "cifar-100-binary", "0", 20),
        ("cifar10", write_png, "", "airplane", 100),
        ("cifar10", write_png, "package", "airplane", 100),
    ],
)
def test_cifar_from_its_files(name, write, inner, first, train, tmp_path):
    images = write(tmp_path / "files" / inner)
    given = data.load(name, data_dir=tmp_path / "tfds", source_dir=tmp_path / "files", search_fraction=0.5)
    np.testing.assert_array_equal(given.test.images, images)
    np.testing.assert_array_equal(given.test.labels, LABELS)
    assert len(given.train) + len(given.search) == train and given.classes[0] == first
    assert given.num_classes == int(name.removeprefix("cifar"))


def test_the_same_images_in_both_forms_are_the_same_data(tmp_path):
    for write in (write_binary, write_png):
        write(tmp_path / write.__name__)
        builders.prepare("cifar10", tmp_path / "tfds", tmp_path / write.__name__)
    assert len(list((tmp_path / "tfds" / "cifar10").iterdir())) == 1


def test_other_files_are_not_taken_for_those_that_were_prepared_before(tmp_path):
    root = tmp_path / "tfds"
    first, second = (write_mnist(tmp_path / str(seed), seed) for seed in (1, 2))
    for source, expected in (("1", first), (None, first), ("2", second), ("1", first)):
        given = data.load("fashion_mnist", data_dir=root, source_dir=source and tmp_path / source)
        np.testing.assert_array_equal(given.test.images[..., 0], expected)
    with pytest.raises(ValueError, match="fashion_mnist"):
        data.load("fashion_mnist", data_dir=root)
    # The same files, compressed, are the same data.
    write_mnist(tmp_path / "1", 1, gzip.compress)
    data.load("fashion_mnist", data_dir=root, source_dir=tmp_path / "1")
    assert len(list((root / "fashion_mnist").iterdir())) == 2


def test_what_was_prepared_by_name_alone_is_read_if_no_files_are_given(tmp_path):
    """As TFDS itself prepares it."""
    images = write_mnist(tmp_path / "1")
    kept = builders.prepare("mnist", tmp_path / "tfds", tmp_path / "1")
    kept.rename(tmp_path / "tfds" / "mnist" / "1.0.0")
    kept.parent.rmdir()
    given = data.load("mnist", data_dir=tmp_path / "tfds")
    np.testing.assert_array_equal(given.test.images[..., 0], images)


def write_nothing(folder):
    folder.mkdir()


@pytest.mark.parametrize(
    ("name", "write", "file", "content", "error", "message"),
    [
        ("mnist", write_nothing, "", None, FileNotFoundError, "no file"),
        ("mnist", write_mnist, "t10k-labels-idx1-ubyte", idx(LABELS[:19]), ValueError, "20 images"),
        ("mnist", write_mnist, "t10k-labels-idx1-ubyte", idx(LABELS + 1), ValueError, "labels 0"),
        ("cifar10", write_nothing, "", None, FileNotFoundError, "data_batch_1"),
        ("cifar10", write_binary, "test_batch.bin", b"x" * 3074, ValueError, "test_batch"),
        ("cifar10", write_binary, "data_batch_2.bin", b"\x0a" * 3073, ValueError, "data_batch_2"),
        ("cifar10", write_png, "data_batch_3.png", None, FileNotFoundError, "data_batch_3"),
        ("cifar10", write_png, "test_batch.png", (1000, 20), ValueError, "test_batch"),
        ("cifar10", write_png, "data_batch_1.png", b"\x89PNG", ValueError, "data_batch_1"),
        ("cifar10", write_png, "test_lables.json", b"[0, 10]", ValueError, "test_lables"),
        ("cifar10", write_png, "test_lables.json", b"[0, 1]", ValueError, "test_lables"),
    ],
)
def test_original_files_that_are_missing_or_damaged(name, write, file, content, error, message, tmp_path):
    folder, root = tmp_path / "files", tmp_path / "tfds"
    write(folder)
    if isinstance(content, tuple):
        Image.new("RGB", content).save(folder / file)
    elif content is not None:
        (folder / file).write_bytes(content)
    elif file:
        (folder / file).unlink()
    refusals.check(
        (lambda: data.load(name, data_dir=root, source_dir=folder), error, message),
        (lambda: data.load(name, data_dir=root, source_dir=tmp_path / "no"), FileNotFoundError, "no folder"),
        (
            lambda: data.load(name, data_dir=root),
            FileNotFoundError,
            f"{name} is not prepared in",
            "source_dir",
        ),
    )
    assert not list(root.glob("*"))  # Nothing half-made is left.


def test_a_data_dir_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "tfds").write_text("")
    with pytest.raises(NotADirectoryError, match="tfds"):
        tasks.Images(data="digits").load(tmp_path / "tfds")


def test_idx_errors_name_the_file(tmp_path):
    images, path = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4), tmp_path / "some-images"
    path.write_bytes(idx(images))
    np.testing.assert_array_equal(image_builders.read_idx(path, 3), images)
    for content, message in (
        (gzip.compress(idx(images))[:-12], "gzip"),
        (gzip.compress(idx(images))[:-8] + b"12345678", "gzip"),
        (idx(images)[:-1], "expected 24"),
        (idx(images) + b"x", "expected 24"),
        (idx(images)[:9], "header has 9"),
        (idx(images[0, 0]), "begin with 00"),
        (b"\x89PNG\r\n", "begin with 00"),
        (b"", "some content"),
    ):
        path.write_bytes(content)
        refusals.check((lambda: image_builders.read_idx(path, 3), ValueError, "some-images", message))

"""Original files of MNIST, Fashion-MNIST and CIFAR, and what is prepared of them under a digest."""

import gzip
import json
import struct

import numpy as np
import pytest
from PIL import Image

from jaxnas import data, tasks
from jaxnas.data import builders


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder, seed, compress=lambda content: content):
    """The four files, small; returns their images and labels."""
    random = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    arrays = {}
    for prefix, count in (("train", 40), ("t10k", 20)):
        images, labels = (
            random.integers(0, 256, (count, 28, 28), np.uint8),
            np.arange(count, dtype=np.uint8) % 10,
        )
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(compress(idx(images)))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(compress(idx(labels)))
        arrays[prefix] = images, labels
    return arrays


def write_cifar(folder, label_bytes, seed=0):
    """The files of the binary version, small; returns images [n, 32, 32, 3] and labels of the test file."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    batches = [f"data_batch_{i}.bin" for i in range(1, 6)], "test_batch.bin"
    names = (*batches[0], batches[1]) if label_bytes == 1 else ("train.bin", "test.bin")
    for name in names:
        labels = np.arange(20, dtype=np.uint8) % 10
        images = random.integers(0, 256, (20, 32, 32, 3), np.uint8)
        coarse = [] if label_bytes == 1 else [np.full((20, 1), 77, np.uint8)]
        planes = images.transpose(0, 3, 1, 2).reshape(20, -1)
        (folder / name).write_bytes(np.concatenate([*coarse, labels[:, None], planes], 1).tobytes())
    return images, labels


def write_cifar_png(folder, seed=0):
    """The same as PNG with an image in each row, and JSON labels; returns what the test files hold."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        images = random.integers(0, 256, (20, 32, 32, 3), np.uint8)
        Image.fromarray(images.reshape(20, 1024, 3)).save(folder / f"{name}.png")
    for name, count in (("train", 100), ("test", 20)):
        (folder / f"{name}_lables.json").write_text(json.dumps([i % 10 for i in range(count)]))
    return images, np.arange(20) % 10


def test_mnist_is_a_name(tmp_path):
    arrays = write_mnist(tmp_path / "files", 0)
    task = tasks.Images(data="mnist", search_fraction=0.25).load(tmp_path / "tfds", tmp_path / "files")
    assert task.sizes == {"train": 30, "search": 10, "test": 20}
    np.testing.assert_array_equal(task.dataset.test.images[..., 0], arrays["t10k"][0])
    np.testing.assert_array_equal(task.dataset.test.labels, arrays["t10k"][1])
    assert task.dataset.classes == tuple("0123456789")


@pytest.mark.parametrize(
    ("name", "label_bytes", "inner", "first", "train"),
    [
        ("cifar10", 1, "", "airplane", 100),
        ("cifar10", 1, "cifar-10-batches-bin", "airplane", 100),
        ("cifar100", 2, "cifar-100-binary", "0", 20),
    ],
)
def test_cifar_from_its_binary_version(name, label_bytes, inner, first, train, tmp_path):
    images, labels = write_cifar(tmp_path / "files" / inner, label_bytes)
    given = data.load(name, data_dir=tmp_path / "tfds", source_dir=tmp_path / "files", search_fraction=0.5)
    np.testing.assert_array_equal(given.test.images, images)
    np.testing.assert_array_equal(given.test.labels, labels)
    assert len(given.train) + len(given.search) == train and given.classes[0] == first
    assert given.num_classes == (10 if label_bytes == 1 else 100)


@pytest.mark.parametrize("inner", ["", "package"])
def test_cifar_from_png_files(inner, tmp_path):
    images, labels = write_cifar_png(tmp_path / "files" / inner)
    given = data.load(
        "cifar10", data_dir=tmp_path / "tfds", source_dir=tmp_path / "files", search_fraction=0.5
    )
    np.testing.assert_array_equal(given.test.images, images)
    np.testing.assert_array_equal(given.test.labels, labels)
    assert len(given.train) == len(given.search) == 50 and given.classes[9] == "truck"


def test_the_same_images_in_both_forms_are_the_same_data(tmp_path):
    images, labels = write_cifar_png(tmp_path / "png")
    (tmp_path / "bin").mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        images = np.asarray(Image.open(tmp_path / "png" / f"{name}.png")).reshape(20, 1024, 3)
        planes = images.transpose(0, 2, 1).reshape(20, -1)
        records = np.concatenate([labels.astype(np.uint8)[:, None], planes], 1)
        (tmp_path / "bin" / f"{name}.bin").write_bytes(records.tobytes())
    folders = {builders.prepare("cifar10", tmp_path / "tfds", tmp_path / form) for form in ("png", "bin")}
    assert len(folders) == 1


def test_other_files_are_not_taken_for_those_that_were_prepared_before(tmp_path):
    root = tmp_path / "tfds"
    first, second = (write_mnist(tmp_path / str(seed), seed) for seed in (1, 2))

    def load(source=None):
        given = data.load("fashion_mnist", data_dir=root, source_dir=source)
        return given.test.images[..., 0]

    np.testing.assert_array_equal(load(tmp_path / "1"), first["t10k"][0])
    np.testing.assert_array_equal(load(), first["t10k"][0])
    np.testing.assert_array_equal(load(tmp_path / "2"), second["t10k"][0])
    np.testing.assert_array_equal(load(tmp_path / "1"), first["t10k"][0])
    with pytest.raises(ValueError, match="fashion_mnist"):
        load()
    # The same files, compressed, are the same data.
    write_mnist(tmp_path / "1", 1, gzip.compress)
    load(tmp_path / "1")
    assert len(list((root / "fashion_mnist").iterdir())) == 2


def test_what_was_prepared_by_name_alone_is_read_if_no_files_are_given(tmp_path):
    """As TFDS itself prepares it."""
    arrays = write_mnist(tmp_path / "1", 1)
    kept = builders.prepare("mnist", tmp_path / "tfds", tmp_path / "1")
    kept.rename(tmp_path / "tfds" / "mnist" / "1.0.0")
    kept.parent.rmdir()
    given = data.load("mnist", data_dir=tmp_path / "tfds")
    np.testing.assert_array_equal(given.test.images[..., 0], arrays["t10k"][0])


@pytest.mark.parametrize(
    ("name", "damage", "error", "message"),
    [
        ("mnist", lambda folder: None, FileNotFoundError, "no file"),
        ("cifar10", lambda folder: None, FileNotFoundError, "data_batch_1"),
        (
            "cifar10",
            lambda folder: (write_cifar(folder, 1), (folder / "test_batch.bin").write_bytes(b"x" * 3074)),
            ValueError,
            "test_batch",
        ),
        (
            "cifar10",
            lambda folder: (
                write_cifar(folder, 1),
                (folder / "data_batch_2.bin").write_bytes(b"\x0a" * 3073),
            ),
            ValueError,
            "data_batch_2",
        ),
        (
            "cifar10",
            lambda folder: (
                write_cifar_png(folder / "package"),
                (folder / "package/data_batch_3.png").unlink(),
            ),
            FileNotFoundError,
            "data_batch_3",
        ),
        (
            "cifar10",
            lambda folder: (
                write_cifar_png(folder / "package"),
                Image.new("RGB", (1000, 20)).save(folder / "package/test_batch.png"),
            ),
            ValueError,
            "test_batch",
        ),
        (
            "cifar10",
            lambda folder: (
                write_cifar_png(folder / "package"),
                (folder / "package/data_batch_1.png").write_bytes(b"\x89PNG"),
            ),
            ValueError,
            "data_batch_1",
        ),
        (
            "cifar10",
            lambda folder: (
                write_cifar_png(folder / "package"),
                (folder / "package/test_lables.json").write_text("[0, 10]"),
            ),
            ValueError,
            "test_lables",
        ),
        (
            "cifar10",
            lambda folder: (
                write_cifar_png(folder / "package"),
                (folder / "package/test_lables.json").write_text("[0, 1]"),
            ),
            ValueError,
            "test_lables",
        ),
    ],
)
def test_original_files_that_are_missing_or_damaged(name, damage, error, message, tmp_path):
    folder, root = tmp_path / "files", tmp_path / "tfds"
    folder.mkdir()
    damage(folder)
    with pytest.raises(error, match=message):
        data.load(name, data_dir=root, source_dir=folder)
    with pytest.raises(FileNotFoundError, match=rf"{name} is not prepared in .*tfds: name the folder"):
        data.load(name, data_dir=root)
    assert not list(root.glob("*"))


def test_a_data_dir_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "tfds").write_text("")
    with pytest.raises(NotADirectoryError, match="which is a"):
        tasks.Images(data="digits").load(tmp_path / "tfds")

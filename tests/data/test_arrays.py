"""Images and labels that are there as arrays."""

import numpy as np
import pytest
from small_tasks import random_images

from jaxnas import data, tasks


def test_arrays_are_held_out_in_proportion_and_standardised_by_the_rest():
    images, labels = np.random.default_rng(0).normal(3, 2, (50, 3, 3)), np.arange(50) % 5
    dataset = data.from_arrays(images, labels, images[:10], labels[:10], search_fraction=0.2)
    assert np.bincount(dataset.search.labels).tolist() == [2] * 5
    assert (len(dataset.train), len(dataset.search), dataset.num_classes) == (40, 10, 5)
    assert dataset.image_shape == (3, 3, 1) and dataset.train.images.dtype == np.float32
    assert dataset.mean[0] == pytest.approx(dataset.train.images[:].mean(), rel=1e-5)
    assert dataset.std[0] == pytest.approx(dataset.train.images[:].std(), rel=1e-5)
    whole = data.from_arrays(images, labels, images, labels, search_fraction=0)
    assert whole.search is None and tasks.Images(data=whole).sizes == {"train": 50, "test": 50}


def test_arrays_of_any_numbers_and_labels():
    values = np.arange(20 * 4 * 6).reshape(20, 4, 6)
    names = np.array(["cat", "dog"])[np.arange(20) % 2]
    for dtype, kept in ((np.int64, np.float32), (np.uint16, np.float32), (np.float16, np.float32)):
        given = data.from_arrays(values.astype(dtype), names)
        assert given.train.images.dtype == kept and given.image_shape == (4, 6, 1)
        pixels = tasks.Images(data=given).preprocess({"image": given.train.images[:]})
        assert float(pixels.mean()) == pytest.approx(0, abs=1e-5) and float(pixels.std()) == pytest.approx(1)
    given = data.from_arrays((values % 256).astype(np.int32), names.tolist(), validation_fraction=0.25)
    assert given.train.images.dtype == np.uint8 and given.classes == ("cat", "dog")
    assert tasks.Images(data=given).sizes == {"train": 10, "search": 2, "validation": 4, "test": 4}
    # Every image is in one role, and has its own label.
    for split in given.splits.values():
        number = [int(np.flatnonzero((values % 256 == x[..., 0]).all((1, 2)))[0]) for x in split.images]
        assert [given.classes[i] for i in split.labels] == names[number].tolist()
    assert np.concatenate([split.labels for split in given.splits.values()]).sum() == 10
    other = data.from_arrays(values, np.arange(20) % 2, classes=("cat", "dog"), seed=1)
    assert other.classes == ("cat", "dog") and not np.array_equal(other.test.images[:], given.test.images[:])


IMAGES = random_images(10, 0)[0]
LABELS = np.arange(10) % 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": IMAGES.reshape(10, 16)}, "are uint8[10"),
        ({"images": IMAGES.astype(str)}, "expected numbers"),
        ({"images": IMAGES[:0]}, "are uint8[0"),
        ({"images": np.full((10, 4, 4, 1), np.nan)}, "hold a NaN or an infinity"),
        ({"test_images": IMAGES[:, :3]}, "expected one size and dtype"),
        ({"test_images": IMAGES.astype(np.float32)}, "expected one size and dtype"),
        ({"images": IMAGES[..., :0]}, "are uint8[10"),
        ({"images": np.zeros((10, 3, 32, 32))}, "images.transpose(0"),
        ({"images": np.full((10, 4, 4), 1e300)}, "beyond the range of float32"),
        ({"images": np.zeros((10, 4, 4, 1), np.uint8)}, "all training images are"),
        ({"test_images": IMAGES.repeat(3, -1)}, "expected one size and dtype"),
        ({"labels": LABELS.astype(np.float32)}, "float32[10]"),
        ({"labels": [None] * 10}, "are object[10]"),
        ({"labels": LABELS[:, None]}, "are int64[10"),
        ({"images": np.array([*IMAGES[:-1], IMAGES[0, :2]], dtype=object)}, "images are of 2 sizes: "),
        ({"labels": LABELS[:9]}, "10 images"),
        ({"test_labels": LABELS[:9]}, "10 images"),
        ({"labels": LABELS - 1}, "first is -1"),
        ({"labels": LABELS + 1}, "0 never"),
        ({"labels": 2 * LABELS}, "1 never occurs"),
        ({"labels": 0 * LABELS, "test_labels": 0 * LABELS}, "'0'"),
        ({"test_labels": LABELS + 1}, "first is 2"),
        ({"test_labels": None}, "test_images"),
        ({"test_labels": None, "test_images": None, "test_fraction": 0}, "test_fraction is 0"),
        ({"classes": ("cat",)}, "first is 1"),
        ({"search_fraction": 0.9}, "divided as 0"),
        ({"search_fraction": 1.0}, "search_fraction"),
        ({"search_fraction": -0.1}, "search_fraction"),
        ({"search_fraction": float("nan")}, "search_fraction"),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(changes, message):
    given = {"images": IMAGES, "labels": LABELS, "test_images": IMAGES, "test_labels": LABELS, **changes}
    with pytest.raises(ValueError) as error:
        data.from_arrays(**given)
    assert message in str(error.value)

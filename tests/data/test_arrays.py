"""Images and labels that are there as arrays."""

import dataclasses

import numpy as np
import pytest
import refusals
from small_tasks import random_images

from jaxnas import data, tasks


def test_arrays_are_held_out_in_proportion_and_standardized_by_the_rest():
    images, labels = np.random.default_rng(0).normal(3, 2, (50, 3, 3)), np.arange(50) % 5
    dataset = data.from_arrays(images, labels, images[:10], labels[:10], held_out=data.HeldOut(search=0.2))
    assert np.bincount(dataset.search.labels).tolist() == [2] * 5 and len(dataset.train) == 40
    pixels = dataset.train.images[:]
    np.testing.assert_allclose([dataset.mean[0], dataset.std[0]], [pixels.mean(), pixels.std()], rtol=1e-5)
    whole = data.from_arrays(images, labels, images, labels, held_out=data.HeldOut(search=0))
    assert whole.search is None and tasks.Images(data=whole).sizes == {"train": 50, "test": 50}


def test_arrays_of_any_numbers_and_labels():
    values = np.arange(20 * 4 * 6).reshape(20, 4, 6)
    names = np.array(["cat", "dog"])[np.arange(20) % 2]
    for dtype, kept in ((np.int64, np.float32), (np.uint16, np.float32), (np.float16, np.float32)):
        given = data.from_arrays(values.astype(dtype), names)
        assert given.train.images.dtype == kept and given.image_shape == (4, 6, 1)
        pixels = tasks.Images(data=given).preprocess({"image": given.train.images[:]})
        assert float(pixels.mean()) == pytest.approx(0, abs=1e-5) and float(pixels.std()) == pytest.approx(1)
    given = data.from_arrays(
        (values % 256).astype(np.int32), names.tolist(), held_out=data.HeldOut(validation=0.25)
    )
    assert given.train.images.dtype == np.uint8 and given.classes == ("cat", "dog")
    assert tasks.Images(data=given).sizes == {"train": 10, "search": 2, "validation": 4, "test": 4}
    # Every image is in one role, and has its own label.
    for split in given.splits.values():
        number = [int(np.flatnonzero((values % 256 == x[..., 0]).all((1, 2)))[0]) for x in split.images]
        assert [given.classes[i] for i in split.labels] == names[number].tolist()
    assert np.concatenate([split.labels for split in given.splits.values()]).sum() == 10
    other = data.from_arrays(values, np.arange(20) % 2, classes=("cat", "dog"), held_out=data.HeldOut(seed=1))
    assert other.classes == ("cat", "dog") and not np.array_equal(other.test.images[:], given.test.images[:])


IMAGES = random_images(10, 0)[0]
LABELS = np.arange(10) % 2


def test_arrays_that_do_not_fit_each_other_are_refused():
    def case(*names, error=ValueError, **changes):
        given = dict(images=IMAGES, labels=LABELS, test_images=IMAGES, test_labels=LABELS) | changes
        return lambda: data.from_arrays(**given), error, *names

    alone = dict(test_images=None, test_labels=None)
    refusals.check(
        case("are uint8[10", images=IMAGES.reshape(10, 16)),
        case("expected numbers", images=IMAGES.astype(str)),
        case("NaN", images=np.full((10, 4, 4, 1), np.nan)),
        case("images to test", "uint8[10, 3, 4, 1]", test_images=IMAGES[:, :3]),
        case("are uint8[10", images=IMAGES[..., :0]),
        case("images.transpose(0", images=np.zeros((10, 3, 32, 32))),
        case("float32", images=np.full((10, 4, 4), 1e300)),
        case("all training images are", images=np.zeros((10, 4, 4, 1), np.uint8)),
        case("float32[10]", labels=LABELS.astype(np.float32)),
        case("are int64[10", labels=LABELS[:, None]),
        case("images are no array", "size=64", images=[*IMAGES[:-1], IMAGES[0, :2]]),
        case("10 of 'image'", "9 labels", labels=LABELS[:9]),
        case("first is -1", labels=LABELS - 1),
        case("integers up to 900000000", "1 never", labels=np.arange(10) * 10**8),
        case("'0'", labels=0 * LABELS, test_labels=0 * LABELS),
        case("first is 2", test_labels=LABELS + 1),
        case("test_images", test_labels=None),
        case("nothing is given", **alone, held_out=data.HeldOut(test=0)),
        case("test=0.2 of 2", **alone, images=IMAGES[:2], labels=LABELS[:2]),
        case("order", error=TypeError, classes={"cat", "dog"}),
        case("classes are 'ab'", error=TypeError, classes="ab"),
        case("the class '0'", held_out=data.HeldOut(search=0.9), labels=np.arange(10) % 5),
        (lambda: data.HeldOut(search=float("nan")), ValueError, "search is nan"),
        (lambda: data.HeldOut(test=1.0), ValueError, "test is 1.0"),
        (lambda: data.HeldOut(seed=-1), ValueError, "seed is -1"),
    )
    given = data.from_arrays(IMAGES, LABELS)
    refusals.check((lambda: dataclasses.replace(given, classes=("cat",)), ValueError, "label 1", "1 classes"))

"""Images of many sizes in folders, decoded on demand."""

import dataclasses
import functools
import io

import numpy as np
import pytest
import refusals
from PIL import Image

from jaxnas import data, tasks
from jaxnas.data.batches import Batches, evaluation_batches
from jaxnas.data.encoded import ATTEMPTS, SourceImages, decode, decoding_pool, random_box
from jaxnas.data.splits import Split
from jaxnas.tasks import images
from jaxnas.training.plain import to_dict


def encoded(image, form="JPEG", **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **({"quality": 95, "subsampling": 0} if form == "JPEG" else {}) | options)
    return buffer.getvalue()


def landscape(height, width, seed=0):
    """A smooth picture, so that filters of different kinds give about the same."""
    y, x = np.mgrid[:height, :width] / 40
    waves = [np.sin(x * (1 + i / 3) + seed) + np.cos(y * (1.2 + i / 3)) for i in range(3)]
    return Image.fromarray((np.stack(waves, -1) * 50 + 128).astype(np.uint8))


def folder_of(root, per_class=20):
    """Landscapes of many sizes and forms, in folders of two classes."""
    for number, name in enumerate(("cat", "dog")):
        (root / name).mkdir(parents=True)
        for i in range(per_class):
            image = landscape(40 + 5 * (i % 5), 70 - 4 * (i % 9), 20 * number + i)
            image.save(root / name / f"{i:02}.{'png' if i % 4 else 'jpg'}", quality=95)
    return root


def test_a_folder_at_full_size_is_decoded_when_a_batch_needs_it(tmp_path):
    folder_of(tmp_path)
    (tmp_path / "cat" / "readme.txt").write_text("")
    given = data.from_folder(tmp_path, 24, in_memory=False, workers=0)
    assert given.image_shape == (24, 24, 3) and isinstance(given.train.images, SourceImages)
    task = tasks.Images(data=given, crop_scale=0.08, flip=True)
    assert task.sizes == {"train": 26, "search": 6, "test": 8}
    # The roles are those of the same folder in memory, and so are the moments, about.
    stored = data.from_folder(tmp_path, 24)
    for role, split in stored.splits.items():
        np.testing.assert_array_equal(given.splits[role].labels, split.labels)
    np.testing.assert_allclose(given.mean, stored.mean, atol=6)
    rows = evaluation_batches(given.test, 8)["image"]
    assert rows.shape == (1, 8, 24, 24, 3) and rows.dtype == np.uint8
    damaged = tmp_path / "dog" / "00.jpg"
    damaged.write_bytes(damaged.read_bytes()[:-200])
    refusals.check((lambda: [split.images[:] for split in given.splits.values()], ValueError, "dog/00"))
    damaged.write_bytes(b"no image")
    some = functools.partial(data.from_folder, tmp_path, in_memory=False)
    refusals.check((lambda: some(24), ValueError, "dog/00"), (lambda: some(), ValueError, "size"))
    damaged.unlink()
    fewer = some(size=(20, 30), workers=0, held_out=data.HeldOut(test=0.4))
    assert sum(tasks.Images(data=fewer).sizes.values()) == 39 and fewer.image_shape == (20, 30, 3)


def test_too_many_images_for_the_memory_are_refused_and_gray_ones_have_one_channel(tmp_path, monkeypatch):
    for i in range(20):
        (tmp_path / "ab"[i % 2]).mkdir(exist_ok=True)
        landscape(10 + i, 20).convert("L").save(tmp_path / "ab"[i % 2] / f"{i}.png")
    held_out = data.HeldOut(search=0.5)
    given = data.from_folder(tmp_path, 16, in_memory=False, workers=0, held_out=held_out)
    assert given.image_shape == (16, 16, 1)
    task = tasks.Images(data=given, evaluation_batch_size=4)
    monkeypatch.setattr(images, "_MEMORY", 4 * 16 * 16)
    with pytest.raises(ValueError, match="'search'"):
        task.evaluation("search")
    assert task.evaluation("search", limit=1)["label"].shape == (1, 4)


def test_a_batch_is_a_function_of_its_step(tmp_path):
    """Whoever decodes it, this process or others, and whoever has had which batch before."""
    given = data.from_folder(folder_of(tmp_path), 16, in_memory=False, workers=0)
    split = given.train
    here = Batches(split, 8, seed=3, crop_scale=0.08, repeats=2)
    fourth = here.at(4)
    pool = decoding_pool(2)
    elsewhere = Split("train", {"image": dataclasses.replace(split.images, pool=pool)}, split.labels)
    again = Batches(elsewhere, 8, seed=3, crop_scale=0.08, repeats=2)
    for name, x in again.at(4).items():
        np.testing.assert_array_equal(x, fourth[name])
    parts = [Batches(split, 8, 3, (i, 2), crop_scale=0.08, repeats=2).at(4)["image"] for i in range(2)]
    np.testing.assert_array_equal(np.concatenate(parts), fourth["image"])
    assert to_dict(elsewhere) == to_dict(split)  # A run that is started again may have other workers.
    # The same rows in another step, with another seed, or a second time in the batch are cropped otherwise.
    rows = here.rows(4)
    assert (rows[::2] == rows[1::2]).all()
    assert all((x != y).any() for x, y in zip(fourth["image"][::2], fourth["image"][1::2], strict=True))
    assert (here.draws(4, 0) != here.draws(5, 0)).all() and (here.draws(4, 0) != here.draws(4, 1)).all()
    other = Batches(split, 8, seed=4, crop_scale=0.08)
    assert (other.draws(4, 0) != here.draws(4, 0)).all()
    np.testing.assert_allclose(here.draws(4, 0)[0], DRAWN, atol=1e-12)  # on every machine
    # A worker that is killed is told of, and nothing hangs.
    for process in list(pool._processes.values()):
        process.kill()
    with pytest.raises(RuntimeError, match="A process that decodes"):
        again.at(5)


DRAWN = [0.36146527082167335, 0.09421848480805717, 0.6721481172196171, 0.37724022285812386]


def test_crops_have_the_published_shares_and_shapes():
    random = np.random.default_rng(0)
    draws = random.random((2000, ATTEMPTS, 4))
    boxes = np.array([random_box(500, 375, x, 0.08) for x in draws])
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert (boxes[:, :2] >= 0).all() and (boxes[:, 2] <= 500).all() and (boxes[:, 3] <= 375).all()
    shares, shapes = width * height / (500 * 375), width / height
    assert 0.079 < shares.min() < 0.1 and 0.9 < shares.max() <= 1 and 0.4 < shares.mean() < 0.5
    assert 0.74 < shapes.min() < 0.76 and 1.32 < shapes.max() < 1.35
    # So narrow an image holds no such box: the middle of it is taken.
    assert random_box(10, 400, draws[0], 0.9) == (0, 193, 10, 206)
    assert random_box(400, 10, draws[0], 0.9) == (193, 0, 206, 10)


def test_decoded_are_the_boxes_by_a_bicubic_filter():
    image = landscape(100, 160)
    draws = np.random.default_rng(0).random((ATTEMPTS, 4))
    found = decode(encoded(image, "PNG"), (32, 48, 3), draws, 0.2)
    box = random_box(160, 100, draws, 0.2)
    expected = image.crop(box).resize((48, 32), Image.Resampling.BICUBIC)
    # At the border the filter sees what is beyond the box.
    assert np.abs(found[2:-2, 2:-2].astype(int) - np.asarray(expected)[2:-2, 2:-2]).max() <= 1
    # Evaluations: the shorter side to 256 / 224 of the size, and the middle of that.
    found = decode(encoded(image, "PNG"), (56, 56, 3))
    middle = image.resize((102, 64), Image.Resampling.BICUBIC).crop((23, 4, 79, 60))
    assert np.abs(found.astype(int) - np.asarray(middle)).mean() < 1


def test_large_photographs_are_decoded_at_a_part_of_their_size():
    image = landscape(1200, 1600)
    draws = np.random.default_rng(1).random((ATTEMPTS, 4))
    for drawn in (None, draws):
        exact, fast = (decode(encoded(image, form), (64, 64, 3), drawn, 0.5) for form in ("PNG", "JPEG"))
        assert np.abs(exact.astype(int) - fast).max() <= 4


@pytest.mark.parametrize("draws", [None, np.random.default_rng(0).random((ATTEMPTS, 4))])
def test_photographs_are_turned_as_they_say(draws):
    upright = landscape(90, 60)
    exif = upright.getexif()
    exif[0x0112] = 6  # is to be turned by 90 degrees to the right
    lying = encoded(upright.rotate(90, expand=True), "PNG", exif=exif)
    turned, expected = (decode(content, (32, 32, 3), draws) for content in (lying, encoded(upright, "PNG")))
    np.testing.assert_array_equal(turned, expected)

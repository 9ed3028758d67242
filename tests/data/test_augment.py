"""Augmentation against what Pillow computes, and against the rules of the papers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from jaxnas.data import augment
from jaxnas.data.augment import MOVES, OPERATIONS, operate

HEIGHT, WIDTH, FILL = 30, 36, 50


def photograph(channels):
    """A smooth image with some noise, whose values are not all of 0 to 255."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    waves = [np.sin(x / (3 + i)) * 60 + np.cos(y / (4 + i)) * 50 for i in range(channels)]
    noise = random.integers(-9, 10, (HEIGHT, WIDTH, channels))
    return np.clip(np.stack(waves, -1) + 120 + noise, 10, 240).astype(np.uint8)


def by_pillow(name, image, level, sign):
    """The operation as timm calls it, at one level from 0 to 10."""
    picture = Image.fromarray(image if image.shape[-1] == 3 else image[..., 0])
    part, fill = level / 10, (FILL,) * 3 if image.shape[-1] == 3 else FILL

    def moved(*matrix):
        method, how = Image.Transform.AFFINE, Image.Resampling.BILINEAR
        return picture.transform(picture.size, method, matrix, how, fillcolor=fill)

    brighter = [min(255, i + int(part * 110)) if i < 128 else i for i in range(256)]
    factor = 1 + sign * 0.9 * part
    made = {
        "rotate": lambda: picture.rotate(sign * part * 30, Image.Resampling.BILINEAR, fillcolor=fill),
        "shear_x": lambda: moved(1, sign * part * 0.3, 0, 0, 1, 0),
        "shear_y": lambda: moved(1, 0, 0, sign * part * 0.3, 1, 0),
        "translate_x": lambda: moved(1, 0, sign * part * 0.45 * WIDTH, 0, 1, 0),
        "translate_y": lambda: moved(1, 0, 0, 0, 1, sign * part * 0.45 * HEIGHT),
        "autocontrast": lambda: ImageOps.autocontrast(picture),
        "equalize": lambda: ImageOps.equalize(picture),
        "invert": lambda: ImageOps.invert(picture),
        "posterize": lambda: ImageOps.posterize(picture, 4 - int(part * 4)),
        "solarize": lambda: ImageOps.solarize(picture, 256 - int(part * 256)),
        "solarize_add": lambda: picture.point(brighter * image.shape[-1]),
        "contrast": lambda: ImageEnhance.Contrast(picture).enhance(factor),
        "brightness": lambda: ImageEnhance.Brightness(picture).enhance(factor),
        "color": lambda: ImageEnhance.Color(picture).enhance(factor),
        "sharpness": lambda: ImageEnhance.Sharpness(picture).enhance(factor),
    }
    return np.asarray(made[name]()).reshape(image.shape)


@pytest.mark.parametrize("channels", [1, 3])
def test_operations_of_randaugment_are_pillows(channels):
    image = photograph(channels)
    run = jax.jit(operate)
    for number, name in enumerate(OPERATIONS):
        for level, sign in ((3.3, 1.0), (9.1, 1.0), (9.1, -1.0)):
            ours = run(image, np.int32(number), np.float32(level), np.float32(sign), np.float32(FILL))
            expected = by_pillow(name, image, level, sign)
            difference = np.abs(np.asarray(ours, np.int32) - expected)
            assert ours.dtype == jnp.uint8
            # Pillow cuts the fraction off where it interpolates; all else is exact.
            assert difference.max() <= (name in MOVES), (name, level, sign)


def test_randaugment_changes_each_image_in_its_own_way():
    images = np.stack([photograph(3)] * 64)
    out = np.asarray(jax.jit(augment.randaugment)(jax.random.key(0), jnp.asarray(images)))
    kinds = {x.tobytes() for x in out}
    unchanged = sum((x == images[0]).all() for x in out)
    # Two operations of 15, each left out half of the time: a quarter stays as it is.
    assert 6 <= unchanged <= 28 and len(kinds) > 25
    never = augment.randaugment(jax.random.key(0), jnp.asarray(images[:2]), probability=0.0)
    np.testing.assert_array_equal(never, images[:2])
    for wrong in (jnp.zeros((2, 4, 4, 3)), jnp.zeros((2, 4, 4, 4), jnp.uint8)):
        with pytest.raises(ValueError, match="its operations are defined"):
            augment.randaugment(jax.random.key(0), wrong)


def test_random_resized_crops_are_boxes_scaled_by_pillow():
    """Each crop of a picture is a box of it that Pillow scales by its own bicubic filter."""
    picture = photograph(1)[..., 0]
    images = jnp.asarray(np.stack([picture] * 12))[..., None]
    crops = np.asarray(jax.jit(augment.random_resized_crop)(jax.random.key(0), images), np.int32)[..., 0]
    sizes = [(h, w) for h in range(2, HEIGHT + 1) for w in range(2, WIDTH + 1)]
    sizes = [(h, w) for h, w in sizes if 0.07 <= h * w / picture.size <= 1 and 0.65 <= w / h <= 1.5]
    # A coarse look at all boxes, and then the closest of them.
    rows, columns = np.arange(0, HEIGHT, 6) + 0.5, np.arange(0, WIDTH, 6) + 0.5
    source = Image.fromarray(picture)
    for crop in crops:
        found = []
        for h, w in sizes:
            tops, lefts = np.mgrid[: HEIGHT - h + 1, : WIDTH - w + 1].reshape(2, -1)
            y = (tops[:, None] + rows * h / HEIGHT).astype(int)[:, :, None]
            x = (lefts[:, None] + columns * w / WIDTH).astype(int)[:, None]
            error = np.abs(picture[y, x].astype(np.int32) - crop[::6, ::6]).mean((1, 2))
            best = error.argmin()
            found.append((error[best], (lefts[best], tops[best], lefts[best] + w, tops[best] + h)))
        nearest = sorted(found)[:30]
        scaled = [source.resize(source.size, Image.Resampling.BICUBIC, box=box) for _, box in nearest]
        assert min(np.abs(np.asarray(x, np.int32) - crop).max() for x in scaled) <= 2


def test_a_crop_of_all_is_the_image():
    images = jnp.asarray(photograph(3))[None]
    crop = jax.jit(augment.random_resized_crop, static_argnums=(2, 3))
    same = crop(jax.random.key(0), images, (1.0, 1.0), (1.2, 1.2))  # 36 / 30
    np.testing.assert_array_equal(same, images)
    # No box of that shape lies in the image: the middle of it is taken.
    wide = crop(jax.random.key(0), images, (1.0, 1.0), (2.0, 2.0))
    middle = Image.fromarray(photograph(3)).resize((36, 30), Image.Resampling.BICUBIC, box=(0, 6, 36, 24))
    assert np.abs(np.asarray(wide[0], np.int32) - np.asarray(middle)).max() <= 1


def test_cutmix_pastes_a_box_and_blends_labels_by_area():
    values = np.arange(64, dtype=np.uint8)
    images = jnp.asarray(np.broadcast_to(values[:, None, None, None], (64, 12, 10, 3)))
    out, soft = jax.jit(augment.cutmix, static_argnums=3)(jax.random.key(0), images, jnp.arange(64), 64)
    out, soft = np.asarray(out), np.asarray(soft)
    np.testing.assert_allclose(soft.sum(1), 1, rtol=1e-6)
    kept = []
    for i, image in enumerate(out):
        own = image[..., 0] == i
        assert (image == image[..., :1]).all() and len(np.unique(image)) <= 2
        # Each label is an image here, so its weight is the part of it that is seen.
        np.testing.assert_allclose(np.bincount(image[..., 0].ravel(), minlength=64) / 120, soft[i], atol=1e-6)
        rows, columns = (~own).any(1), (~own).any(0)
        np.testing.assert_array_equal(~own, rows[:, None] & columns[None])
        kept.append(own.mean())
    # With alpha 1 the share is uniform before the box is cut off at the border.
    assert 0.5 < np.mean(kept) < 0.85 and min(kept) < 0.3 and max(kept) == 1


def test_a_batch_is_mixed_by_one_of_two_rules():
    images = jnp.asarray(np.random.default_rng(0).normal(size=(8, 6, 6, 1)), jnp.float32)
    mix = jax.jit(lambda key: augment.mixup_or_cutmix(key, images, jnp.arange(8), 8, (0.8, 1.0)))
    pasted = []
    for seed in range(20):
        out, soft = mix(jax.random.key(seed))
        known = np.isin(np.asarray(out), np.asarray(images)).mean()
        assert known == 1 or known < 0.6
        pasted.append(known == 1)
        np.testing.assert_allclose(np.sum(soft, axis=1), 1, rtol=1e-6)
    assert 4 <= sum(pasted) <= 16


def test_erasing_follows_the_papers_numbers():
    images = jnp.full((512, 32, 32, 3), 9.0)
    out = np.asarray(jax.jit(lambda key, x: augment.erase(key, x, value=None))(jax.random.key(0), images))
    gone = (out != 9).all(-1)
    erased = gone.any((1, 2))
    assert 0.19 < erased.mean() < 0.31  # of probability 0.25
    areas, aspects = [], []
    for mask in gone[erased]:
        height, width = mask.any(1).sum(), mask.any(0).sum()
        assert mask.sum() == height * width
        areas.append(height * width / 1024)
        aspects.append(height / width)
    assert 0.015 < min(areas) < 0.04 and 0.28 < max(areas) < 0.36
    assert 0.25 < min(aspects) < 0.4 and 2.5 < max(aspects) < 4
    noise = out[gone]
    assert abs(noise.mean()) < 0.02 and abs(noise.std() - 1) < 0.02 and (out[~gone] == 9).all()
    assert set(np.unique(jax.jit(augment.erase)(jax.random.key(0), images))) == {0, 9}


IMAGES = np.random.default_rng(0).integers(1, 256, (64, 6, 8, 3)).astype(np.uint8)
AUGMENTATIONS = {
    "pad_and_crop": lambda key, x: augment.pad_and_crop(key, x, 2),
    "flip": augment.flip,
    "erase": lambda key, x: augment.erase(key, x, probability=0.5),
    "mixup": lambda key, x: augment.mixup(key, x, jnp.arange(len(x)), len(x))[0],
    "cutmix": lambda key, x: augment.cutmix(key, x, jnp.arange(len(x)), len(x))[0],
    "random_resized_crop": augment.random_resized_crop,
}


# The other augmentations of whole numbers are in tests of their own.
CASES = [*((name, jnp.bfloat16) for name in AUGMENTATIONS), ("erase", jnp.uint8), ("mixup", jnp.uint8)]


@pytest.mark.parametrize("name, dtype", CASES)
def test_augmentation_keeps_shape_and_dtype_under_jit(name, dtype):
    function = jax.jit(AUGMENTATIONS[name])
    x = jnp.asarray(IMAGES).astype(dtype)
    out, again, other = (np.asarray(function(jax.random.key(seed), x)) for seed in (0, 0, 1))
    assert out.shape == x.shape and out.dtype == x.dtype
    np.testing.assert_array_equal(out, again)
    assert (out != np.asarray(x)).any() and (out != other).any()


def test_pad_and_crop_is_a_shift():
    out = np.asarray(jax.jit(AUGMENTATIONS["pad_and_crop"])(jax.random.key(0), IMAGES))
    padded = np.pad(IMAGES, ((0, 0), (2, 2), (2, 2), (0, 0)))
    every, found = [(i, j) for i in range(5) for j in range(5)], []
    for image, source in zip(out, padded, strict=True):
        shifts = [(i, j) for i, j in every if np.array_equal(source[i : i + 6, j : j + 8], image)]
        assert len(shifts) == 1
        found += shifts
    assert {i for i, _ in found} == {j for _, j in found} == set(range(5))


def test_flip_mirrors_some():
    out = np.asarray(jax.jit(augment.flip)(jax.random.key(0), IMAGES))
    mirrored = (out == IMAGES[:, :, ::-1]).all((1, 2, 3))
    untouched = (out == IMAGES).all((1, 2, 3))
    assert np.all(mirrored ^ untouched) and 16 < mirrored.sum() < 48


def test_mixup_blends_images_as_labels():
    x = jnp.asarray(IMAGES).astype(jnp.float32)
    mix = jax.jit(lambda key, x: augment.mixup(key, x, jnp.arange(64), 64, alpha=0.5))
    out, soft = mix(jax.random.key(0), x)
    assert soft.shape == (64, 64) and soft.dtype == jnp.float32
    np.testing.assert_allclose(soft.sum(1), 1, rtol=1e-6)
    assert np.all((soft > 0).sum(1) <= 2)
    # Each label is one image here, so the soft labels are the blending weights.
    np.testing.assert_allclose(out, np.einsum("bk,khwc->bhwc", soft, x), rtol=1e-4)

"""Augmentation: pure functions of a key and a batch, to be called inside a jitted step.

Each takes images [B, H, W, C] of uint8 or a float dtype (`randaugment` of uint8 alone) and returns the same
shape and dtype; each image draws from its own key. Sizes, probabilities and the like are Python numbers.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

from jaxnas.data.randaugment import randaugment as randaugment


def normalize(images: jax.Array, mean: jax.typing.ArrayLike, std: jax.typing.ArrayLike) -> jax.Array:
    """Returns (images - mean) / std per channel, float32 [..., C]; mean and std are float [C]."""
    channelwise = (1,) * (images.ndim - 1) + (-1,)
    mean = jnp.asarray(mean, jnp.float32).reshape(channelwise)
    std = jnp.asarray(std, jnp.float32).reshape(channelwise)
    return (images.astype(jnp.float32) - mean) / std


def pad_and_crop(key: jax.Array, images: jax.Array, padding: int, value: float = 0) -> jax.Array:
    """Shifts each image by up to `padding` pixels along both axes, and fills with `value`."""

    def one(key, image):
        top, left = jax.random.randint(key, (2,), 0, 2 * padding + 1)
        pad = ((padding, padding), (padding, padding), (0, 0))
        padded = jnp.pad(image, pad, constant_values=value)
        return jax.lax.dynamic_slice(padded, (top, left, jnp.zeros_like(top)), image.shape)

    return jax.vmap(one)(jax.random.split(key, len(images)), images)


def flip(key: jax.Array, images: jax.Array, probability: float = 0.5) -> jax.Array:
    """Mirrors each image left to right with a probability."""

    def one(key, image):
        return jnp.where(jax.random.bernoulli(key, probability), image[:, ::-1], image)

    return jax.vmap(one)(jax.random.split(key, len(images)), images)


def _box(image: jax.Array, top, left, height, width) -> jax.Array:
    """Which pixels of an image lie in a box, bool [H, W, 1]."""
    row = jnp.arange(image.shape[0]).reshape(-1, 1, 1)
    column = jnp.arange(image.shape[1]).reshape(1, -1, 1)
    return (row >= top) & (row < top + height) & (column >= left) & (column < left + width)


def erase(
    key: jax.Array,
    images: jax.Array,
    probability: float = 0.25,
    area: tuple[float, float] = (0.02, 1 / 3),
    aspect: float = 0.3,
    value: float | None = 0,
) -> jax.Array:
    """Fills a random rectangle inside each image, with a probability.

    Random erasing (Zhong et al. 2020, algorithm 1) with timm's numbers: a rectangle that reaches over the
    image is drawn again, up to ten times, after which nothing is erased.

    Args:
      key, images: as above.
      probability: of erasing at all, for each image.
      area: (smallest, largest) share of the image, drawn uniformly.
      aspect: height / width is log-uniform in [aspect, 1 / aspect].
      value: what to fill with, in the images' units; None for a standard normal number in each channel of
        each pixel, as DeiT does with standardized images.
    """

    def one(key, image):
        height, width = image.shape[:2]
        on, place, noise = jax.random.split(key, 3)
        top, left, h, w, fits = _random_box(place, height, width, area, (aspect, 1 / aspect), inside=1)
        fill = jnp.full_like(image, value) if value is not None else _noise(noise, image)
        on = jax.random.bernoulli(on, probability) & fits
        return jnp.where(_box(image, top, left, jnp.where(on, h, 0), w), fill, image)

    return jax.vmap(one)(jax.random.split(key, len(images)), images)


def _noise(key: jax.Array, image: jax.Array) -> jax.Array:
    return jax.random.normal(key, image.shape, jnp.float32).astype(image.dtype)


def _random_box(key: jax.Array, height: int, width: int, area, aspect, inside: int = 0, attempts: int = 10):
    """The first of some random boxes that lies in an image with `inside` pixels to spare.

    Returns:
      Its top, left, height and width, int32 [], and whether there is one, bool [].
    """
    size, ratio, rows, columns = jax.random.split(key, 4)
    pixels = height * width * jax.random.uniform(size, (attempts,), minval=area[0], maxval=area[1])
    low, high = math.log(aspect[0]), math.log(aspect[1])
    root = jnp.exp(0.5 * jax.random.uniform(ratio, (attempts,), minval=low, maxval=high))
    h = jnp.round(jnp.sqrt(pixels) * root).astype(jnp.int32)
    w = jnp.round(jnp.sqrt(pixels) / root).astype(jnp.int32)
    fits = (h > 0) & (h <= height - inside) & (w > 0) & (w <= width - inside)
    first = jnp.argmax(fits)
    h, w = jnp.clip(h[first], 1, height), jnp.clip(w[first], 1, width)
    top = jax.random.randint(rows, (), 0, height - h + 1)
    left = jax.random.randint(columns, (), 0, width - w + 1)
    return top, left, h, w, jnp.any(fits)


def random_resized_crop(
    key: jax.Array,
    images: jax.Array,
    scale: tuple[float, float] = (0.08, 1.0),
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
) -> jax.Array:
    """Cuts a random box out of each image and scales it to the image's size (Szegedy et al. 2015, section 6).

    The boxes are those of torchvision's `RandomResizedCrop`: up to ten are drawn until one lies in the image,
    and if none does, the largest one of a permitted shape in the middle is taken. Bicubic, with the filter
    widened where an image shrinks.

    Args:
      key, images: as above; uint8 images are rounded after scaling.
      scale: (smallest, largest) share of the image's area.
      aspect: (smallest, largest) width / height of the box, drawn log-uniformly.
    """
    height, width = images.shape[1:3]
    whole_width = min(width, round(height * aspect[1]))
    whole_height = min(height, round(width / aspect[0]))
    middle = (height - whole_height) // 2, (width - whole_width) // 2, whole_height, whole_width

    def one(key, image):
        *box, fits = _random_box(key, height, width, scale, (1 / aspect[1], 1 / aspect[0]))
        top, left, h, w = (
            jnp.where(fits, x, y).astype(jnp.float32) for x, y in zip(box, middle, strict=True)
        )
        stretch = jnp.stack([height / h, width / w])
        shift = -jnp.stack([top, left]) * stretch
        scaled = jax.image.scale_and_translate(
            image.astype(jnp.float32), image.shape, (0, 1), stretch, shift, "cubic", antialias=True
        )
        return _stored(scaled, image.dtype)

    return jax.vmap(one)(jax.random.split(key, len(images)), images)


def _stored(x: jax.Array, dtype) -> jax.Array:
    """Float values as an image's dtype: rounded, and cut to what it can hold, if that is an integer."""
    if jnp.issubdtype(dtype, jnp.integer):
        x = jnp.clip(jnp.round(x), jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
    return x.astype(dtype)


def mixup(
    key: jax.Array, images: jax.Array, labels: jax.Array, num_classes: int, alpha: float = 0.8
) -> tuple[jax.Array, jax.Array]:
    """Blends each image with another of the batch, and their labels alike (Zhang et al. 2018).

    Args:
      key, images: as above; uint8 images are rounded after blending.
      labels: int32 [B].
      num_classes: K.
      alpha: each image's weight is drawn from Beta(alpha, alpha), alpha > 0.

    Returns:
      (images, soft labels float32 [B, K], whose rows sum to 1).
    """
    partners, weights = jax.random.split(key)
    partner = jax.random.permutation(partners, len(images))
    weight = jax.random.beta(weights, alpha, alpha, (len(images),), jnp.float32)

    def blend(x):
        w = weight.reshape((-1,) + (1,) * (x.ndim - 1))
        return w * x + (1 - w) * x[partner]

    mixed = _stored(blend(images.astype(jnp.float32)), images.dtype)
    return mixed, blend(jax.nn.one_hot(labels, num_classes, dtype=jnp.float32))


def cutmix(
    key: jax.Array, images: jax.Array, labels: jax.Array, num_classes: int, alpha: float = 1.0
) -> tuple[jax.Array, jax.Array]:
    """Replaces a box of each image by that of another of the batch (Yun et al. 2019, algorithm 1).

    The box has the shape of the image, its center lies anywhere in it, and what reaches over the border is
    cut off. The labels are blended by the areas that are left.

    Args:
      key, images, labels, num_classes: as of `mixup`; so is what is returned.
      alpha: the share of its own that each image should keep is drawn from Beta(alpha, alpha), alpha > 0.
    """
    partners, weights, rows, columns = jax.random.split(key, 4)
    partner = jax.random.permutation(partners, len(images))
    side = jnp.sqrt(1 - jax.random.beta(weights, alpha, alpha, (len(images),), jnp.float32))  # of the image's

    def bounds(key: jax.Array, length: int) -> tuple[jax.Array, jax.Array]:
        extent = jnp.floor(length * side).astype(jnp.int32)
        start = jax.random.randint(key, (len(images),), 0, length) - extent // 2
        return jnp.clip(start, 0, length), jnp.clip(start + extent, 0, length)

    (top, bottom), (left, right) = bounds(rows, images.shape[1]), bounds(columns, images.shape[2])
    pasted = jax.vmap(_box)(images, top, left, bottom - top, right - left)  # [B, H, W, 1]
    share = 1 - jnp.mean(pasted.astype(jnp.float32), axis=(1, 2))  # [B, 1]
    hot = jax.nn.one_hot(labels, num_classes, dtype=jnp.float32)
    return jnp.where(pasted, images[partner], images), share * hot + (1 - share) * hot[partner]


def mixup_or_cutmix(
    key: jax.Array,
    images: jax.Array,
    labels: jax.Array,
    num_classes: int,
    alphas: tuple[float, float] = (0.8, 1.0),
) -> tuple[jax.Array, jax.Array]:
    """Mixes a whole batch by `mixup` or by `cutmix`, one as often as the other, as timm does for DeiT.

    Args:
      key, images, labels, num_classes: as of `mixup`; so is what is returned.
      alphas: of `mixup` and of `cutmix`; one of them may be 0 for never.
    """
    given, (for_mixup, for_cutmix) = (images, labels, num_classes), alphas
    if not for_cutmix:
        return mixup(key, *given, for_mixup)
    if not for_mixup:
        return cutmix(key, *given, for_cutmix)
    coin, own = jax.random.split(key)
    pasted = jax.random.bernoulli(coin, 0.5)
    return lax.cond(pasted, lambda: cutmix(own, *given, for_cutmix), lambda: mixup(own, *given, for_mixup))

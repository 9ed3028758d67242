"""Augmentation: pure functions of a key and a batch, to be called inside a jitted step.

Each takes images [B, H, W, C] of uint8 or a float dtype (`randaugment` of uint8 alone) and returns the same
shape and dtype; each image draws from its own key. Sizes, probabilities and the like are Python numbers.

RandAugment (Cubuk et al. 2020) has the operations and strengths of timm's `rand-m9-mstd0.5-inc1`, which DeiT
and AutoFormer train with; each computes what Pillow's function of that name does. An operation is another
place that each pixel is taken from, a table from old to new values, or a blend with a plainer image. So a
batch whose images have different operations takes three passes, and not fifteen.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

# Rotated by up to 30 degrees, sheared by up to 0.3, moved by up to 0.45 of the image.
MOVES = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
TABLES = ("autocontrast", "equalize", "invert", "posterize", "solarize", "solarize_add")
TABLES += ("contrast", "brightness")
BLENDS = ("color", "sharpness")
OPERATIONS = (*MOVES, *TABLES, *BLENDS)


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


# ---- RandAugment.


def randaugment(
    key: jax.Array,
    images: jax.Array,
    magnitude: float = 9.0,
    count: int = 2,
    deviation: float = 0.5,
    probability: float = 0.5,
    fill: jax.typing.ArrayLike = 128.0,
) -> jax.Array:
    """Applies some random operations to each image, one after another.

    Args:
      key: random key.
      images: uint8 [B, H, W, C], gray (C = 1) or in colors (C = 3), which use the range 0 to 255.
      magnitude: mean strength of the operations, from 0 to 10.
      count: operations for each image, drawn with replacement from `OPERATIONS`.
      deviation: standard deviation of the strength, which is then cut to 0 to 10.
      probability: of applying an operation that was drawn.
      fill: what comes in from outside of an image, a value or [C]; the mean color in the recipes.
    """
    if images.dtype != jnp.uint8 or images.shape[-1] not in (1, 3):
        raise ValueError(
            f"randaugment: images are {images.dtype}{list(images.shape)}; its operations are defined for "
            "uint8 [B, H, W, C] from 0 to 255, with 1 or 3 channels"
        )

    def once(image: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
        which, strength, side, on = jax.random.split(key, 4)
        operation = jax.random.randint(which, (), 0, len(OPERATIONS))
        level = jnp.clip(magnitude + deviation * jax.random.normal(strength), 0.0, 10.0)
        sign = jnp.where(jax.random.bernoulli(side), 1.0, -1.0)
        changed = operate(image, operation, level, sign, fill)
        return jnp.where(jax.random.bernoulli(on, probability), changed, image), None

    def one(key: jax.Array, image: jax.Array) -> jax.Array:
        return lax.scan(once, image, jax.random.split(key, count))[0]

    return jax.vmap(one)(jax.random.split(key, len(images)), images)


def operate(
    image: jax.Array, operation: jax.Array, level: jax.Array, sign: jax.Array, fill: jax.typing.ArrayLike
) -> jax.Array:
    """Applies one operation, int32 [], its place in `OPERATIONS`, to an image, uint8 [H, W, C].

    Its strength is `level`, float32 [], from 0 to 10. By the sign, 1 or -1, an image is moved to one side or
    the other, and a contrast, brightness, color or sharpness grows or shrinks.
    """
    strength = level / 10
    end_of_moves, end_of_tables = len(MOVES), len(MOVES) + len(TABLES)
    kind = (operation >= end_of_moves).astype(jnp.int32) + (operation >= end_of_tables).astype(jnp.int32)
    return lax.switch(
        kind,
        (
            lambda: _moved(image, _matrices(image, sign * strength)[operation], fill),
            lambda: _mapped(image, _tables(image, strength, sign)[operation - end_of_moves]),
            lambda: _blend(
                jnp.where(operation == end_of_tables, _gray(image), _smooth(image)), image, strength, sign
            ),
        ),
    )


def _matrices(image: jax.Array, strength: jax.Array) -> jax.Array:
    """From a place (x, y, 1) in the new image to the one in the old: float32 [moves, 2, 3]."""
    height, width = image.shape[:2]
    zero, one = jnp.zeros_like(strength), jnp.ones_like(strength)
    angle = jnp.deg2rad(30 * strength)
    cos, sin, x, y = jnp.cos(angle), jnp.sin(angle), width / 2, height / 2
    rows = (
        ((cos, -sin, x - x * cos + y * sin), (sin, cos, y - x * sin - y * cos)),
        ((one, 0.3 * strength, zero), (zero, one, zero)),
        ((one, zero, zero), (0.3 * strength, one, zero)),
        ((one, zero, 0.45 * width * strength), (zero, one, zero)),
        ((one, zero, zero), (zero, one, 0.45 * height * strength)),
    )
    return jnp.array(rows, jnp.float32)


def _moved(image: jax.Array, matrix: jax.Array, fill: jax.typing.ArrayLike) -> jax.Array:
    """The image whose pixels are taken from other places, between pixels by bilinear interpolation."""
    height, width, _ = image.shape
    centers = (jnp.arange(length, dtype=jnp.float32) + 0.5 for length in (height, width))
    y, x = jnp.meshgrid(*centers, indexing="ij")  # [H, W]
    x, y = (a * x + b * y + c for a, b, c in matrix)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    left, top = jnp.floor(x - 0.5), jnp.floor(y - 0.5)
    across, down = x - 0.5 - left, y - 0.5 - top  # from the pixel to the left, and from the one above

    def pixel(row: jax.Array, column: jax.Array, weight: jax.Array) -> jax.Array:
        i = jnp.clip(row, 0, height - 1).astype(jnp.int32)
        j = jnp.clip(column, 0, width - 1).astype(jnp.int32)
        return weight[..., None] * image[i, j].astype(jnp.float32)  # [H, W, C]

    above = pixel(top, left, (1 - down) * (1 - across)) + pixel(top, left + 1, (1 - down) * across)
    total = above + pixel(top + 1, left, down * (1 - across)) + pixel(top + 1, left + 1, down * across)
    outside = jnp.broadcast_to(jnp.asarray(fill, jnp.float32), total.shape)
    return jnp.round(jnp.where(inside[..., None], total, outside)).astype(jnp.uint8)


def _tables(image: jax.Array, strength: jax.Array, sign: jax.Array) -> jax.Array:
    """The new value of each old one in each channel, uint8 [tables, C, 256]."""
    pixels = image.reshape(-1, image.shape[-1]).astype(jnp.int32)  # [H * W, C]
    values = jnp.arange(256)[None]  # [1, 256]

    darkest, lightest = pixels.min(0)[:, None], pixels.max(0)[:, None]  # [C, 1]
    stretched = (values - darkest) * 255 // jnp.maximum(lightest - darkest, 1)
    autocontrast = jnp.where(lightest > darkest, stretched, values)

    counts = jax.vmap(lambda x: jnp.zeros(256, jnp.int32).at[x].add(1), in_axes=1)(pixels)  # [C, 256]
    step = (len(pixels) - jnp.take_along_axis(counts, lightest, axis=1)) // 255
    equal = (step // 2 + jnp.cumsum(counts, axis=1) - counts) // jnp.maximum(step, 1)
    equalize = jnp.where(step > 0, equal, values)

    dropped = 4 + jnp.floor(4 * strength).astype(jnp.int32)  # bits
    posterize = (values >> dropped) << dropped
    solarize = jnp.where(values < 256 - jnp.floor(256 * strength).astype(jnp.int32), values, 255 - values)
    added = jnp.floor(110 * strength).astype(jnp.int32)
    solarize_add = jnp.where(values < 128, values + added, values)

    mean = jnp.floor(jnp.mean(_gray(image).astype(jnp.float32)) + 0.5)
    factor, levels = 1 + 0.9 * sign * strength, values.astype(jnp.float32)
    contrast, brightness = mean + factor * (levels - mean), factor * levels

    tables = (autocontrast, equalize, 255 - values, posterize, solarize, solarize_add, contrast, brightness)
    shape = (image.shape[-1], 256)
    whole = [jnp.broadcast_to(jnp.clip(table, 0, 255).astype(jnp.uint8), shape) for table in tables]
    return jnp.stack(whole)


def _mapped(image: jax.Array, table: jax.Array) -> jax.Array:
    """The image with each value replaced by its own in a table [C, 256]."""
    return table[jnp.arange(image.shape[-1])[None, None], image.astype(jnp.int32)]


def _blend(plain: jax.Array, image: jax.Array, strength: jax.Array, sign: jax.Array) -> jax.Array:
    """A step from a plainer image to the image, and beyond it where the sign is 1."""
    start = plain.astype(jnp.float32)
    blended = start + (1 + 0.9 * sign * strength) * (image.astype(jnp.float32) - start)
    return jnp.clip(blended, 0, 255).astype(jnp.uint8)


def _gray(image: jax.Array) -> jax.Array:
    """The luma of an image by ITU-R 601, in all its channels, uint8 [H, W, C]."""
    if image.shape[-1] == 1:
        return image
    weights = jnp.array([[[19595, 38470, 7471]]])  # of 65,536, as Pillow has them
    luma = (jnp.sum(image.astype(jnp.int32) * weights, axis=-1, keepdims=True) + 32768) >> 16
    return jnp.broadcast_to(luma, image.shape).astype(jnp.uint8)


def _smooth(image: jax.Array) -> jax.Array:
    """Each pixel with 5 parts and its eight neighbors with 1 part of 13; the border as it is."""
    height, width = image.shape[:2]
    wide = image.astype(jnp.float32)
    total = 4 * wide[1:-1, 1:-1]
    for row in range(3):
        for column in range(3):
            total += wide[row : height - 2 + row, column : width - 2 + column]
    return image.at[1:-1, 1:-1].set(jnp.floor(total / 13 + 0.5).astype(jnp.uint8))

"""RandAugment: random operations on images, drawn for each image by itself (Cubuk et al. 2020).

The operations and their strengths are those of timm's `rand-m9-mstd0.5-inc1`, which DeiT and AutoFormer train
with; each computes what Pillow's function of that name does. An operation is one of three things: another
place that each pixel is taken from, a table from old to new values, or a blend with a plainer image. So a
batch whose images have different operations takes three passes, and not fifteen.
"""

import jax
import jax.numpy as jnp
from jax import lax

# Rotated by up to 30 degrees, sheared by up to 0.3, moved by up to 0.45 of the image.
MOVES = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
TABLES = ("autocontrast", "equalize", "invert", "posterize", "solarize", "solarize_add")
TABLES += ("contrast", "brightness")
BLENDS = ("color", "sharpness")
OPERATIONS = (*MOVES, *TABLES, *BLENDS)


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

    RandAugment (Cubuk et al. 2020, section 3.1), with a strength that varies and operations that may be left
    out, as timm has them.

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

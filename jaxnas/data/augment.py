"""Augmentation: pure functions of a key and a batch, to be called inside a jitted step.

Each takes images [B, H, W, C] of uint8 or a float dtype and returns the same shape and dtype;
each image draws from its own key. Sizes, probabilities and the like are Python numbers.
"""

import jax
import jax.numpy as jnp


def normalize(images: jax.Array, mean: jax.Array, std: jax.Array) -> jax.Array:
    """Returns (images - mean) / std per channel, in float32.

    Args:
        images: [..., C] of any dtype, in the units of `mean` and `std`.
        mean: float [C], e.g. `Dataset.mean`.
        std: float [C], e.g. `Dataset.std`.
    """
    channelwise = (1,) * (images.ndim - 1) + (-1,)
    mean = jnp.asarray(mean, jnp.float32).reshape(channelwise)
    std = jnp.asarray(std, jnp.float32).reshape(channelwise)
    return (images.astype(jnp.float32) - mean) / std


def pad_and_crop(key: jax.Array, images: jax.Array, padding: int, value: float = 0) -> jax.Array:
    """Shifts each image by up to `padding` pixels along both axes, and fills with `value`."""
    if padding < 0:
        raise ValueError(f"padding must not be negative, got {padding}")

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


def _fill(image: jax.Array, top, left, height, width, value: float) -> jax.Array:
    row = jnp.arange(image.shape[0]).reshape(-1, 1, 1)
    column = jnp.arange(image.shape[1]).reshape(1, -1, 1)
    inside = (row >= top) & (row < top + height) & (column >= left) & (column < left + width)
    return jnp.where(inside, jnp.asarray(value, image.dtype), image)


def cutout(key: jax.Array, images: jax.Array, size: int, value: float = 0) -> jax.Array:
    """Fills a square of `size` pixels, centred anywhere in the image, with `value`.

    As in Cutout (DeVries and Taylor 2017, section 3.1), the square may reach over the border.
    """

    def one(key, image):
        rows, columns = jax.random.split(key)
        top = jax.random.randint(rows, (), 0, image.shape[0]) - size // 2
        left = jax.random.randint(columns, (), 0, image.shape[1]) - size // 2
        return _fill(image, top, left, size, size, value)

    return jax.vmap(one)(jax.random.split(key, len(images)), images)


def erase(
    key: jax.Array,
    images: jax.Array,
    probability: float = 0.25,
    area: tuple[float, float] = (0.02, 1 / 3),
    aspect: float = 0.3,
    value: float = 0,
) -> jax.Array:
    """Fills a random rectangle inside each image with `value`, with a probability.

    Random erasing (Zhong et al. 2020, algorithm 1), with a rectangle that doesn't fit cut down
    to the image instead of drawn again.

    Args:
        key: random key.
        images: [B, H, W, C].
        probability: of erasing at all, for each image.
        area: (smallest, largest) share of the image, drawn uniformly.
        aspect: height / width is log-uniform in [aspect, 1 / aspect].
        value: what to fill with, in the images' units.
    """

    def one(key, image):
        height, width = image.shape[:2]
        on, size, ratio, rows, columns = jax.random.split(key, 5)
        pixels = height * width * jax.random.uniform(size, minval=area[0], maxval=area[1])
        log_aspect = jnp.log(jnp.float32(aspect))
        root = jnp.exp(0.5 * jax.random.uniform(ratio, minval=log_aspect, maxval=-log_aspect))
        h = jnp.clip(jnp.round(jnp.sqrt(pixels) * root), 1, height).astype(jnp.int32)
        w = jnp.clip(jnp.round(jnp.sqrt(pixels) / root), 1, width).astype(jnp.int32)
        top = jax.random.randint(rows, (), 0, height - h + 1)
        left = jax.random.randint(columns, (), 0, width - w + 1)
        on = jax.random.bernoulli(on, probability)
        return _fill(image, top, left, jnp.where(on, h, 0), w, value)

    return jax.vmap(one)(jax.random.split(key, len(images)), images)


def mixup(
    key: jax.Array, images: jax.Array, labels: jax.Array, num_classes: int, alpha: float = 0.8
) -> tuple[jax.Array, jax.Array]:
    """Blends each image with another of the batch, and their labels alike (Zhang et al. 2018).

    Args:
        key: random key.
        images: [B, H, W, C]; uint8 images are rounded after blending.
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

    mixed = blend(images.astype(jnp.float32))
    if jnp.issubdtype(images.dtype, jnp.integer):
        mixed = jnp.round(mixed)
    soft = blend(jax.nn.one_hot(labels, num_classes, dtype=jnp.float32))
    return mixed.astype(images.dtype), soft

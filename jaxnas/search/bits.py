"""Random bits by counter, quick on CPUs: what thousands of vmapped searches draw in every step."""

import jax
import jax.numpy as jnp
import numpy as np

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_OWN = np.uint32(1 << 31)  # `jax.random.fold_in` counts below: no block is used twice.


def threefry(
    key: tuple[jax.Array, jax.Array], counter: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Returns the Threefry-2x32 hash of counters under a key, uint32 as JAX's own.

    JAX rolls the twenty rounds into a loop on CPUs, so that it compiles quickly; unrolled they are one
    kernel with what uses the bits, ten and more times as fast (Salmon et al., SC 2011, section 3.3).
    """
    keys = [*key, key[0] ^ key[1] ^ np.uint32(0x1BD11BDA)]
    a, b = counter[0] + keys[0], counter[1] + keys[1]
    for block in range(5):
        for rotation in _ROTATIONS[block % 2]:
            a = a + b
            b = a ^ (b << np.uint32(rotation) | b >> np.uint32(32 - rotation))
        a, b = a + keys[(block + 1) % 3], b + keys[(block + 2) % 3] + np.uint32(block + 1)
    return a, b


def random_words(key: jax.Array, number: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Returns words of 16 random bits that depend on nothing but the key and a number, int32 [shape]."""
    rows, words = shape
    a, b = jax.random.key_data(key).reshape(-1)[:2]
    number = jnp.asarray(number, jnp.uint32)
    blocks = -(-words // 4)
    places = _OWN + jnp.arange(rows * blocks, dtype=jnp.uint32).reshape(rows, blocks)
    bits = threefry((a, b), (places, jnp.broadcast_to(number, places.shape)))
    both = jnp.stack(bits, axis=2).reshape(rows, 2 * blocks)
    halves = jnp.concatenate([both & np.uint32(0xFFFF), both >> np.uint32(16)], axis=1)
    return halves[:, :words].astype(jnp.int32)


def below(words: jax.Array, n: jax.Array | np.ndarray | int) -> jax.Array:
    """Maps words of 16 bits to numbers from 0 to n - 1, n < 2**15; the bias is below n / 2**16.

    A product and a shift, and not a remainder: no CPU divides vectors of integers.
    """
    return (words * n) >> 16

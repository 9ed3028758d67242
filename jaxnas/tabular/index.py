"""From the code of an architecture to its row in a table, under jit and vmap."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

DENSE_LIMIT = 2**20  # Codes of a space that are listed one by one: 4 MB of rows.


@dataclasses.dataclass(frozen=True, eq=False)
class Dense:
    """The row of every code of a space, by its number in mixed radix."""

    sizes: np.ndarray  # how many options each element has, int32 [length]
    rows: np.ndarray  # of each code, -1 for none, int32 [product of sizes]; the last element varies fastest

    def find(self, code: jax.Array) -> jax.Array:
        """The rows of codes [..., length], int32 [...]; -1 where there is none."""
        strides = np.concatenate([np.cumprod(self.sizes[:0:-1])[::-1], [1]]).astype(np.int32)
        sizes = jnp.broadcast_to(jnp.asarray(self.sizes, jnp.int32), code.shape)
        number = jnp.sum(code * jnp.broadcast_to(jnp.asarray(strides), code.shape), axis=-1)
        # An index that is out of range would be the number of another architecture.
        inside = jnp.all((code >= 0) & (code < sizes), axis=-1)
        return jnp.where(inside, jnp.asarray(self.rows)[jnp.where(inside, number, 0)], -1)


@dataclasses.dataclass(frozen=True, eq=False)
class Hashed:
    """The rows of a sample of a space: a binary search for a hash, then a comparison of codes."""

    weights: np.ndarray  # the hash is their product with a code modulo 2**32, uint32 [length]
    keys: np.ndarray  # the hashes of the rows in ascending order, uint32 [n]
    rows: np.ndarray  # the row of each, int32 [n]
    codes: np.ndarray  # the code of each, int32 [n, length]
    probes: int  # how many rows share a hash at most: that many are compared, so that the answer is exact

    def find(self, code: jax.Array) -> jax.Array:
        """The rows of codes [..., length], int32 [...]; -1 where there is none."""
        weights = jnp.broadcast_to(jnp.asarray(self.weights), code.shape)
        key = jnp.sum(code.astype(jnp.uint32) * weights, axis=-1)
        start = jnp.searchsorted(jnp.asarray(self.keys), key).astype(jnp.int32)
        row = jnp.full(key.shape, -1, jnp.int32)
        for probe in range(self.probes):
            at = jnp.minimum(start + probe, len(self.keys) - 1)
            same = jnp.all(jnp.asarray(self.codes)[at] == code, axis=-1)
            row = jnp.where(same, jnp.asarray(self.rows)[at], row)
        return row


Index = Dense | Hashed


def make(sizes: np.ndarray, codes: np.ndarray, rows: np.ndarray | None = None) -> Index:
    """The index of distinct codes, int32 [n, length], whose rows, int [n], are by default counted from 0."""
    numbers = np.arange(len(codes), dtype=np.int32) if rows is None else rows.astype(np.int32)
    if np.prod(sizes.astype(np.float64)) <= DENSE_LIMIT:
        every = np.full(int(np.prod(sizes)), -1, np.int32)
        every[np.ravel_multi_index(tuple(codes.T), tuple(sizes))] = numbers
        return Dense(sizes, every)
    # Raw bits of a counter, which are the same with every version of NumPy. The weights are odd: a product
    # with an odd number modulo 2**32 can be undone, so that no part of a code is lost.
    bits = np.random.Philox(key=np.uint64(0)).random_raw(codes.shape[1])
    weights = bits.astype(np.uint32) | np.uint32(1)
    keys = (codes.astype(np.uint32) * weights).sum(axis=1, dtype=np.uint32)
    order = np.argsort(keys, kind="stable").astype(np.int32)
    probes = int(np.unique(keys, return_counts=True)[1].max())
    return Hashed(weights, keys[order], numbers[order], np.ascontiguousarray(codes[order]), probes)

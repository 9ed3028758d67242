"""Mechanisms with a fixed pattern of pairs: Local, Longformer, Sparse Transformer, BigBird.

Each equals softmax attention under a mask of its pattern, which is never made: queries come in blocks, and
meet the blocks of keys that the pattern names. Patterns count positions, those of padding too.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxnas.supernets.dartformer.attention import core


def local(query: Array, key: Array, value: Array, mask: Array, *, block: int) -> Array:
    """Attention within blocks that do not overlap (Liu et al. 2018, section 4.2.4), O(n block).

    Args:
      block: positions of a block; the last one may have fewer.
    """
    core.check_sizes("local", block=block)
    size = min(block, query.shape[2])
    seen = core.split_mask(mask, size)
    queries, keys, values = (core.split(x, size) for x in (query, key, value))
    return core.unsplit(core.attend(queries, (keys, values, seen)), mask)


def longformer(
    query: Array, key: Array, value: Array, mask: Array, *, window: int, leading: core.Keys | None = None
) -> Array:
    """A sliding window, with global tokens in front, O(n window) (Beltagy et al. 2020, section 3).

    Args:
      window: number of positions that a query sees, its own among them: window // 2 before it, the rest
        behind it.
      leading: queries [B, H, G, d] of the first G positions, which are global, and keys and values
        [B, H, T, d] that these queries meet, of projections of their own. All queries see the keys
        of global positions, and queries of global positions see all keys. None: no position is global.
    """
    core.check_sizes("longformer", window=window)
    length, count = query.shape[2], 0 if leading is None else leading[0].shape[2]
    before, after = window // 2, (window - 1) // 2
    size = min(max(before, after, 1), length)
    queries, keys, values = (core.split(x, size) for x in (query, key, value))  # [B, H, N, s, d]
    blocks = keys.shape[2]
    reach = (min(before, 1) if blocks > 1 else 0, min(after, 1) if blocks > 1 else 0)

    # Places of keys beside a block, counted from its first position; the same for all blocks.
    places = np.arange(-reach[0] * size, (1 + reach[1]) * size)
    distance = np.arange(size)[:, None] - places[None, :]  # [s, K]
    near = (distance <= before) & (distance >= -after)
    positions = np.arange(blocks)[:, None] * size + places[None, :]  # [N, K]
    seen = core.neighbors(core.split(mask[:, None, :, None], size), *reach).swapaxes(
        -1, -2
    )  # [B, 1, N, 1, K]
    seen = seen & near[None, None, None] & (positions >= count)[None, None, :, None]
    sets: list[core.Keys] = [(core.neighbors(keys, *reach), core.neighbors(values, *reach), seen)]
    if leading is None or count == 0:
        return core.unsplit(core.attend(queries, *sets), mask)

    # Sets that are the same for all blocks have one block, which meets all of them.
    first = mask[:, None, None, None, :count]  # [B, 1, 1, 1, G]
    sets.append((key[:, :, None, :count], value[:, :, None, :count], first))
    rest = core.unsplit(core.attend(queries, *sets), mask)[:, :, count:]
    query, key, value = leading
    front = core.attend(query, (key, value, mask[:, None, None, :]))  # [B, H, G, d]
    return core.clear(jnp.concatenate([front, rest], axis=2), mask)


def sparse_transformer(
    query: Array, key: Array, value: Array, mask: Array, *, block: int, summary: int
) -> Array:
    """The fixed pattern of the Sparse Transformer (Child et al. 2019, sections 4.2 and 4.3).

    A query sees its own block, and the last positions of every block, which sum it up. That is O(n sqrt n)
    for a block of sqrt n. Of the paper's ways to put the two together this is the merged head: one softmax
    over both, which a single head can have, too.

    Args:
      block: positions of a block (the paper's stride).
      summary: how many positions at the end of a block all queries see (the paper's c).
    """
    core.check_sizes("sparse_transformer", block=block, summary=summary)
    if summary > block:
        raise ValueError(f"A summary of {summary} positions does not fit into a block of {block}.")
    size = min(block, query.shape[2])
    queries, keys, values = (core.split(x, size) for x in (query, key, value))  # [B, H, N, s, d]
    real = core.split_mask(mask, size)  # [B, 1, N, 1, s]
    sets: list[core.Keys] = [(keys, values, real)]
    count = keys.shape[2]
    if count > 1:  # a sequence of one block has no others to look into
        other = ~np.eye(count, dtype=bool)
        other = np.repeat(other, summary, axis=1)[None, None, :, None]  # [1, 1, N, 1, N c]
        of_all = real[..., -summary:].reshape(real.shape[0], 1, 1, 1, -1)  # [B, 1, 1, 1, N c]
        of_keys, of_values = (_together(x[..., -summary:, :]) for x in (keys, values))
        sets.append((of_keys, of_values, of_all & other))
    return core.unsplit(core.attend(queries, *sets), mask)


def _together(x: Array) -> Array:
    """Blocks as one, which all queries meet: [B, H, N, s, d] -> [B, H, 1, N s, d]."""
    return x.reshape(*x.shape[:2], 1, -1, x.shape[-1])


def random_blocks(count: int, num_random: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Which blocks each inner block sees at random, beside the first, the last and those around it.

    Args:
      count: number of blocks N.
      num_random: random blocks of each block r.
      seed: of the drawing.

    Returns:
      For the blocks 1 to N - 2: indices int [N - 2, r], and whether each is in use, bool [N - 2, r]. A
      short sequence has fewer blocks to draw from than r.
    """
    draw = np.random.default_rng(seed)
    indices = np.zeros((max(count - 2, 0), num_random), np.int32)
    used = np.zeros(indices.shape, bool)
    for row in range(len(indices)):
        others = np.setdiff1d(np.arange(1, count - 1), [row, row + 1, row + 2])
        drawn = draw.permutation(others)[:num_random]
        indices[row, : len(drawn)], used[row, : len(drawn)] = drawn, True
    return indices, used


def bigbird(
    query: Array,
    key: Array,
    value: Array,
    mask: Array,
    *,
    block: int,
    num_random: int,
    seed: int = 0,
    length: int | None = None,
) -> Array:
    """BigBird's block-sparse attention, O(n) (Zaheer et al. 2020, section 2 and appendix D, ITC).

    The first and the last block see and are seen by all. Each other block sees itself, the blocks on either
    side, and random ones, the same for all heads. So the pattern depends on the number of blocks.

    Args:
      block: positions of a block.
      num_random: random blocks of each block.
      seed: of the random blocks; see `random_blocks`.
      length: positions that the pattern is made for, at least T. A shorter sequence has the beginning of that
        pattern, as if it were filled up with padding. None for T.
    """
    core.check_sizes("bigbird", block=block)
    core.check_sizes("bigbird", least=0, num_random=num_random)
    longest = query.shape[2] if length is None else length
    core.check_length(query.shape[2], longest, "BigBird")
    size = min(block, longest)
    queries, keys, values = (core.split(x, size) for x in (query, key, value))  # [B, H, N, s, d]
    real = core.split(mask[:, None, :, None], size)  # [B, 1, N, s, 1]
    count, of_pattern = keys.shape[2], -(-longest // size)
    stop = min(count, of_pattern - 1)  # of the blocks between the ends, which begin with 1

    def ends(x: Array) -> Array:
        """The first block, and the last one of the pattern if it is another one and is there."""
        return jnp.concatenate([x[:, :, :1], x[:, :, max(stop, 1) :]], axis=2)

    everything = _together(keys), _together(values), _as_keys(_together(real))
    dense = core.attend(ends(queries), everything)  # [B, H, 1 or 2, s, d]
    if stop <= 1:
        return core.unsplit(dense, mask)
    edges = _together(ends(keys)), _together(ends(values)), _as_keys(_together(ends(real)))
    inner = (0 < np.arange(count)) & (np.arange(count) < stop)  # the ends are seen already
    near = core.neighbors(real & inner[None, None, :, None, None], 1, 1)
    around = [
        x[:, :, 1:stop] for x in (core.neighbors(keys, 1, 1), core.neighbors(values, 1, 1), _as_keys(near))
    ]
    sets: list[core.Keys] = [edges, (around[0], around[1], around[2])]
    if num_random:
        indices, used = (x[: stop - 1] for x in random_blocks(of_pattern, num_random, seed))
        used = used & (indices < count)
        indices = np.where(used, indices, 0)

        def drawn(x: Array) -> Array:
            """The random blocks of each inner block: [B, H, N, s, d] -> [B, H, stop - 1, r s, d]."""
            return x[:, :, indices].reshape(*x.shape[:2], stop - 1, num_random * size, x.shape[-1])

        chosen = drawn(real) & np.repeat(used, size, axis=1)[None, None, :, :, None]
        sets.append((drawn(keys), drawn(values), _as_keys(chosen)))
    sparse = core.attend(queries[:, :, 1:stop], *sets)
    return core.unsplit(jnp.concatenate([dense[:, :, :1], sparse, dense[:, :, 1:]], axis=2), mask)


def _as_keys(seen: Array) -> Array:
    """From a column for positions to a row for keys: [..., K, 1] -> [..., 1, K]."""
    return seen.swapaxes(-1, -2)


class Local(core.Attention, kw_only=True):
    """Attention within blocks; see `local` for its attribute."""

    block: int = 50

    def attend(self, x: Array, mask: Array) -> Array:
        return local(*self.qkv(x), mask, block=self.block)


class Longformer(core.Attention, kw_only=True):
    """Attention within a sliding window, with global tokens in front; see `longformer`.

    Attributes:
      num_global: how many positions in front are global, with projections of their own.
    """

    window: int = 512
    num_global: int = 0

    def attend(self, x: Array, mask: Array) -> Array:
        core.check_sizes("longformer", least=0, num_global=self.num_global)
        operands, leading = self.qkv(x), None
        if self.num_global:
            (first,) = self.heads(x[:, : self.num_global], "global_query")
            keys, values = self.heads(x, "global_key", "global_value")
            leading = first, keys, values
        return longformer(*operands, mask, window=self.window, leading=leading)


class SparseTransformer(core.Attention, kw_only=True):
    """The fixed pattern of the Sparse Transformer; see `sparse_transformer` for its attributes."""

    block: int = 50
    summary: int = 10

    def attend(self, x: Array, mask: Array) -> Array:
        return sparse_transformer(*self.qkv(x), mask, block=self.block, summary=self.summary)


class BigBird(core.Attention, kw_only=True):
    """Block-sparse attention with random blocks; see `bigbird`.

    Attributes:
      seed: of the random blocks. Give each layer one of its own.
      max_length: of the sequences that the pattern is made for, so that the function of a sequence does not
        depend on its padding; None for the length of what is given.
    """

    block: int = 64
    num_random: int = 3
    seed: int = 0
    max_length: int | None = None

    def attend(self, x: Array, mask: Array) -> Array:
        sizes = dict(block=self.block, num_random=self.num_random, length=self.max_length)
        return bigbird(*self.qkv(x), mask, **sizes, seed=self.seed)

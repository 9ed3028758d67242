"""Features of architectures: one-hot decisions, and operations along the paths of a cell.

Every function takes one architecture, is pure, and works under jit and vmap. A cell's features are a
dict of arrays; each array is a group to a predictor (a length scale of its own in a kernel).
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.checks import check_counts
from jaxnas.space import Arch, Space, check_space

Features = dict[str, jax.Array]


def one_hot(space: Space) -> Callable[[Arch], jax.Array]:
    """A function from a hard architecture to its one-hot decisions, float32 [F].

    F is the sum of `space.sizes`. The options of an inactive element are all zero, so equal networks
    have equal features.
    """
    check_space(space, "one_hot")
    # One column for each option of each element: which element, and which option.
    element = np.repeat(np.arange(space.length), space.sizes)
    option = np.concatenate([np.arange(size, dtype=np.int32) for size in space.sizes])

    def features(arch: Arch) -> jax.Array:
        code, active = space.encode(arch), space.active_code(arch)
        return ((code[element] == option) & active[element]).astype(jnp.float32)

    return features


@dataclasses.dataclass(frozen=True)
class EdgeCell:
    """A cell whose edges carry the operations, as in NAS-Bench-201 (arXiv 2001.00326).

    Attributes:
      edges: (source, target) of every edge, in the order of the operations; source < target, node 0
        is the input and the largest node the output.
      operations: how many there are.
      none: the index of the operation that cuts its edge, or None.
      identity: the index of the operation that passes its input on, or None.
    """

    edges: tuple[tuple[int, int], ...]
    operations: int
    none: int | None = None
    identity: int | None = None

    def __post_init__(self):
        edges = self.edges if isinstance(self.edges, tuple) else ()
        pairs = [e for e in edges if isinstance(e, tuple) and len(e) == 2 and all(type(x) is int for x in e)]
        if not pairs or len(pairs) < len(edges) or not all(0 <= source < target for source, target in pairs):
            raise ValueError(
                f"EdgeCell: edges is {self.edges!r}, expected a tuple of (source, target) with nodes from 0 "
                "and source < target, such as ((0, 1), (0, 2), (1, 2))."
            )
        check_counts(self, "operations")
        check_counts(self, "none", "identity", least=0, most=self.operations - 1, none=True)
        if not self._routes:
            raise ValueError(f"EdgeCell: no path from node 0 to the last node in {self.edges}.")

    @property
    def kinds(self) -> int:
        """The number of operations that compute something: neither `none` nor `identity`."""
        return self.operations - (self.none is not None) - (self.identity is not None)

    @functools.cached_property
    def _routes(self) -> list[list[int]]:
        """The edges of every path from the input to the output."""
        last = max(target for _, target in self.edges)
        done: list[list[int]] = []
        paths = [[k] for k, (source, _) in enumerate(self.edges) if source == 0]
        while paths:
            path = paths.pop()
            end = self.edges[path[-1]][1]
            if end == last:
                done.append(path)
            paths += [[*path, k] for k, (source, _) in enumerate(self.edges) if source == end]
        return sorted(done, key=lambda path: (len(path), path))

    def paths(self, ops: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The operations along each path, whether it is one, and which operations count.

        From int32 [edges] to int32 [P, L], from 0 to `kinds` - 1, -1 after the end (identities are
        dropped); bool [P]; int32 [edges], -1 for identities and edges on no path.
        """
        length = max(map(len, self._routes))
        table = np.full((len(self._routes), length), -1, np.int32)
        for row, path in zip(table, self._routes, strict=True):
            row[: len(path)] = path
        ops = jnp.asarray(ops, jnp.int32)
        dead = jnp.zeros(ops.shape, bool) if self.none is None else ops == self.none
        kind = jnp.asarray(_kinds(self.operations, self.none, self.identity))[ops]
        alive = ~jnp.any(dead[table] & (table >= 0), axis=1)
        on_path = (table[:, :, None] == np.arange(len(self.edges))).any(1)
        used = jnp.where(jnp.any(on_path & alive[:, None], axis=0), kind, -1)
        return _compact(jnp.where(table >= 0, kind[table], -1)), alive, used


@dataclasses.dataclass(frozen=True)
class ChainCell:
    """A cell whose nodes have one source each, as in NAS-Bench-Graph (NeurIPS 2022).

    Node i + 1 applies operation `ops[i]` to node `links[i]`, 0 being the input; the nodes that no
    other uses are joined to the output.

    Attributes:
      nodes: how many operations a cell has.
      operations: how many there are to choose from.
      identity: the index of the operation that passes its input on, or None.
    """

    nodes: int
    operations: int
    identity: int | None = None

    def __post_init__(self):
        check_counts(self, "nodes", "operations")
        check_counts(self, "identity", least=0, most=self.operations - 1, none=True)

    @property
    def kinds(self) -> int:
        """The number of operations that compute something."""
        return self.operations - (self.identity is not None)

    def paths(self, links: jax.Array, ops: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The operations along each path, whether it is one, and which operations count.

        From two int32 [nodes] to int32 [nodes, nodes], bool [nodes] and int32 [nodes], as
        `EdgeCell.paths` does.
        """
        links = jnp.asarray(links, jnp.int32)
        kind = jnp.asarray(_kinds(self.operations, None, self.identity))[ops]
        above = jnp.zeros((self.nodes + 1, self.nodes), bool)
        for i in range(self.nodes):
            above = above.at[i + 1].set(above[links[i]].at[i].set(True))
        leaf = ~jnp.any(links[None, :] == jnp.arange(1, self.nodes + 1, dtype=jnp.int32)[:, None], 1)
        return _compact(jnp.where(above[1:], kind[None, :], -1)), leaf, kind


def _kinds(operations: int, *without: int | None) -> np.ndarray:
    """Numbers operations from 0, leaving out some, which get -1."""
    kept = [k not in without for k in range(operations)]
    return np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)


def _compact(steps: jax.Array) -> jax.Array:
    """Moves the -1 of each row behind the rest."""
    order = jnp.argsort(steps < 0, axis=1, stable=True)
    return jnp.take_along_axis(steps, order, axis=1)


def path_features(
    kinds: int, steps: jax.Array, alive: jax.Array, used: jax.Array, *, length: int = 3
) -> Features:
    """Returns features of what a cell computes along its paths, as groups of float32 columns.

    From what `paths` of a cell returns. `sequences`: how often each sequence of operations of up to
    `length` is a whole path (a longer one counts as its last `length`); `pairs`: how often two
    operations follow each other on a path; `totals`: how often each operation is there; `most`: the
    largest number of each in one path; `visits`: on how many paths it lies, with multiplicity;
    `shape`: the number of paths, and the least, largest and total number of operations on one.
    Columns grow as `kinds ** length`.
    """
    depth = steps.shape[1]
    live = (steps >= 0) & alive[:, None]
    number = jnp.sum(steps >= 0, axis=1, dtype=jnp.int32)
    length = min(length, depth)
    # Base `kinds` with the offset of all shorter sequences: every sequence has its own column.
    starts = np.cumsum([0] + [kinds**k for k in range(length + 1)]).astype(np.int32)
    kept = jnp.minimum(number, length)
    index = jnp.asarray(starts)[kept]
    power = jnp.ones_like(index)
    for k in range(length):
        at = jnp.maximum(number - 1 - k, 0)
        digit = jnp.take_along_axis(steps, at[:, None], axis=1)[:, 0]
        index += jnp.where(k < kept, digit * power, 0)
        power *= kinds
    weight = alive.astype(jnp.float32)
    sequences = jnp.zeros(int(starts[-1]), jnp.float32).at[index].add(weight)
    hot = jax.nn.one_hot(jnp.where(live, steps, -1), kinds, dtype=jnp.float32)  # [P, L, kinds]
    pairs = jnp.einsum("pla,plb->ab", hot[:, :-1], hot[:, 1:]).reshape(-1)
    counts = hot.sum(1)
    lengths = counts.sum(1)
    shortest = jnp.min(jnp.where(alive, lengths, jnp.float32(depth)))
    shape = jnp.stack([weight.sum(), shortest, lengths.max(), lengths.sum()])
    return {
        "sequences": sequences,
        "pairs": pairs,
        "totals": jax.nn.one_hot(used, kinds, dtype=jnp.float32).sum(0),
        "most": counts.max(0),
        "visits": counts.sum(0),
        "shape": shape,
    }


def path_tokens(steps: jax.Array, alive: jax.Array) -> Features:
    """A cell's operations as tokens: every step of every path, int32 [P * L] each.

    `kind`: the operation, -1 where there is none; `place`: how many steps from the path's start;
    `segment`: the path.
    """
    paths, length = steps.shape
    place = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (paths, length))
    segment = jnp.broadcast_to(jnp.arange(paths, dtype=jnp.int32)[:, None], (paths, length))
    kind = jnp.where(alive[:, None], steps, -1)
    return {"kind": kind.reshape(-1), "place": place.reshape(-1), "segment": segment.reshape(-1)}


def tokens(space: Space) -> Callable[[Arch], Features]:
    """A function from a hard architecture to its decisions as tokens, int32 [length] each.

    `kind`: the option's index, -1 where inactive; `place`: the element; `segment`: 0.
    """
    check_space(space, "tokens")
    place = jnp.arange(space.length, dtype=jnp.int32)

    def features(arch: Arch) -> Features:
        return {
            "kind": jnp.where(space.active_code(arch), space.encode(arch), -1),
            "place": place,
            "segment": jnp.zeros_like(place),
        }

    return features

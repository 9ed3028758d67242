"""Axes that belong together: a union-find over the atoms of axes.

An *atom* is a factor of an axis. `[.., heads * size] -> [.., heads, size]` splits an atom in two, and the
way back joins them; `concatenate` makes an atom a sum of pieces. Operations tie the atoms of their operands,
so what is left at the end are groups of axes that have one size.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Axis = list[int]  # atoms, outer to inner
Axes = list[Axis]  # one for each axis of an array


class Leaf(NamedTuple):
    """An atom that is not split any further.

    Attributes:
      atom: its number.
      size: its full size.
    """

    atom: int
    size: int


class Sum(NamedTuple):
    """An atom that is a concatenation of pieces."""

    pieces: tuple[Layout, ...]

    @property
    def size(self) -> int:
        """The full size."""
        return sum(math.prod(factor.size for factor in piece) for piece in self.pieces)


Layout = tuple[Leaf | Sum, ...]  # the factors of an axis, outer to inner


@dataclasses.dataclass
class Ties:
    """Which atoms are equal, which are split into others, and which cannot change their size.

    Attributes:
      sizes: of each atom.
      same: the atom that stands for another one.
      products: the factors of a split atom, outer to inner.
      sums: the pieces of a concatenated atom.
      fixed: why an atom keeps its size.
    """

    sizes: list[int] = dataclasses.field(default_factory=list)
    same: dict[int, int] = dataclasses.field(default_factory=dict)
    products: dict[int, Axis] = dataclasses.field(default_factory=dict)
    sums: dict[int, list[Axis]] = dataclasses.field(default_factory=dict)
    fixed: dict[int, str] = dataclasses.field(default_factory=dict)

    def new(self, size: int) -> int:
        """A new atom."""
        self.sizes.append(size)
        return len(self.sizes) - 1

    def axes(self, shape: Sequence[int], fixed: str | None = None) -> Axes:
        """Axes of a new array, each one atom; they keep their size if there is a reason."""
        made = [[self.new(size)] for size in shape]
        if fixed is not None:
            for axis in made:
                self.fix(axis, fixed)
        return made

    def root(self, atom: int) -> int:
        """The atom that stands for an atom."""
        while atom in self.same:
            atom = self.same[atom]
        return atom

    def factors(self, axis: Axis) -> Axis:
        """The factors of an axis that are larger than one, outer to inner."""
        found: Axis = []
        for atom in axis:
            atom = self.root(atom)
            if atom in self.products:
                found += self.factors(self.products[atom])
            elif self.sizes[atom] != 1:
                found.append(atom)
        return found

    def size(self, axis: Axis) -> int:
        """The full size of an axis."""
        return math.prod(self.sizes[atom] for atom in axis)

    def fix(self, axis: Axis, reason: str) -> None:
        """Keeps the size of an axis."""
        for atom in self.factors(axis):
            self.fixed.setdefault(atom, reason)
            for piece in self.sums.get(atom, ()):
                self.fix(piece, reason)

    def split(self, atom: int, sizes: Sequence[int]) -> Axis:
        """Splits an atom into factors, outer to inner."""
        atom = self.root(atom)
        pieces = self.sums.pop(atom, None)
        self.products[atom] = parts = [self.new(size) for size in sizes]
        if pieces is not None:
            self._factor_pieces(pieces, parts)
        if atom in self.fixed:
            self.fix(parts, self.fixed[atom])
        return parts

    def _factor_pieces(self, pieces: list[Axis], parts: Axis) -> None:
        """Factors a sum: equal pieces are (number, piece), others are only cut along the outer factor."""
        outer, inner = self.sizes[parts[0]], parts[1:]
        each = self.size(inner)
        if len(pieces) == outer and all(self.size(piece) == each for piece in pieces):
            self.fix(parts[:1], "pieces of equal size that are joined")
            for piece in pieces:
                self.tie(piece, inner)
        elif all(self.size(piece) % each == 0 for piece in pieces):
            rows = [self.new(self.size(piece) // each) for piece in pieces]
            self.sums[parts[0]] = [[row] for row in rows]
            for row, piece in zip(rows, pieces, strict=True):
                self.tie(piece, [row, *inner])
        else:
            for axis in (parts, *pieces):
                self.fix(axis, "joined pieces that are reshaped")

    def tie(self, one: Axis, other: Axis) -> None:
        """Makes two axes of one size equal."""
        x, y = self.factors(one), self.factors(other)
        while x and y:
            a, b = self.root(x[0]), self.root(y[0])
            if a in self.products or b in self.products:  # split meanwhile
                x, y = self.factors(x), self.factors(y)
            elif a == b or self.sizes[a] == self.sizes[b]:
                self._join(a, b)
                x, y = x[1:], y[1:]
            elif self.sizes[a] % self.sizes[b] == 0:
                x = self.split(a, [self.sizes[b], self.sizes[a] // self.sizes[b]]) + x[1:]
            elif self.sizes[b] % self.sizes[a] == 0:
                y = self.split(b, [self.sizes[a], self.sizes[b] // self.sizes[a]]) + y[1:]
            else:
                for axis in (x, y):
                    self.fix(axis, "reshaped to sizes that do not divide it")
                return

    def _join(self, a: int, b: int) -> None:
        if a == b:
            return
        if a in self.sums and b not in self.sums:
            a, b = b, a
        pieces = self.sums.pop(a, None)
        self.same[a] = b
        for source, target in ((a, b), (b, a)):
            if source in self.fixed:
                self.fix([target], self.fixed[source])
        if pieces is not None:
            self._tie_pieces(pieces, b)

    def _tie_pieces(self, pieces: list[Axis], atom: int) -> None:
        ends = np.cumsum([self.size(piece) for piece in pieces]).tolist()
        own = self.cut([atom], ends[:-1])
        for piece, tied in zip(pieces, own or pieces, strict=True):
            if own is None:
                self.fix(piece, "joined with other pieces")
            else:
                self.tie(piece, tied)

    def cut(self, axis: Axis, places: Sequence[int]) -> list[Axis] | None:
        """Cuts an axis at places, where the pieces after the first one begin.

        Returns:
          The pieces; None, and the axis is fixed, where a cut goes through a factor.
        """
        places = [place for place in places if 0 < place < self.size(axis)]
        if not places:
            return [axis]
        factors = self.factors(axis)
        outer, inner = factors[0], factors[1:]
        each = self.size(inner)
        if any(place % each for place in places):
            self.fix(axis, "cut within a factor")
            return None
        wanted = [place // each for place in places]
        have = self.sums.get(outer) or [[outer]]
        starts = np.cumsum([0, *(self.size(piece) for piece in have)]).tolist()
        bounds = sorted({*starts, *wanted})
        pieces: list[Axis] = []
        for piece, start, stop in zip(have, starts, starts[1:], strict=False):
            within = [bound - start for bound in bounds if start < bound < stop]
            if not within:
                pieces.append(piece)
            elif piece == [outer]:
                sizes = np.diff([0, *within, stop - start]).tolist()
                pieces += [[self.new(size)] for size in sizes]
            else:
                cut = self.cut(piece, within)
                if cut is None:
                    self.fix(axis, "cut within a factor")
                    return None
                pieces += cut
        self.sums[outer] = pieces
        if outer in self.fixed:
            self.fix([outer], self.fixed[outer])
        ends = np.cumsum([self.size(piece) for piece in pieces]).tolist()
        found, current = [], []
        for piece, end in zip(pieces, ends, strict=True):
            current.append(piece)
            if end in wanted or end == ends[-1]:
                found.append(self.joined(current) + inner)
                current = []
        return found

    def joined(self, pieces: list[Axis]) -> Axis:
        """The axis that is a concatenation of pieces."""
        if len(pieces) == 1:
            return pieces[0]
        atom = self.new(sum(self.size(piece) for piece in pieces))
        self.sums[atom] = list(pieces)
        return [atom]

    def layout(self, axis: Axis) -> Layout:
        """The factors of an axis, when everything is tied."""
        return tuple(
            Sum(tuple(self.layout(piece) for piece in self.sums[atom]))
            if atom in self.sums
            else Leaf(atom, self.sizes[atom])
            for atom in self.factors(axis)
        )


def leaves(layout: Layout) -> Iterator[Leaf]:
    """The atoms of an axis, in order; one that occurs in several pieces comes several times."""
    for factor in layout:
        if isinstance(factor, Leaf):
            yield factor
        else:
            for piece in factor.pieces:
                yield from leaves(piece)


def size_of(layout: Layout, sizes: Mapping[int, Any]) -> Any:
    """The active size of an axis, from those of atoms; others are whole. Ints, or traced."""
    total: Any = 1
    for factor in layout:
        if isinstance(factor, Leaf):
            total = total * sizes.get(factor.atom, factor.size)
        else:
            total = total * sum(size_of(piece, sizes) for piece in factor.pieces)
    return total


def mask_of(layout: Layout, masks: Mapping[int, Any], lib: Any = np) -> Any:
    """The weight of each position of an axis, [size], from the masks of atoms; others are whole.

    Args:
      layout: of the axis.
      masks: of atoms, bool [size] (hard) or float [size] (soft).
      lib: NumPy or jax.numpy.
    """
    total: Any = None
    for factor in layout:
        if isinstance(factor, Leaf):
            mask = masks.get(factor.atom)
            mask = lib.ones(factor.size, bool) if mask is None else mask
        else:
            mask = lib.concatenate(_alike([mask_of(piece, masks, lib) for piece in factor.pieces]))
        if total is not None:
            total, mask = _alike([total, mask])
        total = mask if total is None else (total[:, None] * mask[None, :]).reshape(-1)
    return lib.ones(1, bool) if total is None else total


def _alike(masks: list[Any]) -> list[Any]:
    """Masks of one type: float if one is."""
    soft = [mask.dtype for mask in masks if mask.dtype != np.dtype(bool)]
    return [mask.astype(soft[0]) for mask in masks] if soft else masks


@functools.cache
def atoms_of(layout: Layout) -> dict[int, int]:
    """The full sizes of the atoms of an axis."""
    return {leaf.atom: leaf.size for leaf in leaves(layout)}

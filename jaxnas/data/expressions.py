"""ListOps: nested operations on digits, made by a rule (Nangia and Bowman, NAACL Student Workshop 2018).

The rule is that of Long Range Arena (Tay et al., ICLR 2021): below the deepest level, a node is an operation
on 2 to `max_args` nodes with some probability, and else a digit. Trees are grown, computed and written level
by level, thousands at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from jaxnas.checks import check_counts, check_numbers
from jaxnas.data.sentences import Sentences
from jaxnas.data.splits import Split, uniform
from jaxnas.data.vocabulary import PADDING, Encoding, SymbolVocabulary

OPERATIONS = ("[MAX", "[MED", "[MIN", "[SM")
SYMBOLS = (PADDING, *map(str, range(10)), *OPERATIONS, "]")
_DIGIT, _OPERATION, _END = 1, 11, 15  # The numbers of "0", of the first operation and of "]".
_TREES = 4096  # Grown at a time.
_PATIENCE = 200  # Rounds in a row that may find nothing new, before there is nothing more to find.


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListOps:
    """The rule of random expressions.

    Attributes:
      examples, search_examples, test_examples: number of expressions of each role.
      max_depth: levels of a tree; the deepest has digits alone.
      max_args: most nodes of an operation; the least are 2.
      min_length, max_length: an expression has more tokens than the one and fewer than the other: its
        digits, and two for each operation.
      operation_probability: of a node above the deepest level to be an operation (LRA's VALUE_P).
      seed: of all draws.
    """

    examples: int = 96_000
    search_examples: int = 2_000
    test_examples: int = 2_000
    max_depth: int = 10
    max_args: int = 10
    min_length: int = 500
    max_length: int = 2_000
    operation_probability: float = 0.25
    seed: int = 0

    name = "listops"

    def __post_init__(self) -> None:
        check_counts(self, "examples", "search_examples", "test_examples", "max_depth")
        check_counts(self, "max_args", least=2)
        check_counts(self, "min_length", "seed", least=0)
        check_counts(self, "max_length", least=self.min_length + 2)
        check_numbers(self, "operation_probability", above=0, most=1)


def listops(rule: ListOps) -> Sentences:
    """Makes different expressions by a rule, as symbols padded to `max_length`; classes are the digits.

    Each split has its own random stream, so that more training examples leave the others unchanged. The
    search split is a development part, which monitors a retraining.
    """
    sizes = {"test": rule.test_examples, "search": rule.search_examples, "train": rule.examples}
    splits, seen, counts = {}, set(), np.zeros(len(SYMBOLS), np.int64)
    for stream, (role, count) in enumerate(sizes.items()):
        tokens = np.zeros((count, rule.max_length), np.int32)
        labels = np.empty(count, np.int32)
        for row, (expression, value) in enumerate(different(rule, stream, count, seen)):
            tokens[row, : len(expression)], labels[row] = expression, value
        mask = tokens > 0
        splits[role] = Split(role, {"tokens": tokens, "mask": mask}, labels)
        if role == "train":
            counts += np.bincount(tokens[mask], minlength=len(SYMBOLS))
    return Sentences(
        name=rule.name,
        classes=tuple(map(str, range(10))),
        vocabulary=SymbolVocabulary(counts=counts, words=SYMBOLS),
        unknown=dict.fromkeys(sizes, 0),
        cut=dict.fromkeys(sizes, 0),
        encoding=Encoding(tokens="symbols", length=rule.max_length),
        development=True,
        **splits,
    )


def different(rule: ListOps, stream: int, count: int, seen: set[bytes]) -> Iterator[tuple[np.ndarray, int]]:
    """New expressions, uint8 [length], with their values, which are added to `seen`."""
    bits = np.random.Philox(np.random.SeedSequence([rule.seed, stream]))
    found = vain = 0
    while vain < _PATIENCE:
        before = found
        for expression, value in grow(rule, bits, _TREES):
            if (digest := expression.tobytes()) not in seen:
                seen.add(digest)
                yield expression, value
                found += 1
                if found == count:
                    return
        vain = vain + 1 if found == before else 0
    raise ValueError(
        f"ListOps: after {found:,} of {count:,} expressions, {_PATIENCE * _TREES:,} trees had no new one "
        f"with more than {rule.min_length} and fewer than {rule.max_length} tokens; ask for fewer examples, "
        "or choose other lengths, a larger max_depth or max_args."
    )


@dataclasses.dataclass
class _Level:
    """The nodes of many trees that are equally deep, int [nodes], those of one parent side by side."""

    tree: np.ndarray  # which tree a node is of
    parent: np.ndarray  # its place among the nodes of the level above
    operation: np.ndarray  # -1 for a digit
    args: np.ndarray  # how many children it has
    value: np.ndarray  # its digit, and later the result of its operation


def grow(rule: ListOps, bits: np.random.BitGenerator, count: int) -> Iterator[tuple[np.ndarray, int]]:
    """The expressions, uint8 [length], and values of those of some random trees that have a right length."""
    levels, lengths = _trees(rule, bits, count)
    sizes = _results_and_sizes(levels)
    fits = (lengths > rule.min_length) & (lengths < rule.max_length)
    starts = np.cumsum(np.where(fits, lengths, 0)) - np.where(fits, lengths, 0)
    written = np.zeros(int(lengths[fits].sum()), np.uint8)
    place = starts
    for depth, level in enumerate(levels):
        if depth:  # A node stands behind its parent and the siblings before it.
            before = np.cumsum(sizes[depth]) - sizes[depth]
            above = levels[depth - 1]
            first = (np.cumsum(above.args) - above.args)[level.parent]
            place = place[level.parent] + 1 + before - before[first]
        kept, inner = fits[level.tree], level.operation >= 0
        symbols = np.where(inner, _OPERATION + level.operation, _DIGIT + level.value)
        written[place[kept]] = symbols[kept]
        written[(place + sizes[depth] - 1)[kept & inner]] = _END
    for tree in np.flatnonzero(fits):
        yield written[starts[tree] : starts[tree] + lengths[tree]], int(levels[0].value[tree])


def _trees(rule: ListOps, bits: np.random.BitGenerator, count: int) -> tuple[list[_Level], np.ndarray]:
    """Random trees by levels, and the lengths of their expressions, int [count].

    Trees that are too long already grow no further; their lengths stay too large.
    """
    levels: list[_Level] = []
    tree, parent, lengths = np.arange(count), np.zeros(count, np.int64), np.zeros(count, np.int64)
    for depth in range(1, rule.max_depth + 1):
        n = len(tree)
        inner = (uniform(bits, n) < rule.operation_probability) & (depth < rule.max_depth)
        lengths += np.bincount(tree[inner], minlength=count) + np.bincount(tree, minlength=count)
        inner &= lengths[tree] < rule.max_length
        args = np.where(inner, _whole(bits, 2, rule.max_args, n), 0)
        operation = np.where(inner, _whole(bits, 0, len(OPERATIONS) - 1, n), -1)
        levels.append(_Level(tree, parent, operation, args, _whole(bits, 0, 9, n)))
        parent = np.repeat(np.arange(n), args)
        tree = tree[parent]
        if not len(tree):
            break
    return levels, lengths


def _whole(bits: np.random.BitGenerator, low: int, high: int, n: int) -> np.ndarray:
    """Random numbers from `low` to `high`, int64 [n]."""
    return low + (uniform(bits, n) * (high - low + 1)).astype(np.int64)


def _results_and_sizes(levels: list[_Level]) -> list[np.ndarray]:
    """Computes the value of each operation, from the deepest up, and how many tokens each node has."""
    sizes = [np.ones(len(level.tree), np.int64) for level in levels]
    for depth in range(len(levels) - 2, -1, -1):
        level, below = levels[depth], levels[depth + 1]
        inner = np.flatnonzero(level.operation >= 0)
        first = (np.cumsum(level.args) - level.args)[inner]  # of the children, which lie side by side
        sizes[depth][inner] = 2 + np.add.reduceat(sizes[depth + 1], first)
        ordered = below.value[np.lexsort((below.value, below.parent))]  # the children's, in order
        last = first + level.args[inner] - 1
        median = (ordered[(first + last) // 2] + ordered[(first + last + 1) // 2]) // 2
        total = np.add.reduceat(below.value, first) % 10
        results = np.stack([ordered[last], median, ordered[first], total])  # as OPERATIONS
        level.value[inner] = results[level.operation[inner], np.arange(len(inner))]
    return sizes

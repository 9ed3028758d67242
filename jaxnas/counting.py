"""How many distinct architectures a space has, and which.

Both work on *elements*: (name, position), each with the elements on which it depends.
"""

import collections
from collections.abc import Iterable, Mapping

import numpy as np

from jaxnas.choice import Choice

Element = tuple[str, int]
Elements = dict[Element, list[tuple[Element, frozenset[int]]]]


def elements_of(choices: Mapping[str, Choice], order: Iterable[str]) -> Elements:
    """See `Space.elements`; `order` has parents first."""
    elements: Elements = {}
    for name in order:
        choice = choices[name]
        for position in range(1 if choice.length is None else choice.length):
            needs = []
            if choice.active is not None:
                deeper = np.flatnonzero(position < choices[choice.active].table)
                needs.append(((choice.active, 0), frozenset(deeper.tolist())))
            if choice.condition is not None:
                parent, wanted = choice.condition
                place = 0 if choices[parent].length is None else position
                options = enumerate(choices[parent].options_at(place))
                needs.append(((parent, place), frozenset(k for k, value in options if value in wanted)))
            elements[name, position] = needs
    return elements


def cardinality(choices: Mapping[str, Choice], elements: Elements) -> int:
    """The number of distinct canonical architectures."""

    def count(undecided: list[Element], decided: dict[Element, int | None]) -> int:
        # Settles what is inactive, then multiplies over parts that no longer depend on each
        # other; within a part, sums over the options of its first element.
        decided, left = dict(decided), []
        for element in undecided:
            if any(p in decided and decided[p] not in allowed for p, allowed in elements[element]):
                decided[element] = None  # inactive, and so is all that depends on it
            else:
                left.append(element)
        total = 1
        for first, *rest in parts_of(left, elements):
            size = len(choices[first[0]].options_at(first[1]))
            total *= sum(count(rest, {**decided, first: k}) for k in range(size)) if rest else size
        return total

    return count(list(elements), {})


def parts_of(left: list[Element], elements: Elements) -> list[list[Element]]:
    """The elements in groups that do not depend on each other, each in the given order."""
    leader = {element: element for element in left}

    def find(element: Element) -> Element:
        while leader[element] != element:
            element = leader[element]
        return element

    for element in left:
        for parent, _ in elements[element]:
            if parent in leader:
                leader[find(element)] = find(parent)
    parts = collections.defaultdict(list)
    for element in left:
        parts[find(element)].append(element)
    return list(parts.values())


def enumerate_all(choices: Mapping[str, Choice], elements: Elements) -> dict[str, np.ndarray]:
    """All distinct canonical architectures, int32 [cardinality, ...] by name."""
    columns: dict[Element, np.ndarray] = {}
    active: dict[Element, np.ndarray] = {}
    count = 1
    for element, needs in elements.items():
        mask = np.ones(count, bool)
        for parent, allowed in needs:
            mask &= active[parent] & np.isin(columns[parent], list(allowed))
        times = np.where(mask, len(choices[element[0]].options_at(element[1])), 1)
        rows = np.repeat(np.arange(count), times)
        columns = {e: column[rows] for e, column in columns.items()}
        active = {e: column[rows] for e, column in active.items()}
        columns[element] = np.arange(len(rows)) - np.repeat(np.cumsum(times) - times, times)
        active[element] = mask[rows]
        count = len(rows)
    arrays = {}
    for name, choice in choices.items():
        positions = range(1 if choice.length is None else choice.length)
        stacked = np.array([columns[name, p] for p in positions], np.int32).reshape(-1, count)
        arrays[name] = stacked[0] if choice.length is None else stacked.T
    return arrays

"""Search by replacing one place of a network at a time, and an exact choice among the replacements.

Puzzle (Bercovich et al., arXiv 2411.19146): the score of a network is estimated by the sum of what each of
its blocks costs when it alone is replaced. The best sum under bounds on costs that add up is an integer
program.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxnas import counting
from jaxnas.choice import element_name
from jaxnas.counting import Element
from jaxnas.search import bounds as bounds_lib
from jaxnas.search.bounds import Cost
from jaxnas.search.neighbors import canonical_codes
from jaxnas.space import Arch, Space

_MOST = 10_000  # options of a place


@dataclasses.dataclass(frozen=True, eq=False)
class Replacements:
    """Architectures that differ from one in a single place."""

    space: Space
    codes: np.ndarray  # int32 [n, space.length]; the first one is that which the others differ from
    places: np.ndarray  # the place in which each differs, int32 [n]; -1 for the first one

    @property
    def archs(self) -> Arch:
        """The architectures, as a batch [n]."""
        return self.space.decode(self.codes)

    @property
    def base(self) -> Arch:
        """The architecture that they differ from."""
        return self.space.decode(self.codes[0])

    def total(self, scores: Any, arch: Arch) -> float:
        """Estimates a combination's score: that of the base, and the change of each place that differs."""
        code, base = np.asarray(self.space.encode(self.space.canonical(arch))), self.codes[0]
        moved = self.codes != base
        used = [i for i in range(1, len(moved)) if np.array_equal(self.codes[i][moved[i]], code[moved[i]])]
        widest = {self.places[i]: i for i in sorted(used, key=lambda i: moved[i].sum())}
        return float(scores[0] + sum(scores[i] - scores[0] for i in widest.values()))


def replacements(
    space: Space, base: Arch | None = None, places: Sequence[Sequence[Element]] | None = None
) -> Replacements:
    """Returns all architectures that differ from one in a single place.

    Args:
      space: the search space.
      base: the architecture that is changed; None for the largest one.
      places: the elements of each place, (decision, position), with position 0 where a decision is not
        repeated; others stay. Layers that can be skipped are [[("layers_*/attention", i), ("layers_*/mlp",
        i)] for i in range(30)]. None for all elements, of which those that decide whether others are active
        share a place.

    Raises:
      ValueError: an element that is unknown or in two places, or a place of more than 10,000 options.
    """
    names = [(name, place) for name, choice in space.decisions for place in range(math.prod(choice.shape))]
    chosen = counting.parts_of(names, space.elements) if places is None else places
    given = [tuple(element) for place in chosen for element in place]
    for element in given:
        if element not in names or given.count(element) > 1:
            raise ValueError(
                f"{element} is {'in two places' if element in names else 'no element of the space'}: "
                f"expected each of the elements at most once, such as {names[0]}; there are {len(names)}."
            )
    whole = np.asarray(space.encode(space.largest() if base is None else base), np.int32)
    first = np.asarray(canonical_codes(space, whole))
    rows, of = [first], [-1]
    for number, place in enumerate(chosen):
        columns = [names.index(tuple(element)) for element in place]
        if (count := math.prod(int(space.sizes[column]) for column in columns)) > _MOST:
            raise ValueError(f"The place {place} has {count} options; expected at most {_MOST}.")
        changed = np.repeat(first[None], count, axis=0)
        changed[:, columns] = list(itertools.product(*(range(space.sizes[c]) for c in columns)))
        codes = np.unique(canonical_codes(space, changed), axis=0)
        new = [code for code in codes if not np.array_equal(code, first)]
        rows += new
        of += [number] * len(new)
    return Replacements(space, np.stack(rows), np.array(of, np.int32))


def knapsack(replaced: Replacements, scores: Any, cost: Cost, bounds: Any) -> Arch:
    """Returns the architecture with the best sum of changes of the score within bounds, which is exact.

    Args:
      replaced: architectures of `replacements`.
      scores: of these, float [n]; higher is better.
      cost: of an architecture, as `jaxnas.cost(net, inputs)`. What places cost must add up.
      bounds: {name of a cost: (min, max)}, None for no bound.

    Raises:
      ValueError: costs that do not add up; bounds that no combination keeps.
    """
    from scipy import optimize, sparse  # a quarter of the time of `import jaxnas`

    limits = bounds_lib.normalize(bounds)
    scores = np.asarray(scores, np.float64)
    if scores.shape != replaced.places.shape or not np.isfinite(scores).all():
        raise ValueError(f"scores: expected {len(replaced.places)} finite numbers, got shape {scores.shape}.")
    costs = _costs_of(replaced, cost)
    if unknown := [name for name, *_ in limits if name not in costs]:
        raise ValueError(f"bounds: {unknown[0]!r} is no cost; expected one of {sorted(costs)}.")
    change = {name: x - x[0] for name, x in costs.items()}
    of = replaced.places[1:]
    count = len(of)
    if not count:
        raise ValueError("knapsack: there are no replacements, since each place has one option.")
    once = sparse.csr_array((np.ones(count), (of, np.arange(count))), shape=(of.max() + 1, count))
    constraints = [optimize.LinearConstraint(once, ub=1)]
    for name, low, high in limits:
        least, most = (-np.inf if low is None else low), (np.inf if high is None else high)
        whole = costs[name][0]
        constraints.append(optimize.LinearConstraint(change[name][None, 1:], least - whole, most - whole))
    found = optimize.milp(
        scores[0] - scores[1:],
        integrality=np.ones(count),
        bounds=optimize.Bounds(0, 1),
        constraints=constraints,
    )
    if found.x is None:
        raise ValueError(
            f"No combination of replacements keeps the bounds: {_ranges(replaced, change, costs, limits)}."
        )
    picked = (1 + np.flatnonzero(found.x > 0.5)).tolist()
    for name, *_ in limits:
        if fault := not_a_sum(replaced, cost, name, picked):
            raise ValueError(fault)
    return _joined(replaced, picked)


def not_a_sum(replaced: Replacements, cost: Cost, name: str, rows: Sequence[int] | None = None) -> str:
    """The places whose costs do not add up to that of the network with all replacements; "" if all do.

    Args:
      replaced, cost: see `knapsack`.
      name: of the cost.
      rows: of the replacements; None for the last of each place.
    """
    places, of = replaced.places, _costs_of(replaced, cost)[name]
    picked = [*{place: row for row, place in enumerate(places) if row}.values()] if rows is None else [*rows]

    def gap(*picked: int) -> float:
        """How far apart the two are, beyond the rounding of costs in float32."""
        slack = 1e-6 * (1 + len(picked)) * float(np.abs(of).max())
        now = float(np.asarray(cost(_joined(replaced, picked))[name]))
        return max(abs(now - of[0] - sum(of[row] - of[0] for row in picked)) - slack, 0)

    if not gap(*picked):
        return ""
    pairs = (pair for pair in itertools.combinations(picked, 2) if gap(*pair))
    which = " and ".join(_label(replaced, row) for row in next(pairs, picked[:1]))
    return (
        f"{name} does not add up over the places, such as those of {which}. Decisions that change each "
        "other's cost belong in one place, and a width of the whole network in none; skip either layers or "
        "the attentions and MLPs in them."
    )


def _joined(replaced: Replacements, picked: Sequence[int]) -> Arch:
    """The architecture with several replacements."""
    code = base = replaced.codes[0]
    for row in picked:
        code = np.where(replaced.codes[row] != base, replaced.codes[row], code)
    return replaced.space.decode(code)


def _label(replaced: Replacements, row: int) -> str:
    """The first decision that a replacement changes."""
    names = [
        (name, choice, i) for name, choice in replaced.space.decisions for i in range(math.prod(choice.shape))
    ]
    return repr(element_name(*names[int(np.argmax(replaced.codes[row] != replaced.codes[0]))]))


@functools.lru_cache(maxsize=8)  # other bounds are other calls
def _costs_of(replaced: Replacements, cost: Cost) -> dict[str, np.ndarray]:
    """The costs of the architectures, float64 [n] by name."""
    # Called with concrete arrays: exact, where jit rounds to float32.
    rows = [bounds_lib.check_costs(cost(replaced.space.decode(code))) for code in replaced.codes]
    return {name: np.array([float(np.asarray(row[name])) for row in rows]) for name in rows[0]}


def _ranges(replaced: Replacements, change: Any, costs: Any, limits: bounds_lib.Bounds) -> str:
    """The range of each bounded cost by itself."""
    texts = []
    for name, low, high in limits:
        places = [change[name][replaced.places == place] for place in np.unique(replaced.places[1:])]
        least, most = (costs[name][0] + sum(edge(0, *own) for own in places) for edge in (min, max))
        texts.append(f"{name} can be {least:,.0f} to {most:,.0f} by itself; asked for is ({low}, {high})")
    return ", ".join(texts)

"""The kinds and names of groups, from what products do with their axes and the modules that they are in."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

from jaxnas.tensors import Path
from jaxnas.transform.program import Trace
from jaxnas.transform.rules import KERNEL
from jaxnas.transform.ties import Layout, Leaf

WIDTH, CHANNELS, HIDDEN = "width", "channels", "hidden"


def kinds_of(trace: Trace, places: Any, uses: Any, arrays: list[tuple[Layout, ...]]) -> dict[int, str]:
    """The kind of each atom, by what uses it."""
    used = {atom: {use for use, _ in found} for atom, found in uses.items()}
    together = {pair for layouts in arrays for pair in _pairs(layouts)}
    kinds = {}
    for atom in places:
        makers = {path for use, path in uses[atom] if use in ("made", "channels") and path}
        if trace.ties.fixed.get(atom) == KERNEL:
            kinds[atom] = "kernel"
        elif "batched" in used.get(atom, ()):
            kinds[atom] = "heads"
        elif {"expert", "scaled"} & used.get(atom, set()):
            kinds[atom] = "experts"
        elif {"added", "made"} <= used.get(atom, set()) and len(makers) > 1:
            kinds[atom] = WIDTH
        elif "channels" in used.get(atom, ()):
            kinds[atom] = CHANNELS
        else:
            kinds[atom] = HIDDEN
    for atom in places:  # what shares kernels with heads
        beside = [head for head in places if kinds[head] == "heads" and (head, atom) in together]
        compared = "compared" in used.get(atom, ())
        # Rotary embeddings add channels of heads, as a stream is added; but no kernel reads these.
        rotated = kinds[atom] == WIDTH and compared and "read" not in used[atom]
        if beside and (kinds[atom] == HIDDEN or rotated):
            kinds[atom] = "head_dim" if compared else "value_dim"
    for atom in places:
        if kinds[atom] == "value_dim" and any(
            kinds[other] == "head_dim" and (other, atom) in together for other in places
        ):
            kinds[atom] = "queries"
            for head in places:
                if kinds[head] == "heads" and (head, atom) in together:
                    kinds[head] = "kv_heads"
    return kinds


def _pairs(layouts: tuple[Layout, ...]) -> Iterator[tuple[int, int]]:
    """The atoms of an array that are factors of one part of it: in two axes, or in one piece of an axis."""
    axes = [list(_pieces(layout)) for layout in layouts]
    for number, axis in enumerate(axes):
        others = {atom for i, other in enumerate(axes) if i != number for piece in other for atom in piece}
        for piece in axis:
            yield from ((one, other) for one in piece for other in {*piece, *others} if one != other)


def _pieces(layout: Layout) -> Iterator[tuple[int, ...]]:
    """The atoms of an axis, once for each piece that it is joined of."""
    if not layout:
        yield ()
        return
    first, rest = layout[0], layout[1:]
    heads = [(first.atom,)] if isinstance(first, Leaf) else [p for one in first.pieces for p in _pieces(one)]
    for head in heads:
        for tail in _pieces(rest):
            yield (*head, *tail)


def names_of(places: Any, uses: Any, kinds: dict[int, str]) -> dict[int, str]:
    """The module that all axes are in, or else the one that makes the axis, and the kind."""
    candidates: dict[int, list[str]] = {}
    for atom, found in places.items():
        modules = [path[1:-1] or path[1:] for path, _ in found]
        makers = [path[1:-1] or path[1:] for use, path in uses[atom] if use in ("made", "channels") and path]
        makers = list(dict.fromkeys(makers)) or modules[:1]
        common = _common(modules)
        around = common if common or len(makers) > 1 else makers[0]
        options = [around, _common(makers), makers[0]]
        candidates[atom] = ["/".join((*prefix, kinds[atom])) for prefix in options]
    names: dict[int, str] = {}
    for level in range(3):
        left = {atom: options[level] for atom, options in candidates.items() if atom not in names}
        counts = Counter(left.values())
        taken = set(names.values())
        names |= {atom: name for atom, name in left.items() if counts[name] == 1 and name not in taken}
    for atom, options in candidates.items():
        number = 2
        name = options[-1]
        while atom not in names:
            if name not in names.values():
                names[atom] = name
            name, number = f"{options[-1]}_{number}", number + 1
    return names


def _common(modules: list[Path]) -> Path:
    return tuple(os.path.commonprefix([list(module) for module in modules]))

"""The found network, drawn: a table of its blocks, or the share of each size of a transformed network.

A space is known by its decisions, whatever the network is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxnas.report import vega, words
from jaxnas.report.result import Result

Architecture = Mapping[str, Any]
Choices = Mapping[str, Any]


def table(networks: Mapping[str, Architecture], choices: Choices) -> dict[str, Any]:
    """The blocks of an architecture as a table of a page; {} if no decision repeats.

    A row is a layer or block, a column a decision: a number as a bar, which compares it with the largest
    option, and a word as a chip. What ends with a number, as `width_2`, is of a stage. Of a space with one
    repeated choice of words, as of blocks, the columns are different networks, the found one first.
    """
    found = next(iter(networks.values()))
    repeated = [x for x, one in choices.items() if "length" in one and isinstance(found.get(x), list)]
    if not repeated:
        return {}
    staged = {_numbered(name)[1] for name in repeated} - {""}
    stems = {_numbered(name)[0] for name in found if _numbered(name)[1] in staged}
    # Stage and column of each decision; what ends with the number of no stage is of the whole network.
    at = {name: _numbered(name)[::-1] if _numbered(name)[0] in stems else ("", name) for name in found}
    columns, rows = list(dict.fromkeys(at[name][1] for name in repeated)), []
    for stage in dict.fromkeys(["", *(at[name][0] for name in found)]):
        single = [name for name in found if name not in repeated and at[name][0] == stage]
        title = f"stage {stage}: " if stage else ""
        title += ", ".join(f"{words.plain(at[name][1])} {words.show(found[name])}" for name in single)
        rows += [[title]] if title else []
        own = {at[name][1]: (name, found[name]) for name in repeated if at[name][0] == stage}
        rows += _rows([own.get(column, ("", [])) for column in columns], choices)
    name, *others = repeated
    if not others and all(isinstance(one, str) for one in choices[name]["options"]):
        shown: dict[str, list[Any]] = {}
        for label, one in networks.items():
            if isinstance(one.get(name), list) and one[name] not in shown.values():
                shown[label] = one[name]
        titles, columns = [row for row in rows if len(row) == 1], list(shown)
        rows = titles + _rows([(name, values) for values in shown.values()], choices)
    return {"head": ["", *map(words.plain, columns)], "rows": rows, "kind": "net"}


def _rows(columns: Sequence[tuple[str, list[Any]]], choices: Choices) -> list[list[Any]]:
    """A row for each position; a column is a choice with its values."""
    rows = []
    for i in range(max((choices[name]["length"] for name, _ in columns if name), default=0)):
        cells = [_cell(x[i] if i < len(x) else None, choices.get(name, {}), choices) for name, x in columns]
        rows.append([f"{i + 1}" + ("" if any(cells) else " – skipped"), *cells])
    return rows


def _cell(value: Any, choice: Mapping[str, Any], choices: Choices) -> str | dict[str, Any]:
    """A text, a bar {"text", "share"}, or a chip {"text", "color"} with None for what does nothing."""
    if value is None:
        return ""
    text = words.plain(words.show(value))
    if words.is_number(value):
        most = max(x for x in (*choice["options"], value) if words.is_number(x)) or 1
        return text if "per_position" in choice else {"text": text, "share": max(0.0, value / most)}
    # Of all choices, so that an operation has one color.
    options = [x for one in choices.values() for x in one["options"] if not words.is_number(x)]
    known = sorted({words.plain(words.show(x)) for x in options})
    off = str(value) in words.IDLE or text not in known
    return {"text": text, "color": None if off else known.index(text)}


def _numbered(name: str) -> tuple[str, str]:
    """The name of a decision without a number at its end, and that number; "" for none."""
    stem, _, number = name.rpartition("_")
    return (stem, number) if stem and number.isdecimal() else (name, "")


def places_of(result: Result) -> Mapping[str, Any]:
    """The places that a result has of a transformed network, by name; {} of another network."""
    network = result.config.get("network")
    return (network.get("places") or {}) if isinstance(network, Mapping) else {}


def kept_of(places: Mapping[str, Any], architecture: Mapping[str, Any]) -> list[int]:
    """The size kept at each place of `Supernet.described`; 0 where the module around it does not run."""
    found, off = [], []
    for one in places.values():
        size = one["kept"]
        for name, position in one["decisions"]:
            value = architecture.get(name)
            if position is not None:
                value = value[position] if isinstance(value, list) and position < len(value) else None
            size = size.get(str(value), 0) if isinstance(size, Mapping) else size
        found.append(size)
        off += [(one["module"], one["turn"])] if one["kind"] == "module" and not size else []
    inside = [
        any(turn in (None, one["turn"]) and f"{one['module']}/".startswith(f"{gate}/") for gate, turn in off)
        for one in places.values()
    ]
    return [0 if skipped else size for size, skipped in zip(found, inside, strict=True)]


def chart(places: Mapping[str, Any], architecture: Mapping[str, Any]) -> vega.Spec:
    """The heat map, with a cell for each place."""
    cells = []
    for one, kept in zip(places.values(), kept_of(places, architecture), strict=True):
        gate, size, turn = one["kind"] == "module", one["size"], one["turn"]
        path = [part for part in (*one["module"].split("/"), "" if gate else one["kind"]) if part]
        stop = next((i for i, part in enumerate(path) if part[-1:].isdigit()), 0 if turn is not None else -1)
        # A size of the whole network has no module, and one outside of blocks has a row of its own.
        stop = stop if stop >= 0 or not one["module"] else len(path) - 2 + gate
        row = "/".join(path[: stop + 1]) or "all blocks"
        text = f"{words.count(kept)} of {words.count(size)} · {words.percent(kept / size, 0)}"
        cell = {"x": words.plain("/".join(path[stop + 1 :]) or "block"), "value": kept / size}
        cell |= {"y": row if turn is None else f"{row}[{turn}]", "name": "/".join(path)}
        cell["name"] += "" if turn is None else f"[{turn}]"
        cells.append(cell | {"text": "skipped" if not kept else "runs" if gate else text})
    cells.sort(key=lambda cell: cell["y"] != "all blocks")
    return vega.heat(cells, "kept")

"""A picture of the found network: a table with a row for each layer, block or network.

A cell shows its value as a bar, which compares it with the largest option, as boxes, as many as there are, or
as a chip, in the color of its option. A space is known by its decisions, whatever the network is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxnas.report import words

Architecture = Mapping[str, Any]
Choices = Mapping[str, Any]
Cell = dict[str, Any]
# The inputs of an AutoAttend layer beside the first, by its kind, and the operation that stands for none.
KINDS, ZERO = {"addition": ("second",), "attention": ("key", "value")}, "zero"


def picture(
    architecture: Architecture, choices: Choices, others: Mapping[str, Architecture]
) -> dict[str, Any]:
    """The picture of an architecture.

    Args:
      architecture: option values by choice.
      choices: of the space, as `Space.to_json()` writes them.
      others: architectures of other networks by name, which a space of blocks is compared with.

    Returns:
      "note", "head" with the names of the columns, and "rows" of (name, cells); {} for a space of another
      kind. A cell has "text", and perhaps "share" from 0 to 1, "boxes" as (filled, all), "color" from 0 on,
      or "off".
    """
    for draw in (transformer, layers, stages):
        if drawn := draw(architecture, choices):
            return drawn
    return stacks({"found": architecture, **others}, choices)


def _most(choices: Choices, name: str, values: Sequence[Any]) -> float:
    numbers = [*choices.get(name, {}).get("options", ()), *values]
    return max([value for value in numbers if words.is_number(value)] + [1e-9])


def transformer(architecture: Architecture, choices: Choices) -> dict[str, Any]:
    """A transformer's layers with their heads and MLP; {} unless it has a width, and both for each layer."""
    embed = architecture.get("embed_dim")
    layered: list[Any] = [architecture.get("num_heads"), architecture.get("mlp_ratio")]
    lists = all(isinstance(values, list) and values for values in layered)
    if not (words.is_number(embed) and lists and len(layered[0]) == len(layered[1])):
        return {}
    if not all(value is None or words.is_number(value) for values in layered for value in values):
        return {}
    heads, ratios = layered
    length = choices.get("num_heads", {}).get("length")
    count = max(len(heads), int(length) if words.is_number(length) else 0)
    depth = architecture.get("depth")
    depth = min(int(depth), len(heads)) if words.is_number(depth) else len(heads)
    most = round(_most(choices, "num_heads", heads))
    widest = _most(choices, "embed_dim", [embed])
    hidden = round(widest * _most(choices, "mlp_ratio", ratios)) or 1
    rows: list[tuple[str, list[Cell]]] = []
    for i in range(count):
        cells: list[Cell] = [{"text": "skipped", "off": True}, {"text": ""}]
        if i < depth and heads[i] is not None and ratios[i] is not None:
            size = round(embed * ratios[i])
            cells = [{"text": f"{heads[i]}", "boxes": (int(heads[i]), most)}]
            cells.append({"text": words.count(size), "share": size / hidden})
        rows.append((f"layer {i + 1}", cells))
    note = f"Embedding dim {words.count(embed)} of at most {words.count(widest)}; {depth} of {count} layers."
    return {"note": note, "head": ["layer", "attention heads", "MLP hidden size"], "rows": rows}


def layers(architecture: Architecture, choices: Choices) -> dict[str, Any]:
    """Layers that are additions or attentions, with an operation on each input; {} of another space.

    AutoAttend (Guan et al., ICML 2021, section 4.1): the first input of a layer comes from the layer before,
    and the others come from one earlier layer.
    """
    kinds = words.options_of(choices.get("layer", {}))
    roles = {"source", "first", *(role for kind in kinds for role in KINDS.get(kind, ()))}
    if not (kinds and set(kinds) <= set(KINDS) and roles <= set(choices)):
        return {}
    # What counts in no layer is left out of an architecture.
    table: dict[str, Any] = {name: architecture.get(name, []) for name in ("layer", *roles)}
    if not all(isinstance(values, list) for values in table.values()):
        return {}
    names = sorted({x for name in roles - {"source"} for x in table[name] if isinstance(x, str)} - {ZERO})
    rows: list[tuple[str, list[Cell]]] = []
    for i, kind in enumerate(table["layer"]):
        # Decisions that do not count are None, and are left out at the end of a list.
        row: dict[str, Any] = {name: values[i] if i < len(values) else None for name, values in table.items()}
        inputs, source = [row[role] for role in ("first", *KINDS.get(kind, ()))], row["source"]
        right = len(inputs) > 1 and isinstance(source, int) and 0 <= source <= i
        if not (right and all(isinstance(one, str) for one in inputs)):
            return {}
        cells: list[Cell] = [
            {"text": words.plain(one), **({"off": True} if one == ZERO else {"color": names.index(one)})}
            for one in inputs
        ]
        joined = any(one != ZERO for one in inputs[1:])
        start = "input" if source == 0 else f"layer {source}"
        cells.insert(1, {"text": start if joined else "–", "off": not joined})
        rows.append((f"{i + 1} {kind}", cells + [{"text": ""}] * (4 - len(cells))))
    head = [
        "layer",
        "first input or query, of the layer before",
        "others from",
        "second input or key",
        "value",
    ]
    return {"note": "A cell is the operation on one input of the layer.", "head": head, "rows": rows}


def stages(architecture: Architecture, choices: Choices) -> dict[str, Any]:
    """The blocks of a network in stages; {} unless decisions end with a stage's number, as `depth_1` does."""
    columns: dict[str, None] = {}
    rows: list[tuple[str, list[Cell] | dict[str, Cell]]] = []
    number = 1
    while words.is_number(depth := architecture.get(f"depth_{number}")):
        names = [name for name in choices if name.endswith(f"_{number}") and name in architecture]
        names.remove(f"depth_{number}")
        repeated = [name for name in names if isinstance(architecture[name], (list, tuple))]
        most = int(_most(choices, f"depth_{number}", [depth]))
        whole = [f"{_stem(n)} {words.show(architecture[n])}" for n in names if n not in repeated]
        blocks = f"{int(depth)} of {most} block{'s' if most > 1 else ''}"
        rows.append((", ".join([f"stage {number}: {blocks}", *whole]), []))
        for i in range(most):
            cells = {}
            for name in repeated:
                value = architecture[name][i] if i < min(int(depth), len(architecture[name])) else None
                if value is not None:
                    cells[_stem(name)] = _cell(name, value, choices)
            columns |= dict.fromkeys(cells)
            rows.append((f"block {i + 1}" + (" – skipped" if i >= depth else ""), cells))
        number += 1
    if number == 1:
        return {}
    empty = {"text": "", "off": True}
    filled = [(name, [x.get(c, empty) for c in columns] if isinstance(x, dict) else x) for name, x in rows]
    rest = [n for n in architecture if not any(n.endswith(f"_{i}") for i in range(1, number))]
    beside = ", ".join(f"{words.plain(name)} {words.show(architecture[name])}" for name in rest)
    return {"note": beside and f"Beside the stages: {beside}.", "head": ["", *columns], "rows": filled}


def _stem(name: str) -> str:
    return words.plain(name.rpartition("_")[0])


def _cell(name: str, value: Any, choices: Choices) -> Cell:
    # Positions may have options of their own.
    rows = choices[name].get("per_position") or [choices[name].get("options", ())]
    options = list(dict.fromkeys(option for row in rows for option in row))
    if words.is_number(value):
        return {"text": words.show(value), "share": max(0.0, value / _most({}, "", [*options, value]))}
    place = options.index(value) if value in options else 0
    return {"text": words.plain(words.show(value)), "color": place, "off": str(value) in words.IDLE}


def stacks(networks: Mapping[str, Architecture], choices: Choices) -> dict[str, Any]:
    """The repeated choices of words, of each different network as a row; {} where there are none."""
    found, rows, notes = next(iter(networks.values())), [], []
    for name in [name for name in found if words.is_stack(choices.get(name, {})) and found[name]]:
        options, seen = words.options_of(choices[name]), []
        short = len(found[name]) > 8
        signs = words.letters(options) if short else {one: words.plain(one) for one in options}
        for label, architecture in networks.items():
            values = architecture.get(name)
            if values and values not in seen:
                seen.append(values)
                cells = [
                    {"text": signs.get(one, ""), "about": words.plain(one or "")}
                    | (
                        {"color": options.index(one)}
                        if one in options and one not in words.IDLE
                        else {"off": True}
                    )
                    for one in values
                ]
                rows.append((f"{label}, {words.plain(name)}", cells))
        meant = words.listed([f"{sign} is {words.plain(option)}" for option, sign in signs.items()])
        notes += [f"{words.capital(words.plain(name))}: {meant}."] if short else []
    most = max([len(cells) for _, cells in rows], default=0)
    filled = [(label, [*cells, *[{"text": ""}] * (most - len(cells))]) for label, cells in rows]
    head = ["network", *map(str, range(1, most + 1))]
    return {"note": " ".join(notes), "head": head, "rows": filled} if rows else {}

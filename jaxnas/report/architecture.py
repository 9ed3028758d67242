"""What the found network looks like: a transformer, layers, stages, stacks of blocks, or decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxnas.report import kept, layers, stages, svg, words
from jaxnas.report.document import both, details, fixed, plain_table, say, section
from jaxnas.report.read import Run
from jaxnas.report.svg import rect

Architecture = Mapping[str, Any]


def panel(run: Run) -> str:
    """The section of the architecture."""
    architecture, choices = run.result.found.architecture, run.result.space.choices
    title = "The best architecture so far" if run.goes_on else "The found architecture"
    table = decisions(architecture, choices)
    if not architecture:
        return ""
    if places := kept.places_of(run.result):
        text = (
            "Each row is a block of the network, in its order. A bar is as long, and as dark, as the share "
            "of a size that is kept; what is skipped is hollow."
        )
        rest = kept.beside(places, architecture)
        text += f" Chosen beside the sizes: {svg.esc(words.listed(rest))}." if rest else ""
        parts = [say(text), kept.draw(places, architecture)]
    elif is_transformer(architecture):
        text = (
            "Every layer has attention and an MLP, and adds what they compute to the stream at the "
            "left. Outlines show what the largest network of the space has."
        )
        parts = [say(text), both(transformer, architecture, choices, run.result.task.details)]
    elif rows := layers.layers_of(architecture, choices):
        text = (
            "The input is at the top, and the output of the last layer goes to the classifier. An addition "
            "sums its inputs, and an attention takes queries, keys and values from them. Beside each line is "
            "the operation on what it brings: straight from the layer above, or along the side from the "
            "layer whose number is given. A dashed line brings nothing."
        )
        parts = [say(text), layers.draw(rows)]
    elif staged := stages.stages_of(architecture, choices):
        rest = stages.beside(architecture)
        text = (
            "Each row is a stage, from the input on, with its blocks from left to right. Dashed outlines are "
            "blocks that the largest network has. A bar compares a value with the largest option."
        )
        text += f" Chosen beside the stages: {svg.esc(words.listed(rest))}." if rest else ""
        parts = [say(text), stages.draw(staged)]
    elif stacked := [n for n in architecture if words.is_stack(choices.get(n, {})) and architecture[n]]:
        parts = [stacks(run, name) for name in stacked]
    else:
        return section(title, table)
    return section(title, *parts, details("all decisions and their options", table))


def decisions(architecture: Architecture, choices: Mapping[str, Any]) -> str:
    """A table of every decision, its value and its options."""
    rows = []
    for name, value in architecture.items():
        options = ", ".join(words.options_of(choices.get(name, {}))) or "–"
        text = ", ".join(map(words.show, value)) if isinstance(value, (list, tuple)) else words.show(value)
        rows.append([svg.esc(part) for part in (words.plain(name), text, options)])
    return plain_table(("decision", "value", "options"), rows)


def stacks(run: Run, name: str) -> str:
    """The values of a repeated choice, of each different network as a row of blocks."""
    rows: dict[str, Sequence[str | None]] = {"found": run.result.found.architecture[name]}
    for net in (*run.result.networks, *(one.network for one in run.retrained)):
        values = net.architecture.get(name)
        if values and values not in rows.values():
            rows["found before" if net.name in rows else net.name] = values
    signs = words.letters(words.options_of(run.result.space.choices[name]))
    busy, longest = [option for option in signs if option not in words.IDLE], max(map(len, rows.values()))
    cell, body = min(56.0, 820 / longest), []
    for number, (label, values) in enumerate(rows.items()):
        y = 40 * number + 2
        body.append(svg.text(118, y + 22, label if len(label) <= 18 else f"{label[:17]}…", "value", "end"))
        for position, option in enumerate(values):
            if option is None:
                continue
            x, lively = 130 + cell * position, option in busy
            kind = f"block{busy.index(option) % 5}" if lively else "block-idle"
            title = f"{label}, {position + 1}: {words.plain(str(option))}"
            body.append(rect(x, y, max(cell - 4, 0.5), 34, kind, 5, title))
            look = "letter on" if lively else "letter"
            body.append(svg.text(x + cell / 2 - 2, y + 22, signs.get(option, "?"), look, "middle"))
    meant = [f"<b>{svg.esc(sign)}</b> is {svg.esc(words.plain(option))}" for option, sign in signs.items()]
    text = f"Each row is a network, with its choices of {svg.esc(words.plain(name))}, position by position."
    size = (130 + cell * longest, 40 * len(rows) + 4)
    about = "; ".join(f"{label}: {words.show(values)}" for label, values in rows.items())
    drawn = fixed(f"stack-{svg.identifier(name)}", size, f"The stacks of {name}", about, body)
    return say(f"{text} {words.listed(meant)}.") + drawn


def is_transformer(architecture: Architecture) -> bool:
    """Whether an architecture has a width, and heads and an MLP ratio for each layer."""
    layered: list[Any] = [architecture.get("num_heads"), architecture.get("mlp_ratio")]
    return (
        svg.is_number(architecture.get("embed_dim"))
        and all(isinstance(values, list) and values for values in layered)
        and len(layered[0]) == len(layered[1])
        and all(v is None or svg.is_number(v) for values in layered for v in values)
    )


def transformer(
    architecture: Architecture, choices: Mapping[str, Any], details: Mapping[str, Any], narrow: bool = False
) -> str:
    """Draws a transformer: a row for each layer with its heads and its MLP, beside the stream.

    What the largest network of the space would have more is drawn as a ghost, and so are layers
    beyond the depth.
    """
    embed, heads, ratios = (architecture[name] for name in ("embed_dim", "num_heads", "mlp_ratio"))
    length = choices.get("num_heads", {}).get("length")
    count = max(len(heads), int(length) if svg.is_number(length) else 0)
    heads, ratios = (list(values) + [None] * (count - len(values)) for values in (heads, ratios))
    depth = architecture.get("depth")
    depth = min(int(depth), count) if svg.is_number(depth) else count
    active = [i < depth and heads[i] is not None and ratios[i] is not None for i in range(count)]
    most_embed = _most(choices, "embed_dim", [embed])
    most_heads = int(_most(choices, "num_heads", heads))
    most_hidden = round(most_embed * _most(choices, "mlp_ratio", ratios)) or 1
    width, row = (400, 24) if narrow else (960, 26)
    label_x, stream_x, stream_w = (8, 68, 30) if narrow else (8, 130, 64)
    heads_x, heads_w = (98, 100) if narrow else (216, 260)
    mlp_x, mlp_w = (228, 118) if narrow else (532, 340)
    top, end = 64, 64 + row * count

    band = stream_w * embed / most_embed
    stop = top + row * depth
    block_h = row - 10
    block_w = max(2.0, min(40.0, (heads_w - 22) / most_heads - 3))
    out = [
        svg.text(label_x, 16, f"{'embed' if narrow else 'embed dim'} {svg.count(embed)}", "name"),
        svg.text(heads_x, 16, "heads" if narrow else "attention heads", "name"),
        svg.text(mlp_x, 16, "MLP hidden size", "name"),
        rect(stream_x - stream_w / 2, 44, stream_w, end + 6 - 44, "ghost", 4),
        rect(stream_x - band / 2, 44, band, stop + 4 - 44, "stream", 4),
        rect(stream_x - 2, stop + 4, 4, end + 6 - stop - 4, "stream", 0),
    ]
    for layer in range(count):
        y = top + row * layer + row / 2
        kind = "" if active[layer] else " off"
        label = f"{layer + 1}" if narrow else f"layer {layer + 1}"
        out.append(svg.text(label_x, y + 4, label, f"tick{kind}"))
        n = int(heads[layer]) if active[layer] else 0
        if active[layer]:
            out.append(f'<path class="wire" d="M{svg.num(stream_x + band / 2)} {svg.num(y)}H{mlp_x}"/>')
        for i in range(most_heads):
            x = heads_x + i * (block_w + 3)
            look = "head" if i < n else f"paper ghost{kind}"
            out.append(rect(x, y - block_h / 2, block_w, block_h, look, 2.5))
        edge = heads_x + most_heads * (block_w + 3)
        out.append(rect(mlp_x, y - 7, mlp_w, 14, f"paper ghost{kind}", 2.5))
        size = mlp_x + mlp_w + 8, y + 4
        if not active[layer]:
            out.append(svg.text(*size, "skipped", "tick off"))
            continue
        # The number hides the wire behind it, so that it can be read.
        out.append(rect(edge, y - 9, 9 * len(str(n)) + 6, 18, "paper", 0))
        out.append(svg.text(edge + 3, y + 4, n, "value"))
        hidden = round(embed * ratios[layer])
        out.append(rect(mlp_x, y - 7, mlp_w * hidden / most_hidden, 14, "mlp", 2.5))
        out.append(svg.text(*size, svg.count(hidden), "value"))
    shape = " × ".join(map(str, details.get("image_shape") or ()))
    classes = details.get("num_classes")
    first = f"patches of a {shape} image" if shape else "input"
    last = f"classifier, {classes} classes" if classes else "output"
    box = 24 + 7 * max(len(first), len(last))
    left = max(2, stream_x - box / 2)
    for y, label in ((26, first), (end + 6, last)):
        out.append(rect(left, y, box, 26, "box", 5))
        out.append(svg.text(left + box / 2, y + 17, label, "note", "middle"))
    about = f"{depth} of {count} layers; embedding {svg.count(embed)}. " + "; ".join(
        f"layer {i + 1}: {heads[i]} heads, MLP {round(embed * ratios[i])}" for i in range(count) if active[i]
    )
    return svg.figure(
        "network", (width, end + 44), "The architecture, layer by layer", about, "".join(out), narrow
    )


def _most(choices: Mapping[str, Any], name: str, values: list[Any]) -> float:
    return max([v for v in [*choices.get(name, {}).get("options", ()), *values] if svg.is_number(v)] + [1e-9])

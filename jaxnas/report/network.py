"""A picture of one architecture, layer by layer; a table for architectures it does not know."""

from __future__ import annotations

from typing import Any

from jaxnas.report import svg


def options_of(space: dict[str, Any], name: str) -> list[Any]:
    """The options of a decision in a result's "space", [] if they are not known."""
    choice = (space.get("choices") or {}).get(name)
    options = choice.get("options") if isinstance(choice, dict) else choice
    return list(options) if isinstance(options, (list, tuple)) else []


def is_transformer(architecture: dict[str, Any]) -> bool:
    """True for architectures with a width, and heads and an MLP ratio for each layer."""
    layered: list[Any] = [architecture.get("num_heads"), architecture.get("mlp_ratio")]
    return (
        svg.is_number(architecture.get("embed_dim"))
        and all(isinstance(values, list) and values for values in layered)
        and len(layered[0]) == len(layered[1])
        and all(v is None or svg.is_number(v) for values in layered for v in values)
    )


def transformer(architecture: dict, space: dict, data: dict, narrow: bool = False) -> str:
    """Draws a transformer: a row for each layer with its heads and its MLP, beside the stream.

    What the largest network of the space would have more is drawn as a ghost, and so are layers
    beyond the depth.
    """
    embed, heads = architecture["embed_dim"], architecture["num_heads"]
    ratios = architecture["mlp_ratio"]
    layers = len(heads)
    depth = architecture.get("depth")
    depth = min(int(depth), layers) if svg.is_number(depth) else layers
    most_embed = _most(options_of(space, "embed_dim"), [embed])
    most_heads = int(_most(options_of(space, "num_heads"), heads))
    most_hidden = round(most_embed * _most(options_of(space, "mlp_ratio"), ratios))
    width, row = (400, 24) if narrow else (960, 26)
    label_x, stream_x, stream_w = (8, 68, 30) if narrow else (8, 130, 64)
    heads_x, heads_w = (98, 100) if narrow else (216, 260)
    mlp_x, mlp_w = (228, 118) if narrow else (532, 340)
    top, end = 64, 64 + row * layers
    height = end + 44

    band = stream_w * embed / most_embed
    stop = top + row * depth
    block_h = row - 10
    block_w = max(2.0, min(40.0, (heads_w - 22) / most_heads - 3))
    out = [
        svg.text(label_x, 16, f"{'embed' if narrow else 'embed dim'} {svg.count(embed)}", "name"),
        svg.text(heads_x, 16, "heads" if narrow else "attention heads", "name"),
        svg.text(mlp_x, 16, "MLP hidden size", "name"),
        _rect(stream_x - stream_w / 2, 44, stream_w, end + 6 - 44, "ghost", 4),
        _rect(stream_x - band / 2, 44, band, stop + 4 - 44, "stream", 4),
        _rect(stream_x - 2, stop + 4, 4, end + 6 - stop - 4, "stream", 0),
    ]
    for layer in range(layers):
        y = top + row * layer + row / 2
        active = layer < depth and heads[layer] is not None and ratios[layer] is not None
        kind = "" if active else " off"
        out.append(
            svg.text(label_x, y + 4, f"{layer + 1}" if narrow else f"layer {layer + 1}", f"tick{kind}")
        )
        n = int(heads[layer]) if active else 0
        if active:
            start, finish = stream_x + band / 2, mlp_x
            out.append(f'<path class="wire" d="M{svg.num(start)} {svg.num(y)}H{finish}"/>')
        for i in range(most_heads):
            x = heads_x + i * (block_w + 3)
            look = "head" if i < n else f"paper ghost{kind}"
            out.append(_rect(x, y - block_h / 2, block_w, block_h, look, 2.5))
        edge = heads_x + most_heads * (block_w + 3)
        # The number hides the wire behind it, so that it can be read.
        if active:
            out.append(_rect(edge, y - 9, 9 * len(str(n)) + 6, 18, "paper", 0))
        out.append(svg.text(edge + 3, y + 4, n if active else "", "value"))
        hidden = round(embed * ratios[layer]) if active else 0
        out.append(_rect(mlp_x, y - 7, mlp_w, 14, f"paper ghost{kind}", 2.5))
        if active:
            out.append(_rect(mlp_x, y - 7, mlp_w * hidden / most_hidden, 14, "mlp", 2.5))
        out.append(
            svg.text(
                mlp_x + mlp_w + 8,
                y + 4,
                svg.count(hidden) if active else "skipped",
                "value" if active else "tick off",
            )
        )
    shape = " × ".join(map(str, data.get("image_shape") or ()))
    classes = data.get("num_classes")
    first = f"patches of a {shape} image" if shape else "patches of the image"
    last = f"{classes} classes" if classes else "classes"
    box = 24 + 7 * max(len(first), len(last) + 12)
    left = max(2, stream_x - box / 2)
    for y, label in ((26, first), (end + 6, f"classifier, {last}")):
        out.append(_rect(left, y, box, 26, "box", 5))
        out.append(svg.text(left + box / 2, y + 17, label, "note", "middle"))
    about = f"{depth} of {layers} layers; embedding {svg.count(embed)}. " + "; ".join(
        f"layer {i + 1}: {heads[i]} heads, MLP {round(embed * ratios[i])}"
        for i in range(depth)
        if heads[i] is not None and ratios[i] is not None
    )
    return svg.figure(
        "network-narrow" if narrow else "network-wide",
        width,
        height,
        "The best architecture",
        about,
        "".join(out),
        "narrow" if narrow else "wide",
    )


def decisions(architecture: dict[str, Any], space: dict[str, Any]) -> str:
    """An HTML table of every decision, its value and its options."""
    rows = []
    for name, value in architecture.items():
        if isinstance(value, list):
            value = ", ".join("–" if v is None else str(v) for v in value)
        options = ", ".join(map(str, options_of(space, name))) or "–"
        rows.append(f"<tr><th>{svg.esc(name)}</th><td>{svg.esc(value)}</td><td>{svg.esc(options)}</td></tr>")
    return (
        '<div class="scroll"><table class="plain"><thead><tr><th>decision</th><th>value</th>'
        f"<th>options</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _most(options: list[Any], values: list[Any]) -> float:
    numbers = [v for v in [*options, *values] if svg.is_number(v)]
    return max([*numbers, 1e-9])


def _rect(x: float, y: float, width: float, height: float, kind: str, radius: float) -> str:
    return (
        f'<rect class="{kind}" x="{svg.num(x)}" y="{svg.num(y)}" width="{svg.num(width)}" '
        f'height="{svg.num(height)}" rx="{radius:g}"/>'
    )

"""The sections of a report page, from the scatter plot to the configuration, as HTML text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jaxnas.report import curves, figures, network
from jaxnas.report.read import Run
from jaxnas.report.svg import count, esc, is_number, legend, percent, short

NAMES = {
    "best": "best, by evolution",
    "random_search": "random search's best",
    "smallest": "smallest of the space",
    "largest": "largest of the space",
}
LOAD = """import jaxnas

# The folder beside this page.
net, variables = jaxnas.load_subnet("{subnet}")
# images: float32 [batch, {shape}], normalised as in training
logits = net.apply(variables, images)"""

LOAD_EXPORTED = """# Needs jax and flatbuffers alone; runs on CPU, CUDA GPU and TPU.
from jax import export

model = export.deserialize(open("{subnet}/model.stablehlo", "rb").read())
logits = model.call(images)"""

REPRODUCE = """python -m experiments.train_supernet --config={name} --workdir=DIR
python -m experiments.search --config={name} --workdir=DIR
python -m experiments.evaluate --config={name} --workdir=DIR"""


def standard_error(run: Run, accuracy: Any) -> float | None:
    """Standard error of an accuracy on the test split, from its number of images (binomial)."""
    n = run.section("data").get("test")
    if not (is_number(n) and n > 0 and is_number(accuracy)):
        return None
    return math.sqrt(max(0.0, accuracy * (1 - accuracy)) / n)


def points_text(points: float) -> str:
    """A difference in percentage points with its sign."""
    return "±0.00 points" if abs(points) < 0.005 else f"{points:+.2f} points".replace("-", "−")


def section(title: str, *parts: str) -> str:
    """A titled section of the page from its parts, empty ones left out."""
    return f"<section>\n<h2>{title}</h2>\n" + "\n".join(p for p in parts if p) + "\n</section>"


def note(text: str) -> str:
    """A remark below a figure or a table."""
    return f'<p class="note-line">{text}</p>'


def scatter_section(run: Run) -> str:
    title = "Accuracy against parameters"
    if not run.history:
        return section(title, note("No search history was found, so there is nothing to draw."))
    front = figures.front_of(run)
    entries, say = [], []
    for strategy, label, name, kind in reversed(figures.STRATEGIES):
        n = len(run.strategy(strategy))
        if n:
            entries.append((name, kind, f"{label} ({count(n)})"))
            say.append(sum(h["strategy"] == strategy for h in front))
    entries.append(("line", "front", "Pareto front"))
    entries.extend((name, "extreme", label) for label, name in figures.EXTREMES if run.section(label))
    entries.append(("star", "best", "best"))
    text = (
        f"Each mark is an evaluated network, scored on the search split with the supernet’s "
        f"weights. The front holds {count(len(front))} of them"
    )
    if len(say) == 2:
        text += f": {say[0]} from evolution, {say[1]} from random search"
    lost = figures.clipped(run)
    foot = "Later evaluations of evolution are drawn stronger." if run.strategy("evolution") else ""
    if lost:
        foot += f" {count(lost)} evaluations below the axis are drawn on it."
    if not run.strategy("random"):
        foot += " This run has no random search to compare with."
    return section(
        title,
        f'<p class="say">{text}.</p>',
        legend(entries),
        figures.scatter(run),
        figures.scatter(run, narrow=True),
        note(foot.strip()) if foot else "",
    )


def network_section(run: Run) -> str:
    architecture = run.result["best"].get("architecture")
    title = "The best architecture"
    if not isinstance(architecture, dict) or not architecture:
        return section(title, note("The result does not hold the architecture."))
    space, data = run.section("space"), run.section("data")
    table = network.decisions(architecture, space)
    if not network.is_transformer(architecture):
        return section(title, table)
    say = (
        "Every layer has attention and an MLP, and adds what they compute to the stream at the "
        "left. Outlines show what the largest network of the space has."
    )
    return section(
        title,
        f'<p class="say">{say}</p>',
        network.transformer(architecture, space, data),
        network.transformer(architecture, space, data, narrow=True),
        f"<details><summary>all decisions and their options</summary>{table}</details>",
    )


def comparison_section(run: Run) -> str:
    title = "Search against random search"
    other, best = run.section("random_search"), run.result["best"]
    drawn = [s for s in figures.STRATEGIES if run.strategy(s[0])]
    parts = []
    if is_number(other.get("search_accuracy")):
        parts.append(f'<p class="say">{_verdict(run, best, other)}</p>')
    else:
        parts.append(note("Random search was not run, so the gain of the search is not known."))
    if drawn:
        parts.append(legend([("line", kind, label) for _, label, _, kind in reversed(drawn)]))
        parts += [figures.search_curve(run), figures.search_curve(run, narrow=True)]
    if other:
        rows = []
        for label, net, n in (
            ("evolution", best, run.section("search").get("evaluations")),
            ("random search", other, other.get("evaluations")),
        ):
            cells = (
                count(n),
                count(net.get("params")),
                percent(net.get("search_accuracy"), 2),
                percent(net.get("test_accuracy"), 2),
            )
            rows.append((label, cells))
        parts.append(table(("best of", "tried", "params", "search acc.", "test acc."), rows))
    return section(title, *parts)


def _verdict(run: Run, best: dict[str, Any], other: dict[str, Any]) -> str:
    gain = 100 * (best["search_accuracy"] - other["search_accuracy"])
    if abs(gain) >= 0.005:
        text = (
            f"On the search split evolution’s best is {abs(gain):.2f} points "
            f"{'above' if gain > 0 else 'below'} random search’s"
        )
    else:
        text = "On the search split evolution’s best and random search’s are equal"
    if not is_number(other.get("test_accuracy")):
        return text + "."
    gain = 100 * (best["test_accuracy"] - other["test_accuracy"])
    text += f"; on the test split the difference is {points_text(gain)}"
    errors = [standard_error(run, n["test_accuracy"]) or 0.0 for n in (best, other)]
    error = 100 * math.hypot(*errors)
    if not error:
        return text + "."
    sure = abs(gain) >= 2 * error
    return text + (
        f", {abs(gain) / error:.1f} times its standard error ({error:.2f} points)."
        if sure
        else f", which this many test images cannot tell from chance (standard error {error:.2f} points)."
    )


def training_section(run: Run) -> str:
    title = "Training the supernet"
    if not run.metrics:
        return section(title, note("No training metrics were found."))
    parts = []
    if accuracy := curves.accuracy_curve(run):
        say = (
            "One set of weights serves every network of the space. These are the smallest, the "
            "largest and some random ones, on the search split, while it was trained."
        )
        parts += [
            f'<p class="say">{say}</p>',
            curves.accuracy_legend(run),
            accuracy,
            curves.accuracy_curve(run, narrow=True),
        ]
    pair = [
        curves.small_curve(run, key, name)
        for key, name in (("loss", "training loss"), ("learning_rate", "learning rate"))
    ]
    parts.append(f'<div class="pair">{"".join(f"<div>{p}</div>" for p in pair if p)}</div>')
    if lost := curves.lost(run):
        parts.append(note(f"{count(lost)} losses were not finite numbers and are not drawn."))
    return section(title, *parts)


def table(head: tuple[str, ...], rows: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    """An HTML table: a header, and for each row its name and its cells."""
    top = "".join(f"<th>{esc(name)}</th>" for name in head)
    body = "".join(
        f"<tr{' class=first' if i == 0 else ''}><th>{esc(name)}</th>"
        + "".join(f"<td>{esc(cell)}</td>" for cell in cells)
        + "</tr>"
        for i, (name, cells) in enumerate(rows)
    )
    return (
        f'<div class="scroll"><table class="figures"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def table_section(run: Run) -> str:
    rows = []
    for key, name in NAMES.items():
        net = run.section(key)
        if net:
            macs = short(net["macs"]) if is_number(net.get("macs")) else "–"
            rows.append(
                (
                    name,
                    (
                        count(net.get("params")),
                        macs,
                        percent(net.get("search_accuracy"), 2),
                        percent(net.get("test_accuracy"), 2),
                    ),
                )
            )
    return section(
        "The networks side by side", table(("network", "params", "MACs", "search acc.", "test acc."), rows)
    )


def data_section(run: Run) -> str:
    data = run.section("data")
    uses = (
        ("train", "the weights of the supernet are trained on it, and nothing else"),
        (
            "search",
            "held out of training; every score of the search, and the accuracies of subnets "
            "during training, are measured on it; the best network is chosen by it",
        ),
        (
            "test",
            "never seen by training or search; the networks of the table above are measured "
            "on it when the search has ended",
        ),
    )
    sizes = [data.get(split) for split, _ in uses]
    bar = ""
    if all(is_number(n) and n > 0 for n in sizes):
        bar = (
            '<div class="splits" aria-hidden="true">'
            + "".join(
                f'<div class="s-{split}" style="flex:{n}"></div>'
                for (split, _), n in zip(uses, sizes, strict=True)
            )
            + "</div>"
        )
    rows = "".join(
        f'<tr><th><span class="swatch s-{split}"></span>{split}</th>'
        f'<td class="size">{esc(count(n) if is_number(n) else n or "–")}</td><td>{use}</td></tr>'
        for (split, use), n in zip(uses, sizes, strict=True)
    )
    facts = []
    if data.get("name"):
        facts.append(esc(data["name"]))
    if data.get("image_shape"):
        facts.append(esc(" × ".join(map(str, data["image_shape"]))) + " images")
    if data.get("num_classes"):
        facts.append(f"{esc(data['num_classes'])} classes")
    return section(
        "Data, and which split was used for what",
        f'<p class="say">{", ".join(facts)}</p>' if facts else "",
        bar,
        '<div class="scroll"><table class="plain"><thead><tr><th>split</th><th>images</th>'
        f"<th>use</th></tr></thead><tbody>{rows}</tbody></table></div>",
    )


def loading_section(run: Run) -> str:
    shape = ", ".join(map(str, run.section("data").get("image_shape") or ("…",)))
    values = {"subnet": run.result.get("subnet") or "subnet", "shape": shape}
    return section(
        "Use the network",
        f"<h3>With jaxnas</h3><pre>{esc(LOAD.format(**values))}</pre>",
        f"<h3>Without jaxnas, as exported StableHLO</h3><pre>{esc(LOAD_EXPORTED.format(**values))}</pre>",
    )


def _flat(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """(dotted name, value) of every leaf of nested dicts."""
    if isinstance(value, dict) and value:
        return [
            leaf for key, part in value.items() for leaf in _flat(part, f"{name}.{key}" if name else str(key))
        ]
    return [(name, value)]


def settings_section(run: Run) -> str:
    config = run.section("config")
    parts = []
    name = config.get("name")
    text = REPRODUCE.format(name=name if isinstance(name, str) and name else "NAME")
    parts.append(f"<h3>Run it again</h3><pre>{esc(text)}</pre>")
    parts.append(
        note(
            "The same configuration on the same kind of machine gives the same weights, "
            "the same search and this page again. Give fields that differ from the "
            "named configuration with <code>--set field=value</code>."
        )
    )
    return section("How this was made", *parts, *facts(run))


def facts(run: Run) -> list[str]:
    """The configuration and the versions of a run, as lists of names and values."""
    config, parts = run.section("config"), []
    made = _flat(run.section("versions")) if run.section("versions") else []
    if run.result.get("device"):
        made.append(("device", run.result["device"]))
    for head, lines in (("Configuration", _flat(config) if config else []), ("Made with", made)):
        rows = "".join(f"<div><dt>{esc(k)}</dt><dd>{esc(v)}</dd></div>" for k, v in lines)
        parts.append(
            f'<h3>{head}</h3><dl class="facts">{rows}</dl>' if rows else note(f"{head}: not recorded.")
        )
    return parts


# Top to bottom.
SECTIONS = (
    scatter_section,
    network_section,
    comparison_section,
    training_section,
    table_section,
    data_section,
    loading_section,
    settings_section,
)

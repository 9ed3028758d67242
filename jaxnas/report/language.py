"""The page of a search for the blocks of a language model, and of the networks trained afterwards.

One file that loads nothing; a function of the run's files alone.
"""

from __future__ import annotations

import base64
import itertools
import math
import os
import pathlib
from typing import Any

from jaxnas import files
from jaxnas.report import curves, style, svg
from jaxnas.report.blocks import write_pictures
from jaxnas.report.read import Run, read_metrics
from jaxnas.report.sections import facts, note, section, table

OPTIONS = ("attention", "feed_forward", "identity")
# What tells the options apart, in light and dark, without colour too: a letter stands in each block.
_RULES = (
    ".b-attention{fill:var(--evolution)}.b-feed_forward{fill:var(--sampled);fill-opacity:.55}"
    ".b-identity{fill:none;stroke:var(--ghost);stroke-dasharray:3 3}"
    "svg .letter{font-weight:650;font-size:12px}svg .letter.on{fill:var(--card)}"
    ".b-dark{fill:var(--ink)}"
    "svg .number{font-size:12px}svg .number.on{fill:var(--card)}"
    ".b-most{fill:none;stroke:var(--best);stroke-width:2.5}img.motion{max-width:100%;height:auto;"
    "border-radius:8px;background:#fff}"
)
_LETTERS = {"attention": "A", "feed_forward": "F", "identity": "–"}
_RETRAIN = """python -m experiments.search_par --config={name} --workdir=DIR
python -m experiments.retrain_language --config={name} --workdir=DIR --architecture=found
python -m experiments.retrain_language --config={name} --workdir=DIR --architecture=interleaved"""


def write_language(workdir: str | os.PathLike) -> pathlib.Path:
    """Writes report.html and, where Pillow is installed, probabilities.png and .gif of a search.

    Networks in `retrained/` are in the page too. Returns the path of the page. Raises
    FileNotFoundError without result.json, and ValueError naming a file that is corrupt.
    """
    root = pathlib.Path(workdir)
    if not (root / "result.json").is_file():
        raise FileNotFoundError(f"{root / 'result.json'} is missing: a report needs a finished search.")
    run = Run(files.read_json(root / "result.json"), read_metrics(root), [])
    retrained = [
        files.read_json(path) | {"times": files.read_json(path.with_name("times.json"))}
        for path in sorted(root.glob("retrained/*/result.json"))
        if path.with_name("times.json").is_file()
    ]
    path = root / "report.html"
    files.write_text(path, render(run, retrained, _motion(root, run)))
    return path


def _motion(root: pathlib.Path, run: Run) -> bytes | None:
    """The animated picture, or None where it cannot be drawn."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        return None
    moments = trajectory(run)
    return write_pictures(root, moments, run.result["space"]["options"])[1].read_bytes()


def trajectory(run: Run) -> list[tuple[int, Any]]:
    """(step, probabilities [blocks, options]) in order, the last being the result's."""
    moments = [(line["step"], line["probabilities"]) for line in run.of_split("architecture")]
    last = (run.result["steps"], run.result["probabilities"])
    return [*(moment for moment in moments if moment[0] < last[0]), last]


def render(run: Run, retrained: list[dict[str, Any]], motion: bytes | None) -> str:
    """The whole page as text."""
    found = run.result["found"]
    counts, blocks = found["counts"], len(found["architecture"]["block"])
    attention = run.result["interleaved"]["counts"]["attention"]
    title = f"{counts['attention']} of {blocks} blocks are attention"
    # Another way of selecting may have replaced a network that was trained already.
    own = [net for net in retrained if net["architecture"] == found["architecture"]]
    if own:
        mean = sum(net["test"]["perplexity"] for net in own) / len(own)
        title += f": test perplexity {mean:.2f}"
    fewer = 1 - counts["attention"] / attention
    against = f"{svg.percent(abs(fewer), 0)} {'fewer' if fewer > 0 else 'more'} attention blocks"
    against = against if fewer else "as many attention blocks"
    lead = (
        f"A Transformer-XL of {blocks} blocks has {attention} of attention. The search chose among "
        f"{svg.short(float(run.result['space']['cardinality']))} stacks of attention, feed-forward and "
        f"identity, on {svg.esc(run.section('data').get('name'))}, in "
        f"{svg.count(run.result['steps'])} steps: {against}."
    )
    body = (
        _probabilities(run, motion),
        _stacks(run, retrained),
        _candidates(run),
        _networks(run, retrained),
        _curves(run),
        _settings(run),
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src '
        "'unsafe-inline'; img-src data:\">\n"
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{svg.esc(title)}</title>\n<style>{style.CSS}{_RULES}</style>\n</head>\n<body>\n"
        f'<main>\n<header>\n<p class="eyebrow">jaxnas · PAR Transformer-XL</p>\n'
        f'<h1>{svg.esc(title)}</h1>\n<p class="lead">{lead}</p>\n</header>\n'
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _probabilities(run: Run, motion: bytes | None) -> str:
    """Blocks by options, shaded, the largest numbered; and how they came to be so."""
    values, options = run.result["probabilities"], run.result["space"]["options"]
    cell = min(56, 820 / len(values))
    width, height = 130 + cell * len(values), 44 * len(options) + 34
    body = []
    for row, option in enumerate(reversed(options)):
        y, column = 44 * row, len(options) - 1 - row
        body.append(svg.text(118, y + 26, option.replace("_", "-"), "value", "end"))
        for block, probabilities in enumerate(values):
            x, value = 130 + cell * block, probabilities[column]
            box = f'x="{svg.num(x)}" y="{y}" width="{svg.num(cell - 3)}" height="41"'
            about = f"block {block + 1}: {option.replace('_', '-')} {svg.percent(value)}"
            body.append(
                f'<rect class="b-dark hit" fill-opacity="{value:.3f}" {box}>'
                f"<title>{svg.esc(about)}</title></rect>"
            )
            most = column == max(range(len(options)), key=lambda i: probabilities[i])
            body.append(f'<rect class="{"b-most" if most else "ghost"}" {box}/>')
            if most:
                kind = "number on" if value > 0.5 else "number"
                body.append(svg.text(x + cell / 2 - 1, y + 25, f"{100 * value:.0f}", kind, "middle"))
    for block in range(len(values)):
        body.append(svg.text(130 + cell * (block + 0.5), height - 10, block + 1, "tick", "middle"))
    figure = svg.figure(
        "probabilities",
        width,
        height,
        "Probabilities of the options by block",
        "Darker is more probable; the largest has its per cent",
        "".join(body),
    )
    moving = ""
    if motion is not None:
        data = base64.b64encode(motion).decode()
        moving = (
            f'<h3>During the search</h3><img class="motion" alt="The same while it was trained" '
            f'src="data:image/gif;base64,{data}">'
        )
    say = (
        f"Probabilities in per cent after {svg.count(run.result['steps'])} steps; block 1 reads the "
        "embeddings."
    )
    return section("What each block should be", f'<p class="say">{say}</p>', figure, moving)


def _stacks(run: Run, retrained: list[dict[str, Any]]) -> str:
    stacks = [
        ("found", run.result["found"]),
        ("interleaved", run.result["interleaved"]),
        ("PAR rule", run.result["par_rule"]),
    ]
    for net in retrained:
        if all(net["architecture"] != known["architecture"] for _, known in stacks):
            stacks.append((_name(run, net), net))
    cell = min(56, 820 / max(len(net["architecture"]["block"]) for _, net in stacks))
    body = []
    for row, (name, net) in enumerate(stacks):
        y = 40 * row + 2
        body.append(svg.text(118, y + 22, name, "value", "end"))
        for block, option in enumerate(net["architecture"]["block"]):
            x = 130 + cell * block
            body.append(
                f'<rect class="b-{option}" x="{svg.num(x)}" y="{y}" rx="5" '
                f'width="{svg.num(cell - 4)}" height="34"/>'
            )
            kind = "letter on" if option == "attention" else "letter"
            body.append(svg.text(x + cell / 2 - 2, y + 22, _LETTERS[option], kind, "middle"))
    width = 130 + cell * max(len(net["architecture"]["block"]) for _, net in stacks)
    figure = svg.figure(
        "stacks",
        width,
        40 * len(stacks) + 4,
        "The stacks",
        "; ".join(f"{name}: {' '.join(net['architecture']['block'])}" for name, net in stacks),
        "".join(body),
    )
    return section(
        "The stacks",
        '<p class="say">A is attention, F feed-forward, – identity; input at '
        f"the left. Found is {_how(run.result['selection'])}.</p>",
        figure,
        _where(run),
    )


def _how(selection: dict[str, Any]) -> str:
    """How the found stack came out of the probabilities."""
    if selection["method"] in ("sampling", "trials"):
        alone = ", each trained alone for a while" if selection["method"] == "trials" else ""
        return f"the best on the search text of {len(selection['candidates'])} that were drawn{alone}"
    if selection["method"] == "perturbation":
        return "what was left by masking options, one by one, whose loss hurt least"
    return "the most probable option of each block"


def _candidates(run: Run) -> str:
    """What was drawn, the found stack first; empty if nothing was."""
    selection, settings = run.result["selection"], run.section("config")["search"]
    if "candidates" not in selection:
        return ""

    def losses(one: dict[str, Any]) -> list[float]:
        # JSON has no NaN.
        every = [one["supernet_nats"], *one.get("trial_nats", ())]
        return [math.inf if nats is None else nats for nats in every]

    candidates = sorted(selection["candidates"], key=lambda one: (-len(losses(one)), losses(one)[-1]))
    ran = len(losses(candidates[0])) - 1
    rungs = [f"after {steps} steps" for steps in settings["trial_steps"][:ran]]
    rows = []
    for one in candidates:
        cells = [f"{nats:.3f}" if math.isfinite(nats) else "–" for nats in losses(one)]
        cells += [""] * (1 + ran - len(cells))
        stack = " ".join(_LETTERS[block] for block in one["architecture"]["block"])
        rows.append((stack, ("anywhere" if one["explored"] else "probabilities", *cells)))
    say = (
        "Loss on the search text in nats per token, with the supernet's weights"
        + (", and trained alone from new ones" if ran else "")
        + (f", of which one in {settings['eta']} went on to the longer trial" if ran > 1 else "")
        + ". Drawn as the probabilities say, or anywhere in the space."
    )
    tau = selection.get("kendall_tau")
    if tau is not None:
        say += (
            f" Kendall's tau of the supernet's losses and the first trials': {tau:.2f} "
            f"over {len(candidates)} stacks."
        )
    return section(
        "Candidates", f'<p class="say">{say}</p>', table(("stack", "drawn from", "supernet", *rungs), rows)
    )


def _name(run: Run, net: dict[str, Any]) -> str:
    """What a retrained network is called: one that was found may have been replaced since."""
    if net["name"] == "found" and net["architecture"] != run.result["found"]["architecture"]:
        return "found before"
    return net["name"] if len(net["name"]) <= 16 else "given"


def _where(run: Run) -> str:
    """Where along the depth attention was chosen."""
    blocks = run.result["found"]["architecture"]["block"]
    ends = [round(i * len(blocks) / 3) for i in range(4)]
    parts = [blocks[a:b].count("attention") for a, b in itertools.pairwise(ends)]
    return note(
        f"Attention in the first, second and last third of the depth: {parts[0]}, {parts[1]}, {parts[2]}."
    )


def _networks(run: Run, retrained: list[dict[str, Any]]) -> str:
    title = "Trained alone"
    if not retrained:
        return section(
            title,
            note(
                "Not trained yet: experiments.retrain_language trains the found "
                "network and others, and enters them here."
            ),
        )
    rows = []
    for net in sorted(retrained, key=lambda net: net["test"]["nats"]):
        times = net["times"]
        name = f"{_name(run, net)}, {net['weights']}, seed {net['config']['seed']}"
        counts = net["counts"]
        rows.append(
            (
                name,
                (
                    f"{counts['attention']}/{counts['feed_forward']}/{counts['identity']}",
                    svg.short(net["params"]),
                    svg.short(net["macs"]),
                    f"{times.get('training_step_ms', float('nan')):.1f}",
                    svg.short(times.get("inference_tokens_per_second", float("nan"))),
                    f"{net['validation']['perplexity']:.2f}",
                    f"{net['test']['perplexity']:.2f}",
                    f"{net['test']['bits_per_byte']:.3f}",
                ),
            )
        )
    head = ("network", "A/F/–", "params", "MACs", "step, ms", "tokens/s", "valid ppl", "test ppl", "test bpb")
    return section(
        title,
        '<p class="say">The same text, steps and settings for all; perplexity by '
        "token of this vocabulary, bits per byte comparable across vocabularies. Times are "
        "of the device below. By test loss.</p>",
        table(head, rows),
    )


def _curves(run: Run) -> str:
    names = (
        ("loss", "training loss, nats"),
        ("search_loss", "search loss, nats"),
        ("temperature", "temperature"),
        ("entropy", "entropy, nats"),
        ("confidence", "confidence"),
        ("expected_cost", "expected cost"),
    )
    plots = [curves.small_curve(run, key, name) for key, name in names]
    plots = [plot for plot in plots if plot]
    pairs = [plots[i : i + 2] for i in range(0, len(plots), 2)]
    return section(
        "Training the supernet",
        *(f'<div class="pair">{"".join(f"<div>{p}</div>" for p in pair)}</div>' for pair in pairs),
    )


def _settings(run: Run) -> str:
    name = run.section("config").get("name", "NAME")
    again = f"<h3>Run it again</h3><pre>{svg.esc(_RETRAIN.format(name=name))}</pre>"
    more = note("Give fields that differ from the named configuration with <code>--set field=value</code>.")
    return section("How this was made", again, more, *facts(run))

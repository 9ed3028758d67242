"""The HTML page of a run, and the lines that a binary prints at its end.

The page is one file that loads nothing. It is a function of the run's files alone: no clock, no
path and no chance, so that a resumed run and an uninterrupted one give the same bytes.
"""

from __future__ import annotations

import math
import os
import pathlib
from typing import Any

from jaxnas import files
from jaxnas.report import figures, style
from jaxnas.report.read import Run, check_result, read_run
from jaxnas.report.sections import SECTIONS, points_text, standard_error
from jaxnas.report.svg import count, esc, is_number, percent, short

# Extraction must reproduce the supernet's outputs this closely (relative, in float32).
EXACT = 1e-5


def write(workdir: str | os.PathLike) -> pathlib.Path:
    """Writes ``report.html`` of a finished run into its workdir and returns its path.

    Raises FileNotFoundError without result.json, ValueError naming the file where one is corrupt,
    and OSError if the workdir cannot be written.
    """
    page = render(read_run(workdir))
    path = pathlib.Path(workdir) / "report.html"
    files.write_text(path, page)
    return path


def summary_lines(result: dict[str, Any], workdir: str | os.PathLike | None = None) -> list[str]:
    """The last lines on a terminal: what was found, and which file to open.

    ``result`` is what result.json holds. Raises ValueError if it has no usable "best".
    """
    check_result(result)
    best = result["best"]
    lines = [f"Found: {_plain(_headline(Run(result, [], [])))}."]
    line = f"  search accuracy {percent(best['search_accuracy'], 2, ' ')}"
    if is_number(best.get("macs")):
        line += f", {_plain(short(best['macs']))} MACs"
    if is_number(best.get("extraction_error")):
        line += f", extraction error {best['extraction_error']:.1e}"
    lines.append(line)
    other = result.get("random_search") or {}
    if is_number(other.get("search_accuracy")):
        text = f"  random search: {percent(other['search_accuracy'], 2, ' ')} search accuracy"
        if is_number(other.get("test_accuracy")):
            text += f", {percent(other['test_accuracy'], 2, ' ')} test accuracy"
        lines.append(text)
    root = pathlib.Path(workdir) if workdir is not None else pathlib.Path()
    lines.append(f"Network: {root / result.get('subnet', 'subnet')}")
    lines.append(f"Open {root / 'report.html'}")
    return lines


def render(run: Run) -> str:
    """The whole page as text."""
    headline = _headline(run)
    name = run.section("data").get("name")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # The browser itself then refuses anything that is not in this file.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src '
        "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{esc(_plain(headline))}</title>\n<style>{style.CSS}</style>\n</head>\n<body>\n"
        f'<main>\n<header>\n<p class="eyebrow">jaxnas · architecture search'
        f"{f' on {esc(name)}' if name else ''}</p>\n<h1>{_emphasised(headline)}</h1>\n"
        f'<p class="lead">{_lead(run)}</p>\n</header>\n{_tiles(run)}\n'
        + "\n".join(section(run) for section in SECTIONS)
        + f"\n</main>\n<script>{style.SCRIPT}</script>\n</body>\n</html>\n"
    )


def _plain(text: str) -> str:
    return text.replace("\u00a0", " ")


def _share(run: Run) -> float | None:
    """Parameters of the best as a fraction of the largest network's."""
    largest = run.section("largest").get("params")
    return run.result["best"]["params"] / largest if is_number(largest) and largest else None


def _headline(run: Run) -> str:
    best, share = run.result["best"], _share(run)
    text = f"{percent(best['test_accuracy'])} test accuracy with {count(best['params'])} parameters"
    return text if share is None else f"{text}, {percent(share, 0)} of the largest network’s"


def _emphasised(headline: str) -> str:
    first, rest = headline.split(" test accuracy", 1)
    return f"<b>{esc(first)}</b> test accuracy{esc(rest)}"


def _lead(run: Run) -> str:
    search, space = run.section("search"), run.section("space")
    n = search.get("evaluations") or len(run.strategy("evolution"))
    parts = ["Evolution"]
    parts.append(f" evaluated {count(n)}" if n else " chose")
    if space.get("cardinality"):
        text = str(space["cardinality"])
        number = float(text) if text.isdigit() else math.nan
        # Beyond a million the digits say less than the size does.
        text = count(int(text)) if number < 1e7 else f"{number:.1e}".replace("e+", " × 10^")
        base, _, power = text.partition("^")
        parts.append(f" of {esc(base)}<sup>{int(power)}</sup>" if power else f" of {esc(base)}")
    parts.append(" distinct networks" if n else " among the networks")
    budget = [
        f"{_between(*figures.bounds_of(run, name))} {esc(_unit(name))}"
        for name in search.get("bounds") or {}
        if figures.bounds_of(run, name) != (None, None)
    ]
    if budget:
        parts.append(f", within a budget of {' and '.join(budget)}")
    return "".join(parts) + (
        ". All of them share the weights of one supernet. The one chosen was extracted as a "
        "stand-alone network with those weights, and then measured on the test split."
    )


def _unit(cost: str) -> str:
    return {"params": "parameters", "macs": "MACs"}.get(cost, cost)


def _between(low: float | None, high: float | None) -> str:
    if low is None:
        return f"at most {count(high)}"
    return f"at least {count(low)}" if high is None else f"{count(low)} to {count(high)}"


def _tiles(run: Run) -> str:
    best, largest, share = run.result["best"], run.section("largest"), _share(run)
    error = standard_error(run, best["test_accuracy"])
    images = run.section("data").get("test")
    tiles = [
        (
            "test accuracy",
            percent(best["test_accuracy"], 2),
            f"± {100 * error:.2f} (s.e., {count(images)} images)" if error is not None else "",
        )
    ]
    tiles.append(("search accuracy", percent(best["search_accuracy"], 2), "what the search saw"))
    tiles.append(
        (
            "parameters",
            count(best["params"]) if best["params"] < 1e6 else short(best["params"]),
            "" if best["params"] < 1e6 else count(best["params"]),
        )
    )
    macs = best.get("macs")
    tiles.append(("MACs", short(macs) if is_number(macs) else "–", "for one image"))
    gap = ""
    if is_number(largest.get("test_accuracy")):
        points = 100 * (best["test_accuracy"] - largest["test_accuracy"])
        gap = f"of its parameters; {points_text(points)} test accuracy"
    tiles.append(("against the largest", percent(share, 0) if share is not None else "–", gap))
    error = best.get("extraction_error")
    good = is_number(error) and error <= EXACT
    verdict = (
        f'<span class="{"good" if good else "bad"}">'
        + (f"✓ within {EXACT:g}" if good else f"✗ above {EXACT:g}")
        + "</span>, relative"
    )
    out = [
        f'<div><dt>{name}</dt><dd><div class="big">{esc(value)}</div>'
        f'<div class="sub">{esc(sub)}</div></dd></div>'
        for name, value, sub in tiles
    ]
    out.append(
        f'<div><dt>extraction error</dt><dd><div class="big">'
        f"{f'{error:.1e}' if is_number(error) else '–'}</div>"
        f'<div class="sub">{verdict if is_number(error) else "not measured"}</div>'
        "</dd></div>"
    )
    return f'<dl class="tiles">{"".join(out)}</dl>'

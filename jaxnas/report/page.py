"""The HTML page of a run: one file that loads nothing, with interactive charts by Vega-Lite inside.

The page is a function of the run's reproducible files and of the times stored beside retrained networks: no
clock, no path and no chance, so that a resumed run and an uninterrupted one give the same bytes.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import pathlib
import re
import textwrap

import jinja2
import vl_convert

from jaxnas import files
from jaxnas.report import advice, facts, networks, vega, words
from jaxnas.report.read import read_run

_HERE = pathlib.Path(__file__).parent


def write(workdir: str | os.PathLike) -> pathlib.Path:
    """Writes report.html of a finished run and returns its path; see `read_run` for the files and errors."""
    path = files.as_path(workdir) / "report.html"
    files.write_text(path, render(facts.facts(read_run(workdir))))
    return path


def render(page: facts.Facts, reload: int | None = None) -> str:
    """The text of a page with these facts; with `reload` a browser reads it again after so many seconds."""
    specs = {name: spec for one in page["sections"] for name, spec in one.get("charts", {}).items()}
    data = {"themes": {"light": vega.theme(), "dark": vega.theme(dark=True)}, "charts": specs}
    # No text of a user can end the element that holds it.
    encoded = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace(
        "<", "\\u003c"
    )
    return _template().render(page=page, data=encoded, reload=reload, library=library() if specs else "")


@functools.cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(_HERE)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("page.html")


@functools.cache
def library() -> str:
    """Vega-Lite and what draws it, as one script of 0.9 MB: made once and kept in the user's cache."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "jaxnas"
    path = cache / f"vega-{importlib.metadata.version('vl-convert-python')}.js"
    try:
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_text(path, _bundle())
        return path.read_text(encoding="utf-8")
    except OSError:  # A home without room costs two seconds for each process, and nothing else.
        return _bundle()


def _bundle() -> str:
    script = vl_convert.javascript_bundle("window.vegaEmbed=vegaEmbed;")
    return re.sub("</(?=script)", r"<\\/", script)


def save_png(workdir: str | os.PathLike, path: str | os.PathLike, chart: str = "scatter") -> None:
    """Draws a chart of a run's page as a PNG, 1600 pixels wide.

    Args:
      workdir: of a finished run.
      path: of the PNG.
      chart: its name on the page, as "scatter", "search" or "watched".

    Raises:
      FileNotFoundError: there is no result.json.
      ValueError: a file is damaged, or the page has no such chart; the message names those it has.
      OSError: the path cannot be written.
    """
    page = facts.facts(read_run(workdir))
    specs = {name: spec for one in page["sections"] for name, spec in one.get("charts", {}).items()}
    if chart not in specs:
        has = ", ".join(specs) or "none"
        raise ValueError(f"The page of {os.fspath(workdir)} has no chart {chart!r}; its charts are: {has}.")
    files.write_bytes(path, vega.to_png(specs[chart], f"{page['title']} on {page['task']}"))


def summary_lines(workdir: str | os.PathLike) -> list[str]:
    """The last lines on a terminal: what was found, whether it is any good, what to do next, what to open."""
    run, root = read_run(workdir), files.as_path(workdir)
    found = "".join(networks.headline(run))
    tiles = [f"{x['name']} {x['value']}" + (f" ({x['sub']})" if x["sub"] else "") for x in facts.tiles(run)]
    texts = [f"Found: {found}.", *tiles, *facts.latency_text(run), *facts.gain_text(run)]
    lines = [f"  {line}" if i else line for text in texts for i, line in enumerate(textwrap.wrap(text, 108))]
    for one in advice.advice(run, str(root)):
        lines += textwrap.wrap(one.text, 108, break_on_hyphens=False)
        lines += [f"    {line}" for line in one.code.splitlines()]
    lines += [f"Network: {root / run.result.subnet}", f"Open {root / 'report.html'}"]
    return [line.replace(words.NBSP, " ") for line in lines]

"""The HTML page of a run: one file that loads nothing, with interactive charts by Vega-Lite inside.

The page is a function of the run's reproducible files: no clock, no path and no chance, so that a resumed run
and an uninterrupted one give the same bytes.
"""

from __future__ import annotations

import datetime
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
from jaxnas.report import comparison, facts, vega, words
from jaxnas.report.advice import advice
from jaxnas.report.findings import headline, read_run, read_so_far
from jaxnas.report.result import Result


def write(workdir: str | os.PathLike) -> pathlib.Path:
    """Writes report.html of a finished run, or of a comparison of strategies, and returns its path."""
    root = files.as_path(workdir)
    path, other = root / "report.html", root / "comparison.json"
    page = comparison.facts_of(files.read_json(other)) if other.is_file() else facts.facts(read_run(root))
    files.write_text(path, render(page))
    return path


def write_running(workdir: str | os.PathLike, result: Result, doing: str, reload: int | None = 5) -> None:
    """Writes report.html of a running search or training, which does what `doing` says in a sentence.

    `result` has the task, the space and the searches that have begun, of which the first is what the run is
    for. A browser reads the page again after `reload` seconds; None for a page that stays.
    """
    if reload is not None:
        now = datetime.datetime.now().astimezone().strftime("%H:%M:%S")
        doing += f" This page was written at {now} and reads itself again every {reload} seconds."
    page = render(facts.facts(read_so_far(workdir, result), doing), reload)
    files.write_text(files.as_path(workdir) / "report.html", page)


def render(page: facts.Facts, reload: int | None = None) -> str:
    """The text of a page with these facts; with `reload` a browser reads it again after so many seconds."""
    specs = {name: spec for one in page["sections"] for name, spec in one.get("charts", {}).items()}
    data = {"themes": {"light": vega.theme(), "dark": vega.theme(dark=True)}, "charts": specs}
    # No text of a user can end the element that holds it.
    encoded = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    encoded, template = encoded.replace("<", "\\u003c"), _templates().get_template("page.html")
    return template.render(page=page, data=encoded, reload=reload, library=library() if specs else "")


@functools.cache
def _templates() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(pathlib.Path(__file__).parent)
    return jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)


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
    return re.sub("</(?=script)", r"<\\/", vl_convert.javascript_bundle("window.vegaEmbed=vegaEmbed;"))


def summary_lines(workdir: str | os.PathLike) -> list[str]:
    """The last lines on a terminal: what was found, whether it is any good, what to do next, what to open."""
    run, root = read_run(workdir), files.as_path(workdir)
    found = "".join(headline(run))
    tiles = [f"{name} {value}" + (f" ({sub})" if sub else "") for name, value, sub in facts.tiles(run)]
    texts = [f"Found: {found}.", *tiles, *facts.latency_text(run), *facts.gain_text(run)]
    lines = [f"  {line}" if i else line for text in texts for i, line in enumerate(textwrap.wrap(text, 108))]
    for text, code in advice(run, str(root)):
        lines += [*textwrap.wrap(text, 108, break_on_hyphens=False), *([f"    {code}"] if code else [])]
    lines += [f"Network: {root / run.result.subnet}", f"Open {root / 'report.html'}"]
    return [line.replace(words.NBSP, " ") for line in lines]

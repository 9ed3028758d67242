"""The HTML page of a run: one file that loads nothing, with interactive charts by Vega-Lite inside.

The page is a function of the run's reproducible files and of the times stored beside retrained networks: no
clock, no path and no chance, so that a resumed run and an uninterrupted one give the same bytes.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import textwrap

import jinja2
import vl_convert

from jaxnas import files
from jaxnas.report import advice, charts, facts, networks, words
from jaxnas.report.read import Run, read_run
from jaxnas.report.result import Network

_HERE = pathlib.Path(__file__).parent


def write(workdir: str | os.PathLike) -> pathlib.Path:
    """Writes report.html of a finished run.

    Args:
      workdir: of the run; see `read_run` for its files.

    Returns:
      The path of the page.

    Raises:
      FileNotFoundError: there is no result.json.
      ValueError: a file is damaged; the message names it, and the line or the field.
      OSError: the workdir cannot be written.
    """
    path = files.as_path(workdir) / "report.html"
    files.write_text(path, render(facts.facts(read_run(workdir))))
    return path


def render(page: facts.Facts, reload: int | None = None) -> str:
    """The text of a page with these facts; with `reload` a browser reads it again after so many seconds."""
    specs = {name: spec for one in page["sections"] for name, spec in one.get("charts", {}).items()}
    data = {"themes": {"light": charts.theme(), "dark": charts.theme(dark=True)}, "charts": specs}
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
    """Vega-Lite and what draws it, as one script of 0.9 MB; made once for each version and kept in the cache."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "jaxnas"
    path = cache / f"vega-embed-{vl_convert.get_vega_embed_version()}-{vl_convert.__version__}.js"
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
    files.write_bytes(path, charts.to_png(specs[chart], f"{page['title']} on {page['task']}"))


def summary_lines(workdir: str | os.PathLike) -> list[str]:
    """The last lines on a terminal: what was found, whether it is any good, what to do next, what to open.

    Args:
      workdir: of the run; see `read_run` for its files.

    Returns:
      Lines of plain text.
    """
    run, root = read_run(workdir), files.as_path(workdir)
    result, found = run.result, run.result.found

    def figures(network: Network) -> list[str]:
        roles = dict.fromkeys((run.search_role, run.final_role))
        known = [
            (words.metric_name(run.metric, r), words.value_text(run.metric, run.value(network, r)))
            for r in roles
        ]
        return [f"{name} {value}{words.unit_text(run.metric)}" for name, value in known if value != "–"]

    costs = [x for x in found.costs if x != run.cost and not (x == networks.LATENCY and run.timed)]
    parts = figures(found) + [words.cost_amount(name, found.costs[name]) for name in costs]
    if words.is_number(found.extraction_error):
        parts.append(f"extraction error {found.extraction_error:.1e}")
    lines = [f"Found: {''.join(networks.headline(run))}.", f"  {', '.join(parts)}"]
    other, linear = run.network("random search"), result.linear.get(run.final_role)
    lines += [f"  random search: {', '.join(figures(other))}"] if other is not None else []
    if linear is not None:
        name = words.metric_name(run.metric, run.final_role)
        lines.append(f"  {words.LINEAR}: {name} {words.value_text(run.metric, linear)}")
    lines += [f"  {one}" for one in facts.latency_text(run)]
    for one in advice.advice(run, str(root)):
        lines += textwrap.wrap(one.text, 108, break_on_hyphens=False)
        lines += [f"    {line}" for line in one.code.splitlines()]
    lines += [f"Network: {root / result.subnet}", f"Open {root / 'report.html'}"]
    return [line.replace(words.NBSP, " ") for line in lines]

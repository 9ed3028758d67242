"""The frame of a page and the HTML pieces it is made of: sections, notes, tables, lists of facts.

A page is one file that loads nothing. Text given to these functions is escaped by them, unless they
say that they take HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flax.traverse_util import flatten_dict

from jaxnas.report import style, svg
from jaxnas.report.svg import esc


def document(
    title: str, eyebrow: str, heading: str, lead: str, body: str, rules: str = "", reload: int | None = None
) -> str:
    """The whole page as text; `title` and `eyebrow` are text, and the rest is HTML.

    With `reload` the browser reads the page again after so many seconds.
    """
    again = "" if reload is None else f'<meta http-equiv="refresh" content="{reload}">\n'
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # The browser itself then refuses anything that is not in this file.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src '
        "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
        f"{again}"
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{esc(title)}</title>\n<style>{style.CSS}{rules}</style>\n</head>\n<body>\n<main>\n"
        f'<header>\n<p class="eyebrow">{esc(eyebrow)}</p>\n<h1>{heading}</h1>\n<p class="lead">{lead}</p>\n'
        f"</header>\n{body}\n</main>\n<script>{style.SCRIPT}</script>\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A titled section of the page from HTML parts, empty ones left out; "" if all are empty."""
    if not any(parts):
        return ""
    return f"<section>\n<h2>{esc(title)}</h2>\n" + "\n".join(part for part in parts if part) + "\n</section>"


def say(html: str) -> str:
    """What a section shows, as a paragraph of HTML before its figure."""
    return f'<p class="say">{html}</p>' if html else ""


def note(html: str) -> str:
    """A remark in HTML below a figure or a table."""
    return f'<p class="note-line">{html}</p>' if html else ""


def code(title: str, text: str) -> str:
    """A titled block of code."""
    return f"<h3>{esc(title)}</h3>{block(text)}"


def block(text: str) -> str:
    """A block of code."""
    return f"<pre>{esc(text)}</pre>"


def details(summary: str, html: str) -> str:
    """HTML that is shown when its summary is clicked."""
    return f"<details><summary>{esc(summary)}</summary>{html}</details>"


def both(draw: Callable[..., str], *args: Any) -> str:
    """A figure for wide and for narrow screens, since small text cannot be scaled down."""
    return draw(*args, narrow=False) + draw(*args, narrow=True)


def fixed(name: str, size: tuple[float, float], title: str, about: str, body: Sequence[str]) -> str:
    """A figure that keeps its size: narrow screens scroll it, and wide ones do not stretch it."""
    drawn = svg.figure(name, size, title, about, "".join(body))
    return f'<div class="scroll"><div style="width:{size[0]:.0f}px">{drawn}</div></div>'


def table(head: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], first: bool = False) -> str:
    """A table of figures as text; on narrow screens each row becomes a small card."""
    top = "".join(f"<th>{esc(name)}</th>" for name in head)
    body = "".join(
        f"<tr{' class=first' if first and i == 0 else ''}><th>{esc(name)}</th>"
        + "".join(
            f'<td data-name="{esc(column)}">{esc(cell)}</td>'
            for column, cell in zip(head[1:], cells, strict=True)
        )
        + "</tr>"
        for i, (name, cells) in enumerate(rows)
    )
    return (
        f'<div class="scroll"><table class="figures"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of words, whose cells are HTML; the first of each row names it."""
    top = "".join(f"<th>{esc(name)}</th>" for name in head)
    body = "".join(
        f"<tr><th>{name}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for name, *cells in rows
    )
    return (
        f'<div class="scroll"><table class="plain"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def facts(title: str, values: Mapping[str, Any]) -> str:
    """A titled list of names and values from nested dictionaries; "" if there are none."""
    flat = flatten_dict(values, sep=".")  # an empty dictionary has no leaf
    rows = "".join(f"<div><dt>{esc(name)}</dt><dd>{esc(value)}</dd></div>" for name, value in flat.items())
    return f'<h3>{esc(title)}</h3><dl class="facts">{rows}</dl>' if rows else ""

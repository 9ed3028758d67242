"""Vega-Lite specifications: axes, lines, bars, heat maps, and the colors of light and of dark pages.

Rows have names of their own for their fields, since a user's names may be no names of fields.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt

Record = Mapping[str, Any]
Spec = dict[str, Any]
_LIGHT = ("#0b68b0", "#c4570a", "#0b7f62", "#8a3f94", "#8a6d00", "#b3261e", "#566273", "#17202b")
_DARK = ("#5db2f0", "#f19a4d", "#45c9a3", "#d79be0", "#e5c33d", "#ff8a80", "#9eabba", "#e8edf3")
_LIGHT_PAGE, _DARK_PAGE = ("#dde3ea", "#ffffff", "#f2b701"), ("#2b3541", "#171d25", "#ffd23f")
_STAR = "M0,-1L.24,-.32L.95,-.31L.38,.12L.59,.81L0,.4L-.59,.81L-.38,.12L-.95,-.31L-.24,-.32Z"
# Filters series. Zoom is by a pinch, or by the wheel with Ctrl: the wheel alone scrolls the page.
LEGEND = alt.selection_point(name="legend", fields=["s"], bind="legend")
ZOOM = alt.selection_interval(name="zoom", bind="scales", zoom="wheel![event.ctrlKey]")


class Axis(NamedTuple):
    """An axis: its title, the d3 format of its numbers, its scale, and its range or its margin in pixels."""

    title: str
    format: str = ""
    scale: str = "linear"
    range: tuple[float, float] | None = None
    reverse: bool = False
    padding: int = 12

    def of(self, kind: type, field: str) -> Any:
        """The encoding of a field on this axis."""
        scale: dict[str, Any] = {"type": self.scale, "nice": False, "reverse": self.reverse}
        scale |= {"zero": False} if self.scale == "linear" else {}
        scale |= {"padding": self.padding} if self.range is None else {"domain": list(self.range)}
        drawn = kind(f"{field}:Q").title(self.title).scale(**scale)
        return drawn.axis(format=self.format) if self.format else drawn

    def tip(self, field: str) -> alt.Tooltip:
        """The tooltip of a field; a percentage has two digits."""
        return alt.Tooltip(f"{field}:Q", title=self.title, format=".2%" if "%" in self.format else ",")


def theme(dark: bool = False) -> Spec:
    """The colors and fonts of all charts."""
    colors, grid, card, gold = (_DARK, *_DARK_PAGE) if dark else (_LIGHT, *_LIGHT_PAGE)
    soft, ink = colors[-2:]
    text = {"labelColor": soft, "titleColor": soft, "labelFontSize": 12, "titleFontSize": 12}
    return {
        "background": None,
        "font": 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif',
        "view": {"stroke": None},
        "mark": {"color": colors[0]},
        "range": {"category": list(colors), "ramp": [card, colors[0]]},
        "axis": {**text, "titleFontWeight": 400, "gridColor": grid, "domainColor": grid, "tickColor": grid},
        "axisX": {"grid": False, "tickCount": 7},
        "axisY": {"tickCount": 6, "labelLimit": 260},
        "legend": {**text, "title": None, "orient": "top", "symbolSize": 120, "symbolOpacity": 1},
        "title": {"color": ink, "subtitleColor": soft, "anchor": "start", "fontSize": 13, "fontWeight": 600},
        "style": dict(
            front=dict(color=ink, stroke=ink, strokeWidth=1.5),
            found=dict(color=gold, stroke=ink, strokeWidth=1, shape=_STAR, size=420),
            named=dict(color=colors[3], shape="triangle-down", size=110),
            label=dict(color=ink, fontWeight=600, fontSize=13),
            over=dict(color=card, fontSize=12),
            under=dict(color=ink, fontSize=12),
            band=dict(color=colors[0], fillOpacity=0.08),
            frame=dict(stroke=card, strokeWidth=3),
        ),
    }


def make(chart: Any, height: int, **rows: Iterable[Record]) -> Spec:
    """A chart of named data as plain values, as wide as its place on the page."""
    fit = alt.AutoSizeParams(type="fit-x", contains="padding")
    spec = chart.properties(width="container", height=height, autosize=fit)
    spec = spec.to_dict(validate=False)  # as tests do: it would take most of a page's time
    del spec["config"]
    short = {name: [{k: _short(v) for k, v in row.items()} for row in some] for name, some in rows.items()}
    return spec | {"datasets": short}


def _short(value: Any) -> Any:
    """A number without the digits that no one sees; None of one that is not finite."""
    if not isinstance(value, float):
        return value
    return (float(f"{value:.6g}") if value % 1 else value) if math.isfinite(value) else None


def data(name: str) -> Any:
    """A chart of the rows with this name."""
    return alt.Chart(alt.NamedData(name))


def series(names: Sequence[str], kind: type = alt.Color) -> Any:
    """The color, shape or dashes of named series, with one legend for all three."""
    scale = {"range": ["circle", "diamond", "square", "triangle-up"]} if kind is alt.Shape else {}
    return kind("s:N", legend=alt.Legend() if len(names) > 1 else None).scale(domain=list(names), **scale)


def lines(rows: Sequence[Record], x: Axis, y: Axis, steps: bool = False, height: int = 260) -> Spec:
    """Lines by series "s" of "x" and "y", with bands from "low" to "high" where rows have them."""
    names = list(dict.fromkeys(row["s"] for row in rows))
    hover = alt.selection_point(name="hover", on="pointerover", nearest=True, empty=False, clear="pointerout")
    base = data("lines").encode(x=x.of(alt.X, "x"), y=y.of(alt.Y, "y"), color=series(names))
    seen = alt.when(LEGEND).then(alt.value(1)).otherwise(alt.value(0.08))
    drawn = base.mark_line(clip=True, interpolate="step-after" if steps else "linear")
    drawn = drawn.encode(strokeDash=series(names, alt.StrokeDash), opacity=seen)
    tips = [*([alt.Tooltip("s:N", title="of")] if len(names) > 1 else []), x.tip("x"), y.tip("y")]
    near, counts = alt.when(hover).then(alt.value(1)), collections.Counter(row["s"] for row in rows)
    if single := [name for name in names if counts[name] == 1]:  # A line of one point would show nothing.
        near = near.when(alt.FieldOneOfPredicate("s", single)).then(alt.value(1))
    near = near.otherwise(alt.value(0))
    points = base.mark_point(filled=True, size=70, clip=True).encode(opacity=near, tooltip=tips)
    parts = [drawn.add_params(LEGEND, ZOOM), points.add_params(hover)]
    if any("low" in row for row in rows):
        band = base.mark_area(opacity=0.15, clip=True).encode(y=y.of(alt.Y, "low"), y2="high:Q")
        parts.insert(0, band.transform_filter("isValid(datum.low)"))
    return make(alt.layer(*parts), height, lines=rows)


def heat(cells: Sequence[Record], title: str, moments: int = 1, columns: Any = None) -> Spec:
    """A heat map of cells with "x", "y", a "value" from 0 to 1, "text", a whole "name", and their "moment".

    Rows, and columns where they are not given, are in the order of the cells. Several moments have a slider.
    """
    rows = list(dict.fromkeys(cell["y"] for cell in cells))
    x = alt.X("x:N", sort=columns, title=None).axis(orient="top", labelAngle=0, labelLimit=140)
    base = data("cells").encode(x=x, y=alt.Y("y:N", sort=rows, title=None))
    if moments > 1:
        bind = alt.binding_range(min=0, max=moments - 1, step=1, name="moment ")
        base = base.add_params(alt.param(name="moment", value=moments - 1, bind=bind))
        base = base.transform_filter("datum.moment == moment")
    shade = alt.Color("value:Q", legend=None).scale(domain=[0, 1], range="ramp", interpolate="rgb")
    tips = [alt.Tooltip("name:N", title="place"), alt.Tooltip("value:Q", format=".1%", title=title)]
    parts = [base.mark_rect(style="frame").encode(color=shade, tooltip=tips)]
    for style, which in (("over", "datum.value > 0.55"), ("under", "datum.value <= 0.55")):
        parts.append(base.mark_text(style=style).encode(text="text:N").transform_filter(which))
    return make(alt.layer(*parts), 26 * len(rows), cells=cells)


def bars(rows: Sequence[Record], title: str, chance: float | None = None) -> Spec:
    """Bars by name "s" of length "x", perhaps with a range from "low" to "high", and "kept", a group.

    A difference from 0 of at most `chance` may be one of chance; None where that is not known.
    """
    base = data("bars").encode(y=alt.Y("s:N", sort=[row["s"] for row in rows], title=None))
    tips = [alt.Tooltip("s:N", title="of")]
    tips += [alt.Tooltip(f"{key}:Q", format=".4~g") for key in ("x", "low", "high") if key in rows[0]]
    drawn = base.mark_bar(height={"band": 0.55}, opacity=0.85)
    drawn = drawn.encode(x=alt.X("x:Q").title(title), tooltip=tips)
    if "kept" in rows[0]:
        drawn = drawn.encode(color=alt.Color("kept:N").scale(domain=["kept", "not kept"]))
    parts = [drawn]
    if "low" in rows[0]:
        parts.append(base.mark_rule(style="front").encode(x="low:Q", x2="high:Q"))
    if chance is not None:
        parts.insert(0, data("chance").mark_rect(style="band").encode(x="low:Q", x2="high:Q"))
    limits = [] if chance is None else [{"low": -chance, "high": chance}]
    return make(alt.layer(*parts), 32 * len(rows), bars=rows, chance=limits)

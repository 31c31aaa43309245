"""Charts as SVG for the page: real text, classes instead of styles, and colours that follow the theme."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from bench.report.figures import chart
from bench.report.figures.chart import Band, Bar, Chart, Line, Panel, Rule, Text, class_of, limits, ticks

WIDTH = 960
"""Of a chart's panels side by side, in pixels."""
NARROWEST, WIDEST = 320, 400
"""Width of a panel, at least and at most: at most, for its words to be readable on a telephone. The page
sets as many of a chart next to each other as it has room for."""
HEIGHT = 170
"""Of a panel's frame, where its y axis has no rows."""
ROW = 17
"""Height of a row of an axis of words."""
CHARACTER = 6.7
"""Width of a character of a tick's label."""
TOP, BOTTOM, GAP = 24, 36, 18
DOT = 3
"""Half a dot's height."""


def draw(figure: Chart) -> Markup:
    """Return a chart as elements of the page: an SVG element for each panel, then the legend."""
    width = panel_width(figure.columns)
    height = max(panel.rows * ROW if panel.rows else HEIGHT for panel in figure.panels)
    drawn = [_element(figure, panel, width, panel.rows * ROW or height) for panel in figure.panels]
    legend = Markup('<p class="legend soft">{}</p>').format(_joined([_handle(*entry) for entry in figure.legend]))
    panels = Markup('<div class="panels across-{}">{}</div>').format(min(figure.columns, 3), _joined(drawn))
    return panels + (legend if figure.legend else "")


def panel_width(columns: int) -> float:
    """Return the width in pixels of each panel of a chart with some columns."""
    return min(max(WIDTH / columns, NARROWEST), WIDEST)


def _element(figure: Chart, panel: Panel, width: float, height: float) -> Markup:
    whole = TOP + height + BOTTOM
    precision = Markup(' data-precision="{}"').format(panel.precision) if panel.precision else ""
    title = f"{figure.caption}: {panel.title}" if panel.title else figure.caption
    return Markup(
        '<svg class="chart" viewBox="0 0 {0:.0f} {1:.0f}" width="{0:.0f}" height="{1:.0f}" role="img"{2}>'
        "<title>{3}</title>{4}</svg>"
    ).format(width, whole, precision, title, _joined(_panel(panel, width, height)))


class _Frame:
    """The place of a panel, from units of the data to pixels."""

    def __init__(self, panel: Panel, width: float, height: float) -> None:
        self.panel, (self.x0, self.x1), (self.y0, self.y1) = panel, limits(panel, "x"), limits(panel, "y")
        self.x_ticks, self.y_ticks = ticks(panel.x, self.x0, self.x1), ticks(panel.y, self.y0, self.y1)
        margin = max((len(text) for _, text in self.y_ticks), default=0) * CHARACTER + 8 + (14 if panel.y.label else 0)
        self.left, self.right = margin, width - GAP
        self.top, self.bottom = TOP, TOP + (panel.rows * ROW if panel.rows else height)

    def x(self, value: float) -> float:
        return self.left + _share(value, self.x0, self.x1, self.panel.x.scale) * (self.right - self.left)

    def y(self, value: float) -> float:
        share = _share(value, self.y0, self.y1, self.panel.y.scale)
        down = self.panel.y.scale == "words"  # rows go down, figures up
        return self.top + (share if down else 1 - share) * (self.bottom - self.top)


def _share(value: float, low: float, high: float, scale: str) -> float:
    """Return how far along an axis a value lies, from 0 to 1."""
    value = min(max(value, low), high)
    if scale == "log":
        value, low, high = math.log(value), math.log(low), math.log(high)
    return (value - low) / (high - low)


def _panel(panel: Panel, width: float, height: float) -> list[Markup]:
    frame = _Frame(panel, width, height)
    grid = "".join(f"M{_n(frame.x(at))} {_n(frame.top)}V{_n(frame.bottom)}" for at, _ in frame.x_ticks)
    grid *= panel.x.scale != "words"
    if panel.y.scale != "words":
        grid += "".join(f"M{_n(frame.left)} {_n(frame.y(at))}H{_n(frame.right)}" for at, _ in frame.y_ticks)
    below = [((frame.x(at), frame.bottom + 13), text) for at, text in frame.x_ticks]
    below += [(((frame.left + frame.right) / 2, frame.bottom + 28), panel.x.label)]
    before = [((frame.left - 5, frame.y(at) + 3.5), text) for at, text in frame.y_ticks]
    parts = [_words([((frame.left, 15), panel.title)], "head"), _path("grid", grid)]
    parts += [_words(below, "tick middle"), _words(before, "tick end")]
    if panel.y.label:
        turned = Markup('<g transform="translate({:.1f} {:.1f}) rotate(-90)">{}</g>')
        words = _words([((0, 0), panel.y.label)], "tick middle")
        parts.append(turned.format(9, (frame.top + frame.bottom) / 2, words))
    return parts + _marks(frame)


def _words(placed: Sequence[tuple[tuple[float, float], str]], look: str) -> Markup:
    """Return words of one look."""
    texts = [Markup('<text x="{}" y="{}">{}</text>').format(_n(x), _n(y), text) for (x, y), text in placed if text]
    return Markup('<g class="{}">{}</g>').format(look, _joined(texts)) if texts else Markup("")


def _path(look: str, commands: str, says: str = "") -> Markup:
    """Return a path with a title for hovering; nothing without commands."""
    attributes = Markup(' class="{}"').format(look) if look else ""
    end = Markup(">{}</path>").format(_title(says)) if says else Markup("/>")
    return Markup('<path{} d="{}"{}').format(attributes, commands, end) if commands else Markup("")


def _title(says: str) -> Markup:
    return Markup("<title>{}</title>").format(says) if says else Markup("")


def _marks(frame: _Frame) -> list[Markup]:
    """Draw the marks of a panel: bars that say nothing and words are gathered by their look, for there may be many."""
    bars: dict[str, list[str]] = {}
    words: dict[str, list[tuple[tuple[float, float], str]]] = {}
    others: list[Markup] = []
    for mark in frame.panel.marks:
        match mark:
            case Rule():
                others.append(_path("rule", _across(frame, mark)))
            case Text():
                at = frame.x(mark.x), frame.y(mark.y) + 3.5
                look = f"{class_of(mark.tint)} {mark.anchor}"
                words.setdefault(look, []).append((at, mark.text))
            case Bar(says=""):
                bars.setdefault(_look(mark), []).append(_rectangle(frame, mark))
            case Bar():
                others.append(_path(_look(mark), _rectangle(frame, mark), mark.says))
            case Band():
                bars.setdefault(f"bar {class_of(mark.tint)} faint", []).append(_area(frame, mark))
            case Line():
                others.append(_polyline(frame, mark))
    drawn = [_path(look, "".join(paths)) for look, paths in bars.items()]
    return [*drawn, *others, *(_words(placed, look) for look, placed in words.items())]


def _area(frame: _Frame, band: Band) -> str:
    upper = [f"{_n(frame.x(x))} {_n(frame.y(high))}" for x, _, high in band.points]
    lower = [f"{_n(frame.x(x))} {_n(frame.y(low))}" for x, low, _ in reversed(band.points)]
    return f"M{'L'.join([*upper, *lower])}z"


def _look(bar: Bar) -> str:
    return "bar " + class_of(bar.tint) + " faint" * bar.faint


def _rectangle(frame: _Frame, bar: Bar) -> str:
    x, y = sorted(map(frame.x, bar.x)), sorted(map(frame.y, bar.y))
    (left, right), (top, bottom) = map(round, x), map(round, y)
    return f"M{left} {top}h{right - left}v{bottom - top}h{left - right}z"


def _across(frame: _Frame, rule: Rule) -> str:
    if rule.axis == "x":
        return f"M{_n(frame.x(rule.at))} {_n(frame.top)}V{_n(frame.bottom)}"
    return f"M{_n(frame.left)} {_n(frame.y(rule.at))}H{_n(frame.right)}"


def _polyline(frame: _Frame, mark: Line) -> Markup:
    """Draw a line with its dots; a point that is not finite interrupts it."""
    path, pen = "", "M"
    dots, look = [], chart.look(mark.tint)
    shape = look.shape if look else ""
    for number, (x, y) in enumerate(mark.points):
        if not (math.isfinite(x) and math.isfinite(y)):
            pen = "M"
            continue
        place = _n(frame.x(x)), _n(frame.y(y))
        path, pen = f"{path}{pen}{' '.join(place)}", "L"
        if number % mark.every == mark.first and frame.y0 <= y <= frame.y1:
            dots.append(f"M{' '.join(place)}{shape or 'h.01'}")
    heights = dict(mark.points)
    whiskers = [
        f"M{_n(frame.x(x))} {_n(frame.y(low))}V{_n(frame.y(high))}"
        for x, low, high in mark.whiskers
        if max(abs(frame.y(end) - frame.y(heights[x])) for end in (low, high)) > DOT  # else the dot hides it
    ]
    line = _path("", (path if "L" in path else "") + "".join(whiskers))
    classes = class_of(mark.tint) + " dashed" * mark.dashed + " leads" * mark.leads
    shown = _path("mark" if shape else "dots", "".join(dots) if mark.dots else "")
    return Markup('<g class="{}">{}{}{}</g>').format(classes, line, shown, _title(mark.says))


def _joined(parts: Sequence[Markup]) -> Markup:
    return Markup("").join(parts)


def _n(value: float) -> str:
    """Write a number of pixels."""
    return f"{round(value, 1):g}"


def _handle(text: str, tint: str) -> Markup:
    """Return an entry of the legend: a sign as in the figure, and what it says."""
    look = chart.look(tint)
    if tint == chart.CROSS:
        sign = Markup('<text x="4" y="9.5">✕</text>')
    elif tint in (chart.SOLID, chart.DASHED):
        sign = _path("", "M0 5.5h16")
    elif look:
        sign = _path("mark" if look.shape else "dots", f"M8 5.5{look.shape or 'h.01'}")
    else:
        sign = Markup('<rect x="3" width="11" height="11" rx="2"/>')
    plain = tint in (chart.SOLID, chart.DASHED, chart.BAND, chart.CROSS)
    classes = ["p-plain" if plain else class_of(tint), "dashed" * (tint == chart.DASHED)]
    classes += ["faint"] * (tint == chart.BAND or tint in chart.FAINT)
    key = Markup('<svg class="chart key {}" viewBox="0 0 16 11" width="16" height="11">{}</svg>')
    drawn = key.format(" ".join(filter(None, classes)), sign)
    return Markup('<span class="{}">{} {}</span>').format(classes[0], drawn, text)

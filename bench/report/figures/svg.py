"""Charts as SVG for the page: real text, classes instead of styles, and colours that follow the theme."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from bench.report.figures.chart import (
    BAND,
    DASHED,
    FAINT,
    SIGNS,
    SOLID,
    Band,
    Bar,
    Chart,
    Line,
    Panel,
    Rule,
    Text,
    limits,
    ticks,
)

WIDTH = 1000
"""Of a chart, in pixels."""
HEIGHT = 170
"""Of a panel's frame, where its y axis has no rows."""
ROW = 17
"""Height of a row of an axis of words."""
CHARACTER = 6.7
"""Width of a character of a tick's label."""
TOP, BOTTOM, GAP = 24, 36, 18
LEGEND_LINE = 18
"""Height of a line of the legend."""


def draw(chart: Chart) -> Markup:
    """Return a chart as an SVG element."""
    columns = chart.columns
    width = WIDTH / columns
    parts, top = [], 0.0
    for start in range(0, len(chart.panels), columns):
        row = chart.panels[start : start + columns]
        height = max(panel.rows * ROW if panel.rows else HEIGHT for panel in row)
        for column, panel in enumerate(row):
            parts += _panel(panel, column * width, top, width, height)
        top += height + TOP + BOTTOM
    lines = _legend_lines(chart)
    for line in lines:
        parts += _legend(line, top)
        top += LEGEND_LINE
    bottom = top + (22 - LEGEND_LINE if lines else 0)
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {:.0f}" width="{}" height="{:.0f}" role="img">'
        "<title>{}</title><desc>{}</desc>{}</svg>"
    ).format(WIDTH, bottom, WIDTH, bottom, chart.caption, chart.about, Markup("").join(parts))


def class_of(tint: str) -> str:
    """Return the class of what has a tint."""
    return "p-" + re.sub(r"[^a-z0-9]+", "-", tint.lower()).strip("-")


class _Frame:
    """The place of a panel, from units of the data to pixels."""

    def __init__(self, panel: Panel, left: float, top: float, width: float, height: float) -> None:
        self.panel, (self.x0, self.x1), (self.y0, self.y1) = panel, limits(panel, "x"), limits(panel, "y")
        self.x_ticks, self.y_ticks = ticks(panel.x, self.x0, self.x1), ticks(panel.y, self.y0, self.y1)
        margin = max((len(text) for _, text in self.y_ticks), default=0) * CHARACTER + 8 + (14 if panel.y.label else 0)
        self.left, self.right = left + margin, left + width - GAP
        self.top, self.bottom = top + TOP, top + TOP + (panel.rows * ROW if panel.rows else height)

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


def _panel(panel: Panel, left: float, top: float, width: float, height: float) -> list[Markup]:
    frame = _Frame(panel, left, top, width, height)
    parts = [_text((frame.left, top + 15), panel.title, "start", "head")] if panel.title else []
    grid = [
        f"M{_n(frame.x(at))} {_n(frame.top)}V{_n(frame.bottom)}" for at, _ in frame.x_ticks if panel.x.scale != "words"
    ]
    grid += [
        f"M{_n(frame.left)} {_n(frame.y(at))}H{_n(frame.right)}" for at, _ in frame.y_ticks if panel.y.scale != "words"
    ]
    parts += [Markup('<path class="grid" d="{}"/>').format("".join(grid))] if grid else []
    below = [((frame.x(at), frame.bottom + 13), text) for at, text in frame.x_ticks]
    below += [(((frame.left + frame.right) / 2, frame.bottom + 28), panel.x.label)] if panel.x.label else []
    beside = [((frame.left - 5, frame.y(at) + 3.5), text) for at, text in frame.y_ticks]
    parts += [_words(below, "tick middle"), _words(beside, "tick end")]
    if panel.y.label:
        middle = (frame.top + frame.bottom) / 2
        parts.append(_text((left + 9, middle), panel.y.label, "middle", "tick", turned=True))
    parts += _marks(frame)
    if panel.x.scale == panel.y.scale == "words" and panel.rows:  # cells, of which the page's script picks a column
        place = frame.left, frame.top, frame.right - frame.left, frame.bottom - frame.top
        parts.append(Markup('<rect class="cells" x="{}" y="{}" width="{}" height="{}"/>').format(*map(_n, place)))
    return parts


def _words(placed: Sequence[tuple[tuple[float, float], str]], look: str) -> Markup:
    """Return words of one look; many in rows say their row's height once."""
    rows: dict[str, list[tuple[float, str]]] = {}
    for (x, y), text in placed:
        rows.setdefault(_n(y), []).append((x, text))
    if len(placed) > 3 * len(rows):
        texts = [
            Markup('<g transform="translate(0 {})">{}</g>').format(
                y, _joined([Markup('<text x="{:.0f}">{}</text>').format(x, text) for x, text in own])
            )
            for y, own in rows.items()
        ]
    else:
        texts = [Markup('<text x="{}" y="{}">{}</text>').format(*map(_n, at), text) for at, text in placed]
    return Markup('<g class="{}">{}</g>').format(look, _joined(texts)) if texts else Markup("")


def _marks(frame: _Frame) -> list[Markup]:
    """Draw the marks of a panel: bars that say nothing and words are gathered by their look, for there may be many."""
    cells = [mark for mark in frame.panel.marks if isinstance(mark, Bar) and mark.heat is not None]
    bars = _cells(frame, cells)
    words: dict[str, list[tuple[tuple[float, float], str]]] = {}
    others: list[Markup] = []
    for mark in frame.panel.marks:
        match mark:
            case Rule():
                others += _rule(frame, mark)
            case Text():
                at = frame.x(mark.x), frame.y(mark.y) + 3.5
                look = f"{class_of(mark.tint)}{' inverse' * mark.inverse} {mark.anchor}"
                words.setdefault(look, []).append((at, mark.text))
            case Bar() if mark.heat is None:
                path = _rectangle(frame, mark)
                if mark.says:
                    others.append(
                        Markup('<path class="{}" d="{}">{}</path>').format(_look(mark), path, _says(mark.says))
                    )
                else:
                    bars.setdefault(_look(mark), []).append(path)
            case Band():
                bars.setdefault(f"bar {class_of(mark.tint)} faint", []).append(_area(frame, mark))
            case Line():
                others.append(_polyline(frame, mark))
    drawn = [Markup('<path class="{}" d="{}"/>').format(look, "".join(paths)) for look, paths in bars.items()]
    return [
        *drawn,
        *others,
        *(_words(own, look) for look, own in words.items()),
    ]


def _cells(frame: _Frame, cells: Sequence[Bar]) -> dict[str, list[str]]:
    """Return a heat map's cells by their look; neighbours of one look in a row are one, and white ones are left out."""
    paths: dict[str, list[str]] = {}
    for (look, y), row in itertools.groupby(cells, lambda cell: (_look(cell), cell.y)):
        run = list(row)
        if round(8 * abs(run[0].heat or 0.0)):
            whole = Bar(x=(run[0].x[0], run[-1].x[1]), y=y, tint=run[0].tint)
            paths.setdefault(look, []).append(_rectangle(frame, whole))
    return paths


def _area(frame: _Frame, band: Band) -> str:
    upper = [f"{_n(frame.x(x))} {_n(frame.y(high))}" for x, _, high in band.points]
    lower = [f"{_n(frame.x(x))} {_n(frame.y(low))}" for x, low, _ in reversed(band.points)]
    return f"M{'L'.join([*upper, *lower])}z"


def _look(bar: Bar) -> str:
    if bar.heat is not None:
        return f"heat {'fast' if bar.heat > 0 else 'slow'} h{round(8 * abs(bar.heat))}"
    return "bar " + class_of(bar.tint) + " faint" * bar.faint


def _rectangle(frame: _Frame, bar: Bar) -> str:
    x, y = sorted(map(frame.x, bar.x)), sorted(map(frame.y, bar.y))
    (left, right), (top, bottom) = map(round, x), map(round, y)
    return f"M{left} {top}h{right - left}v{bottom - top}h{left - right}z"


def _rule(frame: _Frame, mark: Rule) -> Iterator[Markup]:
    if mark.axis == "x":
        at = frame.x(mark.at)
        yield _line(at, frame.top, at, frame.bottom, "rule")
        yield from [_text((at, frame.top - 2), mark.label, "middle", "tick")] if mark.label else []
    else:
        at = frame.y(mark.at)
        yield _line(frame.left, at, frame.right, at, "rule")
        yield from [_text((frame.right, at - 3), mark.label, "end", "tick")] if mark.label else []


def _polyline(frame: _Frame, mark: Line) -> Markup:
    """Draw a line with its dots; a point that is not finite interrupts it."""
    path, pen = "", "M"
    dots = []
    for number, (x, y) in enumerate(mark.points):
        if not (math.isfinite(x) and math.isfinite(y)):
            pen = "M"
            continue
        place = _n(frame.x(x)), _n(frame.y(y))
        path, pen = f"{path}{pen}{' '.join(place)}", "L"
        if number % mark.every == mark.first and frame.y0 <= y <= frame.y1:
            dots.append(f"M{' '.join(place)}h.01")
    line = Markup('<path d="{}"/>').format(path) if "L" in path else Markup("")
    look = class_of(mark.tint) + " dashed" * mark.dashed
    shown = Markup('<path class="dots" d="{}"/>').format("".join(dots)) if mark.dots and dots else Markup("")
    return Markup('<g class="{}">{}{}{}</g>').format(look, line, shown, _says(mark.says))


def _joined(parts: Sequence[Markup]) -> Markup:
    return Markup("").join(parts)


def _n(value: float) -> str:
    """Write a number of pixels."""
    return f"{round(value, 1):g}"


def _legend_lines(chart: Chart) -> list[list[tuple[str, str]]]:
    """Return the entries of the legend, in lines that fit into the chart."""
    lines: list[list[tuple[str, str]]] = []
    left = 0.0
    for entry in chart.legend:
        width = _entry_width(entry[0])
        if not lines or left + width > WIDTH:
            lines.append([])
            left = 10.0
        lines[-1].append(entry)
        left += width
    return lines


def _entry_width(text: str) -> float:
    return 16 + len(text) * CHARACTER + 22


def _legend(entries: Sequence[tuple[str, str]], top: float) -> Iterator[Markup]:
    left = 10.0
    for text, tint in entries:
        if tint in (SOLID, DASHED):
            line = Markup('<g class="p-plain{}"><path d="M{} {}h16"/></g>')
            yield line.format(" dashed" * (tint == DASHED), _n(left - 5), _n(top + 8.5))
        elif tint in SIGNS:
            yield _text((left + 6, top + 12.5), SIGNS[tint], "middle", "tick")
        else:
            look = "p-plain faint" if tint == BAND else class_of(tint) + " faint" * (tint in FAINT)
            box = Markup('<rect class="{}" x="{}" y="{}" width="11" height="11" rx="2"/>')
            yield box.format(look, _n(left), _n(top + 3))
        yield _text((left + 16, top + 12.5), text, "start", "tick")
        left += _entry_width(text)


def _line(x1: float, y1: float, x2: float, y2: float, look: str) -> Markup:
    return Markup('<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(look, *map(_n, (x1, y1, x2, y2)))


def _text(at: tuple[float, float], text: str, anchor: str, look: str, *, turned: bool = False) -> Markup:
    turn = Markup('transform="rotate(-90 {:.1f} {:.1f})" ').format(*at) if turned else Markup("")
    return Markup('<text class="{} {}" x="{:.1f}" y="{:.1f}" {}>{}</text>').format(look, anchor, *at, turn, text)


def _says(text: str) -> Markup:
    return Markup("<title>{}</title>").format(text) if text else Markup("")

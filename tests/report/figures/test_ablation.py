"""Waterfalls of ablations: bars, changes, intervals and colours, and a place for what was not timed."""

import numpy as np
import pytest

from bench.report.figures import files, svg
from bench.report.figures.ablation import MOST, ROOM, waterfall
from bench.report.figures.chart import LESS, MORE, PLAIN, Bar, Line, Text, limits
from tests.report.ablations import ablation_of, apart, whole
from tests.report.builders import RunBuilder


@pytest.fixture
def run(tmp_path):
    return whole(RunBuilder(tmp_path / "run"))


def bars(panel, *, faint):
    """Return the x of a panel's bars and their tints, by row."""
    drawn = [mark for mark in panel.marks if isinstance(mark, Bar) and mark.faint == faint]
    return {int(bar.y[0]): (*map(pytest.approx, bar.x), bar.tint) for bar in drawn}


def intervals(panel):
    return [mark.points for mark in panel.marks if isinstance(mark, Line) and not mark.dots]


@pytest.mark.parametrize("later", [[4.0, 4.1, 3.9], [4.0, 40.0, 0.4]])
def test_an_interval_is_drawn_whole_unless_it_would_dwarf_the_bars(tmp_path, later):
    ladder = ablation_of(apart(RunBuilder(tmp_path / "run"), {"fp32": [8.0, 8.1, 7.9], "amp-bf16": later}))
    over, base = ladder.rows["over_first"].iloc[1], ladder.rows["epoch_s"].iloc[0]
    panel = waterfall(ladder).panels[0]
    (((low, _), (high, _)),) = intervals(panel)
    assert (low, high) == (pytest.approx(base / over.high), pytest.approx(base / over.low))
    assert limits(panel, "x") == (0.0, pytest.approx(ROOM * min(max(base, base / over.low), MOST * base)))


@pytest.mark.parametrize("mixed", ["fp32", "amp-fp16"])
def test_a_bar_has_the_colour_of_its_precision(tmp_path, mixed):
    times = {name: [4.0, 4.1] for name in ("fp32", mixed, f"{mixed}+set-to-none")}
    builder = apart(RunBuilder(tmp_path / "run"), times)
    ladder = ablation_of(builder.lost("ladder", "amp-bf16", "unsupported", batch=64))
    chart = waterfall(ladder)
    assert set(ladder.rows["precision"]) == {"fp32", mixed, "amp-bf16"}
    tints = {place: tint for place, (*_, tint) in bars(chart.panels[0], faint=True).items()}
    assert tints == {
        place: name
        for place, (name, step) in enumerate(zip(ladder.rows["precision"], ladder.rows["step_ms"], strict=True))
        if step > 0
    }
    assert set(dict(chart.legend)) - {"more"} == {"fp32", mixed}  # none that was not timed


def test_what_a_step_changes_is_drawn_from_the_step_that_it_builds_on(run):
    rows = ablation_of(run).rows.assign(epoch_s=[4.0, 2.4, 2.9, np.nan])  # medians, of a machine that drifted
    ladder = ablation_of(run)
    chart = waterfall(type(ladder)(**{name: getattr(ladder, name) for name in ladder.__slots__} | {"rows": rows}))
    times, memory = chart.panels
    assert bars(times, faint=True) == {0: (0, 4.0, "fp32"), 1: (0, 2.4, "amp-bf16"), 2: (0, 2.9, "amp-bf16")}
    assert bars(times, faint=False) == {1: (4.0, 2.4, LESS), 2: (2.4, 2.9, MORE)}
    assert bars(memory, faint=False) == {1: (100, 60, LESS), 2: (60, 50, LESS)}
    dots = [mark.points[0] for mark in times.marks if isinstance(mark, Line) and mark.dots and mark.tint == PLAIN]
    assert dots == [(pytest.approx(4.0 / 2.0), 1.5), (pytest.approx(4.0 / 2.5), 2.5)]
    assert [text for text, tint in chart.legend if tint in (LESS, MORE)] == [
        "less than the step that it builds on",
        "more",
    ]


def test_a_step_that_was_not_timed_keeps_its_position_with_the_word_for_why_in_both_drawings(run, tmp_path):
    chart = waterfall(ablation_of(run))
    panel = chart.panels[0]
    assert [(mark.text.strip(), mark.y) for mark in panel.marks if isinstance(mark, Text) and "×" in mark.text] == [
        ("× unsupported", 3.5)
    ]
    assert panel.y.ticks[3] == (3.5, "+ non-blocking")
    assert "× unsupported" in svg.draw(chart)
    files.draw(chart, tmp_path)
    (path,) = tmp_path.glob("*-ladder.svg")
    assert "unsupported" in path.read_text()

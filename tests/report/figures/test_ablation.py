"""Waterfalls of ablations: bars, changes, intervals and colours, and a place for what was not timed."""

import numpy as np
import pytest

from bench.report.figures import files, svg
from bench.report.figures.ablation import waterfall
from bench.report.figures.chart import LESS, MORE, PLAIN, Bar, Line, Text
from tests.report.ablations import ablation_of, whole
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

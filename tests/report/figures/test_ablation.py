"""Step plots of ablations: bars, intervals and colours, and a place for what was not timed."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from bench.report.figures import ablation, figure
from tests.report.ablations import ablation_of, apart, whole
from tests.report.builders import RunBuilder


def drawn(rows):
    axes = Figure().subplots()
    ablation._times(axes, rows)
    return axes


@pytest.fixture
def run(tmp_path):
    return whole(RunBuilder(tmp_path / "run"))


@pytest.mark.parametrize(("later", "ends_by"), [([4.0, 4.1, 3.9], 10.0), ([4.0, 40.0, 0.4], 25.0)])
def test_an_interval_is_drawn_whole_unless_it_would_dwarf_the_bars(tmp_path, later, ends_by):
    rows = ablation_of(apart(RunBuilder(tmp_path / "run"), {"fp32": [8.0, 8.1, 7.9], "amp-bf16": later})).rows
    axes = drawn(rows)
    (_, whiskers) = axes.containers
    (segment,) = [line for line in whiskers.lines[2][0].get_segments() if len(line) == 2 and np.isfinite(line).all()]
    over = rows["over_first"].iloc[1]
    assert sorted(segment[:, 1]) == pytest.approx([4.0 / over.high, 4.0 / over.low])
    assert axes.get_ylim()[1] == pytest.approx(1.15 * min(max(4.0, 4.0 / over.low), ablation.MOST * 4.0))
    assert axes.get_ylim()[1] <= ends_by


def test_a_step_that_was_not_timed_leaves_the_axis_to_those_that_were():
    axes, added = Figure().subplots(), ["fp32", "+ set-to-none", "+ non-blocking"]
    rows = pd.DataFrame({"added": added, "precision": "fp32", "status": "ok", "step_ms": [3.0, 2.0, np.nan]})
    bounds = np.array([[np.nan] * 3, [1.0, 2.0, 4.0], [np.nan] * 3])
    ablation._bars(axes, rows, rows["step_ms"], bounds)
    assert axes.get_ylim()[1] == pytest.approx(1.15 * 4.0)


@pytest.mark.parametrize("mixed", ["fp32", "amp-fp16"])
def test_a_bar_has_the_colour_of_its_precision(tmp_path, mixed):
    times = {name: [4.0, 4.1] for name in ("fp32", mixed, f"{mixed}+set-to-none")}
    builder = apart(RunBuilder(tmp_path / "run"), times)
    rows = ablation_of(builder.lost("ladder", "amp-bf16", "unsupported", batch=64)).rows
    axes = drawn(rows)
    assert set(rows["precision"]) == {"fp32", mixed, "amp-bf16"}
    assert [bar.get_facecolor() for bar in axes.containers[0]] == [
        to_rgba(figure.colour(name), 0.25) for name in rows["precision"]
    ]
    assert set(axes.get_legend_handles_labels()[1]) == {"fp32", mixed}  # none that was not timed


def test_a_dot_is_in_the_middle_of_its_whisker_and_the_axis_explains_bar_and_dot(run):
    rows = ablation_of(run).rows.assign(epoch_s=[4.0, 2.4, 1.9, np.nan])  # medians, of a machine that drifted
    axes = drawn(rows)
    bars, whiskers = axes.containers
    assert whiskers.lines[0].get_marker() == "o"
    assert whiskers.lines[0].get_ydata()[1:3] == pytest.approx([4.0 / 2.0, 4.0 / 2.5])
    assert [bar.get_height() for bar in bars][:3] == [4.0, 2.4, 1.9]
    assert axes.get_xlabel() == ablation.DRAWN


def test_a_step_that_was_not_timed_keeps_its_position_with_the_word_for_why(run, tmp_path):
    ladder = ablation_of(run)
    axes = drawn(ladder.rows)
    marks = {text.get_text(): text.xy[0] for text in axes.texts if text.get_text().startswith("×")}
    assert marks == {"× unsupported": 3}
    assert axes.get_xlim() == (-0.5, 3.5)
    assert [label.get_text() for label in axes.get_xticklabels()][3] == "+ non-blocking"
    assert ablation.draw(ladder, tmp_path) is not None
    (svg,) = tmp_path.glob("*-ladder.svg")
    assert "unsupported" in svg.read_text()

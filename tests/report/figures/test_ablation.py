"""Step plots of ablations: bars, intervals and colours, and a place for what was not timed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure

from bench.report.analysis.ablation import ablations
from bench.report.figures import ablation as figure
from bench.report.figures import axes as house
from bench.report.reading.load import load
from tests.report.builders import RunBuilder
from tests.report.tables import test_ablation
from tests.report.tables.test_ablation import apart

run = test_ablation.run


@pytest.mark.parametrize(("later", "ends_by"), [([4.0, 4.1, 3.9], 10.0), ([4.0, 40.0, 0.4], 25.0)])
def test_an_interval_is_drawn_whole_unless_it_would_dwarf_the_bars(tmp_path, later, ends_by) -> None:
    builder = apart(RunBuilder(tmp_path / "run"), {"fp32": [8.0, 8.1, 7.9], "amp-bf16": later})
    (ladder,) = ablations(load([builder.folder]))
    axes = Figure().subplots()
    figure._times(axes, ladder.rows)
    (bars,) = (container for container in axes.containers if isinstance(container, ErrorbarContainer))
    (segment,) = [line for line in bars.lines[2][0].get_segments() if len(line) == 2 and np.isfinite(line).all()]
    over = ladder.rows["over_first"].iloc[1]
    assert sorted(segment[:, 1]) == pytest.approx([4.0 / over.high, 4.0 / over.low])
    assert axes.get_ylim()[1] == pytest.approx(1.15 * min(max(4.0, 4.0 / over.low), figure.MOST * 4.0))
    assert axes.get_ylim()[1] <= ends_by


def test_a_step_that_was_not_timed_leaves_the_axis_to_those_that_were() -> None:
    axes, added = Figure().subplots(), ["fp32", "+ set-to-none", "+ non-blocking"]
    precision = ["fp32"] * 3
    rows = pd.DataFrame(
        {"added": added, "precision": precision, "status": ["ok", "ok", "unsupported"], "step_ms": [3.0, 2.0, np.nan]}
    )
    bounds = np.array([[np.nan] * 3, [1.0, 2.0, 4.0], [np.nan] * 3])
    figure._bars(axes, rows, rows["step_ms"], bounds)
    assert axes.get_ylim()[1] == pytest.approx(1.15 * 4.0)


@pytest.mark.parametrize("mixed", ["fp32", "amp-fp16"])
def test_a_bar_has_the_colour_of_its_precision(tmp_path: Path, mixed: str) -> None:
    times = {name: [4.0, 4.1] for name in ("fp32", mixed, f"{mixed}+set-to-none")}
    builder = apart(RunBuilder(tmp_path / "run"), times)
    builder.lost("ladder", "amp-bf16", "unsupported", batch=64)
    (ladder,) = ablations(load([builder.folder]))
    axes = Figure().subplots()
    figure._times(axes, ladder.rows)
    (bars,) = (container for container in axes.containers if isinstance(container, BarContainer))
    computes = [name.partition("+")[0] for name in ladder.rows["step"]]
    assert set(computes) == {"fp32", mixed, "amp-bf16"}
    assert [bar.get_facecolor() for bar in bars] == [to_rgba(house.colour(name), 0.25) for name in computes]
    assert set(axes.get_legend_handles_labels()[1]) == {"fp32", mixed}  # none that was not timed


def test_a_dot_is_in_the_middle_of_its_whisker_and_the_axis_explains_bar_and_dot(run: RunBuilder) -> None:
    (ladder,) = ablations(load([run.folder]))
    rows = ladder.rows.assign(epoch_s=[4.0, 2.4, 1.9, np.nan])  # medians, of a machine that drifted
    axes = Figure().subplots()
    figure._times(axes, rows)
    (drawn,) = (container for container in axes.containers if isinstance(container, ErrorbarContainer))
    assert drawn.lines[0].get_marker() == "o"
    assert drawn.lines[0].get_ydata()[1:3] == pytest.approx([4.0 / 2.0, 4.0 / 2.5])
    (bars,) = (container for container in axes.containers if isinstance(container, BarContainer))
    assert [bar.get_height() for bar in bars][:3] == [4.0, 2.4, 1.9]
    assert axes.get_xlabel().splitlines() == [
        "bar: median step × steps of an epoch",
        "dot and whisker: fp32's bar ÷ speedup over fp32, with its 95 % interval",
    ]


def test_a_step_that_was_not_timed_keeps_its_place_with_the_word_for_why(run: RunBuilder, tmp_path: Path) -> None:
    (ladder,) = ablations(load([run.folder]))
    axes = Figure().subplots()
    figure._times(axes, ladder.rows)
    marks = {text.get_text(): text.xy[0] for text in axes.texts if text.get_text().startswith("×")}
    assert marks == {"× unsupported": 3}
    assert axes.get_xlim() == (-0.5, 3.5)
    assert [label.get_text() for label in axes.get_xticklabels()][3] == "+ non-blocking"
    (plot,) = figure.draw(ladder, tmp_path)
    assert "unsupported" in (tmp_path / f"{plot.name}.svg").read_text()

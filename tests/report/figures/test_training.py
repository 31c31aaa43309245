"""The course of training as it is drawn: what lies where, and what tells it apart."""

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from bench.report.figures import chart, files, svg, training
from bench.report.figures.chart import BAND, CROSS, Band, Line, Text, ticks
from bench.report.reading.load import load
from bench.spec.precisions import PRECISIONS
from tests.report.builders import RunBuilder


def epochs_of(run):
    return load([run.folder]).epochs


def lines(panel, precision):
    drawn = [mark for mark in panel.marks if isinstance(mark, Line) and mark.tint == precision]
    return [tuple(map(list, zip(*line.points, strict=True))) for line in drawn]


def marks(panel, kind):
    return [mark for mark in panel.marks if isinstance(mark, kind)]


def test_a_line_is_the_mean_over_seeds_and_the_band_reaches_from_the_lowest_to_the_highest(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [80.0, 90.0, 100.0])
    panel = training.panel(epochs_of(run), training.ACCURACY, "epoch")
    ((x, y),) = lines(panel, "fp32")
    assert (x, y) == ([1, 2], pytest.approx([72.0, 90.0]))
    (band,) = marks(panel, Band)
    assert band.points == [
        (1, pytest.approx(64.0), pytest.approx(80.0)),
        (2, pytest.approx(80.0), pytest.approx(100.0)),
    ]


def test_against_time_a_faster_precision_lies_further_left_by_its_training_time(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [80.0, 80.0], epoch_s=[4.0, 6.0])
    axes = training.panel(epochs_of(run.train("amp-bf16", [80.0], epoch_s=2.0)), training.ACCURACY, "elapsed_s")
    assert lines(axes, "fp32")[0][0] == pytest.approx([5.0, 10.0])
    assert lines(axes, "amp-bf16")[0][0] == pytest.approx([2.0, 4.0])
    assert axes.x.label == "training time (s)"
    rows = epochs_of(RunBuilder(tmp_path / "long").train("fp32", [80.0], epoch_s=7200.0))
    axes = training.panel(rows, training.ACCURACY, "elapsed_s")
    assert (lines(axes, "fp32")[0][0], axes.x.label) == (pytest.approx([2.0, 4.0]), "training time (h)")
    assert marks(axes, Band) == []  # of one seed
    assert BAND not in dict(training.legend(rows)).values()


def test_training_and_test_losses_differ_by_their_dashes_and_precisions_by_their_markers(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [80.0]).train("amp-bf16", [80.0])
    panel = training.panel(epochs_of(run), training.LOSS, "epoch")
    assert len({(line.tint, line.dashed) for line in marks(panel, Line)}) == 4
    with mpl.rc_context(files.STYLE):
        axes = Figure().subplots()
        files._panel(axes, panel=panel)
    drawn = [line for line in axes.lines if len(line.get_xdata())]
    assert len({(line.get_marker(), line.is_dashed()) for line in drawn}) == len(drawn) == 4


def test_both_drawings_show_every_line_band_and_cross(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [80.0, 90.0]).train("amp-fp16", [80.0])
    text = svg.draw(training.course(epochs_of(run.diverged("amp-fp16", seed=1, finite=2)), name="it", caption="it"))
    assert text.count(" faint") == 2 * 2 * 2 + 1  # in each panel one path of a precision, and one in the legend
    assert text.count("✕") == 2 * 3 + 1
    assert text.count(' dashed"><path') == 2 * 2 * 2
    assert text.count('<svg class="chart key p-plain dashed"') == 1


def test_every_precision_has_a_marker_and_a_colour_of_its_own():
    for look in (chart.colour, chart.marker):
        assert len(set(map(look, PRECISIONS))) == len(PRECISIONS)


def test_a_seed_that_diverged_is_crossed_where_it_was_last_finite_and_the_cross_explained(tmp_path):
    run = RunBuilder(tmp_path / "run").train("amp-fp16", [80.0]).diverged("amp-fp16", seed=1, finite=2)
    rows = epochs_of(run)
    crosses = marks(training.panel(rows, training.LOSS, "epoch"), Text)
    assert (crosses[0].x, crosses[0].y) == (2.0, 1.05 / 2)
    assert training.legend(rows)[-1][1] == CROSS


def test_what_nan_weights_answered_is_drawn_as_no_accuracy(tmp_path):
    run = RunBuilder(tmp_path / "run").train("amp-fp16", [80.0], epochs=3).diverged("amp-fp16", seed=1, finite=2)
    panel = training.panel(epochs_of(run), training.ACCURACY, "epoch")
    ((x, y),) = lines(panel, "amp-fp16")
    assert (x[-1], y[-1]) == (3, pytest.approx(80))  # the seed left; the other one's is 10
    (cross,) = marks(panel, Text)
    assert cross.x == 2.0


def test_a_loss_that_falls_far_is_logarithmic_with_plain_ticks(tmp_path):
    axis = training.panel(epochs_of(RunBuilder(tmp_path / "run").train("fp32", [80.0], epochs=100)), "loss", "epoch").y
    assert axis.scale == "log"
    assert [text for _, text in ticks(axis, 0.01, 1.1)] == ["0.01", "0.1", "1"]
    short = training.panel(epochs_of(RunBuilder(tmp_path / "s").train("fp32", [80.0])), "loss", "epoch")
    assert short.y.scale == "linear"


def test_regression_has_no_accuracy_and_a_training_without_a_finite_loss_no_plot(tmp_path):
    def titles(run):
        return len(training.course(epochs_of(run), name="it", caption="it").panels)

    assert titles(RunBuilder(tmp_path / "regression").train("fp32", [None])) == 2
    assert titles(RunBuilder(tmp_path / "full").train("fp32", [80.0])) == 4
    lost = epochs_of(RunBuilder(tmp_path / "lost").diverged("fp32", finite=0)).assign(test_accuracy_pct=float("nan"))
    assert training.course(lost, name="lost", caption="lost") is None

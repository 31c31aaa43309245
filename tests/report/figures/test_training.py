"""The course of training as it is drawn: what lies where, and what tells it apart."""

import re

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from bench.report.figures import figure, training
from bench.report.reading.load import load
from bench.spec.precisions import PRECISIONS
from tests.report.builders import RunBuilder


def epochs_of(run):
    return load([run.folder]).epochs


def drawn(rows, columns, x="epoch"):
    with mpl.rc_context(figure.STYLE):
        axes = Figure().subplots()
        training.panel(axes, rows, columns=columns, x=x)
        axes.figure.draw_without_rendering()
    return axes


def lines(axes, precision):
    marker = figure.look(precision)["marker"]
    found = [line for line in axes.lines if line.get_marker() == marker]
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in found]


def test_a_line_is_the_mean_over_seeds_and_the_band_reaches_from_the_lowest_to_the_highest(tmp_path):
    axes = drawn(epochs_of(RunBuilder(tmp_path / "run").train("fp32", [80.0, 90.0, 100.0])), training.ACCURACY)
    ((x, y),) = lines(axes, "fp32")
    assert (x, y) == ([1, 2], pytest.approx([54.0, 72.0]))
    (band,) = axes.collections
    heights = band.get_paths()[0].get_extents()
    assert (heights.y0, heights.y1) == pytest.approx((48.0, 80.0))


def test_one_seed_has_a_line_and_no_band(tmp_path):
    rows = epochs_of(RunBuilder(tmp_path / "run").train("fp32", [80.0]))
    axes = drawn(rows, training.LOSS)
    assert len(lines(axes, "fp32")) == 2
    assert len(axes.collections) == 0
    assert not any("seeds" in str(handle.get_label()) for handle in training.legend(rows))


def test_against_time_a_faster_precision_lies_further_left_by_its_training_time(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [80.0, 80.0], epoch_s=[4.0, 6.0])
    axes = drawn(epochs_of(run.train("amp-bf16", [80.0], epoch_s=2.0)), training.ACCURACY, "elapsed_s")
    assert lines(axes, "fp32")[0][0] == pytest.approx([5.0, 10.0])
    assert lines(axes, "amp-bf16")[0][0] == pytest.approx([2.0, 4.0])
    assert axes.get_xlabel() == "training time (s)"


def test_long_trainings_are_drawn_in_hours(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [80.0], epoch_s=7200.0)
    axes = drawn(epochs_of(run), training.ACCURACY, "elapsed_s")
    assert lines(axes, "fp32")[0][0] == pytest.approx([2.0, 4.0])
    assert axes.get_xlabel() == "training time (h)"


def test_training_and_test_losses_differ_by_their_dashes_and_precisions_by_their_markers(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [80.0]).train("amp-bf16", [80.0])
    found = [line for line in drawn(epochs_of(run), training.LOSS).lines if len(line.get_xdata())]
    told_apart = {(line.get_marker(), line.is_dashed()) for line in found}
    assert len(found) == len(told_apart) == 4


def test_every_precision_has_a_marker_and_a_colour_of_its_own():
    for part in ("color", "marker"):
        assert len({figure.look(name)[part] for name in PRECISIONS}) == len(PRECISIONS)


def test_a_seed_that_diverged_is_crossed_where_it_was_last_finite_and_the_cross_explained(tmp_path):
    run = RunBuilder(tmp_path / "run").train("amp-fp16", [80.0]).diverged("amp-fp16", seed=1, finite=2)
    rows = epochs_of(run)
    crosses = [line for line in drawn(rows, {"train_loss": "-"}).lines if line.get_marker() == "x"]
    assert [(list(cross.get_xdata()), list(cross.get_ydata())) for cross in crosses] == [([2.0], [1.05 / 2])]
    assert "diverged" in str(training.legend(rows)[-1].get_label())


def test_what_nan_weights_answered_is_drawn_as_no_accuracy(tmp_path):
    run = RunBuilder(tmp_path / "run").train("amp-fp16", [80.0], epochs=3).diverged("amp-fp16", seed=1, finite=2)
    axes = drawn(epochs_of(run), training.ACCURACY)
    ((x, y),) = lines(axes, "amp-fp16")
    assert (x[-1], y[-1]) == (3, pytest.approx(80 * (1 - 0.4 / 3)))  # the seed left; the other one's is 10
    (cross,) = [line for line in axes.lines if line.get_marker() == "x"]
    assert list(cross.get_xdata()) == [2.0]


def test_a_loss_that_falls_far_is_logarithmic_with_plain_ticks(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [80.0], epochs=100)
    axes = drawn(epochs_of(run), training.LOSS)
    assert axes.get_yscale() == "log"
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert "0.1" in labels
    assert all(re.fullmatch(r"[\d.e-]+", label) for label in labels)
    assert drawn(epochs_of(RunBuilder(tmp_path / "s").train("fp32", [80.0])), training.LOSS).get_yscale() == "linear"


def test_regression_has_no_accuracy_and_a_training_without_a_finite_loss_no_plot(tmp_path):
    def titles(run):
        plot = training.draw_course(epochs_of(run), name="it", caption="it", folder=tmp_path)
        return 0 if plot is None else plot.svg.count('id="axes_')

    assert titles(RunBuilder(tmp_path / "regression").train("fp32", [None])) == 2
    assert titles(RunBuilder(tmp_path / "full").train("fp32", [80.0])) == 4
    lost = epochs_of(RunBuilder(tmp_path / "lost").diverged("fp32", finite=0)).assign(test_accuracy_pct=float("nan"))
    assert training.draw_course(lost, name="lost", caption="lost", folder=tmp_path) is None

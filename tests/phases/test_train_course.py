"""The course of training as it is drawn: what lies where, and what tells it apart."""

import pytest

from bench.phases.train import course as training
from bench.report.figures.chart import CROSS, Bar, Curve, Text
from bench.report.reading.load import load
from tests.report.builders import RunBuilder


def epochs_of(run):
    return load([run.folder]).details["epochs"]


def marks(panel, kind):
    return [mark for mark in panel.marks if isinstance(mark, kind)]


def line(panel, precision):
    """Return the places and the values of a precision's only line."""
    (drawn,) = (mark for mark in marks(panel, Curve) if mark.tint == precision)
    return [list(values) for values in zip(*drawn.points, strict=True)]


def test_a_line_is_the_mean_over_seeds_and_the_band_reaches_from_the_lowest_to_the_highest(
    tmp_path,
):
    run = RunBuilder(tmp_path / "run").train("fp32", [80.0, 90.0, 100.0])
    panel = training.panel(epochs_of(run), training.ACCURACY, "epoch")
    assert line(panel, "fp32") == [[1, 2], pytest.approx([72.0, 90.0])]
    (band,) = marks(panel, Bar)
    assert list(band.low) == pytest.approx([64.0, 80.0])
    assert list(band.high) == pytest.approx([80.0, 100.0])


def test_against_time_a_faster_precision_lies_further_left_by_its_training_time(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [80.0, 80.0], epoch_s=[4.0, 6.0])
    run.train("amp-bf16", [80.0], epoch_s=2.0)
    panel = training.panel(epochs_of(run), training.ACCURACY, "elapsed_s")
    for precision, times_s in (("fp32", [5.0, 10.0]), ("amp-bf16", [2.0, 4.0])):
        x, _ = line(panel, precision)
        assert x == pytest.approx(times_s)
    assert panel.x.label == "training time (s)"


def test_a_seed_that_diverged_is_crossed_and_what_nan_weights_answered_is_no_accuracy(tmp_path):
    run = RunBuilder(tmp_path / "run").train("amp-fp16", [80.0], epochs=3)
    run.diverged("amp-fp16", seed=1, finite=2)
    rows = epochs_of(run)
    panel = training.panel(rows, training.ACCURACY, "epoch")
    x, y = line(panel, "amp-fp16")
    assert (x[-1], y[-1]) == (3, pytest.approx(80))  # the seed left; the other one's is 10
    (cross,) = marks(panel, Text)
    assert cross.x == 2.0
    assert training.legend(rows)[-1][1] == CROSS


def test_regression_has_no_accuracy_and_a_training_without_a_finite_loss_no_plot(tmp_path):
    def titles(run):
        return len(training.course(epochs_of(run), name="it", caption="it").panels)

    assert titles(RunBuilder(tmp_path / "regression").train("fp32", [None])) == 2
    assert titles(RunBuilder(tmp_path / "full").train("fp32", [80.0])) == 4
    lost = epochs_of(RunBuilder(tmp_path / "lost").diverged("fp32", finite=0))
    lost = lost.assign(test_accuracy_pct=float("nan"))
    assert training.course(lost, name="lost", caption="lost") is None

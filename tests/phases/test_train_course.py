"""The course of training as it is drawn: what lies where, and what tells it apart."""

import math

import pytest

from bench.phases.train.course import ACCURACY, course, legend, panel
from bench.report.figures.chart import CROSS, Bar, Curve, Text
from bench.report.reading.load import load
from tests.report.builders import RunBuilder


@pytest.fixture
def run(tmp_path):
    return RunBuilder(tmp_path / "run")


def epochs_of(run):
    loaded = load([run.folder])
    return loaded.details["epochs"]


def accuracy(run, x="epoch"):
    """Return the panel of accuracies."""
    rows = epochs_of(run)
    return panel(rows, ACCURACY, x)


def marks(panel, kind):
    return [mark for mark in panel.marks if isinstance(mark, kind)]


def test_a_line_is_the_mean_over_seeds_and_the_band_reaches_from_the_lowest_to_the_highest(run):
    run.train("fp32", [80.0, 82.0, 99.0], epochs=1)
    drawn = accuracy(run)
    (line,) = marks(drawn, Curve)
    (band,) = marks(drawn, Bar)
    assert line.points == [(1, 87.0)]
    assert list(band.low) == [80.0]
    assert list(band.high) == [99.0]


def test_against_time_a_faster_precision_lies_further_left_by_its_training_time(run):
    run.train("fp32", [80.0, 80.0], epoch_s=[4.0, 6.0])
    run.train("amp-bf16", [80.0], epoch_s=2.0)
    drawn = accuracy(run, "elapsed_s")
    assert drawn.x.label == "training time (s)"
    times_s = {}
    for line in marks(drawn, Curve):
        first, second = line.points
        times_s[line.tint] = (first[0], second[0])
    assert times_s["fp32"] == (5.0, 10.0)
    assert times_s["amp-bf16"] == (2.0, 4.0)


def test_a_seed_that_diverged_is_crossed_and_what_nan_weights_answered_is_no_accuracy(run):
    run.train("amp-fp16", [80.0], epochs=3)
    run.diverged("amp-fp16", seed=1, finite=2)
    drawn = accuracy(run)
    (line,) = marks(drawn, Curve)
    *_, last = line.points
    assert last == (3, 80.0)  # of the seed left; the other one's is 10
    (cross,) = marks(drawn, Text)
    assert cross.x == 2.0
    *_, last = legend(epochs_of(run))
    assert CROSS in last


@pytest.mark.parametrize(
    ("accuracy_pct", "panels"),
    [
        (None, 2),
        (80.0, 4),
    ],
)
def test_regression_has_no_accuracy(run, accuracy_pct, panels):
    run.train("fp32", [accuracy_pct])
    rows = epochs_of(run)
    drawn = course(rows, name="", caption="")
    assert len(drawn.panels) == panels


def test_a_training_without_a_finite_loss_has_no_plot(run):
    run.diverged("fp32", finite=0)
    rows = epochs_of(run)
    lost = rows.assign(test_accuracy_pct=math.nan)
    assert course(lost, name="", caption="") is None

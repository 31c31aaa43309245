"""Figures against batch size: what is described, which are drawn, and that the drawing shows it."""

from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from bench.report.analysis.summary import summarise
from bench.report.figures import chart, devices
from bench.report.figures.chart import Curve, Rule, Text
from bench.report.figures.devices import against_batch, tints_of
from bench.report.figures.draw import draw
from bench.report.parts import OVERVIEW
from bench.report.reading.load import CELL, load
from bench.spec.metrics import MEMORY, SPEED, THROUGHPUT
from perf.synthetic_fleet import Shape, write_run
from tests.report.builders import RunBuilder

THREE = Shape(
    gpus=("V100", "A100", "H100"),
    models=("resnet50",),
    batch_sizes=(64, 128),
    processes=2,
    seeds=2,
    epochs=2,
    rounds=2,
)


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    run = write_run(tmp_path_factory.mktemp("three") / "run", THREE)
    return summarise(load([run]).trials)


def rows(*figures):
    """Rows of a summary: label, precision, batch size, speedup and perhaps an interval; without a
    value, oom.
    """
    lines = []
    for label, precision, batch, speedup, *ends in figures:
        low, high = ends or (None, None)
        line = dict.fromkeys(CELL[:-1], "") | {"label": label, "device_kind": "cuda"}
        line |= {"precision": precision, "batch_size": batch}
        line |= {"speedup": speedup, "speedup_low": low, "speedup_high": high}
        line["speed_status"] = "ok" if speedup else "oom"
        lines.append(line)
    frame = pd.DataFrame(lines)
    return frame.astype(dict.fromkeys(["speedup", "speedup_low", "speedup_high"], float))


def described(frame, metric=SPEED):
    return against_batch(frame, metric, workload="mlp", name="x", tints=tints_of(frame))


def elements(figure, folder):
    """The elements of the page that a figure is drawn as."""
    return ElementTree.fromstring(f"<p>{draw(figure, folder)}</p>")


def marks(panel, kind, tint=None):
    return [mark for mark in panel.marks if isinstance(mark, kind) and tint in (None, mark.tint)]


def curve(device, precision, *values):
    """Rows of batch sizes 32, 64 and so on."""
    return [(device, precision, 32 * 2**place, value) for place, value in enumerate(values)]


def test_a_precision_has_a_panel_and_a_device_a_line_with_whiskers_on_axes_that_all_share():
    whiskers = [("A", "tf32", 32, 1.5, 1.4, 1.6), ("A", "tf32", 64, 1.7, 1.6, 1.8)]
    without = curve("B", "tf32", 1.2, 1.1) + curve("A", "amp-fp16", 3.0, 4.0)
    figure = described(rows(*whiskers, *without))
    tf32, fp16 = figure.panels
    assert (tf32.title, tf32.precision) == ("tf32", "tf32")
    assert (fp16.title, fp16.precision) == ("amp-fp16", "amp-fp16")
    assert (tf32.x, tf32.y) == (fp16.x, fp16.y)
    (line,) = marks(tf32, Curve, "device-0")
    assert line.points == [(32, 1.5), (64, 1.7)]
    assert line.whiskers == [(32, 1.4, 1.6), (64, 1.6, 1.8)]
    (line,) = marks(tf32, Curve, "device-1")
    assert line.points == [(32, 1.2), (64, 1.1)]
    (rule,) = marks(fp16, Rule)
    assert rule.at == 1.0
    assert figure.legend == [("A", "device-0"), ("B", "device-1")]


def test_one_device_has_one_panel_with_a_line_for_each_precision():
    frame = rows(*curve("A", "tf32", 1.5, 1.7), *curve("A", "amp-bf16", 2.0, 2.2))
    (panel,) = described(frame).panels
    assert [line.tint for line in marks(panel, Curve)] == ["tf32", "amp-bf16"]
    assert (panel.title, panel.precision) == ("A", "")


def test_one_batch_size_is_a_dot_plot_with_a_row_for_each_name():
    figure = described(
        rows(("A", "tf32", 64, 1.5, 1.4, 1.6), ("B", "tf32", 64, 2.0), ("C", "tf32", 64, None))
    )
    (panel,) = figure.panels
    assert [name for _, name in panel.y.ticks] == ["A 1.50×", "B 2.00×", "C ✕"]
    assert panel.rows == 3
    assert marks(panel, Curve, "device-1")[-1].points == [(2.0, 1.5)]
    assert figure.caption.startswith("Speedup at batch size 64")


@pytest.mark.parametrize(("low", "high", "is_cut"), [(0.4, 0.6, False), (0.003, 8.0, True)])
def test_a_wide_interval_reaches_the_edge_of_the_axis_and_the_caption_says_so(low, high, is_cut):
    figure = described(rows(("A", "tf32", 64, 0.5, low, high)))
    (panel,) = figure.panels
    interval, _ = marks(panel, Curve)
    ends = [x for x, _ in interval.points]
    assert (ends == [panel.x.low, panel.x.high]) == is_cut
    assert (ends == [low, high]) != is_cut
    assert ("goes on beyond" in figure.about) == is_cut


def test_what_did_not_fit_is_a_cross_at_its_batch_size_and_crosses_stand_apart(tmp_path):
    frame = rows(*curve("A", "tf32", 1.5, 1.7, None), *curve("B", "tf32", 1.2, 1.4, None))
    figure = described(frame)
    (panel,) = figure.panels
    crosses = marks(panel, Text)
    assert [cross.tint for cross in crosses] == ["device-0", "device-1"]
    assert [cross.x for cross in crosses] == [128, 128]
    left, right = [text for text in elements(figure, tmp_path).iter("text") if text.text == "✕"]
    assert abs(float(left.get("x")) - float(right.get("x"))) > 8


def test_a_speedup_does_not_fit_where_fp32_does_not(tmp_path):
    run = RunBuilder(tmp_path / "run").speed(batch=64).speed(batch=256)
    run.lost("speed", "fp32", "oom", batch=128).lost("speed", "tf32", "unsupported", batch=128)
    run.alone("amp-bf16", [5.0, 5.1], batch=128)
    (panel,) = described(run.summary()).panels
    (cross,) = marks(panel, Text)
    assert (cross.tint, cross.x) == ("amp-bf16", 128)


def test_other_metrics_have_the_same_shape_in_their_own_unit_with_fp32(tmp_path):
    run = RunBuilder(tmp_path / "run").speed(batch=64).speed(batch=128)
    for batch, mib in ((64, 300), (128, 600)):
        run.memory("fp32", mib, batch=batch).memory("amp-bf16", 0.6 * mib, batch=batch)
    run.lost("memory", "fp32", "oom", batch=256).memory("amp-bf16", 900, batch=256)
    (panel,) = described(run.summary(), MEMORY).panels
    assert panel.y.label == "MiB"
    (line,) = marks(panel, Curve, "amp-bf16")
    assert line.points == [(64, 180), (128, 360), (256, 900)]
    (cross,) = marks(panel, Text, "fp32")
    assert cross.text == "✕"


@pytest.mark.parametrize("choice", ["overview", "all"])
def test_speedups_come_first_and_of_the_others_files_are_drawn_where_all_figures_are_asked_for(
    summary, choice
):
    figures = []
    for title, figure in devices.charts(summary, choice):
        if figure is not None:
            figures.append((title, figure.name, figure.in_files))
    assert figures == [
        (OVERVIEW, "speedup-vs-batch-resnet50", True),
        ("resnet50", "throughput-vs-batch-resnet50", choice == "all"),
        ("resnet50", "memory-vs-batch-resnet50", choice == "all"),
    ]


def test_a_page_shows_every_dot_where_its_figure_is(summary, tmp_path):
    figure = described(summary)
    page = elements(figure, tmp_path)
    legend = page.find("div/svg")
    assert [text.text for text in legend.iter("text")] == ["V100", "A100", "H100"]
    drawings = page.findall(".//div[@class]/svg")
    for panel, drawing in zip(figure.panels, drawings, strict=True):
        assert drawing.get("data-precision") == panel.precision
        values = []
        for line in marks(panel, Curve):
            values += [value for _, value in line.points]
        heights = [float(dot.get("y")) for dot in drawing.iter("use")]
        slope, start = np.polyfit(values, heights, 1)
        assert slope < 0
        # Drawings are rounded to a tenth of a pixel.
        assert start + slope * np.array(values) == pytest.approx(heights, abs=0.11)
    assert Image.open(tmp_path / "x.png").width > 900
    assert ElementTree.parse(tmp_path / "x.svg").getroot().tag.endswith("svg")


def test_each_of_many_devices_and_of_arms_without_letters_has_a_look_or_a_class_of_its_own():
    looks = {chart.look(f"device-{place}") for place in range(64)}
    assert len(looks) == 64
    names = ["1", "2", "+", "++", "a b", "a-b", "a_b", "é"]
    assert len(set(map(chart.class_of, names))) == len(names)


def test_what_nobody_measured_has_no_figure(summary):
    bare = summary.assign(speedup=float("nan"), samples_per_s=float("nan"))
    assert described(bare) is None
    assert described(bare, THROUGHPUT) is None
